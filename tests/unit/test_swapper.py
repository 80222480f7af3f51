"""Loading on demand without processes: requests at real gates, engines in memory."""

from __future__ import annotations

import asyncio
import time

import pytest
from supervising_program import fake_spec
from test_supervise import QUICK, ScriptedProbe

from trimtab.core.plan import SwapPlan
from trimtab.core.state import ReplicaState
from trimtab.errors import EngineStartError, GatewayError
from trimtab.gateway.admission import AdmissionSettings
from trimtab.gateway.admission_gate import ModelGates
from trimtab.gateway.request import decode_request
from trimtab.gateway.routing import choose_model
from trimtab.gateway.usage import TokenCount
from trimtab.launcher import swapper
from trimtab.launcher.supervise import EngineKnowledge, Supervisor
from trimtab.launcher.swap_policy import choose_first
from trimtab.launcher.swapper import Swapper
from trimtab.runtimes.in_memory import InMemoryRuntime

TURNS = SwapPlan(resident_sets=(("a",), ("b",)), min_residence_s=0.3)


class World:
    """Two or three models, their gates, and the requests of clients."""

    def __init__(
        self, rules: SwapPlan, names: str = "ab", admission: AdmissionSettings | None = None
    ) -> None:
        self.runtime = InMemoryRuntime(make_event=asyncio.Event, read_time_s=time.time)
        self.probe = ScriptedProbe()
        self.rules = rules
        self.steps: list[tuple[str, str]] = []
        self.most_running = 0
        self.specs = tuple(spec(name) for name in names)
        self.supervisor = Supervisor(
            self.specs, self.runtime, self.probe, known=EngineKnowledge(explain_exit=lambda *_: None),
            on_event=self.hear, policy=QUICK,
        )  # fmt: skip
        self.gates = ModelGates(admission or AdmissionSettings(), on_pressure=self.feel)
        self.swapper = Swapper(
            self.supervisor,
            rules,
            read_demand=lambda: [gate.demand() for gate in self.gates],
            expect_load_s=lambda _: None,
            on_change=lambda: self.gates.follow(self.swapper.snapshot()),
            tell=lambda step: self.steps.append((step.kind, step.model)),
        )
        self.swapping: asyncio.Task[None] | None = None

    def feel(self) -> None:
        self.swapper.wake()

    def hear(self, event) -> None:
        self.gates.follow(self.swapper.snapshot())
        self.swapper.wake()

    async def start(self) -> None:
        await self.supervisor.start(lambda found: choose_first(self.rules, found))
        await self.supervisor.wait_ready(5)
        self.swapping = asyncio.ensure_future(self.swapper.run())

    async def ask(
        self,
        name: str,
        *,
        serve_s: float = 0.0,
        max_wait_s: float | None = None,
        is_background: bool = False,
    ) -> float:
        """One request; the seconds it waited. GatewayError as a client would see it."""
        began_s = time.monotonic()
        model = choose_model(name, self.swapper.snapshot(), may_wait=True)
        gate = self.gates.find(model)
        assert gate is not None
        slot = gate.expect("lane", decode_request(b"{}"), 2, has_answer=True)
        if not slot.try_begin(is_background=is_background):
            await gate.wait(slot, is_background=is_background, max_wait_s=max_wait_s)
        try:
            waited_s = time.monotonic() - began_s
            choose_model(name, self.swapper.snapshot())
            assert self.rules.fits_together(await self.running())
            await asyncio.sleep(serve_s)
            choose_model(name, self.swapper.snapshot())  # nobody took it away meanwhile
            return waited_s
        finally:
            slot.end(TokenCount(), is_whole=False)

    async def running(self) -> frozenset[str]:
        return frozenset(one.model for one in await self.runtime.list_replicas() if one.is_running)

    def state_of(self, name: str) -> ReplicaState:
        return next(model.state for model in self.swapper.snapshot() if model.name == name)

    async def until(self, condition) -> None:
        async with asyncio.timeout(5):
            while not condition():
                await asyncio.sleep(0.002)

    async def stop(self) -> None:
        if self.swapping is not None:
            self.swapping.cancel()
            await asyncio.gather(self.swapping, return_exceptions=True)
            if not self.swapping.cancelled():
                self.swapping.result()
        await self.supervisor.stop(0)
        assert await self.runtime.list_replicas() == ()


def spec(name: str, *, config_hash: str = "aaaa"):
    return fake_spec(replica_id=f"{name}/0", model=name, config_hash=config_hash, concurrency=2)


@pytest.fixture
async def make_world():
    worlds: list[World] = []

    async def make(rules: SwapPlan = TURNS, names: str = "ab", **changes) -> World:
        world = World(rules, names, **changes)
        worlds.append(world)
        await world.start()
        return world

    yield make
    for world in worlds:
        await world.stop()


async def test_only_the_first_set_is_started_and_a_request_brings_the_other(make_world):
    """A waits in no memory until somebody wants it; then the idle one goes first."""
    world = await make_world()
    assert await world.running() == {"a"}
    assert world.state_of("b") is ReplicaState.STOPPED

    await world.ask("b")

    assert await world.running() == {"b"}
    assert world.steps == [("unload", "a"), ("load", "b")]


async def test_a_crowd_for_both_is_served_with_few_loads_and_never_both_at_once(make_world):
    """Each request that waits for the same model shares one load."""
    world = await make_world()

    await asyncio.gather(*(world.ask(name, serve_s=0.01) for name in "abbaabbab" * 4))

    loads = [model for kind, model in world.steps if kind == "load"]
    assert loads == ["b"]


async def test_a_busy_model_is_not_taken_away_from_those_inside(make_world):
    """An answer that takes long is finished, then the other model comes."""
    world = await make_world()
    inside = asyncio.ensure_future(world.ask("a", serve_s=1.0))
    await asyncio.sleep(0.05)

    waited_s = await world.ask("b")

    assert inside.done()
    await inside
    assert waited_s >= 0.9


async def test_an_endless_stream_gives_way_and_its_clients_wait_and_are_served(make_world):
    """New requests of the busy one wait while the other has its turn."""
    world = await make_world()
    is_over = False
    answers = 0

    async def keep_asking() -> None:
        nonlocal answers
        while not is_over:
            await world.ask("a", serve_s=0.01)
            answers += 1

    askers = [asyncio.ensure_future(keep_asking()) for _ in range(4)]
    await asyncio.sleep(0.05)
    await world.ask("b", serve_s=0.05)
    before = answers
    await world.until(lambda: answers > before + 20)
    is_over = True
    await asyncio.gather(*askers)
    assert ("close", "a") in world.steps


async def test_a_failed_load_is_told_once_to_each_and_the_other_comes_back(make_world):
    """Those who wait get one error with its reason; whoever asks soon after gets it at once."""
    world = await make_world()
    world.runtime.refuse_next_start(EngineStartError("no such file"))

    results = await asyncio.gather(*(world.ask("b") for _ in range(5)), return_exceptions=True)
    assert [error.code for error in results if isinstance(error, GatewayError)] == ["model_load_failed"] * 5
    assert all("no such file" in str(error) and error.status == 503 for error in results)
    with pytest.raises(GatewayError, match="no such file"):
        await world.ask("b")
    await world.until(lambda: world.state_of("a") is ReplicaState.READY)
    assert await world.ask("a") < 1
    assert await world.running() == {"a"}


async def test_a_model_that_is_kept_stays_through_everything(make_world):
    """The third is swapped around it."""
    rules = SwapPlan(resident_sets=(("k", "a"), ("k", "b")), keep_loaded=("k",))
    world = await make_world(rules, "abk")

    for name in "bakbkka":
        await world.ask(name)
        assert "k" in await world.running()
    assert not next(model for model in world.swapper.snapshot() if model.name == "k").on_demand


async def test_an_idle_model_is_unloaded_and_comes_back_when_asked_for(make_world):
    """Its memory is somebody else's in between."""
    rules = SwapPlan(resident_sets=(("a", "b"),), idle_unload_s=0.2)
    world = await make_world(rules)
    assert await world.running() == {"a", "b"}

    async with asyncio.timeout(5):
        while await world.running():
            await asyncio.sleep(0.01)
    await asyncio.sleep(0.3)
    assert world.steps == [("unload", "a"), ("unload", "b")]  # what nobody asks for does not come back

    await world.ask("a")
    assert await world.running() == {"a"}


async def test_a_wait_that_is_over_says_so_and_the_load_goes_on(make_world):
    """The next request finds what was being loaded."""
    world = await make_world()
    world.probe.generates = False

    with pytest.raises(GatewayError, match=r"not loaded for all of 0\.2 s") as caught:
        await world.ask("b", max_wait_s=0.2)
    assert (caught.value.status, caught.value.code) == (503, "queue_timeout")
    world.probe.generates = True
    await world.ask("b")
    assert [step for step in world.steps if step[0] == "load"] == [("load", "b")]


async def test_a_change_in_place_keeps_what_runs_and_those_who_wait(make_world):
    """A third model is added and one is edited while a request waits for another load."""
    world = await make_world()
    inside = asyncio.ensure_future(world.ask("a", serve_s=0.5))
    await asyncio.sleep(0.01)
    waiter = asyncio.ensure_future(world.ask("b"))
    await asyncio.sleep(0.01)
    pid = (await world.runtime.list_replicas())[0].pid
    world.rules = SwapPlan(resident_sets=(("a",), ("b",), ("c",)), min_residence_s=0.3)

    async with world.swapper.paused():
        resident = world.swapper.choose_resident(world.rules)
        specs = (spec("a"), spec("b", config_hash="bbbb"), spec("c"))
        actions = await world.supervisor.change(specs, resident=resident)
        world.swapper.take_rules(world.rules)
        world.gates.forget_others(world.swapper.snapshot())

    assert [(action.kind, action.replica_id) for action in actions] == [("keep", "a/0")]
    assert (await world.runtime.list_replicas())[0].pid == pid
    await asyncio.gather(inside, waiter)
    assert (await world.runtime.list_replicas())[0].config_hash == "bbbb"
    await world.ask("c")


async def test_a_model_taken_out_while_requests_wait_for_it_tells_them(make_world):
    """They do not wait for what never comes."""
    world = await make_world()
    inside = asyncio.ensure_future(world.ask("a", serve_s=0.3))
    await asyncio.sleep(0.01)
    waiter = asyncio.ensure_future(world.ask("b"))
    await asyncio.sleep(0.01)

    async with world.swapper.paused():
        rules = world.rules.without("b")
        await world.supervisor.change((spec("a"),), resident=world.swapper.choose_resident(rules))
        world.swapper.take_rules(rules)
        world.gates.forget_others(world.swapper.snapshot())

    with pytest.raises(GatewayError, match="served no longer") as caught:
        await waiter
    assert caught.value.status == 404
    await inside


async def test_what_runs_already_is_adopted_and_the_rest_is_loaded_on_demand():
    """After a supervisor was killed inside a swap, the next one takes over what is there."""
    first = World(TURNS)
    detached = tuple(
        fake_spec(replica_id=f"{name}/0", model=name, config_hash="aaaa", concurrency=2, detached=True)
        for name in "ab"
    )
    pid = (await first.runtime.start_replica(detached[1])).pid

    second = World(TURNS)
    second.runtime = first.runtime
    second.supervisor = Supervisor(
        detached, first.runtime, second.probe, known=EngineKnowledge(explain_exit=lambda *_: None),
        policy=QUICK,
    )  # fmt: skip
    second.swapper._supervisor = second.supervisor
    await second.start()

    assert [(one.model, one.pid) for one in await second.runtime.list_replicas()] == [("b", pid)]
    await second.stop()


async def test_both_run_after_a_kill_then_only_what_fits_is_kept():
    """More than the planner allows is never adopted."""
    runtime = InMemoryRuntime(make_event=asyncio.Event, read_time_s=time.time)
    detached = tuple(
        fake_spec(replica_id=f"{name}/0", model=name, config_hash="aaaa", detached=True) for name in "ab"
    )
    for one in detached:
        await runtime.start_replica(one)
    supervisor = Supervisor(
        detached, runtime, ScriptedProbe(), known=EngineKnowledge(explain_exit=lambda *_: None), policy=QUICK
    )
    await supervisor.start(lambda found: choose_first(TURNS, found))

    assert [one.model for one in await runtime.list_replicas()] == ["a"]
    await supervisor.stop(0)


async def test_a_model_whose_load_failed_is_tried_again_by_a_request_after_a_while(make_world, monkeypatch):
    """A fault that is over is forgotten without a restart; until then requests are refused at once."""
    monkeypatch.setattr(swapper, "_BARRED_S", (0.3, 1.0))
    world = await make_world()
    world.runtime.refuse_next_start(EngineStartError("no such file"))
    with pytest.raises(GatewayError, match="no such file"):
        await world.ask("b")

    await world.until(lambda: world.state_of("b") is ReplicaState.STOPPED)
    assert "no such file" in next(one.detail for one in world.swapper.snapshot() if one.name == "b")
    await world.ask("b")

    assert await world.running() == {"b"}
    assert next(one.detail for one in world.swapper.snapshot() if one.name == "b") == ""


async def test_a_load_that_fails_again_is_tried_again_later_and_says_when(make_world, monkeypatch):
    """Twice as long after every failure in a row, up to the bound; a little later than it is tried."""
    bars_s = (0.5, 1.0, 1.5)
    monkeypatch.setattr(swapper, "_BARRED_S", (bars_s[0], bars_s[-1]))
    world = await make_world()
    told = []
    for _ in range(3):
        world.runtime.refuse_next_start(EngineStartError("no such file"))
        with pytest.raises(GatewayError, match="no such file"):
            await world.ask("b")
        told.append(retry_after_s(world, "b"))
        await world.until(lambda: world.state_of("b") is ReplicaState.STOPPED)

    # What is left: less than the bar on a busy machine, never more.
    for one, bar_s in zip(told, bars_s, strict=True):
        assert bar_s - 0.5 < one - swapper._MARGIN_S <= bar_s


def retry_after_s(world, model: str) -> float | None:
    return next(one.retry_after_s for one in world.swapper.snapshot() if one.name == model)


async def test_who_asks_late_is_told_what_is_left_and_comes_in_time(make_world, monkeypatch):
    """The whole wait again would make a client that obeys wait nearly twice."""
    monkeypatch.setattr(swapper, "_BARRED_S", (3.0, 3.0))
    world = await make_world()
    world.runtime.refuse_next_start(EngineStartError("no such file"))
    with pytest.raises(GatewayError, match="no such file") as first:
        await world.ask("b")
    assert first.value.retry_after_s == 4
    await asyncio.sleep(1.2)  # What is told is at most one second old.
    with pytest.raises(GatewayError, match="no such file") as late:
        await world.ask("b")
    assert late.value.retry_after_s in {1, 2, 3}

    await asyncio.sleep(late.value.retry_after_s)
    await world.ask("b")


async def test_a_model_that_has_failed_for_weeks_harms_no_other(make_world, monkeypatch):
    """Failures without end lengthen the wait to its bound and no further."""
    monkeypatch.setattr(swapper, "_BARRED_S", (0.3, 0.5))
    world = await make_world()
    world.swapper._of("b").num_failures = 5000
    world.runtime.refuse_next_start(EngineStartError("no such file"))
    with pytest.raises(GatewayError, match="no such file"):
        await world.ask("b")

    await world.until(lambda: world.state_of("b") is ReplicaState.STOPPED)
    await world.ask("a")
    await world.ask("b")


async def test_a_bug_in_one_decision_is_logged_and_not_the_last(make_world, monkeypatch, caplog):
    """Whatever goes wrong inside, requests that come later have their models loaded."""
    monkeypatch.setattr(swapper, "_STUCK_S", 0.1)
    world = await make_world()
    decide = swapper.choose_steps
    faults = [ZeroDivisionError("a bug")]

    def choose(*arguments, **named):
        if faults:
            raise faults.pop()
        return decide(*arguments, **named)

    monkeypatch.setattr(swapper, "choose_steps", choose)
    await world.ask("b")

    assert "error deciding which models are loaded" in caplog.text


async def test_a_background_call_waits_for_somebody_else_to_want_its_model(make_world):
    """The title of a chat takes no model from a person; it is served once a person has the other loaded."""
    world = await make_world()
    title = asyncio.ensure_future(world.ask("b", is_background=True))
    await asyncio.sleep(0.5)
    assert (title.done(), world.steps) == (False, [])

    await world.ask("b")
    await title

    assert world.steps == [("unload", "a"), ("load", "b")]


async def test_a_background_call_takes_room_that_is_free(make_world):
    """Where nobody must leave for it, it does not wait for a person."""
    rules = SwapPlan(resident_sets=(("a", "b"),), idle_unload_s=0.2)
    world = await make_world(rules)
    async with asyncio.timeout(5):
        while await world.running():
            await asyncio.sleep(0.01)

    await world.ask("b", is_background=True)

    assert await world.running() == {"b"}


async def test_clients_that_leave_while_they_wait_cost_no_swap(make_world):
    """A busy model that was closed for them is open again, and what they wanted is not loaded."""
    world = await make_world()
    inside = asyncio.ensure_future(world.ask("a", serve_s=1.5))
    waiters = [asyncio.ensure_future(world.ask("b")) for _ in range(3)]
    await world.until(lambda: ("close", "a") in world.steps)

    for waiter in waiters:
        waiter.cancel()
    await asyncio.gather(*waiters, return_exceptions=True)
    assert await world.ask("a") < 1.0
    await inside

    assert world.steps == [("close", "a"), ("open", "a")]
    assert all(gate.queue.num_waiting == 0 and gate.queue.num_running == 0 for gate in world.gates)


async def test_a_client_that_leaves_during_the_load_wastes_it_once(make_world):
    """The load is finished; then the first model comes back for whoever asks for it."""
    world = await make_world()
    world.probe.generates = False
    waiter = asyncio.ensure_future(world.ask("b"))
    await world.until(lambda: ("load", "b") in world.steps)
    waiter.cancel()
    other = asyncio.ensure_future(world.ask("a"))
    await asyncio.sleep(0.1)
    assert world.steps == [("unload", "a"), ("load", "b")]

    world.probe.generates = True
    await other

    assert await world.running() == {"a"}
    assert world.steps[2:] == [("unload", "b"), ("load", "a")]
