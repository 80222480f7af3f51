"""The memory model against 35 whole starts of vLLM 0.25.1 on H200, term by term, and its printed figures."""

from __future__ import annotations

import json
import statistics
from functools import lru_cache
from typing import Any

import pytest
from checkpoint_facts import FOLDER
from vllm_cases import GIB, budget

from trimtab.planner.vllm_memory import VllmMemory

MIB = 1 << 20
STARTS = json.loads((FOLDER / "vllm_h200_starts.json").read_text(encoding="utf-8"))["starts"]
every_start = pytest.mark.parametrize("row", STARTS, ids=[row["id"] for row in STARTS])
LOGGED = [row for row in STARTS if row["measured"]["kv_cache_tokens"]]
CAPTURED = [row for row in STARTS if row["measured"]["piecewise_graphs"]]
SERVED = [row for row in STARTS if "used_after_long_prompt_bytes" in row["measured"]]


@lru_cache
def account(name: str, kv_cache_bytes: int | None = None) -> VllmMemory:
    row = next(row for row in STARTS if row["id"] == name)
    args = {
        name: json.dumps(value) if isinstance(value, dict) else value for name, value in row["args"].items()
    }
    if kv_cache_bytes is not None:
        args["kv_cache_memory_bytes"] = kv_cache_bytes
    cards = f"{args.get('tensor_parallel_size', 1)}xh200"
    return budget(row["config"], cards, args, mask=row.get("mask"))


def miss_of_cache(row: dict[str, Any]) -> int:
    found = account(row["id"])
    said = found.warm_kv_cache_bytes if row.get("is_warm") else found.per_gpu[0].kv_cache_bytes
    return said - row["measured"]["kv_cache_bytes"]


@every_start
def test_weights_of_a_real_start(row: dict[str, Any]) -> None:
    """What loads is known within half a percent, vision tower and draft head included."""
    said = account(row["id"]).per_gpu[0].weights_bytes
    assert said == pytest.approx(row["measured"]["weights_bytes"], rel=0.005)


@every_start
def test_the_profile_peak_of_a_real_start(row: dict[str, Any]) -> None:
    """First or later start, images or text, drafts or not, one card or two: the same moment peaks as high."""
    peak = account(row["id"]).activation
    said = peak.warm_peak_bytes if row.get("is_warm") else peak.peak_bytes
    assert abs(said - row["measured"]["activation_bytes"]) <= 66 * MIB


@every_start
def test_what_torch_does_not_hold_in_a_real_start(row: dict[str, Any]) -> None:
    """Kernels, cuBLAS and NCCL's channels."""
    said = account(row["id"]).per_gpu[0].non_torch_bytes
    assert abs(said - row["measured"]["non_torch_bytes"]) <= 12 * MIB


@every_start
def test_the_graph_estimate_of_a_real_start(row: dict[str, Any]) -> None:
    """What the engine will subtract for graphs."""
    said = account(row["id"]).per_gpu[0].cuda_graph_bytes
    assert abs(said - row["measured"]["cuda_graph_bytes"]) <= 96 * MIB


@pytest.mark.parametrize("row", CAPTURED, ids=[row["id"] for row in CAPTURED])
def test_as_many_graphs_as_the_engine_captures(row: dict[str, Any]) -> None:
    """Of each kind; drafts round sizes up to whole requests, GPT-OSS captures up to 1,024 tokens."""
    found, measured = account(row["id"]).graphs, row["measured"]
    assert (found.piecewise_graphs, found.full_graphs) == (
        measured["piecewise_graphs"],
        measured["full_graphs"],
    )


@every_start
def test_the_cache_left_by_a_real_start(row: dict[str, Any]) -> None:
    """The bytes that the engine logs as available, within 0.15 GiB and within the plan's own band."""
    miss = abs(miss_of_cache(row))
    assert miss / GIB <= 0.15
    assert miss <= account(row["id"]).per_gpu[0].error_bytes


def test_half_of_all_starts_are_met_within_0_03_gib() -> None:
    """The median and the 95th percentile over the whole record."""
    misses = sorted(abs(miss_of_cache(row)) / GIB for row in STARTS)
    assert statistics.median(misses) <= 0.03
    assert misses[int(0.95 * len(misses))] <= 0.1


@pytest.mark.parametrize("row", LOGGED, ids=[row["id"] for row in LOGGED])
def test_tokens_are_exact_for_given_bytes(row: dict[str, Any]) -> None:
    """Blocks, tokens and concurrency as the engine prints them, to the last digit."""
    measured = row["measured"]
    capacity = account(row["id"], measured["kv_cache_bytes"]).capacity
    if measured["num_gpu_blocks"] is not None:
        assert capacity.blocks == measured["num_gpu_blocks"]
    assert capacity.tokens == measured["kv_cache_tokens"]
    assert round(capacity.max_concurrency, 2) == pytest.approx(measured["max_concurrency"], abs=0.0051)


@pytest.mark.parametrize("row", SERVED, ids=[row["id"] for row in SERVED])
def test_a_long_prompt_takes_what_the_plan_says_at_most(row: dict[str, Any]) -> None:
    """What the card holds after a prompt as long as the context (32,000 tokens at most)."""
    found = account(row["id"])
    said = found.runtime_peak_bytes
    if row.get("is_warm"):
        said += found.warm_kv_cache_bytes - found.per_gpu[0].kv_cache_bytes
    used = row["measured"]["used_after_long_prompt_bytes"]
    assert -0.6 <= (said - used) / GIB <= 2.0
