"""Pure. Several models on the same cards: each gets a share of their memory, and they start in turn.

Every engine asks for its share of the whole card at start and wants that much free, so the shares, what each
engine holds beside its share, and a spare must add up to the card.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Final

from trimtab.core.hardware import Gpu
from trimtab.planner.vllm_choice import SMALLEST_CONTEXT, base_settings
from trimtab.planner.vllm_evaluate import Evaluation, Evaluator
from trimtab.planner.vllm_settings import VllmSettings
from trimtab.planner.vllm_shapes import Shape, apply_shape
from trimtab.planner.vllm_variants import apply_concessions
from trimtab.units import MIB

__all__ = ["share_cards"]

# Activations and sampler are paid once per engine: smaller than on cards of one's own.
_BATCHED_TOKENS: Final = 2048
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


@dataclass(frozen=True, slots=True, kw_only=True)
class _Need:
    """What one engine must have of every card, in bytes: inside its budget for one request, and beside it."""

    least_bytes: int
    outside_bytes: int
    item: Evaluation


def share_cards(evaluators: tuple[Evaluator, ...], cards: tuple[Gpu, ...]) -> tuple[Evaluation, ...]:
    """One evaluation per model, all on ``cards``, in start order; what is left over is divided equally.

    Guarantees where all fit: the shares and what lies beside them add up to no more than any card.
    """
    usable = min(gpu.total_bytes if gpu.free_bytes is None else gpu.free_bytes for gpu in cards)
    needs: list[_Need] = []
    left = -1
    for concessions, divisor in _STAGES:
        needs = [_need(evaluator, cards, concessions, divisor) for evaluator in evaluators]
        left = usable - _SPARE_BYTES - sum(need.least_bytes + need.outside_bytes for need in needs)
        if left >= 0 or _is_settled(evaluators, divisor):
            break
    extra = max(0, left) // len(needs)
    return tuple(_start_in_turn(evaluators, needs, cards, extra))


def _is_settled(evaluators: tuple[Evaluator, ...], divisor: int) -> bool:
    """Whether no later stage changes anything: the longest context is at its floor."""
    longest = max(evaluator.wish.facts.max_position_embeddings for evaluator in evaluators)
    return longest // divisor < SMALLEST_CONTEXT


def _need(evaluator: Evaluator, cards: tuple[Gpu, ...], concessions: tuple[str, ...], divisor: int) -> _Need:
    """A candidate on all the cards, and what it takes with a cache for one request of full length."""
    shape, settings = _modest_settings(evaluator, cards)
    settings, given_up = apply_concessions(evaluator.wish, settings, concessions)
    settings, is_shortened = _with_context(evaluator, settings, divisor)
    item = evaluator.judge(shape, settings, (cards,), concessions=given_up)
    memory = item.memory
    budget = max(memory.per_gpu, key=lambda part: (part.requested_bytes or 0) - part.kv_cache_bytes)
    cache = (memory.capacity.blocks_per_request + 1) * max(memory.layout.bytes_per_block)
    inside = (budget.requested_bytes or 0) - budget.kv_cache_bytes
    return _Need(
        least_bytes=inside + cache + budget.error_bytes,
        outside_bytes=budget.outside_budget_bytes,
        item=replace(item, is_shortened=is_shortened),
    )


def _modest_settings(evaluator: Evaluator, cards: tuple[Gpu, ...]) -> tuple[Shape, VllmSettings]:
    """All the cards as one tensor-parallel group, unless degrees are pinned; small batches."""
    wish = evaluator.wish
    base = base_settings(evaluator, cards)
    pinned = base.tensor_parallel_size if "tensor_parallel_size" in wish.pins else 0
    shape = Shape(
        tensor_parallel_size=pinned or max(1, len(cards) // base.pipeline_parallel_size),
        pipeline_parallel_size=base.pipeline_parallel_size,
        enable_expert_parallel=base.enable_expert_parallel,
    )
    settings = apply_shape(base, shape)
    if "max_num_seqs" not in wish.pins and wish.request.concurrency is None:
        settings = replace(settings, max_num_seqs=min(settings.max_num_seqs, _NUM_SEQS))
    if "max_num_batched_tokens" not in wish.pins:
        batch = max(_BATCHED_TOKENS, settings.max_num_seqs)
        settings = replace(settings, max_num_batched_tokens=batch)
    return shape, settings


def _with_context(evaluator: Evaluator, settings: VllmSettings, divisor: int) -> tuple[VllmSettings, bool]:
    """The context divided, where nobody asked for one; (settings, whether it is below the model's)."""
    wish = evaluator.wish
    if divisor == 1 or wish.context_tokens is not None or "max_model_len" in wish.pins:
        return settings, False
    whole = wish.facts.max_position_embeddings
    tokens = min(whole, max(SMALLEST_CONTEXT, whole // divisor))
    return replace(settings, max_model_len=tokens), tokens < whole


def _start_in_turn(
    evaluators: tuple[Evaluator, ...], needs: list[_Need], cards: tuple[Gpu, ...], extra: int
) -> Iterator[Evaluation]:
    """Every engine with its share, judged on cards that the engines before it have filled already."""
    card = min(gpu.total_bytes for gpu in cards)
    taken = 0
    for evaluator, need in zip(evaluators, needs, strict=True):
        settings = need.item.settings
        if "gpu_memory_utilization" not in evaluator.wish.pins and settings.kv_cache_memory_bytes is None:
            share = math.floor((need.least_bytes + extra) / card * _STEPS_PER_CARD) / _STEPS_PER_CARD
            settings = replace(settings, gpu_memory_utilization=min(0.95, max(0.01, share)))
        filled = tuple(_with_less_free(gpu, taken) for gpu in cards)
        judged = evaluator.judge_as_is(need.item, settings, filled)
        yield replace(judged, replica_sets=(cards,))
        asked = judged.memory.per_gpu[0].requested_bytes or need.least_bytes
        taken += asked + need.outside_bytes


def _with_less_free(gpu: Gpu, taken_bytes: int) -> Gpu:
    free = gpu.total_bytes if gpu.free_bytes is None else gpu.free_bytes
    return replace(gpu, free_bytes=max(0, free - taken_bytes))
