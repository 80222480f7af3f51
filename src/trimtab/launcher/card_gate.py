"""I/O. One start at a time on a card: an engine that measures free memory must not see another one load."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from trimtab.core.state import ReplicaSpec

__all__ = ["CardGate"]


class CardGate:
    """Locks per card, taken from start to readiness. Owners are replica ids; taking twice is harmless."""

    def __init__(self) -> None:
        self._locks: dict[int, asyncio.Lock] = {}
        self._owners: dict[int, str] = {}

    async def enter(self, spec: ReplicaSpec, on_wait: Callable[[str], None]) -> None:
        """Return when no other replica starts on these cards; ``on_wait`` hears who is waited for.

        Cards are taken in rising order, so that two replicas never wait for each other.
        """
        for index in sorted(spec.gpus):
            if self._owners.get(index) == spec.replica_id:
                continue
            lock = self._locks.setdefault(index, asyncio.Lock())
            if lock.locked():
                on_wait(f"waits for card {index}: {self._owners[index]} is starting on it")
            await lock.acquire()
            self._owners[index] = spec.replica_id

    def leave(self, spec: ReplicaSpec) -> None:
        """Let the next one start; idempotent, and called whatever became of the start."""
        for index in spec.gpus:
            if self._owners.get(index) == spec.replica_id:
                del self._owners[index]
                self._locks[index].release()
