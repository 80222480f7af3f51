"""Pure. The form in which a client gets the thought: which fields, inline with tags, or none."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, Final, get_args

from trimtab.core.stack import ReasoningForm
from trimtab.errors import GatewayError
from trimtab.gateway.reasoning_split import (
    CLOSER,
    OPENER,
    FieldSplitter,
    Piece,
    ReasoningSplitter,
    TextKind,
)

__all__ = [
    "FIELDS_OF",
    "REASONING_FIELDS",
    "REASONING_HEADER",
    "AnswerShape",
    "ReasoningWriter",
    "choose_form",
    "place_texts",
    "read_thought",
]

# A request's own wish.
REASONING_HEADER: Final = "x-trimtab-reasoning"
# What engines call the thought; the first that holds text counts.
REASONING_FIELDS: Final = ("reasoning_content", "reasoning")
_FORMS: Final[tuple[ReasoningForm, ...]] = get_args(ReasoningForm)
FIELDS_OF: Final[dict[ReasoningForm, tuple[str, ...]]] = {
    "both": REASONING_FIELDS,
    "reasoning_content": ("reasoning_content",),
    "reasoning": ("reasoning",),
    "inline": (),
    "none": (),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class AnswerShape:
    """How one answer is read and written.

    ``is_plain``: the engine's fields are taken as they are, tags are text. ``has_stop_words``: the
    client set some, so that a thought may end early without being an answer.
    """

    is_thinking: bool = False
    starts_inside: bool = False
    is_plain: bool = False
    has_stop_words: bool = False
    form: ReasoningForm = "both"

    def make_splitter(self) -> ReasoningSplitter:
        """A splitter for one choice."""
        if self.is_plain:
            return FieldSplitter()
        return ReasoningSplitter(is_thinking=self.is_thinking, starts_inside=self.starts_inside)


def choose_form(header: str | None, *, default: ReasoningForm) -> ReasoningForm:
    """What a request's header asks for, else the default; GatewayError (400) names the legal forms."""
    if header is None or not header.strip():
        return default
    wished = header.strip().lower()
    for form in _FORMS:
        if form == wished:
            return form
    raise GatewayError(
        f"the header {REASONING_HEADER} is {header[:40]!r}",
        status=400,
        code="invalid_value",
        param=REASONING_HEADER,
        hint=f"legal are {', '.join(_FORMS)}",
    )


class ReasoningWriter:
    """Turns the pieces of one choice into the two texts that go into its fields."""

    def __init__(self, form: ReasoningForm) -> None:
        self._form = form
        self._is_open = False

    def passes(self, kind: TextKind) -> bool:
        """Whether a text of this kind goes into a field of its own kind, with nothing around it."""
        if kind == "reasoning":
            return self._form not in {"inline", "none"}
        return not self._is_open

    def write(self, pieces: Iterable[Piece], *, is_last: bool = False) -> list[Piece]:
        """The pieces as this form shows them, neighbours of one kind joined; ``is_last`` closes a tag."""
        shown: list[Piece] = []
        for piece in pieces:
            shown += self._show(piece)
        if is_last and self._is_open:
            self._is_open = False
            shown.append(Piece("content", CLOSER))
        joined: list[Piece] = []
        for piece in shown:
            if joined and joined[-1].kind == piece.kind:
                joined[-1] = Piece(piece.kind, joined[-1].text + piece.text)
            else:
                joined.append(piece)
        return joined

    def close(self) -> list[Piece]:
        """What ends a thought that is shown inline, before something that is no text."""
        return self.write((), is_last=True)

    def _show(self, piece: Piece) -> tuple[Piece, ...]:
        if piece.kind == "reasoning":
            if self._form == "none":
                return ()
            if self._form != "inline":
                return (piece,)
        elif not self._is_open:
            return (piece,)
        tag = "" if self._is_open == (piece.kind == "reasoning") else (CLOSER if self._is_open else OPENER)
        self._is_open = piece.kind == "reasoning"
        return (Piece("content", tag + piece.text),)


def read_thought(holder: dict[str, Any]) -> str:
    """The thought in a message or delta, by whatever name; empty where there is none."""
    for field in REASONING_FIELDS:
        value = holder.get(field)
        if isinstance(value, str) and value:
            return value
    return ""


def place_texts(holder: dict[str, Any], *, thought: str, answer: str, form: ReasoningForm) -> dict[str, Any]:
    """The message or delta with these two texts, everything else as it was; fields without text stay."""
    placed = {name: value for name, value in holder.items() if name not in REASONING_FIELDS or not value}
    if thought:
        placed |= dict.fromkeys(FIELDS_OF[form], thought)
    if answer or isinstance(holder.get("content"), str):
        placed["content"] = answer
    return placed
