"""Pure. The best way to run one model on given cards: shape, replicas and flags, ranked by a stated score.

What is asked or pinned is obeyed. The rest is chosen from the best downwards: the model's own KV dtype,
images, large prefill batches and the whole context are given up only where that buys what was asked.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Final

from trimtab.core.hardware import Gpu
from trimtab.planner.vllm_cards import enumerate_replica_sets, kind_of
from trimtab.planner.vllm_evaluate import Evaluation, Evaluator
from trimtab.planner.vllm_legality import Illegality
from trimtab.planner.vllm_settings import VllmSettings
from trimtab.planner.vllm_shapes import Shape, apply_shape, enumerate_shapes
from trimtab.planner.vllm_variants import BATCHED_TOKENS, cost_of, enumerate_variants
from trimtab.planner.vllm_wish import VllmWish

__all__ = [
    "DEFAULT_NUM_SEQS",
    "SMALLEST_CONTEXT",
    "Ranking",
    "base_settings",
    "choose_on_cards",
    "rank_key",
    "score_of",
]

# Sequences at once when nobody says: more than one household or small team sends, little memory
# (vLLM's own 256 or 1024 costs sampler memory and, on hybrids, states).
DEFAULT_NUM_SEQS: Final = 32
# A chat with tools and a few pages of text; sequences are not planned beyond what the pool holds of these.
_CHAT_TOKENS: Final = 8192
# Chosen contexts are multiples of this, and never less than one chat turn.
_CONTEXT_STEP: Final = 1024
_FITTING_ROUNDS: Final = 4
# Room for requests counts in steps of a quarter, up to four times the wish: less or beyond is not worth
# more cards per replica, whose traffic grows with every card and whose failure stops more.
_CLEARLY_MORE: Final = 1.25
_PLENTY: Final = 4.0
SMALLEST_CONTEXT: Final = 2048


@dataclass(frozen=True, slots=True, kw_only=True)
class Ranking:
    """The best candidate on given cards and the best of every other shape, best first.

    ``illegal`` are shapes that the checkpoint's shards forbid.
    """

    best: Evaluation
    others: tuple[Evaluation, ...] = ()
    illegal: tuple[Shape, ...] = ()
    num_candidates: int = 0


def choose_on_cards(evaluator: Evaluator, gpus: tuple[Gpu, ...]) -> Ranking:
    """The best plan of one model on ``gpus`` alone; the nearest miss when none fits. Needs a card."""
    before, wish = evaluator.num_estimates, evaluator.wish
    shapes = tuple(enumerate_shapes(wish, base_settings(evaluator, gpus), len(gpus)))
    legal = [shape for shape in shapes if shape.is_legal]
    # Only when nothing is legal is an illegal shape worth its figures: a pinned one.
    considered = legal or list(shapes[:1])
    flat = [shape for shape in considered if shape.pipeline_parallel_size == 1]
    found = [_best_of_shape(evaluator, shape, gpus) for shape in flat]
    # A pipeline answers one request no faster than one card: it is for what nothing else carries.
    if not any(_is_sound(item) for item in found):
        found.extend(_best_of_shape(evaluator, shape, gpus) for shape in considered if shape not in flat)
    ordered = sorted(found, key=lambda item: rank_key(wish, item), reverse=True)
    return Ranking(
        best=ordered[0],
        others=tuple(ordered[1:]),
        illegal=tuple(shape for shape in shapes if shape not in considered),
        num_candidates=evaluator.num_estimates - before,
    )


def rank_key(wish: VllmWish, item: Evaluation) -> tuple[float, ...]:
    """Larger is better: fits, the score, clearly more room while it is scarce, fewer cards per replica.

    Among misfits the legal ones come first, then those that lack least.
    """
    if not item.fits:
        lack = float(item.memory.shortfall_bytes)
        return (0.0, -float(len(item.problems)), -lack, -float(item.shape.num_cards))
    return (
        2.0 if item.memory.verdict == "fits" else 1.0,
        round(score_of(wish, item), 3),
        _room_steps(wish, item),
        -float(item.shape.num_cards),
        float(item.num_replicas),
        item.max_concurrency,
    )


def _room_steps(wish: VllmWish, item: Evaluation) -> float:
    """Requests of full length at once, on the scale where only clear differences count."""
    plenty = _PLENTY * (wish.request.concurrency or 1)
    return float(math.floor(math.log(max(1e-3, min(plenty, item.max_concurrency)), _CLEARLY_MORE)))


def score_of(wish: VllmWish, item: Evaluation) -> float:
    """How far the wish is met (0 to 1), less what was given up for it."""
    wanted = wish.request.concurrency or 1
    met = min(1.0, item.max_concurrency / wanted)
    if wish.context_tokens is None and "max_model_len" not in wish.pins:
        met = (met + _context_share(item.max_model_len, wish.facts.max_context_tokens)) / 2
    return met - cost_of(item.concessions)


def _context_share(tokens: int, limit: int) -> float:
    """0 at the shortest context worth planning, 1 at the model's own; each doubling counts the same."""
    if limit <= SMALLEST_CONTEXT:
        return 1.0
    return max(0.0, min(1.0, math.log2(tokens / SMALLEST_CONTEXT) / math.log2(limit / SMALLEST_CONTEXT)))


def base_settings(evaluator: Evaluator, gpus: tuple[Gpu, ...]) -> VllmSettings:
    """Pins, and the planner's own defaults where nothing is pinned and something is left to choose."""
    wish = evaluator.wish
    defaults: list[tuple[str, object]] = [
        *([] if wish.is_fully_pinned else [("enable_prefix_caching", True)]),
        ("max_num_batched_tokens", BATCHED_TOKENS[0]),
        ("max_num_seqs", min(wish.request.concurrency or DEFAULT_NUM_SEQS, BATCHED_TOKENS[0])),
    ]
    if wish.context_tokens is not None:
        defaults.append(("max_model_len", wish.context_tokens))
    lead = min(gpus, key=lambda gpu: gpu.total_bytes)
    return evaluator.base_settings(lead, defaults)


def _best_of_shape(evaluator: Evaluator, shape: Shape, gpus: tuple[Gpu, ...]) -> Evaluation:
    """The best flags for one shape, on the cards of one kind or, if better, on all."""
    wish = evaluator.wish
    wanted = wish.request.replicas
    found = [
        _best_flags(evaluator, shape, sets[: wanted or len(sets)])
        for sets in enumerate_replica_sets(gpus, shape.num_cards)
    ]
    best = max(found, key=lambda item: rank_key(wish, item))
    if wanted is None or best.num_replicas >= wanted:
        return best
    problem = Illegality(
        code="too_few_cards",
        setting="replicas",
        text=f"{wanted} replicas of {shape} need {wanted * shape.num_cards} cards, {len(gpus)} are there",
        largest_legal=best.num_replicas,
    )
    return replace(best, problems=(*best.problems, problem))


def _best_flags(evaluator: Evaluator, shape: Shape, sets: tuple[tuple[Gpu, ...], ...]) -> Evaluation:
    """Variants from the best downwards, until one meets the wish; the best-ranked if none does."""
    wish = evaluator.wish
    key = (shape, len(sets), tuple((kind_of(gpu), gpu.free_bytes) for gpu in sets[0]))
    known = evaluator.chosen.get(key)
    if known is not None:
        return known.with_cards(sets)
    base = apply_shape(base_settings(evaluator, sets[0]), shape)
    variants = tuple(enumerate_variants(wish, base, sets[0]))
    judged = [_judge_variant(evaluator, shape, *variants[0], sets)]
    if not (_is_hopeless(judged[0]) or _is_met(wish, judged[0])) and len(variants) > 1:
        # What gives up everything bounds what any variant can reach.
        roomiest = _judge_variant(evaluator, shape, *variants[-1], sets)
        judged.append(roomiest)
        if roomiest.fits:
            judged.extend(_climb(evaluator, shape, variants[1:-1], sets, judged))
    best = max(judged, key=lambda item: rank_key(wish, item))
    evaluator.chosen[key] = best
    return best


def _climb(
    evaluator: Evaluator,
    shape: Shape,
    variants: tuple[tuple[VllmSettings, tuple[str, ...]], ...],
    sets: tuple[tuple[Gpu, ...], ...],
    judged: list[Evaluation],
) -> Iterator[Evaluation]:
    """Variants, cheapest first, until one meets the wish or none that is left can beat the best."""
    wish = evaluator.wish
    roomiest = judged[-1]
    reach = score_of(wish, roomiest) + cost_of(roomiest.concessions)
    best = max((score_of(wish, item) for item in judged if _is_sound(item)), default=-math.inf)
    for settings, concessions in variants:
        if reach - cost_of(concessions) <= best:
            return
        item = _judge_variant(evaluator, shape, settings, concessions, sets)
        yield item
        if _is_sound(item):
            best = max(best, score_of(wish, item))
        if _is_met(wish, item):
            return


def _is_sound(item: Evaluation) -> bool:
    """It fits with more room than the estimate's error."""
    return item.fits and item.memory.verdict == "fits"


def _is_met(wish: VllmWish, item: Evaluation) -> bool:
    is_enough = item.max_concurrency >= (wish.request.concurrency or 1)
    return _is_sound(item) and is_enough and not item.is_shortened


def _is_hopeless(item: Evaluation) -> bool:
    """No flag helps: the weights alone exceed a card, or the shards are illegal."""
    card = min(gpu.total_bytes for gpu in item.gpus)
    return not item.shape.is_legal or max(b.weights_bytes for b in item.memory.per_gpu) > card


def _judge_variant(
    evaluator: Evaluator,
    shape: Shape,
    settings: VllmSettings,
    concessions: tuple[str, ...],
    sets: tuple[tuple[Gpu, ...], ...],
) -> Evaluation:
    """One variant, with sequences and, where nobody asked for a length, the context fitted to the pool."""
    wish = evaluator.wish
    if wish.request.concurrency is not None and "max_num_seqs" not in wish.pins:
        settings = replace(settings, max_num_seqs=-(-wish.request.concurrency // len(sets)))
    item = evaluator.judge(shape, settings, sets, concessions=concessions)
    is_length_free = wish.context_tokens is None and "max_model_len" not in wish.pins
    # The share of the card that is safe moves a little with the length, hence more than one round.
    for _ in range(_FITTING_ROUNDS):
        fitted = item.settings
        longest = item.memory.capacity.max_model_len_that_fits // _CONTEXT_STEP * _CONTEXT_STEP
        if is_length_free and not item.memory.fits and SMALLEST_CONTEXT <= longest < item.max_model_len:
            fitted = replace(fitted, max_model_len=longest)
        if wish.request.concurrency is None and "max_num_seqs" not in wish.pins:
            fitted = replace(fitted, max_num_seqs=_useful_sequences(item, fitted))
        if fitted == item.settings:
            break
        item = evaluator.judge(shape, fitted, sets, concessions=concessions)
    return replace(item, is_shortened=item.settings.max_model_len != settings.max_model_len)


def _useful_sequences(item: Evaluation, settings: VllmSettings) -> int:
    """As many as the pool holds chats, at most the default, at least one."""
    layout, capacity = item.memory.layout, item.memory.capacity
    tokens = min(_CHAT_TOKENS, settings.max_model_len or _CHAT_TOKENS)
    per_chat = layout.blocks_per_request(tokens, settings.max_num_batched_tokens)
    return max(1, min(settings.max_num_seqs, capacity.blocks // max(1, per_chat)))
