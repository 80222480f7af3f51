"""Pure. How each family's config keys become layers; one small builder per family."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

from trimtab.core.model_facts import LayerFacts, MoeFacts
from trimtab.errors import MissingFactError
from trimtab.planner.config_reader import ConfigReader

__all__ = ["FAMILIES", "Family", "find_family", "known_architectures"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Family:
    """The rules for one family: its name, how layers are built, and how sure the result is.

    ``error_ratio`` is the half-width of the band on weight bytes; ``has_tied_default`` is what
    the family's config class assumes when ``tie_word_embeddings`` is absent.
    """

    name: str
    build: Callable[[ConfigReader], tuple[LayerFacts, ...]]
    prefix: str = "model"
    error_ratio: float = 0.005
    basis: str = "inventory checked against published headers"
    has_tied_default: bool = False
    norms_per_layer: int = 2


def attention(reader: ConfigReader) -> LayerFacts:
    """Plain grouped-query attention, without norms, biases or a feed-forward part."""
    heads = reader.count("num_attention_heads")
    head_dim = reader.count("head_dim", default=reader.count("hidden_size") // heads)
    return LayerFacts(
        kind="full_attention",
        num_heads=heads,
        num_kv_heads=reader.count("num_key_value_heads", default=heads),
        head_dim=head_dim,
        v_head_dim=head_dim,
        has_qkv_bias=reader.flag("attention_bias", default=False),
        has_o_bias=reader.flag("attention_bias", default=False),
    )


def dense_size(reader: ConfigReader) -> int:
    """The dense feed-forward size."""
    return reader.count("intermediate_size")


def routed_experts(reader: ConfigReader) -> MoeFacts:
    """Qwen-style experts, shared expert included when its size is given."""
    shared = reader.count("shared_expert_intermediate_size", default=0, minimum=0)
    return MoeFacts(
        num_experts=reader.count("num_experts", "num_local_experts", "n_routed_experts"),
        num_experts_per_token=reader.count("num_experts_per_tok", "top_k_experts", "experts_per_token"),
        intermediate_size=reader.count("moe_intermediate_size", "intermediate_size"),
        shared_intermediate_size=shared,
        has_shared_expert_gate=shared > 0,
    )


def _repeat(reader: ConfigReader, layer: LayerFacts) -> tuple[LayerFacts, ...]:
    return (layer,) * reader.layers("num_hidden_layers")


def _llama(reader: ConfigReader) -> tuple[LayerFacts, ...]:
    layer = replace(attention(reader), intermediate_size=dense_size(reader))
    window = reader.count("sliding_window", default=0, minimum=0)
    if window and reader.text("model_type") == "mistral":
        layer = replace(layer, kind="sliding", sliding_window_tokens=window)
    return _repeat(reader, layer)


def _qwen2(reader: ConfigReader) -> tuple[LayerFacts, ...]:
    layer = replace(attention(reader), has_qkv_bias=True, has_o_bias=False)
    return _repeat(reader, replace(layer, intermediate_size=dense_size(reader)))


def _qwen3_attention(reader: ConfigReader) -> LayerFacts:
    layer = attention(reader)
    return replace(layer, q_norm_size=layer.head_dim, k_norm_size=layer.head_dim)


def _qwen3(reader: ConfigReader) -> tuple[LayerFacts, ...]:
    return _repeat(reader, replace(_qwen3_attention(reader), intermediate_size=dense_size(reader)))


def _qwen3_moe(reader: ConfigReader) -> tuple[LayerFacts, ...]:
    attend = _qwen3_attention(reader)
    experts = replace(attend, moe=routed_experts(reader))
    step = reader.count("decoder_sparse_step", default=1)
    dense_layers = _indices(reader, "mlp_only_layers")
    is_dense = [
        index in dense_layers or (index + 1) % step != 0
        for index in range(reader.layers("num_hidden_layers"))
    ]
    dense = replace(attend, intermediate_size=dense_size(reader)) if any(is_dense) else experts
    return tuple(dense if plain else experts for plain in is_dense)


def _indices(reader: ConfigReader, key: str) -> frozenset[int]:
    value = reader.raw(key) or []
    if not (isinstance(value, list) and all(type(item) is int for item in value)):
        raise reader.refuse(key, "a list of layer numbers")
    return frozenset(value)


def _hybrid(reader: ConfigReader) -> tuple[LayerFacts, ...]:
    """Qwen3-Next and Qwen3.5: gated delta net layers with full attention in between."""
    is_moe = reader.has("num_experts") and reader.count("num_experts", minimum=0) > 0
    moe = routed_experts(reader) if is_moe else None
    size = 0 if is_moe else dense_size(reader)
    gated = reader.flag("attn_output_gate", default=True)
    full = replace(_qwen3_attention(reader), has_output_gate=gated, moe=moe, intermediate_size=size)
    linear = LayerFacts(
        kind="linear_attention",
        linear_num_key_heads=reader.count("linear_num_key_heads"),
        linear_num_value_heads=reader.count("linear_num_value_heads"),
        linear_key_head_dim=reader.count("linear_key_head_dim"),
        linear_value_head_dim=reader.count("linear_value_head_dim"),
        linear_conv_kernel=reader.count("linear_conv_kernel_dim"),
        intermediate_size=size,
        moe=moe,
    )
    interval = reader.count("full_attention_interval", default=4)
    kinds = layer_types(reader, lambda i: "full_attention" if (i + 1) % interval == 0 else "linear_attention")
    return pick_layers(reader, kinds, {"full_attention": full, "linear_attention": linear})


def layer_types(reader: ConfigReader, rule: Callable[[int], str]) -> tuple[str, ...]:
    """The config's ``layer_types``, or what ``rule`` says for each layer when it is absent."""
    count = reader.layers("num_hidden_layers")
    kinds = reader.texts("layer_types")
    if not kinds:
        return tuple(rule(index) for index in range(count))
    if len(kinds) < count:
        raise reader.refuse("layer_types", f"one entry for each of the {count} layers")
    return kinds[:count]


def pick_layers(
    reader: ConfigReader, kinds: tuple[str, ...], known: dict[str, LayerFacts]
) -> tuple[LayerFacts, ...]:
    """One of the ``known`` layers per kind; MissingFactError names a kind that isn't among them."""
    for kind in kinds:
        if kind not in known:
            raise MissingFactError(
                f"{reader.where}: {reader.path}layer_types has {kind!r}, a layer whose memory isn't known",
                hint=f"known here: {', '.join(known)}",
            )
    return tuple(known[kind] for kind in kinds)


def _sliding(full: LayerFacts, reader: ConfigReader) -> LayerFacts:
    return replace(full, kind="sliding", sliding_window_tokens=reader.count("sliding_window"))


def _gemma2(reader: ConfigReader) -> tuple[LayerFacts, ...]:
    full = replace(attention(reader), intermediate_size=dense_size(reader))
    kinds = layer_types(reader, lambda i: "full_attention" if i % 2 else "sliding_attention")
    return pick_layers(reader, kinds, {"full_attention": full, "sliding_attention": _sliding(full, reader)})


def _gemma3(reader: ConfigReader) -> tuple[LayerFacts, ...]:
    full = replace(_qwen3_attention(reader), intermediate_size=dense_size(reader))
    pattern = reader.count("sliding_window_pattern", "_sliding_window_pattern", default=6)
    kinds = layer_types(reader, lambda i: "sliding_attention" if (i + 1) % pattern else "full_attention")
    return pick_layers(reader, kinds, {"full_attention": full, "sliding_attention": _sliding(full, reader)})


def _gemma4(reader: ConfigReader) -> tuple[LayerFacts, ...]:
    if reader.count("hidden_size_per_layer_input", default=0, minimum=0):
        raise MissingFactError(
            f"{reader.where}: {reader.path}hidden_size_per_layer_input is set, and such layers aren't known",
            hint="a folder with the safetensors files can be measured instead",
        )
    local = replace(_qwen3_attention(reader), intermediate_size=dense_size(reader))
    if reader.flag("enable_moe_block", default=False):
        local = replace(local, moe=routed_experts(reader))
    global_dim = reader.count("global_head_dim", default=local.head_dim)
    full = replace(
        local,
        head_dim=global_dim,
        v_head_dim=global_dim,
        q_norm_size=global_dim,
        k_norm_size=global_dim,
        num_kv_heads=reader.count("num_global_key_value_heads", default=local.num_kv_heads),
        has_shared_kv=reader.flag("attention_k_eq_v", default=False),
    )
    kinds = layer_types(reader, lambda i: "full_attention" if (i + 1) % 6 == 0 else "sliding_attention")
    return pick_layers(reader, kinds, {"full_attention": full, "sliding_attention": _sliding(local, reader)})


def _deepseek(reader: ConfigReader) -> tuple[LayerFacts, ...]:
    nope, rope = reader.count("qk_nope_head_dim"), reader.count("qk_rope_head_dim")
    base = LayerFacts(
        kind="mla",
        num_heads=reader.count("num_attention_heads"),
        num_kv_heads=1,
        head_dim=nope + rope,
        q_lora_rank=reader.count("q_lora_rank", default=0, minimum=0),
        kv_lora_rank=reader.count("kv_lora_rank"),
        qk_nope_head_dim=nope,
        qk_rope_head_dim=rope,
        v_head_dim=reader.count("v_head_dim"),
    )
    experts = reader.count("n_routed_experts", default=0, minimum=0)
    dense_count = reader.count("first_k_dense_replace", default=0, minimum=0) if experts else 1 << 20
    step = reader.count("moe_layer_freq", default=1)
    dense = replace(base, intermediate_size=dense_size(reader))
    moe = dense
    if experts:
        each = reader.count("moe_intermediate_size")
        facts = MoeFacts(
            num_experts=experts,
            num_experts_per_token=reader.count("num_experts_per_tok"),
            intermediate_size=each,
            shared_intermediate_size=each * reader.count("n_shared_experts", default=0, minimum=0),
            has_router_bias=reader.text("topk_method") == "noaux_tc",
        )
        moe = replace(base, moe=facts)
    return tuple(
        moe if index >= dense_count and index % step == 0 else dense
        for index in range(reader.layers("num_hidden_layers"))
    )


def _gpt_oss(reader: ConfigReader) -> tuple[LayerFacts, ...]:
    moe = replace(routed_experts(reader), has_bias=True, has_router_bias=True)
    full = replace(attention(reader), has_qkv_bias=True, has_o_bias=True, has_sinks=True, moe=moe)
    kinds = layer_types(reader, lambda i: "full_attention" if i % 2 else "sliding_attention")
    return pick_layers(reader, kinds, {"full_attention": full, "sliding_attention": _sliding(full, reader)})


def _mixtral(reader: ConfigReader) -> tuple[LayerFacts, ...]:
    layer = replace(attention(reader), moe=routed_experts(reader))
    if reader.count("sliding_window", default=0, minimum=0):
        layer = _sliding(layer, reader)
    return _repeat(reader, layer)


def _minimax_m2(reader: ConfigReader) -> tuple[LayerFacts, ...]:
    layer = attention(reader)
    if reader.flag("use_qk_norm", default=False):
        per_layer = reader.text("qk_norm_type", default="per_layer") == "per_layer"
        q_size = layer.num_heads * layer.head_dim if per_layer else layer.head_dim
        k_size = layer.num_kv_heads * layer.head_dim if per_layer else layer.head_dim
        layer = replace(layer, q_norm_size=q_size, k_norm_size=k_size)
    moe = replace(routed_experts(reader), has_router_bias=reader.flag("use_routing_bias", default=False))
    return _repeat(reader, replace(layer, moe=moe))


_GENERIC = "generic rules for this family; not checked against a header"
_MULTIMODAL = "model.language_model"

FAMILIES: dict[str, Family] = {
    "llama": Family(name="llama", build=_llama, error_ratio=0.01, basis=_GENERIC),
    "qwen2": Family(name="qwen2", build=_qwen2, error_ratio=0.01, basis=_GENERIC),
    "qwen3": Family(name="qwen3", build=_qwen3),
    "qwen3_moe": Family(name="qwen3_moe", build=_qwen3_moe),
    "qwen3_next": Family(
        name="qwen3_next", build=_hybrid, error_ratio=0.01, basis="total checked against the published count"
    ),
    "qwen3_5": Family(name="qwen3_5", build=_hybrid, prefix=_MULTIMODAL),
    "qwen3_vl": Family(name="qwen3", build=_qwen3, prefix=_MULTIMODAL, error_ratio=0.01, basis=_GENERIC),
    "qwen3_vl_moe": Family(
        name="qwen3_moe", build=_qwen3_moe, prefix=_MULTIMODAL, error_ratio=0.01, basis=_GENERIC
    ),
    "gemma2": Family(
        name="gemma2",
        build=_gemma2,
        error_ratio=0.01,
        basis=_GENERIC,
        has_tied_default=True,
        norms_per_layer=4,
    ),
    "gemma3": Family(
        name="gemma3",
        build=_gemma3,
        error_ratio=0.01,
        basis=_GENERIC,
        has_tied_default=True,
        norms_per_layer=4,
    ),
    "gemma4": Family(
        name="gemma4",
        build=_gemma4,
        prefix=_MULTIMODAL,
        error_ratio=0.03,
        basis="generic rules; the vision tower is estimated",
        has_tied_default=True,
        norms_per_layer=4,
    ),
    "deepseek": Family(name="deepseek", build=_deepseek, error_ratio=0.01, basis=_GENERIC),
    "gpt_oss": Family(name="gpt_oss", build=_gpt_oss, error_ratio=0.02, basis=_GENERIC),
    "mixtral": Family(name="mixtral", build=_mixtral, error_ratio=0.01, basis=_GENERIC),
    "minimax_m2": Family(name="minimax_m2", build=_minimax_m2, error_ratio=0.02, basis=_GENERIC),
}

_BY_ARCHITECTURE = {
    "LlamaForCausalLM": "llama",
    "MistralForCausalLM": "llama",
    "Qwen2ForCausalLM": "qwen2",
    "Qwen3ForCausalLM": "qwen3",
    "Qwen3MoeForCausalLM": "qwen3_moe",
    "Qwen3NextForCausalLM": "qwen3_next",
    "Qwen3_5ForConditionalGeneration": "qwen3_5",
    "Qwen3_5MoeForConditionalGeneration": "qwen3_5",
    "Qwen3_5ForCausalLM": "qwen3_5",
    "Qwen3_5MoeForCausalLM": "qwen3_5",
    "Qwen3VLForConditionalGeneration": "qwen3_vl",
    "Qwen3VLMoeForConditionalGeneration": "qwen3_vl_moe",
    "Gemma2ForCausalLM": "gemma2",
    "Gemma3ForCausalLM": "gemma3",
    "Gemma3ForConditionalGeneration": "gemma3",
    "Gemma4ForConditionalGeneration": "gemma4",
    "Gemma4ForCausalLM": "gemma4",
    "DeepseekV2ForCausalLM": "deepseek",
    "DeepseekV3ForCausalLM": "deepseek",
    "KimiK25ForConditionalGeneration": "deepseek",
    "GptOssForCausalLM": "gpt_oss",
    "MixtralForCausalLM": "mixtral",
    "MiniMaxM2ForCausalLM": "minimax_m2",
}


def find_family(architecture: str) -> Family | None:
    """The rules for an architecture's class name; None when it isn't known."""
    name = _BY_ARCHITECTURE.get(architecture)
    return None if name is None else FAMILIES[name]


def known_architectures() -> tuple[str, ...]:
    """Class names with rules of their own."""
    return tuple(_BY_ARCHITECTURE)
