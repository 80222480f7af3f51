"""Pure. One request as the engine is asked it, and how its answer becomes the one that was asked for."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Protocol

from trimtab.core.stack import ReasoningForm

__all__ = ["Passage", "StreamTranslator", "same"]


class StreamTranslator(Protocol):
    """Takes a stream's bytes however they are cut, gives those of the translated one."""

    def feed(self, data: bytes) -> bytes:
        """What can be told by now."""

    @property
    def is_broken(self) -> bool:
        """Whether it gave up, and told so: nothing that comes can be translated any more."""

    def end(self) -> bytes:
        """What is left to tell once nothing more will come."""


def same(body: bytes) -> bytes:
    """An answer that stays as it is."""
    return body


@dataclass(frozen=True, slots=True, kw_only=True)
class Passage:
    """``path`` and ``body`` are what the engine is asked.

    ``translate`` makes the answer of a whole 200, ``stream`` translates one that streams; None where
    nothing does. ``thoughts`` is the form in which it needs the thought, None for the client's own.
    ``names``: field of the asked path → the client's own field that it was made of, for errors.
    ``repair`` is the name of what was put right on the way, told with the answer.
    """

    path: str
    body: bytes
    translate: Callable[[bytes], bytes] = same
    stream: StreamTranslator | None = None
    thoughts: ReasoningForm | None = None
    names: Mapping[str, str] = field(default_factory=dict)
    repair: str = ""
