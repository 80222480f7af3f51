"""Contexts beyond a model's own: YaRN that a user pins, that a config has, and that the authors document."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest
from wishes import DENSE_FP8, known, plan, wish

from trimtab.core.stack import ModelRequest
from trimtab.errors import StackFileError
from trimtab.planner.rope_stretch import find_documented_stretch, stretch_facts

REPO = "Qwen/Qwen3-32B-AWQ"
YARN = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 32768}


def stretched(overrides, **request):
    """A wish whose facts follow its pinned overrides, as the command line makes it."""
    pins = {"hf_overrides": overrides}
    return wish(REPO, facts=stretch_facts(known(REPO)[0], pins), engine_args=pins, **request)


@pytest.mark.parametrize(
    "overrides",
    [
        pytest.param(json.dumps({"rope_parameters": YARN}), id="text"),
        pytest.param({"rope_parameters": YARN}, id="mapping"),
        pytest.param({"rope_scaling": YARN}, id="older-key"),
        pytest.param({"text_config": {"rope_parameters": YARN}}, id="text-section"),
    ],
)
def test_a_pinned_stretch_is_followed(overrides):
    """131,072 tokens of a model made for 40,960."""
    outcome = plan("2xrtx4090", stretched(overrides, context=131072))

    assert outcome.fits
    assert outcome.models[0].max_model_len == 131072
    assert "not_modelled" not in {warning.code for warning in outcome.models[0].warnings}


def test_beyond_the_stretch_is_still_refused():
    """The limit is the stretched one, and said."""
    outcome = plan("2xrtx4090", stretched({"rope_parameters": YARN}, context=200000))

    assert "above the model's 131072 positions" in outcome.rejections[0].text


def test_the_documented_stretch_is_proposed_and_true():
    """A wish beyond the model's positions gets the pin that makes it legal, checked by planning it."""
    outcome = plan("2xrtx4090", wish(REPO, context=131072))

    change = dict(outcome.nearest_fit[0].change)
    assert not outcome.fits
    assert plan("2xrtx4090", stretched(change["hf_overrides"], context=131072)).fits


@pytest.mark.parametrize(
    ("repo", "tokens", "factor"),
    [
        pytest.param(REPO, 65536, 2.0, id="twice"),
        pytest.param(REPO, 65537, 4.0, id="four-times"),
        pytest.param(REPO, 131073, None, id="beyond-what-is-validated"),
        pytest.param(DENSE_FP8, 300000, None, id="no-documented-way"),
    ],
)
def test_only_documented_factors_are_proposed(repo, tokens, factor):
    """No factor is made up."""
    found = find_documented_stretch(known(repo)[0], tokens)

    assert (None if found is None else json.loads(found)["rope_parameters"]["factor"]) == factor


@pytest.mark.parametrize(
    "settings",
    [
        pytest.param(YARN | {"factor": 0}, id="zero"),
        pytest.param(YARN | {"factor": float("nan")}, id="nan"),
        pytest.param(YARN | {"factor": "4"}, id="text"),
        pytest.param(YARN | {"factor": True}, id="flag"),
        pytest.param(YARN | {"factor": 1e9}, id="absurd"),
        pytest.param(YARN | {"original_max_position_embeddings": -1}, id="negative"),
        pytest.param(YARN | {"original_max_position_embeddings": None}, id="null"),
    ],
)
def test_a_stretch_without_sense_is_refused(settings):
    """The key is named."""
    with pytest.raises(StackFileError, match="hf_overrides"):
        stretch_facts(known(REPO)[0], {"hf_overrides": {"rope_parameters": settings}})


def test_other_overrides_change_nothing():
    """Only YaRN is followed."""
    facts = known(REPO)[0]
    for overrides in (None, {}, {"a": 1}, {"rope_parameters": {"rope_type": "linear", "factor": 2.0}}):
        assert stretch_facts(facts, {"hf_overrides": overrides}) == facts


def test_pins_left_to_the_planner_keep_the_stretch():
    """Proposals that drop pins do not turn it into another model."""
    pins = {
        "hf_overrides": {"rope_parameters": YARN},
        "tensor_parallel_size": 1,
        "pipeline_parallel_size": 1,
        "kv_cache_dtype": "auto",
    }
    missed = replace(
        stretched(pins["hf_overrides"]),
        request=ModelRequest(name="m", checkpoint=REPO, context=131072, engine_args=tuple(pins.items())),
    )
    outcome = plan("4xrtx4090", missed)

    assert not outcome.fits
    freed = [
        change for change in outcome.nearest_fit if dict(change.change).get("tensor_parallel_size", 0) is None
    ]
    assert freed
