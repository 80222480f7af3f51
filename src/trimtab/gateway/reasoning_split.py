"""Pure. Tells the thought from the answer in one choice's text, as it comes.

Engines differ: some hand out the thought in a field of its own, some leave tags in the text, some
leave only the closing tag because the prompt held the opening one, some put the answer where the
thought belongs. Here every one of them becomes the same two texts, however the stream was cut.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, Literal, TypeAlias

from trimtab.gateway.reasoning_code import TextPosition

__all__ = [
    "CLOSER",
    "MAX_HELD_CHARS",
    "OPENER",
    "FieldSplitter",
    "Piece",
    "ReasoningSplitter",
    "TextKind",
]

TextKind: TypeAlias = Literal["reasoning", "content"]

OPENER: Final = "<think>"
CLOSER: Final = "</think>"
_TOOL_CALL: Final = "<tool_call>"
# The longest unfinished tag.
MAX_HELD_CHARS: Final = len(_TOOL_CALL) - 1
_NEWLINES: Final = "\r\n"
# Pieces that are kept as they came, at most: many small strings take several times their length.
_MAX_UNREAD: Final = 256
# A thought that is longer is not kept to be given again: a million tokens of context hold far less.
_MAX_THOUGHT_CHARS: Final = 16 * 1024 * 1024


@dataclass(frozen=True, slots=True)
class Piece:
    """A run of text of one kind, never empty."""

    kind: TextKind
    text: str


class ReasoningSplitter:
    """Takes the texts of one choice in order, gives them back by kind.

    ``is_thinking`` is what the engine was told. ``starts_inside`` says that the prompt holds the
    opening tag. Rules, each for a fault seen in the field:

    - Thinking off: what comes in the engine's reasoning field is the answer.
    - Thinking on: it is the thought, up to a closing tag inside it; what follows is the answer.
    - In text, an opening tag counts at the start of a line or right behind a tool call, and anywhere
      while thinking is on and no thought has come yet; in code or behind a quote it is text.
    - The first closing tag ends a thought. One that closes nothing is dropped, unless it is code.
    - ``<tool_call>`` ends a thought in text, and stays.
    - Line ends that follow a tag go with it.
    - At most an unfinished tag is held back.
    """

    def __init__(self, *, is_thinking: bool, starts_inside: bool = False) -> None:
        self._is_thinking = is_thinking
        self._kind: TextKind = "reasoning" if is_thinking and starts_inside else "content"
        # Whether the engine's own field, not a tag or the prompt, put us inside a thought.
        self._is_by_field = False
        self._is_answer_in_field = False
        self._has_thought = self._kind == "reasoning"
        self._is_thought_fresh = self._has_thought
        self._drops_newlines = False
        self._held = ""
        self._position = TextPosition()
        self._unread: list[str] = []
        self._thought: list[str] = []
        self._num_thought_chars = 0
        self._has_answer = False

    @property
    def is_inside(self) -> bool:
        """Whether a thought is open."""
        return self._kind == "reasoning"

    @property
    def has_answer(self) -> bool:
        """Whether any text of the answer, or a tool call, has come."""
        return self._has_answer

    @property
    def thought(self) -> str:
        """The thought so far, while no answer has come."""
        return "".join(self._thought)

    def pass_text(self, text: str, *, is_from_field: bool) -> TextKind | None:
        """The kind of a text that passes whole, None where it needs a closer look.

        ``text`` is not empty and holds no ``<``; ``is_from_field`` tells the engine's reasoning field.
        """
        if self._held or self._drops_newlines:
            return None
        is_expected = self._is_by_field == is_from_field if self._kind == "reasoning" else not is_from_field
        if not is_expected:
            return None
        self._note(text)
        return self._kind

    def feed_content(self, text: str) -> list[Piece]:
        """Take text from the engine's content field."""
        if not text:
            return []
        pieces: list[Piece] = []
        if self._is_by_field and self._kind == "reasoning":
            pieces += self._flush()
            self._leave()
        return pieces + self._scan(text)

    def feed_reasoning(self, text: str) -> list[Piece]:
        """Take text from the engine's reasoning field."""
        if not text:
            return []
        if not self._is_thinking or self._is_answer_in_field:
            return self._scan(text)
        pieces: list[Piece] = []
        if self._kind == "content":
            pieces += self._flush()
            self._enter()
        self._is_by_field = True
        return pieces + self._scan(text)

    def feed_tool_calls(self) -> None:
        """Take note of a tool call that the engine parsed: the thought is over, half a tag is none."""
        self._held = ""
        self._has_answer = True
        self._leave()

    def finish(self, reason: str | None) -> list[Piece]:
        """What is left, given the finish reason; None for a stream that broke off.

        A tag begun beside a tool call is no text. A thought that ended by itself without any answer is
        given again as the answer: better twice than nothing.
        """
        if reason == "tool_calls":
            self._held = ""
        pieces = self._flush()
        if reason == "stop" and not self._has_answer and self._thought:
            pieces.append(Piece("content", self.thought))
            self._has_answer = True
        return pieces

    def _scan(self, text: str) -> list[Piece]:
        data, self._held = self._held + text, ""
        pieces: list[Piece] = []
        start = at = 0
        while (at := data.find("<", at)) >= 0:
            tag, is_whole = self._tag_at(data, start, at)
            if tag is None:
                at += 1
                continue
            pieces += self._emit(data[start:at])
            if not is_whole:
                self._held = data[at:]
                return pieces
            start = at = at + self._pass(tag)
            if tag == _TOOL_CALL:
                at += 1
        return pieces + self._emit(data[start:])

    def _tag_at(self, data: str, start: int, at: int) -> tuple[str | None, bool]:
        """The tag that begins at ``at`` and counts there, and whether all of it is here."""
        for tag in self._sought(data[start:at]):
            if data.startswith(tag, at):
                if self._counts(tag, data[start:at]):
                    return tag, True
            elif tag.startswith(data[at:]) and self._counts(tag, data[start:at]):
                return tag, False
        return None, False

    def _sought(self, before: str) -> tuple[str, ...]:
        if self._kind == "content":
            return (OPENER, CLOSER)
        tags = (CLOSER,) if self._is_by_field else (CLOSER, _TOOL_CALL)
        # Some engines leave or repeat the opening tag at the beginning of a thought.
        return (*tags, OPENER) if self._is_thought_fresh and not before.strip() else tags

    def _counts(self, tag: str, before: str) -> bool:
        if self._kind == "reasoning" and tag != _TOOL_CALL:
            return True
        self._catch_up()
        place = self._position.after(before)
        if place.is_shown:
            return False
        if tag != OPENER:
            return True
        return place.is_line_start or (self._is_thinking and not self._has_thought)

    def _pass(self, tag: str) -> int:
        """Act on a tag; how many characters of it are taken out of the text."""
        if tag == _TOOL_CALL:
            self._leave()
            return 0
        if tag == OPENER:
            if self._kind == "content":
                self._enter()
        elif self._kind == "reasoning":
            self._is_answer_in_field |= self._is_by_field
            self._leave()
        self._drops_newlines = True
        return len(tag)

    def _enter(self) -> None:
        self._kind = "reasoning"
        self._has_thought = self._is_thought_fresh = True
        self._is_by_field = False
        self._drops_newlines = False
        self._forget_position()

    def _leave(self) -> None:
        self._kind = "content"
        self._is_by_field = False
        self._drops_newlines = False
        self._forget_position()

    def _forget_position(self) -> None:
        self._position = TextPosition()
        self._unread.clear()

    def _catch_up(self) -> None:
        if self._unread:
            self._position.advance("".join(self._unread))
            self._unread.clear()

    def _flush(self) -> list[Piece]:
        held, self._held = self._held, ""
        return self._emit(held)

    def _emit(self, text: str) -> list[Piece]:
        if self._drops_newlines:
            kept = text.lstrip(_NEWLINES)
            # A tag's place is where the model wrote it: line ends that are dropped count.
            self._unread.append(text[: len(text) - len(kept)])
            text = kept
        if not text:
            return []
        self._drops_newlines = False
        self._note(text)
        return [Piece(self._kind, text)]

    def _note(self, text: str) -> None:
        """Remember what matters of a text that goes out."""
        unread = self._unread
        unread.append(text)
        if len(unread) >= _MAX_UNREAD:
            self._catch_up()
        if self._kind == "reasoning":
            if self._is_thought_fresh:
                self._is_thought_fresh = not text.strip()
            if not self._has_answer and self._num_thought_chars < _MAX_THOUGHT_CHARS:
                self._num_thought_chars += len(text)
                self._thought.append(text)
                if len(self._thought) >= _MAX_UNREAD:
                    self._thought = [self.thought]
        elif not self._has_answer and text.strip():
            self._has_answer = True
            self._thought.clear()


class FieldSplitter(ReasoningSplitter):
    """For models without tags that we know: each of the engine's two fields is what it says."""

    def __init__(self) -> None:
        super().__init__(is_thinking=True)

    def pass_text(self, text: str, *, is_from_field: bool) -> TextKind | None:
        """Each field's text is what it says."""
        del text
        return "reasoning" if is_from_field else "content"

    def feed_content(self, text: str) -> list[Piece]:
        """The answer."""
        return [Piece("content", text)] if text else []

    def feed_reasoning(self, text: str) -> list[Piece]:
        """The thought."""
        return [Piece("reasoning", text)] if text else []

    def feed_tool_calls(self) -> None:
        """Nothing waits."""

    def finish(self, reason: str | None) -> list[Piece]:
        """Nothing is left."""
        del reason
        return []
