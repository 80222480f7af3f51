"""Pure. Judges a machine's GPUs for vLLM: what would stop an engine or take its memory, each with its fix.

CUDA of the default wheels and images: 12.9 up to vLLM 0.19, 13.0 since 0.20
(github.com/vllm-project/vllm pull 39878; vllm-project/router pull 154). Drivers: 580 and newer run CUDA
13, 525 and newer CUDA 12, also a newer minor version than their own
(docs.nvidia.com/deploy/cuda-compatibility/minor-version-compatibility.html; read 2026-11-30).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Final

from trimtab.core.gpu_facts import GpuProbe, GpuProcess
from trimtab.core.hardware import Gpu
from trimtab.core.preflight import Finding
from trimtab.planner.vllm_versions import DEFAULT_VLLM_VERSION, find_version
from trimtab.units import GIB, format_bytes

__all__ = ["check_gpus"]

_CUDA_13_SINCE: Final = (0, 20)
_CUDA_12: Final = (12, 9)
_CUDA_13: Final = (13, 0)
_DRIVER_OF_MAJOR: Final = {12: 525, 13: 580}
# vLLM's installation page: 7.0 up to 0.19, 7.5 since (docs/getting_started/installation, v0.21.0); CUDA 13
# has no Volta.
_LEAST_CAPABILITY: Final = (7, 0)
_LEAST_CAPABILITY_13: Final = (7, 5)
_HAS_BFLOAT16: Final = (8, 0)
# What an idle card holds: 1 MiB to some hundred MiB (desktop, persistence daemon).
_IDLE_BYTES: Final = GIB
_UNSEEN_BYTES: Final = GIB
_MAX_HOLDERS: Final = 3
# Docker gives 64 MiB unless told otherwise; with 1 GiB no failure of vLLM on 8 cards is known.
_COMFORTABLE_SHM_BYTES: Final = GIB
# Doubts that cost a card nothing.
_DOUBTS: Final = frozenset({"reserve-unknown", "p2p-unproven", "device-order", "other-vendor"})


@dataclass(frozen=True, slots=True, kw_only=True)
class _Case:
    """What is judged: the probe, for a version of the engine, with the engines that are ours."""

    probe: GpuProbe
    version: str
    number: tuple[int, int]
    own_pids: frozenset[int]
    engine_cuda: tuple[int, int] | None = None

    @property
    def cuda(self) -> tuple[int, int]:
        """CUDA that the engine is built with: seen beside it, else that of its wheels and images."""
        return self.engine_cuda or (_CUDA_13 if self.number >= _CUDA_13_SINCE else _CUDA_12)


def check_gpus(
    probe: GpuProbe,
    *,
    engine_version: str = DEFAULT_VLLM_VERSION,
    own_pids: Iterable[int] = (),
    is_needed: bool = True,
    engine_cuda: tuple[int, int] | None = None,
) -> tuple[Finding, ...]:
    """Findings on the GPUs, in a fixed order; severity error means that vLLM cannot run on them as they are.

    ``own_pids`` are the processes of engines that trimtab runs: their memory is not foreign. Where
    nothing needs a GPU (``is_needed`` False), nothing is worse than a warning. ``engine_cuda`` is the CUDA
    of an installed engine, where it is known.
    """
    version = find_version(engine_version).version
    major, minor = version.split(".")[:2]
    case = _Case(
        probe=probe,
        version=version,
        number=(int(major), int(minor)),
        own_pids=frozenset(own_pids),
        engine_cuda=engine_cuda,
    )
    findings = tuple(finding for check in _CHECKS for finding in check(case))
    return findings if is_needed else tuple(_softened(finding) for finding in findings)


def _softened(finding: Finding) -> Finding:
    return replace(finding, severity="warning") if finding.severity == "error" else finding


def _check_presence(case: _Case) -> Iterator[Finding]:
    probe = case.probe
    if not probe.gpus:
        wrong = next((problem for problem in probe.problems if problem.code not in _DOUBTS), None)
        if wrong is None:
            yield Finding(code="gpus", severity="ok", text=f"no GPU: {probe.absence}")
        else:
            text = f"no GPU can be used: {wrong.text}"
            yield Finding(code="gpus", severity="error", text=text, fix=wrong.fix)
        return
    kinds: dict[tuple[str, int], int] = {}
    for gpu in probe.gpus:
        kinds[gpu.name, gpu.total_bytes] = kinds.get((gpu.name, gpu.total_bytes), 0) + 1
    cards = ", ".join(f"{count} x {name} ({format_bytes(total)})" for (name, total), count in kinds.items())
    hidden = f"; {probe.hidden} hidden by CUDA_VISIBLE_DEVICES" if probe.hidden else ""
    yield Finding(code="gpus", severity="ok", text=f"{cards}{hidden}")


def _check_problems(case: _Case) -> Iterator[Finding]:
    """What the probe complains of; the first one is the reason already where no card is left."""
    problems = case.probe.problems
    first = None if case.probe.gpus else next((item for item in problems if item.code not in _DOUBTS), None)
    for problem in problems:
        if problem is not first:
            yield Finding(
                code=f"gpu-{problem.code.removeprefix('gpu-')}",
                severity="warning",
                text=problem.text,
                fix=problem.fix,
            )


def _check_driver(case: _Case) -> Iterator[Finding]:
    has, wants = case.probe.cuda_version, case.cuda
    if has is None or not case.probe.gpus:
        return
    text = (
        f"driver {case.probe.driver_version} runs CUDA {_dotted(has)}; "
        f"vLLM {case.version} is built for {_dotted(wants)}"
    )
    if has >= wants:
        yield Finding(code="gpu-driver", severity="ok", text=text)
    elif has[0] == wants[0]:
        fix = "a wheel runs as it is; its Docker image may need NVIDIA_DISABLE_REQUIRE=1, or a newer driver"
        yield Finding(code="gpu-driver", severity="warning", text=text, fix=fix)
    else:
        fix = f"install driver {_DRIVER_OF_MAJOR[wants[0]]} or newer"
        if (wants[0], has[0]) == (13, 12):
            fix += (
                f", or vLLM {case.version} built for CUDA 12.9 (+cu129), or pin engine_version 0.19 or older"
            )
        yield Finding(code="gpu-driver", severity="error", text=text, fix=fix)


def _check_capability(case: _Case) -> Iterator[Finding]:
    least = _LEAST_CAPABILITY_13 if case.cuda >= _CUDA_13 else _LEAST_CAPABILITY
    for gpus in _by_name(case.probe.gpus):
        capability = gpus[0].compute_capability
        if capability is None or capability >= _HAS_BFLOAT16:
            continue
        which = f"{_named(gpus)}: compute capability {_dotted(capability)}"
        if capability < least:
            older = ", or pin engine_version 0.19 or older" if capability >= _LEAST_CAPABILITY else ""
            yield Finding(
                code="gpu-capability",
                severity="error",
                text=f"{which}, and vLLM {case.version} needs {_dotted(least)}",
                fix=f"use another card, or llama.cpp{older}",
            )
        else:
            yield Finding(
                code="gpu-capability",
                severity="warning",
                text=f"{which} has no bfloat16, and vLLM refuses to convert models on its own",
                fix="pin dtype: float16 under engine_args",
            )


def _check_memory(case: _Case) -> Iterator[Finding]:
    for gpu in case.probe.gpus:
        if gpu.free_bytes is None:
            continue
        used = gpu.total_bytes - gpu.free_bytes
        holders = [process for process in case.probe.processes if process.gpu_index == gpu.index]
        foreign = [process for process in holders if process.pid not in case.own_pids]
        ours = sum(process.used_bytes or 0 for process in holders if process.pid in case.own_pids)
        if used - ours > _IDLE_BYTES:
            yield _busy(gpu, foreign, used - ours)


def _busy(gpu: Gpu, holders: Sequence[GpuProcess], used: int) -> Finding:
    known = sum(process.used_bytes or 0 for process in holders)
    largest = sorted(holders, key=lambda process: -(process.used_bytes or 0))[:_MAX_HOLDERS]
    parts = [_holder(process) for process in largest]
    if used - known > _UNSEEN_BYTES and not any(process.used_bytes is None for process in holders):
        parts.append(f"{format_bytes(used - known)} by processes that cannot be seen from here")
    text = f"GPU {gpu.index} ({gpu.name}): {format_bytes(used)} of {format_bytes(gpu.total_bytes)} is taken"
    fix = (
        f"if nobody needs it, stop pid {largest[0].pid}"
        if largest
        else "sudo fuser -v /dev/nvidia* names who"
    )
    return Finding(
        code="gpu-memory",
        severity="warning",
        text=f"{text}: {'; '.join(parts)}" if parts else text,
        fix=f"{fix}; plans take what is free",
    )


def _holder(process: GpuProcess) -> str:
    name = process.name or "a process"
    held = "an amount that isn't shown" if process.used_bytes is None else format_bytes(process.used_bytes)
    return f"{name} (pid {process.pid}) holds {held}"


def _check_links(case: _Case) -> Iterator[Finding]:
    links = case.probe.links
    if not links:
        return
    ways = {link.access for link in links}
    pairs = ", ".join(f"{link.first}-{link.second}" for link in links if link.access == "nvlink")
    if ways == {"nvlink"}:
        text = "the cards reach each other by NVLink"
    elif "nvlink" in ways:
        text = f"NVLink joins the pairs {pairs} only; a model on two cards is best placed on a pair"
    elif ways == {"pcie"}:
        text = "the driver offers peer access over PCIe between all cards"
    elif "unknown" in ways:
        text = "whether the cards reach each other's memory isn't known; plans do without"
    else:
        text = (
            "the cards have no peer access: tensor parallelism goes through host memory (slower, but right)"
        )
    yield Finding(code="gpu-links", severity="ok", text=text)


def _check_shared_memory(case: _Case) -> Iterator[Finding]:
    """Several cards talk through /dev/shm: vLLM's message queue (10 chunks of 16 MiB) and NCCL's buffers."""
    size = case.probe.shm_bytes
    if size is not None and len(case.probe.gpus) > 1 and size < _COMFORTABLE_SHM_BYTES:
        yield Finding(
            code="gpu-shm",
            severity="warning",
            text=f"shared memory (/dev/shm) has {format_bytes(size)}, too little for several cards",
            fix="in a container: --ipc=host or --shm-size 8g; else: sudo mount -o remount,size=8G /dev/shm",
        )


def _check_wsl(case: _Case) -> Iterator[Finding]:
    """Reports of 2026: 0.95 fails and 0.94 or 0.93 works (github.com/noonghunna/club-3090 issue 102)."""
    if case.probe.is_wsl and case.probe.gpus:
        yield Finding(
            code="gpu-wsl",
            severity="warning",
            text="WSL 2: Windows keeps 0.3 to 1.3 GiB of a card unseen by nvidia-smi, and vLLM pins no RAM",
            fix="keep gpu_memory_utilization at 0.93 or below; give WSL enough RAM in .wslconfig (memory=…)",
        )


def _check_displays(case: _Case) -> Iterator[Finding]:
    lit = [card for card in case.probe.cards if card.has_display]
    if lit and any(gpu.index == lit[0].index for gpu in case.probe.gpus):
        which = ", ".join(str(card.index) for card in lit)
        yield Finding(
            code="gpu-display",
            severity="warning",
            text=f"GPU {which} drives a screen: what the desktop takes may grow after a plan was made",
            fix="move the screen to the CPU's graphics, or leave a margin (gpu_memory_utilization)",
        )


def _by_name(gpus: Iterable[Gpu]) -> list[list[Gpu]]:
    groups: dict[tuple[str, tuple[int, int] | None], list[Gpu]] = {}
    for gpu in gpus:
        groups.setdefault((gpu.name, gpu.compute_capability), []).append(gpu)
    return list(groups.values())


def _named(gpus: Sequence[Gpu]) -> str:
    return f"GPU {', '.join(str(gpu.index) for gpu in gpus)} ({gpus[0].name})"


def _dotted(version: tuple[int, int]) -> str:
    return f"{version[0]}.{version[1]}"


_CHECKS: Final[tuple[Callable[[_Case], Iterator[Finding]], ...]] = (
    _check_presence,
    _check_problems,
    _check_driver,
    _check_capability,
    _check_memory,
    _check_links,
    _check_shared_memory,
    _check_displays,
    _check_wsl,
)
