"""I/O. Whether the processes of an engine do anything: CPU time used so far, who is stopped, who waits."""

from __future__ import annotations

from dataclasses import dataclass

import psutil

__all__ = ["ProcessActivity", "probe_activity"]


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
