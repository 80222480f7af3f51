"""Public trouble reports, each as what the planner says in place of the failed boot (named for its fault).

The cases' numbers are those of the collection they are from; arithmetic on single terms is tested beside
the modules that do it (test_vllm_legality, test_vllm_memory, test_vllm_kv_cache).
"""

from __future__ import annotations

from dataclasses import replace

import pytest
from checkpoint_facts import read_config
from wishes import DENSE_AWQ, DENSE_FP8, MOE_AWQ, MOE_FP8, codes, known, plan, setting, wish

from trimtab.core.model_facts import ModelFacts, QuantFacts, QuantScheme
from trimtab.planner.model_config import decode_model_config

GIB = 1 << 30


def texts(outcome) -> str:
    """All reasons and proposals in one string."""
    return "\n".join([*(r.text for r in outcome.rejections), *(c.text for c in outcome.nearest_fit)])


def test_case_1_lowering_the_share_never_makes_weights_fit() -> None:
    """35B 4-bit on one 4090 at 0.6: no, because weights are inside the share; two cards at TP2 would do."""
    args = {
        "gpu_memory_utilization": 0.6,
        "kv_cache_dtype": "fp8",
        "max_model_len": 65536,
        "language_model_only": True,
    }
    outcome = plan("1xrtx4090", wish("cyankiwi/Qwen3.6-35B-A3B-AWQ-4bit", engine_args=args))

    assert not outcome.fits
    assert "14.11 GiB asked for" in texts(outcome)
    assert outcome.models[0].replicas[0].per_gpu[0].weights_bytes == pytest.approx(21.44 * GIB, rel=0.02)
    assert any("1 more NVIDIA GeForce RTX 4090: TP2" in change.text for change in outcome.nearest_fit)
    assert plan("2xrtx4090", wish("cyankiwi/Qwen3.6-35B-A3B-AWQ-4bit", context=65536)).fits


@pytest.mark.parametrize(
    ("repo", "context"),
    [
        pytest.param("Qwen/Qwen3-30B-A3B-FP8", 16384, id="30b-fp8"),
        pytest.param(DENSE_FP8, 16384, id="27b-fp8"),
        pytest.param("Qwen/Qwen3.5-35B-A3B", 16384, id="35b-bf16"),
    ],
)
def test_case_2_a_5090_holds_none_of_these_but_a_pair_or_4_bit_does(repo: str, context: int) -> None:
    """Lowering the share is no way out; a second card or 4-bit weights are."""
    outcome = plan("1xrtx5090", wish(repo, context=context), alternatives=(DENSE_AWQ,))

    assert not outcome.fits
    assert any("cyankiwi" in change.text for change in outcome.nearest_fit)
    if repo != "Qwen/Qwen3.5-35B-A3B":
        assert any("1 more NVIDIA GeForce RTX 5090" in change.text for change in outcome.nearest_fit)
    else:
        assert "exceed the card's 31.39 GiB" in texts(outcome)


def test_case_4_a_hybrid_keeps_kv_in_a_quarter_of_its_layers() -> None:
    """27B at 32,768 tokens on 24 GB: tight, not impossible; 32 KiB per token, not 128."""
    outcome = plan("1xrtx4090", wish(DENSE_AWQ, context=32768))

    assert outcome.fits
    replica = outcome.models[0].replicas[0]
    needed = 27 * 51.4e6
    assert replica.per_gpu[0].kv_cache_bytes < 4 * GIB
    assert replica.per_gpu[0].kv_cache_bytes >= needed


def test_case_5_graphs_are_reserved_and_the_context_not_blamed() -> None:
    """30B BF16 on four A10 at 1,024 tokens fits; what capture takes is part of the account."""
    outcome = plan(
        "4xa10",
        wish("Qwen/Qwen3-30B-A3B", context=1024, concurrency=1, engine_args={"tensor_parallel_size": 4}),
    )

    assert outcome.fits
    budget = outcome.models[0].replicas[0].per_gpu[0]
    assert budget.cuda_graph_bytes > 0
    assert budget.requested_bytes + budget.outside_budget_bytes <= budget.total_bytes
    early = plan(
        "4xa10",
        wish(
            "Qwen/Qwen3-30B-A3B",
            version="0.17.1",
            context=1024,
            concurrency=1,
            engine_args={"tensor_parallel_size": 4},
        ),
    ).models[0]
    assert early.replicas[0].per_gpu[0].cuda_graph_bytes == 0
    assert early.replicas[0].per_gpu[0].requested_bytes < budget.total_bytes


@pytest.mark.parametrize("gpus", ["1xrtx4090", "8xh200"], ids=["small", "large"])
def test_case_7_sequences_are_always_set_and_never_the_engines_256_or_1024(gpus: str) -> None:
    """The sampler's dummy requests take memory; nobody here has a thousand users."""
    assert setting(plan(gpus, wish("Qwen/Qwen3-8B")), "max_num_seqs") <= 32


def test_case_8_the_length_is_what_the_pool_holds_when_nobody_asked() -> None:
    """A 3090 without --max-model-len: a length within the pool, not the model card's maximum."""
    facts = replace(known("Qwen/Qwen3-8B")[0], max_position_embeddings=262144)
    outcome = plan("1xrtx3090", wish("Qwen/Qwen3-8B", facts=facts))

    length = setting(outcome, "max_model_len")
    replica = outcome.models[0].replicas[0]
    assert outcome.fits
    assert length % 1024 == 0
    assert length <= replica.kv_cache_tokens
    assert length <= replica.max_model_len_that_fits < 262144
    assert any(warning.code == "context_shortened" for warning in outcome.models[0].warnings)


def test_case_8_a_length_beyond_the_pool_is_answered_with_the_largest_that_fits() -> None:
    """Asked is asked: it does not fit, and the nearest length is named and verified."""
    facts = replace(known("Qwen/Qwen3-8B")[0], max_position_embeddings=262144)
    outcome = plan("1xrtx3090", wish("Qwen/Qwen3-8B", facts=facts, context=200000))

    assert not outcome.fits
    change = dict(outcome.nearest_fit[0].change)
    assert plan("1xrtx3090", wish("Qwen/Qwen3-8B", facts=facts, context=change["context"])).fits


def test_case_11_sequences_beyond_the_states_are_lowered_and_the_context_kept() -> None:
    """256 sequences on fewer blocks: refused with the number, and fewer sequences proposed first."""
    args = {
        "kv_cache_dtype": "fp8",
        "max_num_seqs": 256,
        "max_model_len": 131072,
        "kv_cache_memory_bytes": int(95.5 * 21.46e6),
        "enable_prefix_caching": False,
        "language_model_only": True,
    }
    outcome = plan("1xrtx5090", wish(MOE_AWQ, engine_args=args))

    assert codes(outcome) >= {"sequences_exceed_states"}
    assert outcome.models[0].replicas[0].kv_blocks == 95
    assert round(outcome.models[0].replicas[0].max_concurrency, 2) == 1.44
    assert dict(outcome.nearest_fit[0].change)["max_num_seqs"] == 95
    free = plan("1xrtx5090", wish(MOE_AWQ, context=131072, engine_args={"kv_cache_dtype": "fp8"}))
    assert free.fits
    assert setting(free, "max_num_seqs") <= free.models[0].replicas[0].kv_blocks


def test_case_13_the_advertised_length_is_what_one_request_can_use() -> None:
    """27B on 32 GB without a wish: the planned length never exceeds the pool of one request."""
    outcome = plan("1xrtx5090", wish(DENSE_AWQ))

    model = outcome.models[0]
    assert outcome.fits
    assert model.max_model_len <= model.replicas[0].max_model_len_that_fits


def test_case_14_a_model_beyond_the_card_is_no_plan_with_a_warning() -> None:
    """Qwen3-32B in 4 bit on a 6 GB laptop card does not fit, and nothing pretends otherwise."""
    outcome = plan("1x custom:mem=6GiB,bw=336GB/s,cc=7.5", wish("Qwen/Qwen3-32B-AWQ"))

    assert not outcome.fits
    assert outcome.models[0].fits is False
    assert "exceed the card's 6.00 GiB" in texts(outcome)


def test_case_16_a_shared_expert_bounds_the_degree_and_copied_heads_are_named() -> None:
    """35B FP8 at TP8: 512 / 8 = 64 is no FP8 block; four cards are the most, with the KV heads copied."""
    outcome = plan("8xrtx4090", wish(MOE_FP8, engine_args={"tensor_parallel_size": 8}))

    assert "fp8_block" in codes(outcome)
    assert any(dict(change.change).get("tensor_parallel_size") == 4 for change in outcome.nearest_fit)
    four = plan("4xrtx4090", wish(MOE_FP8, engine_args={"tensor_parallel_size": 4}))
    assert any(warning.code == "kv_heads_copied" for warning in four.models[0].warnings)


def test_case_17_skipped_modules_do_not_stop_397b_at_eight_cards() -> None:
    """in_proj_a/b are BF16 in the checkpoint: TP8 is legal."""
    outcome = plan("8xh200", wish("Qwen/Qwen3.5-397B-A17B-FP8", engine_args={"tensor_parallel_size": 8}))

    assert outcome.fits


def int4(facts: ModelFacts, group: int) -> ModelFacts:
    """The same model in AWQ."""
    scheme = QuantScheme(format="awq", bits=4, group_size=group, is_symmetric=False)
    return replace(facts, quant=QuantFacts(method="awq", scheme=scheme))


def test_case_19_an_unshareable_group_count_falls_back_to_pipelines_or_one_card() -> None:
    """29,568 inputs are 231 groups of 128: no tensor parallel; layers are spread over the cards instead."""
    layers = known("Qwen/Qwen3-32B")[0].layers
    wide = replace(
        known("Qwen/Qwen3-32B")[0], layers=tuple(replace(layer, intermediate_size=29568) for layer in layers)
    )
    outcome = plan("2xrtx4090", wish("Qwen/Qwen3-32B", facts=int4(wide, 128), context=8192))

    assert outcome.fits
    assert (setting(outcome, "tensor_parallel_size"), setting(outcome, "pipeline_parallel_size")) == (1, 2)
    assert "231 groups of 128" in texts(outcome)


@pytest.mark.parametrize(("cards", "degree", "replicas"), [(6, 2, 3), (3, 2, 1)], ids=["six", "three"])
def test_case_22_spare_cards_become_replicas_and_illegal_degrees_are_never_chosen(
    cards: int, degree: int, replicas: int
) -> None:
    """40 heads on 6 or 3 cards: the largest legal split, three times if there is room, the odd card named."""
    layers = known("Qwen/Qwen3-14B")[0].layers
    forty = replace(
        known("Qwen/Qwen3-14B")[0], layers=tuple(replace(layer, num_heads=40) for layer in layers)
    )
    outcome = plan(f"{cards}xrtx4090", wish("Qwen/Qwen3-14B", facts=forty, context=40960))

    assert outcome.fits
    assert setting(outcome, "tensor_parallel_size") == degree
    assert len(outcome.models[0].replicas) == replicas
    assert outcome.placement.idle == (() if cards == 6 else (2,))


def test_case_23_three_cards_get_a_pair_and_an_idle_one_or_a_pipeline() -> None:
    """27B: 24 heads divide by 3, the KV and key heads do not; TP2 or PP3, never TP3."""
    outcome = plan("3xrtx4090", wish(DENSE_FP8, context=32768))
    assert outcome.fits
    assert setting(outcome, "tensor_parallel_size") == 2
    assert outcome.placement.idle == (2,)

    pinned = plan(
        "3xrtx4090", wish("Qwen/Qwen3.5-27B", context=32768, engine_args={"tensor_parallel_size": 3})
    )
    assert codes(pinned) >= {"kv_heads", "linear_attention_heads"}
    assert any("TP1×PP3" in change.text for change in pinned.nearest_fit)


def test_case_25_whole_experts_before_a_no() -> None:
    """30B FP8 at TP4 (768 / 4 is no block): the same four cards with experts kept whole."""
    outcome = plan("4xrtx4090", wish("Qwen/Qwen3-30B-A3B-FP8", engine_args={"tensor_parallel_size": 4}))

    assert outcome.fits
    assert setting(outcome, "enable_expert_parallel") is True
    reason = next(s.reason for s in outcome.models[0].settings if s.name == "enable_expert_parallel")
    assert "experts" in reason


def test_case_26_a_3090_takes_an_fp8_cache_through_flashinfer_by_name() -> None:
    """Not "3090 cannot": the backend that can is written out."""
    outcome = plan("2xrtx3090", wish(DENSE_AWQ, engine_args={"kv_cache_dtype": "fp8"}))

    assert outcome.fits
    assert setting(outcome, "attention_backend") == "FLASHINFER"
    assert (
        setting(
            plan("2xrtx4090", wish(DENSE_AWQ, engine_args={"kv_cache_dtype": "fp8"})), "attention_backend"
        )
        is None
    )


def test_case_28_computed_kv_scales_are_warned_of() -> None:
    """fp8 KV with calculate_kv_scales turns this family to gibberish."""
    args = {"kv_cache_dtype": "fp8", "calculate_kv_scales": True}
    outcome = plan("2xrtx4090", wish(DENSE_AWQ, engine_args=args))

    assert any(warning.code == "kv_scales" for warning in outcome.models[0].warnings)


def test_case_29_a_mixed_pair_is_legal_with_one_kernel_for_both() -> None:
    """27B FP8 over a 4090 and a 3090 at 219,520 tokens, as its author runs it."""
    args = {"kv_cache_dtype": "fp8", "tensor_parallel_size": 2, "language_model_only": True}
    outcome = plan("1xrtx4090,1xrtx3090", wish(DENSE_FP8, context=219520, engine_args=args))

    assert outcome.fits
    model = outcome.models[0]
    assert model.replicas[0].gpus == (0, 1)
    assert model.replicas[0].per_gpu[0].weights_bytes == pytest.approx(13.7 * GIB, rel=0.05)
    assert setting(outcome, "attention_backend") == "FLASHINFER"
    assert any(warning.code == "mixed_cards" for warning in model.warnings)


def test_case_67_the_published_pool_of_an_nvfp4_model_comes_out_exactly() -> None:
    """5.98 GiB on a 5090: 299 blocks, 4.33x, 567,978 tokens, as the log printed."""
    facts = known("Qwen/Qwen3.5-35B-A3B")[0]
    assert facts == decode_model_config(read_config("Qwen3.5-35B-A3B")) or facts.num_layers == 40
    args = {
        "kv_cache_dtype": "fp8",
        "enable_prefix_caching": True,
        "max_model_len": 131072,
        "kv_cache_memory_bytes": int(5.98 * GIB),
        "max_num_seqs": 4,
    }
    outcome = plan(
        "1xh100", wish("Qwen/Qwen3.5-35B-A3B", engine_args=args | {"max_num_batched_tokens": 4096})
    )

    replica = outcome.models[0].replicas[0]
    assert replica.kv_blocks == 299
    assert round(replica.max_concurrency, 2) == 4.33
    assert replica.kv_cache_tokens == pytest.approx(567978, abs=1)
