"""Quantisation masks: which module is stored how, as each quantiser's config says it."""

from __future__ import annotations

from typing import Any

import pytest
from checkpoint_facts import AWQ_G128, INT4_ALL_BUT_LINEAR_ATTN

from trimtab.core.model_facts import QuantFacts
from trimtab.errors import MissingFactError
from trimtab.planner.config_reader import ConfigReader
from trimtab.planner.quant_config import decode_quantization, scheme_of

LAYER = "model.language_model.layers.12"
BLOCK_FP8 = {"quant_method": "fp8", "weight_block_size": [128, 128]}
GPTQ = {"quant_method": "gptq", "bits": 4, "group_size": 128, "sym": True, "desc_act": False}


def decode(block: dict[str, Any]) -> QuantFacts:
    facts = decode_quantization(ConfigReader(block, where="config.json", path="quantization_config."))
    assert facts is not None
    return facts


@pytest.mark.parametrize(
    ("entry", "module", "is_spared"),
    [
        (f"{LAYER}.mlp.gate", f"{LAYER}.mlp.gate", True),
        (f"{LAYER}.mlp.gate", f"{LAYER}.mlp.gate_proj", False),
        ("model.layers.12.self_attn", f"{LAYER}.self_attn.q_proj", True),
        ("model.layers.1.self_attn", f"{LAYER}.self_attn.q_proj", False),
        ("layers.12.self_attn.o_proj", f"{LAYER}.self_attn.o_proj", True),
        ("mlp.gate", f"{LAYER}.mlp.gate", True),
        ("gate", f"{LAYER}.mlp.gate_proj", False),
        ("in_proj_a", f"{LAYER}.linear_attn.in_proj_a", True),
        ("model.visual", "model.visual.blocks.3.attn.qkv", True),
        ("model.layers.*.self_attn", f"{LAYER}.self_attn.q_proj", True),
        ("model.layers.*.self_attn", f"{LAYER}.mlp.up_proj", False),
        ("lm_head", "lm_head", True),
    ],
)
def test_fp8_spares_exactly_what_its_list_names(entry: str, module: str, is_spared: bool) -> None:  # noqa: FBT001
    """Whole dotted names count, so that ``gate`` doesn't take gate_proj with it."""
    facts = decode(BLOCK_FP8 | {"modules_to_not_convert": [entry]})
    assert (scheme_of(facts, module) is None) is is_spared


@pytest.mark.parametrize(
    ("module", "is_spared"),
    [
        (f"{LAYER}.linear_attn.in_proj_qkv", True),
        (f"{LAYER}.self_attn.q_proj", False),
        (f"{LAYER}.mlp.experts.0.gate_proj", False),
        (f"{LAYER}.mlp.shared_expert.up_proj", False),
        ("lm_head", True),
        ("mtp.layers.0.self_attn.q_proj", True),
    ],
)
def test_compressed_tensors_expressions_are_matched_from_the_start(module: str, is_spared: bool) -> None:  # noqa: FBT001
    """``re:`` entries behave as in the library that wrote them."""
    assert (scheme_of(decode(INT4_ALL_BUT_LINEAR_ATTN), module) is None) is is_spared


def test_gptq_dynamic_rules_spare_and_override() -> None:
    """A minus rule keeps a module in 16 bits, a plus rule changes its bits and group."""
    rules = {"-:.*attn.*": {}, r"+:.*\.12\.mlp\.down_proj": {"bits": 8, "group_size": 32}}
    facts = decode(GPTQ | {"dynamic": rules})
    assert scheme_of(facts, f"{LAYER}.self_attn.q_proj") is None
    down = scheme_of(facts, f"{LAYER}.mlp.down_proj")
    up = scheme_of(facts, f"{LAYER}.mlp.up_proj")
    assert down is not None
    assert (down.bits, down.group_size) == (8, 32)
    assert up is not None
    assert (up.bits, up.group_size) == (4, 128)


@pytest.mark.parametrize(
    ("block", "is_spared"), [({}, True), ({"lm_head": True}, False)], ids=["default", "asked"]
)
def test_awq_leaves_the_head_alone_unless_told(block: dict[str, Any], is_spared: bool) -> None:  # noqa: FBT001
    """The output head is 16 bits unless the config says it was quantised."""
    assert (scheme_of(decode(AWQ_G128 | block), "lm_head") is None) is is_spared


def test_awq_entries_are_parts_of_names() -> None:
    """AWQ's own lists name parts of modules (``visual``)."""
    facts = decode(AWQ_G128 | {"modules_to_not_convert": ["visual", "model.layers.0.self_attn"]})
    assert scheme_of(facts, "model.visual.blocks.0.attn.qkv") is None
    assert scheme_of(facts, "model.layers.0.self_attn.q_proj") is None
    assert scheme_of(facts, "model.layers.10.self_attn.q_proj") is not None


@pytest.mark.parametrize(
    ("weights", "activations", "expected"),
    [
        ({"num_bits": 8, "type": "float", "strategy": "channel"}, {"dynamic": True}, "fp8_tensor"),
        ({"num_bits": 8, "type": "float", "strategy": "block"}, {"dynamic": True}, "fp8_block"),
        ({"num_bits": 4, "type": "float", "strategy": "tensor_group", "group_size": 16}, {}, "nvfp4"),
        ({"num_bits": 4, "type": "float", "strategy": "group", "group_size": 32}, None, "mxfp4"),
        (
            {"num_bits": 4, "type": "int", "strategy": "group", "group_size": 128},
            None,
            "compressed_tensors_int4",
        ),
    ],
    ids=["fp8 per channel", "fp8 block", "nvfp4", "mxfp4", "int4"],
)
def test_compressed_tensors_groups_are_told_apart(
    weights: dict[str, Any], activations: dict[str, Any] | None, expected: str
) -> None:
    """Each layout of compressed-tensors is recognised for what it is."""
    group = {"targets": ["Linear"], "weights": weights, "input_activations": activations}
    facts = decode({"quant_method": "compressed-tensors", "config_groups": {"g": group}})
    assert facts.format == expected


def test_an_int8_layout_is_refused_rather_than_taken_for_another() -> None:
    """A layout whose sizes aren't known is refused by name."""
    group = {"targets": ["Linear"], "weights": {"num_bits": 8, "type": "int", "strategy": "channel"}}
    with pytest.raises(MissingFactError, match="8 bits"):
        decode({"quant_method": "compressed-tensors", "config_groups": {"g": group}})


def test_a_broken_expression_in_a_mask_is_named() -> None:
    """A mask that is no regular expression is an error with the entry in it."""
    with pytest.raises(MissingFactError, match="attn"):
        decode(INT4_ALL_BUT_LINEAR_ATTN | {"ignore": ["re:.*(attn"]})


def test_groups_that_are_all_empty_are_a_missing_fact() -> None:
    """A mask without a single group is refused by name, not a crash."""
    with pytest.raises(MissingFactError, match="config_groups"):
        decode({"quant_method": "compressed-tensors", "config_groups": {"": None}})
