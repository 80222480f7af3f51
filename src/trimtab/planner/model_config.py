"""Pure. A decoded config.json → ModelFacts: exact where the family is known, refused or labelled elsewhere.

The keys are those of transformers' config classes; multimodal models nest the decoder under
``text_config``. What is absent is named, never filled in silently.
"""

from __future__ import annotations

import difflib
from collections.abc import Mapping
from dataclasses import replace

from trimtab.core.model_facts import LayerFacts, ModelFacts, MtpFacts, QuantFacts, RopeFacts, VisionFacts
from trimtab.errors import MissingFactError, StackFileError
from trimtab.planner.config_reader import ConfigReader
from trimtab.planner.model_families import FAMILIES, Family, find_family, known_architectures
from trimtab.planner.quant_config import decode_quantization

__all__ = ["decode_model_config"]

_DTYPES = ("bfloat16", "float16", "float32")

_LAYER_TYPES = (
    "full_attention",
    "sliding_attention",
    "linear_attention",
    "chunked_attention",
    "attention",
    "conv",
    "mamba",
    "moe",
    "hybrid",
    "sparse",
    "dense",
)
"""The kinds that transformers' configs name; which of them a family has, its own rules say."""

_UNKNOWN_MECHANISMS = (
    "state_size",
    "ssm_state_size",
    "mamba_d_state",
    "mamba_num_heads",
    "kv_lora_rank",
    "linear_num_key_heads",
    "layer_types",
    "layers_block_type",
    "hybrid_override_pattern",
    "index_topk",
    "num_experts",
    "num_local_experts",
    "n_routed_experts",
    "block_configs",
    "vision_config",
    "audio_config",
    "encoder_layers",
)
"""Keys that mean a mechanism the plain decoder rules don't cover."""


def decode_model_config(mapping: object, *, where: str = "config.json") -> ModelFacts:
    """The facts in a decoded config.json; ``where`` names the file in messages.

    StackFileError: it isn't a model's config, or a value cannot be. MissingFactError: a key that
    the memory depends on is absent, or the architecture isn't known.
    """
    if not isinstance(mapping, Mapping):
        raise StackFileError(
            f"{where}: holds a {type(mapping).__name__}, expected a mapping of model settings"
        )
    top = ConfigReader(mapping, where=where)
    if "architectures" not in mapping and "model_type" not in mapping:
        raise StackFileError(
            f"{where}: isn't a model's config.json (neither architectures nor model_type is there)",
            hint="point at the folder that holds the checkpoint's config.json",
        )
    text = top.child("text_config") or top
    architectures = top.texts("architectures") or text.texts("architectures")
    architecture = architectures[0] if architectures else ""
    family = find_family(architecture) or _generic_family(top, text, architecture)
    return _assemble(top, text, architecture, family)


def _generic_family(top: ConfigReader, text: ConfigReader, architecture: str) -> Family:
    """Plain decoder rules for an unknown name with nothing unusual in its config, else a refusal."""
    name = architecture or top.text("model_type")
    unusual = [key for key in _UNKNOWN_MECHANISMS if text.has(key) or top.has(key)]
    near = difflib.get_close_matches(name, known_architectures(), n=2)
    if unusual or not name.endswith("ForCausalLM"):
        why = f"its {unusual[0]} layers" if unusual else "its layers"
        raise MissingFactError(
            f"{top.where}: architecture {name!r} isn't known, and {why} need rules of their own",
            hint=f"nearest known: {', '.join(near)}" if near else "known: " + ", ".join(FAMILIES),
        )
    return replace(
        FAMILIES["llama"],
        error_ratio=0.1,
        basis=f"plain decoder rules: architecture {name} isn't known, so the band is wide",
    )


def _assemble(top: ConfigReader, text: ConfigReader, architecture: str, family: Family) -> ModelFacts:
    _check_heads(text)
    layers = family.build(text)
    _check_layer_types(text)
    vision, vision_is_exact = _decode_vision(top, text)
    nested = text is not top
    prefix = family.prefix if nested or family.prefix == "model" else "model"
    if architecture == "KimiK25ForConditionalGeneration":
        prefix = "language_model.model"
    if architecture == "Gemma3ForConditionalGeneration":
        prefix = "language_model.model"
    facts = ModelFacts(
        architecture=architecture,
        model_type=top.text("model_type"),
        dtype=_decode_dtype(top, text),
        hidden_size=text.count("hidden_size"),
        vocab_size=text.count("vocab_size"),
        max_position_embeddings=text.count("max_position_embeddings"),
        has_tied_embeddings=_decode_tied(top, text, family),
        layers=layers,
        rope=_decode_rope(text, layers),
        family=family.name,
        prefix=prefix,
        vision=vision,
        mtp=_decode_mtp(text, layers, family),
        quant=_decode_quant(top, text),
        linear_state_dtype=text.text("mamba_ssm_dtype") or None,
        norms_per_layer=family.norms_per_layer,
        error_ratio=family.error_ratio,
        basis=family.basis,
    )
    check_model_facts(facts, where=top.where)
    if top.has("vision_config") and not vision_is_exact:
        return replace(
            facts,
            error_ratio=max(facts.error_ratio, 0.03),
            basis=f"{facts.basis}; its vision tower isn't counted exactly",
        )
    return facts


def _check_layer_types(text: ConfigReader) -> None:
    """StackFileError for kinds of layers that nobody has, also in families that have no use for the key."""
    kinds = text.texts("layer_types")
    odd = [kind for kind in kinds if kind not in _LAYER_TYPES]
    if odd:
        shown = repr(odd[0] if len(odd[0]) <= 40 else odd[0][:37] + "...")
        raise StackFileError(
            f"{text.where}: {text.path}layer_types has {shown}, expected of {', '.join(_LAYER_TYPES)}"
        )
    if kinds and len(kinds) < text.layers("num_hidden_layers", default=0, minimum=0):
        raise text.refuse(
            "layer_types", f"one entry for each of the {text.count('num_hidden_layers')} layers"
        )


def _check_heads(text: ConfigReader) -> None:
    """StackFileError where the width divided by the heads leaves nothing for a head."""
    heads = text.mapping.get("num_attention_heads")
    if heads is not None and not text.has("head_dim") and not text.has("qk_rope_head_dim"):
        width, heads = text.count("hidden_size"), text.count("num_attention_heads")
        if width < heads:
            raise StackFileError(
                f"{text.where}: {text.path}hidden_size {width} is below num_attention_heads {heads}, "
                "so that a head would have no size"
            )


def _decode_quant(top: ConfigReader, text: ConfigReader) -> QuantFacts | None:
    return decode_quantization(top.child("quantization_config") or text.child("quantization_config"))


def _decode_dtype(top: ConfigReader, text: ConfigReader) -> str:
    """The config's dtype; bfloat16 when it says nothing (vLLM's own choice for a GPU)."""
    dtype = text.text("dtype", "torch_dtype") or top.text("dtype", "torch_dtype") or "bfloat16"
    dtype = dtype.removeprefix("torch.")
    if dtype not in _DTYPES:
        raise StackFileError(f"{top.where}: dtype is {dtype!r}, expected one of {', '.join(_DTYPES)}")
    return dtype


def _decode_tied(top: ConfigReader, text: ConfigReader, family: Family) -> bool:
    default = top.flag("tie_word_embeddings", default=family.has_tied_default)
    return text.flag("tie_word_embeddings", default=default)


def _decode_rope(text: ConfigReader, layers: tuple[LayerFacts, ...]) -> RopeFacts:
    head = next((layer for layer in layers if layer.kind != "linear_attention"), None)
    if head is None:
        raise MissingFactError(f"{text.where}: no attention layer is among the {len(layers)} layers")
    settings = text.child("rope_parameters") or text.child("rope_scaling")
    rotary = head.qk_rope_head_dim or text.count("rotary_dim", default=head.head_dim)
    factor, rope_type, scale, is_mrope = 1.0, "default", 1.0, False
    if settings is not None:
        factor = settings.number("partial_rotary_factor", default=1.0)
        rope_type = settings.text("rope_type", "type", default="default")
        scale = settings.number("factor", default=1.0)
        is_mrope = settings.has("mrope_section")
    factor = text.number("partial_rotary_factor", default=factor)
    positions = text.count("max_position_embeddings")
    if rope_type == "yarn" and settings is not None:
        original = settings.count("original_max_position_embeddings", default=positions)
        positions = max(positions, int(original * scale))
    return RopeFacts(
        rotary_dim=int(rotary * factor),
        max_positions=positions,
        is_mrope=is_mrope,
        rope_type=rope_type,
        factor=scale,
        variants=2 if text.has("rope_local_base_freq") or "gemma" in text.text("model_type") else 1,
    )


def _decode_mtp(text: ConfigReader, layers: tuple[LayerFacts, ...], family: Family) -> MtpFacts | None:
    count = text.layers("mtp_num_hidden_layers", "num_nextn_predict_layers", default=0, minimum=0)
    if count == 0 or family.name not in {"qwen3_5", "qwen3_next", "deepseek"}:
        return None
    attending = [layer for layer in layers if layer.kind in {"full_attention", "mla"}]
    return MtpFacts(
        num_layers=count,
        layer=attending[-1],
        has_own_embeddings=text.flag("mtp_use_dedicated_embeddings", default=family.name == "deepseek"),
    )


def _decode_vision(top: ConfigReader, text: ConfigReader) -> tuple[VisionFacts | None, bool]:
    """The tower and whether its tensors are known exactly (Qwen's ViT); the rest is a lower bound."""
    vision = top.child("vision_config")
    if vision is None:
        return None, True
    is_qwen = top.text("model_type").startswith(("qwen3_5", "qwen3_vl"))
    width = vision.count("hidden_size", default=0 if not is_qwen else None, minimum=0)
    if width == 0:
        return None, False
    deepstack = vision.raw("deepstack_visual_indexes")
    facts = VisionFacts(
        depth=vision.layers("depth", "num_hidden_layers"),
        hidden_size=width,
        intermediate_size=vision.count("intermediate_size"),
        num_heads=vision.count("num_heads", "num_attention_heads"),
        patch_size=vision.count("patch_size", default=14),
        temporal_patch_size=vision.count("temporal_patch_size", default=1),
        spatial_merge_size=vision.count("spatial_merge_size", "pooling_kernel_size", default=1),
        in_channels=vision.count("in_channels", "num_channels", default=3),
        num_position_embeddings=vision.count(
            "num_position_embeddings", "position_embedding_size", default=0, minimum=0
        ),
        out_hidden_size=vision.count("out_hidden_size", default=text.count("hidden_size")),
        num_deepstack=len(deepstack) if isinstance(deepstack, list) else 0,
        is_exact=is_qwen,
    )
    return facts, is_qwen


def check_model_facts(facts: ModelFacts, *, where: str) -> None:
    """Numbers that contradict each other are refused with both of them in the message."""
    for layer in dict.fromkeys(facts.layers):
        if layer.num_kv_heads and layer.kind != "mla" and layer.num_heads % layer.num_kv_heads:
            raise StackFileError(
                f"{where}: num_attention_heads {layer.num_heads} isn't a multiple of "
                f"num_key_value_heads {layer.num_kv_heads}"
            )
        if layer.linear_num_key_heads and layer.linear_num_value_heads % layer.linear_num_key_heads:
            raise StackFileError(
                f"{where}: linear_num_value_heads {layer.linear_num_value_heads} isn't a multiple of "
                f"linear_num_key_heads {layer.linear_num_key_heads}"
            )
        moe = layer.moe
        if moe is not None and moe.num_experts_per_token > moe.num_experts:
            raise StackFileError(
                f"{where}: num_experts_per_tok {moe.num_experts_per_token} is above "
                f"num_experts {moe.num_experts}"
            )
