"""The host probe on recorded machines: plain, in containers of both cgroup versions, odd topologies."""

from __future__ import annotations

from pathlib import Path

import psutil

from trimtab.probes.host import probe_host
from trimtab.units import GIB, KIB, MIB


def _machine(root: Path, *, cpus: int = 8, threads_per_core: int = 2, cgroup: str = "0::/\n") -> Path:
    """A recorded machine with 32 GiB of RAM, 24 GiB of them available."""
    _write(
        root,
        "proc/meminfo",
        f"MemTotal: {32 * GIB // KIB} kB\nMemFree: 9 kB\nMemAvailable: {24 * GIB // KIB} kB\n",
    )
    _write(root, "proc/cpuinfo", "processor\t: 0\nmodel name\t: Test CPU 9000\n\nprocessor\t: 1\n")
    _write(root, "proc/self/cgroup", cgroup)
    for cpu in range(cpus):
        topology = f"sys/devices/system/cpu/cpu{cpu}/topology"
        _write(root, f"{topology}/physical_package_id", "0\n")
        _write(root, f"{topology}/core_id", f"{cpu // threads_per_core}\n")
    return root


def _write(root: Path, name: str, text: str) -> None:
    path = root / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)


EIGHT = frozenset(range(8))


def test_plain_machine_counts_cores_not_hyper_threads(tmp_path: Path):
    """Threads are planned one per real core."""
    host = probe_host(_machine(tmp_path), affinity=EIGHT)
    assert (host.physical_cores, host.logical_cores, host.cpu_name) == (4, 8, "Test CPU 9000")
    assert (host.total_ram_bytes, host.available_ram_bytes) == (32 * GIB, 24 * GIB)


def test_affinity_lowers_the_cores(tmp_path: Path):
    """Under taskset only the cores that may be used are planned for."""
    host = probe_host(_machine(tmp_path), affinity=frozenset({0, 1, 2}))
    assert (host.physical_cores, host.logical_cores) == (2, 3)


def test_cgroup_v2_limits_lower_memory_and_cores(tmp_path: Path):
    """In a container the plan stays within the container's memory and CPU quota."""
    root = _machine(tmp_path, cgroup="0::/pod/app\n")
    _write(root, "sys/fs/cgroup/pod/app/memory.max", "max\n")
    _write(root, "sys/fs/cgroup/pod/memory.max", f"{4 * GIB}\n")
    _write(root, "sys/fs/cgroup/pod/memory.current", f"{3 * GIB}\n")
    _write(root, "sys/fs/cgroup/pod/memory.stat", f"anon 5\ninactive_file {2 * GIB}\n")
    _write(root, "sys/fs/cgroup/pod/app/cpu.max", "250000 100000\n")
    host = probe_host(root, affinity=EIGHT)
    assert (host.total_ram_bytes, host.available_ram_bytes) == (4 * GIB, 3 * GIB)
    assert (host.physical_cores, host.logical_cores) == (2, 2)


def test_cgroup_v1_limits_lower_memory_and_cores(tmp_path: Path):
    """Older container hosts are respected as well."""
    root = _machine(
        tmp_path, cgroup="5:memory:/docker/x\n3:cpu,cpuacct:/docker/x\n1:name=systemd:/docker/x\n"
    )
    _write(root, "sys/fs/cgroup/memory/memory.limit_in_bytes", f"{512 * MIB}\n")
    _write(root, "sys/fs/cgroup/memory/memory.usage_in_bytes", f"{100 * MIB}\n")
    _write(root, "sys/fs/cgroup/memory/memory.stat", f"cache 1\ntotal_inactive_file {40 * MIB}\n")
    _write(root, "sys/fs/cgroup/cpu/docker/x/cpu.cfs_quota_us", "50000\n")
    _write(root, "sys/fs/cgroup/cpu/docker/x/cpu.cfs_period_us", "100000\n")
    host = probe_host(root, affinity=EIGHT)
    assert (host.total_ram_bytes, host.available_ram_bytes) == (512 * MIB, 452 * MIB)
    assert (host.physical_cores, host.logical_cores) == (1, 1)


def test_unlimited_cgroups_change_nothing(tmp_path: Path):
    """A machine without limits is offered whole."""
    root = _machine(tmp_path, cgroup="5:memory:/\n0::/\n")
    _write(root, "sys/fs/cgroup/memory/memory.limit_in_bytes", "9223372036854771712\n")
    _write(root, "sys/fs/cgroup/memory.max", "max\n")
    _write(root, "sys/fs/cgroup/cpu.max", "max 100000\n")
    host = probe_host(root, affinity=EIGHT)
    assert (host.available_ram_bytes, host.physical_cores) == (24 * GIB, 4)


def test_group_that_is_over_its_limit_offers_nothing(tmp_path: Path):
    """A full container leads to a refusal with numbers, not to a crash."""
    root = _machine(tmp_path)
    _write(root, "sys/fs/cgroup/memory.max", f"{GIB}\n")
    _write(root, "sys/fs/cgroup/memory.current", f"{2 * GIB}\n")
    assert probe_host(root, affinity=EIGHT).available_ram_bytes == 0


def test_machine_that_tells_nothing_is_asked_through_psutil(tmp_path: Path):
    """On systems without these files the figures still are the machine's own."""
    host = probe_host(tmp_path, affinity=frozenset({0}))
    assert host.total_ram_bytes == psutil.virtual_memory().total
    assert (host.physical_cores, host.logical_cores, host.cpu_name) == (1, 1, "")


def test_this_machine_is_probed():
    """The real machine's figures are positive and consistent."""
    host = probe_host()
    assert 0 < host.available_ram_bytes <= host.total_ram_bytes
    assert 1 <= host.physical_cores <= host.logical_cores
