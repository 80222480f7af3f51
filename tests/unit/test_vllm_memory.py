"""A replica's whole memory against real start-ups, the profile peak against allocation traces, verdicts."""

from __future__ import annotations

import re
from dataclasses import replace
from typing import Any

import pytest
from vllm_cases import GIB, budget, facts_of, parts_of, rows, settle

from trimtab.planner.gpu_spec import decode_gpu_spec
from trimtab.planner.vllm_activations import ActivationPeak, estimate_activation_peak, uses_v2_runner
from trimtab.planner.vllm_budget import CONTEXT_BYTES, MemoryRequest
from trimtab.planner.vllm_cuda_graphs import enumerate_capture_sizes, estimate_cuda_graph_memory
from trimtab.planner.vllm_memory import estimate_vllm_memory
from trimtab.planner.vllm_versions import find_version

MIB = 1 << 20
TEXT = {"language_model_only": True}
SEED = {
    "tensor_parallel_size": 4,
    "max_model_len": 262144,
    "kv_cache_dtype": "fp8",
    "gpu_memory_utilization": 0.9,
    "max_num_seqs": 4,
    "max_num_batched_tokens": 8192,
    "enable_prefix_caching": True,
    **TEXT,
}


def peak(config: str, args: dict[str, Any], mask: str | None = None, gpu: str = "h200") -> ActivationPeak:
    facts = facts_of(config, mask)
    return estimate_activation_peak(
        facts, settle(facts, args), decode_gpu_spec(gpu)[0], find_version("0.25.1").line
    )


@pytest.mark.parametrize("row", rows("profile_peaks"), ids=[row["id"] for row in rows("profile_peaks")])
def test_profile_peaks_are_those_of_allocation_traces(row: dict[str, Any]) -> None:
    """Which of the four moments peaks, and how high, in 17 traced profile runs."""
    found = peak(row["config"], row["args"], row.get("mask"))
    assert found.moment == row["moment"]
    assert abs(found.peak_bytes / MIB - row["peak_mib"]) <= 8


@pytest.mark.parametrize("row", rows("start_ups"), ids=[row["id"] for row in rows("start_ups")])
def test_real_start_ups_are_predicted_before_any_calibration(row: dict[str, Any]) -> None:
    """Each term and the cache left over, for five whole start-ups on H200."""
    cards = f"{row['args'].get('tensor_parallel_size', 1)}xh200"
    found = budget(row["config"], cards, row["args"], mask=row.get("mask"))
    card, measured = found.per_gpu[0], row["measured"]
    assert card.weights_bytes / GIB == pytest.approx(measured["weights_gib"], rel=0.005)
    assert card.activation_bytes / GIB == pytest.approx(measured["torch_peak_increase_gib"], abs=0.05)
    assert card.non_torch_bytes / GIB == pytest.approx(measured["non_torch_increase_gib"], abs=0.05)
    assert card.cuda_graph_bytes / GIB == pytest.approx(measured.get("cudagraph_estimate_gib", 0), abs=0.03)
    assert card.requested_bytes is not None
    assert card.requested_bytes / GIB == pytest.approx(measured["requested_gib"], abs=0.006)
    assert card.kv_cache_bytes / GIB == pytest.approx(measured["available_kv_gib"], abs=0.15)
    assert abs(card.kv_cache_bytes / GIB - measured["available_kv_gib"]) <= card.error_bytes / GIB
    assert found.capacity.max_concurrency == pytest.approx(measured["max_concurrency"], rel=0.01)


def test_the_27b_profile_peak_is_a_copy_of_its_embedding_table() -> None:
    """Why 27B needs 2.5 GiB at 4,096 tokens: Inductor benchmarks the embedding kernel on a random table."""
    config = "inferred-cyankiwi-Qwen3.5-27B-AWQ-4bit"
    cold = peak(config, {"max_num_seqs": 8, "max_num_batched_tokens": 4096, **TEXT})
    table = 248320 * 5120 * 2
    assert cold.moment == "compiling"
    assert cold.compiling_bytes - table == 2 * 4096 * 5120 * 2 + 60 * MIB
    assert cold.warm_peak_bytes < GIB
    eager = peak(config, {"max_num_seqs": 8, "max_num_batched_tokens": 4096, "enforce_eager": True, **TEXT})
    assert eager.compiling_bytes == 0


def test_later_starts_are_told_apart_from_the_first() -> None:
    """A warm compile cache leaves more for the KV cache, and the plan says how much."""
    found = budget("Qwen3.5-27B-FP8", "1xh200", {"max_num_batched_tokens": 4096, "max_num_seqs": 8, **TEXT})
    assert found.warm_kv_cache_bytes - found.per_gpu[0].kv_cache_bytes > GIB
    assert "first_start_has_less_cache" in [warning.code for warning in found.warnings]


def test_the_seed_case_fits_four_4090s() -> None:
    """35B-FP8 with 262,144 tokens on four 4090s under 0.17.0, 27B-FP8 on the same cards."""
    large, dense = (
        budget(name, "4xrtx4090", SEED, "0.17.0") for name in ("Qwen3.5-35B-A3B-FP8", "Qwen3.5-27B-FP8")
    )
    assert large.verdict == dense.verdict == "fits"
    assert large.per_gpu[0].weights_bytes / GIB == pytest.approx(8.48, abs=0.03)
    assert large.per_gpu[0].cuda_graph_bytes == 0
    assert large.capacity.max_concurrency > dense.capacity.max_concurrency > 4
    assert large.attention.backend == "FLASHINFER"


@pytest.mark.parametrize(
    ("config", "gpus", "args", "reason"),
    [
        pytest.param(
            "inferred-cyankiwi-Qwen3.5-35B-A3B-AWQ-4bit",
            "1xrtx4090",
            {
                "gpu_memory_utilization": 0.6,
                "kv_cache_dtype": "fp8",
                "max_model_len": 65536,
                "max_num_batched_tokens": 4096,
                **TEXT,
            },
            "no memory is left",
            id="case-1-35b-int4-on-one-4090",
        ),
        pytest.param(
            "Qwen3-30B-A3B-FP8",
            "1xrtx5090",
            {"gpu_memory_utilization": 0.95, "max_model_len": 16384},
            "no memory is left|one request of",
            id="case-2-30b-fp8-on-one-5090",
        ),
        pytest.param(
            "Qwen3.5-27B-FP8",
            "1xrtx5090",
            {"gpu_memory_utilization": 0.95, "max_model_len": 16384, **TEXT},
            "no memory is left|one request of 16384",
            id="case-2-27b-fp8-on-one-5090",
        ),
        pytest.param(
            "Qwen3.5-35B-A3B", "1xrtx5090", {"max_model_len": 4096}, "weights of", id="case-2-35b-bf16"
        ),
    ],
)
def test_what_fails_to_boot_is_refused_with_the_numbers(
    config: str, gpus: str, args: dict[str, Any], reason: str
) -> None:
    """Starts that people reported as failing get a no with the lacking bytes, not a boot."""
    found = budget(config, gpus, args)
    assert found.verdict == "does_not_fit"
    assert not found.fits
    assert re.search(reason, found.reason)
    assert found.shortfall_bytes > 0


def test_a_hybrid_on_24_gb_is_not_ruled_out_by_counting_all_layers() -> None:
    """Case 4: one 32,768-token request of 27B with FP8 KV takes 1.29 GiB, not 4."""
    found = budget(
        "inferred-cyankiwi-Qwen3.5-27B-AWQ-4bit",
        "1xrtx4090",
        {
            "kv_cache_dtype": "fp8",
            "max_model_len": 32768,
            "enable_prefix_caching": True,
            "max_num_seqs": 8,
            "gpu_memory_utilization": 0.95,
            **TEXT,
        },
    )
    assert found.capacity.needed_bytes / GIB == pytest.approx(1.29, abs=0.01)


def test_activations_follow_the_batch_and_never_the_length() -> None:
    """Case 10: raising max_model_len alone moves no activation byte; raising the batch does."""
    args = {"max_num_seqs": 8, "max_num_batched_tokens": 16384, **TEXT}
    short = peak("Llama-3.1-8B", args | {"max_model_len": 4096})
    long = peak("Llama-3.1-8B", args | {"max_model_len": 65536})
    wide = peak("Llama-3.1-8B", args | {"max_num_batched_tokens": 32768})
    assert short == long
    assert wide.forward_bytes > short.forward_bytes


def test_sampler_rows_are_the_cheapest_memory_to_give_back() -> None:
    """Case 7: 1,024 default sequences cost 3.3 GiB on a vocabulary of 248,320."""
    many = peak("Qwen3.5-35B-A3B-FP8", {"max_num_seqs": 1024, "max_num_batched_tokens": 8192, **TEXT})
    few = peak("Qwen3.5-35B-A3B-FP8", {"max_num_seqs": 16, "max_num_batched_tokens": 8192, **TEXT})
    assert many.moment == "sampler"
    assert (many.sampler_bytes - few.sampler_bytes) / GIB > 3.2


def test_a_vision_tower_costs_its_weights_and_its_profile_run() -> None:
    """Leaving it out is worth more than two GiB on a small card."""
    args = {"kv_cache_dtype": "fp8", "max_num_seqs": 16, "max_model_len": 32768}
    whole = budget("Qwen3.5-27B-FP8", "2xrtx4090", args | {"tensor_parallel_size": 2})
    text = budget("Qwen3.5-27B-FP8", "2xrtx4090", args | {"tensor_parallel_size": 2, **TEXT})
    assert text.per_gpu[0].kv_cache_bytes - whole.per_gpu[0].kv_cache_bytes > 0.4 * GIB


def test_pinned_cache_bytes_turn_the_equation_round() -> None:
    """kv_cache_memory_bytes is obeyed, the request is unknown, and what exceeds the card is said."""
    good = budget("Qwen3-32B", "1xh200", {"kv_cache_memory_bytes": 40 * GIB, "max_model_len": 40960})
    bad = budget("Qwen3-32B", "1xh200", {"kv_cache_memory_bytes": 100 * GIB, "max_model_len": 40960})
    assert (good.per_gpu[0].requested_bytes, good.per_gpu[0].kv_cache_bytes) == (None, 40 * GIB)
    assert good.verdict == "fits"
    assert good.capacity.blocks == 40 * GIB // (16 * 8 * 2 * 128 * 2 * 64)
    assert bad.verdict == "does_not_fit"
    assert "exceed the card's" in bad.reason


def test_what_other_processes_hold_stops_a_start() -> None:
    """The engine asks for its share of the whole card to be free, whoever holds the rest."""
    facts = facts_of("Qwen3.5-4B")
    card = replace(decode_gpu_spec("rtx4090")[0], free_bytes=10 * GIB)
    found = estimate_vllm_memory(
        MemoryRequest(
            facts=facts,
            parts=parts_of(facts),
            settings=settle(facts, {"max_model_len": 4096, **TEXT}, gpu=card),
            gpus=(card,),
            version=find_version("0.25.1"),
        )
    )
    assert found.verdict == "does_not_fit"
    assert "only 10.00 GiB of 23.52 GiB are free" in found.reason
    requested = found.per_gpu[0].requested_bytes
    assert requested is not None
    assert found.shortfall_bytes == requested + CONTEXT_BYTES - 10 * GIB


def test_a_measured_start_replaces_an_estimate() -> None:
    """A calibrated term moves by what was measured, with a narrower band and its source."""
    facts, card = facts_of("Qwen3-32B"), decode_gpu_spec("h200")
    request = MemoryRequest(
        facts=facts,
        parts=parts_of(facts),
        settings=settle(facts, {"max_model_len": 8192}, gpu=card[0]),
        gpus=card,
        version=find_version("0.25.1"),
    )
    before = estimate_vllm_memory(request)
    after = estimate_vllm_memory(replace(request, calibration_bytes=(("non_torch", 50 * MIB),)))
    assert before.per_gpu[0].kv_cache_bytes - after.per_gpu[0].kv_cache_bytes == 50 * MIB
    assert after.per_gpu[0].error_bytes < before.per_gpu[0].error_bytes
    assert any("calibrated" in term.source for term in after.terms[0])


def test_every_term_says_where_it_is_from() -> None:
    """No figure without a source, and those inside the budget add up with the cache to what is asked for."""
    found = budget("Qwen3.5-35B-A3B-FP8", "4xrtx4090", SEED, "0.17.0")
    for terms, card in zip(found.terms, found.per_gpu, strict=True):
        assert all(term.source for term in terms)
        inside = sum(term.nbytes for term in terms if not term.is_outside_budget)
        assert inside + card.kv_cache_bytes == card.requested_bytes
        assert sum(term.nbytes for term in terms if term.is_outside_budget) == card.outside_budget_bytes


@pytest.mark.parametrize(
    ("args", "expected"),
    [
        pytest.param({"max_num_seqs": 4}, (1, 2, 4, 8), id="four-sequences"),
        pytest.param({"max_num_seqs": 16}, (1, 2, 4, 8, 16, 24, 32), id="sixteen-sequences"),
        pytest.param({"enforce_eager": True}, (), id="eager"),
        pytest.param({"compilation_config": '{"cudagraph_capture_sizes":[4,1]}'}, (1, 4), id="sizes-pinned"),
        pytest.param(
            {
                "max_num_seqs": 2,
                "speculative_config": '{"method":"mtp","num_speculative_tokens":1}',
            },
            (2, 4, 8),
            id="speculation-doubles",
        ),
    ],
)
def test_capture_sizes_follow_the_sequences(args: dict[str, Any], expected: tuple[int, ...]) -> None:
    """The sizes that vLLM lists at start."""
    facts = facts_of("Qwen3.5-27B")
    assert enumerate_capture_sizes(settle(facts, args), facts, find_version("0.25.1").line) == expected


def test_all_51_sizes_are_captured_by_default() -> None:
    """Up to 512 tokens, as the log says."""
    facts = facts_of("Qwen3.5-27B")
    sizes = enumerate_capture_sizes(settle(facts, {}), facts, find_version("0.25.1").line)
    assert (len(sizes), sizes[-1]) == (51, 512)


def test_drafts_on_flashinfer_are_captured_in_pieces_only() -> None:
    """A published start (TP2, 2 sequences) names 5 piecewise graphs, 0.13 GiB: three drafts, none in full."""
    args = {"tensor_parallel_size": 2, "kv_cache_dtype": "fp8", "max_num_seqs": 2, "max_model_len": 131072}
    args |= {"speculative_config": '{"method":"mtp","num_speculative_tokens":3}', **TEXT}
    found = budget("Qwen3.5-27B-FP8", "2xrtx5090", args)
    assert found.attention.backend == "FLASHINFER"
    assert (found.graphs.piecewise_graphs, found.graphs.full_graphs) == (5, 0)
    assert found.graphs.subtracted_bytes / GIB == pytest.approx(0.13, abs=0.04)
    linked = budget("Qwen3.5-27B-FP8", "2xh200", args)
    assert (linked.graphs.piecewise_graphs, linked.graphs.full_graphs) == (3, 2)


def test_who_subtracts_graphs_depends_on_version_and_runner() -> None:
    """0.17 never does, 0.25 does for hybrids and reads 0 for dense models, 0.33 always does."""
    found = {
        (name, version): estimate_cuda_graph_memory(
            facts_of(name), settle(facts_of(name), {}, version), find_version(version).line
        ).subtracted_bytes
        > 0
        for name in ("Qwen3.5-27B", "Qwen3-32B")
        for version in ("0.17.1", "0.25.1", "0.33.0")
    }
    assert found == {
        ("Qwen3.5-27B", "0.17.1"): False,
        ("Qwen3.5-27B", "0.25.1"): True,
        ("Qwen3.5-27B", "0.33.0"): True,
        ("Qwen3-32B", "0.17.1"): False,
        ("Qwen3-32B", "0.25.1"): False,
        ("Qwen3-32B", "0.33.0"): True,
    }


@pytest.mark.parametrize(
    ("config", "version", "is_v2"),
    [
        pytest.param("Qwen3-32B", "0.25.1", True, id="dense"),
        pytest.param("Qwen3.5-27B", "0.25.1", False, id="hybrid"),
        pytest.param("Qwen3-30B-A3B", "0.25.1", False, id="experts"),
        pytest.param("Qwen3.5-27B", "0.33.0", True, id="hybrid-0.33"),
        pytest.param("Qwen3-32B", "0.17.1", False, id="dense-0.17"),
    ],
)
def test_the_runner_is_chosen_by_model_and_version(config: str, version: str, *, is_v2: bool) -> None:
    """As vLLM chooses it by itself."""
    assert uses_v2_runner(facts_of(config), find_version(version).line) is is_v2


def test_what_is_in_use_while_serving_is_predicted() -> None:
    """27B int4 on an H200 held 23.79 GiB after its first requests, 22.88 GiB before (nvml, 2026-11)."""
    row = next(row for row in rows("start_ups") if row["id"] == "27b-cyankiwi-24g")
    found = budget(row["config"], "1xh200", row["args"])
    assert found.runtime_peak_bytes / GIB == pytest.approx(23.79, abs=0.4)


def test_a_margin_within_the_band_is_tight() -> None:
    """A cache that holds one request, but by less than the model's own error."""
    args = {"max_model_len": 4096, "max_num_seqs": 8, "max_num_batched_tokens": 2048}
    roomy = budget("Qwen3-32B", "1xh100", args | {"gpu_memory_utilization": 0.9})
    card = roomy.per_gpu[0]
    assert card.requested_bytes is not None
    spare = card.kv_cache_bytes - (roomy.capacity.blocks_per_request + 1) * roomy.layout.bytes_per_block[0]
    share = (card.requested_bytes - spare + card.error_bytes // 2) / card.total_bytes
    close = budget("Qwen3-32B", "1xh100", args | {"gpu_memory_utilization": share})
    assert (roomy.verdict, close.verdict) == ("fits", "tight")
    assert "within the band" in close.reason


def test_a_full_card_is_tight_for_what_boot_does_not_show() -> None:
    """What is left beside the share holds a context, and not the buffers of a full batch too."""
    args = {"max_model_len": 4096, "max_num_seqs": 8, "gpu_memory_utilization": 0.975, **TEXT}
    args |= {"enforce_eager": True}
    found = budget("Qwen3.5-4B", "1xrtx4090", args)
    assert found.verdict == "tight"
    assert "run time" in found.reason
    assert "runtime_peak_exceeds_card" in [warning.code for warning in found.warnings]


def test_a_share_beside_which_no_context_has_room_never_starts() -> None:
    """The engine looks what is free once its own context exists, also on a card that is all its own."""
    args = {"max_model_len": 4096, "max_num_seqs": 8, "gpu_memory_utilization": 1, **TEXT}
    found = budget("Qwen3.5-4B", "1xrtx4090", args)
    assert found.verdict == "does_not_fit"
    assert "beside a context" in found.reason
    assert found.shortfall_bytes > 0


def test_a_pinned_cache_does_not_pay_for_compiling() -> None:
    """Compiling is over when the cache is allocated, so its 2 GiB don't count against a pinned one."""
    args = {"max_num_batched_tokens": 4096, "max_num_seqs": 8, "max_model_len": 8192, **TEXT}
    free = budget("Qwen3.5-27B-FP8", "1xrtxpro6000", args)
    over = free.activation.peak_bytes - free.activation.warm_peak_bytes
    card = free.per_gpu[0]
    rest = card.weights_bytes + card.activation_bytes + card.non_torch_bytes + card.cuda_graph_bytes
    most = card.total_bytes - rest - card.outside_budget_bytes + over
    good = budget("Qwen3.5-27B-FP8", "1xrtxpro6000", args | {"kv_cache_memory_bytes": most})
    bad = budget("Qwen3.5-27B-FP8", "1xrtxpro6000", args | {"kv_cache_memory_bytes": most + MIB})
    assert over > GIB
    assert (good.fits, bad.fits) == (True, False)
    assert bad.shortfall_bytes == MIB


def test_drafting_may_run_out_while_loading() -> None:
    """The MTP head first builds its own embeddings: 4.7 GiB for a moment on 27B."""
    args = {"max_model_len": 4096, "gpu_memory_utilization": 0.95, "max_num_seqs": 4, **TEXT}
    draft = args | {"speculative_config": '{"method":"mtp","num_speculative_tokens":1}'}
    found = budget("Qwen3.5-27B-FP8", "1xrtx5090", draft)
    assert found.verdict == "does_not_fit"
    assert "for a moment" in found.reason
