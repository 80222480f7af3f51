"""Model configs: what each family's keys mean, and what is said of a config that cannot be used."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest
from checkpoint_facts import config_names, read_config

from trimtab.errors import MissingFactError, StackFileError
from trimtab.planner.model_config import decode_model_config


@pytest.mark.parametrize("name", config_names(), ids=config_names())
def test_every_known_config_decodes_with_its_layer_count(name: str) -> None:
    """A user's plan sees as many layers as the config says, and a band that is stated."""
    config = read_config(name)
    facts = decode_model_config(config)
    text = config.get("text_config", config)
    assert facts.num_layers == text["num_hidden_layers"]
    assert facts.hidden_size == text["hidden_size"]
    assert 0 < facts.error_ratio <= 0.05
    assert facts.basis


@pytest.mark.parametrize(
    ("name", "kinds"),
    [
        ("Qwen3.5-35B-A3B-FP8", {"linear_attention": 30, "full_attention": 10}),
        ("Qwen3.5-27B", {"linear_attention": 48, "full_attention": 16}),
        ("Qwen3-Next-80B-A3B", {"linear_attention": 36, "full_attention": 12}),
        ("Qwen3-32B", {"full_attention": 64}),
        ("gpt-oss-20b", {"sliding": 12, "full_attention": 12}),
        ("gemma-4-26B-A4B", {"sliding": 25, "full_attention": 5}),
        ("DeepSeek-V3", {"mla": 61}),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_only_the_layers_that_keep_a_cache_are_counted_as_attention(name: str, kinds: dict[str, int]) -> None:
    """KV memory isn't multiplied by layers that keep a recurrent state or a window."""
    facts = decode_model_config(read_config(name))
    assert Counter(layer.kind for layer in facts.layers) == kinds


def test_hybrid_config_without_layer_types_follows_its_interval() -> None:
    """Every fourth layer attends when the config only names the interval."""
    config = read_config("Qwen3.5-27B")
    listed = decode_model_config(config)
    del config["text_config"]["layer_types"]
    assert decode_model_config(config).layers == listed.layers


def test_deepseek_keeps_its_first_layers_dense_and_its_cache_latent() -> None:
    """The three dense layers and the 576-element latent cache of DeepSeek-V3 are seen."""
    facts = decode_model_config(read_config("DeepSeek-V3"))
    assert [layer.ffn for layer in facts.layers[:4]] == ["dense", "dense", "dense", "moe"]
    layer = facts.layers[10]
    assert layer.kv_lora_rank + layer.qk_rope_head_dim == 576
    assert layer.moe is not None
    assert layer.moe.num_experts == 256


def test_gemma_global_layers_have_their_own_head_size_and_no_values() -> None:
    """Gemma 4's global layers: two KV heads of 512, values shared with keys."""
    facts = decode_model_config(read_config("gemma-4-26B-A4B"))
    full = next(layer for layer in facts.layers if layer.kind == "full_attention")
    sliding = next(layer for layer in facts.layers if layer.kind == "sliding")
    assert (full.num_kv_heads, full.head_dim, full.has_shared_kv) == (2, 512, True)
    assert (sliding.num_kv_heads, sliding.head_dim, sliding.sliding_window_tokens) == (8, 256, 1024)


def test_qwen35_rope_is_partial_and_three_axes() -> None:
    """A quarter of each head is rotated, with the long multimodal table."""
    rope = decode_model_config(read_config("Qwen3.5-27B")).rope
    assert (rope.rotary_dim, rope.is_mrope, rope.max_positions) == (64, True, 262_144)


@pytest.mark.parametrize(
    ("value", "said"),
    [([], "list"), ("text", "str"), (None, "NoneType"), (3, "int")],
    ids=["list", "text", "null", "number"],
)
def test_something_else_than_a_mapping_is_refused(value: object, said: str) -> None:
    """Any JSON that isn't an object is named as such."""
    with pytest.raises(StackFileError, match=f"holds a {said}"):
        decode_model_config(value, where="m/config.json")


def test_a_json_file_of_another_kind_is_not_taken_for_a_config() -> None:
    """A tokenizer's or generation config is recognised as the wrong file."""
    with pytest.raises(StackFileError, match="isn't a model's config"):
        decode_model_config({"eos_token_id": 3, "temperature": 0.6})


@pytest.mark.parametrize(
    "key",
    ["hidden_size", "num_hidden_layers", "num_attention_heads", "vocab_size", "max_position_embeddings"],
)
def test_an_absent_key_is_named(key: str) -> None:
    """The message says which key is absent and where."""
    config = read_config("Qwen3.5-27B")
    del config["text_config"][key]
    with pytest.raises(MissingFactError, match=rf"text_config\.{key} is absent"):
        decode_model_config(config, where="m/config.json")


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("hidden_size", -1),
        ("hidden_size", 0),
        ("hidden_size", "big"),
        ("hidden_size", 10**12),
        ("hidden_size", True),
        ("num_hidden_layers", 2.5),
        ("num_experts", [256]),
        ("head_dim", -256),
        ("layer_types", ["full_attention"]),
        ("layer_types", "full_attention"),
        ("dtype", "float8"),
    ],
    ids=lambda value: str(value)[:20],
)
def test_an_impossible_value_is_refused_with_key_and_value(key: str, value: Any) -> None:
    """Negative, absurd or mistyped numbers are refused with the key and the value."""
    config = read_config("Qwen3.5-35B-A3B")
    config["text_config"][key] = value
    with pytest.raises(StackFileError) as caught:
        decode_model_config(config, where="m/config.json")
    assert key in caught.value.message
    assert str(value)[:8].strip("[]'") in caught.value.message


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"num_attention_heads": 15}, "isn't a multiple of num_key_value_heads 2"),
        ({"linear_num_value_heads": 24}, "isn't a multiple of linear_num_key_heads 16"),
        ({"num_experts_per_tok": 300}, "above num_experts 256"),
    ],
    ids=["kv heads", "gdn heads", "experts"],
)
def test_numbers_that_contradict_each_other_are_both_named(changes: dict[str, int], said: str) -> None:
    """A contradiction inside the config is found before any planning."""
    config = read_config("Qwen3.5-35B-A3B")
    config["text_config"] |= changes
    with pytest.raises(StackFileError, match=said):
        decode_model_config(config)


def test_an_unknown_plain_decoder_gets_a_labelled_wide_band() -> None:
    """An unknown name with ordinary keys is planned, and says that its band is wide."""
    config = read_config("Llama-3.1-8B") | {"architectures": ["GraniteNovaForCausalLM"], "model_type": "nova"}
    facts = decode_model_config(config)
    assert facts.error_ratio >= 0.1
    assert "GraniteNovaForCausalLM isn't known" in facts.basis


@pytest.mark.parametrize(
    ("key", "value"),
    [("mamba_d_state", 128), ("num_local_experts", 8), ("kv_lora_rank", 512), ("vision_config", {})],
    ids=["mamba", "experts", "latent", "vision"],
)
def test_an_unknown_architecture_with_a_mechanism_of_its_own_is_refused(key: str, value: object) -> None:
    """No silent guess: the mechanism that isn't understood is named."""
    config = read_config("Llama-3.1-8B") | {"architectures": ["LLamaForCausalLM"], key: value}
    with pytest.raises(MissingFactError, match=key) as caught:
        decode_model_config(config)
    assert "LlamaForCausalLM" in caught.value.hint


def test_an_unknown_layer_kind_is_refused_by_name() -> None:
    """A layer type of a future release isn't planned as if it were a known one."""
    config = read_config("Qwen3.5-27B")
    config["text_config"]["layer_types"][5] = "lightning_attention"
    with pytest.raises(MissingFactError, match="lightning_attention"):
        decode_model_config(config)


@pytest.mark.parametrize(
    ("block", "said"),
    [
        ({"quant_method": "quip"}, "'quip' isn't known"),
        ({}, "without a name"),
        ({"quant_method": "compressed-tensors"}, "config_groups is absent"),
        ({"quant_method": "awq", "group_size": 128}, "bits is absent"),
        ({"quant_method": "modelopt", "quant_algo": "W4A8"}, "'W4A8' isn't known"),
    ],
    ids=["method", "no name", "no groups", "no bits", "algorithm"],
)
def test_a_quantisation_that_is_not_understood_is_refused(block: dict[str, Any], said: str) -> None:
    """An unknown quantisation is refused with its name instead of planned as BF16."""
    config = read_config("Qwen3-32B") | {"quantization_config": block}
    with pytest.raises(MissingFactError, match=said):
        decode_model_config(config)


def test_fp8_kv_cache_of_a_checkpoint_is_seen() -> None:
    """A checkpoint that asks for an FP8 KV cache says so in the facts."""
    block = {
        "quant_method": "modelopt",
        "quant_algo": "FP8",
        "kv_cache_quant_algo": "FP8",
        "ignore": ["lm_head"],
    }
    facts = decode_model_config(read_config("Llama-3.1-8B") | {"quantization_config": block})
    assert facts.quant is not None
    assert facts.quant.kv_cache_format == "fp8"
