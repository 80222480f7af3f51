"""Public trouble reports that the memory model alone decides, each by its number in the case list."""

from __future__ import annotations

from dataclasses import replace

import pytest
from vllm_cases import GIB, budget, facts_of, parts_of, settle

from trimtab.planner.gpu_spec import decode_gpu_spec
from trimtab.planner.vllm_budget import MemoryRequest
from trimtab.planner.vllm_memory import estimate_vllm_memory
from trimtab.planner.vllm_versions import find_version

MIB = 1 << 20
TEXT = {"language_model_only": True}


def test_case_68_two_5090s_in_every_term() -> None:
    """27B-FP8 on 2x5090: requested 28.88, consumed 15.03, activation 1.59, graphs 0.09, KV 12.26 GiB."""
    args = {"tensor_parallel_size": 2, "gpu_memory_utilization": 0.92, "max_model_len": 131072}
    card = budget("Qwen3.5-27B-FP8", "2xrtx5090", args | {"max_num_seqs": 4}, "0.27.1").per_gpu[0]
    assert card.requested_bytes is not None
    assert card.requested_bytes / GIB == pytest.approx(28.88, abs=0.005)
    assert (card.weights_bytes + card.non_torch_bytes) / GIB == pytest.approx(15.04, abs=0.1)
    assert card.activation_bytes / GIB == pytest.approx(1.59, abs=0.12)
    left = card.requested_bytes - card.weights_bytes - card.non_torch_bytes - card.activation_bytes
    assert left / GIB == pytest.approx(12.26, abs=0.05)
    assert card.cuda_graph_bytes / GIB == pytest.approx(0.09, abs=0.03)


def test_case_68_is_exact_once_its_terms_are_known() -> None:
    """The budget equation alone: the log's terms as calibration give the log's cache to its last digit."""
    facts, cards = facts_of("Qwen3.5-27B-FP8"), decode_gpu_spec("2xrtx5090")
    args = {"tensor_parallel_size": 2, "gpu_memory_utilization": 0.92, "max_model_len": 131072}
    request = MemoryRequest(
        facts=facts,
        parts=parts_of(facts),
        settings=settle(facts, args | {"max_num_seqs": 4}, "0.27.1", cards[0]),
        gpus=cards,
        version=find_version("0.27.1"),
    )
    before = estimate_vllm_memory(request).per_gpu[0]
    consumed = int(15.03 * GIB) - before.weights_bytes - before.non_torch_bytes
    deltas = (
        ("weights", consumed),
        ("activation", int(1.59 * GIB) - before.activation_bytes),
        ("cuda_graph", -before.cuda_graph_bytes),
    )
    after = estimate_vllm_memory(replace(request, calibration_bytes=deltas)).per_gpu[0]
    assert round(after.kv_cache_bytes / GIB, 2) == 12.26


def test_case_5_graphs_are_in_the_budget_before_they_are_captured() -> None:
    """30B-A3B BF16 on four A10s runs with one sequence; 0.25 reserves the graphs, 0.17 never counted them."""
    args = {"tensor_parallel_size": 4, "max_model_len": 1024, "max_num_seqs": 1}
    compiled = budget("Qwen3-30B-A3B", "4xa10", args)
    eager = budget("Qwen3-30B-A3B", "4xa10", args | {"enforce_eager": True})
    old = budget("Qwen3-30B-A3B", "4xa10", args, "0.17.1")
    assert compiled.verdict == eager.verdict == "fits"
    assert compiled.per_gpu[0].weights_bytes / GIB == pytest.approx(14.2, abs=0.1)
    assert compiled.per_gpu[0].cuda_graph_bytes > 30 * MIB
    assert compiled.per_gpu[0].kv_cache_bytes < eager.per_gpu[0].kv_cache_bytes
    assert old.per_gpu[0].cuda_graph_bytes == 0
    assert any(term.name == "cuda_graph_capture" and term.is_outside_budget for term in old.terms[0])


def test_case_8_the_models_own_length_is_no_default_on_a_small_card() -> None:
    """Where the model's maximum doesn't fit, the longest that does is named, and it starts."""
    args = {"gpu_memory_utilization": 0.7, "max_num_seqs": 8}
    whole = budget("Llama-3.1-8B-Instruct-FP8", "1xrtx3090", args)
    fits = whole.capacity.max_model_len_that_fits
    assert whole.verdict == "does_not_fit"
    assert f"the longest that fits is {fits} tokens" in whole.reason
    assert 4096 < fits < 131072
    again = budget("Llama-3.1-8B-Instruct-FP8", "1xrtx3090", args | {"max_model_len": fits})
    assert again.fits


def test_case_10_a_bigger_batch_not_a_longer_prompt_eats_the_cache() -> None:
    """Llama-8B on a 3090 with 29,000 tokens: too little cache in one batch, enough in chunks of 2,048."""
    args = {"gpu_memory_utilization": 0.9, "max_model_len": 29000, "max_num_seqs": 8}
    whole = budget("Llama-3.1-8B", "1xrtx3090", args | {"max_num_batched_tokens": 29000})
    chunked = budget("Llama-3.1-8B", "1xrtx3090", args | {"max_num_batched_tokens": 2048})
    assert whole.verdict == "does_not_fit"
    assert chunked.fits
    assert whole.capacity.max_model_len_that_fits < 29000 <= chunked.capacity.max_model_len_that_fits


def test_case_13_no_longer_context_is_advertised_than_one_request_has_room_for() -> None:
    """27B on a 32 GB card with an automatic context: what is announced really fits the pool."""
    config = "inferred-cyankiwi-Qwen3.5-27B-AWQ-4bit"
    found = budget(config, "1xrtx5090", {"max_model_len": "auto", "max_num_seqs": 4, **TEXT})
    fits = found.capacity.max_model_len_that_fits
    assert found.verdict == "tight"
    assert f"announces {found.capacity.max_model_len} tokens" in found.reason
    assert f"max_model_len={fits}" in found.reason
    pinned = budget(config, "1xrtx5090", {"max_model_len": fits, "max_num_seqs": 4, **TEXT})
    assert pinned.capacity.blocks - 1 >= pinned.capacity.blocks_per_request
    newer = budget(config, "1xrtx5090", {"max_model_len": "auto", "max_num_seqs": 4, **TEXT}, "0.33.0")
    assert newer.capacity.max_model_len_that_fits >= newer.capacity.max_model_len
