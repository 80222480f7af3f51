"""Weights per rank: what vLLM logs as "Model loading took", against measured start-ups and its rules."""

from __future__ import annotations

import time
from dataclasses import replace
from typing import Any

import pytest
from checkpoint_facts import read_config, read_config_with_mask, start_ups

from trimtab.core.model_facts import ModelFacts
from trimtab.planner.model_config import decode_model_config
from trimtab.planner.model_parts import decode_parts
from trimtab.planner.vllm_weights import (
    RankWeights,
    WeightSettings,
    add_online_quantization,
    estimate_weights,
)

GIB = 1 << 30
ADA, AMPERE, HOPPER = (8, 9), (8, 6), (9, 0)


def weigh(facts: ModelFacts, **settings: Any) -> RankWeights:
    return estimate_weights(facts, decode_parts(facts), WeightSettings(**settings))[0]


def item(weights: RankWeights, name: str) -> int:
    return sum(entry.nbytes for entry in weights.items if entry.name == name)


def facts_of(name: str, mask: str | None = None) -> ModelFacts:
    config = read_config(name) if mask is None else read_config_with_mask(name, mask)
    if mask == "awq-g128":
        config["torch_dtype"] = "float16"
    return decode_model_config(config)


@pytest.mark.parametrize("row", start_ups(), ids=[row["id"] for row in start_ups()])
def test_weights_are_within_half_a_percent_of_real_start_ups(row: dict[str, Any]) -> None:
    """A plan's weights are what the real engine then logs."""
    facts = facts_of(row["config"], row.get("mask"))
    if row.get("is_online"):
        facts = add_online_quantization(facts)
    settings = {key: tuple(v) if isinstance(v, list) else v for key, v in row["settings"].items()}
    weights = weigh(facts, **settings)
    assert weights.weights_bytes / GIB == pytest.approx(row["weights_gib"], rel=0.005)


@pytest.mark.parametrize(
    "row_id", ["h200-35b-fp8", "h200-35b-int4-g32", "h200-27b-int4-g32", "h200-32b-awq-tp2"]
)
def test_own_start_ups_agree_to_the_last_printed_digit(row_id: str) -> None:
    """One mechanism explains FP8 and int4 rows alike: the log's two decimals come out."""
    row = next(row for row in start_ups() if row["id"] == row_id)
    weights = weigh(facts_of(row["config"], row.get("mask")), **row["settings"])
    assert abs(weights.weights_bytes / GIB - row["weights_gib"]) <= 0.006


BY_RANKS = [
    ("Qwen3.5-35B-A3B", ADA, (65.52, 32.85, 16.52)),
    ("Qwen3.5-35B-A3B-FP8", ADA, (34.22, 17.20, 8.69)),
    ("Qwen3.5-35B-A3B-FP8", AMPERE, (34.70, 17.44, 8.81)),
    ("inferred-cyankiwi-Qwen3.5-35B-A3B-AWQ-4bit", ADA, (22.39, 11.29, 5.74)),
    ("Qwen3.5-27B", ADA, (51.09, 25.68, 13.11)),
    ("Qwen3.5-27B-FP8", ADA, (28.50, 14.52, 7.36)),
    ("Qwen3.5-27B-FP8", AMPERE, (28.85, 14.70, 7.45)),
    ("Qwen3-32B", ADA, (61.03, 30.59, 15.49)),
    ("Qwen3-32B-FP8", ADA, (32.04, 16.21, 8.15)),
]


@pytest.mark.parametrize(
    ("name", "capability", "wanted"), BY_RANKS, ids=[f"{n}-sm{c[0]}{c[1]}" for n, c, _ in BY_RANKS]
)
def test_weights_by_number_of_ranks(
    name: str, capability: tuple[int, int], wanted: tuple[float, ...]
) -> None:
    """TP1, TP2 and TP4 with the vision tower: within half a percent of the hand-checked table."""
    facts = facts_of(name)
    for ranks, gib in zip((1, 2, 4), wanted, strict=True):
        weights = weigh(facts, tensor_parallel_size=ranks, compute_capability=capability)
        assert weights.weights_bytes / GIB == pytest.approx(gib, rel=0.005)


def test_awq_zero_points_are_four_times_larger_on_hopper() -> None:
    """Machete keeps zero points in 16 bits: Hopper needs more for the same AWQ file than Ada."""
    facts = facts_of("Qwen3-32B", "awq-g128")
    hopper, ada = weigh(facts, compute_capability=HOPPER), weigh(facts, compute_capability=ADA)
    packed = 31_205_621_760 // 128 // 2
    gained = sum(item(hopper, name) - item(ada, name) for name in ("mlp", "attention"))
    workspaces = 64 * 4 * 1024
    assert gained == 3 * packed - workspaces


def test_an_old_engine_loads_awq_through_marlin_on_hopper_too() -> None:
    """0.17 knows no Machete for AWQ, so the same card needs less there."""
    facts = facts_of("Qwen3-32B", "awq-g128")
    old, new = weigh(facts, engine_version=(0, 17)), weigh(facts, engine_version=(0, 25))
    assert new.weights_bytes - old.weights_bytes > 0.3 * GIB


def test_dense_int4_gains_from_rounding_and_says_so() -> None:
    """The 2 % that a plain count lacks is an item of its own."""
    weights = weigh(facts_of("inferred-cyankiwi-Qwen3.5-27B-AWQ-4bit"), is_language_model_only=True)
    assert weights.rounding_bytes / weights.weights_bytes == pytest.approx(0.015, abs=0.003)


def test_without_the_split_limit_rounding_is_less_than_half() -> None:
    """Engines before 0.21 load without the limit and lose at most 1 MiB per tensor."""
    facts = facts_of("inferred-cyankiwi-Qwen3.5-27B-AWQ-4bit")
    assert weigh(facts, engine_version=(0, 17)).rounding_bytes < weigh(facts).rounding_bytes / 2


def test_language_model_only_saves_the_tower() -> None:
    """Text only saves the 0.83 GiB of the 35B's vision tower."""
    facts = facts_of("Qwen3.5-35B-A3B-FP8")
    saved = weigh(facts).weights_bytes - weigh(facts, is_language_model_only=True).weights_bytes
    assert saved / GIB == pytest.approx(0.83, abs=0.01)


def test_an_encoder_on_every_rank_costs_its_whole_size() -> None:
    """``--mm-encoder-tp-mode data`` keeps the whole tower on each rank."""
    facts = facts_of("Qwen3.5-27B-FP8")
    cut = weigh(facts, tensor_parallel_size=4)
    whole = weigh(facts, tensor_parallel_size=4, is_encoder_replicated=True)
    assert item(whole, "vision tower") > 3.5 * item(cut, "vision tower")


@pytest.mark.parametrize(
    ("name", "gib"),
    [
        ("Qwen3.5-35B-A3B", 1.57),
        ("Qwen3.5-35B-A3B-FP8", 0.79),
        ("Qwen3.5-27B", 0.79),
        ("Qwen3.5-27B-FP8", 0.44),
    ],
    ids=["35b", "35b-fp8", "27b", "27b-fp8"],
)
def test_the_mtp_head_adds_its_layer_and_a_passing_copy_of_the_vocabulary(name: str, gib: float) -> None:
    """Speculation adds one layer for good, and two vocabulary matrices while loading."""
    facts = facts_of(name)
    without, with_head = weigh(facts), weigh(facts, num_speculative_tokens=1)
    assert (with_head.weights_bytes - without.weights_bytes) / GIB == pytest.approx(gib, abs=0.01)
    copies = 2 * facts.vocab_size * facts.hidden_size * 2
    assert with_head.load_peak_bytes >= without.weights_bytes + copies


def test_kv_heads_are_copied_beyond_their_number() -> None:
    """Eight ranks on four KV heads hold one head each, not half a head."""
    facts = facts_of("Qwen3.5-27B")
    part = next(p for p in decode_parts(facts).linears if p.name.endswith("qkv_proj"))
    four, eight = (item(weigh(facts, tensor_parallel_size=n), "attention") for n in (4, 8))
    copied = len(part.layers) * 2 * 256 * 5120 * 2 // 2
    assert eight > four // 2 + copied * 0.9


def test_expert_parallel_keeps_whole_experts() -> None:
    """Whole experts on ranks weigh as much as slices of every expert."""
    facts = facts_of("Qwen3.5-35B-A3B-FP8")
    sliced = weigh(facts, tensor_parallel_size=4)
    whole = weigh(facts, tensor_parallel_size=4, expert_parallel_size=4)
    assert item(whole, "experts") == pytest.approx(item(sliced, "experts"), rel=0.001)


def test_mla_keeps_a_wide_copy_of_a_quantised_projection() -> None:
    """DeepSeek's absorbed matrices are there in 16 bits when kv_b_proj is FP8, and not otherwise."""
    facts = facts_of("DeepSeek-V3")
    plain = replace(facts, quant=None)
    wide = 61 * 128 * (128 + 128) * 512 * 2 // 8
    settings = {"tensor_parallel_size": 8}
    fp8, bf16 = (item(weigh(f, **settings), "attention") for f in (facts, plain))
    assert 2 * fp8 - bf16 == pytest.approx(2 * wide, rel=0.02)


def test_pipeline_stages_hold_every_layer_once() -> None:
    """Stages split the layers; families that build the embedding everywhere pay it on each stage."""
    facts = facts_of("Qwen3.5-27B")
    stages = estimate_weights(facts, decode_parts(facts), WeightSettings(pipeline_parallel_size=3))
    assert [len(stage.layers) for stage in stages] == [21, 22, 21]
    assert [layer for stage in stages for layer in stage.layers] == list(range(64))
    assert all(item(stage, "embeddings") for stage in stages)
    llama = facts_of("Llama-3.1-8B")
    stages = estimate_weights(llama, decode_parts(llama), WeightSettings(pipeline_parallel_size=2))
    assert [item(stage, "embeddings") > 0 for stage in stages] == [True, False]
    assert [item(stage, "output head") > 0 for stage in stages] == [False, True]


def test_gpt_oss_experts_are_padded_where_marlin_runs_them() -> None:
    """Hidden 2,880 is padded to Marlin's tiles off Hopper and Blackwell: about 0.7 GiB on the 20b."""
    facts = facts_of("gpt-oss-20b")
    ada, hopper = weigh(facts, compute_capability=ADA), weigh(facts, compute_capability=HOPPER)
    assert (ada.weights_bytes - hopper.weights_bytes) / GIB == pytest.approx(0.7, abs=0.15)


def test_error_band_follows_how_sure_the_facts_are() -> None:
    """Checked families have a narrow band, generic rules a wider one."""
    exact, generic = weigh(facts_of("Qwen3-32B")), weigh(facts_of("gpt-oss-20b"))
    assert exact.error_bytes <= 0.005 * exact.weights_bytes
    assert generic.error_bytes >= 0.019 * generic.weights_bytes


def test_weighing_is_fast_enough_for_a_search() -> None:
    """One candidate takes milliseconds, even AWQ with its many conversions."""
    facts = facts_of("Qwen3-32B", "awq-g128")
    parts = decode_parts(facts)
    started = time.process_time()
    estimate_weights(facts, parts, WeightSettings())
    assert time.process_time() - started < 0.5


def test_a_rope_that_rotates_nothing_has_no_table() -> None:
    """A config that rotates less than one pair of elements is weighed, not a crash."""
    config = read_config("Qwen3.5-4B")
    config["text_config"]["rope_parameters"]["partial_rotary_factor"] = 0.001953125

    weights = weigh(decode_model_config(config, where="config.json"))

    assert item(weights, "rope table") == 0
