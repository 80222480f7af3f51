"""What vLLM refuses by itself: the published faults, each with its numbers and the largest legal value."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from vllm_cases import GIB, facts_of, fill, judge, lay_out, parts_of, settle

from trimtab.core.model_facts import ModelFacts, QuantFacts, QuantScheme
from trimtab.planner.gpu_spec import decode_gpu_spec
from trimtab.planner.vllm_attention import choose_attention_backend, choose_linear_attention_kernel
from trimtab.planner.vllm_legality import LegalityRequest, check_vllm_capacity, is_legal_sharding
from trimtab.planner.vllm_versions import find_version


def with_sizes(config: str, **changes: Any) -> ModelFacts:
    """The model with another head or feed-forward size in every layer."""
    facts = facts_of(config)
    return replace(facts, layers=tuple(replace(layer, **changes) for layer in facts.layers))


def int4(facts: ModelFacts, group_size: int) -> ModelFacts:
    """The model with all Linears in 4 bits."""
    scheme = QuantScheme(format="awq", bits=4, group_size=group_size, is_weight_only=True)
    return replace(facts, quant=QuantFacts(method="awq", scheme=scheme, ignored=("lm_head",)))


def largest(facts: ModelFacts, args: dict[str, Any], version: str = "0.25.1") -> Any:
    problems = judge(facts, "8xh200", args, version)
    return {problem.code: problem.largest_legal for problem in problems}


def test_case_16_expert_parallelism_does_not_help_a_shared_expert() -> None:
    """Qwen3.5-35B-A3B-FP8: 512 wide, so TP4 at most, with whole experts too."""
    facts = facts_of("Qwen3.5-35B-A3B-FP8")
    text = {"tensor_parallel_size": 8, "language_model_only": True}
    assert largest(facts, text) == {"fp8_block": 4}
    assert largest(facts, text | {"enable_expert_parallel": True}) == {"fp8_block": 4}
    problem = judge(facts, "8xh200", text)[0]
    assert "512" in problem.text
    assert "64 per card" in problem.text


def test_case_17_spared_modules_break_no_block_rule() -> None:
    """397B-FP8 at TP8: in_proj_a and b are BF16, so their 8 rows are fine."""
    facts = facts_of("Qwen3.5-397B-A17B-FP8")
    assert judge(facts, "8xh200", {"tensor_parallel_size": 8, "language_model_only": True}) == ()


def test_case_19_an_odd_number_of_groups_cannot_be_shared() -> None:
    """29,568 / 128 = 231 groups: one card only."""
    facts = int4(with_sizes("Qwen3-32B", intermediate_size=29568), 128)
    assert largest(facts, {"tensor_parallel_size": 2}) == {"int4_group": 1}
    assert "231 groups of 128" in judge(facts, "2xh200", {"tensor_parallel_size": 2})[0].text
    padded = int4(with_sizes("Qwen3-32B", intermediate_size=29696), 128)
    assert judge(padded, "8xh200", {"tensor_parallel_size": 8}) == ()


def test_case_20_marlin_tiles_at_one_card() -> None:
    """10,944 = 85.5 x 128: no Marlin before 0.20, padded later."""
    facts = int4(with_sizes("Qwen3-32B", intermediate_size=10944), 64)
    assert [problem.code for problem in judge(facts, "1xh100", {}, "0.17.1")] == ["marlin_tile"]
    assert judge(facts, "1xh100", {}, "0.25.1") == ()


@pytest.mark.parametrize(("cards", "best"), [pytest.param(6, 5, id="six"), pytest.param(3, 2, id="three")])
def test_case_22_forty_heads_on_odd_counts(cards: int, best: int) -> None:
    """40 heads, 8 KV heads: the nearest legal degree is named instead of a failed boot."""
    facts = with_sizes("Qwen3-32B", num_heads=40)
    found = largest(facts, {"tensor_parallel_size": cards})
    assert found["attention_heads"] == (4 if cards == 6 else best)


def test_case_23_three_cards_tempt_but_fail() -> None:
    """27B: 24 query heads divide by 3, 4 KV heads and 16 key heads don't; PP3 works."""
    facts = facts_of("Qwen3.5-27B")
    text = {"language_model_only": True}
    found = largest(facts, text | {"tensor_parallel_size": 3})
    assert found == {"kv_heads": 2, "linear_attention_heads": 2}
    assert judge(facts, "3xh200", text | {"pipeline_parallel_size": 3}) == ()


@pytest.mark.parametrize(
    ("config", "degrees"),
    [
        pytest.param("Qwen3-235B-A22B-FP8", {1, 2, 4}, id="235b"),
        pytest.param("Qwen3-30B-A3B-FP8", {1, 2}, id="30b"),
    ],
)
def test_case_25_expert_widths_bound_the_degrees(config: str, degrees: set[int]) -> None:
    """1,536 and 768 wide experts in FP8 blocks of 128."""
    facts, line = facts_of(config), find_version("0.25.1").line
    legal = {
        degree
        for degree in (1, 2, 4, 8)
        if is_legal_sharding(facts, parts_of(facts), settle(facts, {"tensor_parallel_size": degree}), line)
    }
    assert legal == degrees


def test_whole_experts_lift_the_width_limit() -> None:
    """The refusal's advice works: expert parallelism makes TP8 legal where no shared expert is cut."""
    facts = facts_of("Qwen3-235B-A22B-FP8")
    cut = judge(facts, "8xh200", {"tensor_parallel_size": 8})
    assert [problem.code for problem in cut] == ["fp8_block"]
    assert "enable_expert_parallel" in cut[0].text
    assert judge(facts, "8xh200", {"tensor_parallel_size": 8, "enable_expert_parallel": True}) == ()


def test_case_26_an_fp8_cache_on_a_3090_goes_through_flashinfer() -> None:
    """Triton has none below 8.9; FlashInfer has, so the 3090 can."""
    facts, line = facts_of("Qwen3-32B"), find_version("0.25.1").line
    choice = choose_attention_backend(facts, settle(facts, {"kv_cache_dtype": "fp8"}), (8, 6), line)
    assert choice.backend == "FLASHINFER"
    forced = judge(facts, "1xrtx3090", {"kv_cache_dtype": "fp8", "attention_backend": "TRITON_ATTN"})
    assert [problem.code for problem in forced] == ["no_attention_backend"]
    assert "needs compute capability 8.9" in forced[0].text


def test_case_29_a_mixed_pair_is_judged_by_its_older_card() -> None:
    """A 4090 and a 3090: legal, and the 3090 decides the kernels."""
    facts = facts_of("Qwen3.5-27B-FP8")
    args = {"tensor_parallel_size": 2, "kv_cache_dtype": "fp8", "language_model_only": True}
    cards = "1xrtx4090,1xrtx3090"
    assert judge(facts, cards, args) == ()
    request = LegalityRequest(
        facts=facts,
        parts=parts_of(facts),
        settings=settle(facts, args),
        gpus=decode_gpu_spec(cards),
        line=find_version("0.25.1").line,
    )
    assert request.capability == (8, 6)


@pytest.mark.parametrize(
    ("capability", "dtype", "version", "backend"),
    [
        pytest.param((9, 0), "fp8", "0.25.1", "FLASH_ATTN", id="hopper-fp8"),
        pytest.param((8, 9), "fp8", "0.17.1", "FLASHINFER", id="ada-fp8"),
        pytest.param((12, 0), "fp8", "0.25.1", "FLASHINFER", id="consumer-blackwell-fp8"),
        pytest.param((10, 0), "auto", "0.17.1", "FLASHINFER", id="blackwell"),
        pytest.param((8, 0), "auto", "0.25.1", "FLASH_ATTN", id="ampere"),
        pytest.param((7, 5), "auto", "0.25.1", "TRITON_ATTN", id="turing"),
        pytest.param((8, 9), "int8_per_token_head", "0.25.1", "TRITON_ATTN", id="per-head-scales"),
        pytest.param((8, 9), "nvfp4", "0.25.1", None, id="nvfp4-on-ada"),
        pytest.param((8, 9), "int8_per_token_head", "0.17.1", None, id="per-head-scales-too-early"),
    ],
)
def test_attention_backends_by_card_and_dtype(
    capability: tuple[int, int], dtype: str, version: str, backend: str | None
) -> None:
    """The kernels that the log will name."""
    facts, line = facts_of("Qwen3.5-27B"), find_version(version).line
    choice = choose_attention_backend(
        facts, settle(facts, {"kv_cache_dtype": dtype}, version), capability, line
    )
    assert choice.backend == backend
    assert bool(choice.reasons) or backend is not None


@pytest.mark.parametrize(
    ("capability", "version", "kernel"),
    [
        pytest.param((9, 0), "0.25.1", "flashinfer", id="hopper"),
        pytest.param((8, 9), "0.33.0", "triton", id="ada"),
        pytest.param((12, 0), "0.25.1", "triton", id="consumer-blackwell"),
        pytest.param((12, 0), "0.33.0", "flashinfer", id="consumer-blackwell-0.33"),
    ],
)
def test_linear_attention_kernels_by_card(capability: tuple[int, int], version: str, kernel: str) -> None:
    """Which prefill kernel the gated delta net gets."""
    facts, line = facts_of("Qwen3.5-27B"), find_version(version).line
    assert choose_linear_attention_kernel(facts, settle(facts, {}, version), capability, line) == kernel


def test_a_checkpoint_may_ask_for_an_fp8_cache() -> None:
    """An automatic cache dtype follows the checkpoint's KV scheme."""
    facts = facts_of("Qwen3.5-35B-A3B-FP8")
    assert facts.quant is not None
    asked = replace(facts, quant=replace(facts.quant, kv_cache_format="fp8"))
    plain, _ = lay_out(facts, {})
    scaled, _ = lay_out(asked, {})
    assert scaled.block_tokens > plain.block_tokens * 1.9


def test_case_11_sequences_need_a_state_each() -> None:
    """95 blocks hold 95 sequences: 256 is refused with 95 as the largest, and the context isn't the cause."""
    facts = facts_of("Qwen3.6-35B-A3B")
    args = {"kv_cache_dtype": "fp8", "enable_prefix_caching": True, "max_model_len": 131072}
    args |= {"max_num_seqs": 256, "max_num_batched_tokens": 2096, "language_model_only": True}
    layout, settings = lay_out(facts, args)
    capacity = fill(facts, args, 95.5 * 21463040 / GIB)
    request = LegalityRequest(
        facts=facts,
        parts=parts_of(facts),
        settings=settings,
        gpus=decode_gpu_spec("h200"),
        line=find_version("0.25.1").line,
    )
    found = check_vllm_capacity(request, layout, capacity)
    assert layout.block_tokens == 2096
    assert [(problem.code, problem.largest_legal) for problem in found] == [("sequences_exceed_states", 95)]
    eager = replace(request, settings=replace(settings, cudagraph_mode="NONE"))
    assert check_vllm_capacity(eager, layout, capacity) == ()
    old = replace(request, line=find_version("0.17.1").line)
    assert check_vllm_capacity(old, layout, capacity) == ()


def test_the_aligned_block_must_fit_a_batch() -> None:
    """FP8 cache, prefix caching and the default 2,048 batched tokens: 2,096 > 2,048, until 0.27."""
    facts = facts_of("Qwen3.5-35B-A3B")
    args = {"kv_cache_dtype": "fp8", "enable_prefix_caching": True, "max_num_batched_tokens": 2048}
    args |= {"max_num_seqs": 4}
    codes = {}
    for version in ("0.17.1", "0.25.1", "0.33.0"):
        layout, settings = lay_out(facts, args, version, capability=(8, 9))
        request = LegalityRequest(
            facts=facts,
            parts=parts_of(facts),
            settings=settings,
            gpus=decode_gpu_spec("rtx4090"),
            line=find_version(version).line,
        )
        found = check_vllm_capacity(request, layout, fill(facts, args, 20, version, capability=(8, 9)))
        codes[version] = [problem.code for problem in found]
        assert all("2096" in problem.text for problem in found)
    assert codes == {"0.17.1": ["block_exceeds_batch"], "0.25.1": ["block_exceeds_batch"], "0.33.0": []}


@pytest.mark.parametrize(
    ("args", "code", "legal"),
    [
        pytest.param({"max_model_len": 262145}, "context_exceeds_model", 262144, id="too-long"),
        pytest.param(
            {"max_num_seqs": 600, "max_num_batched_tokens": 512}, "sequences_exceed_batch", 512, id="seqs"
        ),
        pytest.param({"block_size": 20}, "block_size", 16, id="block"),
        pytest.param({"mamba_cache_mode": "all"}, "mamba_cache_mode", "align", id="mode"),
        pytest.param({"tensor_parallel_size": 4}, "too_few_cards", 2, id="cards"),
        pytest.param({"swap_space": 4}, "flag_not_in_version", None, id="flag-gone"),
        pytest.param({"prefix_match_unit": 16}, "flag_not_in_version", None, id="flag-not-yet"),
    ],
)
def test_arguments_outside_their_range_are_refused(args: dict[str, Any], code: str, legal: Any) -> None:
    """One sentence with the value, the limit and what would be legal."""
    problems = judge(facts_of("Qwen3.5-27B"), "2xh200", args | {"language_model_only": True})
    assert [(problem.code, problem.largest_legal) for problem in problems] == [(code, legal)]
    assert str(next(iter(args.values()))) in problems[0].text or next(iter(args)) in problems[0].text


def test_speculation_needs_a_head() -> None:
    """Qwen3-32B has no MTP head."""
    args = {"speculative_config": '{"method":"mtp","num_speculative_tokens":2}'}
    assert [problem.code for problem in judge(facts_of("Qwen3-32B"), "1xh200", args)] == ["no_mtp_head"]


def test_a_tower_is_cut_unless_left_out_or_copied() -> None:
    """16 vision heads at TP32; language_model_only and data mode avoid it."""
    facts = facts_of("Qwen3.5-397B-A17B")
    codes = [
        [problem.code for problem in judge(facts, "32xh200", {"tensor_parallel_size": 32} | extra)]
        for extra in ({}, {"language_model_only": True}, {"mm_encoder_tp_mode": "data"})
    ]
    assert [("vision_tower" in found) for found in codes] == [True, False, False]


def test_old_cards_lack_bfloat16() -> None:
    """Turing takes half precision."""
    card = "1x custom:mem=24GiB,cc=7.5"
    problems = judge(facts_of("Qwen3-32B"), card, {})
    assert [(problem.code, problem.largest_legal) for problem in problems] == [
        ("dtype_not_supported", "float16")
    ]
    assert judge(facts_of("Qwen3-32B"), card, {"dtype": "float16"}) == ()
