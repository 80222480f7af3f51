"""Pure. One candidate judged: legal or not, the memory of a replica, the share of the cards it asks for.

The share (gpu_memory_utilization) is as large as what lies outside vLLM's budget and a full batch at run
time leave on the fullest card, unless it is pinned.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Final, TypeAlias

from trimtab.core.hardware import Gpu
from trimtab.planner.calibration import CalibrationKey, find_corrections, key_of
from trimtab.planner.vllm_budget import CONTEXT_BYTES, MemoryRequest
from trimtab.planner.vllm_cards import kind_of
from trimtab.planner.vllm_legality import (
    Illegality,
    LegalityRequest,
    check_vllm_capacity,
    check_vllm_settings,
)
from trimtab.planner.vllm_memory import VllmMemory, estimate_vllm_memory, make_weight_settings
from trimtab.planner.vllm_pins import check_pins
from trimtab.planner.vllm_settings import VllmSettings, resolve_vllm_settings
from trimtab.planner.vllm_shapes import Shape
from trimtab.planner.vllm_weights import RankWeights, WeightSettings, add_draft_head, estimate_weights
from trimtab.planner.vllm_wish import VllmWish
from trimtab.units import MIB

__all__ = ["Concession", "Evaluation", "Evaluator"]

Concession: TypeAlias = str
"""What a candidate gives up beside the best: fp8_kv, text_only, batch_4096 …"""

# The planner never asks for more of a card than this: allocations outside torch come in steps.
_LARGEST_SHARE: Final = 0.95
# Below this of a card that is all its own, it is the model that is too large, not the share.
_SMALLEST_SHARE: Final = 0.5
# Left free on the fullest card beside everything that is counted; the band of the outside terms
# (context ±200 MiB, communication ±200 MiB) makes up most of it.
_SPARE_BYTES: Final = 256 * MIB


@dataclass(frozen=True, slots=True, kw_only=True)
class Evaluation:
    """A candidate and its judgement.

    ``replica_sets`` are the cards of each replica in rank order, the poorest first: ``memory`` is its
    account. ``is_shortened`` marks a context below the model's that nobody asked for.
    """

    shape: Shape
    settings: VllmSettings
    replica_sets: tuple[tuple[Gpu, ...], ...]
    memory: VllmMemory
    problems: tuple[Illegality, ...] = ()
    concessions: tuple[Concession, ...] = ()
    is_shortened: bool = False

    @property
    def gpus(self) -> tuple[Gpu, ...]:
        """Cards of the replica that ``memory`` accounts for."""
        return self.replica_sets[0]

    @property
    def num_replicas(self) -> int:
        """Engines that run side by side."""
        return len(self.replica_sets)

    @property
    def fits(self) -> bool:
        """Legal, starts, and holds one request of full length."""
        return not self.problems and self.memory.fits

    @property
    def max_concurrency(self) -> float:
        """Requests of full length at once, over all replicas."""
        return self.memory.capacity.max_concurrency * self.num_replicas

    @property
    def max_model_len(self) -> int:
        """Tokens one request may use."""
        return self.settings.max_model_len or self.memory.capacity.max_model_len

    @property
    def reason(self) -> str:
        """Why it does not fit, or how it does."""
        return self.problems[0].text if self.problems else self.memory.reason

    @property
    def code(self) -> str:
        """A stable word for the reason."""
        return self.problems[0].code if self.problems else "memory"

    def with_cards(self, replica_sets: tuple[tuple[Gpu, ...], ...]) -> Evaluation:
        """The same on other cards of the same kinds."""
        return replace(self, replica_sets=replica_sets)


class Evaluator:
    """Judges candidates of one wish; remembers weights and shares, which are equal for many of them.

    ``chosen`` is the search's own memory: the best flags of a shape on cards of some kinds.
    """

    def __init__(self, wish: VllmWish) -> None:
        self.wish = wish
        self._weights: dict[WeightSettings, tuple[RankWeights, ...]] = {}
        self._bases: dict[tuple[str, int, str], VllmSettings] = {}
        self._shares: dict[tuple[VllmSettings, tuple[object, ...]], float] = {}
        self.chosen: dict[tuple[object, ...], Evaluation] = {}
        self.num_estimates = 0

    def base_settings(self, gpu: Gpu, defaults: Iterable[tuple[str, object]] = ()) -> VllmSettings:
        """The pinned arguments on this kind of card, and ``defaults`` where nothing is pinned."""
        key = (gpu.spec or gpu.name, gpu.total_bytes, repr(tuple(defaults)))
        if key not in self._bases:
            pairs = dict(defaults) | dict(self.wish.pins)
            self._bases[key] = resolve_vllm_settings(
                pairs.items(),  # type: ignore[arg-type]
                facts=self.wish.facts,
                gpu=gpu,
                line=self.wish.version.line,
            )
        return self._bases[key]

    def judge(
        self,
        shape: Shape,
        settings: VllmSettings,
        replica_sets: tuple[tuple[Gpu, ...], ...],
        *,
        concessions: tuple[Concession, ...] = (),
    ) -> Evaluation:
        """The candidate with the largest share of the cards that is safe, or the pinned one."""
        gpus = replica_sets[0]
        ranks = _rank_cards(gpus, shape)
        if "gpu_memory_utilization" not in self.wish.pins and settings.kv_cache_memory_bytes is None:
            settings, memory = self._with_largest_share(settings, ranks)
        else:
            memory = self.estimate(settings, ranks)
        return Evaluation(
            shape=shape,
            settings=settings,
            replica_sets=replica_sets,
            memory=memory,
            problems=self._check(settings, gpus, memory),
            concessions=concessions,
        )

    def _with_largest_share(
        self, settings: VllmSettings, ranks: tuple[Gpu, ...]
    ) -> tuple[VllmSettings, VllmMemory]:
        """The settings with the largest safe share of the cards, and their account.

        What lies beside the budget hardly moves with context and sequences, so a share that was safe
        for the same flags is tried first; it is kept only if it is safe for these too.
        """
        key = (replace(settings, max_model_len=None, max_num_seqs=1), tuple(kind_of(gpu) for gpu in ranks))
        share = self._shares.get(key, _LARGEST_SHARE)
        for _ in range(3):
            settings = replace(settings, gpu_memory_utilization=share)
            memory = self.estimate(settings, ranks)
            safe = choose_share(memory, ranks, share)
            if safe >= share:
                break
            share = safe
        self._shares[key] = share
        if _is_hopeless(memory, ranks):
            # The account of a model that is too large is read at the share that the engine would take.
            default = self.wish.version.line.gpu_memory_utilization
            settings = replace(settings, gpu_memory_utilization=default)
            memory = self.estimate(settings, ranks)
        return settings, memory

    def judge_as_is(
        self, evaluation: Evaluation, settings: VllmSettings, gpus: tuple[Gpu, ...]
    ) -> Evaluation:
        """One replica of the same shape with ``settings`` on ``gpus``, its share of the cards as given."""
        memory = self.estimate(settings, _rank_cards(gpus, evaluation.shape))
        problems = self._check(settings, gpus, memory)
        return replace(evaluation, settings=settings, replica_sets=(gpus,), memory=memory, problems=problems)

    def estimate(self, settings: VllmSettings, ranks: tuple[Gpu, ...]) -> VllmMemory:
        """The account of one engine with ``settings`` on ``ranks`` (its cards in rank order)."""
        lead = oldest_of(ranks)
        key = make_weight_settings(settings, lead, self.wish.version.line)
        if key not in self._weights:
            self._weights[key] = estimate_weights(self.wish.facts, self.wish.parts, key)
        self.num_estimates += 1
        request = MemoryRequest(
            facts=self.wish.facts,
            parts=self.wish.parts,
            settings=settings,
            gpus=ranks,
            version=self.wish.version,
            weights=self._weights[key],
        )
        memory = estimate_vllm_memory(request)
        if not self.wish.calibration:
            return memory
        found = find_corrections(
            self.wish.calibration, calibration_key(self.wish, settings, lead), memory.terms[0]
        )
        return estimate_vllm_memory(replace(request, calibration_bytes=found)) if found else memory

    def judge_with_draft_head(self, evaluation: Evaluation) -> Evaluation:
        """The same with one token drafted per step by the checkpoint's own head (it has one)."""
        settings = replace(evaluation.settings, num_speculative_tokens=1)
        key = make_weight_settings(settings, oldest_of(evaluation.gpus), self.wish.version.line)
        self._weights[key] = add_draft_head(evaluation.memory.weights, self.wish.facts, self.wish.parts, key)
        return self.judge_as_is(evaluation, settings, evaluation.gpus)

    def _check(
        self, settings: VllmSettings, gpus: tuple[Gpu, ...], memory: VllmMemory
    ) -> tuple[Illegality, ...]:
        request = LegalityRequest(
            facts=self.wish.facts,
            parts=self.wish.parts,
            settings=settings,
            gpus=gpus,
            line=self.wish.version.line,
            pinned=tuple(self.wish.pins),
        )
        problems = (
            *check_vllm_settings(request),
            *check_pins(
                settings,
                self.wish.facts,
                num_cards=len(gpus),
                block_room=_block_room(settings, memory),
            ),
        )
        if problems or not memory.fits:
            return problems
        return check_vllm_capacity(request, memory.layout, memory.capacity)


def oldest_of(gpus: tuple[Gpu, ...]) -> Gpu:
    """The card whose kernels all ranks must use."""
    return min(gpus, key=lambda gpu: gpu.compute_capability or (9, 0))


def calibration_key(wish: VllmWish, settings: VllmSettings, card: Gpu) -> CalibrationKey:
    """What an earlier start must have in common with this candidate."""
    values = dict(wish.pins) | {
        "tensor_parallel_size": settings.tensor_parallel_size,
        "pipeline_parallel_size": settings.pipeline_parallel_size,
        "enable_expert_parallel": settings.enable_expert_parallel,
        "max_num_batched_tokens": settings.max_num_batched_tokens,
        "max_num_seqs": settings.max_num_seqs,
        "kv_cache_dtype": settings.kv_cache_dtype,
    }
    if settings.mm_limits_are_zero and wish.facts.vision is not None:
        values["language_model_only"] = True
    return key_of(card, wish.version.version, wish.checkpoint, values)


def _is_hopeless(memory: VllmMemory, ranks: tuple[Gpu, ...]) -> bool:
    """The weights alone exceed what the largest share of a card is."""
    card = min(gpu.total_bytes for gpu in ranks)
    return max(budget.weights_bytes for budget in memory.per_gpu) > _LARGEST_SHARE * card


def choose_share(memory: VllmMemory, ranks: tuple[Gpu, ...], tried: float) -> float:
    """The share of the cards for ``gpu_memory_utilization``, in hundredths, from the account with ``tried``.

    Guarantees on every card: budget + outside + spare ≤ total, the same at run time, and budget ≤ what
    is free when vLLM looks (after its context exists).
    """
    total = min(gpu.total_bytes for gpu in ranks)
    over = memory.runtime_peak_bytes + _SPARE_BYTES - min(gpu.room_bytes for gpu in ranks)
    for gpu, budget in zip(ranks, memory.per_gpu, strict=True):
        requested = budget.requested_bytes or 0
        over = max(over, requested + budget.outside_budget_bytes + _SPARE_BYTES - gpu.total_bytes)
        free = gpu.total_bytes if gpu.free_bytes is None else gpu.free_bytes
        over = max(over, requested + CONTEXT_BYTES - free)
        if gpu.free_bytes is not None:
            held_by_others = gpu.total_bytes - gpu.free_bytes
            over = max(over, requested + budget.outside_budget_bytes + held_by_others - gpu.total_bytes)
    share = math.floor((tried - max(0, over) / total) * 100 + 1e-9) / 100
    is_all_free = all(gpu.free_bytes is None for gpu in ranks)
    return max(_SMALLEST_SHARE if is_all_free else 0.01, min(_LARGEST_SHARE, share))


def _block_room(settings: VllmSettings, memory: VllmMemory) -> int | None:
    """Blocks that the poorest card's memory gives, asked only where the number is pinned."""
    if settings.num_gpu_blocks_override is None:
        return None
    room = min(budget.kv_cache_bytes for budget in memory.per_gpu)
    return max(0, room) // max(memory.layout.bytes_per_block)


def _rank_cards(gpus: tuple[Gpu, ...], shape: Shape) -> tuple[Gpu, ...]:
    """The cards of the ranks of one engine; too few cards are used twice, so that a misfit has figures."""
    ranks = shape.tensor_parallel_size * shape.pipeline_parallel_size
    return tuple(gpus[index % len(gpus)] for index in range(ranks))
