"""Carrying out actions, and cleaning up when one of them fails."""

from __future__ import annotations

import asyncio

import pytest
from supervising_program import fake_spec

from trimtab.core.state import Action, ReplicaSpec
from trimtab.errors import EngineStartError, EnvironmentMissingError
from trimtab.launcher.apply import apply_actions, reap_leftovers
from trimtab.runtimes.in_memory import InMemoryRuntime


class RecordingRuntime(InMemoryRuntime):
    """Remembers the order of stops, and may hang in one start."""

    def __init__(self) -> None:
        super().__init__(make_event=asyncio.Event, read_time_s=lambda: 0.0)
        self.stopped: list[str] = []
        self.hang_at: str | None = None
        self.unstoppable: str | None = None

    async def start_replica(self, spec: ReplicaSpec):
        if spec.replica_id == self.hang_at:
            await asyncio.Event().wait()
        return await super().start_replica(spec)

    async def stop_replica(self, replica_id: str, *, grace_s: float) -> None:
        self.stopped.append(replica_id)
        await asyncio.sleep(0)
        if replica_id == self.unstoppable:
            raise EnvironmentMissingError(f"{replica_id} survives")
        await super().stop_replica(replica_id, grace_s=grace_s)


SPECS = tuple(fake_spec(replica_id=name) for name in ("a-0", "b-0", "c-0"))
STARTS = tuple(Action(kind="start", replica_id=spec.replica_id, cause="nothing runs") for spec in SPECS)


async def test_failed_start_stops_what_was_started_in_reverse_order():
    """When the third model cannot start, the first two are not left running."""
    runtime = RecordingRuntime()
    runtime.refuse_next_start(EngineStartError("the first try fails"))
    with pytest.raises(EngineStartError, match="first try"):
        await apply_actions(STARTS, SPECS, runtime, grace_s=0)
    assert runtime.stopped == []
    runtime.hang_at = "c-0"
    applying = asyncio.ensure_future(apply_actions(STARTS, SPECS, runtime, grace_s=0))
    await asyncio.sleep(0.01)
    assert len(await runtime.list_replicas()) == 2
    applying.cancel()
    with pytest.raises(asyncio.CancelledError):
        await applying
    assert runtime.stopped == ["b-0", "a-0"]
    assert await runtime.list_replicas() == ()


async def test_second_cancel_does_not_cut_the_clean_up_short():
    """Ctrl-C twice still leaves nothing running."""
    runtime = RecordingRuntime()
    runtime.hang_at = "c-0"
    applying = asyncio.ensure_future(apply_actions(STARTS, SPECS, runtime, grace_s=0))
    await asyncio.sleep(0.01)
    for _ in range(4):
        applying.cancel()
        await asyncio.sleep(0)
    with pytest.raises(asyncio.CancelledError):
        await applying
    assert await runtime.list_replicas() == ()


async def test_clean_up_goes_on_when_one_stop_fails(caplog):
    """One engine that cannot be stopped does not keep the others running, and the first reason is told."""
    runtime = RecordingRuntime()
    runtime.unstoppable = "b-0"
    runtime.hang_at = "c-0"
    applying = asyncio.ensure_future(apply_actions(STARTS, SPECS, runtime, grace_s=0))
    await asyncio.sleep(0.01)
    applying.cancel()
    with pytest.raises(asyncio.CancelledError):
        await applying
    assert [replica.replica_id for replica in await runtime.list_replicas()] == ["b-0"]
    assert "b-0 survives" in caplog.text


async def test_reaping_one_model_leaves_the_others():
    """``down MODEL`` stops that model only and says what it stopped."""
    runtime = RecordingRuntime()
    for spec in SPECS:
        await runtime.start_replica(spec)
    reaped = await reap_leftovers(runtime, model="b", grace_s=0)
    assert [replica.replica_id for replica in reaped] == ["b-0"]
    assert [replica.replica_id for replica in await runtime.list_replicas()] == ["a-0", "c-0"]
    await reap_leftovers(runtime, grace_s=0)
    assert await runtime.list_replicas() == ()


async def test_reaping_tells_a_failure_after_trying_all():
    """A process that cannot be killed is named, and everything else is gone by then."""
    runtime = RecordingRuntime()
    for spec in SPECS:
        await runtime.start_replica(spec)
    runtime.unstoppable = "a-0"
    with pytest.raises(EnvironmentMissingError, match="a-0 survives"):
        await reap_leftovers(runtime, grace_s=0)
    assert [replica.replica_id for replica in await runtime.list_replicas()] == ["a-0"]
