"""The vLLM memory model for any settings: parts add up, more wish takes more, more memory never hurts."""

from __future__ import annotations

import time
from dataclasses import replace
from functools import lru_cache

import pytest
from hypothesis import given
from hypothesis import strategies as st
from vllm_cases import facts_of, parts_of

from trimtab.core.hardware import Gpu
from trimtab.planner.accelerator_specs import CARDS
from trimtab.planner.gpu_spec import make_gpu
from trimtab.planner.vllm_attention import choose_attention_backend
from trimtab.planner.vllm_budget import MemoryRequest
from trimtab.planner.vllm_kv_cache import KvCacheRequest, estimate_kv_cache_layout
from trimtab.planner.vllm_kv_capacity import KvCacheCapacity, estimate_kv_cache_capacity
from trimtab.planner.vllm_memory import VllmMemory, estimate_vllm_memory, make_weight_settings
from trimtab.planner.vllm_settings import VllmSettings, resolve_vllm_settings
from trimtab.planner.vllm_versions import VERSION_LINES, find_version
from trimtab.planner.vllm_weights import RankWeights, WeightSettings, estimate_weights

MODELS = (
    "Qwen3.5-35B-A3B-FP8",
    "inferred-cyankiwi-Qwen3.5-27B-AWQ-4bit",
    "Qwen3-32B",
    "Qwen3-30B-A3B-FP8",
    "gpt-oss-20b",
    "DeepSeek-V3",
    "gemma-4-26B-A4B",
    "Llama-3.1-8B",
)
GIB = 1 << 30
models = st.sampled_from(MODELS)
versions = st.sampled_from([line.version for line in VERSION_LINES])
cards = st.sampled_from([make_gpu(spec, index=0) for spec in CARDS.values()])
cache_dtypes = st.sampled_from(["auto", "fp8"])


@st.composite
def settings_of(draw: st.DrawFn) -> VllmSettings:
    """Settings that any of the models takes."""
    tokens = draw(st.sampled_from([512, 2048, 4096, 8192, 16384]))
    return VllmSettings(
        tensor_parallel_size=draw(st.sampled_from([1, 2])),
        max_model_len=draw(st.integers(1, 8192)),
        max_num_seqs=draw(st.integers(1, 512)),
        max_num_batched_tokens=tokens,
        gpu_memory_utilization=draw(st.floats(0.05, 1.0)),
        kv_cache_dtype=draw(cache_dtypes),
        mamba_cache_mode=draw(st.sampled_from(["none", "align"])),
        mm_limits_are_zero=draw(st.booleans()),
        enforce_eager=(eager := draw(st.booleans())),
        cudagraph_mode="NONE" if eager else "FULL_AND_PIECEWISE",
        compilation_mode=0 if eager else 3,
    )


@lru_cache(maxsize=512)
def weights_of(model: str, settings: WeightSettings) -> tuple[RankWeights, ...]:
    facts = facts_of(model)
    return estimate_weights(facts, parts_of(facts), settings)


def account(model: str, settings: VllmSettings, gpu: Gpu, version: str) -> VllmMemory:
    facts, match = facts_of(model), find_version(version)
    return estimate_vllm_memory(
        MemoryRequest(
            facts=facts,
            parts=parts_of(facts),
            settings=settings,
            gpus=tuple(replace(gpu, index=index) for index in range(settings.world_size)),
            version=match,
            weights=weights_of(model, make_weight_settings(settings, gpu, match.line)),
        )
    )


def capacity_of(model: str, settings: VllmSettings, nbytes: int, version: str) -> KvCacheCapacity:
    facts, line = facts_of(model), find_version(version).line
    attention = choose_attention_backend(facts, settings, (9, 0), line)
    layout = estimate_kv_cache_layout(
        facts, KvCacheRequest(settings=settings, capability=(9, 0), line=line, attention=attention)
    )
    return estimate_kv_cache_capacity(layout, (nbytes,), facts=facts, settings=settings, line=line)


@given(models, settings_of(), cards, versions)
def test_parts_add_up(model: str, settings: VllmSettings, gpu: Gpu, version: str) -> None:
    """Whatever is asked, a card's parts sum to what is requested and every band is positive."""
    found = account(model, settings, gpu, version)
    for card in found.per_gpu:
        parts = (
            card.weights_bytes
            + card.activation_bytes
            + card.non_torch_bytes
            + card.cuda_graph_bytes
            + card.kv_cache_bytes
        )
        assert parts == card.requested_bytes
        assert card.requested_bytes <= card.total_bytes
        assert min(card.weights_bytes, card.activation_bytes, card.non_torch_bytes, card.error_bytes) > 0
        assert min(card.cuda_graph_bytes, card.outside_budget_bytes) >= 0
    assert len(found.per_gpu) == settings.world_size
    assert found.reason
    assert (found.shortfall_bytes > 0) <= (found.verdict == "does_not_fit")


@given(models, settings_of(), cards, versions)
def test_the_same_question_has_the_same_answer(
    model: str, settings: VllmSettings, gpu: Gpu, version: str
) -> None:
    """Nothing depends on what was asked before."""
    assert account(model, settings, gpu, version) == account(model, settings, gpu, version)


@given(models, settings_of(), cards, versions, st.integers(0, 64 * GIB))
def test_more_memory_never_makes_a_plan_infeasible(
    model: str, settings: VllmSettings, gpu: Gpu, version: str, more: int
) -> None:
    """A larger card holds whatever a smaller one of its kind holds."""
    small = account(model, settings, gpu, version)
    large = account(model, settings, replace(gpu, total_bytes=gpu.total_bytes + more), version)
    assert large.fits >= small.fits
    assert large.capacity.blocks >= small.capacity.blocks
    assert large.shortfall_bytes <= small.shortfall_bytes


@given(models, settings_of(), cards, versions, st.integers(1, 4))
def test_a_larger_batch_leaves_no_more_for_the_cache(
    model: str, settings: VllmSettings, gpu: Gpu, version: str, factor: int
) -> None:
    """Batched tokens and sequences cost activations, never the other way round."""
    base = account(model, settings, gpu, version).per_gpu[0]
    wide = replace(settings, max_num_batched_tokens=settings.max_num_batched_tokens * factor)
    many = replace(settings, max_num_seqs=settings.max_num_seqs * factor)
    for larger in (wide, many):
        card = account(model, larger, gpu, version).per_gpu[0]
        assert card.activation_bytes >= base.activation_bytes
        assert card.kv_cache_bytes <= base.kv_cache_bytes


@given(models, settings_of(), versions, st.integers(0, 80 * GIB), st.integers(0, 8 * GIB))
def test_more_bytes_hold_more(
    model: str, settings: VllmSettings, version: str, nbytes: int, more: int
) -> None:
    """Blocks, concurrency and the longest request grow with the cache."""
    small = capacity_of(model, settings, nbytes, version)
    large = capacity_of(model, settings, nbytes + more, version)
    assert large.blocks >= small.blocks
    assert large.max_concurrency >= small.max_concurrency
    assert large.max_model_len_that_fits >= small.max_model_len_that_fits
    assert large.full_requests >= small.full_requests
    assert large.starts >= small.starts


@given(models, settings_of(), versions, st.integers(GIB, 80 * GIB), st.integers(0, 100_000))
def test_a_longer_context_needs_no_less(
    model: str, settings: VllmSettings, version: str, nbytes: int, more: int
) -> None:
    """Blocks per request and needed bytes grow with the length; the longest that fits does not move."""
    length = settings.max_model_len or 1
    short = capacity_of(model, settings, nbytes, version)
    long = capacity_of(model, replace(settings, max_model_len=length + more), nbytes, version)
    assert long.blocks_per_request >= short.blocks_per_request
    assert long.needed_bytes >= short.needed_bytes
    assert long.blocks == short.blocks
    limit = facts_of(model).max_position_embeddings
    assert min(long.max_model_len_that_fits, limit) == min(short.max_model_len_that_fits, limit)


@given(models, settings_of(), versions, st.integers(GIB // 4, 40 * GIB))
def test_the_longest_that_fits_is_the_longest(
    model: str, settings: VllmSettings, version: str, nbytes: int
) -> None:
    """It fits itself, and one token more doesn't, unless the model ends there."""
    longest = capacity_of(model, settings, nbytes, version).max_model_len_that_fits
    limit = max(facts_of(model).max_position_embeddings, settings.max_model_len or 1)
    assert 0 <= longest <= limit
    if longest > 0:
        assert capacity_of(model, replace(settings, max_model_len=longest), nbytes, version).holds_one_request
    if longest < limit:
        beyond = replace(settings, max_model_len=longest + 1)
        assert not capacity_of(model, beyond, nbytes, version).holds_one_request


@pytest.mark.alone
@pytest.mark.parametrize("model", MODELS)
def test_ten_thousand_candidates_take_two_seconds(model: str) -> None:
    """A sweep is bought with shared weights: each further candidate costs a fraction of a millisecond."""
    facts, match = facts_of(model), find_version("0.25.1")
    gpu = make_gpu(CARDS["h200"], index=0)
    base = resolve_vllm_settings((("max_model_len", 4096),), facts=facts, gpu=gpu, line=match.line)
    account(model, base, gpu, "0.25.1")
    spent_s = []
    # The quickest of three: what else runs on the cores lengthens some of them.
    for _ in range(3):
        started = time.process_time()
        for index in range(500):
            account(model, replace(base, max_model_len=1024 + index, max_num_seqs=1 + index), gpu, "0.25.1")
        spent_s.append(time.process_time() - started)
    assert min(spent_s) * 20 <= 2.0
