"""Engines that sleep instead of being stopped: real processes, their requests at real gates, every fault."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
import time
from dataclasses import replace
from pathlib import Path

import psutil
import pytest
from supervising_program import fake_spec

from trimtab.core.gpu_facts import GpuProcess
from trimtab.core.plan import SwapPlan
from trimtab.core.state import ReplicaState, SleepLimits
from trimtab.gateway.admission import AdmissionSettings
from trimtab.gateway.admission_gate import ModelGates
from trimtab.gateway.request import decode_request
from trimtab.gateway.routing import choose_model, render_health, render_models
from trimtab.gateway.usage import TokenCount
from trimtab.launcher.boot_times import BootTimes
from trimtab.launcher.sleep_check import CardsNow
from trimtab.launcher.supervise import EngineKnowledge, Supervisor
from trimtab.launcher.supervision import SupervisionPolicy
from trimtab.launcher.swap_policy import choose_first
from trimtab.launcher.swapper import Swapper
from trimtab.probes.generation import EngineProbe
from trimtab.runtimes.local_process import LocalProcessRuntime
from trimtab.units import GIB, MIB

TURNS = SwapPlan(resident_sets=(("a",), ("b",)), min_residence_s=0.2)
LIMITS = SleepLimits(host_bytes=GIB, card_bytes=2 * GIB, freed_bytes=15 * GIB)
CARD_BYTES = 24 * GIB
QUICK = SupervisionPolicy(
    poll_first_s=0.01, liveness_interval_s=0.2, sleep_patience_s=2.0, sleep_bytes_per_s=1e12,
    sleep_check_s=1.0, sleep_ask_s=2.0, restart_grace_s=0.3,
)  # fmt: skip


class World:
    """Two engines that can sleep, a card that holds one of them, and whoever supervises them."""

    def __init__(self, folder: Path, *, detached: bool = False, patience_s: float = 2.0) -> None:
        self.folder = folder
        self.detached = detached
        self.free_ram = 8 * GIB
        self.sees_processes = True
        self.events: list[tuple[str, str, str]] = []
        self.probe = EngineProbe()
        self.runtime = LocalProcessRuntime(folder / "state", python=sys.executable)
        self.boot_times = BootTimes(folder)
        self.known = EngineKnowledge(
            explain_exit=lambda *_: None,
            boot_times=self.boot_times,
            read_card_state=self.read_cards,
            read_free_ram=lambda: self.free_ram,
        )
        self.specs = tuple(self.spec(name) for name in "ab")
        self.supervisor = Supervisor(
            self.specs, self.runtime, self.probe, known=self.known, on_event=self.hear,
            policy=replace(QUICK, sleep_patience_s=patience_s),
        )  # fmt: skip
        self.gates = ModelGates(AdmissionSettings(), on_pressure=self.feel)
        self.swapper = Swapper(
            self.supervisor, TURNS, read_demand=lambda: [gate.demand() for gate in self.gates],
            expect_load_s=self.expect_s, on_change=lambda: self.gates.follow(self.swapper.snapshot()),
            tell=lambda step: None,
        )  # fmt: skip
        self.swapping: asyncio.Task[None] | None = None

    def feel(self) -> None:
        self.swapper.wake()

    def spec(self, name: str, **changes):
        card, fault = self.folder / f"card-{name}", self.folder / "fault"
        return fake_spec(
            "--card-file", str(card), "--sleep-fault", str(fault), replica_id=f"{name}-0",
            detached=self.detached, concurrency=2, gpus=(0,), sleep=LIMITS, **changes,
        )  # fmt: skip

    def expect_s(self, model: str) -> float | None:
        spec = next(spec for spec in self.specs if spec.model == model)
        is_asleep = self.state_of(model) is ReplicaState.SLEEPING
        return self.boot_times.expect_wake_s(spec) if is_asleep else self.boot_times.expect_s(spec)

    def hear(self, event) -> None:
        self.events.append((event.kind, event.model, event.text))
        self.gates.follow(self.swapper.snapshot())
        self.swapper.wake()

    def read_cards(self) -> CardsNow:
        held = [file.read_text().split() for file in self.folder.glob("card-*")]
        found = [(int(pid), int(mib) * MIB) for pid, mib in held if psutil.pid_exists(int(pid))]
        processes = tuple(GpuProcess(pid=pid, gpu_index=0, used_bytes=size, name="") for pid, size in found)
        free = CARD_BYTES - sum(size for _, size in found)
        return CardsNow(processes=processes if self.sees_processes else (), free_bytes={0: free})

    def fail(self, fault: str) -> None:
        (self.folder / "fault").write_text(fault)

    async def start(self) -> None:
        await self.supervisor.start(lambda found: choose_first(TURNS, found))
        await self.supervisor.wait_ready(20)
        self.swapping = asyncio.ensure_future(self.swapper.run())

    async def ask(self, name: str, *, serve_s: float = 0.0) -> float:
        """One request; the seconds it waited."""
        began_s = time.monotonic()
        gate = self.gates.find(choose_model(name, self.swapper.snapshot(), may_wait=True))
        assert gate is not None
        slot = gate.expect("lane", decode_request(b"{}"), 2, has_answer=True)
        if not slot.try_begin(is_background=False):
            await gate.wait(slot, is_background=False)
        try:
            waited_s = time.monotonic() - began_s
            choose_model(name, self.swapper.snapshot())
            assert self.held_bytes() <= CARD_BYTES
            await asyncio.sleep(serve_s)
            choose_model(name, self.swapper.snapshot())
            return waited_s
        finally:
            slot.end(TokenCount(), is_whole=False)

    def held_bytes(self) -> int:
        self_seen, self.sees_processes = self.sees_processes, True
        held = sum(one.used_bytes or 0 for one in self.read_cards().processes)
        self.sees_processes = self_seen
        return held

    def state_of(self, name: str) -> ReplicaState:
        return next(model.state for model in self.supervisor.snapshot() if model.name == name)

    def model(self, name: str):
        return next(model for model in self.swapper.snapshot() if model.name == name)

    def kinds(self, model: str) -> list[str]:
        return [kind for kind, name, _ in self.events if name == model]

    def texts(self) -> str:
        return "\n".join(text for _, _, text in self.events)

    async def pid_of(self, name: str) -> int:
        found = await self.runtime.list_replicas()
        return next(one.pid for one in found if one.model == name and one.is_running)

    async def until(self, condition, timeout_s: float = 10.0) -> None:
        async with asyncio.timeout(timeout_s):
            while not condition():
                await asyncio.sleep(0.01)

    async def leave(self) -> None:
        """What kill -9 does to a supervisor: nothing is stopped or said."""
        if self.swapping is not None:
            self.swapping.cancel()
        tasks = [*self.supervisor._tasks.values(), *self.supervisor._sleepers._watches.values()]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await self.probe.__aexit__(None, None, None)

    async def stop(self) -> None:
        if self.swapping is not None:
            self.swapping.cancel()
            await asyncio.gather(self.swapping, return_exceptions=True)
        await self.supervisor.stop(0.3)
        await self.probe.__aexit__(None, None, None)
        assert await self.runtime.list_replicas() == ()
        logs = "".join(file.read_text() for file in self.folder.rglob("*.log"))
        assert "ASKED ASLEEP" not in logs


@pytest.fixture
async def make_world(tmp_path):
    worlds: list[World] = []

    def make(**options) -> World:
        worlds.append(World(tmp_path, **options))
        return worlds[-1]

    yield make
    await worlds[-1].stop()


async def test_who_gives_way_sleeps_and_its_next_request_wakes_it(make_world):
    """The process stays, the card is free of all but a rest, and the wake is timed apart from the load."""
    world = make_world()
    await world.start()
    first = await world.pid_of("a")
    await world.ask("b")

    assert world.state_of("a") is ReplicaState.SLEEPING
    assert await world.pid_of("a") == first
    assert world.model("a").detail.startswith("sleeps; the next request wakes it")
    listed = {
        entry["id"]: entry["status"] for entry in render_models(world.swapper.snapshot(), created_s=0)["data"]
    }
    assert listed == {"a": {"value": "sleeping"}, "b": {"value": "loaded"}}
    assert render_health(world.swapper.snapshot(), version="0")[1]["status"] == "ok"
    second = await world.pid_of("b")
    await world.ask("a")
    await world.ask("b")

    assert (await world.pid_of("a"), await world.pid_of("b")) == (first, second)
    assert world.kinds("a").count("started") == 1
    assert world.kinds("a").count("asleep") == 2
    assert (world.model("b").num_loads, world.model("b").num_wakes) == (2, 1)
    assert world.model("a").load_s == world.boot_times.expect_wake_s(world.specs[0])
    assert world.boot_times.expect_s(world.specs[0]) is not None


async def test_a_crowd_for_both_is_answered_by_two_engines_that_never_start_again(make_world):
    """Many clients, slow wakes, and the card is never wanted twice."""
    world = make_world()
    world.fail("wake-slow")
    await world.start()

    await asyncio.gather(*(world.ask(name, serve_s=0.02) for name in "abbaabbaab" * 4))
    await asyncio.gather(*(world.ask(name, serve_s=0.02) for name in "abbaabbaab" * 4))

    assert world.kinds("a").count("started") == world.kinds("b").count("started") == 1
    assert world.model("a").num_wakes >= 1


@pytest.mark.parametrize(
    ("fault", "reason"),
    [
        pytest.param("sleep-500", "/sleep answers HTTP 500", id="refuses"),
        pytest.param("sleep-hang", "/sleep does not answer within", id="hangs"),
        pytest.param("keeps-memory", "its processes still hold 19.5 GiB of card 0", id="keeps-its-memory"),
    ],
)
async def test_who_does_not_really_sleep_is_stopped_and_not_tried_again(make_world, fault, reason):
    """One line says why; whoever waits has the card all the same."""
    world = make_world()
    world.fail(fault)
    await world.start()
    await world.ask("b")

    assert world.state_of("a") is ReplicaState.STOPPED
    assert world.texts().count(reason) == 1
    assert world.texts().count("it is not put to sleep again in this run") == 1
    (world.folder / "fault").unlink()
    await world.ask("a")
    await world.ask("b")
    assert "asleep" not in world.kinds("a")
    assert world.kinds("a").count("falls asleep") == 0
    assert world.kinds("b").count("asleep") == 1


async def test_where_the_driver_hides_processes_the_free_memory_of_the_card_decides(make_world):
    """In another pid namespace only the whole card can be looked at."""
    world = make_world()
    world.sees_processes = False
    await world.start()
    await world.ask("b")
    assert world.state_of("a") is ReplicaState.SLEEPING

    world.fail("keeps-memory")
    await world.ask("a")
    assert world.state_of("b") is ReplicaState.STOPPED
    assert "card 0 has 0 B more free, where 15.0 GiB were to be freed" in world.texts()


async def test_without_free_ram_it_is_stopped_this_time_only(make_world):
    """Its weights would push others out; when there is room again it sleeps."""
    world = make_world()
    world.free_ram = GIB
    await world.start()
    await world.ask("b")
    assert world.state_of("a") is ReplicaState.STOPPED
    assert "1.0 GiB of RAM are needed, 1.0 GiB are free" in world.texts()

    world.free_ram = 8 * GIB
    await world.ask("a")
    assert world.state_of("b") is ReplicaState.SLEEPING
    await world.ask("b")
    assert world.state_of("a") is ReplicaState.SLEEPING
    world.free_ram = 0  # both have slept: their RAM is taken already
    await world.ask("a")
    assert world.state_of("b") is ReplicaState.SLEEPING


@pytest.mark.parametrize("fault", ["wake-500", "wake-hang", "awake-silent"])
async def test_who_does_not_wake_is_started_afresh(make_world, fault):
    """Whoever waits for it is answered by a new engine."""
    world = make_world()
    await world.start()
    old = await world.pid_of("a")
    await world.ask("b")
    world.fail(fault)
    waiting = asyncio.ensure_future(world.ask("a"))
    await world.until(lambda: "is started afresh, and not put to sleep again" in world.texts())
    (world.folder / "fault").unlink()
    await waiting

    assert await world.pid_of("a") != old
    assert world.kinds("a").count("started") == 2
    assert world.model("a").restarts == 0
    await world.ask("b")
    assert world.state_of("a") is ReplicaState.STOPPED  # once is enough


async def test_who_dies_asleep_is_not_loaded_and_starts_at_its_next_request(make_world):
    """No restart in a loop for a model that nobody wants now."""
    world = make_world()
    await world.start()
    await world.ask("b")
    os.kill(await world.pid_of("a"), signal.SIGKILL)
    await world.until(lambda: world.state_of("a") is ReplicaState.STOPPED)
    await asyncio.sleep(0.5)

    assert world.state_of("a") is ReplicaState.STOPPED
    assert "fake ended with signal 9 while it slept" in world.texts()
    assert world.model("a").load_s == world.boot_times.expect_s(world.specs[0])
    assert world.kinds("a").count("started") == 1
    await world.ask("a")
    assert world.kinds("a").count("started") == 2


async def test_an_engine_that_dies_as_it_is_woken_is_started_afresh(make_world):
    """Its end is seen either before or by the question to wake."""
    world = make_world()
    await world.start()
    await world.ask("b")
    os.kill(await world.pid_of("a"), signal.SIGKILL)
    await world.ask("a")
    assert world.kinds("a").count("started") == 2


async def test_a_stop_does_not_wait_for_a_sleep_that_hangs(make_world):
    """Ctrl-C in the middle of a swap."""
    world = make_world(patience_s=60)
    world.fail("sleep-hang")
    await world.start()
    waiting = asyncio.ensure_future(world.ask("b"))
    await world.until(lambda: "falls asleep" in world.texts())
    began_s = time.monotonic()
    await world.supervisor.stop(0.3)

    assert time.monotonic() - began_s < 20
    assert await world.runtime.list_replicas() == ()
    waiting.cancel()
    await asyncio.gather(waiting, return_exceptions=True)


async def test_the_next_supervisor_finds_who_sleeps_and_leaves_it_asleep(make_world):
    """Trimtab was killed; the one that was awake is adopted, the other one's next request wakes it."""
    world = make_world(detached=True)
    await world.start()
    await world.ask("b")
    pids = [await world.pid_of(name) for name in "ab"]
    await world.leave()

    after = make_world(detached=True)
    await after.start()
    assert after.state_of("a") is ReplicaState.SLEEPING
    assert after.state_of("b") is ReplicaState.READY
    await after.ask("a")
    assert [await after.pid_of(name) for name in "ab"] == pids
    assert "started" not in {kind for kind, _, _ in after.events}


async def test_the_next_supervisor_wakes_who_sleeps_where_nobody_else_runs(make_world):
    """The one that was awake has died meanwhile."""
    world = make_world(detached=True)
    await world.start()
    await world.ask("b")
    pid = await world.pid_of("a")
    await world.leave()
    os.kill(await world.pid_of("b"), signal.SIGKILL)
    await asyncio.sleep(0.5)

    after = make_world(detached=True)
    await after.start()
    assert after.state_of("a") is ReplicaState.READY
    assert await after.pid_of("a") == pid
    assert after.kinds("a") == ["planned", "adopted", "waking", "ready"]


@pytest.mark.parametrize("fault", ["mute", "keeps-memory"])
async def test_the_next_supervisor_stops_who_does_not_say_or_does_not_really_sleep(make_world, fault):
    """Nobody knows what such an engine holds of the card."""
    world = make_world(detached=True)
    await world.start()
    await world.ask("b")
    if fault == "keeps-memory":
        pid = await world.pid_of("a")
        (world.folder / "card-a").write_text(f"{pid} 20000")
    await world.leave()
    world.fail(fault)

    after = make_world(detached=True)
    await after.supervisor.start(lambda found: choose_first(TURNS, found | {"b"}))
    assert after.state_of("a") is not ReplicaState.SLEEPING
    (world.folder / "fault").unlink()
    await after.supervisor.wait_ready(20)
    running = {one.model for one in await after.runtime.list_replicas() if one.is_running}
    assert len(running) == 1


async def test_another_plan_leaves_who_sleeps_asleep_unless_its_settings_change(make_world):
    """``up`` again, with the same file and then with other settings of the sleeping one."""
    world = make_world()
    await world.start()
    await world.ask("b")
    pid = await world.pid_of("a")
    async with world.swapper.paused():
        await world.supervisor.change(world.specs, resident=frozenset("b"))
    assert world.state_of("a") is ReplicaState.SLEEPING
    assert await world.pid_of("a") == pid

    changed = (world.spec("a", config_hash="other"), world.specs[1])
    async with world.swapper.paused():
        await world.supervisor.change(changed, resident=frozenset("b"))
    assert world.state_of("a") is ReplicaState.STOPPED
    running = {one.model for one in await world.runtime.list_replicas() if one.is_running}
    assert running == {"b"}
