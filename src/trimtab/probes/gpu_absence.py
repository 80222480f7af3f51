"""I/O. Why no NVIDIA card answers: none is there, no driver runs, or a container cannot see it."""

from __future__ import annotations

from pathlib import Path
from typing import Final

from trimtab.core.gpu_facts import GpuProblem

__all__ = ["explain_absence", "is_wsl"]

# PCI vendors (pci.ids) and the class of display and 3D controllers.
_NVIDIA: Final = "0x10de"
_AMD: Final = "0x1002"
_DISPLAY_CLASS: Final = "0x03"


def explain_absence(root: Path = Path("/")) -> tuple[str, GpuProblem | None]:
    """Why NVML's library isn't there; the problem is None on a machine that simply has no such card.

    ``root`` stands in front of ``proc``, ``sys`` and ``dev``, so that recorded machines can be probed.
    """
    if (root / "proc" / "driver" / "nvidia" / "version").exists():
        return "the NVIDIA driver's library isn't visible here", GpuProblem(
            code="library-hidden",
            text="the NVIDIA driver runs, but its library (libnvidia-ml.so.1) isn't visible to this process",
            fix="in a container: start it with --gpus all (NVIDIA container toolkit); else reinstall it",
        )
    if is_wsl(root):
        return "no NVIDIA driver is visible in WSL", GpuProblem(
            code="wsl-driver",
            text="this is WSL 2, and the Windows driver's library (/usr/lib/wsl/lib) isn't visible",
            fix="install or update the NVIDIA driver in Windows (none inside WSL), then: wsl --shutdown",
        )
    vendors = _display_vendors(root)
    if _NVIDIA in vendors:
        return "an NVIDIA card is there, but no NVIDIA driver", GpuProblem(
            code="no-driver",
            text="an NVIDIA card is there, but its driver isn't installed",
            fix="install the NVIDIA driver (580 or newer), restart, and check with nvidia-smi",
        )
    if _AMD in vendors:
        return "no NVIDIA card is there", GpuProblem(
            code="other-vendor",
            text="an AMD GPU is there; the engines that trimtab runs use NVIDIA cards or the CPU",
            fix="use the CPU with llama.cpp, or plan for other cards with --gpus",
        )
    return "no NVIDIA card is there", None


def is_wsl(root: Path = Path("/")) -> bool:
    """Whether this is Linux inside Windows."""
    return "microsoft" in _read(root / "proc" / "version").lower()


def _display_vendors(root: Path) -> frozenset[str]:
    devices = root / "sys" / "bus" / "pci" / "devices"
    return frozenset(
        _read(device / "vendor").strip().lower()
        for device in sorted(devices.glob("*"))
        if _read(device / "class").startswith(_DISPLAY_CLASS)
    )


def _read(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ""
