"""The draft head's price beside the chosen plan: what a plan with the pin says, no more and no less."""

from __future__ import annotations

import re

import pytest
from wishes import DENSE_FP8, MOE_FP8, plan, wish

PIN = {"speculative_config": {"method": "mtp", "num_speculative_tokens": 1}}


def offers(outcome):
    """The texts about speculation."""
    return [item.text for item in outcome.rejections if item.code == "speculation"]


def test_the_price_is_what_the_pinned_plan_says():
    """The same settings with the pin give the KV cache that the offer named."""
    outcome = plan("4xrtx4090", wish(MOE_FP8, context=262144, concurrency=4))
    chosen = {item.name: item.value for item in outcome.models[0].settings}
    names = ("tensor_parallel_size", "max_num_batched_tokens", "gpu_memory_utilization")
    pins = {name: chosen[name] for name in names} | {"kv_cache_dtype": "auto"}

    pinned = plan("4xrtx4090", wish(MOE_FP8, context=262144, concurrency=4, engine_args=pins | PIN))

    tokens = pinned.models[0].replicas[0].kv_cache_tokens
    before = outcome.models[0].replicas[0].kv_cache_tokens
    offered, instead_of = re.findall(r"([\d,]+) instead of ([\d,]+) tokens", offers(outcome)[0])[0]
    assert int(instead_of.replace(",", "")) == before
    assert int(offered.replace(",", "")) == pytest.approx(tokens, rel=0.01)
    assert tokens < before


def test_a_head_that_does_not_fit_is_said_to():
    """28 GB of weights on two cards leave no room for it."""
    outcome = plan("2xrtx4090", wish(DENSE_FP8))

    assert outcome.fits
    assert "does not fit on top" in offers(outcome)[0]


@pytest.mark.parametrize(
    ("repo", "pins"),
    [
        pytest.param("Qwen/Qwen3-8B", {}, id="no-head"),
        pytest.param(MOE_FP8, PIN, id="already-on"),
    ],
)
def test_nothing_is_offered_where_nothing_is_open(repo, pins):
    """A checkpoint without a head, a user who has decided."""
    assert offers(plan("4xrtx4090", wish(repo, context=8192, engine_args=pins))) == []
