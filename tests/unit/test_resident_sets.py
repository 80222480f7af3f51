"""Models that do not all fit at once: who was planned where, and which sets may be loaded together."""

from __future__ import annotations

from dataclasses import replace
from itertools import combinations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from wishes import known

from trimtab.cli.render import render_plan
from trimtab.core.checkpoint import GgufCheckpoint
from trimtab.core.hardware import Host, Inventory
from trimtab.core.model_source import ModelSource
from trimtab.core.stack import ModelRequest, Stack, SwapSettings
from trimtab.planner.gpu_spec import decode_gpu_spec
from trimtab.planner.stack_plan import World, plan_stack
from trimtab.stackfile.plan_document import plan_from_document, plan_to_document
from trimtab.units import GIB, MIB

TOY = GgufCheckpoint(
    path="/models/m.gguf", name="m", architecture="llama", file_bytes=GIB, weights_bytes=GIB, num_tensors=20,
    num_layers=8, embedding_length=512, feed_forward_length=1024, vocab_size=1000,
    trained_context_tokens=8192, num_heads=8, kv_heads_per_layer=(8,) * 8, key_head_dim=64,
    value_head_dim=64, bytes_by_tensor_type=(("Q8_0", GIB),), token_embedding_bytes=10 * MIB,
    token_embedding_type="Q8_0", has_chat_template=True,
)  # fmt: skip


def plan_files(sizes: dict[str, int], *, ram: int, swap: SwapSettings | None = None, **marks):
    """Files of these sizes on a machine with so much RAM; ``marks``: name → more of its request."""
    requests = tuple(
        ModelRequest(
            name=name, checkpoint="m.gguf", context=512, concurrency=1,
            engine_args=(("cache_ram_mib", 0),), **marks.get(name, {}),
        )
        for name in sizes
    )  # fmt: skip
    files = tuple(
        replace(TOY, weights_bytes=size, file_bytes=size, bytes_by_tensor_type=(("Q8_0", size),))
        for size in sizes.values()
    )
    host = Host(total_ram_bytes=2 * ram, available_ram_bytes=ram, physical_cores=2, logical_cores=4)
    world = World(inventory=Inventory(host=host), python="python", llama_cpp_version="2026.10.11549")
    return plan_stack(Stack(name="s", models=requests, swap=swap or SwapSettings()), files, world)


def sets_of(plan) -> set[frozenset[str]]:
    return {frozenset(names) for names in plan.swap.resident_sets}


def test_what_fits_together_is_not_swapped():
    """Two models with room for both are always loaded, as before."""
    plan = plan_files({"a": GIB, "b": GIB}, ram=4 * GIB)

    assert plan.fits
    assert plan.swap is None


def test_two_that_do_not_fit_together_are_swapped_and_the_first_is_loaded_first():
    """Nobody is refused; each one is planned with the whole RAM."""
    plan = plan_files({"a": GIB, "b": GIB}, ram=3 * GIB // 2)

    assert plan.fits
    assert plan.swap.resident_sets == (("a",), ("b",))
    assert [model.replicas[0].host.available_bytes for model in plan.models] == [3 * GIB // 2] * 2
    assert "fit together a\n  fit together b\n  loaded first a" in render_plan(plan)


def test_small_ones_share_what_a_large_one_takes_alone():
    """The sets are the largest ones, whichever round a model was planned in."""
    plan = plan_files({"large": 3 * GIB, "x": GIB, "y": GIB}, ram=7 * GIB // 2)

    assert sets_of(plan) == {frozenset({"large"}), frozenset({"x", "y"})}


def test_what_is_kept_loaded_is_in_every_set_and_its_room_is_nobody_elses():
    """It is planned first, wherever it stands in the file."""
    plan = plan_files({"a": GIB, "b": GIB, "k": GIB}, ram=5 * GIB // 2, k={"keep_loaded": True})

    assert sets_of(plan) == {frozenset({"k", "a"}), frozenset({"k", "b"})}
    assert plan.swap.keep_loaded == ("k",)
    assert plan.models[1].replicas[0].host.available_bytes < 2 * GIB


def test_a_higher_priority_is_loaded_first():
    """The order in the file decides among equals only."""
    plan = plan_files({"a": GIB, "b": GIB}, ram=3 * GIB // 2, b={"priority": 1})

    assert plan.swap.resident_sets[0] == ("b",)


@pytest.mark.parametrize(
    ("sizes", "marks", "named"),
    [
        pytest.param({"a": GIB, "b": 9 * GIB}, {}, "b", id="alone too large"),
        pytest.param({"a": GIB, "k": GIB}, {"k": {"keep_loaded": True}}, "a", id="beside the kept"),
        pytest.param(
            {"a": GIB, "b": GIB}, {"a": {"keep_loaded": True}, "b": {"keep_loaded": True}}, "b", id="all kept"
        ),
    ],
)
def test_what_fits_beside_nothing_is_refused(sizes, marks, named):
    """Swapping is no way out there; the refusal names the model that has no room."""
    plan = plan_files(sizes, ram=3 * GIB // 2, **marks)

    assert not plan.fits
    assert plan.swap is None
    assert [model.name for model in plan.models if not model.fits] == [named]
    assert f"models.{named} needs" in plan.rejections[0].text


def test_idle_ones_are_unloaded_also_where_all_fit():
    """One set that holds everything, and a time."""
    plan = plan_files({"a": GIB, "b": GIB}, ram=4 * GIB, swap=SwapSettings(idle_unload_s=60))

    assert plan.swap.resident_sets == (("a", "b"),)
    assert "unloaded     after 1m 00s without a request" in render_plan(plan)


def test_a_saved_plan_keeps_its_sets():
    """``up --plan`` runs what was reviewed."""
    plan = plan_files({"a": GIB, "b": GIB}, ram=3 * GIB // 2, b={"priority": 1})
    document = plan_to_document(plan)

    assert document["swap"]["resident_sets"] == (("b",), ("a",))
    assert plan_from_document(document, source="p.json") == plan


def test_a_model_taken_out_leaves_the_largest_sets_of_the_rest():
    """``down MODEL`` needs no new plan."""
    plan = plan_files({"large": 3 * GIB, "x": GIB, "y": GIB}, ram=7 * GIB // 2)

    assert plan.swap.without("large").resident_sets == (("x", "y"),)
    assert set(plan.swap.without("x").resident_sets) == {("large",), ("y",)}


@settings(max_examples=60, deadline=None)
@given(
    sizes=st.lists(st.integers(100 * MIB, 3 * GIB), min_size=1, max_size=6),
    ram=st.integers(GIB // 2, 8 * GIB),
    kept=st.sets(st.integers(0, 5), max_size=2),
)
def test_every_set_fits_the_ram_and_every_model_is_in_one(sizes, ram, kept):
    """What the planner calls a set is one by its own account; pairs that fit together are found."""
    names = [f"m{index}" for index in range(len(sizes))]
    marks = {name: {"keep_loaded": True} for index, name in enumerate(names) if index in kept}
    plan = plan_files(dict(zip(names, sizes, strict=True)), ram=ram, **marks)
    if plan.swap is None:
        return
    taken = {model.name: model.replicas[0].host for model in plan.models}
    for one in plan.swap.resident_sets:
        used = sum(taken[name].requested_bytes + taken[name].prompt_cache_bytes for name in one)
        assert used <= ram
        assert set(plan.swap.keep_loaded) <= set(one)
    assert {name for one in plan.swap.resident_sets for name in one} == set(names)
    assert not any(set(a) <= set(b) for a, b in combinations(plan.swap.resident_sets, 2))


def plan_cards(gpus: str, *requests: ModelRequest):
    sources = []
    for request in requests:
        facts, parts = known(request.checkpoint)
        sources.append(
            ModelSource(
                checkpoint=request.checkpoint,
                facts=facts,
                parts=parts,
                origin="built in",
                mask_origin="config",
            )
        )
    host = Host(total_ram_bytes=GIB, available_ram_bytes=GIB, physical_cores=2, logical_cores=4)
    world = World(inventory=Inventory(host=host, gpus=decode_gpu_spec(gpus)), python="", llama_cpp_version="")
    return plan_stack(Stack(name="s", models=requests), tuple(sources), world)


def test_models_that_do_not_fit_one_card_take_it_in_turn():
    """Each gets the whole card; the one that is kept has the other card for itself."""
    large = {"checkpoint": "Qwen/Qwen3-32B-AWQ", "context": 8192}
    plan = plan_cards(
        "2xrtx4090",
        ModelRequest(name="a", **large),
        ModelRequest(name="b", **large),
        ModelRequest(name="k", checkpoint="Qwen/Qwen3-8B", context=8192, keep_loaded=True),
    )

    assert plan.fits
    assert sets_of(plan) == {frozenset({"k", "a"}), frozenset({"k", "b"})}
    cards = {model.name: model.replicas[0].gpus for model in plan.models}
    assert cards["a"] == cards["b"] != cards["k"]
