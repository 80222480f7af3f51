"""Expressions out of a checkpoint's config: those that quantisers write work, and none can stall a plan."""

from __future__ import annotations

import re
import time

import pytest

from trimtab.errors import StackFileError
from trimtab.planner.config_reader import ConfigReader
from trimtab.planner.mask_expression import MOST_ENTRIES, compile_expression, match_wildcard
from trimtab.planner.quant_config import decode_quantization, scheme_of

NAME = "model.language_model.layers.61.linear_attn.in_proj_qkv_aaaaaaaaaa"
# As published checkpoints and llm-compressor's and GPTQModel's examples have them.
REAL = (
    r".*lm_head",
    r".*mlp\..*",
    r"visual.*",
    r"^model\.layers\.\d+\..*$",
    r".*linear_attn[.]in_proj_a$",
    r"model[.]visual.*",
    r".*mlp\.(gate|up|gate_up|down)_proj.*",
    r".*block_sparse_moe\.gate$",
    r".*\.(q|k|v|o|gate|up|down)_proj$",
    r"language_model\.model\.layers\.([0-9]|[1-5][0-9]|6[01])\.self_attn\..*",
    r"^(?!.*experts).*",
    r"model\.layers\.(?:0|1|2|61)\..*(?:q_proj|kv_b_proj)$",
    r".*\.layers\.(\d+)\.mlp\.experts\.\d+\.(w1|w2|w3)$",
    r"(?:.*\.)?mlp\.gate",
    r"(?i).*vision_tower.*",
    r".*layers\.[0-9]+\..*experts.*down_proj$",
)


@pytest.mark.parametrize("expression", REAL)
def test_expressions_of_real_checkpoints_are_taken(expression: str) -> None:
    """A published mask is matched as its quantiser meant it."""
    assert compile_expression(expression).pattern == expression


@pytest.mark.parametrize(
    "expression",
    [
        r"^(([a-z0-9_.])+)+!$",
        r"(a+)+!",
        r"(.*)*!",
        r"(.|a)+!",
        r"(a|a)*!",
        r"(?:a?){60}!",
        r"(a*){5}!",
        "a?" * 64 + "a" * 64,
        ".*" * 8 + "!",
        r"(?:[a-z]+\.?)*!",
        "(?x)( . + ) +!",
        "(.+(?#c))+!",
        r"(?>a+|b)+!",
        r"((?:a|b){1,9}c?){2,}!",
        "x" * 5000,
    ],
)
def test_an_expression_that_could_stall_the_plan_is_refused(expression: str) -> None:
    """A config from a hub cannot make ``plan`` hang."""
    with pytest.raises(StackFileError, match="quantization_config has"):
        compile_expression(expression)


def test_what_is_taken_is_matched_quickly() -> None:
    """The slowest kind that passes takes a fraction of a second on one name."""
    for expression in (".*.*.*!", ".*a.*a.*a.*!", r".*(a|_|.)(a|_|.)\w*\w*!", "[a-z_.0-9]+.*[a-z]*!"):
        compiled = compile_expression(expression)
        start = time.perf_counter()
        assert compiled.match(NAME) is None
        assert time.perf_counter() - start < 1.0


@pytest.mark.parametrize("key", ["ignore", "targets"])
def test_a_hostile_mask_is_refused_before_it_is_matched(key: str) -> None:
    """The sentence names the file, the block and the expression."""
    weights = {"num_bits": 8, "type": "float", "strategy": "channel"}
    group = {"weights": weights, "targets": ["Linear"]}
    block = {"quant_method": "compressed-tensors", "config_groups": {"g": group}, "ignore": []}
    (group if key == "targets" else block)[key] = [r"re:^(([a-z0-9_.])+)+!$"]
    reader = ConfigReader(block, where="m/config.json", path="quantization_config.")
    with pytest.raises(StackFileError, match=r"m/config\.json: quantization_config has the expression"):
        decode_quantization(reader)


def test_too_many_patterns_are_refused_and_plain_names_are_not_counted() -> None:
    """A list of every module that was spared is fine; thousands of expressions are not."""
    block = {"quant_method": "fp8", "modules_to_not_convert": [f"m.layers.{i}.mlp" for i in range(20_000)]}
    facts = decode_quantization(ConfigReader(block, where="config.json"))
    assert facts is not None
    assert scheme_of(facts, "m.layers.19999.mlp.up_proj") is None
    block["modules_to_not_convert"] = [f"re:.*x{i}" for i in range(MOST_ENTRIES)]
    with pytest.raises(StackFileError, match="4,097 patterns"):
        decode_quantization(ConfigReader(block, where="config.json"))


@pytest.mark.parametrize("entry", ["model.*", "*.mlp", "layers.*.self_attn", "a*b*c", "**", "*proj*", "l*.o"])
@pytest.mark.parametrize("name", ["model.layers.1.self_attn.o", "layers.1.mlp", "aXbYc.d", "xa.b.c", "model"])
def test_a_star_stands_for_anything_between_whole_parts(entry: str, name: str) -> None:
    """Stars mean what they meant as a regular expression, without its cost."""
    expected = re.search(r"(^|\.)" + re.escape(entry).replace(r"\*", ".*") + r"($|\.)", name) is not None
    assert match_wildcard(entry, name) is expected
