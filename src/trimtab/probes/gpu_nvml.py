"""I/O. What NVML says of one card; facts that a driver or card does not tell are None, not errors.

``total_bytes`` is what CUDA reports to a program, because vLLM's utilisation is a share of that:
NVML's total less what the driver reserves for itself. RTX 4090: 24564 MiB - 354 MiB = 23.64 GiB, which
is PyTorch's figure; A100 80GB: 81920 - 763 MiB = 79.25 GiB, the same (published nvidia-smi -q outputs;
planner/accelerator_specs.py). The reserve varies by some 100 MiB with the driver. In WSL, CUDA reports
the whole total (vLLM logs there: 23.99 of 24564 MiB, 31.84 of 32607 MiB).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Any, Final, TypeVar

from trimtab.core.gpu_facts import GpuCard, GpuProblem, GpuProcess
from trimtab.core.hardware import Gpu
from trimtab.planner.accelerator_specs import complete_gpu, find_card
from trimtab.units import GIB

__all__ = ["CardReading", "as_text", "ask", "problem_of", "read_card", "read_processes"]

Value = TypeVar("Value")

# NVML's data rate: two transfers per clock, for GDDR and HBM alike in what it calls memory clock.
_TRANSFERS_PER_CLOCK: Final = 2
# Where clock and catalogue differ more, the card is another variant (H100 PCIe: 2.0 TB/s, SXM: 3.4).
_SAME_BANDWIDTH_RATIO: Final = 0.1
# What WSL takes of a card that NVML does not show (github.com/Alex8791-cyber/cognithor pull 318: 770 MB).
_WSL_HIDDEN_BYTES: Final = 770 * 10**6
# A catalogue total further from the driver's is another card's.
_SAME_TOTAL_BYTES: Final = GIB


@dataclass(frozen=True, slots=True, kw_only=True)
class CardReading:
    """One usable card, and what is doubtful about it."""

    gpu: Gpu
    card: GpuCard
    problems: tuple[GpuProblem, ...] = ()


def ask(nvml: Any, function: str, *arguments: Any) -> Any:
    """What an NVML function answers, None where the driver or the card cannot."""
    try:
        return getattr(nvml, function)(*arguments)
    except (nvml.NVMLError, AttributeError):
        return None


def read_card(nvml: Any, handle: Any, index: int, *, is_wsl: bool = False) -> CardReading | GpuProblem:
    """The card behind ``handle``, or why it cannot be used."""
    name = as_text(ask(nvml, "nvmlDeviceGetName", handle)) or "unnamed card"
    unusable = _unusable(nvml, handle, index, name)
    if unusable is not None:
        return unusable
    try:
        total, free, reserved = _read_memory(nvml, handle)
    except nvml.NVMLError as error:
        return problem_of(error, f"GPU {index} ({name})", gpu_index=index)
    problems: list[GpuProblem] = []
    if is_wsl:
        total, free = total + (reserved or 0), max(0, free - _WSL_HIDDEN_BYTES)
    elif reserved is None:
        total, doubt = _without_reserve(name, total, index)
        problems.extend(doubt)
    gpu = complete_gpu(
        Gpu(
            index=index,
            name=name,
            total_bytes=total,
            free_bytes=min(free, total),
            compute_capability=_pair(ask(nvml, "nvmlDeviceGetCudaComputeCapability", handle)),
        )
    )
    gpu = replace(
        gpu,
        uuid=as_text(ask(nvml, "nvmlDeviceGetUUID", handle)),
        memory_bandwidth_bytes_per_s=_bandwidth(nvml, handle, gpu.memory_bandwidth_bytes_per_s),
    )
    card = GpuCard(
        index=index,
        name=name,
        pci_bus_id=as_text(getattr(ask(nvml, "nvmlDeviceGetPciInfo", handle), "busId", "")),
        reserved_bytes=reserved,
        power_limit_watts=_watts(ask(nvml, "nvmlDeviceGetEnforcedPowerLimit", handle)),
        max_power_watts=_watts(
            (ask(nvml, "nvmlDeviceGetPowerManagementLimitConstraints", handle) or [None])[-1]
        ),
        num_nvlinks=_count_nvlinks(nvml, handle),
        has_display=_flag(ask(nvml, "nvmlDeviceGetDisplayActive", handle)),
    )
    return CardReading(gpu=gpu, card=card, problems=tuple(problems))


def _unusable(nvml: Any, handle: Any, index: int, name: str) -> GpuProblem | None:
    mig = ask(nvml, "nvmlDeviceGetMigMode", handle)
    if mig and mig[0] == nvml.NVML_DEVICE_MIG_ENABLE:
        return GpuProblem(
            code="mig",
            text=f"GPU {index} ({name}) is cut into MIG instances, which aren't planned",
            fix=f"sudo nvidia-smi -i {index} -mig 0, or describe an instance: --gpus '1x custom:mem=…,cc=…'",
            gpu_index=index,
        )
    if ask(nvml, "nvmlDeviceGetComputeMode", handle) == nvml.NVML_COMPUTEMODE_PROHIBITED:
        return GpuProblem(
            code="prohibited",
            text=f"GPU {index} ({name}) forbids compute programs (compute mode Prohibited)",
            fix=f"sudo nvidia-smi -i {index} -c 0",
            gpu_index=index,
        )
    return None


def _read_memory(nvml: Any, handle: Any) -> tuple[int, int, int | None]:
    """(total without the driver's reserve, free, reserve); reserve None: the driver is too old to tell."""
    try:
        memory = nvml.nvmlDeviceGetMemoryInfo(handle, version=nvml.nvmlMemory_v2)
    except (nvml.NVMLError, AttributeError):
        memory = nvml.nvmlDeviceGetMemoryInfo(handle)
        return int(memory.total), int(memory.free), None
    reserved = int(memory.reserved)
    return int(memory.total) - reserved, int(memory.free), reserved


def _without_reserve(name: str, total: int, index: int) -> tuple[int, tuple[GpuProblem, ...]]:
    spec = find_card(name)
    if spec is not None and 0 <= total - spec.total_bytes <= _SAME_TOTAL_BYTES:
        return spec.total_bytes, ()
    text = f"the driver does not tell what it reserves on GPU {index}: up to 2 % less may be usable"
    return total, (
        GpuProblem(
            code="reserve-unknown",
            text=text,
            fix="update the driver to 510 or newer, or plan with a lower gpu_memory_utilization",
            gpu_index=index,
        ),
    )


def _bandwidth(nvml: Any, handle: Any, sheet: int | None) -> int | None:
    """Peak bytes per second: the data sheet's unless the card's own clock tells of another variant."""
    bits = ask(nvml, "nvmlDeviceGetMemoryBusWidth", handle)
    megahertz = ask(nvml, "nvmlDeviceGetMaxClockInfo", handle, nvml.NVML_CLOCK_MEM)
    if not bits or not megahertz:
        return sheet
    clocked = int(megahertz) * 10**6 * _TRANSFERS_PER_CLOCK * int(bits) // 8
    if sheet is not None and abs(clocked - sheet) <= _SAME_BANDWIDTH_RATIO * sheet:
        return sheet
    return clocked


def _count_nvlinks(nvml: Any, handle: Any) -> int | None:
    active = 0
    for link in range(int(nvml.NVML_NVLINK_MAX_LINKS)):
        state = ask(nvml, "nvmlDeviceGetNvLinkState", handle, link)
        if state is None:
            return None if link == 0 else active
        active += int(state == 1)
    return active


def read_processes(nvml: Any, handle: Any, index: int, name_of: Callable[[int], str]) -> Iterator[GpuProcess]:
    """Who holds memory of the card; a process that computes and draws is counted once."""
    used: dict[int, int | None] = {}
    for function in ("nvmlDeviceGetComputeRunningProcesses", "nvmlDeviceGetGraphicsRunningProcesses"):
        for entry in ask(nvml, function, handle) or ():
            used[int(entry.pid)] = used.get(int(entry.pid)) or entry.usedGpuMemory
    for pid, bytes_used in sorted(used.items()):
        name = name_of(pid) or as_text(ask(nvml, "nvmlSystemGetProcessName", pid))
        yield GpuProcess(
            pid=pid, gpu_index=index, used_bytes=None if bytes_used is None else int(bytes_used), name=name
        )


_PROBLEMS: Final = {
    "NVMLError_LibRmVersionMismatch": (
        "driver-mismatch",
        "the driver's library and its kernel module are of different versions",
        "restart the machine (or unload and load the nvidia modules) after the driver's update",
    ),
    "NVMLError_DriverNotLoaded": (
        "driver-not-loaded",
        "the NVIDIA driver is installed but its kernel module isn't loaded",
        "sudo modprobe nvidia; if that fails, reinstall the driver for this kernel (DKMS, secure boot)",
    ),
    "NVMLError_NoPermission": (
        "no-permission",
        "this user may not ask the NVIDIA driver",
        "add the user to the group of /dev/nvidia* (often video), or in a container give it GPUs: --gpus all",
    ),
    "NVMLError_GpuIsLost": (
        "gpu-lost",
        "has fallen off the bus",
        "restart the machine; if that helps not for long, check cables, riser and heat (dmesg: Xid 79)",
    ),
    "NVMLError_ResetRequired": (
        "reset-required",
        "needs a reset before it can be used",
        "stop its programs, then sudo nvidia-smi --gpu-reset -i N, or restart the machine",
    ),
    "NVMLError_NotSupported": (
        "no-own-memory",
        "does not tell its memory (it shares the machine's)",
        "describe it: --gpus '1x custom:mem=96GiB,bw=270GB/s,cc=12.1'",
    ),
}


def problem_of(error: Exception, where: str, *, gpu_index: int | None = None) -> GpuProblem:
    """An NVML error as a sentence about ``where``."""
    names = [cls.__name__ for cls in type(error).__mro__]
    known = next((_PROBLEMS[name] for name in names if name in _PROBLEMS), None)
    if known is None:
        code, said, fix = (
            "driver-error",
            f"cannot be read: {_sentence(error)}",
            "look at nvidia-smi and dmesg",
        )
    else:
        code, said, fix = known
    text = said if gpu_index is None and known is not None else f"{where} {said}"
    return GpuProblem(code=code, text=text, fix=fix, gpu_index=gpu_index)


def _sentence(error: Exception) -> str:
    return " ".join(str(error).split())[:120] or type(error).__name__


def as_text(value: Any) -> str:
    """NVML's text, which older bindings give as bytes; empty for None."""
    return value.decode(errors="replace") if isinstance(value, bytes) else str(value or "")


def _pair(value: Any) -> tuple[int, int] | None:
    return None if value is None else (int(value[0]), int(value[1]))


def _watts(milliwatts: Any) -> float | None:
    return None if milliwatts is None else int(milliwatts) / 1000


def _flag(value: Any) -> bool | None:
    return None if value is None else bool(value)
