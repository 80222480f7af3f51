"""Pure. Several models on one fixed set of cards: whole cards first, shared cards where these do not suffice.

Cards are handed out in runs of neighbours of one order (kinds together), so that the same cards in another
order give the same plan; models keep the order in which they were written, which is also the start order.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import permutations
from math import comb
from typing import Final

from trimtab.core.hardware import Gpu
from trimtab.planner.vllm_cards import kind_of
from trimtab.planner.vllm_choice import Ranking, choose_on_cards, rank_key, score_of
from trimtab.planner.vllm_evaluate import Evaluation, Evaluator
from trimtab.planner.vllm_sharing import share_cards
from trimtab.planner.vllm_wish import VllmWish

__all__ = ["Placement", "place_models"]

# Orders of the models over unlike cards are tried up to this many models (24 orders).
_MOST_ORDERED: Final = 4
# Ways to hand out the cards that are all looked at: four models on 24 cards have 1,771.
_MOST_WAYS: Final = 2_000
# Cards of one model where not all ways are looked at.
_WIDEST: Final = 16


@dataclass(frozen=True, slots=True, kw_only=True)
class Placement:
    """Every model's choice, parallel to the wishes; ``idle`` are indices of cards that nothing uses.

    ``shared`` are sets of models (positions) that live on the same cards, in start order.
    """

    rankings: tuple[Ranking, ...]
    idle: tuple[int, ...] = ()
    shared: tuple[tuple[int, ...], ...] = ()
    num_candidates: int = 0

    @property
    def chosen(self) -> tuple[Evaluation, ...]:
        """The best candidate of every model."""
        return tuple(ranking.best for ranking in self.rankings)

    @property
    def fits(self) -> bool:
        """All models fit at once."""
        return all(item.fits for item in self.chosen)


def place_models(wishes: tuple[VllmWish, ...], gpus: tuple[Gpu, ...]) -> Placement:
    """The best placement of ``wishes`` on ``gpus`` (at least one card); the nearest miss when none fits."""
    placer = _Placer(wishes, gpus)
    whole = max(placer.on_whole_cards(), key=placer.rank, default=None)
    if whole is not None and whole.fits and all(_is_unharmed(item) for item in whole.chosen):
        return placer.finish(whole)
    tried = [*placer.on_shared_cards(), *([whole] if whole is not None else [])]
    return placer.finish(max(tried, key=placer.rank))


def _is_unharmed(item: Evaluation) -> bool:
    """It fits with room to spare, and no context was cut for it."""
    return item.memory.verdict == "fits" and not item.is_shortened


class _Placer:
    """Tries ways to hand out the cards; what one model can do with equal cards is worked out once."""

    def __init__(self, wishes: tuple[VllmWish, ...], gpus: tuple[Gpu, ...]) -> None:
        self.wishes = wishes
        self.gpus = tuple(sorted(gpus, key=lambda gpu: (-gpu.total_bytes, kind_of(gpu), gpu.index)))
        self.evaluators = tuple(Evaluator(wish) for wish in wishes)
        self._rankings: dict[tuple[int, tuple[object, ...]], tuple[tuple[Gpu, ...], Ranking]] = {}

    def on_whole_cards(self) -> Iterator[Placement]:
        """Every model on cards of its own."""
        free = self._free_cards()
        open_models = [index for index, wish in enumerate(self.wishes) if wish.card_indices is None]
        if len(open_models) > len(free) or self._has_overlapping_pins():
            return
        fixed = {
            index: self._named_cards(index) for index in range(len(self.wishes)) if index not in open_models
        }
        for order, sizes in self._ways(open_models, free):
            at, parts = 0, dict(fixed)
            for index, size in zip(order, sizes, strict=True):
                parts[index] = free[at : at + size]
                at += size
            rankings = tuple(self.ranking(index, parts[index]) for index in range(len(self.wishes)))
            yield Placement(rankings=rankings)

    def _ways(
        self, models: list[int], free: tuple[Gpu, ...]
    ) -> Iterator[tuple[tuple[int, ...], tuple[int, ...]]]:
        """(Order of the models along the cards, number of cards of each): all ways, or one good one."""
        num_ways = comb(max(0, len(free) - 1), max(0, len(models) - 1))
        if num_ways > _MOST_WAYS:
            yield from self._frugal_way(models, free)
            return
        for order in self._orders(models, free):
            for sizes in _compositions(len(free), len(order)):
                yield order, sizes

    def _frugal_way(
        self, models: list[int], free: tuple[Gpu, ...]
    ) -> Iterator[tuple[tuple[int, ...], tuple[int, ...]]]:
        """Every model in turn on the fewest cards that carry it; nothing when they do not suffice."""
        sizes, at = [], 0
        for index in models:
            size = next(
                (
                    count
                    for count in range(1, min(_WIDEST, len(free) - at) + 1)
                    if self.ranking(index, free[at : at + count]).best.fits
                ),
                0,
            )
            if not size:
                return
            sizes.append(size)
            at += size
        yield tuple(models), tuple(sizes)

    def on_shared_cards(self) -> Iterator[Placement]:
        """Models on cards that several use; one with cards of its own is planned as on whole ones."""
        if len(self.wishes) == 1:
            yield Placement(rankings=(self.ranking(0, self._named_cards(0)),))
            return
        sharing = share_cards(self.evaluators, self.gpus)
        cards = [{gpu.index for gpu in item.gpus} for item in sharing.items]
        alone = [
            not any(own & other for at, other in enumerate(cards) if at != index)
            for index, own in enumerate(cards)
        ]
        rankings = tuple(
            self.ranking(index, item.gpus) if alone[index] and sharing.is_whole else Ranking(best=item)
            for index, item in enumerate(sharing.items)
        )
        yield Placement(rankings=rankings, shared=tuple(_groups(cards)))

    def ranking(self, index: int, cards: tuple[Gpu, ...]) -> Ranking:
        """The best of one model on ``cards``; equal cards are looked at once and renumbered."""
        key = (index, tuple((kind_of(gpu), gpu.free_bytes) for gpu in cards))
        if key not in self._rankings:
            self._rankings[key] = (cards, choose_on_cards(self.evaluators[index], cards))
        seen, ranking = self._rankings[key]
        if seen == cards:
            return ranking
        moved = dict(zip((gpu.index for gpu in seen), cards, strict=True))
        return _renumber(ranking, moved)

    def rank(self, placement: Placement) -> tuple[object, ...]:
        """Larger is better; the last entries only make equal placements a matter of card order."""
        items = tuple(zip(self.wishes, placement.chosen, strict=True))
        keys = [rank_key(wish, item) for wish, item in items]
        used = {gpu.index for _, item in items for cards in item.replica_sets for gpu in cards}
        return (
            min(key[0] for key in keys),
            sum(1 for _, item in items if item.fits),
            round(sum(score_of(wish, item) for wish, item in items if item.fits), 3),
            -sum(item.memory.shortfall_bytes for _, item in items if not item.fits),
            sum(item.num_replicas for _, item in items),
            -len(placement.shared),
            -len(used),
        )

    def finish(self, placement: Placement) -> Placement:
        """With the idle cards and the number of candidates looked at."""
        used = {
            gpu.index
            for item in placement.chosen
            if item.fits
            for cards in item.replica_sets
            for gpu in cards
        }
        idle = tuple(sorted(gpu.index for gpu in self.gpus if gpu.index not in used))
        return replace(
            placement,
            idle=idle if placement.fits else (),
            num_candidates=sum(evaluator.num_estimates for evaluator in self.evaluators),
        )

    def _named_cards(self, index: int) -> tuple[Gpu, ...]:
        named = self.wishes[index].card_indices
        return self.gpus if named is None else tuple(gpu for gpu in self.gpus if gpu.index in named)

    def _free_cards(self) -> tuple[Gpu, ...]:
        named = {index for wish in self.wishes for index in wish.card_indices or ()}
        return tuple(gpu for gpu in self.gpus if gpu.index not in named)

    def _has_overlapping_pins(self) -> bool:
        named = [index for wish in self.wishes for index in wish.card_indices or ()]
        return len(named) != len(set(named))

    def _orders(self, models: list[int], cards: tuple[Gpu, ...]) -> Iterator[tuple[int, ...]]:
        """Models along the cards: on equal cards the order does not matter."""
        is_alike = len({(kind_of(gpu), gpu.free_bytes) for gpu in cards}) <= 1
        if is_alike or len(models) > _MOST_ORDERED:
            yield tuple(models)
            return
        yield from permutations(models)


def _groups(cards: list[set[int]]) -> Iterator[tuple[int, ...]]:
    """Models that have a card in common, directly or through others, in start order."""
    left = list(range(len(cards)))
    while left:
        group = [left.pop(0)]
        used = set(cards[group[0]])
        found = True
        while found:
            found = False
            for index in tuple(left):
                if cards[index] & used:
                    group.append(index)
                    used |= cards[index]
                    left.remove(index)
                    found = True
        if len(group) > 1:
            yield tuple(sorted(group))


def _compositions(total: int, parts: int) -> Iterator[tuple[int, ...]]:
    """Ways to hand out all ``total`` cards to ``parts`` models, each at least one; () for no model."""
    if parts == 0:
        yield ()
        return
    if parts == 1:
        yield (total,)
        return
    for first in range(1, total - parts + 2):
        for rest in _compositions(total - first, parts - 1):
            yield (first, *rest)


def _renumber(ranking: Ranking, moved: dict[int, Gpu]) -> Ranking:
    """The same ranking on equal cards with other numbers."""
    others = tuple(_move(item, moved) for item in ranking.others)
    return replace(ranking, best=_move(ranking.best, moved), others=others)


def _move(item: Evaluation, moved: dict[int, Gpu]) -> Evaluation:
    sets = tuple(tuple(moved[gpu.index] for gpu in cards) for cards in item.replica_sets)
    return item.with_cards(sets)
