"""Pure. How fast a replica will be: time to first token, time per token, throughput, with a band.

``estimate_speed`` counts the model's bytes and operations once per parallel layout (kept, see
``latency_profile``) and then evaluates a roofline with fitted efficiencies: some tens of
microseconds a call.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass

from trimtab.core.hardware import Gpu
from trimtab.core.model_facts import ModelFacts
from trimtab.core.model_parts import ModelParts
from trimtab.errors import MissingFactError
from trimtab.planner.latency_cards import (
    CardClass,
    card_class,
    choose_interconnect,
    choose_timing,
    make_rates,
)
from trimtab.planner.latency_profile import Interconnect, SpeedProfile, SpeedSettings, estimate_speed_profile
from trimtab.planner.latency_request import Demand, RequestTimes, estimate_request_times, estimate_slots
from trimtab.planner.latency_table import BANDS, ENGINE, PAIR_FACTORS
from trimtab.planner.speed_ratios import SpeedRatio, blend_ratios

__all__ = [
    "Interconnect",
    "SpeedCalibration",
    "SpeedEstimate",
    "SpeedSettings",
    "SpeedTerm",
    "SpeedWorkload",
    "estimate_cache_bytes",
    "estimate_speed",
    "pair_key",
]

_UTILIZATION = 0.9
_OTHER_BYTES = 4.5e9
"""Share of a card that an engine takes by default, and what it keeps besides weights and cache
(activations, graphs, context); only used where the plan's own cache size isn't given."""
_SMALL_CARD_OTHER_SHARE = 0.1
_NO_CACHE_BYTES = 1.0
_UNBOUNDED = 1e9
_KEPT_PROFILES = 256
_UNMEASURED = 1.5
"""How much wider the band of a card is that no measurement backs."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SpeedWorkload:
    """A closed loop: ``concurrency`` users who each send ``requests_per_user`` requests in turn.

    ``cached_tokens`` of the prompt are a prefix-cache hit; ``shared_tokens`` of it are the same for all
    users, so attention reads them once a step. All users start at once, as benchmark
    clients do; their opening burst is part of the mean TTFT. Without ``has_server`` nothing stands
    before the engine: token ids are handed to it in its own process.
    """

    input_tokens: int = 1024
    output_tokens: int = 512
    concurrency: int = 1
    cached_tokens: int = 0
    shared_tokens: int = 0
    requests_per_user: int = 10
    has_server: bool = True


@dataclass(frozen=True, slots=True, kw_only=True)
class SpeedCalibration:
    """Measured over predicted on this very machine (``try``), by load; nothing in it changes nothing."""

    ttft: tuple[SpeedRatio, ...] = ()
    tpot: tuple[SpeedRatio, ...] = ()
    source: str = ""

    def factors_of(self, workload: SpeedWorkload) -> tuple[float, float]:
        """(TTFT factor, TPOT factor) of a load; an idle engine's first token is told by idle ones only."""
        load = workload.concurrency, workload.input_tokens
        idle = tuple(item for item in self.ttft if item.concurrency == 1)
        ttft = idle if workload.concurrency == 1 and idle else self.ttft
        return blend_ratios(ttft, *load), blend_ratios(self.tpot, *load)


@dataclass(frozen=True, slots=True, kw_only=True)
class SpeedTerm:
    """Milliseconds of one decode step that go to one cause."""

    name: str
    ms: float


@dataclass(frozen=True, slots=True, kw_only=True)
class SpeedEstimate:
    """Means over requests. ``tpot_ms`` is (E2E - TTFT) / (output tokens - 1).

    ``output_tokens_per_s_per_user`` is a user's rate once tokens flow (1000 / tpot);
    ``output_tokens_per_s`` is all users' over wall time, TTFT included. ``running_sequences``
    decode together; the other users wait, ``queue_ms`` of it in the TTFT. ``error_ratio`` and
    ``ttft_error_ratio``: four of five measured rows of this kind lay within +- that share of the
    prediction; ``source`` says which measurements those are. ``is_speculative`` marks a plan with
    speculation on, whose gain depends on the text and is not in the figures.
    """

    ttft_ms: float
    tpot_ms: float
    output_tokens_per_s_per_user: float
    output_tokens_per_s: float
    requests_per_s: float
    prefill_tokens_per_s: float
    running_sequences: float
    queue_ms: float
    terms: tuple[SpeedTerm, ...]
    source: str
    error_ratio: float
    ttft_error_ratio: float
    is_speculative: bool = False


def estimate_speed(
    facts: ModelFacts,
    parts: ModelParts,
    settings: SpeedSettings,
    gpus: Sequence[Gpu],
    workload: SpeedWorkload,
    *,
    calibration: SpeedCalibration | None = None,
) -> SpeedEstimate:
    """Speed of one replica on ``gpus`` (the slowest sets the pace) under ``workload``.

    MissingFactError: a card without known bandwidth or operation rate.
    """
    profile = _keep_profile(facts, parts, settings)
    slowest = min(gpus, key=lambda gpu: gpu.memory_bandwidth_bytes_per_s or 0)
    rates = make_rates(slowest, profile.four_bit)
    if rates is None:
        raise MissingFactError(
            f"gpu {slowest.index} ({slowest.name}): memory bandwidth or operation rate isn't known, "
            "so speed cannot be estimated",
            hint="name a catalogue card with --gpus, or give bw= of a custom one",
        )
    kind = card_class(slowest)
    timing = choose_timing(kind, settings.interconnect or choose_interconnect(slowest))
    demand = _make_demand(profile, settings, workload, slowest)
    times = estimate_request_times(profile, demand, rates, timing, ENGINE)
    factors = _factors(facts, profile, slowest, workload, calibration)
    return _finish(times, workload, factors, (slowest.spec, kind), settings)


class _ProfileKey:
    """Facts and parts by identity (hashing every layer costs more than the estimate), layout by value."""

    __slots__ = ("facts", "layout", "parts")

    def __init__(self, facts: ModelFacts, parts: ModelParts, settings: SpeedSettings) -> None:
        self.facts = facts
        self.parts = parts
        self.layout = (
            settings.tensor_parallel_size,
            settings.pipeline_parallel_size,
            settings.attention_parallel_size,
            settings.expert_parallel_size,
            settings.kv_cache_dtype,
        )

    def __hash__(self) -> int:
        return hash((id(self.facts), id(self.parts), self.layout))

    def __eq__(self, other: object) -> bool:
        return (
            isinstance(other, _ProfileKey)
            and self.facts is other.facts
            and self.parts is other.parts
            and self.layout == other.layout
        )


_profiles: OrderedDict[_ProfileKey, SpeedProfile] = OrderedDict()


def _keep_profile(facts: ModelFacts, parts: ModelParts, settings: SpeedSettings) -> SpeedProfile:
    key = _ProfileKey(facts, parts, settings)
    profile = _profiles.get(key)
    if profile is None:
        profile = _profiles[key] = estimate_speed_profile(facts, parts, settings)
        if len(_profiles) > _KEPT_PROFILES:
            _profiles.popitem(last=False)
    return profile


def _make_demand(profile: SpeedProfile, settings: SpeedSettings, workload: SpeedWorkload, gpu: Gpu) -> Demand:
    groups = settings.tensor_parallel_size / settings.attention_ranks
    tokens = workload.input_tokens + workload.output_tokens / 2.0
    cache_bytes = estimate_cache_bytes(profile, gpu)
    if settings.kv_cache_tokens is not None:
        slots = max(1.0, settings.kv_cache_tokens / (tokens * ENGINE.occupancy))
    elif cache_bytes > _NO_CACHE_BYTES:
        slots = estimate_slots(profile, cache_bytes, tokens, groups, ENGINE.occupancy)
    else:
        slots = _UNBOUNDED  # the weights alone fill the card: whoever measured this knew better
    if settings.max_num_seqs is not None:
        slots = min(slots, float(settings.max_num_seqs))
    return Demand(
        input_tokens=float(workload.input_tokens),
        output_tokens=float(workload.output_tokens),
        concurrency=float(workload.concurrency),
        cached_tokens=float(min(workload.cached_tokens, workload.input_tokens - 1)),
        shared_tokens=float(min(workload.shared_tokens, workload.input_tokens - 1)),
        chunk_tokens=float(settings.max_num_batched_tokens),
        slots=slots,
        ranks=float(settings.tensor_parallel_size),
        groups=groups,
        stages=float(settings.pipeline_parallel_size),
        rounds=float(workload.requests_per_user),
        has_server=float(workload.has_server),
    )


def estimate_cache_bytes(profile: SpeedProfile, gpu: Gpu) -> float:
    """A rank's KV cache where no memory plan gave it: a usual utilisation less weights and the rest."""
    other = min(_OTHER_BYTES, gpu.total_bytes * _SMALL_CARD_OTHER_SHARE)
    return max(_NO_CACHE_BYTES, gpu.total_bytes * _UTILIZATION - profile.weight_bytes - other)


def pair_key(facts: ModelFacts, profile: SpeedProfile, card: str) -> tuple[str, int, int, int, str]:
    """What a measured model and card are known by: architecture, layers, width, stored bits, card."""
    if profile.experts.top_k:
        bits = profile.experts.bits
    else:
        bits = 4 if profile.linear_4.weight_bytes else 8 if profile.linear_8.weight_bytes else 16
    return (facts.architecture, facts.num_layers, facts.hidden_size, bits, card)


def _factors(
    facts: ModelFacts,
    profile: SpeedProfile,
    gpu: Gpu,
    workload: SpeedWorkload,
    calibration: SpeedCalibration | None,
) -> tuple[float, float, str]:
    """(TTFT factor, TPOT factor, their source) of this model on this card under this load."""
    if calibration is not None:
        return *calibration.factors_of(workload), calibration.source
    known = PAIR_FACTORS.get(pair_key(facts, profile, gpu.spec))
    if known is not None:
        return known[0], known[1], "this model was measured on this card"
    return 1.0, 1.0, ""


def _band(card: str, kind: CardClass) -> tuple[float, float, str]:
    """(TPOT error, TTFT error, where they are from); wider where nobody measured the card."""
    measured = BANDS.get(card)
    if measured is not None:
        return measured[0], measured[1], f"fitted on measurements; {measured[2]} rows on this card"
    tpot, ttft, rows = BANDS[kind]
    return (
        round(_UNMEASURED * tpot, 2),
        round(_UNMEASURED * ttft, 2),
        f"no measurement backs this card; figures of its class ({kind}, {rows} rows)",
    )


def _finish(
    times: RequestTimes,
    workload: SpeedWorkload,
    factors: tuple[float, float, str],
    card: tuple[str, CardClass],
    settings: SpeedSettings,
) -> SpeedEstimate:
    ttft_factor, tpot_factor, basis = factors
    tpot_s = times.tpot_s * tpot_factor
    queue_s = times.queue_s * tpot_factor
    ttft_s = (times.ttft_s - times.queue_s) * ttft_factor + queue_s
    whole_s = ttft_s + tpot_s * (workload.output_tokens - 1)
    requests_per_s = workload.concurrency / whole_s
    tpot_error, ttft_error, source = _band(*card)
    return SpeedEstimate(
        ttft_ms=ttft_s * 1e3,
        tpot_ms=tpot_s * 1e3,
        output_tokens_per_s_per_user=1.0 / tpot_s,
        output_tokens_per_s=requests_per_s * workload.output_tokens,
        requests_per_s=requests_per_s,
        prefill_tokens_per_s=workload.input_tokens / (ttft_s - queue_s),
        running_sequences=times.running,
        queue_ms=queue_s * 1e3,
        terms=tuple(SpeedTerm(name=name, ms=each * 1e3) for name, each in times.step_terms.items()),
        source=f"{basis}; {source}" if basis else source,
        error_ratio=tpot_error,
        ttft_error_ratio=ttft_error,
        is_speculative=settings.num_speculative_tokens > 0,
    )
