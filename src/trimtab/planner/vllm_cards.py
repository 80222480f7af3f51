"""Pure. Which cards form replicas: sets of one kind side by side, mixed sets only where no kind suffices."""

from __future__ import annotations

from collections.abc import Iterable

from trimtab.core.hardware import Gpu

__all__ = ["enumerate_replica_sets", "kind_of"]


def kind_of(gpu: Gpu) -> tuple[str, int]:
    """Cards of one kind are interchangeable: same product, same memory."""
    return (gpu.spec or gpu.name, gpu.total_bytes)


def enumerate_replica_sets(gpus: tuple[Gpu, ...], size: int) -> tuple[tuple[tuple[Gpu, ...], ...], ...]:
    """Ways to cut ``gpus`` into disjoint sets of ``size``, the poorest set of each way first.

    One way per kind that has enough cards, one with all kinds' sets together, and one mixed set when no
    kind has enough. Fewer cards than ``size`` come back as one set, too small.
    """
    if size > len(gpus):
        return ((gpus,),)
    kinds: dict[tuple[str, int], list[Gpu]] = {}
    for gpu in gpus:
        kinds.setdefault(kind_of(gpu), []).append(gpu)
    ways = [_cut(cards, size) for cards in kinds.values() if len(cards) >= size]
    if not ways:
        largest = sorted(gpus, key=lambda gpu: (-gpu.total_bytes, gpu.index))[:size]
        return ((tuple(sorted(largest, key=lambda gpu: gpu.index)),),)
    if len(ways) > 1:
        ways.append(tuple(cards for way in ways for cards in way))
    return tuple(_poorest_first(way) for way in ways)


def _cut(cards: list[Gpu], size: int) -> tuple[tuple[Gpu, ...], ...]:
    return tuple(tuple(cards[at : at + size]) for at in range(0, len(cards) - size + 1, size))


def _poorest_first(sets: Iterable[tuple[Gpu, ...]]) -> tuple[tuple[Gpu, ...], ...]:
    return tuple(sorted(sets, key=lambda cards: (min(gpu.room_bytes for gpu in cards), cards[0].index)))
