"""Pure. Models that share cards: who goes where, and which share of every card each one gets.

Every engine asks for its share of the whole card at start and wants that much free, so the shares, what each
engine holds beside its share, and a spare must add up to the card; engines on one card start in turn.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Final

from trimtab.core.hardware import Gpu
from trimtab.planner.vllm_cards import kind_of
from trimtab.planner.vllm_choice import SMALLEST_CONTEXT, base_settings
from trimtab.planner.vllm_evaluate import Evaluation, Evaluator
from trimtab.planner.vllm_legality import Illegality
from trimtab.planner.vllm_memory import VllmMemory
from trimtab.planner.vllm_settings import VllmSettings
from trimtab.planner.vllm_shapes import Shape, apply_shape, enumerate_shapes
from trimtab.planner.vllm_variants import apply_concessions
from trimtab.units import GIB, MIB

__all__ = ["Sharing", "share_cards"]

# Activations and sampler are paid once per engine: smaller than on cards of one's own. Hybrids cache in
# blocks of up to 2,112 tokens, which may not exceed a batch.
_BATCHED_TOKENS: Final = 2048
_BATCHED_TOKENS_HYBRID: Final = 4096
_NUM_SEQS: Final = 16
_SPARE_BYTES: Final = 256 * MIB
# vLLM takes any fraction; a thousandth is 24 MiB of a 24 GB card.
_STEPS_PER_CARD: Final = 1000
# What is given up in turn, for all models that leave it open: names, and the divisor of the context.
_STAGES: Final[tuple[tuple[tuple[str, ...], int], ...]] = (
    ((), 1),
    (("fp8_kv",), 1),
    *((("fp8_kv",), 2**power) for power in range(1, 5)),
    *((("fp8_kv", "text_only"), 2**power) for power in range(9)),
)
# Ways to hand out the cards that are looked at per stage; four models on four cards have about 2,400.
_MOST_WAYS: Final = 5_000
_LARGEST_SHARE: Final = 0.95
_SMALL_MACHINE: Final = 8
_WIDEST: Final = 16


@dataclass(frozen=True, slots=True, kw_only=True)
class Sharing:
    """One evaluation per model, in the order written; ``is_whole`` tells that all were placed."""

    items: tuple[Evaluation, ...]
    is_whole: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class _Need:
    """What one engine must have of each of its cards, in bytes.

    ``least_bytes`` is inside its budget, with a cache for one request; ``wished_bytes`` is what the wished
    concurrency takes on top; ``outside_bytes`` lies beside the budget, at the start or in use.
    """

    least_bytes: int
    wished_bytes: int
    outside_bytes: int
    item: Evaluation

    @property
    def total_bytes(self) -> int:
        """All that the card must have free for it."""
        return self.least_bytes + self.outside_bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class _Place:
    """Cards for one model, and what it needs of each."""

    cards: tuple[Gpu, ...]
    need: _Need


def share_cards(evaluators: tuple[Evaluator, ...], gpus: tuple[Gpu, ...]) -> Sharing:
    """Places all models on ``gpus``, several on a card where they must; the fewest concessions first.

    Guarantees where ``is_whole``: on every card the shares and what lies beside them add up to no more
    than what is free. Otherwise as many as possible are placed, and the rest say what they lack.
    """
    sharer = _Sharer(evaluators, gpus)
    last = _last_stage(evaluators)
    if sharer.place(last) is None:
        return Sharing(items=tuple(sharer.start_in_turn(sharer.crowd(last))), is_whole=False)
    for stage in range(last + 1):
        places = sharer.place(stage)
        if places is not None:
            return Sharing(items=tuple(sharer.start_in_turn(places)), is_whole=True)
    return Sharing(items=tuple(sharer.start_in_turn(sharer.crowd(last))), is_whole=False)


def _last_stage(evaluators: tuple[Evaluator, ...]) -> int:
    """The first stage after which nothing changes any more: the longest context is at its floor."""
    longest = max(evaluator.wish.facts.max_context_tokens for evaluator in evaluators)
    text_only = range(len(_STAGES) - 9, len(_STAGES))
    floor = (stage for stage in text_only if longest // _STAGES[stage][1] <= SMALLEST_CONTEXT)
    return next(floor, len(_STAGES) - 1)


class _Sharer:
    """Needs by model, number and kind of cards are worked out once."""

    def __init__(self, evaluators: tuple[Evaluator, ...], gpus: tuple[Gpu, ...]) -> None:
        self._evaluators = evaluators
        self._gpus = gpus
        self._needs: dict[tuple[int, int, tuple[str, int], int], _Need | None] = {}
        self._ways = 0

    def place(self, stage: int) -> dict[int, _Place] | None:
        """The way that crowds cards least, or None when not all models find room."""
        options = {index: tuple(self._options(index, stage)) for index in range(len(self._evaluators))}
        if sum(_smallest(places) for places in options.values()) > sum(self._free().values()):
            return None  # not even spread over all cards
        # The one with the fewest and largest places first: it decides most.
        order = sorted(options, key=lambda index: (-_smallest(options[index]), index))
        self._ways = 0
        best: tuple[tuple[int, ...], dict[int, _Place]] | None = None
        for places in self._search(order, options, self._free()):
            rank = self._rank(places)
            if best is None or rank > best[0]:
                best = (rank, places)
        return None if best is None else best[1]

    def _search(
        self, order: list[int], options: dict[int, tuple[_Place, ...]], free: dict[int, int]
    ) -> Iterator[dict[int, _Place]]:
        """Every way to give the models of ``order`` a place, up to a bound."""
        if not order:
            yield {}
            return
        index, rest = order[0], order[1:]
        for place in options[index]:
            self._ways += 1
            if self._ways > _MOST_WAYS:
                return
            left = {gpu.index: free[gpu.index] - place.need.total_bytes for gpu in place.cards}
            if min(left.values()) < 0:
                continue
            for others in self._search(rest, options, free | left):
                yield {index: place, **others}

    def _rank(self, places: dict[int, _Place]) -> tuple[int, ...]:
        """Larger is better: wishes for concurrency met, cards of one's own, fewer cards per engine, room."""
        free, users = self._free(), dict.fromkeys((gpu.index for gpu in self._gpus), 0)
        wished = dict.fromkeys(free, 0)
        for place in places.values():
            for gpu in place.cards:
                free[gpu.index] -= place.need.total_bytes
                wished[gpu.index] += place.need.wished_bytes
                users[gpu.index] += 1
        unmet = sum(max(0, wished[index] - room) for index, room in free.items())
        crowded = sum(count - 1 for count in users.values() if count > 1)
        num_cards = sum(len(place.cards) for place in places.values())
        tightest = min((free[index] for index, count in users.items() if count), default=0)
        return (-unmet, -crowded, -num_cards, tightest)

    def crowd(self, stage: int) -> dict[int, _Place]:
        """With every concession: places in the order written, on the emptiest cards, room or not."""
        free, places = self._free(), {}
        for index in range(len(self._evaluators)):
            options = tuple(self._options(index, stage)) or (self._forced(index, stage),)
            place = max(
                options,
                key=lambda option: (
                    min(free[gpu.index] for gpu in option.cards) - option.need.total_bytes,
                    -len(option.cards),
                ),
            )
            for gpu in place.cards:
                free[gpu.index] -= place.need.total_bytes
            places[index] = place
        return places

    def _free(self) -> dict[int, int]:
        """Bytes of every card that the plan may give away."""
        return {gpu.index: gpu.room_bytes - _SPARE_BYTES for gpu in self._gpus}

    def _options(self, index: int, stage: int) -> Iterator[_Place]:
        """Runs of equal cards that the model may use, fewest cards first."""
        wish = self._evaluators[index].wish
        named = wish.card_indices
        kinds: dict[tuple[str, int], list[Gpu]] = {}
        for gpu in self._gpus:
            if named is None or gpu.index in named:
                kinds.setdefault(kind_of(gpu), []).append(gpu)
        for cards in kinds.values():
            for size in _sizes(len(cards)):
                need = self._need(index, tuple(cards[:size]), stage)
                if need is None:
                    continue
                for start in range(0, len(cards) - size + 1, size):
                    yield _Place(cards=tuple(cards[start : start + size]), need=need)

    def _need(self, index: int, cards: tuple[Gpu, ...], stage: int) -> _Need | None:
        """What the model needs on so many cards of that kind; None where no legal shape uses all of them."""
        key = (index, len(cards), kind_of(cards[0]), stage)
        if key not in self._needs:
            shape = _shape_on(self._evaluators[index], cards)
            need = None if shape is None else _estimate_need(self._evaluators[index], cards, shape, stage)
            self._needs[key] = need if need is not None and not need.item.problems else None
        return self._needs[key]

    def _forced(self, index: int, stage: int) -> _Place:
        """A place for a model that has none: all its cards in one group, legal or not."""
        wish = self._evaluators[index].wish
        named = wish.card_indices
        cards = tuple(gpu for gpu in self._gpus if named is None or gpu.index in named)
        base = base_settings(self._evaluators[index], cards)
        pinned = base.tensor_parallel_size if "tensor_parallel_size" in wish.pins else len(cards)
        need = _estimate_need(self._evaluators[index], cards, Shape(tensor_parallel_size=pinned), stage)
        return _Place(cards=cards, need=need)

    def start_in_turn(self, places: dict[int, _Place]) -> Iterator[Evaluation]:
        """Every engine with its share, judged on cards that the engines before it have filled already."""
        extras = self._extras(places)
        taken = dict.fromkeys((gpu.index for gpu in self._gpus), 0)
        for index, evaluator in enumerate(self._evaluators):
            place = places[index]
            item = _with_share(evaluator, place, extras[index], taken)
            yield item
            for gpu, budget in zip(place.cards, item.memory.per_gpu, strict=False):
                held = budget.requested_bytes
                asked = budget.weights_bytes + budget.kv_cache_bytes if held is None else held
                taken[gpu.index] += asked + budget.outside_budget_bytes

    def _extras(self, places: dict[int, _Place]) -> dict[int, int]:
        """What each model gets beyond its least, in bytes per card: by its wish, and in equal parts."""
        left = self._free()
        weights: dict[int, int] = dict.fromkeys(left, 0)
        for place in places.values():
            for gpu in place.cards:
                left[gpu.index] -= place.need.total_bytes
                weights[gpu.index] += _weight_of(place)
        return {
            index: min(
                max(0, left[gpu.index]) * _weight_of(place) // weights[gpu.index] for gpu in place.cards
            )
            for index, place in places.items()
        }


def _sizes(most: int) -> Iterator[int]:
    """Numbers of cards that are tried for one model: all of a small machine, powers of two of a large one."""
    for size in range(1, most + 1):
        if most <= _SMALL_MACHINE or (size <= _WIDEST and size & (size - 1) == 0):
            yield size


def _weight_of(place: _Place) -> int:
    """How much of what is left a model may claim."""
    return place.need.wished_bytes + place.need.least_bytes // 8 + 1


def _smallest(options: tuple[_Place, ...]) -> int:
    """The least that a model needs in all, over its places; none at all counts as most."""
    return min((len(place.cards) * place.need.total_bytes for place in options), default=2**62)


def _shape_on(evaluator: Evaluator, cards: tuple[Gpu, ...]) -> Shape | None:
    """The legal shape that uses exactly these cards, tensor parallel before pipelines."""
    base = base_settings(evaluator, cards)
    shapes = [
        shape
        for shape in enumerate_shapes(evaluator.wish, base, len(cards))
        if shape.is_legal and shape.num_cards == len(cards)
    ]
    return min(shapes, key=lambda shape: shape.pipeline_parallel_size, default=None)


def _estimate_need(evaluator: Evaluator, cards: tuple[Gpu, ...], shape: Shape, stage: int) -> _Need:
    """A candidate on these cards, and what it takes with a cache for one request of full length."""
    concessions, divisor = _STAGES[stage]
    wish = evaluator.wish
    settings = _modest_settings(evaluator, cards, shape)
    settings, given_up = apply_concessions(wish, settings, concessions)
    settings, is_shortened = _with_context(evaluator, settings, divisor)
    item = evaluator.judge(shape, settings, (cards,), concessions=given_up)
    memory = item.memory
    budget = max(memory.per_gpu, key=lambda part: (part.requested_bytes or 0) - part.kv_cache_bytes)
    per_request = memory.capacity.blocks_per_request * max(memory.layout.bytes_per_block)
    inside = (budget.requested_bytes or 0) - budget.kv_cache_bytes
    first = per_request + max(memory.layout.bytes_per_block)
    return _Need(
        least_bytes=inside + first + budget.error_bytes,
        wished_bytes=per_request * ((wish.request.concurrency or 1) - 1),
        outside_bytes=_beside_budget(memory),
        item=replace(item, is_shortened=is_shortened),
    )


def _beside_budget(memory: VllmMemory) -> int:
    """What an engine takes of its fullest card beside its share: at its start, or later with a full batch."""
    later = memory.runtime_peak_bytes + max(
        0, memory.warm_kv_cache_bytes - min(budget.kv_cache_bytes for budget in memory.per_gpu)
    )
    return max(
        max(budget.outside_budget_bytes, later - (budget.requested_bytes or 0)) for budget in memory.per_gpu
    )


def _modest_settings(evaluator: Evaluator, cards: tuple[Gpu, ...], shape: Shape) -> VllmSettings:
    """Small batches, few sequences, unless they are asked for."""
    wish = evaluator.wish
    settings = apply_shape(base_settings(evaluator, cards), shape)
    if "max_num_seqs" not in wish.pins and wish.request.concurrency is None:
        settings = replace(settings, max_num_seqs=min(settings.max_num_seqs, _NUM_SEQS))
    if "max_num_batched_tokens" not in wish.pins:
        least = _BATCHED_TOKENS_HYBRID if wish.facts.is_hybrid else _BATCHED_TOKENS
        batch = max(least, settings.max_num_seqs)
        settings = replace(settings, max_num_batched_tokens=batch)
    return settings


def _with_context(evaluator: Evaluator, settings: VllmSettings, divisor: int) -> tuple[VllmSettings, bool]:
    """The context divided, where nobody asked for one; (settings, whether it is below the model's)."""
    wish = evaluator.wish
    if divisor == 1 or wish.context_tokens is not None or "max_model_len" in wish.pins:
        return settings, False
    whole = wish.facts.max_context_tokens
    tokens = min(whole, max(SMALLEST_CONTEXT, whole // divisor))
    return replace(settings, max_model_len=tokens), tokens < whole


def _with_share(evaluator: Evaluator, place: _Place, extra: int, taken: dict[int, int]) -> Evaluation:
    """The candidate with its share of its cards, judged beside what runs on them by then."""
    settings = place.need.item.settings
    card = min(gpu.total_bytes for gpu in place.cards)
    is_open = "gpu_memory_utilization" not in evaluator.wish.pins and settings.kv_cache_memory_bytes is None
    if is_open:
        share = math.floor((place.need.least_bytes + extra) / card * _STEPS_PER_CARD) / _STEPS_PER_CARD
        settings = replace(settings, gpu_memory_utilization=min(_LARGEST_SHARE, max(0.01, share)))
    filled = tuple(gpu.less(taken[gpu.index]) for gpu in place.cards)
    judged = evaluator.judge_as_is(place.need.item, settings, filled)
    if is_open and judged.fits:
        judged = replace(judged, problems=tuple(_find_crowding(judged, filled)))
    return replace(judged, replica_sets=(place.cards,))


def _find_crowding(item: Evaluation, filled: tuple[Gpu, ...]) -> Iterator[Illegality]:
    """A start would succeed, but what the engine allocates beside its share no longer has room."""
    for gpu, budget in zip(filled, item.memory.per_gpu, strict=False):
        whole = (budget.requested_bytes or 0) + budget.outside_budget_bytes
        if gpu.free_bytes is not None and whole > gpu.free_bytes:
            yield Illegality(
                code="memory",
                setting="gpu_memory_utilization",
                text=f"{whole / GIB:.2f} GiB are needed of GPU {gpu.index}, beside the other models "
                f"{gpu.free_bytes / GIB:.2f} GiB are free",
            )
            return
