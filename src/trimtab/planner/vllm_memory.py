"""Pure. A whole replica's memory as vLLM will account it: budgets per card, capacity, verdict, warnings.

``kv_cache_memory_bytes`` turns the equation round: the cache is given, the rest is what it takes.
Calibration is a set of per-term corrections from a real start's log.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Literal, TypeAlias

from trimtab.core.hardware import Gpu
from trimtab.core.plan import GpuBudget, PlanWarning
from trimtab.planner.vllm_activations import ActivationPeak, estimate_activation_peak
from trimtab.planner.vllm_attention import AttentionChoice, choose_attention_backend
from trimtab.planner.vllm_budget import CONTEXT_BYTES, MemoryRequest, MemoryTerm, RankBudget
from trimtab.planner.vllm_cuda_graphs import CudaGraphMemory, estimate_cuda_graph_memory
from trimtab.planner.vllm_kv_cache import KvCacheLayout, KvCacheRequest, estimate_kv_cache_layout
from trimtab.planner.vllm_kv_capacity import KvCacheCapacity, estimate_kv_cache_capacity
from trimtab.planner.vllm_settings import VllmSettings
from trimtab.planner.vllm_versions import VersionLine
from trimtab.planner.vllm_weights import RankWeights, WeightSettings, estimate_weights
from trimtab.units import GIB, MIB

__all__ = ["Verdict", "VllmMemory", "estimate_vllm_memory", "make_weight_settings"]

Verdict: TypeAlias = Literal["fits", "tight", "does_not_fit"]


@dataclass(frozen=True, slots=True, kw_only=True)
class VllmMemory:
    """What a start of this replica will look like.

    ``per_gpu`` and ``terms`` are parallel to the request's cards, ``weights`` to its pipeline stages.
    ``runtime_peak_bytes`` is what the fullest card holds when a full batch of a full-length prompt runs,
    everything included.
    ``load_peak_bytes`` is the most allocated while weights load. ``warm_kv_cache_bytes`` is the
    KV cache of a later start, when the compile cache is filled. ``shortfall_bytes`` is what the
    fullest card lacks (0 when it fits).
    """

    per_gpu: tuple[GpuBudget, ...]
    terms: tuple[tuple[MemoryTerm, ...], ...]
    layout: KvCacheLayout
    capacity: KvCacheCapacity
    attention: AttentionChoice
    activation: ActivationPeak
    graphs: CudaGraphMemory
    weights: tuple[RankWeights, ...]
    load_peak_bytes: int
    runtime_peak_bytes: int
    warm_kv_cache_bytes: int
    shortfall_bytes: int
    verdict: Verdict
    reason: str
    warnings: tuple[PlanWarning, ...] = ()

    @property
    def fits(self) -> bool:
        """It starts and holds one request of full length, band not counted."""
        return self.verdict != "does_not_fit"


def make_weight_settings(settings: VllmSettings, gpu: Gpu, line: VersionLine) -> WeightSettings:
    """The weight model's question for these settings; equal questions may share one answer."""
    return WeightSettings(
        tensor_parallel_size=settings.tensor_parallel_size,
        pipeline_parallel_size=settings.pipeline_parallel_size,
        expert_parallel_size=settings.expert_parallel_size,
        engine_version=line.number,
        compute_capability=gpu.compute_capability or (9, 0),
        is_language_model_only=settings.mm_limits_are_zero,
        is_encoder_replicated=settings.mm_encoder_tp_mode == "data",
        num_speculative_tokens=settings.num_speculative_tokens,
    )


def estimate_vllm_memory(request: MemoryRequest) -> VllmMemory:
    """The whole account. Cards may differ; each stage's blocks are its smallest card's."""
    settings, line, facts = request.settings, request.line, request.facts
    lead = min(request.gpus, key=lambda gpu: gpu.compute_capability or (9, 0))
    capability = lead.compute_capability or (9, 0)
    attention = choose_attention_backend(facts, settings, capability, line)
    weights = request.weights or estimate_weights(
        facts, request.parts, make_weight_settings(settings, lead, line)
    )
    graphs = estimate_cuda_graph_memory(facts, settings, line, lead, attention_backend=attention.backend)
    stages = settings.pipeline_parallel_size
    peaks = tuple(
        estimate_activation_peak(facts, settings, lead, line, stage=stage) for stage in range(stages)
    )
    made: dict[tuple[int, int, int | None, str], RankBudget] = {}
    ranks: list[RankBudget] = []
    for stage, gpu in _stage_of_each(request):
        key = (stage, gpu.total_bytes, gpu.free_bytes, gpu.spec)
        if key not in made:
            made[key] = RankBudget(request, gpu, weights[stage], peaks[stage], graphs, attention)
        ranks.append(made[key])
    layout = estimate_kv_cache_layout(
        facts,
        KvCacheRequest(settings=settings, capability=capability, line=line, attention=attention),
    )
    available = tuple(
        min(rank.kv_cache_bytes for rank in ranks if rank.stage == stage) for stage in range(stages)
    )
    capacity = estimate_kv_cache_capacity(layout, available, facts=facts, settings=settings, line=line)
    return _conclude(replace(request, weights=weights), ranks, layout, capacity, attention)


def _stage_of_each(request: MemoryRequest) -> list[tuple[int, Gpu]]:
    width = request.settings.tensor_parallel_size
    last = request.settings.pipeline_parallel_size - 1
    return [(min(index // width, last), gpu) for index, gpu in enumerate(request.gpus)]


def _conclude(
    request: MemoryRequest,
    ranks: list[RankBudget],
    layout: KvCacheLayout,
    capacity: KvCacheCapacity,
    attention: AttentionChoice,
) -> VllmMemory:
    fullest = min(ranks, key=lambda rank: rank.kv_cache_bytes - capacity.needed_bytes)
    runtime = max(rank.runtime_bytes for rank in ranks)
    load = max(rank.weights.load_peak_bytes for rank in ranks)
    verdict, reason, shortfall = _judge(request, ranks, layout, capacity)
    warm = fullest.peak.peak_bytes - fullest.peak.warm_peak_bytes
    return VllmMemory(
        per_gpu=tuple(rank.budget for rank in ranks),
        terms=tuple(rank.terms for rank in ranks),
        layout=layout,
        capacity=capacity,
        attention=attention,
        activation=fullest.peak,
        graphs=fullest.graphs,
        weights=request.weights or (),
        load_peak_bytes=load,
        runtime_peak_bytes=runtime,
        warm_kv_cache_bytes=fullest.kv_cache_bytes
        + (0 if request.settings.kv_cache_memory_bytes is not None else warm),
        shortfall_bytes=shortfall,
        verdict=verdict,
        reason=reason,
        warnings=_warn(request, ranks, capacity),
    )


def _gib(nbytes: int) -> str:
    return f"{nbytes / GIB:.2f} GiB"


def _judge(
    request: MemoryRequest, ranks: list[RankBudget], layout: KvCacheLayout, capacity: KvCacheCapacity
) -> tuple[Verdict, str, int]:
    """(verdict, why in one clause, bytes that the fullest card lacks)."""
    need = (capacity.blocks_per_request + 1) * max(layout.bytes_per_block)
    for rank in ranks:
        reason = _refuse_card(rank)
        if reason:
            return "does_not_fit", reason, max(1, *(_shortfall(rank, need) for rank in ranks))
    poorest = min(ranks, key=lambda rank: rank.kv_cache_bytes)
    if request.settings.max_model_len is None and capacity.starts and capacity.max_model_len_that_fits:
        if not capacity.holds_one_request:
            return "tight", _announce(capacity), 0
    elif not capacity.starts or not capacity.holds_one_request:
        reason = (
            f"one request of {capacity.max_model_len} tokens needs {_gib(need)} of KV cache per GPU, "
            f"{_gib(max(0, poorest.kv_cache_bytes))} are left; the longest that fits is "
            f"{capacity.max_model_len_that_fits} tokens"
        )
        return "does_not_fit", reason, max(1, *(_shortfall(rank, need) for rank in ranks))
    is_pinned = request.settings.kv_cache_memory_bytes is not None
    room = poorest.kv_cache_bytes - need
    if room < poorest.error_bytes and not is_pinned:
        band = _gib(poorest.error_bytes)
        return "tight", f"{_gib(room)} of KV cache to spare, within the band of +-{band}", 0
    free_after = min(rank.gpu.room_bytes - rank.later_runtime_bytes for rank in ranks)
    if free_after < 0:
        return "tight", f"a full batch at run time would pass the card's memory by {_gib(-free_after)}", 0
    return "fits", f"{_gib(room)} of KV cache beyond one full-length request", 0


def _announce(capacity: KvCacheCapacity) -> str:
    """An automatic length counts the null block as room, which holds nothing (before 0.30)."""
    fits = capacity.max_model_len_that_fits
    return (
        f"left to itself the engine announces {capacity.max_model_len} tokens, of which {fits} fit; "
        f"pin max_model_len={fits}"
    )


def _shortfall(rank: RankBudget, need: int) -> int:
    """Bytes this card lacks for its parts and one request, or to be free at start."""
    requested, gpu = rank.budget.requested_bytes, rank.gpu
    if requested is None:
        return max(_pinned_bytes(rank) - gpu.total_bytes, need - rank.kv_cache_bytes)
    lack = rank.inside_bytes + need - requested
    return max(lack, requested + CONTEXT_BYTES - gpu.room_bytes)


def _pinned_bytes(rank: RankBudget) -> int:
    """All of a card with a pinned cache; compiling is over when the cache is allocated."""
    over = rank.peak.peak_bytes - rank.peak.warm_peak_bytes
    return rank.inside_bytes - over + rank.kv_cache_bytes + rank.outside_bytes


def _refuse_card(rank: RankBudget) -> str:
    """Why this card stops the start: loading, free memory, no room for a cache; empty when it doesn't."""
    budget, gpu = rank.budget, rank.gpu
    total = _gib(gpu.total_bytes)
    if rank.weights.load_peak_bytes + CONTEXT_BYTES > gpu.total_bytes:
        return _refuse_loading(rank, total)
    if budget.requested_bytes is None:
        if _pinned_bytes(rank) <= gpu.total_bytes:
            return ""
        rest = _gib(_pinned_bytes(rank) - budget.kv_cache_bytes)
        return f"{_gib(budget.kv_cache_bytes)} of KV cache and {rest} of the rest exceed the card's {total}"
    # The engine looks once its own context exists.
    free = gpu.room_bytes
    if free < budget.requested_bytes + CONTEXT_BYTES:
        are_free = (
            f"only {_gib(free)} of {total} are free" if free < gpu.total_bytes else f"{total} are there"
        )
        asked = f"{_gib(budget.requested_bytes)} are asked for"
        return f"{are_free}, {asked} beside a context of {_gib(CONTEXT_BYTES)}"
    if budget.kv_cache_bytes <= 0:
        return (
            f"no memory is left for a KV cache: {_gib(rank.inside_bytes)} are needed of "
            f"{_gib(budget.requested_bytes)} asked for"
        )
    return ""


def _refuse_loading(rank: RankBudget, total: str) -> str:
    """Weights that exceed the card for good, or only while they are converted."""
    if rank.weights.weights_bytes + CONTEXT_BYTES > rank.gpu.total_bytes:
        return f"weights of {_gib(rank.weights.weights_bytes)} and a context exceed the card's {total}"
    return f"loading needs {_gib(rank.weights.load_peak_bytes)} for a moment, beyond the card's {total}"


def _why_it_starts(line: VersionLine) -> str:
    if line.prices_first_group_only:
        return "0.17 prices the first cache group only (v1/core/kv_cache_utils.py)"
    return "before 0.30 the null block counts as room (v1/core/kv_cache_utils.py)"


def _warn(
    request: MemoryRequest, ranks: list[RankBudget], capacity: KvCacheCapacity
) -> tuple[PlanWarning, ...]:
    found: list[PlanWarning] = []
    if request.version.warning is not None:
        found.append(request.version.warning)
    peak = ranks[0].peak
    gain = peak.peak_bytes - peak.warm_peak_bytes
    if gain > 64 * MIB:
        found.append(
            PlanWarning(
                code="first_start_has_less_cache",
                text=f"the first start has {_gib(gain)} less KV cache than later ones: compiling briefly "
                "copies the embedding table",
                source="allocation traces and a second start, vLLM 0.25.1 on H200, 2026-11-30",
            )
        )
    if capacity.starts and not capacity.holds_one_request:
        found.append(
            PlanWarning(
                code="starts_but_cannot_serve",
                text=f"vLLM {request.version.version} starts, but a request of "
                f"{capacity.max_model_len} tokens would never be scheduled; "
                f"the longest is {capacity.max_model_len_that_fits}",
                source=_why_it_starts(request.line),
            )
        )
    found += _warn_of_runtime(ranks)
    return tuple(found)


def _warn_of_runtime(ranks: list[RankBudget]) -> list[PlanWarning]:
    """A card that a full batch may pass; on later starts alone, a pinned cache is the way out."""
    over = max(rank.later_runtime_bytes - rank.gpu.total_bytes for rank in ranks)
    if over <= 0:
        return []
    first = max(rank.runtime_bytes - rank.gpu.total_bytes for rank in ranks)
    cache = min(rank.kv_cache_bytes for rank in ranks)
    if first <= 0 < cache:
        text = (
            f"a full batch at run time may exceed the card by {_gib(over)} after a start that finds the "
            f"compile cache filled and takes a larger KV cache; engine_args kv_cache_memory_bytes: {cache} "
            "keeps every start at the first one's, which leaves room"
        )
    else:
        text = f"a full batch at run time may exceed the card by {_gib(over)}; lower gpu_memory_utilization"
    return [
        PlanWarning(
            code="runtime_peak_exceeds_card", text=text, source="kernels and buffers that profiling skips"
        )
    ]
