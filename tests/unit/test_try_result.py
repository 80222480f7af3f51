"""A try's result: predicted beside measured, in a table and in one document that may be passed on."""

from __future__ import annotations

import json

import pytest

from trimtab.bench.try_points import Cut, TryPoint
from trimtab.bench.try_result import (
    Comparison,
    PointResult,
    SpeedCorrections,
    TriedModel,
    TryRun,
    compare_memory,
    make_try_document,
)
from trimtab.cli.render_try import render_tried
from trimtab.core.plan import GpuBudget, ReplicaPlan
from trimtab.engines.vllm_phases import read_boot
from trimtab.units import GIB

# Lines of a start of vLLM 0.25.1 on an H200 (benchmarks/ground-truth, 27b-int4-24g-2k).
LOG = (
    "Model loading took 17.93 GiB and 3.1 seconds",
    "Estimated CUDA graph memory: 0.18 GiB total",
    "Available KV cache memory: 2.95 GiB",
    "GPU KV cache size: 58,789 tokens",
    "Maximum concurrency for 16,384 tokens per request: 3.59x",
)
REQUESTED = 25_518_679_655
BUDGET = GpuBudget(
    total_bytes=150_109_880_320,
    requested_bytes=REQUESTED,
    weights_bytes=19_249_399_808,
    activation_bytes=2_647_654_400,
    non_torch_bytes=268_435_456,
    cuda_graph_bytes=188_743_680,
    kv_cache_bytes=3_164_446_311,
    outside_budget_bytes=573_374_464,
    error_bytes=159_225_118,
)
REPLICA = ReplicaPlan(
    replica_id="m-0", gpus=(0,), per_gpu=(BUDGET,), kv_cache_tokens=58_789, max_concurrency=3.588
)
POINT = TryPoint(kind="decode", concurrency=4, input_tokens=1024, output_tokens=64)
FULL = TryPoint(kind="prefill", concurrency=1, input_tokens=16376, output_tokens=8, rounds=1, is_full=True)
RESULT = PointResult(
    point=POINT,
    predicted_ttft_ms=100.0,
    predicted_tpot_ms=10.0,
    ttft_ms=150.0,
    tpot_ms=11.0,
    completed=8,
    failed=0,
)
TRIED = TriedModel(
    name="qwen",
    checkpoint="org/qwen",
    engine_version="0.25.1",
    card="h200",
    num_cards=1,
    is_cpu_build=False,
    has_tokenizer=True,
    settings=(("max_model_len", 16384),),
    start_s=61.2,
    memory=compare_memory(BUDGET, REPLICA, read_boot(LOG).facts, is_cpu_build=False),
    points=(RESULT,),
    cuts=(Cut(point=FULL, reason="the budget: it takes about 90 s, 9.5 s were left"),),
    is_memory_calibrated=True,
    corrections=SpeedCorrections(ttft=(0.81, 1.2), tpot=(1.1, 1.1)),
)


def test_the_terms_of_a_real_start_stand_beside_the_plan():
    """Weights, activations by difference, graphs, cache and the printed tokens, each with its ratio."""
    rows = {item.name: item for item in TRIED.memory}

    assert rows["weights"].ratio == pytest.approx(1.0, abs=0.001)
    assert rows["available KV cache"].ratio == pytest.approx(1.0, abs=0.002)
    assert rows["KV cache"].ratio == 1.0
    assert rows["requests of full length"].measured == 3.59
    parts = ("weights", "activations and kernels", "graphs, as estimated", "available KV cache")
    assert sum(rows[name].measured for name in parts) == pytest.approx(REQUESTED, abs=8)


def test_a_cpu_is_not_compared_with_a_card():
    """What it measured is shown alone: a ratio would be a number without meaning."""
    rows = compare_memory(BUDGET, REPLICA, read_boot(LOG).facts, is_cpu_build=True)

    assert rows
    assert [item.predicted for item in rows] == [None] * len(rows)
    assert [item.ratio for item in rows] == [None] * len(rows)
    assert "activations and kernels" not in {item.name for item in rows}


@pytest.mark.parametrize(("said", "got"), [(None, 1.0), (1.0, None), (0.0, 1.0)])
def test_a_ratio_needs_both_sides(said, got):
    """Nothing is divided by nothing."""
    assert Comparison(name="x", unit="ms", predicted=said, measured=got).ratio is None


def test_the_table_shows_both_sides_and_what_was_left_out():
    """Predicted, measured, ratio; the cut with its reason; what dummy weights cannot tell."""
    text = render_tried([TRIED])

    line = next(line for line in text.splitlines() if "TTFT, 4 users, 1,024 in, 64 out" in line)
    assert line.split()[-5:] == ["100.0", "ms", "150.0", "ms", "1.500"]
    assert "not measured: 1 user, 16,376 in, 8 out (the budget: it takes about 90 s" in text
    assert "calibrated: memory and speed (first token x 0.81 to 1.20, token x 1.10, by load)" in text
    assert "MTP" in text


def test_a_full_prompt_is_said_to_have_run_or_not():
    """The plan's promise, kept or broken, in words."""
    ran = PointResult(
        point=FULL, predicted_ttft_ms=None, predicted_tpot_ms=None, ttft_ms=1.0, tpot_ms=1.0,
        completed=1, failed=0,
    )  # fmt: skip
    died = PointResult(
        point=FULL, predicted_ttft_ms=None, predicted_tpot_ms=None, ttft_ms=None, tpot_ms=None,
        completed=0, failed=1,
    )  # fmt: skip

    assert "a prompt of 16,376 tokens ran" in render_tried([TRIED.with_point(ran)])
    assert "a prompt of 16,376 tokens did NOT run" in render_tried([TRIED.with_point(died)])


def test_the_document_is_plain_json_with_versioned_schema():
    """What scripts and the record of predictions read."""
    run = TryRun(
        date="2026-11-30T10:00:00+00:00", version="0", budget_s=900.0, elapsed_s=61.24, is_interrupted=False
    )
    document = json.loads(json.dumps(make_try_document(run, [TRIED], None)))

    (model,) = document["models"]
    (point,) = model["speed"]
    assert (document["schema_version"], document["tool"]) == (1, "trimtab try")
    assert (point["ttft_ratio"], point["tpot_ratio"]) == (1.5, 1.1)
    assert (point["predicted_mean_ttft_ms"], point["mean_ttft_ms"]) == (100.0, 150.0)
    assert model["cut"][0]["input_tokens"] == 16376
    assert model["calibrated"]["speed"]["ttft"] == [0.81, 1.2]
    assert model["memory"][0]["unit"] == "bytes"
    assert model["memory"][0]["measured"] > GIB
