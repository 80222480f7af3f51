"""Loading on demand as a game over time: requests come and go, loads take time, promises hold."""

from __future__ import annotations

import math
from dataclasses import replace

from hypothesis import given, settings
from hypothesis import strategies as st

from trimtab.core.plan import SwapPlan
from trimtab.launcher.swap_policy import ModelDemand, ModelNow, choose_first, choose_steps

NAMES = ("a", "b", "c", "d")


@st.composite
def rules(draw: st.DrawFn) -> SwapPlan:
    """Any sets over up to four models, each in one; perhaps one that is kept."""
    names = NAMES[: draw(st.integers(2, 4))]
    keep = frozenset(draw(st.sets(st.sampled_from(names), max_size=1)))
    movable = [name for name in names if name not in keep]
    sets = [frozenset({name}) for name in movable]
    sets += draw(st.lists(st.frozensets(st.sampled_from(movable), min_size=1), max_size=3)) if movable else []
    found = [keep | one for one in sets]
    largest = [one for one in dict.fromkeys(found) if not any(one < other for other in found)]
    return SwapPlan(
        resident_sets=tuple(tuple(sorted(one)) for one in largest) or (tuple(keep),),
        keep_loaded=tuple(keep),
        priority=tuple((name, draw(st.integers(-2, 2))) for name in names),
        idle_unload_s=draw(st.none() | st.floats(0.5, 100)),
        min_residence_s=draw(st.floats(0, 30)),
    )


class World:
    """One slot per model; a load takes ``load_s``, an unload half a second, an answer ``serve_s``."""

    def __init__(
        self, plan: SwapPlan, *, load_s: float = 3.0, serve_s: float = 1.0, num_slots: int = 1
    ) -> None:
        self.plan, self.load_s, self.serve_s, self.num_slots = plan, load_s, serve_s, num_slots
        self.now_s = 0.0
        first = choose_first(plan)
        names = sorted({name for one in plan.resident_sets for name in one})
        self.models = {
            name: ModelNow(
                demand=ModelDemand(model=name),
                phase="resident" if name in first else "absent",
                load_s=load_s,
            )
            for name in names
        }
        self.waiting: dict[str, list[float]] = {name: [] for name in names}
        self.background: dict[str, int] = dict.fromkeys(names, 0)
        self.running: dict[str, list[float]] = {name: [] for name in names}
        self.used_s = dict.fromkeys(names, -math.inf)
        self.ends: dict[str, float] = {}
        self.waits: list[float] = []
        self.num_loads = 0
        self.check_resident()

    def check_resident(self) -> None:
        here = frozenset(name for name, model in self.models.items() if model.phase != "absent")
        assert self.plan.fits_together(here)

    def ask(self, name: str, *, is_background: bool = False) -> None:
        if is_background:
            self.background[name] += 1
        else:
            self.waiting[name].append(self.now_s)

    def leave(self, name: str) -> None:
        """The one that has waited longest for a model hangs up."""
        del self.waiting[name][:1]

    def tick(self, dt: float) -> None:
        self.now_s += dt
        for name in list(self.models):
            model = self.models[name]
            if model.phase in ("loading", "leaving") and self.ends[name] <= self.now_s:
                phase = "resident" if model.phase == "loading" else "absent"
                self.models[name] = replace(model, phase=phase, since_s=self.now_s, is_open=True)
            still = [end for end in self.running[name] if end > self.now_s]
            if len(still) < len(self.running[name]):
                self.used_s[name] = self.now_s
            self.running[name] = still
            model = self.models[name]
            while (
                model.phase == "resident"
                and model.is_open
                and self.waiting[name]
                and len(self.running[name]) < self.num_slots
            ):
                self.waits.append(self.now_s - self.waiting[name].pop(0))
                self.running[name].append(self.now_s + self.serve_s)
            if (
                model.phase == "resident"
                and model.is_open
                and self.background[name]
                and not self.running[name]
            ):
                self.background[name] -= 1
                self.running[name].append(self.now_s + self.serve_s)
        self.decide()

    def decide(self) -> None:
        for name, model in self.models.items():
            demand = ModelDemand(
                model=name, num_running=len(self.running[name]), num_waiting=len(self.waiting[name]),
                num_background=self.background[name],
                waiting_since_s=min(self.waiting[name], default=math.inf), used_s=self.used_s[name],
            )  # fmt: skip
            self.models[name] = replace(model, demand=demand)
        movable = [one for name, one in self.models.items() if name not in self.plan.keep_loaded]
        for step in choose_steps(self.plan, movable, now_s=self.now_s).steps:
            model = self.models[step.model]
            assert step.model not in self.plan.keep_loaded
            if step.kind == "unload":
                assert not self.running[step.model], "a busy model was unloaded"
                assert step.room_for is None or self.waiting[step.room_for], "it had to leave for nobody"
                self.models[step.model] = replace(model, phase="leaving")
                self.ends[step.model] = self.now_s + 0.5
            elif step.kind == "load":
                assert model.phase == "absent"
                self.models[step.model] = replace(model, phase="loading")
                self.ends[step.model] = self.now_s + self.load_s
                self.num_loads += 1
            else:
                self.models[step.model] = replace(model, is_open=step.kind == "open")
        self.check_resident()

    def run_dry(self, longest_s: float = 2000.0) -> None:
        end_s = self.now_s + longest_s
        while self.now_s < end_s and any(self.waiting.values()):
            self.tick(0.1)


@settings(max_examples=150, deadline=None)
@given(
    plan=rules(),
    asks=st.lists(
        st.tuples(
            st.sampled_from(NAMES),
            st.floats(0, 8),
            st.sampled_from(["person", "person", "background", "leaves"]),
        ),
        max_size=60,
    ),
)
def test_the_promises_hold_and_everybody_is_served(plan, asks):
    """Never more than fits, never a busy or a kept one leaves; who asks is answered in bounded time.

    Background calls make nobody leave, and clients may hang up while they wait.
    """
    world = World(plan)
    for name, pause_s, who in asks:
        if name in world.models:
            if who == "leaves":
                world.leave(name)
            else:
                world.ask(name, is_background=who == "background")
        world.tick(pause_s)
    world.run_dry()

    assert not any(world.waiting.values())
    per_turn = max(plan.min_residence_s, world.load_s) + world.load_s + 2 * world.serve_s + 2
    assert max(world.waits, default=0) <= 60 + len(world.models) * per_turn + len(asks) * world.serve_s


@settings(max_examples=50, deadline=None)
@given(busy_s=st.floats(0.1, 0.9), residence_s=st.floats(1, 30))
def test_an_endless_stream_for_one_starves_nobody_and_swaps_stay_bounded(busy_s, residence_s):
    """A model that is asked for without a pause gives way once its time is over, and no more often."""
    plan = SwapPlan(resident_sets=(("a",), ("b",)), min_residence_s=residence_s)
    world = World(plan, num_slots=4)
    total_s = 300.0
    while world.now_s < total_s:
        world.ask("a")
        if not world.waiting["b"] and not world.running["b"]:
            world.ask("b")
        world.tick(busy_s)
    turn_s = max(residence_s, world.load_s) + world.load_s
    assert world.num_loads >= 2
    assert world.num_loads <= 2 * total_s / turn_s + 2
    world.run_dry()
    assert not any(world.waiting.values())


@settings(max_examples=40, deadline=None)
@given(st.data())
def test_closed_loops_are_served_with_hardly_more_loads_than_the_best_order(data):
    """Eight clients that wait for each answer: a swap only when everybody wants the other model."""
    world = World(SwapPlan(resident_sets=(("a",), ("b",))), num_slots=2)
    clients = [data.draw(st.lists(st.sampled_from("ab"), min_size=1, max_size=25)) for _ in range(8)]
    best = min(
        max(sum(x != y for x, y in zip([start, *one], one, strict=False)) for one in clients) for start in "a"
    )
    queues = [list(one) for one in clients]
    owned: list[str | None] = [None] * 8
    served = dict.fromkeys("ab", 0)
    while any(queues) or any(owned):
        for index, queue in enumerate(queues):
            if owned[index] is None and queue:
                owned[index] = queue.pop(0)
                world.ask(owned[index])
        before = {name: len(world.running[name]) + len(world.waiting[name]) for name in "ab"}
        world.tick(0.1)
        for name in "ab":
            served[name] = before[name] - len(world.running[name]) - len(world.waiting[name])
            for _ in range(served[name]):
                owned[owned.index(name)] = None
        assert world.now_s < 3000
    assert world.num_loads <= 1.5 * best + 1


def test_an_idle_one_is_unloaded_after_its_time_and_not_before():
    """Only where the rules have a time."""
    world = World(SwapPlan(resident_sets=(("a",), ("b",)), idle_unload_s=10))
    world.ask("a")
    world.tick(0.1)
    for _ in range(100):
        world.tick(0.1)
    assert world.models["a"].phase == "resident"
    for _ in range(20):
        world.tick(0.1)
    assert world.models["a"].phase == "absent"


def test_a_deadline_cuts_the_time_of_a_busy_one_short():
    """Who would be too late otherwise makes it."""
    plan = SwapPlan(resident_sets=(("a",), ("b",)), min_residence_s=1000)
    demand = ModelDemand(model="a", num_running=1, num_waiting=1, waiting_since_s=0.0)
    resident = ModelNow(demand=demand, phase="resident")
    waits = ModelDemand(model="b", num_waiting=1, waiting_since_s=0.0, deadline_s=100.0)
    absent = ModelNow(demand=waits, phase="absent", load_s=10.0)

    early = choose_steps(plan, (resident, absent), now_s=70.0)
    late = choose_steps(plan, (resident, absent), now_s=80.0)

    assert (early.steps, early.look_again_s) == ((), 75.0)
    assert [(step.kind, step.model) for step in late.steps] == [("close", "a")]


def test_a_priority_goes_first_until_the_other_has_waited_long():
    """A minute makes equal."""
    plan = SwapPlan(resident_sets=(("a",), ("b",), ("c",)), priority=(("c", 1),))

    def wanted(now_s: float) -> str:
        models = [
            ModelNow(demand=ModelDemand(model=name, num_waiting=1, waiting_since_s=since), phase="absent")
            for name, since in (("b", 0.0), ("c", 5.0))
        ]
        return choose_steps(plan, models, now_s=now_s).steps[0].model

    assert wanted(20.0) == "c"
    assert wanted(61.0) == "b"


def test_what_left_for_nothing_comes_back_unless_somebody_waits():
    """After a failed load the model that had to go is loaded again."""
    plan = SwapPlan(resident_sets=(("a",), ("b",), ("c",)))
    a = ModelNow(demand=ModelDemand(model="a"), phase="absent")
    barred = ModelNow(
        demand=ModelDemand(model="b", num_waiting=1, waiting_since_s=0.0), phase="absent", barred_until_s=50.0
    )
    c = ModelNow(demand=ModelDemand(model="c", num_waiting=1, waiting_since_s=0.0), phase="absent")

    alone = choose_steps(plan, (a, barred), restore=("a",), now_s=1.0)
    beside = choose_steps(plan, (a, barred, c), restore=("a",), now_s=1.0)

    assert [(step.kind, step.model) for step in alone.steps] == [("load", "a")]
    assert alone.look_again_s == 50.0
    assert [(step.kind, step.model) for step in beside.steps] == [("load", "c")]


@settings(max_examples=60, deadline=None)
@given(plan=rules(), asks=st.lists(st.sampled_from(NAMES), max_size=8))
def test_background_calls_alone_take_only_room_that_is_free(plan, asks):
    """Nobody leaves for them, except who rests too long anyway."""
    world = World(replace(plan, idle_unload_s=None))
    before = {name for name, model in world.models.items() if model.phase == "resident"}
    for name in asks:
        if name in world.models:
            world.ask(name, is_background=True)
        world.tick(2.0)
    for _ in range(300):
        world.tick(0.5)

    here = {name for name, model in world.models.items() if model.phase == "resident"}
    assert before <= here
    assert all(not world.background[name] for name in here)


@settings(max_examples=10, deadline=None)
@given(load_s=st.floats(0.5, 40))
def test_three_models_in_constant_demand_do_not_thrash(load_s):
    """Each load is followed by its time of work, and nobody's turn is later than a round of all three."""
    plan = SwapPlan(resident_sets=(("a",), ("b",), ("c",)), min_residence_s=20)
    world = World(plan, load_s=load_s, serve_s=0.5, num_slots=2)
    total_s = 500.0
    while world.now_s < total_s:
        for name in "abc":
            if len(world.waiting[name]) < 4:
                world.ask(name)
        world.tick(0.25)
    turn_s = max(20.0, load_s) + load_s
    assert 2 <= world.num_loads <= total_s / turn_s + 1
    assert max(world.waits) <= 3 * (turn_s + 3)


def test_a_low_priority_that_is_loaded_does_not_hold_up_a_high_one_for_long():
    """It gets the time that its load was worth, and then goes whoever asks for it."""
    plan = SwapPlan(resident_sets=(("low",), ("high",)), priority=(("high", 5),), min_residence_s=10)
    world = World(plan)
    world.models["low"] = replace(world.models["low"], phase="resident", since_s=0.0)
    world.models["high"] = replace(world.models["high"], phase="absent")
    world.ask("high")
    while world.waiting["high"] and world.now_s < 100:
        world.ask("low") if len(world.waiting["low"]) < 4 else None
        world.tick(0.1)

    assert world.now_s <= 10 + 0.5 + world.load_s + 2 * world.serve_s + 1
