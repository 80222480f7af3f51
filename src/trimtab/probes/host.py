"""I/O. Looks at the machine's CPU side: RAM and cores, as far as this process may use them."""

from __future__ import annotations

import os
from pathlib import Path, PurePosixPath
from typing import Final

import psutil

from trimtab.core.hardware import Host

__all__ = ["probe_host"]

# cgroup v1 writes "no limit" as a number near 2**63; anything above this is no limit.
_NO_LIMIT_BYTES: Final = 1 << 60


def probe_host(root: Path = Path("/"), *, affinity: frozenset[int] | None = None) -> Host:
    """What this machine offers to new processes, lowered to cgroup limits and to the CPU affinity.

    ``root`` stands in front of ``proc`` and ``sys``, so that recorded machines can be probed;
    ``affinity`` is the CPUs this process may run on, None asks the system. Where a fact is not in
    those files (other systems than Linux), psutil answers.
    """
    total, available = _read_memory(root)
    for limit, used in _read_memory_limits(root):
        total = min(total, limit)
        available = min(available, max(0, limit - used))
    cpus = _allowed_cpus() if affinity is None else affinity
    logical = len(cpus) or psutil.cpu_count() or 1
    physical = _count_cores(root, cpus) or min(logical, psutil.cpu_count(logical=False) or logical)
    quota = _read_cpu_quota(root)
    if quota is not None:
        # Guard: rounded down, because a thread more than the quota gets all of them throttled.
        physical = min(physical, max(1, int(quota)))
        logical = min(logical, max(1, int(quota)))
    return Host(
        total_ram_bytes=total,
        available_ram_bytes=available,
        physical_cores=physical,
        logical_cores=logical,
        cpu_name=_read_cpu_name(root),
    )


def _read_memory(root: Path) -> tuple[int, int]:
    fields = dict(_split_lines(root / "proc" / "meminfo", ":"))
    try:
        return (int(fields["MemTotal"].split()[0]) * 1024, int(fields["MemAvailable"].split()[0]) * 1024)
    except (KeyError, ValueError, IndexError):
        memory = psutil.virtual_memory()
        return int(memory.total), int(memory.available)


def _read_memory_limits(root: Path) -> list[tuple[int, int]]:
    """(limit, bytes in use that cannot be reclaimed) of every limited group around this process."""
    found: list[tuple[int, int]] = []
    for folder in _cgroup_folders(root, ""):
        found.extend(_memory_limit(folder, "memory.max", "memory.current", "inactive_file"))
    for folder in _cgroup_folders(root, "memory"):
        names = ("memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file")
        found.extend(_memory_limit(folder, *names))
    return found


def _memory_limit(folder: Path, limit_name: str, used_name: str, cache_name: str) -> list[tuple[int, int]]:
    limit, used = _read_int(folder / limit_name), _read_int(folder / used_name)
    if limit is None or limit >= _NO_LIMIT_BYTES:
        return []
    cache = dict(_split_lines(folder / "memory.stat", " ")).get(cache_name, "0")
    return [(limit, max(0, (used or 0) - (int(cache) if cache.isdigit() else 0)))]


def _read_cpu_quota(root: Path) -> float | None:
    """CPUs' worth of time the tightest group may use, None when none is limited."""
    quotas: list[float] = []
    for folder in _cgroup_folders(root, ""):
        words = _read_text(folder / "cpu.max").split()
        if len(words) == 2 and words[0].isdigit() and words[1].isdigit() and int(words[1]) > 0:
            quotas.append(int(words[0]) / int(words[1]))
    for folder in _cgroup_folders(root, "cpu"):
        quota, period = _read_int(folder / "cpu.cfs_quota_us"), _read_int(folder / "cpu.cfs_period_us")
        if quota is not None and quota > 0 and period:
            quotas.append(quota / period)
    return min(quotas, default=None)


def _cgroup_folders(root: Path, controller: str) -> list[Path]:
    """The folders of this process's group and its parents; controller "" means cgroup v2."""
    base = root / "sys" / "fs" / "cgroup"
    for line in _read_text(root / "proc" / "self" / "cgroup").splitlines():
        fields = line.split(":", 2)
        if len(fields) != 3 or controller not in fields[1].split(","):
            continue
        mount = base / controller if controller else base
        group = PurePosixPath(fields[2].lstrip("/"))
        # Inside a container the path may be the host's; the mount itself then is our group.
        return [mount / parent for parent in (group, *group.parents)]
    return []


def _allowed_cpus() -> frozenset[int]:
    if hasattr(os, "sched_getaffinity"):
        return frozenset(os.sched_getaffinity(0))
    return frozenset(range(os.cpu_count() or 1))


def _count_cores(root: Path, cpus: frozenset[int]) -> int:
    """Distinct physical cores among ``cpus``; 0 when the system does not tell."""
    cores: set[tuple[int, int]] = set()
    for cpu in cpus:
        topology = root / "sys" / "devices" / "system" / "cpu" / f"cpu{cpu}" / "topology"
        package, core = _read_int(topology / "physical_package_id"), _read_int(topology / "core_id")
        if package is None or core is None:
            return 0
        cores.add((package, core))
    return len(cores)


def _read_cpu_name(root: Path) -> str:
    fields = _split_lines(root / "proc" / "cpuinfo", ":")
    return next((value.strip() for name, value in fields if name.strip() == "model name"), "")


def _split_lines(file: Path, separator: str) -> list[tuple[str, str]]:
    pairs = (line.partition(separator) for line in _read_text(file).splitlines())
    return [(name, value.strip()) for name, found, value in pairs if found]


def _read_int(file: Path) -> int | None:
    text = _read_text(file).strip()
    return int(text) if text.lstrip("-").isdigit() else None


def _read_text(file: Path) -> str:
    """The file's text; empty when it does not exist or may not be read."""
    try:
        return file.read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ""
