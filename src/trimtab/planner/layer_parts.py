"""Pure. One decoder layer as templates: which Linears, experts and parameters it is made of.

Names are the checkpoint's, with {l} for the layer and {e} for the expert, under the module they
belong to. Order is the order vLLM 0.25.1 builds them (models/qwen3_next.py, qwen3_5.py, llama.py,
deepseek_v2.py, gpt_oss.py), because the allocator's rounding depends on it.
"""

from __future__ import annotations

from dataclasses import dataclass

from trimtab.core.model_facts import LayerFacts, ModelFacts, MoeFacts
from trimtab.core.model_parts import LinearShard, Split

__all__ = ["ExpertsTemplate", "LinearTemplate", "ParameterTemplate", "Template", "render_layer"]


@dataclass(frozen=True, slots=True, kw_only=True)
class LinearTemplate:
    """A Linear before the mask is asked: ``name`` is the engine's, shards carry checkpoint names."""

    name: str
    in_features: int
    shards: tuple[LinearShard, ...]
    split: Split
    has_bias: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class ExpertsTemplate:
    """Routed experts before the mask is asked."""

    name: str
    names: tuple[str, str, str]
    moe: MoeFacts


@dataclass(frozen=True, slots=True, kw_only=True)
class ParameterTemplate:
    """A parameter that is never quantised; ``engine_dtype`` None means the model's dtype."""

    name: str
    shape: tuple[int, ...]
    split_dim: int | None = None
    dtype: str | None = None
    engine_dtype: str | None = None


Template = LinearTemplate | ExpertsTemplate | ParameterTemplate


def render_layer(facts: ModelFacts, layer: LayerFacts, module: str) -> list[Template]:
    """The templates of one layer under ``module`` (``model.layers.{l}``)."""
    if layer.kind == "linear_attention":
        templates = _linear_attention(facts, layer, f"{module}.linear_attn")
    elif layer.kind == "mla":
        templates = _latent_attention(facts, layer, f"{module}.self_attn")
    else:
        templates = _attention(facts, layer, f"{module}.self_attn")
    if layer.moe is not None:
        templates += _experts(facts, layer.moe, module)
    if layer.intermediate_size:
        templates += _dense(facts.hidden_size, layer.intermediate_size, f"{module}.mlp")
    names = ["input_layernorm", "post_attention_layernorm"]
    if facts.norms_per_layer == 4:
        names += ["pre_feedforward_layernorm", "post_feedforward_layernorm"]
    templates += [_norm(f"{module}.{name}", facts.hidden_size) for name in names]
    return templates


def _norm(module: str, size: int) -> ParameterTemplate:
    return ParameterTemplate(name=f"{module}.weight", shape=(size,))


def _dense(hidden: int, size: int, module: str) -> list[Template]:
    gate, up = (LinearShard(name=f"{module}.{name}_proj", out_features=size) for name in ("gate", "up"))
    down = LinearShard(name=f"{module}.down_proj", out_features=hidden)
    return [
        LinearTemplate(name=f"{module}.gate_up_proj", in_features=hidden, shards=(gate, up), split="column"),
        LinearTemplate(name=f"{module}.down_proj", in_features=size, shards=(down,), split="row"),
    ]


def _attention(facts: ModelFacts, layer: LayerFacts, module: str) -> list[Template]:
    heads = layer.num_heads * (2 if layer.has_output_gate else 1)
    kv_heads = layer.num_kv_heads
    shards = [
        LinearShard(name=f"{module}.q_proj", out_features=heads * layer.head_dim),
        LinearShard(name=f"{module}.k_proj", out_features=kv_heads * layer.head_dim, kv_heads=kv_heads),
    ]
    if not layer.has_shared_kv:
        size = kv_heads * layer.v_head_dim
        shards.append(LinearShard(name=f"{module}.v_proj", out_features=size, kv_heads=kv_heads))
    output = LinearShard(name=f"{module}.o_proj", out_features=facts.hidden_size)
    templates: list[Template] = [
        LinearTemplate(
            name=f"{module}.qkv_proj",
            in_features=facts.hidden_size,
            shards=tuple(shards),
            split="column",
            has_bias=layer.has_qkv_bias,
        ),
        LinearTemplate(
            name=f"{module}.o_proj",
            in_features=layer.num_heads * layer.v_head_dim,
            shards=(output,),
            split="row",
            has_bias=layer.has_o_bias,
        ),
    ]
    if layer.has_sinks:
        templates.append(ParameterTemplate(name=f"{module}.sinks", shape=(layer.num_heads,), split_dim=0))
    if layer.q_norm_size:
        templates += [
            _norm(f"{module}.q_norm", layer.q_norm_size),
            _norm(f"{module}.k_norm", layer.k_norm_size),
        ]
    return templates


def _linear_attention(facts: ModelFacts, layer: LayerFacts, module: str) -> list[Template]:
    keys = layer.linear_num_key_heads * layer.linear_key_head_dim
    values = layer.linear_num_value_heads * layer.linear_value_head_dim
    heads = layer.linear_num_value_heads
    wide: tuple[LinearShard, ...]
    narrow: tuple[LinearShard, ...]
    if facts.family == "qwen3_next":
        wide = (LinearShard(name=f"{module}.in_proj_qkvz", out_features=2 * keys + 2 * values),)
        narrow = (LinearShard(name=f"{module}.in_proj_ba", out_features=2 * heads),)
    else:
        wide = (
            LinearShard(name=f"{module}.in_proj_qkv", out_features=2 * keys + values),
            LinearShard(name=f"{module}.in_proj_z", out_features=values),
        )
        narrow = (
            LinearShard(name=f"{module}.in_proj_b", out_features=heads),
            LinearShard(name=f"{module}.in_proj_a", out_features=heads),
        )
    hidden = facts.hidden_size
    output = (LinearShard(name=f"{module}.out_proj", out_features=hidden),)
    convolution = (2 * keys + values, 1, layer.linear_conv_kernel)
    return [
        ParameterTemplate(name=f"{module}.conv1d.weight", shape=convolution, split_dim=0),
        LinearTemplate(name=f"{module}.in_proj_qkvz", in_features=hidden, shards=wide, split="column"),
        LinearTemplate(name=f"{module}.in_proj_ba", in_features=hidden, shards=narrow, split="column"),
        ParameterTemplate(name=f"{module}.dt_bias", shape=(heads,), split_dim=0),
        ParameterTemplate(name=f"{module}.A_log", shape=(heads,), split_dim=0, engine_dtype="float32"),
        _norm(f"{module}.norm", layer.linear_value_head_dim),
        LinearTemplate(name=f"{module}.out_proj", in_features=values, shards=output, split="row"),
    ]


def _latent_attention(facts: ModelFacts, layer: LayerFacts, module: str) -> list[Template]:
    hidden, rank = facts.hidden_size, layer.kv_lora_rank
    q_size = layer.num_heads * (layer.qk_nope_head_dim + layer.qk_rope_head_dim)
    kv_a = LinearShard(name=f"{module}.kv_a_proj_with_mqa", out_features=rank + layer.qk_rope_head_dim)
    kv_b = LinearShard(
        name=f"{module}.kv_b_proj",
        out_features=layer.num_heads * (layer.qk_nope_head_dim + layer.v_head_dim),
    )
    output = LinearShard(name=f"{module}.o_proj", out_features=hidden)
    templates: list[Template] = []
    if layer.q_lora_rank:
        q_a = LinearShard(name=f"{module}.q_a_proj", out_features=layer.q_lora_rank)
        q_b = LinearShard(name=f"{module}.q_b_proj", out_features=q_size)
        templates += [
            LinearTemplate(
                name=f"{module}.fused_qkv_a_proj", in_features=hidden, shards=(q_a, kv_a), split="replicated"
            ),
            _norm(f"{module}.q_a_layernorm", layer.q_lora_rank),
            LinearTemplate(
                name=f"{module}.q_b_proj", in_features=layer.q_lora_rank, shards=(q_b,), split="column"
            ),
        ]
    else:
        query = LinearShard(name=f"{module}.q_proj", out_features=q_size)
        templates += [
            LinearTemplate(name=f"{module}.q_proj", in_features=hidden, shards=(query,), split="column"),
            LinearTemplate(
                name=f"{module}.kv_a_proj_with_mqa", in_features=hidden, shards=(kv_a,), split="replicated"
            ),
        ]
    return [
        *templates,
        _norm(f"{module}.kv_a_layernorm", rank),
        LinearTemplate(name=f"{module}.kv_b_proj", in_features=rank, shards=(kv_b,), split="column"),
        LinearTemplate(
            name=f"{module}.o_proj",
            in_features=layer.num_heads * layer.v_head_dim,
            shards=(output,),
            split="row",
        ),
    ]


_ROUTERS = {
    "mixtral": ("block_sparse_moe", "gate"),
    "minimax_m2": ("block_sparse_moe", "gate"),
    "gpt_oss": ("mlp", "router"),
    "gemma4": ("", "router.proj"),
}


def _experts(facts: ModelFacts, moe: MoeFacts, module: str) -> list[Template]:
    block, router = _ROUTERS.get(facts.family, ("mlp", "gate"))
    module = f"{module}.{block}".rstrip(".")
    hidden = facts.hidden_size
    templates: list[Template] = [
        ParameterTemplate(name=f"{module}.{router}.weight", shape=(moe.num_experts, hidden))
    ]
    if moe.has_router_bias:
        templates.append(_router_bias(facts, moe, module, router))
    if moe.has_shared_expert_gate:
        templates.append(ParameterTemplate(name=f"{module}.shared_expert_gate.weight", shape=(1, hidden)))
    if moe.shared_intermediate_size:
        shared = "shared_experts" if facts.family == "deepseek" else "shared_expert"
        templates += _dense(hidden, moe.shared_intermediate_size, f"{module}.{shared}")
    kinds = ("w1", "w3", "w2") if facts.family in {"mixtral", "minimax_m2"} else _PROJECTIONS
    gate, up, down = (f"{module}.experts.{{e}}.{kind}" for kind in kinds)
    templates.append(ExpertsTemplate(name=f"{module}.experts", names=(gate, up, down), moe=moe))
    return templates


_PROJECTIONS = ("gate_proj", "up_proj", "down_proj")


def _router_bias(facts: ModelFacts, moe: MoeFacts, module: str, router: str) -> ParameterTemplate:
    shape = (moe.num_experts,)
    if facts.family == "gpt_oss":
        return ParameterTemplate(name=f"{module}.{router}.bias", shape=shape)
    if facts.family == "minimax_m2":
        return ParameterTemplate(
            name=f"{module}.e_score_correction_bias", shape=shape, engine_dtype="float32"
        )
    name = f"{module}.{router}.e_score_correction_bias"
    return ParameterTemplate(name=name, shape=shape, dtype="float32", engine_dtype="float32")
