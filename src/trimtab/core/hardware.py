"""Pure. What the machine has: host memory and cores, and its GPUs."""

from __future__ import annotations

from dataclasses import dataclass, replace

__all__ = ["Gpu", "Host", "Inventory"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Host:
    """The machine's CPU side; ``*_bytes`` are bytes of RAM.

    ``available_ram_bytes`` is what new processes can take without swapping (already lowered to a
    cgroup limit where there is one); ``physical_cores`` excludes hyper-threads.
    """

    total_ram_bytes: int
    available_ram_bytes: int
    physical_cores: int
    logical_cores: int
    cpu_name: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Gpu:
    """One card. ``total_bytes`` is what the driver reports, not the label's size.

    ``free_bytes`` is None when the card is described but not present.
    ``compute_capability`` is (major, minor); ``memory_bandwidth_bytes_per_s`` is the card's peak.
    ``dense_flops`` is peak 16-bit tensor operations per second, ``fp8_flops`` the 8-bit ones (0: no
    such units). ``has_p2p`` tells whether cards of this kind reach each other's memory directly;
    None in any of these fields means unknown. ``spec`` is the catalogue name, empty when the card
    is not in it; ``uuid`` is the driver's name for this very card, empty when it was only described.
    """

    index: int
    name: str
    total_bytes: int
    free_bytes: int | None = None
    compute_capability: tuple[int, int] | None = None
    memory_bandwidth_bytes_per_s: int | None = None
    dense_flops: float | None = None
    fp8_flops: float | None = None
    num_sms: int | None = None
    l2_cache_bytes: int | None = None
    has_p2p: bool | None = None
    spec: str = ""
    uuid: str = ""

    @property
    def room_bytes(self) -> int:
        """Bytes that an engine may ever use: all of the card, or what others have left of it."""
        return self.total_bytes if self.free_bytes is None else self.free_bytes

    def less(self, taken_bytes: int) -> Gpu:
        """The card while others hold so much more of it; the same where that is nothing."""
        if not taken_bytes:
            return self
        return replace(self, free_bytes=max(0, self.room_bytes - taken_bytes))


@dataclass(frozen=True, slots=True, kw_only=True)
class Inventory:
    """What a plan may use: one host and its cards, in index order."""

    host: Host
    gpus: tuple[Gpu, ...] = ()
