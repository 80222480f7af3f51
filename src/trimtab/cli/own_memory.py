"""I/O. Memory that this stack's own engines hold counts as free: planning again must not shrink the plan."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Iterable
from dataclasses import dataclass, replace

import psutil

from trimtab.cli.folders import Folders
from trimtab.core.gpu_facts import GpuProcess
from trimtab.core.hardware import Gpu, Host
from trimtab.core.state import ObservedReplica
from trimtab.runtimes.routed import RoutedRuntime
from trimtab.runtimes.state_layout import replicas_dir_of

__all__ = ["OwnMemory", "read_own_memory"]


@dataclass(frozen=True, slots=True, kw_only=True)
class OwnMemory:
    """What the replicas of one stack hold: resident bytes, and the processes that may hold card memory."""

    rss_bytes: int = 0
    pids: frozenset[int] = frozenset()

    def free_host(self, host: Host) -> Host:
        """The host as if these replicas were not there."""
        available = min(host.total_ram_bytes, host.available_ram_bytes + self.rss_bytes)
        return replace(host, available_ram_bytes=available)

    def free_gpus(self, gpus: Iterable[Gpu], processes: Iterable[GpuProcess]) -> tuple[Gpu, ...]:
        """The cards as if these replicas were not there."""
        held: dict[int, int] = {}
        for process in processes:
            if process.pid in self.pids and process.used_bytes is not None:
                held[process.gpu_index] = held.get(process.gpu_index, 0) + process.used_bytes
        return tuple(_with_more_free(gpu, held.get(gpu.index, 0)) for gpu in gpus)


def _with_more_free(gpu: Gpu, num_bytes: int) -> Gpu:
    if gpu.free_bytes is None or not num_bytes:
        return gpu
    return replace(gpu, free_bytes=min(gpu.total_bytes, gpu.free_bytes + num_bytes))


def read_own_memory(folders: Folders, stack: str) -> OwnMemory:
    """What runs for ``stack`` from this state folder."""
    if not replicas_dir_of(folders.state).is_dir():
        return OwnMemory()
    found = asyncio.run(RoutedRuntime(folders.state, python=sys.executable).list_replicas())
    own = [replica for replica in found if replica.stack == stack and replica.is_running]
    pids = {pid for replica in own for pid in _tree_of(replica)}
    return OwnMemory(rss_bytes=sum(replica.rss_bytes or 0 for replica in own), pids=frozenset(pids))


def _tree_of(replica: ObservedReplica) -> set[int]:
    try:
        process = psutil.Process(replica.pid)
        return {replica.pid, *(child.pid for child in process.children(recursive=True))}
    except psutil.Error:
        return {replica.pid}
