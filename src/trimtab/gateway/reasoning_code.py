"""Pure. Where in an answer's Markdown a tag would stand: at a line's start, in code, behind a quote.

A model that is asked about thinking tags writes them into its answer. What it shows as code or in
quotes is text; a tag that it means stands free.
"""

from __future__ import annotations

from typing import Final

__all__ = ["TextPosition"]

_QUOTES: Final = ("`", '"', "'", "\N{LEFT DOUBLE QUOTATION MARK}", "\N{LEFT SINGLE QUOTATION MARK}")
_TOOL_CALL_END: Final = "</tool_call>"


class TextPosition:
    """The place behind all text that ``advance`` was given; how that text was cut makes no difference."""

    __slots__ = ("_backticks", "_is_blank", "_is_fenced", "_is_inline", "_tail")

    def __init__(self) -> None:
        self._tail = ""
        self._is_blank = True
        self._backticks = 0
        self._is_inline = False
        self._is_fenced = False

    def advance(self, text: str) -> None:
        """Go on behind ``text``."""
        if not text:
            return
        self._tail = (self._tail + text)[-16:]
        line_at = text.rfind("\n") + 1
        self._is_blank = (line_at > 0 or self._is_blank) and not text[line_at:].strip()
        if self._backticks or "`" in text:
            for character in text:
                self._step(character)
        elif line_at:
            self._is_inline = False

    def after(self, text: str) -> TextPosition:
        """The place behind ``text``; this one stays."""
        copy = TextPosition()
        for name in self.__slots__:
            setattr(copy, name, getattr(self, name))
        copy.advance(text)
        return copy

    @property
    def is_line_start(self) -> bool:
        """Nothing but white space stands before it on its line, or a tool call does."""
        return self._is_blank or self._tail.rstrip().endswith(_TOOL_CALL_END)

    @property
    def is_shown(self) -> bool:
        """A tag here would be code or quoted: it is meant to be read."""
        return self._is_fenced or self._is_in_code_span or self._tail.endswith(_QUOTES)

    @property
    def _is_in_code_span(self) -> bool:
        # A run of backticks that has not ended yet may open or close; the quote rule covers it.
        return self._is_inline

    def _step(self, character: str) -> None:
        if character == "`":
            self._backticks += 1
            return
        if self._backticks >= 3:
            self._is_fenced = not self._is_fenced
            self._is_inline = False
        elif self._backticks and not self._is_fenced:
            self._is_inline = not self._is_inline
        self._backticks = 0
        if character == "\n":
            self._is_inline = False
