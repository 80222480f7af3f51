"""I/O. After a stop: wait until the cards are really free of the engine's processes, else name the holder.

A process that was killed may stay in the driver for seconds while its memory is unmapped; the next start
would find the card full. Only processes that belonged to the engine are waited for.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from typing import Final

from trimtab.core.gpu_facts import GpuProcess
from trimtab.errors import EnvironmentMissingError
from trimtab.probes.process_activity import FamilyMember, is_another_now
from trimtab.units import format_bytes

__all__ = ["CardReader", "wait_cards_released"]

CardReader = Callable[[], tuple[GpuProcess, ...]]
"""Who holds memory of which card, asked anew; it may block."""

# 80 GB are unmapped in one to three seconds; a process that hangs in the driver stays for good.
_TIMEOUT_S: Final = 20.0
_POLL_S: Final = 0.25


async def wait_cards_released(
    family: frozenset[FamilyMember], read: CardReader, *, replica_id: str, timeout_s: float = _TIMEOUT_S
) -> None:
    """Return when no card lists a process of ``family`` any more; EnvironmentMissingError names who stays."""
    pids = {member.pid: member for member in family}
    deadline_s = time.monotonic() + timeout_s
    while pids:
        holders = [
            item
            for item in await asyncio.to_thread(read)
            if item.pid in pids and not is_another_now(pids[item.pid])
        ]
        if not holders:
            return
        if time.monotonic() >= deadline_s:
            raise EnvironmentMissingError(
                f"replica {replica_id} is stopped, but {', '.join(_show(item) for item in holders)}",
                hint="it hangs inside the driver: see dmesg; nvidia-smi lists it as long as it holds memory",
            )
        await asyncio.sleep(_POLL_S)


def _show(item: GpuProcess) -> str:
    amount = "memory" if item.used_bytes is None else format_bytes(item.used_bytes)
    return f"process {item.pid} still holds {amount} of card {item.gpu_index}"
