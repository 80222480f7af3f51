"""Supervision without processes: replicas in memory, an engine probe that answers as told."""

from __future__ import annotations

import asyncio
import time
from dataclasses import replace

import pytest
from supervising_program import fake_spec

from trimtab.core.state import ExitStatus, ReplicaState
from trimtab.errors import EngineStartError, EnvironmentMissingError
from trimtab.launcher.lifecycle import BackoffPolicy
from trimtab.launcher.replan import Replanned
from trimtab.launcher.supervise import EngineKnowledge, SupervisionPolicy, Supervisor
from trimtab.probes.generation import EngineProbe, ProbeResult
from trimtab.runtimes.in_memory import InMemoryRuntime

QUICK = SupervisionPolicy(
    poll_first_s=0.001,
    poll_cap_s=0.002,
    liveness_interval_s=0.002,
    backoff=BackoffPolicy(first_s=0.001, cap_s=0.002, max_failures=3, stable_s=30),
)


class ScriptedProbe(EngineProbe):
    """Answers as its attributes say; counts what was asked."""

    def __init__(self) -> None:
        super().__init__()
        self.generates = True
        self.is_alive = True
        self.is_refusal = False
        self.is_final = False
        self.num_foreign_listeners = 0
        self.asked: list[tuple[str, str, bool]] = []

    async def probe_generation(self, base_url, *, model, has_embeddings=False, takes_ids=False, timeout_s):
        self.asked.append((base_url, model, has_embeddings))
        detail = "answers" if self.generates else "HTTP 503: loading"
        return ProbeResult(
            is_ok=self.generates,
            detail=detail,
            elapsed_ms=1,
            is_refusal=self.is_refusal,
            is_final=self.is_final,
        )

    async def probe_liveness(self, base_url, *, timeout_s):
        return ProbeResult(is_ok=self.is_alive, detail="HTTP 503", elapsed_ms=1)

    async def probe_progress(self, base_url, *, timeout_s):
        return None

    async def probe_listener(self, base_url, *, timeout_s):
        self.num_foreign_listeners -= 1
        return self.num_foreign_listeners >= 0


class World:
    """A supervisor over memory, its events, and the levers of the world around it."""

    def __init__(self, *specs, policy=QUICK, explain_exit=lambda *_: None, **known) -> None:
        self.runtime = InMemoryRuntime(make_event=asyncio.Event, read_time_s=time.time)
        self.probe = ScriptedProbe()
        self.events = []
        self.supervisor = Supervisor(
            specs or (fake_spec(),),
            self.runtime,
            self.probe,
            known=EngineKnowledge(explain_exit=explain_exit, **known),
            on_event=self.events.append,
            policy=policy,
        )

    @property
    def kinds(self) -> list[str]:
        return [event.kind for event in self.events]

    @property
    def served(self):
        return self.supervisor.snapshot()[0]

    async def until(self, condition) -> None:
        async with asyncio.timeout(5):
            while not condition():
                await asyncio.sleep(0.001)

    async def ready(self) -> None:
        await self.supervisor.start()
        await self.supervisor.wait_ready(5)


@pytest.fixture
async def make_world():
    worlds: list[World] = []

    def make(*specs, **options) -> World:
        worlds.append(World(*specs, **options))
        return worlds[-1]

    yield make
    for world in worlds:
        await world.supervisor.stop(0)
        assert await world.runtime.list_replicas() == ()


async def test_model_is_served_only_after_a_real_generation(make_world):
    """The gateway gets an address when the engine has really answered, not when it merely runs."""
    world = make_world()
    world.probe.generates = False
    assert world.served.state is ReplicaState.STOPPED
    (action,) = await world.supervisor.start()
    assert action.kind == "start"
    await world.until(lambda: world.served.detail == "HTTP 503: loading")
    assert (world.served.state, world.served.base_url) == (ReplicaState.STARTING, None)
    world.probe.generates = True
    await world.supervisor.wait_ready(5)
    (replica,) = world.supervisor.replicas()
    assert (world.served.state, world.served.base_url) == (ReplicaState.READY, replica.base_url)
    assert world.served.detail == ""
    assert world.kinds == ["planned", "started", "loading", "ready"]


async def test_engine_is_asked_by_its_own_name_and_for_what_it_can(make_world):
    """An embeddings engine is ready when it embeds, under the name it knows itself by."""
    world = make_world(fake_spec(upstream_model="inner", has_embeddings=True, max_model_len=512))
    await world.ready()
    assert {(model, embeds) for _, model, embeds in world.probe.asked} == {("inner", True)}
    assert (world.served.name, world.served.upstream_model) == ("fake", "inner")
    assert (world.served.has_embeddings, world.served.max_model_len) == (True, 512)


@pytest.mark.parametrize("code", [0, 1], ids=["exit-0-too", "exit-1"])
async def test_unplanned_exit_is_a_failure_and_restarted(make_world, code):
    """An engine that leaves is back soon, also when it claims that all was well."""
    world = make_world()
    await world.ready()
    world.runtime.end_replica("fake-0", ExitStatus(code=code))
    await world.until(lambda: world.kinds.count("ready") == 2)
    assert world.kinds[-4:] == ["exited", "backing_off", "started", "ready"]
    assert world.served.restarts == 1
    assert f"exit code {code}" in next(event.text for event in world.events if event.kind == "exited")


async def test_address_is_withdrawn_while_an_engine_is_down(make_world):
    """No request is sent to an engine that has just died."""
    policy = SupervisionPolicy(poll_first_s=0.001, backoff=BackoffPolicy(first_s=30))
    world = make_world(policy=policy)
    await world.ready()
    world.runtime.end_replica("fake-0", ExitStatus(code=None, signal=9))
    await world.until(lambda: world.served.state is ReplicaState.BACKING_OFF)
    assert world.served.base_url is None
    assert "fake ended with signal 9 after" in world.served.detail
    assert world.supervisor.replicas() == ()


async def test_engine_that_dies_at_first_start_is_told_with_everything_known(make_world):
    """A failed ``up`` shows command, exit code, likely cause and the engine's last lines, and stops."""
    world = make_world(explain_exit=lambda engine, tail: f"{engine} said {tail[-1]}")
    world.probe.generates = False
    await world.supervisor.start()
    world.runtime.end_replica("fake-0", ExitStatus(code=7), log_lines=("loading", "out of memory"))
    with pytest.raises(EngineStartError) as error:
        await world.supervisor.wait_ready(5)
    message = error.value.message
    assert message.startswith("model fake: fake ended with exit code 7 before it answered, after ")
    assert "fake said out of memory" in message
    assert error.value.told == f"{message}; command: {error.value.command}"
    assert f"fake_engine.py --port {50_000}" in error.value.command
    # Clients of the gateway read why, and no folder of this machine.
    assert "fake_engine.py" not in message
    assert "fake_engine.py" not in world.served.detail
    assert error.value.log_tail == ("loading", "out of memory")
    assert error.value.hint == "trimtab logs fake shows all that it wrote"
    assert await world.runtime.list_replicas() == ()
    assert world.kinds[-3:] == ["failed", "stopping", "stopped"]


async def test_one_bad_model_stops_the_others_of_a_first_start(make_world):
    """When one of two models cannot start, ``up`` fails as a whole and leaves nothing."""
    world = make_world(fake_spec(replica_id="a-0"), fake_spec(replica_id="b-0"))
    world.probe.generates = False
    await world.supervisor.start()
    world.runtime.end_replica("b-0", ExitStatus(code=1))
    with pytest.raises(EngineStartError, match="model b"):
        await world.supervisor.wait_ready(5)
    assert await world.runtime.list_replicas() == ()


async def test_model_that_keeps_failing_is_parked_with_its_reason(make_world):
    """A flapping model is parked and says why; it is not restarted for ever."""
    world = make_world(explain_exit=lambda *_: "the GPU is on fire")
    await world.ready()
    for num in (1, 2, 3):
        world.runtime.end_replica("fake-0", ExitStatus(code=1))
        await world.until(lambda n=num: world.kinds.count("exited") == n)
        if num < 3:
            await world.until(lambda n=num: world.kinds.count("ready") == n + 1)
    await world.until(lambda: world.served.state is ReplicaState.FAILED)
    assert world.served.detail.startswith("failed 3 times within ")
    assert "the GPU is on fire" in world.served.detail
    assert world.kinds.count("started") == 3
    assert await world.runtime.list_replicas() == ()


async def test_restart_that_cannot_even_start_counts_as_a_failure(make_world):
    """A disk that filled up meanwhile parks the model instead of ending supervision."""
    world = make_world()
    await world.ready()
    for _ in range(2):
        world.runtime.refuse_next_start(EngineStartError("cannot execute the engine"))
    world.runtime.end_replica("fake-0", ExitStatus(code=1))
    await world.until(lambda: world.served.state is ReplicaState.FAILED)
    assert "cannot execute the engine" in world.served.detail


async def test_engine_that_cannot_be_killed_is_parked_with_its_pid(make_world):
    """A process that hangs in a driver is named; no second engine is started beside it."""
    world = make_world()
    await world.ready()
    original = world.runtime.stop_replica

    async def refuse(replica_id, *, grace_s):
        raise EnvironmentMissingError("processes 17 of replica fake-0 survive SIGKILL")

    world.runtime.stop_replica = refuse
    world.runtime.end_replica("fake-0", ExitStatus(code=1))
    await world.until(lambda: world.served.state is ReplicaState.FAILED)
    world.runtime.stop_replica = original
    assert world.served.detail.startswith("processes 17 of replica fake-0 survive SIGKILL")
    assert world.kinds.count("started") == 1


async def test_silent_engine_is_restarted(make_world):
    """An engine whose process lives but does not answer is found and replaced."""
    world = make_world()
    await world.ready()
    world.probe.is_alive = False
    await world.until(lambda: "exited" in world.kinds)
    world.probe.is_alive = True
    await world.until(lambda: world.kinds.count("ready") == 2)
    text = next(event.text for event in world.events if event.kind == "exited")
    assert "does not answer (/health 3 times in a row: HTTP 503)" in text


async def test_engine_that_never_generates_is_given_up_in_time(make_world):
    """An engine that loads for ever ends in a sentence, not in a hang."""
    policy = SupervisionPolicy(poll_first_s=0.001, start_timeout_s=0.05)
    world = make_world(policy=policy)
    world.probe.generates = False
    await world.supervisor.start()
    with pytest.raises(EngineStartError, match=r"no token within 0.05 s: HTTP 503: loading"):
        await world.supervisor.wait_ready(5)


async def test_engine_that_refuses_to_generate_is_given_up_early(make_world):
    """An engine that is up and says 404 to everything is not waited for ten minutes."""
    policy = SupervisionPolicy(poll_first_s=0.001, refusal_timeout_s=0.05)
    world = make_world(policy=policy)
    world.probe.generates, world.probe.is_refusal = False, True
    await world.supervisor.start()
    with pytest.raises(EngineStartError, match="refuses to generate"):
        await world.supervisor.wait_ready(5)


async def test_refusal_with_a_lasting_reason_is_not_waited_for(make_world):
    """An engine that says why it cannot (400) will say so again: the start ends there."""
    world = make_world(policy=SupervisionPolicy(poll_first_s=0.001, refusal_timeout_s=600))
    world.probe.generates, world.probe.is_refusal, world.probe.is_final = False, True, True
    await world.supervisor.start()
    with pytest.raises(EngineStartError, match="refuses to generate"):
        await world.supervisor.wait_ready(5)


async def test_callers_patience_ends_in_a_failure_that_says_what_was_seen(make_world):
    """``up`` with a time limit says what the engine was doing and leaves nothing running."""
    world = make_world()
    world.probe.generates = False
    await world.supervisor.start()
    with pytest.raises(EngineStartError, match=r"no token within 0.05 s: HTTP 503: loading"):
        await world.supervisor.wait_ready(0.05)
    assert await world.runtime.list_replicas() == ()


async def test_lost_port_race_is_tried_again_and_is_no_failure(make_world):
    """When another program grabs the port first, the engine simply gets another one."""
    world = make_world()
    world.probe.generates = False
    world.probe.num_foreign_listeners = 1
    await world.supervisor.start()
    world.runtime.end_replica("fake-0", ExitStatus(code=1), log_lines=("address already in use",))
    await world.until(lambda: world.kinds.count("started") == 2)
    world.probe.generates = True
    await world.supervisor.wait_ready(5)
    ports = [event.text.split()[-1] for event in world.events if event.kind == "started"]
    assert len(set(ports)) == 2


async def test_engine_of_an_earlier_supervisor_is_adopted(make_world):
    """Nothing is loaded twice after a kill -9 of a detached supervisor."""
    spec = fake_spec(detached=True)
    world = make_world(spec)
    before = await world.runtime.start_replica(spec)
    (action,) = await world.supervisor.start()
    await world.supervisor.wait_ready(5)
    assert action.kind == "adopt"
    assert world.supervisor.replicas() == (before,)
    # It has served before: when it dies now it is restarted, not refused.
    world.runtime.end_replica("fake-0", ExitStatus(code=1))
    await world.until(lambda: world.kinds.count("ready") == 2)


async def test_leftovers_nobody_wants_are_stopped_at_start(make_world):
    """A model that was dropped from the stack does not go on holding memory."""
    world = make_world()
    await world.runtime.start_replica(fake_spec(replica_id="old-0", detached=True))
    await world.ready()
    assert [replica.replica_id for replica in await world.runtime.list_replicas()] == ["fake-0"]
    assert ("old", "stop: no longer wanted, started for stack tests") in {
        (event.model, event.text) for event in world.events
    }


async def test_start_that_is_refused_leaves_nothing(make_world):
    """A second model that cannot be executed takes the first one down again."""
    world = make_world(fake_spec(replica_id="a-0"), fake_spec(replica_id="b-0"))
    original = world.runtime.start_replica

    async def start(spec):
        if spec.replica_id == "b-0":
            raise EngineStartError("cannot execute")
        return await original(spec)

    world.runtime.start_replica = start
    with pytest.raises(EngineStartError, match="cannot execute"):
        await world.supervisor.start()
    assert await world.runtime.list_replicas() == ()


async def test_stop_may_be_cancelled_and_repeated(make_world):
    """Whatever Ctrl-C interrupts, a further stop finishes the work."""
    world = make_world()
    await world.ready()
    stopping = asyncio.ensure_future(world.supervisor.stop(0))
    await asyncio.sleep(0)
    stopping.cancel()
    with pytest.raises(asyncio.CancelledError):
        await stopping
    await world.supervisor.stop(0)
    await world.supervisor.stop(0)
    assert await world.runtime.list_replicas() == ()
    assert world.served.state is ReplicaState.STOPPED
    assert world.kinds.count("stopped") == 1


async def test_stop_before_start_starts_nothing(make_world):
    """A stop that came first wins."""
    world = make_world()
    await world.supervisor.stop(0)
    assert await world.supervisor.start() == ()
    assert await world.runtime.list_replicas() == ()


async def test_start_cancelled_at_any_moment_can_be_stopped(make_world):
    """Ctrl-C while models load leaves nothing, at whichever step it came."""
    for num_steps in range(12):
        world = make_world(fake_spec(replica_id="a-0"), fake_spec(replica_id="b-0"))
        world.probe.generates = False

        async def bring_up(world=world) -> None:
            await world.supervisor.start()
            await world.supervisor.wait_ready(5)

        work = asyncio.ensure_future(bring_up())
        for _ in range(num_steps):
            await asyncio.sleep(0)
        work.cancel()
        await asyncio.gather(work, return_exceptions=True)
        await world.supervisor.stop(0)
        assert await world.runtime.list_replicas() == ()


async def test_models_are_reported_in_stack_order_with_the_best_replica_first(make_world):
    """Of two replicas of one model the ready one is used while the other recovers."""
    specs = (
        fake_spec(replica_id="m-0", model="m"),
        fake_spec(replica_id="m-1", model="m"),
        fake_spec(replica_id="z-0", model="a"),
    )
    policy = SupervisionPolicy(poll_first_s=0.001, backoff=BackoffPolicy(first_s=30))
    world = make_world(*specs, policy=policy)
    await world.ready()
    assert [served.name for served in world.supervisor.snapshot()] == ["m", "a"]
    world.runtime.end_replica("m-0", ExitStatus(code=1))
    await world.until(lambda: "backing_off" in world.kinds)
    other = next(replica for replica in world.supervisor.replicas() if replica.replica_id == "m-1")
    assert (world.served.state, world.served.base_url) == (ReplicaState.READY, other.base_url)


async def test_a_smaller_plan_is_started_after_a_failure_and_shown(make_world):
    """An engine that ran out of memory comes up by itself with less, and the user reads what was changed."""
    smaller = fake_spec("--smaller")
    world = make_world(replan=lambda spec, end: Replanned(spec=smaller, text="half of it") if end else None)
    world.probe.generates = False
    await world.supervisor.start()
    world.runtime.end_replica("fake-0", ExitStatus(code=1))
    await world.until(lambda: "replanned" in world.kinds)
    world.probe.generates = True
    await world.supervisor.wait_ready(5)
    (replica,) = await world.runtime.list_replicas()
    assert replica.config_hash == smaller.config_hash
    assert [event.text for event in world.events if event.kind == "replanned"] == ["half of it"]


async def test_what_only_the_user_can_change_is_said_before_it_is_parked(make_world):
    """A pinned value is not changed: the model is given up with the change that would help."""
    world = make_world(replan=lambda *_: Replanned(spec=None, text="max_num_seqs is pinned as 9"))
    world.probe.generates = False
    await world.supervisor.start()
    world.runtime.end_replica("fake-0", ExitStatus(code=1))
    await world.until(lambda: world.served.state is ReplicaState.FAILED)
    assert world.kinds[-2:] == ["replanned", "failed"]


async def test_a_start_that_hangs_where_starts_hang_is_ended_early(make_world):
    """Cards that wait for each other are given minutes, not the whole time a large model may load."""
    policy = replace(QUICK, stall_timeout_s=0.2, start_timeout_s=60)
    world = make_world(policy=policy, describe_stall=lambda *_: "the cards wait; set NCCL_P2P_DISABLE=1")
    world.probe.generates = False
    await world.supervisor.start()
    await world.until(lambda: world.served.state is ReplicaState.FAILED)
    assert "the cards wait; set NCCL_P2P_DISABLE=1" in world.served.detail


async def test_a_slow_start_that_does_not_hang_is_waited_for(make_world):
    """Silence alone is no hang: weights may take long to load without a word."""
    policy = replace(QUICK, stall_timeout_s=0.05, start_timeout_s=60)
    world = make_world(policy=policy, describe_stall=lambda *_: "")
    world.probe.generates = False
    await world.supervisor.start()
    await asyncio.sleep(1.5)  # long enough for a second look, which is when a hang would be found
    world.probe.generates = True
    await world.supervisor.wait_ready(5)
