"""Weights and the allocator: what holds for every model, degree and sequence."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise

from checkpoint_facts import config_names, read_config
from hypothesis import given, settings
from hypothesis import strategies as st

from trimtab.planner.cuda_allocator import MIB, CachingAllocator
from trimtab.planner.model_config import decode_model_config
from trimtab.planner.model_parts import decode_parts
from trimtab.planner.tensor_inventory import render_inventory, sum_bytes
from trimtab.planner.vllm_weights import WeightSettings, estimate_weights

MODELS = {name: decode_model_config(read_config(name)) for name in config_names() if "397B" not in name}
PARTS = {name: decode_parts(facts) for name, facts in MODELS.items()}

weight_settings = st.builds(
    WeightSettings,
    tensor_parallel_size=st.sampled_from([1, 2, 4, 8]),
    pipeline_parallel_size=st.sampled_from([1, 2, 3]),
    engine_version=st.sampled_from([(0, 17), (0, 25), (0, 33)]),
    compute_capability=st.sampled_from([(8, 0), (8, 6), (8, 9), (9, 0), (10, 0), (12, 0)]),
    is_language_model_only=st.booleans(),
    num_speculative_tokens=st.sampled_from([0, 1]),
)


@settings(max_examples=60, deadline=None)
@given(name=st.sampled_from(list(MODELS)), wanted=weight_settings)
def test_items_sum_to_the_weights_and_repeat(name: str, wanted: WeightSettings) -> None:
    """The parts that explain a figure add up to it, twice the same, with a peak at or above it."""
    first = estimate_weights(MODELS[name], PARTS[name], wanted)
    assert first == estimate_weights(MODELS[name], PARTS[name], wanted)
    for stage in first:
        assert sum(item.nbytes for item in stage.items) == stage.weights_bytes
        assert stage.load_peak_bytes >= stage.weights_bytes > 0
        assert all(item.nbytes > 0 for item in stage.items)
    assert [layer for stage in first for layer in stage.layers] == list(range(MODELS[name].num_layers))


@settings(max_examples=40, deadline=None)
@given(name=st.sampled_from(list(MODELS)), wanted=weight_settings)
def test_more_ranks_never_weigh_more_each(name: str, wanted: WeightSettings) -> None:
    """Doubling the tensor-parallel degree never makes a rank heavier."""
    doubled = replace(wanted, tensor_parallel_size=wanted.tensor_parallel_size * 2)
    less = estimate_weights(MODELS[name], PARTS[name], doubled)
    more = estimate_weights(MODELS[name], PARTS[name], wanted)
    for small, large in zip(less, more, strict=True):
        assert small.weights_bytes <= large.weights_bytes


@settings(max_examples=40, deadline=None)
@given(name=st.sampled_from(list(MODELS)))
def test_one_card_weighs_the_checkpoint_without_what_is_skipped(name: str) -> None:
    """Text-only weights on one modern card: the language tensors, plus at most what engines add."""
    facts = MODELS[name]
    language = sum_bytes(render_inventory(PARTS[name], dtype=facts.dtype), "language")
    wanted = WeightSettings(compute_capability=(8, 9), is_language_model_only=True)
    weights = estimate_weights(facts, PARTS[name], wanted)[0]
    assert 0.99 * language <= weights.weights_bytes <= 1.12 * language + 200 * MIB


@settings(max_examples=60, deadline=None)
@given(
    steps=st.lists(
        st.one_of(st.integers(1, 64 * MIB), st.integers(1, 4096), st.none()), min_size=1, max_size=60
    ),
    limit=st.sampled_from([None, 20 * MIB]),
    picks=st.randoms(use_true_random=False),
)
def test_allocator_never_loses_or_doubles_memory(
    steps: list[int | None], limit: int | None, picks: object
) -> None:
    """In any order live blocks never overlap, cover what was asked, and end at zero."""
    allocator = CachingAllocator(limit)
    live: dict[int, int] = {}
    for step in steps:
        if step is not None:
            live[allocator.allocate(step)] = step
        elif live:
            address = picks.choice(sorted(live))  # type: ignore[attr-defined]
            allocator.release(address)
            del live[address]
        assert sum(live.values()) <= allocator.allocated_bytes <= allocator.reserved_bytes
        ordered = sorted(live.items())
        assert all(a + size <= b for (a, size), (b, _) in pairwise(ordered))
    for address in live:
        allocator.release(address)
    assert allocator.allocated_bytes == 0
    assert allocator.peak_bytes <= allocator.reserved_bytes
