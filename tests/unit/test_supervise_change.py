"""A stack changed while it runs: what is the same serves on, what differs restarts, one after the other."""

from __future__ import annotations

import asyncio
import time

import pytest
from supervising_program import fake_spec
from test_supervise import QUICK, ScriptedProbe

from trimtab.core.state import ExitStatus, ReplicaState
from trimtab.errors import EngineStartError
from trimtab.launcher.supervise import EngineKnowledge, Supervisor
from trimtab.runtimes.in_memory import InMemoryRuntime


class World:
    """A supervisor over memory whose starts are noted in order."""

    def __init__(self, *specs) -> None:
        self.runtime = InMemoryRuntime(make_event=asyncio.Event, read_time_s=time.time)
        self.probe = ScriptedProbe()
        self.events = []
        self.supervisor = Supervisor(
            specs,
            self.runtime,
            self.probe,
            known=EngineKnowledge(explain_exit=lambda *_: None),
            on_event=self.events.append,
            policy=QUICK,
        )

    async def pid_of(self, replica_id: str) -> int:
        found = await self.runtime.list_replicas()
        return next(replica.pid for replica in found if replica.replica_id == replica_id)

    def told(self, kind: str) -> list[str]:
        return [event.replica_id for event in self.events if event.kind == kind]

    async def until(self, condition) -> None:
        async with asyncio.timeout(5):
            while not condition():
                await asyncio.sleep(0.001)


@pytest.fixture
async def make_world():
    worlds: list[World] = []

    async def make(*specs) -> World:
        world = World(*specs)
        worlds.append(world)
        await world.supervisor.start()
        await world.supervisor.wait_ready(5)
        world.events.clear()
        return world

    yield make
    for world in worlds:
        await world.supervisor.stop(0)
        assert await world.runtime.list_replicas() == ()


def spec(name: str, *, config_hash: str = "aaaa", gpus: tuple[int, ...] = (), **rest):
    """One replica of a model of its own."""
    return fake_spec(replica_id=f"{name}/0", model=name, config_hash=config_hash, gpus=gpus, **rest)


async def test_only_what_differs_restarts(make_world):
    """The other model's process is the same one before and after, and never left the gateway."""
    world = await make_world(spec("a"), spec("b"))
    before = await world.pid_of("a/0"), await world.pid_of("b/0")

    actions = await world.supervisor.change((spec("a"), spec("b", config_hash="bbbb")))

    assert {action.replica_id: action.kind for action in actions} == {"a/0": "keep", "b/0": "replace"}
    assert await world.pid_of("a/0") == before[0]
    assert await world.pid_of("b/0") != before[1]
    assert {model.state for model in world.supervisor.snapshot()} == {ReplicaState.READY}
    assert "a/0" not in world.told("started") + world.told("stopped")


async def test_models_come_and_go(make_world):
    """A model that is dropped is stopped and no longer served; a new one is served when it answers."""
    world = await make_world(spec("a"), spec("b"))

    await world.supervisor.change((spec("a"), spec("c")))

    assert [model.name for model in world.supervisor.snapshot()] == ["a", "c"]
    found = await world.runtime.list_replicas()
    assert {replica.replica_id for replica in found} == {"a/0", "c/0"}


async def test_nothing_to_do_does_nothing(make_world):
    """The same plan again keeps every process."""
    world = await make_world(spec("a"))
    pid = await world.pid_of("a/0")

    actions = await world.supervisor.change((spec("a"),))

    assert [action.kind for action in actions] == ["keep"]
    assert await world.pid_of("a/0") == pid


async def test_what_needs_no_restart_is_taken_over(make_world):
    """A default for thinking changes the gateway, not the engine."""
    world = await make_world(spec("a"))
    pid = await world.pid_of("a/0")

    await world.supervisor.change((spec("a", thinking="off"),))

    assert world.supervisor.snapshot()[0].thinking == "off"
    assert await world.pid_of("a/0") == pid


async def test_two_models_that_trade_cards_are_both_stopped_first(make_world):
    """Neither is started onto a card that the other still holds."""
    world = await make_world(spec("a", gpus=(0,)), spec("b", gpus=(1,)))

    await world.supervisor.change(
        (spec("a", gpus=(1,), config_hash="a2"), spec("b", gpus=(0,), config_hash="b2"))
    )

    order = [(event.kind, event.replica_id) for event in world.events if event.kind in {"started", "stopped"}]
    assert order.index(("stopped", "b/0")) < order.index(("started", "a/0"))
    assert {model.state for model in world.supervisor.snapshot()} == {ReplicaState.READY}


async def test_a_change_that_fails_says_so_and_leaves_the_rest(make_world):
    """The engine that does not come up is named; the other model serves on."""
    world = await make_world(spec("a"), spec("b"))
    pid = await world.pid_of("a/0")
    changing = asyncio.ensure_future(world.supervisor.change((spec("a"), spec("b", config_hash="bbbb"))))
    world.probe.generates = False
    await world.until(lambda: world.told("started") == ["b/0"])
    world.runtime.end_replica("b/0", ExitStatus(code=1))

    with pytest.raises(EngineStartError, match="model b"):
        await changing
    states = {model.name: model.state for model in world.supervisor.snapshot()}
    assert states["a"] is ReplicaState.READY
    assert states["b"] is ReplicaState.FAILED
    assert await world.pid_of("a/0") == pid


async def test_a_stop_cuts_a_change_short(make_world):
    """Nobody waits for a model to load when everything is to end."""
    world = await make_world(spec("a"))
    world.probe.generates = False
    changing = asyncio.ensure_future(world.supervisor.change((spec("a", config_hash="bbbb"),)))
    await world.until(lambda: world.told("started") == ["a/0"])

    await asyncio.wait_for(world.supervisor.stop(0), 5)

    with pytest.raises(EngineStartError, match="being stopped"):
        await changing
    assert await world.runtime.list_replicas() == ()


async def test_starts_on_one_card_follow_one_another():
    """The second engine is started when the first one answers, because both measure free memory."""
    world = World(spec("a", gpus=(0,)), spec("b", gpus=(0,)), spec("c", gpus=(1,)))
    world.probe.generates = False
    try:
        await world.supervisor.start()
        await world.until(lambda: set(world.told("started")) == {"a/0", "c/0"})
        waiting = next(
            event.text for event in world.events if event.replica_id == "b/0" and event.kind == "loading"
        )
        assert waiting == "waits for card 0: a/0 is starting on it"
        world.probe.generates = True
        await world.supervisor.wait_ready(5)
        order = [(event.kind, event.replica_id) for event in world.events]
        assert order.index(("ready", "a/0")) < order.index(("started", "b/0"))
    finally:
        await world.supervisor.stop(0)


async def test_a_start_that_fails_gives_the_card_to_the_next():
    """A parked model does not keep its neighbour waiting for ever."""
    world = World(spec("a", gpus=(0,)), spec("b", gpus=(0,)))
    world.probe.generates = False
    try:
        await world.supervisor.start()
        await world.until(lambda: world.told("started") == ["a/0"])
        world.runtime.end_replica("a/0", ExitStatus(code=1))
        await world.until(lambda: "b/0" in world.told("started"))
    finally:
        await world.supervisor.stop(0)
