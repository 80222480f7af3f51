"""Pure. Models that do not all fit at once: which are planned together, and which sets may be loaded.

Every model has one home, its settings and its cards, whoever else is loaded. Homes are found in rounds:
what is always loaded and as many others as fit beside it, then those that are left, and so on.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field
from itertools import combinations
from typing import Final

from trimtab.core.plan import ModelPlan, SwapPlan
from trimtab.core.stack import ModelRequest, SwapSettings

__all__ = [
    "Homes",
    "first_that_fit",
    "in_loading_order",
    "make_swap_plan",
    "most_ram_bytes",
    "pack_in_rounds",
]

# Pairs of more models than these are not looked through one by one; each model still is.
_MOST_PAIRED: Final = 24


@dataclass(frozen=True, slots=True, kw_only=True)
class Homes:
    """Where models were planned: ``round_of`` each by name, and what they take.

    ``cards`` are the cards of models on GPUs. ``ram`` gives (bytes, error of the estimate) of models on the
    CPU, ``ram_bytes`` what these may take together. Models of one round fit together; of different rounds
    those do that share no card and whose RAM adds up.
    """

    round_of: Mapping[str, int]
    cards: Mapping[str, frozenset[int]] = field(default_factory=dict)
    ram: Mapping[str, tuple[int, int]] = field(default_factory=dict)
    ram_bytes: int = 0

    def fits_together(self, models: AbstractSet[str], keep_loaded: AbstractSet[str]) -> bool:
        """Whether these fit at once; those of ``keep_loaded`` were counted in every round."""
        on_cards = [name for name in models if name in self.cards]
        return self._fits_cards(on_cards, keep_loaded) and self._fits_ram(models, keep_loaded)

    def _fits_cards(self, models: Iterable[str], keep_loaded: AbstractSet[str]) -> bool:
        return all(
            self.round_of[one] == self.round_of[other] or not self.cards[one] & self.cards[other]
            for one, other in combinations([name for name in models if name not in keep_loaded], 2)
        )

    def _fits_ram(self, models: AbstractSet[str], keep_loaded: AbstractSet[str]) -> bool:
        held = [self.ram[name] for name in models if name in self.ram]
        rounds = {self.round_of[name] for name in models if name in self.ram and name not in keep_loaded}
        if len(rounds) <= 1:
            return True
        return sum(taken for taken, _ in held) + max(error for _, error in held) <= self.ram_bytes


def in_loading_order(requests: Iterable[ModelRequest]) -> tuple[ModelRequest, ...]:
    """What is kept loaded first, then by priority, then as written."""
    return tuple(sorted(requests, key=lambda request: (not request.keep_loaded, -request.priority)))


def first_that_fit(names: tuple[str, ...], fits: Callable[[tuple[str, ...]], bool]) -> tuple[str, ...]:
    """As many of ``names`` as fit at once, earlier ones first."""
    chosen: tuple[str, ...] = ()
    for name in names:
        if fits((*chosen, name)):
            chosen = (*chosen, name)
    return chosen


def pack_in_rounds(
    names: tuple[str, ...], fits: Callable[[tuple[str, ...]], bool]
) -> tuple[tuple[tuple[str, ...], ...], tuple[str, ...]]:
    """``names`` in rounds of which each fits, and those that do not even fit alone."""
    rounds: list[tuple[str, ...]] = []
    left = names
    while left and (chosen := first_that_fit(left, fits)):
        rounds.append(chosen)
        left = tuple(name for name in left if name not in chosen)
    return tuple(rounds), left


def make_swap_plan(
    requests: tuple[ModelRequest, ...], models: tuple[ModelPlan, ...], homes: Homes, settings: SwapSettings
) -> SwapPlan:
    """The largest sets that fit together; every model that fits at all is in one.

    For each model, and for each two that fit together, there is a set that holds them.
    """
    ordered = in_loading_order(requests)
    fitting = {model.name for model in models if model.fits}
    names = tuple(request.name for request in ordered if request.name in fitting)
    keep = frozenset(request.name for request in ordered if request.keep_loaded and request.name in fitting)
    return SwapPlan(
        resident_sets=_largest_sets(names, keep, homes),
        keep_loaded=tuple(name for name in names if name in keep),
        priority=tuple((request.name, request.priority) for request in ordered if request.priority),
        idle_unload_s=settings.idle_unload_s,
        min_residence_s=settings.min_residence_s,
    )


def most_ram_bytes(swap: SwapPlan, ram: Mapping[str, tuple[int, int]]) -> int:
    """What models on the CPU take of RAM at most at one time."""
    taken = [[ram[name] for name in names if name in ram] for names in swap.resident_sets]
    return max(
        (sum(size for size, _ in one) + max((error for _, error in one), default=0) for one in taken),
        default=0,
    )


def _largest_sets(names: tuple[str, ...], keep: frozenset[str], homes: Homes) -> tuple[tuple[str, ...], ...]:
    movable = tuple(name for name in names if name not in keep)
    seeds: list[frozenset[str]] = [keep, *(keep | {name} for name in movable)]
    if len(movable) <= _MOST_PAIRED:
        seeds.extend(keep | {one, other} for one, other in combinations(movable, 2))
    found: list[frozenset[str]] = []
    for seed in seeds:
        if homes.fits_together(seed, keep):
            grown = _grow(seed, names, keep, homes)
            if not any(grown <= one for one in found):
                found.append(grown)
    return tuple(tuple(name for name in names if name in one) for one in found)


def _grow(seed: frozenset[str], names: tuple[str, ...], keep: frozenset[str], homes: Homes) -> frozenset[str]:
    for name in names:
        if name not in seed and homes.fits_together(seed | {name}, keep):
            seed = seed | {name}
    return seed
