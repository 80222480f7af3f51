"""Pure. What shell text is made of: words and their parts, operators, and marks of what looks mistaken."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, TypeAlias

__all__ = ["Mark", "MarkCode", "Operator", "Part", "PartKind", "Token", "Word"]

PartKind: TypeAlias = Literal["text", "parameter", "unread"]
MarkCode: TypeAlias = Literal["space_after_backslash", "typed_quote", "typed_dash", "odd_blank", "heredoc"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Part:
    """A piece of a word: text, a parameter (the inside of ``${…}``), or a substitution left unread."""

    kind: PartKind
    text: str
    is_quoted: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Word:
    """One word; ``items`` are the words of an array when it is ``NAME=( … )``."""

    line: int
    parts: tuple[Part, ...]
    items: tuple[Word, ...] | None = None

    @property
    def literal(self) -> str:
        """The text as far as the file says it; parameters are left out."""
        return "".join(part.text for part in self.parts if part.kind == "text")

    @property
    def unquoted(self) -> str | None:
        """The text of a word without quotes and parameters (a keyword), None for any other."""
        if len(self.parts) == 1 and self.parts[0].kind == "text" and not self.parts[0].is_quoted:
            return self.parts[0].text
        return None


@dataclass(frozen=True, slots=True, kw_only=True)
class Operator:
    r"""``;``, ``&&``, ``|``, ``(``, a newline …; ``is_redirect`` takes the next word as its target."""

    line: int
    text: str
    is_redirect: bool = False


Token: TypeAlias = Word | Operator


@dataclass(frozen=True, slots=True, kw_only=True)
class Mark:
    """Something in the text that a shell takes otherwise than its writer meant, or a skipped document."""

    code: MarkCode
    line: int
    text: str = ""
