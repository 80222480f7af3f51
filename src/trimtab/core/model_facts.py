"""Pure. What a checkpoint's config says about its model: layers, heads, experts, quantisation mask.

Nouns only; nothing here is derived from an engine. Sizes are elements unless a suffix says
otherwise, counts start with ``num_``. Layers that are alike share one object, so grouping
``ModelFacts.layers`` with a Counter costs nothing.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Literal, TypeAlias

__all__ = [
    "DTYPE_BYTES",
    "FfnKind",
    "LayerFacts",
    "LayerKind",
    "ModelFacts",
    "MoeFacts",
    "MtpFacts",
    "QuantFacts",
    "QuantFormat",
    "QuantScheme",
    "RopeFacts",
    "SafetensorsCheckpoint",
    "TensorFact",
    "TensorPart",
    "VisionFacts",
    "with_basis",
]

LayerKind: TypeAlias = Literal["full_attention", "sliding", "linear_attention", "mla"]
FfnKind: TypeAlias = Literal["dense", "moe"]
QuantFormat: TypeAlias = Literal[
    "bf16", "fp8_block", "fp8_tensor", "awq", "gptq", "compressed_tensors_int4", "nvfp4", "mxfp4"
]
TensorPart: TypeAlias = Literal["language", "vision", "mtp"]

DTYPE_BYTES: dict[str, int] = {
    "bfloat16": 2,
    "float16": 2,
    "float32": 4,
    "BF16": 2,
    "F16": 2,
    "F32": 4,
    "F64": 8,
    "F8_E4M3": 1,
    "F8_E5M2": 1,
    "F8_E8M0": 1,
    "U8": 1,
    "I8": 1,
    "BOOL": 1,
    "I16": 2,
    "U16": 2,
    "I32": 4,
    "U32": 4,
    "I64": 8,
    "U64": 8,
}
"""Bytes of one element, by config name (``bfloat16``) and by safetensors name (``BF16``)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MoeFacts:
    """The routed experts of one layer.

    ``intermediate_size`` is one expert's; ``shared_intermediate_size`` is the sum over shared
    experts (0 without); ``has_shared_expert_gate`` is Qwen's 1 x hidden gate; ``has_bias`` is
    GPT-OSS's biases on expert projections; ``has_router_bias`` covers a correction bias or a
    biased router linear.
    """

    num_experts: int
    num_experts_per_token: int
    intermediate_size: int
    shared_intermediate_size: int = 0
    has_shared_expert_gate: bool = False
    has_bias: bool = False
    has_router_bias: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class LayerFacts:
    """One decoder layer: how it attends (``kind``) and its feed-forward part.

    full_attention and sliding use ``num_heads``, ``num_kv_heads``, ``head_dim``, ``v_head_dim``;
    sliding adds ``sliding_window_tokens``. linear_attention (gated delta net) uses the
    ``linear_*`` fields: its state per sequence is conv ``2*Hk*Dk + Hv*Dv`` by ``kernel - 1`` plus
    ssm ``Hv*Dv*Dk``. mla uses ``num_heads``, ``kv_lora_rank``, ``q_lora_rank`` (0: no
    compression), ``qk_nope_head_dim``, ``qk_rope_head_dim``, ``v_head_dim``.
    ``has_output_gate`` doubles the q projection; ``q_norm_size`` and ``k_norm_size`` are elements
    (0: none; head_dim: per head); ``has_shared_kv`` means v is k (Gemma 4's global layers: no
    v_proj in the checkpoint, the cache still holds both); ``moe`` is None on a dense layer, and
    ``intermediate_size`` is 0 on a layer without a dense part.
    """

    kind: LayerKind
    num_heads: int = 0
    num_kv_heads: int = 0
    head_dim: int = 0
    v_head_dim: int = 0
    sliding_window_tokens: int = 0
    has_output_gate: bool = False
    has_qkv_bias: bool = False
    has_o_bias: bool = False
    has_sinks: bool = False
    q_norm_size: int = 0
    k_norm_size: int = 0
    has_shared_kv: bool = False
    linear_num_key_heads: int = 0
    linear_num_value_heads: int = 0
    linear_key_head_dim: int = 0
    linear_value_head_dim: int = 0
    linear_conv_kernel: int = 0
    q_lora_rank: int = 0
    kv_lora_rank: int = 0
    qk_nope_head_dim: int = 0
    qk_rope_head_dim: int = 0
    intermediate_size: int = 0
    moe: MoeFacts | None = None

    @property
    def ffn(self) -> FfnKind:
        """``moe`` when the layer routes experts, else ``dense``."""
        return "dense" if self.moe is None else "moe"


@dataclass(frozen=True, slots=True, kw_only=True)
class RopeFacts:
    """Rotary embedding: ``rotary_dim`` rotated elements per head, ``is_mrope`` for Qwen's 3-axis form.

    ``max_positions`` is the length of the cos/sin table before an engine widens it;
    ``variants`` is how many different tables the model needs (Gemma: local and global).
    """

    rotary_dim: int
    max_positions: int
    is_mrope: bool = False
    rope_type: str = "default"
    factor: float = 1.0
    variants: int = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class VisionFacts:
    """The vision tower: ``depth`` blocks of ``hidden_size``; ``out_hidden_size`` is the language model's.

    ``num_deepstack`` counts extra mergers; ``is_exact`` is False where the tower's tensors are not
    known from the config (then only a lower bound enters, and the model's error band widens).
    """

    depth: int
    hidden_size: int
    intermediate_size: int
    num_heads: int
    patch_size: int
    temporal_patch_size: int
    spatial_merge_size: int
    in_channels: int
    num_position_embeddings: int
    out_hidden_size: int
    num_deepstack: int = 0
    is_exact: bool = True


@dataclass(frozen=True, slots=True, kw_only=True)
class MtpFacts:
    """The multi-token-prediction head: ``num_layers`` decoder layers like ``layer``."""

    num_layers: int
    layer: LayerFacts
    has_own_embeddings: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class QuantScheme:
    """How one group of Linears is stored.

    ``group_size`` is inputs per scale (0: not grouped; -1: whole row); ``block_shape`` is (rows,
    columns) per scale of block FP8; ``is_symmetric`` False means zero points are stored;
    ``has_act_order`` is GPTQ's desc_act or compressed-tensors' actorder; ``is_weight_only`` means
    activations stay 16 bit.
    """

    format: QuantFormat
    bits: int
    group_size: int = 0
    block_shape: tuple[int, int] | None = None
    is_symmetric: bool = True
    has_act_order: bool = False
    has_static_activation: bool = False
    is_weight_only: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class QuantFacts:
    """The quantisation mask exactly as the config states it; nothing is assumed.

    ``method`` is the config's quant_method. A Linear is quantised unless ``ignored`` names it
    (entries starting ``re:`` are regular expressions); ``targets`` limits it when non-empty, pairs
    of (pattern, scheme) tried in order; ``scheme`` is the first or only one. ``kv_cache_format``
    is "fp8" where the checkpoint asks for an FP8 KV cache. ``is_online`` marks quantisation by
    the engine at load (``--quantization fp8``) of an unquantised checkpoint.
    """

    method: str
    scheme: QuantScheme
    targets: tuple[tuple[str, QuantScheme], ...] = ()
    ignored: tuple[str, ...] = ()
    kv_cache_format: str | None = None
    is_online: bool = False

    @property
    def format(self) -> QuantFormat:
        """Format of the first scheme."""
        return self.scheme.format


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelFacts:
    """Everything a memory plan needs from a checkpoint's config.json.

    ``dtype`` is the config's (``bfloat16`` …); ``linear_state_dtype`` is the config's
    mamba_ssm_dtype, or None when it says nothing; ``error_ratio`` is the half-width of the band
    on weight bytes: 0.005 where the inventory is checked against real headers, wider for generic
    rules; ``basis`` says in words which of the two it is; ``is_hybrid`` mixes recurrent and
    attention layers. ``family`` names the rules that turn the facts into tensors; ``prefix`` is
    the name of the decoder inside the checkpoint.
    """

    architecture: str
    model_type: str
    dtype: str
    hidden_size: int
    vocab_size: int
    max_position_embeddings: int
    has_tied_embeddings: bool
    layers: tuple[LayerFacts, ...]
    rope: RopeFacts
    family: str = "llama"
    prefix: str = "model"
    vision: VisionFacts | None = None
    mtp: MtpFacts | None = None
    quant: QuantFacts | None = None
    linear_state_dtype: str | None = None
    norms_per_layer: int = 2
    error_ratio: float = 0.005
    basis: str = "inventory checked against published headers"

    @property
    def num_layers(self) -> int:
        """Decoder layers, without the MTP head."""
        return len(self.layers)

    @property
    def max_context_tokens(self) -> int:
        """The longest request: the positions it was made for, or what its YaRN stretches them to."""
        return max(self.max_position_embeddings, self.rope.max_positions)

    @property
    def is_hybrid(self) -> bool:
        """Some layers keep a recurrent state instead of a KV cache."""
        return any(layer.kind == "linear_attention" for layer in self.layers)

    @property
    def is_moe(self) -> bool:
        """Some layer routes experts."""
        return any(layer.moe is not None for layer in self.layers)

    @property
    def is_multimodal(self) -> bool:
        """The checkpoint carries a vision tower."""
        return self.vision is not None


@dataclass(frozen=True, slots=True, kw_only=True)
class TensorFact:
    """``count`` tensors of one shape in a checkpoint, named by a pattern ({l} layer, {e} expert, {b} block).

    ``dtype`` is the safetensors name; ``part`` says who owns them; ``nbytes`` is all of them together.
    """

    name: str
    shape: tuple[int, ...]
    dtype: str
    count: int
    part: TensorPart = "language"

    @property
    def nbytes_each(self) -> int:
        """Bytes of one of the tensors."""
        size = DTYPE_BYTES[self.dtype]
        for extent in self.shape:
            size *= extent
        return size

    @property
    def nbytes(self) -> int:
        """Bytes of all ``count`` tensors."""
        return self.nbytes_each * self.count


@dataclass(frozen=True, slots=True, kw_only=True)
class SafetensorsCheckpoint:
    """A folder (or lone config.json) as it lies on disk.

    ``tensors`` are folded by name pattern and empty where no shard could be read; ``weights_bytes``
    is their sum, or the index's total, or None; ``missing_files`` and ``damaged_files`` are names
    an index or the numbering of the shards promises but that are absent or cut off;
    ``has_weights`` is False for a lone config.json.
    """

    path: str
    facts: ModelFacts
    tensors: tuple[TensorFact, ...] = ()
    weights_bytes: int | None = None
    missing_files: tuple[str, ...] = ()
    damaged_files: tuple[str, ...] = ()
    has_weights: bool = False

    @property
    def is_complete(self) -> bool:
        """All promised files are there and whole."""
        return self.has_weights and not self.missing_files and not self.damaged_files


def with_basis(facts: ModelFacts, *, basis: str, error_ratio: float) -> ModelFacts:
    """The same facts with another source and error band."""
    return replace(facts, basis=basis, error_ratio=error_ratio)
