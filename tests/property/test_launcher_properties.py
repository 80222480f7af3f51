"""What holds for every sequence of events and for every world: lifecycle, back-off, reconcile, apply."""

from __future__ import annotations

import asyncio
from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st

from trimtab.core.state import ExitStatus, ReplicaSpec, ReplicaState
from trimtab.launcher.apply import apply_actions
from trimtab.launcher.lifecycle import (
    BackoffPolicy,
    FailureHistory,
    LifecycleEvent,
    Refusal,
    Restart,
    choose_restart,
    next_state,
    note_failure,
)
from trimtab.launcher.reconcile import reconcile, render_actions
from trimtab.runtimes.in_memory import InMemoryRuntime

NAMES = ("a-0", "b-0", "c-0", "d-0")
LIVE = {ReplicaState.STARTING, ReplicaState.READY}


def spec(replica_id: str, config_hash: str, *, tied: bool) -> ReplicaSpec:
    return ReplicaSpec(
        replica_id=replica_id,
        stack="s",
        model=replica_id,
        engine="fake",
        argv=("fake",),
        env=(),
        config_hash=config_hash,
        trimtab_version="0",
        dies_with_supervisor=tied,
    )


specs = st.builds(spec, st.sampled_from(NAMES), st.sampled_from(("h1", "h2")), tied=st.booleans())
stacks = st.lists(specs, unique_by=lambda item: item.replica_id, max_size=4).map(tuple)


@given(st.lists(st.sampled_from(list(LifecycleEvent)), max_size=40))
def test_random_events_never_leave_the_table(events):
    """Whatever happens in whatever order, a replica is always in a known state."""
    state = ReplicaState.STOPPED
    for event in events:
        following = next_state(state, event)
        if isinstance(following, Refusal):
            assert (following.state, following.event) == (state, event)
            continue
        # Nothing serves that was not started first, and a stop is only left by being over.
        assert following is not ReplicaState.READY or state in LIVE
        assert state is not ReplicaState.STOPPING or following in {
            ReplicaState.STOPPING,
            ReplicaState.STOPPED,
            ReplicaState.SLEEPING,
        }
        state = following
    assert isinstance(next_state(state, LifecycleEvent.STOP), ReplicaState) or state is ReplicaState.STOPPED


@given(
    st.lists(st.tuples(st.floats(0, 1e4), st.floats(0, 100)), min_size=1, max_size=60),
    st.floats(0, 1, exclude_max=True),
)
def test_waiting_is_bounded_and_the_number_of_tries_too(failures, jitter):
    """A failing model is never retried without pause for ever, and never waits longer than the cap."""
    policy = BackoffPolicy()
    seen, now_s, in_a_row = FailureHistory(), 0.0, 0
    for gap_s, was_ready_for_s in failures:
        now_s += gap_s
        seen = note_failure(seen, policy, now_s=now_s, was_ready_for_s=was_ready_for_s)
        in_a_row = 1 if was_ready_for_s >= policy.stable_s else in_a_row + 1
        choice = choose_restart(seen, policy, jitter=jitter)
        assert 1 <= len(seen.failed_at_s) <= in_a_row
        if isinstance(choice, Restart):
            assert policy.first_s <= choice.delay_s <= policy.cap_s * (1 + policy.jitter_ratio)
            assert len(seen.failed_at_s) < policy.max_failures
        else:
            assert seen.failed_at_s[-1] - seen.failed_at_s[0] < policy.window_s * policy.max_failures
            seen, in_a_row = FailureHistory(), 0


@given(stacks, stacks, st.sets(st.sampled_from(NAMES)), st.sets(st.sampled_from(NAMES)))
def test_after_the_actions_there_is_nothing_left_to_do(before, wanted, ended, own):
    """``up`` twice in a row: the second one keeps everything, whatever ran before the first."""

    async def run() -> None:
        runtime = InMemoryRuntime(make_event=asyncio.Event, read_time_s=lambda: 0.0)
        for item in before:
            await runtime.start_replica(item)
        for replica_id in ended:
            runtime.end_replica(replica_id, ExitStatus(code=1))
        ours = frozenset(own & {item.replica_id for item in before})
        actions = reconcile(wanted, await runtime.list_replicas(), ours=ours)
        assert {action.replica_id for action in actions} == {item.replica_id for item in (*before, *wanted)}
        started = await apply_actions(actions, wanted, runtime, grace_s=0)
        begun = {action.replica_id for action in actions if action.kind in ("start", "replace")}
        assert {replica.replica_id for replica in started} == begun

        found = await runtime.list_replicas()
        now_ours = frozenset(item.replica_id for item in wanted)
        again = reconcile(wanted, found, ours=now_ours)
        assert [action.kind for action in again] == ["keep"] * len(wanted)
        assert {item.replica_id: item.config_hash for item in found} == {
            item.replica_id: item.config_hash for item in wanted
        }

    asyncio.run(run())


@given(stacks, stacks)
def test_order_of_the_world_changes_no_action(before, wanted):
    """The same world gives the same steps, in whatever order it was listed."""

    async def run() -> None:
        runtime = InMemoryRuntime(make_event=asyncio.Event, read_time_s=lambda: 0.0)
        for item in before:
            await runtime.start_replica(item)
        found = await runtime.list_replicas()
        forward = reconcile(wanted, found)
        backward = reconcile(wanted, tuple(reversed(found)))
        assert sorted(forward, key=str) == sorted(backward, key=str)
        assert len(render_actions(forward).splitlines()) == len(forward)

    asyncio.run(run())


@given(stacks.filter(bool), st.data())
def test_adoption_needs_the_same_settings_and_a_lifetime_of_its_own(before, data):
    """An engine is only taken over when it is exactly what is wanted and was started detached."""

    async def run() -> None:
        runtime = InMemoryRuntime(make_event=asyncio.Event, read_time_s=lambda: 0.0)
        for item in before:
            await runtime.start_replica(item)
        old = data.draw(st.sampled_from(before))
        new = replace(old, config_hash=data.draw(st.sampled_from(("h1", "h2"))))
        (action,) = (
            item
            for item in reconcile((new,), await runtime.list_replicas())
            if item.replica_id == new.replica_id
        )
        may_adopt = old.config_hash == new.config_hash and not old.dies_with_supervisor
        assert action.kind == ("adopt" if may_adopt else "replace")

    asyncio.run(run())
