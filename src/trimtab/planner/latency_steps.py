"""Pure. Seconds of one engine step and of one prompt, from a rank's work and a card's rates.

A roofline per group of kernels (bytes over bandwidth against operations over rate, blended
smoothly), plus what does not shrink with the work: kernel latency per layer, one all-reduce per
sharded projection, the engine's own host time. Only plain arithmetic and ``least``/``most`` are used, so
that the fit (benchmarks/speed) runs the same functions over whole tables.
"""

from __future__ import annotations

from dataclasses import dataclass

from trimtab.planner.latency_profile import MatmulLoad, SpeedProfile

__all__ = [
    "CardRates",
    "CardTiming",
    "EngineTiming",
    "Load",
    "estimate_mixed_s",
    "estimate_own_prefill_s",
    "estimate_prefill_s",
    "estimate_step_terms",
    "least",
    "most",
]

_SHARPNESS = 3.0
"""Exponent that blends the two sides of a roofline: at the knee the sum is 1.26 times either side."""

least = min
most = max


@dataclass(frozen=True, slots=True, kw_only=True)
class CardRates:
    """Peak rates of one card: bytes/s, and operations/s at each stored width.

    ``flops_4`` is the 16-bit rate where 4-bit weights are unpacked first.
    """

    bandwidth: float
    flops_16: float
    flops_8: float
    flops_4: float


@dataclass(frozen=True, slots=True, kw_only=True)
class CardTiming:
    """Fitted figures of one class of cards. Efficiencies are shares of the peak; latencies seconds.

    ``read`` is for Linears, ``read_experts`` for routed experts, ``read_cache`` for the KV cache;
    ``unpack`` is 4-bit weights widened per 16-bit operation; ``compute_*`` are for wide matmuls,
    ``compute_experts`` for grouped ones (halved at an expert width of ``narrow_width``),
    ``compute_attention`` for prompt attention; ``*_layer_s`` is what one layer of a kind takes
    however little it does; ``linear_prompt_s`` what gated delta nets take the host per pass over a
    prompt, while the card works along; ``linear_scan_s`` what one token of one of their layers takes
    because a sequence's chunks follow one another. An all-reduce takes ``reduce_s`` between two
    ranks, ``reduce_growth`` of that more per further rank (1 in a ring over PCIe), and the time of
    its bytes.
    """

    read: float
    read_experts: float
    read_cache: float
    unpack: float
    compute_16: float
    compute_8: float
    compute_4: float
    compute_experts: float
    narrow_width: float
    compute_attention: float
    attention_layer_s: float
    latent_layer_s: float
    linear_layer_s: float
    moe_layer_s: float
    dense_layer_s: float
    prefill_layer_s: float
    linear_prompt_s: float
    linear_scan_s: float
    reduce_s: float
    reduce_growth: float
    reduce_bytes_per_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineTiming:
    """Fitted figures of the engine itself, alike on every card.

    ``step_s`` and ``sequence_s`` are host time per step and per sequence in it; ``request_s`` and
    ``prompt_token_s`` what a request and a prompt token cost before the first step;
    ``mixed_share`` the part of a prompt's time that a running decode feels; ``steps_waited`` the
    steps between arrival and being scheduled, and from the step to the client; ``burst_share`` the
    part of the opening burst (all users at once, ten requests each) that a mean TTFT carries;
    ``queue_share`` scales the wait behind other prompts; ``coverage`` is the exponent of tokens that
    counts for experts touched (below 1: tokens route alike); ``occupancy`` the mean cache of a
    sequence against prompt plus half the answer.
    """

    step_s: float
    sequence_s: float
    request_s: float
    prompt_token_s: float
    mixed_share: float
    steps_waited: float
    burst_share: float
    queue_share: float
    coverage: float
    occupancy: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Load:
    """What one step serves: ``sequences`` over all ranks, each with ``context_tokens`` of its own.

    ``shared_tokens`` before them are common to all (vLLM's cascade attention reads those once).
    """

    sequences: float
    context_tokens: float
    shared_tokens: float
    tensor_parallel_size: float
    attention_groups: float


def _roof(read_s: float, compute_s: float) -> float:
    blended: float = (read_s**_SHARPNESS + compute_s**_SHARPNESS) ** (1.0 / _SHARPNESS)
    return blended


def _matmul(load: MatmulLoad, tokens: float, rates: tuple[float, float]) -> float:
    """Seconds of one group of Linears; ``rates`` are effective bytes/s and operations/s."""
    return _roof(load.weight_bytes / rates[0], tokens * load.flops_per_token / rates[1])


def _linears_s(profile: SpeedProfile, tokens: float, card: CardRates, timing: CardTiming) -> float:
    read = card.bandwidth * timing.read
    four = profile.linear_4
    return (
        _matmul(profile.linear_16, tokens, (read, card.flops_16 * timing.compute_16))
        + _matmul(profile.linear_8, tokens, (read, card.flops_8 * timing.compute_8))
        + _roof(
            _roof(four.weight_bytes / read, _unpack_s(four.flops_per_token, card, timing)),
            tokens * four.flops_per_token / (card.flops_4 * timing.compute_4),
        )
    )


def _unpack_s(flops_per_token: float, card: CardRates, timing: CardTiming) -> float:
    """Turning 4-bit weights into 16 bits, once per step, at a rate that goes with the card's 16-bit one."""
    is_unpacked = (card.flops_4 == card.flops_16) * 1.0
    return is_unpacked * flops_per_token / 2.0 / (card.flops_16 * timing.unpack)


def _experts_s(
    profile: SpeedProfile, tokens: float, card: CardRates, timing: CardTiming, coverage: float
) -> float:
    """Experts touched by ``tokens`` are read once each; every visit computes.

    Narrow slices fill tiles badly: the rate falls as width / (width + narrow_width).
    """
    experts = profile.experts
    missed = 1.0 - experts.top_k / experts.num_experts
    touched = experts.num_local * (1.0 - missed ** (tokens**coverage))
    visits = tokens * experts.top_k * experts.num_local / experts.num_experts
    wide = experts.width / (experts.width + timing.narrow_width)
    rate = _rate_of(experts.bits, card) * timing.compute_experts * wide
    is_4 = (experts.bits == 4) * 1.0
    read = touched * experts.bytes_each / (card.bandwidth * timing.read_experts)
    unpack = is_4 * touched * _unpack_s(experts.flops_each, card, timing)
    return _roof(_roof(read, unpack), visits * experts.flops_each / rate)


def _rate_of(bits: int, card: CardRates) -> float:
    """Operations per second at a stored width; weighted sums so that tables work too."""
    is_16, is_8, is_4 = (bits == 16) * 1.0, (bits == 8) * 1.0, (bits == 4) * 1.0
    return is_16 * card.flops_16 + is_8 * card.flops_8 + is_4 * card.flops_4


def _reduce_s(profile: SpeedProfile, tokens: float, timing: CardTiming, ranks: float) -> float:
    """Two all-reduces per layer of ``tokens`` hidden vectors in 16 bits; none on one rank."""
    is_split = (ranks > 1) * 1.0
    message = tokens * profile.hidden_size * 2.0
    moved = 2.0 * (ranks - 1.0) / ranks * message
    latency = timing.reduce_s * (1.0 + timing.reduce_growth * most(ranks - 2.0, 0.0))
    return is_split * 2.0 * profile.num_layers * (latency + moved / timing.reduce_bytes_per_s)


def _layers_s(profile: SpeedProfile, timing: CardTiming) -> float:
    return (
        profile.num_attention_layers * timing.attention_layer_s
        + profile.num_latent_layers * timing.latent_layer_s
        + profile.num_linear_layers * timing.linear_layer_s
        + profile.num_moe_layers * timing.moe_layer_s
        + profile.num_dense_layers * timing.dense_layer_s
    )


def estimate_step_terms(
    profile: SpeedProfile, load: Load, card: CardRates, timing: CardTiming, engine: EngineTiming
) -> dict[str, float]:
    """Seconds of one decode step by cause: weights, experts, head, cache, all-reduce, layers, host."""
    tokens = load.sequences
    own = tokens / load.attention_groups
    windowed = least(load.context_tokens, profile.window_tokens) * profile.window_kv_bytes_per_token
    shared = load.shared_tokens * profile.kv_bytes_per_token
    cache = shared + own * (load.context_tokens * profile.kv_bytes_per_token + windowed + profile.state_bytes)
    head_rates = (card.bandwidth * timing.read, card.flops_16 * timing.compute_16)
    return {
        "weights": _linears_s(profile, tokens, card, timing),
        "experts": _experts_s(profile, tokens, card, timing, engine.coverage),
        "head": _matmul(profile.head, own, head_rates),
        "cache": cache / (card.bandwidth * timing.read_cache),
        "all-reduce": _reduce_s(profile, tokens, timing, load.tensor_parallel_size),
        "kernel latency": _layers_s(profile, timing),
        "host": engine.step_s + engine.sequence_s * tokens,
    }


def estimate_prefill_s(
    profile: SpeedProfile,
    prompt: tuple[float, float, float],
    card: CardRates,
    timing: CardTiming,
    ranks: float,
) -> tuple[float, float]:
    """(matmuls and all-reduces, attention) seconds of one prompt on an idle engine.

    ``prompt`` is (tokens to compute, tokens already cached, tokens per step); a long prompt is cut
    into steps, each reading the weights again.
    """
    tokens, cached, chunk = prompt
    width = least(tokens, chunk)
    matmuls = most(tokens / chunk, 1.0) * _pass_s(profile, width, card, timing, ranks)
    seen = cached + tokens / 2.0
    operations = tokens * (
        profile.attention_flops * seen
        + profile.window_attention_flops * least(seen, profile.window_tokens)
        + profile.recurrent_flops
    )
    return matmuls, operations / (card.flops_16 * timing.compute_attention)


def estimate_own_prefill_s(
    profile: SpeedProfile, prompt: tuple[float, float], work_s: float, timing: CardTiming
) -> float:
    """Seconds of a prompt of (tokens, tokens per step) whose kernels take ``work_s``, launches included.

    Gated delta nets are launched outside of any graph: on H200 a prompt of 512 tokens took both 27B (48
    such layers) and 35B-A3B (30) 0.1 s, a dense model 0.015 s. Their chunks follow one another: 8,192
    tokens took 1.5 times as long in one sequence as in 16 (benchmarks/speed/tables/h200-offline.csv).
    """
    tokens, chunk = prompt
    launches = most(tokens / chunk, 1.0) * least(profile.num_linear_layers, 1.0) * timing.linear_prompt_s
    scan = tokens * profile.num_linear_layers * timing.linear_scan_s
    return _roof(work_s + scan, launches) + profile.num_layers * timing.prefill_layer_s


def estimate_mixed_s(
    profile: SpeedProfile,
    prompt: tuple[float, float],
    running: float,
    card: CardRates,
    timing: CardTiming,
    ranks: float,
) -> float:
    """Seconds that a prompt of (tokens, tokens per step) adds to steps already serving ``running``.

    The weights are read for those anyway, so a short prompt adds little.
    """
    tokens, chunk = prompt
    width = least(tokens, chunk)
    together = _pass_s(profile, width + running, card, timing, ranks)
    alone = _pass_s(profile, running, card, timing, ranks)
    return most(tokens / chunk, 1.0) * (together - alone)


def _pass_s(profile: SpeedProfile, tokens: float, card: CardRates, timing: CardTiming, ranks: float) -> float:
    """Matmuls and all-reduces of one pass over ``tokens``."""
    return (
        _linears_s(profile, tokens, card, timing)
        + _experts_s(profile, tokens, card, timing, 1.0)
        + _reduce_s(profile, tokens, timing, ranks)
    )
