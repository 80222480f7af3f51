"""Pure. What was seen of a machine's GPUs: the cards, who is on them, how they reach each other."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, TypeAlias

from trimtab.core.hardware import Gpu

__all__ = [
    "CopyOutcome",
    "GpuCard",
    "GpuLink",
    "GpuProbe",
    "GpuProblem",
    "GpuProcess",
    "PeerAccess",
    "PeerCopies",
    "PeerCopy",
]

PeerAccess: TypeAlias = Literal["nvlink", "pcie", "none", "unknown"]
CopyOutcome: TypeAlias = Literal["right", "wrong", "refused", "failed", "hung"]


@dataclass(frozen=True, slots=True, kw_only=True)
class GpuProcess:
    """A process that holds memory of a card; ``used_bytes`` is None and ``name`` empty where hidden."""

    pid: int
    gpu_index: int
    used_bytes: int | None
    name: str


@dataclass(frozen=True, slots=True, kw_only=True)
class GpuLink:
    """How two cards reach each other's memory, as the driver claims; ``first`` < ``second``."""

    first: int
    second: int
    access: PeerAccess


@dataclass(frozen=True, slots=True, kw_only=True)
class GpuCard:
    """What the driver says of one card beyond what a plan needs; None where it does not say.

    ``reserved_bytes`` is what the driver keeps for itself (in its own total, not in ours);
    ``power_limit_watts`` is the limit in force, ``max_power_watts`` what it may be raised to;
    ``has_display`` is true while a screen is driven from it.
    """

    index: int
    name: str
    pci_bus_id: str
    reserved_bytes: int | None = None
    power_limit_watts: float | None = None
    max_power_watts: float | None = None
    num_nvlinks: int | None = None
    has_display: bool | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class GpuProblem:
    """Something that keeps a card from being used, or a fact from being known; ``fix`` is what to do.

    ``gpu_index`` is None where it concerns the machine.
    """

    code: str
    text: str
    fix: str
    gpu_index: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class PeerCopy:
    """What a copy from card to card showed: refused means that the driver offers no peer access."""

    source: int
    target: int
    outcome: CopyOutcome
    detail: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class PeerCopies:
    """The copy test of a machine; ``error`` says why it could not be made, empty when it could."""

    copies: tuple[PeerCopy, ...] = ()
    error: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class GpuProbe:
    """The cards that a new process may use, in the order of their PCI addresses.

    ``Gpu.index`` is the driver's number (as in nvidia-smi), so it has gaps where
    CUDA_VISIBLE_DEVICES hides cards: ``hidden`` counts those. ``cuda_version`` is the newest that the
    driver can run. ``absence`` says why there is no card, empty when there is one. ``is_wsl`` tells
    Linux inside Windows; ``shm_bytes`` is the size of /dev/shm, through which an engine's processes
    talk, None where there is none.
    """

    gpus: tuple[Gpu, ...] = ()
    cards: tuple[GpuCard, ...] = ()
    processes: tuple[GpuProcess, ...] = ()
    links: tuple[GpuLink, ...] = ()
    driver_version: str = ""
    cuda_version: tuple[int, int] | None = None
    problems: tuple[GpuProblem, ...] = ()
    hidden: int = 0
    absence: str = ""
    is_wsl: bool = False
    shm_bytes: int | None = None
