"""A hybrid that boots on a 24 GB card and dies at a long prompt: the plan keeps the room or says it doesn't.

Reported for Qwen3.6-27B int4 on one RTX 3090, batches of 4,128 tokens, three drafted tokens: with
gpu_memory_utilization 0.95 a prompt of 60,000 tokens ended in "out of memory" although the engine had booted;
at 0.93 it passed with 0.5 GiB to spare, and on two cards no length failed (club-3090, docs/CLIFFS.md,
Apache-2.0, 2026-05).
"""

from __future__ import annotations

import json
from typing import Any

import pytest
from vllm_cases import GIB, budget
from wishes import DENSE_AWQ, plan, wish

MODEL = "inferred-cyankiwi-Qwen3.5-27B-AWQ-4bit"
REPORTED: dict[str, Any] = {
    "max_model_len": 12288,
    "max_num_seqs": 1,
    "max_num_batched_tokens": 4128,
    "kv_cache_dtype": "fp8",
    "language_model_only": True,
    "speculative_config": json.dumps({"method": "mtp", "num_speculative_tokens": 3}),
}


def codes(found: Any) -> set[str]:
    return {warning.code for warning in found.warnings}


@pytest.mark.parametrize("card", ["1xrtx3090", "1xrtx4090"])
def test_the_reported_death_at_a_long_prompt_is_told_beforehand(card: str) -> None:
    """With 0.95 of the card the engine would start, and the plan calls it tight because of the run time."""
    found = budget(MODEL, card, REPORTED | {"gpu_memory_utilization": 0.95})
    assert found.capacity.holds_one_request
    assert found.verdict == "tight"
    assert "runtime_peak_exceeds_card" in codes(found)


def test_two_cards_leave_the_room() -> None:
    """As reported: halves of the heads and of the weights, and nothing to be told."""
    found = budget(MODEL, "2xrtx3090", REPORTED | {"gpu_memory_utilization": 0.9, "tensor_parallel_size": 2})
    assert found.verdict == "fits"
    assert "runtime_peak_exceeds_card" not in codes(found)


@pytest.mark.parametrize("card", ["1xrtx3090", "1xrtx4090"])
def test_the_cache_that_the_warning_names_leaves_the_room(card: str) -> None:
    """Pinned as the plan says, the same engine holds a request and a full batch at every start."""
    args = REPORTED | {"gpu_memory_utilization": 0.95}
    told = budget(MODEL, card, args)
    (text,) = (warning.text for warning in told.warnings if warning.code == "runtime_peak_exceeds_card")
    pinned = int(text.partition("kv_cache_memory_bytes: ")[2].split()[0])
    found = budget(MODEL, card, args | {"kv_cache_memory_bytes": pinned})
    assert found.capacity.holds_one_request
    assert "runtime_peak_exceeds_card" not in codes(found)
    assert found.runtime_peak_bytes + 0.25 * GIB < found.per_gpu[0].total_bytes


@pytest.mark.parametrize("card", ["1xrtx3090", "1xrtx4090"])
@pytest.mark.parametrize("context", [16_384, 32_768, 45_056])
def test_what_the_planner_chooses_leaves_the_room_or_says_so(card: str, context: int) -> None:
    """Its share holds a full batch beside the first start's cache; of a later start's it warns."""
    outcome = plan(card, wish(DENSE_AWQ, context=context, concurrency=1))
    assert outcome.fits
    (model,) = outcome.models
    args = {item.name: item.value for item in model.settings if item.value is not None}
    names = (
        "gpu_memory_utilization",
        "max_model_len",
        "max_num_seqs",
        "max_num_batched_tokens",
        "kv_cache_dtype",
        "language_model_only",
        "enable_prefix_caching",
    )
    found = budget(MODEL, card, {name: args[name] for name in names if name in args})
    total = found.per_gpu[0].total_bytes
    assert found.runtime_peak_bytes < total
    later = found.runtime_peak_bytes + found.warm_kv_cache_bytes - found.per_gpu[0].kv_cache_bytes
    assert later <= total or "runtime_peak_exceeds_card" in {warning.code for warning in model.warnings}
