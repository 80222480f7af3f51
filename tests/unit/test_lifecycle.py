"""The table of a replica's life and the waiting between its tries."""

from __future__ import annotations

import pytest

from trimtab.core.state import ReplicaState
from trimtab.launcher.lifecycle import (
    BackoffPolicy,
    FailureHistory,
    GiveUp,
    LifecycleEvent,
    Refusal,
    Restart,
    choose_restart,
    next_state,
    note_failure,
)

POLICY = BackoffPolicy(
    first_s=1, factor=2, cap_s=5, jitter_ratio=0.5, max_failures=4, window_s=100, stable_s=30
)


def history(*failed_at_s: float) -> FailureHistory:
    return FailureHistory(failed_at_s=failed_at_s)


@pytest.mark.parametrize(
    ("state", "event", "expected"),
    [
        pytest.param("stopped", "start", "starting", id="wanted"),
        pytest.param("starting", "answered", "ready", id="first-token"),
        pytest.param("starting", "failed", "backing_off", id="dies-at-start"),
        pytest.param("ready", "failed", "backing_off", id="dies-in-service"),
        pytest.param("backing_off", "retry", "starting", id="tries-again"),
        pytest.param("backing_off", "gave_up", "failed", id="parked"),
        pytest.param("stopping", "failed", "stopping", id="planned-end-is-no-failure"),
        pytest.param("stopping", "stopped", "stopped", id="gone"),
        pytest.param("stopping", "slept", "sleeping", id="its-processes-stay"),
        pytest.param("sleeping", "wake", "starting", id="wanted-again"),
        pytest.param("stopped", "slept", "sleeping", id="found-asleep"),
        pytest.param("failed", "start", "starting", id="a-person-tries-again"),
    ],
)
def test_table_row(state, event, expected):
    """Status shows the state that follows from what happened."""
    assert next_state(ReplicaState(state), LifecycleEvent(event)) is ReplicaState(expected)


@pytest.mark.parametrize(
    ("state", "event"),
    [
        pytest.param("stopped", "answered", id="answer-of-nobody"),
        pytest.param("ready", "retry", id="retry-while-serving"),
        pytest.param("failed", "retry", id="parked-stays-parked"),
        pytest.param("ready", "gave_up", id="parked-without-a-failure"),
        pytest.param("stopping", "answered", id="late-answer"),
        pytest.param("sleeping", "failed", id="an-end-asleep-is-no-failure"),
        pytest.param("ready", "slept", id="falls-asleep-on-the-way-out-only"),
    ],
)
def test_event_without_meaning_is_refused_in_words(state, event):
    """A bug in supervision is told with both words instead of corrupting a state."""
    refusal = next_state(ReplicaState(state), LifecycleEvent(event))
    assert isinstance(refusal, Refusal)
    assert str(refusal) == f"{event} has no meaning while {state}"


def test_every_state_but_stopped_can_be_stopped():
    """``down`` works whatever an engine is doing."""
    for state in set(ReplicaState) - {ReplicaState.STOPPED}:
        assert next_state(state, LifecycleEvent.STOP) is ReplicaState.STOPPING


def test_delays_double_up_to_the_cap():
    """A failing engine is retried soon at first and ever more rarely."""
    delays = [choose_restart(history(*range(n)), POLICY, jitter=0.0) for n in (1, 2, 3)]
    assert delays == [Restart(delay_s=1), Restart(delay_s=2), Restart(delay_s=4)]
    long = BackoffPolicy(first_s=1, cap_s=5, max_failures=10**6, jitter_ratio=0)
    assert choose_restart(history(*range(5000)), long, jitter=0.9) == Restart(delay_s=5)


def test_jitter_adds_its_share():
    """Engines that died together do not all come back in the same instant."""
    assert choose_restart(history(0), POLICY, jitter=0.5) == Restart(delay_s=1.25)


def test_too_many_failures_park_with_the_reason():
    """A model that keeps failing is parked and says how often it failed, and how fast."""
    choice = choose_restart(history(10, 11, 12, 40), POLICY, jitter=0.0)
    assert choice == GiveUp(reason="failed 4 times within 30 s")


def test_failures_outside_the_window_are_forgotten():
    """A crash now and then over days never parks a model."""
    seen = history()
    for day in range(50):
        seen = note_failure(seen, POLICY, now_s=day * 101.0, was_ready_for_s=1)
        assert isinstance(choose_restart(seen, POLICY, jitter=0.0), Restart)


def test_stable_run_clears_the_past():
    """An engine that served well is restarted at once, as if it had never failed before."""
    seen = note_failure(history(1, 2, 3), POLICY, now_s=50, was_ready_for_s=30)
    assert choose_restart(seen, POLICY, jitter=0.0) == Restart(delay_s=1)
    seen = note_failure(history(1, 2, 3), POLICY, now_s=50, was_ready_for_s=29.9)
    assert isinstance(choose_restart(seen, POLICY, jitter=0.0), GiveUp)
