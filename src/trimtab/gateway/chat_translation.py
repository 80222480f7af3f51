"""Pure. What translations of a chat's stream share: events in, blocks in order, one end."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any

from trimtab.gateway.answer_blocks import BlockOrder, BlockStep
from trimtab.gateway.chat_events import ChatEvent, ChatEvents

__all__ = ["ChatTranslation"]


class ChatTranslation(ABC):
    """Any cut of the stream gives the same bytes. What a protocol calls its events, its translation says."""

    def __init__(self) -> None:
        self._events = ChatEvents()
        self._order = BlockOrder()
        self._is_over = False
        # The piece that told why the answer ended, and the latest usage.
        self._last = ChatEvent(kind="piece")
        self._usage: dict[str, Any] | None = None

    def feed(self, data: bytes) -> bytes:
        """What the next bytes make."""
        return b"".join([self._translate(event) for event in self._events.feed(data)])

    @property
    def is_broken(self) -> bool:
        """Whether an event of the engine's was too long; the error has been told."""
        return self._events.is_broken

    def end(self) -> bytes:
        """The end where none was told: a chat that just stopped is over."""
        return b"" if self._is_over else self._end()

    def _translate(self, event: ChatEvent) -> bytes:
        if event.kind == "comment":
            return self._comment(event)
        if event.kind == "error":
            self._is_over = True
            return self._fail(event)
        if event.kind == "done":
            return self._end()
        begun = self._begin(event)
        if event.finish is not None:
            self._last = event
        if event.usage is not None:
            self._usage = event.usage
        return begun + self._tell(self._order.add(event))

    def _end(self) -> bytes:
        self._is_over = True
        begun = self._begin(ChatEvent(kind="piece"))
        return begun + self._tell(self._order.close()) + self._finish()

    def _tell(self, steps: list[BlockStep]) -> bytes:
        tell = {"open": self._open, "grow": self._grow, "close": self._close}
        return b"".join([tell[step.step](step) for step in steps])

    def _comment(self, event: ChatEvent) -> bytes:
        return event.comment

    @abstractmethod
    def _begin(self, event: ChatEvent) -> bytes:
        """What stands before the first block; nothing the second time."""

    @abstractmethod
    def _open(self, step: BlockStep) -> bytes:
        """A block opens."""

    @abstractmethod
    def _grow(self, step: BlockStep) -> bytes:
        """It grows."""

    @abstractmethod
    def _close(self, step: BlockStep) -> bytes:
        """It is whole."""

    @abstractmethod
    def _finish(self) -> bytes:
        """What stands behind the last block."""

    @abstractmethod
    def _fail(self, event: ChatEvent) -> bytes:
        """The error that ended it."""
