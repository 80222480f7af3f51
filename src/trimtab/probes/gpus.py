"""I/O. Looks at the machine's GPUs through NVML: memory, holders, how they reach each other.

NVML (the library behind nvidia-smi) needs no CUDA context, so that looking takes no memory of the
cards. One card that fails hides no other.
"""

from __future__ import annotations

import contextlib
import importlib
import os
import shutil
import threading
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import combinations
from pathlib import Path
from typing import Any, Final

import psutil

from trimtab.core.gpu_facts import GpuLink, GpuProbe, GpuProblem, GpuProcess, PeerAccess
from trimtab.core.hardware import Gpu
from trimtab.probes.gpu_absence import explain_absence, is_wsl
from trimtab.probes.gpu_nvml import CardReading, as_text, ask, problem_of, read_card, read_processes
from trimtab.probes.gpu_visible import choose_visible

__all__ = ["probe_gpus"]

# A card that has fallen off the bus can hold NVML up without end; a healthy one answers in 0.1 s.
_PATIENCE_S: Final = 10.0
_MAX_NAME_CHARS: Final = 60


@dataclass(frozen=True, slots=True, kw_only=True)
class _Seen:
    """All cards by the driver's number; ``handles`` has those that answer."""

    handles: Mapping[int, Any]
    uuids: Sequence[str]
    names: frozenset[str]
    problems: tuple[GpuProblem, ...]


def probe_gpus(
    nvml: Any = None, *, environ: Mapping[str, str] | None = None, root: Path = Path("/")
) -> GpuProbe:
    """The cards that a process started here may use.

    ``nvml`` is the module pynvml or a recorded stand-in, ``environ`` this process's environment,
    ``root`` stands in front of ``proc`` and ``sys``. Never raises for what a machine lacks: the
    result says what is absent or wrong.
    """
    module = _import_nvml() if nvml is None else nvml
    if module is None:
        problem = GpuProblem(
            code="no-nvml",
            text="the package nvidia-ml-py isn't installed, so GPUs cannot be looked at",
            fix="pip install nvidia-ml-py",
        )
        return GpuProbe(absence="nvidia-ml-py isn't installed", problems=(problem,))
    variables = os.environ if environ is None else environ
    found: list[GpuProbe] = []
    failed: list[BaseException] = []

    def look() -> None:
        try:
            found.append(_probe(module, variables, root))
        except BaseException as error:  # noqa: BLE001 - raised again in the caller's thread
            failed.append(error)

    looker = threading.Thread(target=look, daemon=True)
    looker.start()
    looker.join(_PATIENCE_S)
    if failed:
        raise failed[0]
    return found[0] if found else _stuck()


def _import_nvml() -> Any:
    try:
        # By name: the package has no type information. Only machines that are looked at need it.
        return importlib.import_module("pynvml")
    except ImportError:
        return None


def _stuck() -> GpuProbe:
    problem = GpuProblem(
        code="driver-stuck",
        text=f"the NVIDIA driver has not answered for {_PATIENCE_S:.0f} s",
        fix="look at dmesg for Xid errors; usually only a restart helps",
    )
    return GpuProbe(absence="the NVIDIA driver does not answer", problems=(problem,))


def _probe(nvml: Any, environ: Mapping[str, str], root: Path) -> GpuProbe:
    try:
        nvml.nvmlInit()
    except nvml.NVMLError_LibraryNotFound:
        absence, problem = explain_absence(root)
        return GpuProbe(absence=absence, problems=(problem,) if problem else (), is_wsl=is_wsl(root))
    except nvml.NVMLError as error:
        problem = problem_of(error, "the NVIDIA driver")
        return GpuProbe(absence=problem.text, problems=(problem,), is_wsl=is_wsl(root))
    try:
        probe = _look(nvml, environ, in_wsl=is_wsl(root))
        return replace(probe, shm_bytes=_read_shm_bytes(root))
    finally:
        with contextlib.suppress(nvml.NVMLError):
            nvml.nvmlShutdown()


def _read_shm_bytes(root: Path) -> int | None:
    try:
        return shutil.disk_usage(root / "dev" / "shm").total
    except OSError:
        return None


def _look(nvml: Any, environ: Mapping[str, str], *, in_wsl: bool) -> GpuProbe:
    number = ask(nvml, "nvmlSystemGetCudaDriverVersion")
    probe = GpuProbe(
        driver_version=as_text(ask(nvml, "nvmlSystemGetDriverVersion")),
        cuda_version=None if not number else (int(number) // 1000, int(number) % 1000 // 10),
        is_wsl=in_wsl,
    )
    seen = _enumerate(nvml)
    chosen, complaint = choose_visible(environ.get("CUDA_VISIBLE_DEVICES"), seen.uuids)
    problems = list(seen.problems)
    if complaint:
        fix = "unset it, or name cards by the numbers or UUIDs of nvidia-smi -L"
        problems.append(GpuProblem(code="visible-devices", text=complaint, fix=fix))
    readings: list[CardReading] = []
    for index in sorted(chosen):
        if index in seen.handles:
            reading = read_card(nvml, seen.handles[index], index, is_wsl=in_wsl)
            problems.extend([reading] if isinstance(reading, GpuProblem) else reading.problems)
            readings.extend([reading] if isinstance(reading, CardReading) else [])
    links = tuple(_read_links(nvml, seen.handles, readings))
    gpus, doubts = _with_peer_access([reading.gpu for reading in readings], links)
    problems += [*doubts, *_order_doubt(environ, seen.names)]
    return replace(
        probe,
        gpus=gpus,
        cards=tuple(reading.card for reading in readings),
        processes=tuple(_read_all_processes(nvml, seen.handles, gpus)),
        links=links,
        problems=tuple(problems),
        hidden=len(seen.uuids) - len(chosen),
        absence="" if gpus else _why_none(len(seen.uuids), problems),
    )


def _enumerate(nvml: Any) -> _Seen:
    """Every card by number; one that gives no handle keeps its number and is a problem."""
    try:
        count = int(nvml.nvmlDeviceGetCount())
    except nvml.NVMLError as error:
        return _Seen(
            handles={}, uuids=(), names=frozenset(), problems=(problem_of(error, "the list of cards"),)
        )
    handles: dict[int, Any] = {}
    problems: list[GpuProblem] = []
    for index in range(count):
        try:
            handles[index] = nvml.nvmlDeviceGetHandleByIndex(index)
        except nvml.NVMLError as error:
            problems.append(problem_of(error, f"GPU {index}", gpu_index=index))
    told = [handles.get(index) for index in range(count)]
    return _Seen(
        handles=handles,
        uuids=tuple(
            "" if handle is None else as_text(ask(nvml, "nvmlDeviceGetUUID", handle)) for handle in told
        ),
        names=frozenset(as_text(ask(nvml, "nvmlDeviceGetName", handle)) for handle in handles.values()),
        problems=tuple(problems),
    )


def _why_none(count: int, problems: Sequence[GpuProblem]) -> str:
    if problems:
        return problems[0].text
    return "the NVIDIA driver lists no card" if count == 0 else "no card is visible to this process"


def _read_links(nvml: Any, handles: Mapping[int, Any], readings: Sequence[CardReading]) -> Iterator[GpuLink]:
    for first, second in combinations([reading.gpu.index for reading in readings], 2):
        pair = (handles[first], handles[second])
        yield GpuLink(first=first, second=second, access=_peer_access(nvml, *pair))


def _peer_access(nvml: Any, one: Any, other: Any) -> PeerAccess:
    """Both directions must allow reading and writing."""
    for index in (nvml.NVML_P2P_CAPS_INDEX_READ, nvml.NVML_P2P_CAPS_INDEX_WRITE):
        for pair in ((one, other), (other, one)):
            status = ask(nvml, "nvmlDeviceGetP2PStatus", *pair, index)
            if status is None:
                return "unknown"
            if status != nvml.NVML_P2P_STATUS_OK:
                return "none"
    linked = ask(nvml, "nvmlDeviceGetP2PStatus", one, other, nvml.NVML_P2P_CAPS_INDEX_NVLINK)
    return "nvlink" if linked == nvml.NVML_P2P_STATUS_OK else "pcie"


def _with_peer_access(
    gpus: Sequence[Gpu], links: Sequence[GpuLink]
) -> tuple[tuple[Gpu, ...], tuple[GpuProblem, ...]]:
    """The cards with ``has_p2p`` as the machine shows it: all their pairs reach each other, or not.

    GeForce cards over PCIe do only with a changed driver, and early drivers claimed it for the RTX 4090
    while copies hung (github.com/NVIDIA/nccl-tests issue 117): the claim alone is not believed.
    """
    told: list[Gpu] = []
    doubtful: list[int] = []
    for gpu in gpus:
        ways = {link.access for link in links if gpu.index in (link.first, link.second)}
        if not ways or "unknown" in ways:
            told.append(gpu)
        elif "pcie" in ways and "none" not in ways and "geforce" in gpu.name.lower():
            doubtful.append(gpu.index)
            told.append(replace(gpu, has_p2p=False))
        else:
            told.append(replace(gpu, has_p2p="none" not in ways))
    if not doubtful:
        return tuple(told), ()
    names = ", ".join(map(str, doubtful))
    problem = GpuProblem(
        code="p2p-unproven",
        text=f"the driver claims peer access over PCIe between GeForce cards {names}; plans do without it",
        fix="if a copy test passes on this machine, set NCCL_P2P_DISABLE=0 in the model's environment",
    )
    return tuple(told), (problem,)


def _order_doubt(environ: Mapping[str, str], names: frozenset[str]) -> list[GpuProblem]:
    """CUDA numbers the fastest card first; the driver, and trimtab, go by PCI address."""
    text = environ.get("CUDA_VISIBLE_DEVICES", "")
    is_numbered = text.strip()[:1].isdigit()
    if not is_numbered or len(names) < 2 or environ.get("CUDA_DEVICE_ORDER") == "PCI_BUS_ID":
        return []
    return [
        GpuProblem(
            code="device-order",
            text=f"CUDA_VISIBLE_DEVICES={text} is read by nvidia-smi's numbers; CUDA may number otherwise",
            fix="export CUDA_DEVICE_ORDER=PCI_BUS_ID, or name cards by UUID (nvidia-smi -L)",
        )
    ]


def _read_all_processes(nvml: Any, handles: Mapping[int, Any], gpus: Sequence[Gpu]) -> Iterator[GpuProcess]:
    for gpu in gpus:
        yield from read_processes(nvml, handles[gpu.index], gpu.index, _process_name)


def _process_name(pid: int) -> str:
    """What a user would recognise: the program, with its first argument where that is a script."""
    try:
        words = psutil.Process(pid).cmdline() or [psutil.Process(pid).name()]
    except (psutil.Error, OSError, ValueError):
        return ""
    shown = [Path(words[0]).name, *words[1:3]] if Path(words[0]).name.startswith("python") else words[:1]
    return " ".join(shown)[:_MAX_NAME_CHARS]
