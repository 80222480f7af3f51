"""What every Runtime promises: one suite, run against each runtime that is available."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
import time
from dataclasses import dataclass, replace

import pytest
from podman_service import fake_container
from supervising_program import fake_spec

from trimtab.core.state import ExitStatus, ObservedReplica, ReplicaSpec
from trimtab.errors import EngineStartError
from trimtab.runtimes.base import Runtime
from trimtab.runtimes.docker import DockerRuntime
from trimtab.runtimes.in_memory import InMemoryRuntime
from trimtab.runtimes.local_process import LocalProcessRuntime
from trimtab.runtimes.routed import RoutedRuntime

# SIGUSR1 makes the fake engine leave with this code.
FAKE_EXIT_CODE = 3


async def poll_until(condition, *, within_s: float = 10.0) -> None:
    """Return when ``condition()`` is true; fail when it is not in time."""
    deadline = time.monotonic() + within_s
    while not condition():
        assert time.monotonic() < deadline, f"not true within {within_s} s"
        await asyncio.sleep(0.01)


class LocalProcessCase:
    """Real processes: the fake engine under a real guard."""

    def __init__(self, state_dir) -> None:
        self.runtime = LocalProcessRuntime(state_dir, python=sys.executable)

    def spec(self, *, replica_id: str = "fake-0", say: tuple[str, ...] = ()) -> ReplicaSpec:
        knobs = [word for line in say for word in ("--say", line)]
        return fake_spec(*knobs, replica_id=replica_id)

    async def end_with_code(self, observed: ObservedReplica) -> None:
        tail = self.runtime.read_log_tail
        await poll_until(lambda: any("listening" in line for line in tail(observed.replica_id, max_lines=9)))
        os.kill(observed.pid, signal.SIGUSR1)

    async def end_with_kill(self, observed: ObservedReplica) -> None:
        os.kill(observed.pid, signal.SIGKILL)


class DockerCase:
    """Real containers: the fake engine behind the Docker API of a real daemon."""

    def __init__(self, state_dir) -> None:
        self.runtime = DockerRuntime(state_dir)

    def spec(self, *, replica_id: str = "fake-0", say: tuple[str, ...] = ()) -> ReplicaSpec:
        knobs = [word for line in say for word in ("--say", line)]
        container = fake_container(f"trimtab-tests-{replica_id}", *knobs)
        return replace(fake_spec(replica_id=replica_id), container=container)

    end_with_code = LocalProcessCase.end_with_code
    end_with_kill = LocalProcessCase.end_with_kill


class RoutedCase(DockerCase):
    """The runtime that `up` uses, whose replicas are containers here."""

    def __init__(self, state_dir) -> None:
        self.runtime = RoutedRuntime(state_dir, python=sys.executable)


class RoutedProcessCase(LocalProcessCase):
    """The runtime that `up` uses, whose replicas are processes here."""

    def __init__(self, state_dir) -> None:
        self.runtime = RoutedRuntime(state_dir, python=sys.executable)


@dataclass
class InMemoryCase:
    """Replicas that exist in memory only."""

    def __post_init__(self) -> None:
        self.runtime = InMemoryRuntime(make_event=asyncio.Event, read_time_s=time.time)
        self.lines: dict[str, tuple[str, ...]] = {}

    def spec(self, *, replica_id: str = "fake-0", say: tuple[str, ...] = ()) -> ReplicaSpec:
        self.lines[replica_id] = (*say, "listening on a port")
        return fake_spec(replica_id=replica_id)

    async def end_with_code(self, observed: ObservedReplica) -> None:
        self._end(observed, ExitStatus(code=FAKE_EXIT_CODE))

    async def end_with_kill(self, observed: ObservedReplica) -> None:
        self._end(observed, ExitStatus(code=None, signal=signal.SIGKILL))

    def _end(self, observed: ObservedReplica, status: ExitStatus) -> None:
        self.runtime.end_replica(observed.replica_id, status, log_lines=self.lines[observed.replica_id])


CASES = {
    "local_process": LocalProcessCase,
    "in_memory": lambda _: InMemoryCase(),
    "routed_process": RoutedProcessCase,
    "podman": DockerCase,
    "docker": DockerCase,
    "routed_podman": RoutedCase,
}
# Which of them need a daemon.
DAEMONS = {"podman": "podman_daemon", "docker": "docker_daemon", "routed_podman": "podman_daemon"}


@pytest.fixture(
    params=[
        pytest.param(name, marks=[pytest.mark.engine, pytest.mark.alone] if name in DAEMONS else [])
        for name in CASES
    ]
)
async def case(request, tmp_path, monkeypatch):
    if request.param in DAEMONS:
        daemon = request.getfixturevalue(DAEMONS[request.param])
        monkeypatch.setenv("DOCKER_HOST", daemon.address)
    chosen = CASES[request.param](tmp_path)
    yield chosen
    for replica in await chosen.runtime.list_replicas():
        await chosen.runtime.stop_replica(replica.replica_id, grace_s=0)
    close = getattr(chosen.runtime, "close", None)
    if close is not None:
        close()


def ids_of(replicas: tuple[ObservedReplica, ...]) -> list[str]:
    return [replica.replica_id for replica in replicas]


async def test_started_replica_is_listed_as_running_with_what_it_was_started_for(case):
    """Status shows a started engine with its model, its settings and its lifetime."""
    spec = replace(case.spec(), predicted_bytes=123, max_model_len=77)
    observed = await case.runtime.start_replica(spec)
    (listed,) = await case.runtime.list_replicas()
    assert listed.is_running
    assert replace(listed, rss_bytes=None) == observed
    assert (listed.replica_id, listed.model, listed.stack) == (spec.replica_id, spec.model, spec.stack)
    assert (listed.config_hash, listed.engine) == (spec.config_hash, spec.engine)
    assert (listed.predicted_bytes, listed.max_model_len) == (123, 77)
    assert listed.dies_with_supervisor == spec.dies_with_supervisor
    assert abs(listed.started_at_s - time.time()) < 60


async def test_each_replica_has_a_port_and_process_of_its_own(case):
    """Two models on one machine never get in each other's way."""
    first = await case.runtime.start_replica(case.spec(replica_id="a-0"))
    second = await case.runtime.start_replica(case.spec(replica_id="b-0"))
    assert first.port != second.port
    assert first.pid != second.pid
    assert first.base_url.endswith(f":{first.port}")
    assert ids_of(await case.runtime.list_replicas()) == ["a-0", "b-0"]


async def test_exit_code_reaches_everybody_who_waits(case):
    """An engine that leaves by itself is reported with its exit code, to every watcher."""
    observed = await case.runtime.start_replica(case.spec())
    waits = [asyncio.ensure_future(case.runtime.wait_exit("fake-0")) for _ in range(2)]
    await case.end_with_code(observed)
    for wait in waits:
        assert await asyncio.wait_for(wait, 10) == ExitStatus(code=FAKE_EXIT_CODE)


async def test_signal_that_killed_an_engine_is_told(case):
    """An engine killed by the out-of-memory killer is reported as killed, not as finished."""
    observed = await case.runtime.start_replica(case.spec())
    await case.end_with_kill(observed)
    status = await asyncio.wait_for(case.runtime.wait_exit("fake-0"), 10)
    assert status == ExitStatus(code=None, signal=signal.SIGKILL)


async def test_ended_replica_is_listed_until_it_is_stopped(case):
    """The next command still learns how an engine ended that nobody collected."""
    observed = await case.runtime.start_replica(case.spec())
    await case.end_with_kill(observed)
    await asyncio.wait_for(case.runtime.wait_exit("fake-0"), 10)
    (listed,) = await case.runtime.list_replicas()
    assert listed.exit_status == ExitStatus(code=None, signal=signal.SIGKILL)
    await case.runtime.stop_replica("fake-0", grace_s=1)
    assert await case.runtime.list_replicas() == ()


async def test_stop_leaves_nothing_and_may_be_repeated(case):
    """Stopping twice, or something that never ran, is no error."""
    await case.runtime.start_replica(case.spec())
    await case.runtime.stop_replica("fake-0", grace_s=2)
    assert await case.runtime.list_replicas() == ()
    await case.runtime.stop_replica("fake-0", grace_s=2)
    await case.runtime.stop_replica("never-started", grace_s=0)


async def test_waiting_for_a_stopped_replica_returns(case):
    """A watcher is never left hanging after a stop."""
    await case.runtime.start_replica(case.spec())
    wait = asyncio.ensure_future(case.runtime.wait_exit("fake-0"))
    await asyncio.sleep(0)
    await case.runtime.stop_replica("fake-0", grace_s=2)
    await asyncio.wait_for(wait, 10)
    await asyncio.wait_for(case.runtime.wait_exit("never-started"), 10)


async def test_cancelled_wait_leaves_the_engine_alone(case):
    """A supervisor that stops watching does not take the engine down with it."""
    await case.runtime.start_replica(case.spec())
    wait = asyncio.ensure_future(case.runtime.wait_exit("fake-0"))
    await asyncio.sleep(0.01)
    wait.cancel()
    with pytest.raises(asyncio.CancelledError):
        await wait
    (listed,) = await case.runtime.list_replicas()
    assert listed.is_running


async def test_second_start_of_a_running_replica_is_refused(case):
    """Starting the same replica twice never gives two engines."""
    first = await case.runtime.start_replica(case.spec())
    with pytest.raises(EngineStartError, match="runs already"):
        await case.runtime.start_replica(case.spec())
    (listed,) = await case.runtime.list_replicas()
    assert listed.pid == first.pid
    assert listed.is_running


async def test_ended_replica_can_be_started_again(case):
    """A restart is a new process that knows nothing of the old one's end."""
    first = await case.runtime.start_replica(case.spec())
    await case.end_with_kill(first)
    await asyncio.wait_for(case.runtime.wait_exit("fake-0"), 10)
    second = await case.runtime.start_replica(case.spec())
    (listed,) = await case.runtime.list_replicas()
    assert listed.is_running
    assert listed.pid == second.pid != first.pid


async def test_log_tail_holds_the_last_lines_oldest_first(case):
    """A failure shows what the engine said last, in the order it said it."""
    observed = await case.runtime.start_replica(case.spec(say=("one", "two", "three")))
    await case.end_with_code(observed)
    await asyncio.wait_for(case.runtime.wait_exit("fake-0"), 10)
    tail = case.runtime.read_log_tail("fake-0", max_lines=3)
    assert tail[:2] == ("two", "three")
    assert tail[2].startswith("listening")
    assert case.runtime.read_log_tail("never-started", max_lines=3) == ()


def test_runtimes_satisfy_the_protocol(tmp_path):
    """Every runtime can stand wherever a Runtime is asked for (checked by the type checker too)."""
    runtimes: list[Runtime] = [
        LocalProcessRuntime(tmp_path, python=sys.executable),
        InMemoryRuntime(make_event=asyncio.Event, read_time_s=time.time),
        DockerRuntime(tmp_path),
        RoutedRuntime(tmp_path, python=sys.executable),
    ]
    wanted = {name for name in vars(Runtime) if name.endswith(("_replica", "_replicas", "_exit", "_tail"))}
    assert len(wanted) == 5
    assert all(callable(getattr(runtime, name)) for runtime in runtimes for name in wanted)
