"""The KV cache in blocks: what real vLLM printed for the same bytes, exactly."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from vllm_cases import GIB, facts_of, fill, lay_out, rows

from trimtab.errors import MissingFactError
from trimtab.planner.vllm_attention import AttentionChoice


@pytest.mark.parametrize("row", rows("kv_cache"), ids=[row["id"] for row in rows("kv_cache")])
def test_blocks_tokens_and_concurrency_are_what_vllm_printed(row: dict[str, Any]) -> None:
    """Given the bytes, the plan's figures and the log's are the same numbers."""
    attention = None
    if "kernel_block_tokens" in row:
        attention = AttentionChoice(
            backend="CPU_ATTN",
            block_tokens=row["block_tokens"],
            kernel_block_tokens=row["kernel_block_tokens"],
        )
    where = {"capability": tuple(row["capability"]), "attention": attention}
    facts = facts_of(row["config"], row.get("mask"))
    layout, _ = lay_out(facts, row["args"], row["version"], **where)
    capacity = fill(facts, row["args"], row["available_gib"], row["version"], **where)
    found = {
        "blocks": capacity.blocks,
        "block_tokens": layout.block_tokens,
        "tokens": capacity.tokens,
        "concurrency": round(capacity.max_concurrency, 2),
    }
    assert {key: found[key] for key in row["expect"]} == row["expect"]


@pytest.mark.parametrize("row", rows("hybrid_layouts"), ids=[row["id"] for row in rows("hybrid_layouts")])
def test_hybrid_blocks_are_large_enough_for_a_state(row: dict[str, Any]) -> None:
    """Block size, page and blocks of a full-length request, with and without caching and MTP."""
    facts = facts_of(row["config"])
    base = {"tensor_parallel_size": row["tp"], "kv_cache_dtype": row["kv"], "max_model_len": 262144}
    plain, settings = lay_out(facts, base, capability=(8, 9))
    aligned, _ = lay_out(facts, base | {"enable_prefix_caching": True}, capability=(8, 9))
    drafting = base | {
        "enable_prefix_caching": True,
        "speculative_config": '{"method":"mtp","num_speculative_tokens":1}',
    }
    mtp, _ = lay_out(facts, drafting, capability=(8, 9))
    batch = settings.max_num_batched_tokens
    assert plain.block_tokens == row["block"]
    assert plain.bytes_per_block == (row["page"] * row["layers"],)
    assert plain.blocks_per_request(262144, batch) == row["none"]
    assert aligned.blocks_per_request(262144, batch) == row["align"]
    assert (mtp.block_tokens, mtp.blocks_per_request(262144, batch)) == (row["mtp_block"], row["mtp_align"])
    assert len(mtp.groups) == 4
    assert mtp.padding_layers == 3


@pytest.mark.parametrize(
    "row",
    rows("hybrid_layouts_0_33_hopper"),
    ids=[row["id"] for row in rows("hybrid_layouts_0_33_hopper")],
)
def test_newer_vllm_keeps_a_third_state_per_group(row: dict[str, Any]) -> None:
    """0.33 with FlashInfer's prefill aligns to 64 and exports checkpoints."""
    facts = facts_of(row["config"])
    args = {"tensor_parallel_size": row["tp"], "kv_cache_dtype": row["kv"], "max_model_len": 262144}
    layout, settings = lay_out(facts, args, "0.33.0")
    capacity = fill(facts, args, 40, "0.33.0")
    assert layout.block_tokens == row["block"]
    assert layout.blocks_per_request(262144, settings.max_num_batched_tokens) == row["align"]
    assert capacity.needed_bytes / GIB == pytest.approx(row["needed_gib"], abs=0.006)


def test_old_vllm_starts_hybrids_that_cannot_serve() -> None:
    """0.17 prices one group: 27B with 10 GiB starts at 0.62x and never schedules a full prompt."""
    facts, args = facts_of("Qwen3.5-27B"), {"max_model_len": 262144}
    old, new = fill(facts, args, 10, "0.17.0"), fill(facts, args, 10, "0.25.1")
    assert round(old.max_concurrency, 2) == 0.62
    assert (old.starts, old.holds_one_request) == (True, False)
    assert (new.starts, new.holds_one_request) == (False, False)


def test_a_refusal_names_the_length_that_the_error_message_names() -> None:
    """The engine's hint and ours agree: 27B BF16 in 9.5 GiB stops at 152,880 tokens."""
    capacity = fill(facts_of("Qwen3.5-27B"), {"max_model_len": 262144}, 9.5)
    assert capacity.needed_bytes / GIB == pytest.approx(16.17, abs=0.006)
    assert capacity.suggested_max_model_len == 152880


def test_the_null_block_is_never_given_to_a_request() -> None:
    """What fits leaves one block over; 0.33 checks that itself."""
    facts, args = facts_of("Qwen3-32B"), {"max_model_len": 40960}
    exact = 2560 * 16 * 8 * 2 * 128 * 2 * 64 / GIB
    assert fill(facts, args, exact, "0.25.1").starts
    assert not fill(facts, args, exact, "0.25.1").holds_one_request
    assert not fill(facts, args, exact, "0.33.0").starts


def test_automatic_length_is_the_longest_that_fits() -> None:
    """max_model_len auto ends at a whole number of blocks."""
    capacity = fill(facts_of("Qwen3.5-27B"), {"max_model_len": "auto"}, 9.5)
    assert capacity.max_model_len == 152880
    assert capacity.starts


def test_an_override_replaces_the_block_count() -> None:
    """num_gpu_blocks_override is obeyed whatever the memory."""
    capacity = fill(facts_of("Qwen3-32B"), {"max_model_len": 1024, "num_gpu_blocks_override": 100}, 10)
    assert (capacity.blocks, capacity.tokens) == (100, 1600)


def test_kv_heads_below_the_cards_are_copied() -> None:
    """TP4 doesn't halve the 35B's cache of TP2: its two KV heads are copied."""
    facts = facts_of("Qwen3.5-35B-A3B")
    two, _ = lay_out(facts, {"tensor_parallel_size": 2})
    four, _ = lay_out(facts, {"tensor_parallel_size": 4})
    assert four.block_tokens * 2 == two.block_tokens
    assert four.bytes_per_block[0] * 2 == two.bytes_per_block[0]


def test_sliding_windows_hold_a_window_and_a_batch() -> None:
    """GPT-OSS: two groups, and a sliding layer's need depends on the batch, not on the length."""
    facts = facts_of("gpt-oss-20b")
    layout, _ = lay_out(facts, {})
    assert [group.spec.kind for group in layout.groups] == ["sliding", "full"]
    short = layout.blocks_per_request(131072, 2048) - layout.blocks_per_request(131072, 1024)
    assert short == 1024 // 16
    whole, _ = lay_out(facts, {"disable_hybrid_kv_cache_manager": True})
    assert len(whole.groups) == 1


def test_latent_attention_keeps_576_elements_on_every_rank() -> None:
    """DeepSeek's cache isn't divided by tensor parallelism."""
    facts = facts_of("DeepSeek-V3")
    one, _ = lay_out(facts, {"tensor_parallel_size": 1})
    eight, _ = lay_out(facts, {"tensor_parallel_size": 8})
    assert one.bytes_per_block == eight.bytes_per_block == (one.block_tokens * 576 * 2 * 61,)


def test_pipeline_stages_share_one_block_count() -> None:
    """Each stage holds its own layers; the fullest stage decides."""
    facts = facts_of("Qwen3-32B")
    layout, _ = lay_out(facts, {"pipeline_parallel_size": 3})
    page = 16 * 8 * 2 * 128 * 2
    assert layout.bytes_per_block == (page * 21, page * 22, page * 21)


def test_mixed_page_sizes_are_unified_or_refused() -> None:
    """Gemma 4's wide global layers share blocks with its local ones."""
    layout, _ = lay_out(facts_of("gemma-4-26B-A4B"), {})
    pages = {page for group in layout.groups for page in group.page_bytes_by_layer}
    assert len(pages) == 1
    facts = facts_of("gpt-oss-20b")
    odd = replace(facts.layers[0], head_dim=80, v_head_dim=80)
    uneven = replace(facts, layers=(odd, *facts.layers[1:]))
    with pytest.raises(MissingFactError, match="doesn't divide the largest page"):
        lay_out(uneven, {}, "0.17.0")


def test_per_head_scales_are_part_of_the_page() -> None:
    """int8 per token and head adds two float32 per head."""
    facts = facts_of("Qwen3-32B")
    plain, _ = lay_out(facts, {"kv_cache_dtype": "fp8"})
    scaled, _ = lay_out(facts, {"kv_cache_dtype": "int8_per_token_head"})
    assert scaled.bytes_per_block[0] - plain.bytes_per_block[0] == 16 * 8 * 2 * 4 * 64


def test_packed_caches_that_are_not_known_are_refused() -> None:
    """A number without a source doesn't enter a plan."""
    with pytest.raises(MissingFactError, match="turboquant"):
        lay_out(facts_of("Qwen3-32B"), {"kv_cache_dtype": "turboquant_k8v4"})


@pytest.mark.parametrize(
    ("version", "sizes"),
    [pytest.param("0.17.1", [10, 7, 7], id="0.17"), pytest.param("0.25.1", [10, 14], id="0.25")],
)
def test_layer_types_of_similar_number_share_one_group_size(version: str, sizes: list[int]) -> None:
    """14 sliding beside 10 full layers: padded to one size since the ratio went from 1.25 to 1.5."""
    facts = facts_of("gpt-oss-20b")
    sliding, full = facts.layers[0], facts.layers[1]
    uneven = replace(facts, layers=(full,) * 10 + (sliding,) * 14)
    layout, _ = lay_out(uneven, {}, version)
    assert [len(group.layers) for group in layout.groups] == sizes


def test_context_parallelism_shares_the_length() -> None:
    """Each of two context ranks keeps half the tokens."""
    facts = facts_of("DeepSeek-V3")
    layout, _ = lay_out(facts, {"decode_context_parallel_size": 2})
    assert layout.blocks_per_request(65536, 8192) == 32768 // layout.block_tokens
