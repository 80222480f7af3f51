"""I/O. Whether the processes of an engine do anything: CPU time used so far, who is stopped, who waits."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass
from typing import Final

import psutil

__all__ = ["FamilyMember", "ProcessActivity", "is_another_now", "probe_activity", "probe_family"]

# The kernel counts starts in hundredths of a second.
_SAME_BEGIN_S: Final = 0.05


@dataclass(frozen=True, slots=True, kw_only=True)
class FamilyMember:
    """One process for certain: its pid, and when it began (seconds since the epoch)."""

    pid: int
    began_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class ProcessActivity:
    """A process and its descendants: CPU seconds so far, pids that a signal stopped, how many wait on a disk.

    ``cpu_s`` falls when a descendant ends.
    """

    cpu_s: float
    stopped_pids: tuple[int, ...] = ()
    num_in_kernel: int = 0


def probe_activity(pid: int) -> ProcessActivity | None:
    """The reading of now; None when the process cannot be seen (gone, or on another machine)."""
    try:
        root = psutil.Process(pid)
        family = [root, *root.children(recursive=True)]
    except (psutil.Error, OSError, ValueError):
        return None
    cpu_s, stopped, num_in_kernel = 0.0, [], 0
    for process in family:
        try:
            with process.oneshot():
                times, status = process.cpu_times(), process.status()
        except (psutil.Error, OSError):
            continue
        cpu_s += times.user + times.system
        if status == psutil.STATUS_STOPPED:
            stopped.append(process.pid)
        num_in_kernel += status == psutil.STATUS_DISK_SLEEP
    return ProcessActivity(cpu_s=cpu_s, stopped_pids=tuple(stopped), num_in_kernel=num_in_kernel)


def probe_family(pid: int) -> frozenset[FamilyMember]:
    """A process and its descendants as of now; empty when it cannot be seen."""
    try:
        root = psutil.Process(pid)
        members = [root, *root.children(recursive=True)]
    except (psutil.Error, OSError, ValueError):
        return frozenset()
    found = set()
    for process in members:
        with suppress(psutil.Error, OSError):
            found.add(FamilyMember(pid=process.pid, began_s=process.create_time()))
    return frozenset(found)


def is_another_now(member: FamilyMember) -> bool:
    """Whether this pid has gone to another process since."""
    try:
        return abs(psutil.Process(member.pid).create_time() - member.began_s) > _SAME_BEGIN_S
    except (psutil.Error, OSError):
        return False
