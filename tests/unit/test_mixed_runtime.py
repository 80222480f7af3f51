"""Processes and containers side by side: each replica goes to its kind, and Docker is asked only in need."""

from __future__ import annotations

import asyncio
import time
from dataclasses import replace

import pytest
from supervising_program import fake_spec

from trimtab.core.container import ContainerSpec
from trimtab.core.state import ExitStatus
from trimtab.errors import EnvironmentMissingError
from trimtab.runtimes.in_memory import InMemoryRuntime
from trimtab.runtimes.mixed import MixedRuntime

CONTAINER = ContainerSpec(name="chat", image="img")


def in_memory():
    return InMemoryRuntime(make_event=asyncio.Event, read_time_s=time.time)


class AbsentDaemon:
    """A machine without Docker: every question fails."""

    async def list_replicas(self, *_, **__):
        raise EnvironmentMissingError("no Docker daemon")

    stop_replica = start_replica = wait_exit = list_replicas


async def test_each_replica_goes_to_its_kind_and_both_are_seen(tmp_path):
    """One `up` of a mixed stack shows, waits for and stops containers and processes alike."""
    processes, containers = in_memory(), in_memory()
    runtime = MixedRuntime(tmp_path, processes=processes, containers=containers)
    await runtime.start_replica(fake_spec(replica_id="b-0"))
    await runtime.start_replica(replace(fake_spec(replica_id="a-0"), container=CONTAINER))

    assert [item.replica_id for item in await runtime.list_replicas()] == ["a-0", "b-0"]
    assert [item.replica_id for item in await containers.list_replicas()] == ["a-0"]
    waits = {name: asyncio.ensure_future(runtime.wait_exit(name)) for name in ("a-0", "b-0")}
    await asyncio.sleep(0)
    containers.end_replica("a-0", ExitStatus(code=1), log_lines=("from the container",))
    processes.end_replica("b-0", ExitStatus(code=2), log_lines=("from the process",))
    assert (await waits["a-0"], await waits["b-0"]) == (ExitStatus(code=1), ExitStatus(code=2))
    assert runtime.read_log_tail("a-0", max_lines=5) == ("from the container",)
    assert runtime.read_log_tail("b-0", max_lines=5) == ("from the process",)


async def test_a_machine_without_docker_is_not_asked_about_containers(tmp_path):
    """Whoever never starts a container never needs Docker."""
    runtime = MixedRuntime(tmp_path, processes=in_memory(), containers=AbsentDaemon())
    await runtime.start_replica(fake_spec())

    assert len(await runtime.list_replicas()) == 1
    await runtime.stop_replica("fake-0", grace_s=0)
    with pytest.raises(EnvironmentMissingError):
        await runtime.start_replica(replace(fake_spec(), container=CONTAINER))
    assert await runtime.list_replicas() == ()


async def test_a_later_command_finds_containers_until_the_last_is_gone(tmp_path):
    """`status` after a restart of trimtab still sees containers; without any, Docker may be removed."""
    containers = in_memory()
    first = MixedRuntime(tmp_path, processes=in_memory(), containers=containers)
    await first.start_replica(replace(fake_spec(replica_id="a-0"), container=CONTAINER))
    await first.start_replica(replace(fake_spec(replica_id="c-0"), container=CONTAINER))

    later = MixedRuntime(tmp_path, processes=in_memory(), containers=containers)
    assert len(await later.list_replicas()) == 2
    await later.stop_replica("a-0", grace_s=0)
    assert [item.replica_id for item in await later.list_replicas()] == ["c-0"]
    await later.stop_replica("c-0", grace_s=0)
    without = MixedRuntime(tmp_path, processes=in_memory(), containers=AbsentDaemon())
    assert await without.list_replicas() == ()
