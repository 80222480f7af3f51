"""Tensor inventories: equal to published checkpoints, name by name and byte by byte."""

from __future__ import annotations

import time

import pytest
from checkpoint_facts import inventories, read_config, read_config_with_mask

from trimtab.core.model_facts import ModelFacts, TensorFact
from trimtab.planner.model_config import decode_model_config
from trimtab.planner.model_parts import decode_parts
from trimtab.planner.tensor_inventory import count_tensors, render_inventory, sum_bytes


def inventory_of(facts: ModelFacts, *, has_stacked_experts: bool = False) -> tuple[TensorFact, ...]:
    return render_inventory(decode_parts(facts), dtype=facts.dtype, has_stacked_experts=has_stacked_experts)


@pytest.mark.parametrize("name", list(inventories()), ids=list(inventories()))
def test_inventory_equals_the_checked_one_tensor_by_tensor(name: str) -> None:
    """Every tensor of the checkpoint is there with its shape and dtype, and none besides."""
    wanted = inventories()[name]
    tensors = inventory_of(decode_model_config(read_config(name)))
    got = {(t.name.replace("mtp.layers.{l}", "mtp.layers.0"), t.shape, t.dtype, t.count) for t in tensors}
    assert got == {(n, tuple(shape), dtype, count) for n, shape, dtype, count in wanted["groups"]}
    assert count_tensors(tensors) == wanted["tensors"]
    assert sum_bytes(tensors) == wanted["total_bytes"]


@pytest.mark.parametrize(
    ("name", "tensors", "total_bytes"),
    [
        ("Qwen3.6-35B-A3B-FP8", 64_196, 37_454_789_472),
        ("Llama-3.1-8B", 291, 16_060_522_496),
        ("Llama-3.1-70B", 723, 141_107_412_992),
        ("Mixtral-8x7B-v0.1", 995, 93_405_585_408),
        ("gpt-oss-20b", 459, 13_761_264_768),
        ("gpt-oss-120b", 687, 65_248_815_744),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_generic_rules_give_the_published_index_totals(name: str, tensors: int, total_bytes: int) -> None:
    """Tensor counts and byte totals equal the published safetensors indexes of these repositories."""
    inventory = inventory_of(decode_model_config(read_config(name)))
    assert (count_tensors(inventory), sum_bytes(inventory)) == (tensors, total_bytes)


@pytest.mark.parametrize(
    ("name", "billions", "tolerance"),
    [
        ("Qwen3-Next-80B-A3B", 79.674, 0.0005),
        ("DeepSeek-V3", 684.5, 0.01),
        ("MiniMax-M2.5", 228.7, 0.01),
        ("gemma-4-26B-A4B", 25.8, 0.02),
    ],
    ids=["next-80b", "deepseek-v3", "minimax-m2.5", "gemma-4"],
)
def test_parameter_counts_agree_with_published_ones(name: str, billions: float, tolerance: float) -> None:
    """Families that no header was at hand for: the count of parameters is the published one."""
    config = read_config(name)
    config.pop("quantization_config", None)
    inventory = inventory_of(decode_model_config(config))
    parameters = sum(t.nbytes // (4 if t.dtype == "F32" else 2) for t in inventory)
    assert parameters / 1e9 == pytest.approx(billions, rel=tolerance)


def test_stacked_experts_hold_the_same_bytes_in_far_fewer_tensors() -> None:
    """The BF16 repository's stacked form and the expert-by-expert form weigh the same."""
    facts = decode_model_config(read_config("Qwen3.5-35B-A3B"))
    single, stacked = inventory_of(facts), inventory_of(facts, has_stacked_experts=True)
    assert sum_bytes(single) == sum_bytes(stacked)
    assert count_tensors(stacked) < count_tensors(single) / 20


def test_parts_of_a_checkpoint_add_up() -> None:
    """Language, vision and MTP bytes sum to the whole, so that skipping one is exact."""
    inventory = inventory_of(decode_model_config(read_config("Qwen3.5-35B-A3B-FP8")))
    assert sum_bytes(inventory, "vision") == 893_142_496
    assert sum_bytes(inventory, "mtp") == 853_668_480
    assert sum_bytes(inventory, "language") == 35_707_978_496


def test_awq_stores_zero_points_and_half_precision_scales() -> None:
    """An AWQ checkpoint's tensors have AWQ's names, packing and zero points."""
    facts = decode_model_config(read_config_with_mask("Qwen3-32B", "awq-g128"))
    found = {t.name.rpartition("self_attn.")[2]: (t.shape, t.dtype) for t in inventory_of(facts)}
    assert found["q_proj.qweight"] == ((5120, 1024), "I32")
    assert found["q_proj.qzeros"] == ((40, 1024), "I32")
    assert found["q_proj.scales"] == ((40, 8192), "F16")


def test_a_mask_that_splits_a_fused_module_keeps_its_shards_apart() -> None:
    """Shards stored differently stay visible, so that the engine's refusal can be foretold."""
    config = read_config("Qwen3-32B-FP8")
    config["quantization_config"]["modules_to_not_convert"] = ["model.layers.3.self_attn.v_proj"]
    parts = decode_parts(decode_model_config(config))
    fused = [part for part in parts.linears if part.name.endswith("qkv_proj") and 3 in part.layers]
    assert [part.scheme is None for part in fused] == [False, False, True]


def test_a_model_is_taken_apart_in_milliseconds() -> None:
    """Two models fit easily into a plan's time: 397B with its long mask stays under 50 ms."""
    config = read_config("Qwen3.5-397B-A17B-FP8")
    started = time.process_time()
    inventory_of(decode_model_config(config))
    assert time.process_time() - started < 0.5
