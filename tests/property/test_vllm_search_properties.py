"""What holds for every plan on GPUs, whatever the models, the cards and the wish."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from wishes import DENSE_AWQ, DENSE_FP8, MOE_AWQ, MOE_FP8, plan, wish

from trimtab.planner.gpu_spec import decode_gpu_spec
from trimtab.planner.vllm_plan import plan_vllm

pytestmark = pytest.mark.filterwarnings("error")

REPOS = ("Qwen/Qwen3-0.6B", "Qwen/Qwen3-8B", "Qwen/Qwen3-32B-AWQ", MOE_AWQ, DENSE_AWQ, MOE_FP8, DENSE_FP8)
CARDS = ("rtx3090", "rtx4090", "rtx5090", "l40s", "a100-80g", "h200")
repos = st.sampled_from(REPOS)
contexts = st.one_of(st.none(), st.sampled_from((2048, 16384, 32768, 40960)))
concurrencies = st.one_of(st.none(), st.sampled_from((1, 4, 16, 64)))
versions = st.sampled_from(("0.17.1", "0.25.1", "0.33.0"))
inventories = st.lists(st.sampled_from(CARDS), min_size=1, max_size=4)
few = settings(max_examples=12, deadline=None)


def spec_of(cards: list[str]) -> str:
    """Cards as a user writes them."""
    return ",".join(f"1x{card}" for card in cards)


@few
@given(
    models=st.lists(repos, min_size=1, max_size=3),
    cards=inventories,
    context=contexts,
    concurrency=concurrencies,
    version=versions,
)
def test_parts_add_up_and_no_card_is_over_capacity(models, cards, context, concurrency, version):
    """What fits has a budget whose parts are its sum, on cards that hold it all; no card is used twice."""
    wishes = [
        wish(repo, name=f"m{at}", version=version, context=context, concurrency=concurrency)
        for at, repo in enumerate(models)
    ]
    outcome = plan(spec_of(cards), *wishes)

    held: dict[int, int] = {}
    for model in outcome.models:
        for replica in model.replicas:
            assert len(replica.gpus) == len(replica.per_gpu) == len(set(replica.gpus))
            for index, budget in zip(replica.gpus, replica.per_gpu, strict=True):
                parts = budget.weights_bytes + budget.activation_bytes + budget.non_torch_bytes
                assert budget.requested_bytes == parts + budget.cuda_graph_bytes + budget.kv_cache_bytes
                held[index] = held.get(index, 0) + budget.requested_bytes + budget.outside_budget_bytes
    if outcome.fits:
        totals = {gpu.index: gpu.total_bytes for gpu in decode_gpu_spec(spec_of(cards))}
        assert all(num_bytes <= totals[index] for index, num_bytes in held.items())
        assert set(outcome.placement.idle) == set(totals) - set(held)


@few
@given(repo=repos, cards=inventories, context=contexts, concurrency=concurrencies)
def test_the_search_is_deterministic_and_card_order_is_irrelevant(repo, cards, context, concurrency):
    """The same wish gets the same plan, on the same cards in any order."""
    first, second = (
        plan(spec_of(cards), wish(repo, context=context, concurrency=concurrency)) for _ in range(2)
    )
    mirrored = plan(spec_of(cards[::-1]), wish(repo, context=context, concurrency=concurrency))

    assert first == second
    assert mirrored.fits == first.fits
    if len({cards[index] for index in first.models[0].replicas[0].gpus}) > 1:
        return  # which stage of a pipeline an unlike card gets follows its number
    assert mirrored.models[0].settings == first.models[0].settings
    assert len(mirrored.models[0].replicas) == len(first.models[0].replicas)


@few
@given(
    models=st.lists(repos, min_size=1, max_size=2),
    cards=inventories,
    extra=st.sampled_from(CARDS),
    context=contexts,
)
def test_another_card_never_makes_a_plan_infeasible(models, cards, extra, context):
    """Whoever buys a card can only gain."""
    wishes = [wish(repo, name=f"m{at}", context=context) for at, repo in enumerate(models)]
    if plan(spec_of(cards), *wishes).fits:
        assert plan(spec_of([*cards, extra]), *wishes).fits


@few
@given(repo=repos, cards=inventories, context=st.sampled_from((2048, 8192, 32768)))
def test_a_shorter_context_fits_wherever_a_longer_one_does(repo, cards, context):
    """Monotone in tokens."""
    if plan(spec_of(cards), wish(repo, context=context)).fits:
        assert plan(spec_of(cards), wish(repo, context=context // 2)).fits


@few
@given(repo=repos, cards=inventories, concurrency=st.sampled_from((2, 16, 64)))
def test_fewer_requests_fit_wherever_more_do(repo, cards, concurrency):
    """Monotone in sequences."""
    if plan(spec_of(cards), wish(repo, context=8192, concurrency=concurrency)).fits:
        assert plan(spec_of(cards), wish(repo, context=8192, concurrency=concurrency // 2)).fits


@few
@given(repo=repos, cards=inventories, context=st.sampled_from((8192, 32768, 40960)))
def test_every_proposal_is_true(repo, cards, context):
    """A change that is said to fit does fit when it is wished."""
    missed = wish(repo, context=context)
    outcome = plan(spec_of(cards), missed)
    if outcome.fits:
        assert outcome.nearest_fit == ()
    for change in outcome.nearest_fit:
        keys = dict(change.change)
        if "context" in keys:
            assert plan(spec_of(cards), wish(repo, context=keys["context"])).fits
        if keys.get("gpus", "").startswith("+"):
            count, _, card = keys["gpus"][1:].partition(" ")
            assert plan(spec_of([*cards, *[card] * int(count)]), missed).fits


@few
@given(
    repo=repos,
    batch=st.sampled_from((2048, 4096, 8192)),
    seqs=st.sampled_from((1, 8, 64)),
    share=st.sampled_from((0.5, 0.8, 0.9)),
)
def test_pinned_arguments_are_obeyed_even_when_they_do_not_fit(repo, batch, seqs, share):
    """A pin is a pin: checked, explained, never changed in silence."""
    pins = {"max_num_batched_tokens": batch, "max_num_seqs": seqs, "gpu_memory_utilization": share}
    model = plan("2xrtx4090", wish(repo, engine_args=pins)).models[0]

    found = {item.name: item for item in model.settings}
    for name, value in pins.items():
        assert (found[name].value, found[name].origin) == (value, "pinned")
    budget = model.replicas[0].per_gpu[0]
    assert budget.requested_bytes == pytest.approx(budget.total_bytes * share, abs=2)


@few
@given(repo=repos, held_gib=st.integers(0, 30))
def test_what_others_hold_is_never_asked_for(repo, held_gib):
    """Memory that other processes have taken is not part of the plan, and less of it never hurts."""
    card = decode_gpu_spec("1xrtx5090")[0]
    busy = replace(card, free_bytes=max(0, card.total_bytes - (held_gib << 30)))
    outcome = plan_vllm((wish(repo),), (busy,))
    if outcome.fits:
        budget = outcome.models[0].replicas[0].per_gpu[0]
        assert budget.requested_bytes + budget.outside_budget_bytes <= busy.free_bytes
        assert plan_vllm((wish(repo),), (replace(card, free_bytes=card.total_bytes),)).fits
