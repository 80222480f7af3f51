"""Models that sleep when they give way: RAM for all of them, and room on every card for what they keep."""

from __future__ import annotations

from itertools import product

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from wishes import DENSE_AWQ, MOE_AWQ, known

from trimtab.cli.render import render_plan
from trimtab.core.hardware import Host, Inventory
from trimtab.core.model_source import ModelSource
from trimtab.core.plan import Plan
from trimtab.core.stack import ModelRequest, Stack, SwapSettings
from trimtab.engines.vllm_diagnosis import Diagnosis
from trimtab.engines.vllm_emit import EMIT_FORMS, render_emit
from trimtab.launcher.replan import Replanner
from trimtab.launcher.specs import SpecOptions, specs_of
from trimtab.launcher.supervision import RunEnd
from trimtab.planner.cuda_allocator import CachingAllocator
from trimtab.planner.gpu_spec import decode_gpu_spec
from trimtab.planner.smaller_plan import smaller_plan
from trimtab.planner.stack_plan import World, plan_stack
from trimtab.stackfile.plan_document import plan_from_document, plan_to_document
from trimtab.units import GIB, MIB

LARGE = {"checkpoint": "Qwen/Qwen3-32B-AWQ", "context": 8192}
OPTIONS = SpecOptions(trimtab_version="0", dies_with_supervisor=True)


def plan_cards(gpus: str, *requests: ModelRequest, ram: int = 256 * GIB, sleep: str = "auto") -> Plan:
    sources = []
    for request in requests:
        facts, parts = known(request.checkpoint)
        source = ModelSource(
            checkpoint=request.checkpoint, facts=facts, parts=parts, origin="built in", mask_origin="config"
        )
        sources.append(source)
    host = Host(total_ram_bytes=ram, available_ram_bytes=ram, physical_cores=2, logical_cores=4)
    world = World(inventory=Inventory(host=host, gpus=decode_gpu_spec(gpus)), python="", llama_cpp_version="")
    stack = Stack(name="s", models=requests, swap=SwapSettings(sleep=sleep))
    return plan_stack(stack, tuple(sources), world)


def check_cards(plan: Plan) -> None:
    """On every card, whatever is loaded at one time and all that may sleep beside it fit."""
    sizes = {gpu.index: gpu.total_bytes for gpu in plan.hardware.gpus}
    models = {model.name: model for model in plan.models}
    for loaded, card in product(plan.swap.resident_sets, sizes):
        used = 0
        for name in loaded:
            for replica in models[name].replicas:
                for index, budget in zip(replica.gpus, replica.per_gpu, strict=True):
                    if index == card:
                        used += budget.requested_bytes + budget.outside_budget_bytes
        for one in plan.swap.sleepers:
            homes = {index for replica in models[one.model].replicas for index in replica.gpus}
            used += one.card_bytes if one.model not in loaded and card in homes else 0
        assert used <= sizes[card], (loaded, card)


def share_of(plan: Plan, name: str) -> float:
    model = next(model for model in plan.models if model.name == name)
    return next(item.value for item in model.settings if item.name == "gpu_memory_utilization")


def test_two_that_take_a_card_in_turn_sleep_and_leave_each_other_room():
    """Each asks for less of the card than alone, by what the other keeps of it."""
    requests = ModelRequest(name="a", **LARGE), ModelRequest(name="b", **LARGE)
    plan = plan_cards("1xrtx5090", *requests)
    alone = plan_cards("1xrtx5090", *requests, sleep="off")

    assert [one.model for one in plan.swap.sleepers] == ["a", "b"]
    assert plan.swap.stopped == ()
    check_cards(plan)
    assert share_of(plan, "b") < share_of(alone, "b")
    assert alone.swap.sleepers == () == alone.swap.stopped
    assert 18 * GIB < plan.swap.sleepers[0].host_bytes < 40 * GIB


def test_an_engine_is_known_by_the_cache_that_its_slots_share():
    """The gateway holds requests back by what the plan says fits."""
    (spec,) = specs_of(plan_cards("1xrtx5090", ModelRequest(name="a", **LARGE)), OPTIONS)
    (model,) = plan_cards("1xrtx5090", ModelRequest(name="a", **LARGE)).models

    assert spec.kv_cache_tokens == model.replicas[0].kv_cache_tokens > 1000


def test_an_engine_that_may_sleep_is_told_so_and_opens_its_endpoints():
    """The flag and the variable go together; without sleep neither is there."""
    requests = ModelRequest(name="a", **LARGE), ModelRequest(name="b", **LARGE)
    for spec in specs_of(plan_cards("1xrtx5090", *requests), OPTIONS):
        assert "--enable-sleep-mode" in spec.argv
        assert ("VLLM_SERVER_DEV_MODE", "1") in spec.env
        assert spec.argv[spec.argv.index("--host") + 1] == "127.0.0.1"
        assert spec.sleep.card_bytes < 4 * GIB < spec.sleep.freed_bytes
    for spec in specs_of(plan_cards("1xrtx5090", *requests, sleep="off"), OPTIONS):
        assert "--enable-sleep-mode" not in spec.argv
        assert "VLLM_SERVER_DEV_MODE" not in dict(spec.env)
        assert spec.sleep is None


def test_the_cache_of_an_engine_that_may_sleep_is_given_in_bytes():
    """With sleep mode vLLM before 0.32 sizes it wrongly; the share must still be free at the start."""
    requests = ModelRequest(name="a", **LARGE), ModelRequest(name="b", **LARGE)
    plan = plan_cards("1xrtx5090", *requests)
    for model, spec in zip(plan.models, specs_of(plan, OPTIONS), strict=True):
        size = model.replicas[0].per_gpu[0].kv_cache_bytes
        assert spec.argv[spec.argv.index("--kv-cache-memory-bytes") + 1] == str(size)
        assert "--gpu-memory-utilization" in spec.argv
    for spec in specs_of(plan_cards("1xrtx5090", *requests, sleep="off"), OPTIONS):
        assert "--kv-cache-memory-bytes" not in spec.argv


def test_a_smaller_share_after_a_failed_start_makes_the_given_cache_smaller_too():
    """Else the engine would ignore the smaller share and fail again."""
    plan = plan_cards("1xrtx5090", ModelRequest(name="a", **LARGE), ModelRequest(name="b", **LARGE))
    model = plan.models[0]
    diagnosis = Diagnosis(code="gpu_out_of_memory", happened="it ended", why="the card is full", advice="")

    made = smaller_plan(model, diagnosis).model

    (before, after) = (
        next(item.value for item in one.settings if item.name == "kv_cache_memory_bytes")
        for one in (model, made)
    )
    assert after < before
    assert made.argv[made.argv.index("--kv-cache-memory-bytes") + 1] == str(after)


def test_a_plan_that_others_run_opens_no_development_endpoints():
    """What is emitted listens on all addresses, and nobody puts it to sleep there."""
    plan = plan_cards("1xrtx5090", ModelRequest(name="a", **LARGE), ModelRequest(name="b", **LARGE))

    assert plan.swap.sleepers
    for form in EMIT_FORMS:
        text = render_emit(plan, form)
        assert "DEV_MODE" not in text
        assert "sleep-mode" not in text
        assert "kv-cache-memory-bytes" not in text


def test_an_engine_that_does_not_start_with_sleep_mode_is_tried_without():
    """A build or a card that cannot sleep still serves; an end after it had answered is no such sign."""
    plans = [plan_cards("1xrtx5090", ModelRequest(name="a", **LARGE), ModelRequest(name="b", **LARGE))]
    replanner = Replanner(
        read=lambda: plans[-1], take=plans.append, specs_of=lambda one: specs_of(one, OPTIONS)
    )
    spec = specs_of(plans[0], OPTIONS)[0]
    log = ("ValueError: Sleep mode is not supported on current platform.",)

    assert replanner.replan(spec, RunEnd(ran_for_s=9, ready_for_s=5, log_tail=log)) is None
    made = replanner.replan(spec, RunEnd(ran_for_s=9, log_tail=log))
    assert "did not start with enable_sleep_mode" in made.text
    assert "--enable-sleep-mode" not in made.spec.argv
    assert "--kv-cache-memory-bytes" not in made.spec.argv
    assert "VLLM_SERVER_DEV_MODE" not in dict(made.spec.env)
    assert made.spec.sleep is None
    assert made.spec.config_hash != spec.config_hash
    assert [one.model for one in plans[-1].swap.sleepers] == ["b"]
    assert [name for name, _ in plans[-1].swap.stopped] == ["a"]
    assert replanner.replan(made.spec, RunEnd(ran_for_s=9, log_tail=log)) is None


def test_only_as_many_sleep_as_ram_holds():
    """The first in order sleeps; the other is stopped, and the plan says for want of what."""
    requests = ModelRequest(name="a", **LARGE), ModelRequest(name="b", **LARGE, priority=1)
    plan = plan_cards("1xrtx5090", *requests, ram=40 * GIB)

    assert [one.model for one in plan.swap.sleepers] == ["b"]
    ((name, reason),) = plan.swap.stopped
    assert name == "a"
    assert "of RAM" in reason
    text = render_plan(plan)
    assert "sleeps       b: takes" in text
    assert "is stopped   a: asleep it would take" in text
    check_cards(plan)


def test_where_the_card_has_no_room_to_spare_nobody_sleeps():
    """A pinned share is obeyed: two of 0.95 leave nothing for a sleeping engine. Nor does a small card."""
    pinned = {**LARGE, "engine_args": (("gpu_memory_utilization", 0.95),)}
    plan = plan_cards("1xrtx5090", ModelRequest(name="a", **pinned), ModelRequest(name="b", **pinned))
    small = plan_cards("1xrtx4090", ModelRequest(name="a", **LARGE), ModelRequest(name="b", **LARGE))

    assert plan.fits
    assert plan.swap.sleepers == ()
    assert {name for name, _ in plan.swap.stopped} == {"a", "b"}
    assert "of its cards" in plan.swap.stopped[0][1]
    assert {share_of(plan, name) for name in "ab"} == {0.95}
    assert small.fits
    assert small.swap.sleepers == ()


@pytest.mark.parametrize(
    ("changes", "why"),
    [
        pytest.param({"runtime": "docker"}, "container", id="docker"),
        pytest.param({"engine_args": (("enable_sleep_mode", False),)}, "engine_args pin", id="pinned off"),
        pytest.param({"engine_args": (("enable_sleep_mode", True),)}, "engine_args pin", id="pinned on"),
    ],
)
def test_who_never_sleeps_is_told_why(changes, why):
    """The one beside it sleeps all the same."""
    plan = plan_cards(
        "1xrtx5090", ModelRequest(name="a", **LARGE), ModelRequest(name="b", **LARGE, **changes)
    )

    assert [one.model for one in plan.swap.sleepers] == ["a"]
    assert [name for name, _ in plan.swap.stopped] == ["b"]
    assert why in plan.swap.stopped[0][1]


def test_what_is_kept_loaded_never_sleeps_and_all_that_fits_needs_none():
    """Nothing gives way there."""
    kept = plan_cards(
        "2xrtx5090",
        ModelRequest(name="a", **LARGE),
        ModelRequest(name="b", **LARGE),
        ModelRequest(name="k", checkpoint="Qwen/Qwen3-8B", context=8192, keep_loaded=True),
    )
    assert [one.model for one in kept.swap.sleepers] == ["a", "b"]
    check_cards(kept)
    assert (
        plan_cards("2xrtx4090", ModelRequest(name="a", **LARGE), ModelRequest(name="b", **LARGE)).swap is None
    )


def test_cards_without_room_keep_nobody_awake_elsewhere():
    """One pair leaves nothing of its card free, the other one sleeps; who has a card alone needs neither."""
    pinned = {**LARGE, "engine_args": (("gpu_memory_utilization", 0.95),)}
    plan = plan_cards(
        "3xrtx5090",
        ModelRequest(name="a", **LARGE, gpus="0"),
        ModelRequest(name="b", **LARGE, gpus="0"),
        ModelRequest(name="c", **pinned, gpus="1"),
        ModelRequest(name="d", **pinned, gpus="1"),
        ModelRequest(name="e", **LARGE, gpus="2"),
    )

    assert plan.fits
    assert [one.model for one in plan.swap.sleepers] == ["a", "b"]
    assert [name for name, _ in plan.swap.stopped] == ["c", "d"]
    check_cards(plan)
    flagged = {
        model.name for model in plan.models for item in model.settings if item.name == "enable_sleep_mode"
    }
    assert flagged == {"a", "b"}


def test_a_saved_plan_keeps_who_sleeps():
    """Also what each one takes, and why another is stopped."""
    plan = plan_cards(
        "1xrtx5090", ModelRequest(name="a", **LARGE), ModelRequest(name="b", **LARGE), ram=40 * GIB
    )

    document = plan_to_document(plan)
    assert document["swap"]["sleepers"][0]["model"] == "a"
    assert list(document["swap"]["stopped"]) == ["b"]
    assert plan_from_document(document, source="p.json") == plan
    assert plan.swap.without("a").sleepers == ()
    assert plan.swap.without("b").stopped == ()


@settings(max_examples=8, deadline=None)
@given(
    gpus=st.sampled_from(["1xrtx4090", "2xrtx4090", "1xrtx5090", "1xl40s", "1xrtx5090,1xrtx4090"]),
    names=st.lists(st.sampled_from([LARGE["checkpoint"], DENSE_AWQ, MOE_AWQ]), min_size=2, max_size=4),
    context=st.sampled_from([None, 8192, 32768]),
    ram=st.integers(10, 200),
)
def test_whatever_is_loaded_and_whoever_sleeps_the_cards_and_the_ram_hold_them(gpus, names, context, ram):
    """The promise of the plan, on several machines."""
    requests = [
        ModelRequest(name=f"m{at}", checkpoint=repo, context=context) for at, repo in enumerate(names)
    ]
    plan = plan_cards(gpus, *requests, ram=ram * GIB)
    off = plan_cards(gpus, *requests, ram=ram * GIB, sleep="off")
    assert plan.fits == off.fits
    if plan.swap is None:
        assert off.swap is None
        return
    assert plan.swap.resident_sets == off.swap.resident_sets
    assert sum(one.host_bytes for one in plan.swap.sleepers) <= ram * GIB
    check_cards(plan)
    for model, before in zip(plan.models, off.models, strict=True):
        assert model.max_model_len >= before.max_model_len


def test_pinned_memory_is_counted_in_powers_of_two_of_what_is_in_use():
    """PyTorch rounds each pinned allocation up; a segment that was freed has no copy."""
    allocator = CachingAllocator(20 * MIB)
    allocator.allocate(33 * MIB)
    gone = allocator.allocate(100 * MIB)
    allocator.allocate(3 * MIB)
    allocator.allocate(1000)
    allocator.release(gone)

    assert allocator.host_copy_bytes == (64 + 32 + 2) * MIB
