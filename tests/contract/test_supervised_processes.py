"""Supervision of real processes: races and refusals that memory cannot show."""

from __future__ import annotations

import asyncio
import os
import resource
import signal
import socket
import sys

import pytest
from processes_seen import is_port_open
from supervising_program import fake_spec

from trimtab.core.gpu_facts import GpuProcess
from trimtab.core.state import ReplicaState
from trimtab.errors import EngineStartError, EnvironmentMissingError
from trimtab.launcher.supervise import EngineKnowledge, SupervisionPolicy, Supervisor
from trimtab.probes.generation import EngineProbe
from trimtab.runtimes.local_process import LocalProcessRuntime


@pytest.fixture
async def supervise(tmp_path):
    """Makes supervisors of the fake engine; every one of them is stopped after the test."""
    made: list[Supervisor] = []
    runtime = LocalProcessRuntime(tmp_path / "state", python=sys.executable)
    async with EngineProbe() as probe:

        def make(*specs, on_event=lambda _: None, policy=None, read_cards=tuple) -> Supervisor:
            made.append(
                Supervisor(
                    specs,
                    runtime,
                    probe,
                    known=EngineKnowledge(explain_exit=lambda *_: None, read_cards=read_cards),
                    on_event=on_event,
                    policy=policy or SupervisionPolicy(liveness_interval_s=0.05),
                )
            )
            return made[-1]

        yield make
        for supervisor in made:
            await supervisor.stop(1)
    assert await runtime.list_replicas() == ()


async def test_port_taken_while_the_engine_loads_leads_to_another_port(supervise):
    """A program that grabs the engine's port in the last moment costs a retry, not the start."""
    events = []
    supervisor = supervise(fake_spec("--late-listen-s", "0.5"), on_event=events.append)
    await supervisor.start()
    (first,) = supervisor.replicas()
    with socket.socket() as thief:
        # As servers do; whoever asks for a free port never gets this one.
        thief.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        thief.bind(("127.0.0.1", first.port))
        thief.listen()
        await supervisor.wait_ready(20)
        (second,) = supervisor.replicas()
    assert second.port != first.port
    assert [event.kind for event in events].count("started") == 2


async def test_failed_start_tells_the_engines_own_last_words(supervise):
    """The real log of the real process is what a failure shows."""
    supervisor = supervise(fake_spec("--say", "weights are corrupt", "--exit-code", "9"))
    await supervisor.start()
    with pytest.raises(EngineStartError, match="exit code 9 before it answered") as error:
        await supervisor.wait_ready(20)
    assert "weights are corrupt" in error.value.log_tail
    assert supervisor.snapshot()[0].state is ReplicaState.STOPPED


async def test_two_models_are_ready_and_gone_together(supervise):
    """Two engines run side by side on ports of their own; after stop both ports are free."""
    supervisor = supervise(fake_spec(replica_id="a-0"), fake_spec("--load-s", "0.3", replica_id="b-0"))
    await supervisor.start()
    await supervisor.wait_ready(20)
    ports = [replica.port for replica in supervisor.replicas()]
    assert all(is_port_open(port) for port in ports)
    await supervisor.stop(2)
    assert not any(is_port_open(port) for port in ports)


async def test_stop_while_an_engine_is_being_restarted_leaves_nothing(supervise, tmp_path):
    """Ctrl-C in the middle of a restart loop ends it."""
    supervisor = supervise(fake_spec("--exit-code", "1", "--exit-after-s", "0.6"))
    await supervisor.start()
    await supervisor.wait_ready(20)
    async with asyncio.timeout(20):
        while supervisor.snapshot()[0].restarts == 0:
            await asyncio.sleep(0.005)
    await supervisor.stop(1)


async def test_state_folder_below_a_file_stops_a_start_in_words(tmp_path):
    """A state folder that cannot be written is a refusal, before any engine runs."""
    (tmp_path / "file").write_text("")
    runtime = LocalProcessRuntime(tmp_path / "file" / "state", python=sys.executable)
    async with EngineProbe() as probe:
        supervisor = Supervisor(
            (fake_spec(),), runtime, probe, known=EngineKnowledge(explain_exit=lambda *_: None)
        )
        with pytest.raises(EnvironmentMissingError, match="cannot write"):
            await supervisor.start()
        await supervisor.stop(1)


async def until(condition, *, within_s):
    async with asyncio.timeout(within_s):
        while not condition():
            await asyncio.sleep(0.02)


def ended_with(events, text: str) -> bool:
    return any(event.kind == "exited" and text in event.text for event in events)


async def test_a_stopped_engine_is_found_within_ten_seconds_and_replaced(supervise):
    """SIGSTOP freezes an engine without ending it; its successor serves."""
    events = []
    supervisor = supervise(fake_spec(), on_event=events.append, policy=SupervisionPolicy())
    await supervisor.start()
    await supervisor.wait_ready(20)
    (replica,) = supervisor.replicas()
    os.kill(replica.pid, signal.SIGSTOP)
    await until(lambda: ended_with(events, f"a signal stopped process {replica.pid}"), within_s=10)
    await until(lambda: supervisor.snapshot()[0].state is ReplicaState.READY, within_s=30)
    assert supervisor.replicas()[0].pid != replica.pid


async def test_an_engine_that_hangs_behind_a_live_health_is_found_within_ten_seconds(supervise, tmp_path):
    """/health says 200 for ever, and no token comes out any more."""
    events = []
    hang = tmp_path / "hang"
    supervisor = supervise(
        fake_spec("--hang-file", str(hang)), on_event=events.append, policy=SupervisionPolicy()
    )
    await supervisor.start()
    await supervisor.wait_ready(20)
    hang.touch()
    await until(lambda: ended_with(events, "while its processes rest"), within_s=11)
    hang.unlink()
    await until(lambda: supervisor.snapshot()[0].state is ReplicaState.READY, within_s=30)


async def test_descriptors_that_trimtab_lacks_are_not_blamed_on_an_engine(supervise):
    """A supervisor that cannot open a socket waits; the engine it cannot ask serves on."""
    events = []
    policy = SupervisionPolicy(liveness_interval_s=0.05, silent_quiet_s=0.5, still_s=0.1)
    supervisor = supervise(fake_spec(), on_event=events.append, policy=policy)
    await supervisor.start()
    await supervisor.wait_ready(20)
    (replica,) = supervisor.replicas()
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (3, hard))
    try:
        await asyncio.sleep(3)  # several times what it takes to give up an engine that is silent
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    assert not ended_with(events, "")
    assert supervisor.replicas()[0].pid == replica.pid
    os.kill(replica.pid, signal.SIGKILL)
    await until(lambda: ended_with(events, ""), within_s=30)


async def test_an_engine_that_dies_while_descriptors_lack_is_restarted_when_there_are_some(supervise):
    """The death is seen, the start waits, and nothing is parked."""
    supervisor = supervise(fake_spec())
    await supervisor.start()
    await supervisor.wait_ready(20)
    (replica,) = supervisor.replicas()
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (3, hard))
    try:
        os.kill(replica.pid, signal.SIGKILL)
        await asyncio.sleep(1.5)
        assert supervisor.snapshot()[0].state is not ReplicaState.FAILED
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    await until(lambda: replica.pid not in {item.pid for item in supervisor.replicas()}, within_s=30)
    await until(lambda: supervisor.snapshot()[0].state is ReplicaState.READY, within_s=30)


async def test_a_restart_waits_until_the_card_is_free_of_the_dead_engine(supervise):
    """A killed worker keeps its memory in the driver for a moment; the next start does not meet it."""
    held, events, starts_so_far = [], [], []

    def read_cards():
        if not held:
            return ()
        pid = held.pop()
        starts_so_far.append([event.kind for event in events].count("started"))
        return (GpuProcess(pid=pid, gpu_index=0, used_bytes=1 << 30, name=""),)

    supervisor = supervise(fake_spec(gpus=(0,)), read_cards=read_cards, on_event=events.append)
    await supervisor.start()
    await supervisor.wait_ready(20)
    (replica,) = supervisor.replicas()
    held.append(replica.pid)
    os.kill(replica.pid, signal.SIGKILL)
    await until(lambda: replica.pid not in {item.pid for item in supervisor.replicas()}, within_s=30)
    await until(lambda: supervisor.snapshot()[0].state is ReplicaState.READY, within_s=30)
    assert starts_so_far == [1]
