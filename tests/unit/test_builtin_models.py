"""Built-in model facts: offline, equal to the published configs, and honest about what is inferred."""

from __future__ import annotations

import pytest
from checkpoint_facts import inventories, read_config

from trimtab.planner.model_config import decode_model_config
from trimtab.planner.model_parts import decode_parts
from trimtab.planner.tensor_inventory import render_inventory, sum_bytes
from trimtab.probes.builtin_models import list_builtin_models, read_builtin_model


@pytest.mark.parametrize("repo_id", list_builtin_models(), ids=list(list_builtin_models()))
def test_every_built_in_model_decodes_and_names_its_source(repo_id: str) -> None:
    """Each repository in the list can be planned without a network, and says where its facts are from."""
    found = read_builtin_model(repo_id)
    assert found is not None
    assert found.source
    assert found.source in found.facts.basis
    assert sum_bytes(render_inventory(decode_parts(found.facts), dtype=found.facts.dtype)) > 1e9


@pytest.mark.parametrize("name", list(inventories()), ids=list(inventories()))
def test_built_in_facts_weigh_what_the_checked_checkpoint_weighs(name: str) -> None:
    """The shortened configs mean the same as the full ones, mask included."""
    plain = name.removeprefix("inferred-cyankiwi-")
    repo_id = f"Qwen/{name}" if plain == name else f"cyankiwi/{plain}"
    found = read_builtin_model(repo_id)
    assert found is not None
    tensors = render_inventory(decode_parts(found.facts), dtype=found.facts.dtype)
    assert sum_bytes(tensors) == inventories()[name]["total_bytes"]
    full = decode_model_config(read_config(name))
    assert found.facts.layers == full.layers
    assert found.facts.rope == full.rope


def test_inferred_masks_are_marked_and_have_a_wider_band() -> None:
    """Where the mask was worked out from sizes, a plan can say so."""
    inferred = read_builtin_model("cyankiwi/Qwen3.5-35B-A3B-AWQ-4bit")
    published = read_builtin_model("Qwen/Qwen3.5-35B-A3B-FP8")
    assert inferred is not None
    assert published is not None
    assert inferred.is_inferred
    assert not published.is_inferred
    assert inferred.facts.error_ratio >= 0.05 > published.facts.error_ratio


def test_names_are_found_in_any_case_and_others_are_not() -> None:
    """Typing the id in lower case works; a repository that isn't built in is None, not a guess."""
    assert read_builtin_model("qwen/qwen3.5-27b-fp8") is not None
    assert read_builtin_model("Qwen/Qwen9-1T") is None


@pytest.mark.parametrize(
    ("repo_id", "parameters"),
    [
        ("Qwen/Qwen3-8B", 8_190_735_360),
        ("Qwen/Qwen3-14B", 14_768_307_200),
        ("Qwen/Qwen3-32B", 32_762_123_264),
    ],
    ids=["8b", "14b", "32b"],
)
def test_dense_qwen3_has_the_published_parameter_count(repo_id: str, parameters: int) -> None:
    """The small models' shapes give the published number of parameters."""
    found = read_builtin_model(repo_id)
    assert found is not None
    assert sum_bytes(render_inventory(decode_parts(found.facts), dtype="bfloat16")) == 2 * parameters
