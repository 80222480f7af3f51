"""Pure. What one rank reads and computes for a token: the model's side of the speed model.

Counted from ``ModelParts`` (so the quantisation mask is honoured) and the attention geometry.
Nothing here depends on a card; ``SpeedProfile`` is worth keeping, it holds for every load.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, replace
from typing import Literal, TypeAlias

from trimtab.core.model_facts import DTYPE_BYTES, LayerFacts, ModelFacts, QuantScheme
from trimtab.core.model_parts import ExpertsPart, LinearPart, ModelParts, ParameterPart
from trimtab.planner.vllm_shards import expert_shape, linear_shape, parameter_elements

__all__ = [
    "ExpertLoad",
    "Interconnect",
    "MatmulLoad",
    "SpeedProfile",
    "SpeedSettings",
    "estimate_speed_profile",
]

Interconnect: TypeAlias = Literal["nvlink", "pcie_p2p", "pcie"]

_STATE_BYTES = 4
"""Bytes of one element of a recurrent state: float32, the default of Qwen3.5's mamba_ssm_dtype."""
_CHUNK_TOKENS = 64
"""Tokens per chunk of the gated delta rule's prefill kernels (flash-linear-attention, vLLM 0.25.1)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SpeedSettings:
    """What speed depends on among an engine's arguments; vLLM's names and defaults.

    ``attention_parallel_size`` is the ranks one sequence's attention is cut over: the tensor
    parallel size, or 1 where every rank serves its own sequences (data-parallel attention).
    ``max_num_seqs`` and ``kv_cache_tokens`` bound the sequences that decode together; None means
    that nothing is known to bound them. ``interconnect`` None is what cards of the kind usually
    have. ``num_speculative_tokens`` only flags the estimate.
    """

    tensor_parallel_size: int = 1
    pipeline_parallel_size: int = 1
    attention_parallel_size: int | None = None
    expert_parallel_size: int = 1
    kv_cache_dtype: str = "auto"
    max_num_batched_tokens: int = 8192
    max_num_seqs: int | None = None
    kv_cache_tokens: int | None = None
    interconnect: Interconnect | None = None
    num_speculative_tokens: int = 0

    @property
    def attention_ranks(self) -> int:
        """Ranks that share one sequence."""
        return self.attention_parallel_size or self.tensor_parallel_size


@dataclass(frozen=True, slots=True, kw_only=True)
class MatmulLoad:
    """Linears of one width together: bytes read per step, operations per token."""

    weight_bytes: float = 0.0
    flops_per_token: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class ExpertLoad:
    """Routed experts of all layers together.

    ``bytes_each`` and ``flops_each`` are of one expert index over every layer, as this rank holds
    it; ``num_local`` is how many indices the rank holds of ``num_experts``; a token visits ``top_k``;
    ``width`` is an expert's intermediate size on this rank.
    """

    bits: int = 16
    bytes_each: float = 0.0
    flops_each: float = 0.0
    num_local: float = 0.0
    num_experts: float = 1.0
    top_k: float = 0.0
    width: float = 1.0


@dataclass(frozen=True, slots=True, kw_only=True)
class SpeedProfile:
    """One rank's work. Bytes and operations are floats: they are only ever multiplied.

    ``linear_16``, ``linear_8``, ``linear_4`` are Linears by stored bits; ``four_bit`` says what the
    4-bit ones are: ``weight_only`` (int4), ``nvfp4`` or ``mxfp4``. ``head`` is the output head, run for
    sampled tokens only. ``kv_bytes_per_token`` and ``attention_flops`` (per token and token of
    context) cover layers that see the whole context, the ``window_*`` fields those that see
    ``window_tokens``. ``state_bytes`` is read and written per sequence and step; ``recurrent_flops`` are
    a prompt token's in recurrent layers. Layer counts are by mechanism, over all pipeline stages;
    ``weight_bytes`` is what one rank of one stage holds.
    """

    linear_16: MatmulLoad
    linear_8: MatmulLoad
    linear_4: MatmulLoad
    experts: ExpertLoad
    head: MatmulLoad
    four_bit: str
    kv_bytes_per_token: float
    window_kv_bytes_per_token: float
    window_tokens: float
    attention_flops: float
    window_attention_flops: float
    state_bytes: float
    recurrent_flops: float
    num_layers: float
    num_attention_layers: float
    num_latent_layers: float
    num_linear_layers: float
    num_moe_layers: float
    num_dense_layers: float
    hidden_size: float
    weight_bytes: float


def estimate_speed_profile(facts: ModelFacts, parts: ModelParts, settings: SpeedSettings) -> SpeedProfile:
    """Count one rank's bytes and operations; the vision tower and the draft head are left out."""
    tally = _Tally(settings)
    for linear in parts.linears:
        if linear.part == "language":
            tally.add_linear(linear)
    for experts in parts.experts:
        if experts.part == "language":
            tally.add_experts(experts)
    for parameter in parts.parameters:
        if parameter.part == "language":
            tally.add_parameter(parameter)
    if facts.has_tied_embeddings:
        tally.add_tied_head(facts)
    return _finish(facts, settings, tally)


class _Tally:
    """Running sums over parts."""

    def __init__(self, settings: SpeedSettings) -> None:
        self.settings = settings
        self.linears = {4: MatmulLoad(), 8: MatmulLoad(), 16: MatmulLoad()}
        self.head = MatmulLoad()
        self.experts = ExpertLoad()
        self.four_bit = "weight_only"

    def add_linear(self, linear: LinearPart) -> None:
        """Attention follows the attention ranks, the rest the tensor parallel size."""
        is_attention = "attn" in linear.name or "lm_head" in linear.name
        ranks = self.settings.attention_ranks if is_attention else self.settings.tensor_parallel_size
        rows, columns = linear_shape(linear, ranks)
        bits = self._note(linear.scheme)
        load = _load(rows, columns, linear.scheme, len(linear.layers))
        if "lm_head" in linear.name:
            self.head = load
        else:
            self.linears[bits] = _sum(self.linears[bits], load)

    def add_experts(self, experts: ExpertsPart) -> None:
        """Layers of different width add up in one load, so coverage is taken once."""
        settings = self.settings
        local, hidden, inner = expert_shape(
            experts, settings.tensor_parallel_size, settings.expert_parallel_size
        )
        bits = self._note(experts.scheme)
        load = _load(3 * inner, hidden, experts.scheme, len(experts.layers))
        known = self.experts
        self.experts = ExpertLoad(
            bits=bits,
            bytes_each=known.bytes_each + load.weight_bytes,
            flops_each=known.flops_each + load.flops_per_token,
            num_local=local,
            num_experts=experts.num_experts,
            top_k=known.top_k,
            width=float(inner),
        )

    def add_parameter(self, parameter: ParameterPart) -> None:
        """Routers, convolutions and norms are 16-bit reads; an embedding row costs nothing."""
        if "embed_tokens" in parameter.name:
            return
        size = DTYPE_BYTES[parameter.engine_dtype or parameter.dtype]
        elements = parameter_elements(parameter, self.settings.attention_ranks) * len(parameter.layers)
        load = MatmulLoad(weight_bytes=elements * size, flops_per_token=2.0 * elements)
        if "lm_head" in parameter.name:
            self.head = load
        else:
            self.linears[16] = _sum(self.linears[16], load)

    def add_tied_head(self, facts: ModelFacts) -> None:
        """The embedding matrix read as head."""
        elements = facts.vocab_size * facts.hidden_size / self.settings.attention_ranks
        self.head = MatmulLoad(
            weight_bytes=elements * DTYPE_BYTES[facts.dtype], flops_per_token=2.0 * elements
        )

    def _note(self, scheme: QuantScheme | None) -> int:
        bits = _stored_bits(scheme)
        if scheme is not None and scheme.format in {"nvfp4", "mxfp4"} and not scheme.is_weight_only:
            self.four_bit = scheme.format
        elif scheme is not None and scheme.format == "mxfp4":
            self.four_bit = "mxfp4"
        return bits


def _stored_bits(scheme: QuantScheme | None) -> int:
    if scheme is None or scheme.format == "bf16":
        return 16
    return 4 if scheme.bits == 4 else 8


def _load(rows: int, columns: int, scheme: QuantScheme | None, layers: int) -> MatmulLoad:
    elements = float(rows) * columns * layers
    return MatmulLoad(weight_bytes=elements * _bytes_each(scheme), flops_per_token=2.0 * elements)


def _bytes_each(scheme: QuantScheme | None) -> float:
    """Bytes of one weight with its share of scales and zero points."""
    if scheme is None or scheme.format == "bf16":
        return 2.0
    size = scheme.bits / 8
    if scheme.format in {"nvfp4", "mxfp4"}:
        return size + 1.0 / (scheme.group_size or (16 if scheme.format == "nvfp4" else 32))
    if scheme.group_size > 0:
        size += (2.0 if scheme.is_symmetric else 2.0 + scheme.bits / 8) / scheme.group_size
    return size


def _sum(left: MatmulLoad, right: MatmulLoad) -> MatmulLoad:
    return MatmulLoad(
        weight_bytes=left.weight_bytes + right.weight_bytes,
        flops_per_token=left.flops_per_token + right.flops_per_token,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class _Attention:
    """Sums over layers: cache bytes and operations, whole context and windowed."""

    kv_bytes: float = 0.0
    flops: float = 0.0
    window_kv_bytes: float = 0.0
    window_flops: float = 0.0
    window_tokens: float = 0.0
    state_bytes: float = 0.0
    recurrent_flops: float = 0.0


def _attend(facts: ModelFacts, settings: SpeedSettings) -> _Attention:
    total = _Attention()
    size = 1 if settings.kv_cache_dtype.startswith(("fp8", "int8")) else 2
    for layer, count in Counter(facts.layers).items():
        ranks = settings.attention_ranks
        if layer.kind == "linear_attention":
            total = replace(
                total,
                state_bytes=total.state_bytes + _state_bytes(layer, ranks) * count,
                recurrent_flops=total.recurrent_flops + _recurrent_flops(layer, ranks) * count,
            )
            continue
        kv, flops = _cache_cost(layer, ranks, size)
        if layer.kind == "sliding":
            total = replace(
                total,
                window_kv_bytes=total.window_kv_bytes + kv * count,
                window_flops=total.window_flops + flops * count,
                window_tokens=float(layer.sliding_window_tokens),
            )
        else:
            total = replace(total, kv_bytes=total.kv_bytes + kv * count, flops=total.flops + flops * count)
    return total


def _cache_cost(layer: LayerFacts, ranks: int, size: int) -> tuple[float, float]:
    """(cache bytes per token, operations per token and token of context) of one layer on one rank."""
    heads = max(1.0, layer.num_heads / ranks)
    if layer.kind == "mla":
        latent = layer.kv_lora_rank + layer.qk_rope_head_dim
        width = layer.qk_nope_head_dim + layer.qk_rope_head_dim + layer.v_head_dim
        return float(latent * size), 2.0 * heads * width
    kv_heads = max(1, layer.num_kv_heads // ranks)
    width = layer.head_dim + layer.v_head_dim
    return float(kv_heads * width * size), 2.0 * heads * width


def _state_bytes(layer: LayerFacts, ranks: int) -> float:
    """Read and write of one sequence's state: the recurrent matrix and the convolution's tail."""
    values = layer.linear_num_value_heads * layer.linear_value_head_dim
    keys = layer.linear_num_key_heads * layer.linear_key_head_dim
    ssm = values * layer.linear_key_head_dim * _STATE_BYTES
    tail = (2 * keys + values) * max(0, layer.linear_conv_kernel - 1) * 2
    return 2.0 * (ssm + tail) / ranks


def _recurrent_flops(layer: LayerFacts, ranks: int) -> float:
    """Operations per prompt token of the chunked delta rule: state update, read-out, in-chunk products."""
    key, value = layer.linear_key_head_dim, layer.linear_value_head_dim
    products = 3.0 * key * value + 2.0 * _CHUNK_TOKENS * (key + value)
    return 2.0 * layer.linear_num_value_heads * products / ranks


def _finish(facts: ModelFacts, settings: SpeedSettings, tally: _Tally) -> SpeedProfile:
    kinds = Counter(layer.kind for layer in facts.layers)
    moe = [layer.moe for layer in facts.layers if layer.moe is not None]
    experts = replace(tally.experts, top_k=float(moe[-1].num_experts_per_token)) if moe else tally.experts
    attention = _attend(facts, settings)
    stages = settings.pipeline_parallel_size
    linears = tally.linears
    held = sum(load.weight_bytes for load in linears.values()) + experts.bytes_each * experts.num_local
    rows = 0 if facts.has_tied_embeddings else facts.vocab_size
    embedding = rows * facts.hidden_size * DTYPE_BYTES[facts.dtype] / settings.attention_ranks
    return SpeedProfile(
        linear_16=linears[16],
        linear_8=linears[8],
        linear_4=linears[4],
        experts=experts,
        head=tally.head,
        four_bit=tally.four_bit,
        kv_bytes_per_token=attention.kv_bytes,
        window_kv_bytes_per_token=attention.window_kv_bytes,
        window_tokens=attention.window_tokens,
        attention_flops=attention.flops,
        window_attention_flops=attention.window_flops,
        state_bytes=attention.state_bytes,
        recurrent_flops=attention.recurrent_flops,
        num_layers=float(facts.num_layers),
        num_attention_layers=float(kinds["full_attention"] + kinds["sliding"]),
        num_latent_layers=float(kinds["mla"]),
        num_linear_layers=float(kinds["linear_attention"]),
        num_moe_layers=float(len(moe)),
        num_dense_layers=float(sum(1 for layer in facts.layers if layer.intermediate_size)),
        hidden_size=float(facts.hidden_size),
        weight_bytes=(held + tally.head.weight_bytes + embedding) / stages,
    )
