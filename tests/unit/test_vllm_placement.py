"""Several models on one set of cards: whole cards, shares of cards, idle ones, and what would help."""

from __future__ import annotations

import pytest
from wishes import DENSE_AWQ, DENSE_FP8, MOE_AWQ, MOE_FP8, codes, plan, setting, wish

from trimtab.errors import StackFileError
from trimtab.planner.quantisations import enumerate_editions, find_by_name


def cards_of(outcome, model: int) -> list[tuple[int, ...]]:
    """The cards of every replica of one model."""
    return [replica.gpus for replica in outcome.models[model].replicas]


def test_the_users_two_models_get_two_cards_each() -> None:
    """The second deployment of the seed case: both AWQ models at once on four 4090s, 262,144 tokens each."""
    outcome = plan(
        "4xrtx4090",
        wish(MOE_AWQ, context=262144, concurrency=16),
        wish(DENSE_AWQ, context=262144),
    )

    assert outcome.fits
    assert (cards_of(outcome, 0), cards_of(outcome, 1)) == ([(0, 1)], [(2, 3)])
    assert outcome.placement.idle == ()


def test_leftover_cards_become_replicas() -> None:
    """One small model on three cards answers three times as many."""
    outcome = plan("3xrtx4090", wish("Qwen/Qwen3-4B"))

    assert cards_of(outcome, 0) == [(0,), (1,), (2,)]


def test_replicas_asked_for_are_made_and_others_left_idle() -> None:
    """replicas: 2 on three cards leaves one, and the plan names it."""
    outcome = plan("3xrtx4090", wish("Qwen/Qwen3-4B", replicas=2))

    assert cards_of(outcome, 0) == [(0,), (1,)]
    assert outcome.placement.idle == (2,)


def test_more_replicas_than_cards_is_refused_with_the_number_that_works() -> None:
    """replicas: 3 on two cards names 2."""
    outcome = plan("2xrtx4090", wish("Qwen/Qwen3-4B", replicas=3))

    assert not outcome.fits
    assert dict(outcome.nearest_fit[0].change)["replicas"] == 2


def test_odd_cards_serve_the_model_that_they_carry() -> None:
    """Two 5090s and a 3090: the large model takes the pair, the small one the odd card."""
    outcome = plan("2xrtx5090,1xrtx3090", wish("Qwen/Qwen3-4B"), wish(DENSE_FP8))

    assert (cards_of(outcome, 0), cards_of(outcome, 1)) == ([(2,)], [(0, 1)])


def test_models_share_a_card_in_turn_when_there_is_only_one() -> None:
    """Shares, what lies beside them and a spare add up to the card; the order of starts is said."""
    outcome = plan("1xh200", wish(MOE_AWQ), wish(DENSE_AWQ))

    assert outcome.fits
    assert cards_of(outcome, 0) == cards_of(outcome, 1) == [(0,)]
    budgets = [model.replicas[0].per_gpu[0] for model in outcome.models]
    assert sum(b.requested_bytes + b.outside_budget_bytes for b in budgets) <= budgets[0].total_bytes
    assert all(any(w.code == "shared_cards" for w in model.warnings) for model in outcome.models)


def test_shared_cards_shorten_only_contexts_that_nobody_asked_for() -> None:
    """What was asked stays; the other model gives way."""
    asked = wish("Qwen/Qwen3-8B", name="asked", context=40960)
    outcome = plan("1xl40s", asked, wish(DENSE_AWQ, name="free"))

    assert outcome.fits
    assert setting(outcome, "max_model_len", 0) == 40960
    assert setting(outcome, "max_model_len", 1) < 262144
    assert any(w.code == "context_shortened" for w in outcome.models[1].warnings)


def test_named_cards_are_kept_to() -> None:
    """gpus: 2,3 of a model is obeyed, and the other model gets the rest."""
    outcome = plan("4xrtx4090", wish(MOE_AWQ, gpus="2,3"), wish("Qwen/Qwen3-4B", name="small"))

    assert cards_of(outcome, 0) == [(2, 3)]
    assert cards_of(outcome, 1) == [(0,), (1,)]


def test_too_much_for_one_card_names_what_would_help() -> None:
    """Two large models on one 4090: more cards are proposed, and they really help."""
    outcome = plan("1xrtx4090", wish(MOE_AWQ), wish(DENSE_AWQ))

    assert not outcome.fits
    texts = [change.text for change in outcome.nearest_fit]
    assert any("more NVIDIA GeForce RTX 4090" in text for text in texts)


def test_other_quantisations_are_proposed_by_name() -> None:
    """FP8 on one 5090 does not fit; the same model in 4 bit does."""
    outcome = plan("1xrtx5090", wish(DENSE_FP8, context=32768), alternatives=(DENSE_AWQ,))

    assert any(dict(change.change).get("checkpoint") == DENSE_AWQ for change in outcome.nearest_fit)


def test_a_pin_that_stands_in_the_way_is_named() -> None:
    """kv_cache_dtype=bfloat16 at 262,144 tokens: leaving the choice to the planner fits."""
    pins = {"kv_cache_dtype": "bfloat16", "tensor_parallel_size": 2}
    outcome = plan("2xrtx4090", wish(DENSE_FP8, context=262144, engine_args=pins))

    assert not outcome.fits
    assert any("kv_cache_dtype left to the planner" in change.text for change in outcome.nearest_fit)


def test_fewer_concessions_are_made_when_nobody_asks_for_more() -> None:
    """Without a wish for concurrency the cache keeps the model's own precision."""
    modest = plan("4xrtx4090", wish(DENSE_FP8, context=131072))
    greedy = plan("4xrtx4090", wish(DENSE_FP8, context=131072, concurrency=8))

    assert setting(modest, "kv_cache_dtype") is None
    assert setting(greedy, "kv_cache_dtype") == "fp8"


def test_thinking_off_is_told_to_the_template_and_the_parsers_are_the_familys() -> None:
    """thinking: off becomes the template's argument; a model without a switch says so."""
    outcome = plan("4xrtx4090", wish(MOE_FP8, thinking="off"))

    assert setting(outcome, "default_chat_template_kwargs") == '{"enable_thinking": false}'
    assert setting(outcome, "reasoning_parser") == "qwen3"
    assert outcome.models[0].family == "qwen3.5"
    other = plan("4xh200", wish("Qwen/Qwen3-Next-80B-A3B-Instruct", thinking="off"))
    assert any(w.code == "thinking_without_switch" for w in other.models[0].warnings)


@pytest.mark.parametrize(
    ("request_", "words"),
    [
        pytest.param({"context": 4096, "engine_args": {"max_model_len": 8192}}, "context 4096", id="context"),
        pytest.param(
            {"concurrency": 2, "engine_args": {"max_num_seqs": 8}}, "concurrency 2", id="concurrency"
        ),
        pytest.param({"engine_args": {"port": 9000}}, "engine_args.port", id="port"),
        pytest.param(
            {"engine_args": {"gpu_memory_utilization": 0.9, "kv_cache_memory_bytes": 10**9}},
            "kv_cache_memory_bytes",
            id="two-budgets",
        ),
    ],
)
def test_wishes_that_contradict_themselves_are_refused(request_, words) -> None:
    """One sentence that names both sides."""
    with pytest.raises(StackFileError, match=words):
        plan("1xrtx4090", wish("Qwen/Qwen3-4B", **request_))


def test_every_candidate_shape_is_accepted_or_rejected_with_one_reason() -> None:
    """Why not TP1, why not TP3: each shape is there once."""
    outcome = plan("4xrtx4090", wish(MOE_FP8, context=262144, concurrency=4))

    shapes = [
        dict(rejection.candidate)["tensor_parallel_size"]
        for rejection in outcome.rejections
        if rejection.code != "speculation"
    ]
    assert sorted([*shapes, setting(outcome, "tensor_parallel_size")]) == [1, 2, 3, 4]
    assert codes(outcome) >= {"memory", "attention_heads"}


def test_editions_are_told_by_name() -> None:
    """The words of quantisations are dropped, nothing else is."""
    known = (
        DENSE_FP8,
        DENSE_AWQ,
        "Qwen/Qwen3.5-27B",
        "Qwen/Qwen3.5-27B-GPTQ-Int4",
        MOE_FP8,
        "Qwen/Qwen3-32B",
    )

    assert enumerate_editions(DENSE_FP8, known) == (
        "Qwen/Qwen3.5-27B",
        "Qwen/Qwen3.5-27B-GPTQ-Int4",
        DENSE_AWQ,
    )
    assert enumerate_editions("/data/Qwen3-32B-AWQ/", known) == ("Qwen/Qwen3-32B",)
    assert find_by_name(("/data/models/qwen3.5-27b-fp8",), known) == DENSE_FP8
    assert find_by_name(("/model", "mine"), known) is None


def test_a_small_model_shares_a_card_so_that_a_large_one_has_two() -> None:
    """32B and 30B take two cards each, the 0.6B sits beside one of them; none is squeezed onto one card."""
    outcome = plan(
        "4xrtx4090",
        wish("Qwen/Qwen3-32B-AWQ", context=32768, concurrency=4),
        wish("Qwen/Qwen3-30B-A3B-FP8", context=32768, concurrency=4),
        wish("Qwen/Qwen3-0.6B", context=4096, concurrency=2),
    )

    assert outcome.fits
    assert [len(cards_of(outcome, index)[0]) for index in range(3)] == [2, 2, 1]
    assert len(outcome.placement.shared) == 1
    held: dict[int, int] = {}
    for model in outcome.models:
        for index, budget in zip(model.replicas[0].gpus, model.replicas[0].per_gpu, strict=True):
            held[index] = held.get(index, 0) + budget.requested_bytes + budget.outside_budget_bytes
    assert max(held.values()) <= outcome.models[0].replicas[0].per_gpu[0].total_bytes


def test_named_cards_are_kept_to_when_they_are_shared() -> None:
    """Two models name card 0, one of them card 1 too: neither goes elsewhere."""
    outcome = plan("4xrtx4090", wish("Qwen/Qwen3-32B-AWQ", gpus="0,1"), wish("Qwen/Qwen3-0.6B", gpus="0"))

    assert outcome.fits
    assert (cards_of(outcome, 0), cards_of(outcome, 1)) == ([(0, 1)], [(0,)])
    assert outcome.placement.idle == (2, 3)


def test_many_small_models_fill_few_cards_evenly() -> None:
    """Eight of them on two cards, four each."""
    outcome = plan(
        "2xrtx4090", *(wish("Qwen/Qwen3-0.6B", name=f"m{number}", context=4096) for number in range(8))
    )

    assert outcome.fits
    used = [cards_of(outcome, index)[0][0] for index in range(8)]
    assert sorted(used) == [0, 0, 0, 0, 1, 1, 1, 1]


def test_a_context_is_not_cut_for_a_card_that_could_be_shared() -> None:
    """Four models on four cards: the large one gets two, small ones share, rather than a short context."""
    outcome = plan(
        "4xrtx4090",
        wish("Qwen/Qwen3-32B-AWQ"),
        *(wish("Qwen/Qwen3-0.6B", name=f"m{number}") for number in range(3)),
    )

    assert setting(outcome, "max_model_len") == 40960
    assert len(cards_of(outcome, 0)[0]) == 2
