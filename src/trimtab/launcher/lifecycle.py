"""Pure. The life of one replica as a table, and how long to wait before the next try.

STOPPED ── start ──> STARTING ── answered ──> READY
                        │  ^                    │
              failed    │  └─ retry ─┐          │ failed
                        v            │          v
                     BACKING_OFF ────┴──── BACKING_OFF
                        │ gave up
                        v
                     FAILED (parked with its reason; only a new start leaves it)

Every state but STOPPED can be asked to stop: STOPPING ── stopped ──> STOPPED. An engine that can may fall
asleep on that way: STOPPING ── slept ──> SLEEPING ── wake ──> STARTING.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from enum import StrEnum

from trimtab.core.state import ReplicaState

__all__ = [
    "BackoffPolicy",
    "FailureHistory",
    "GiveUp",
    "LifecycleEvent",
    "Refusal",
    "Restart",
    "choose_restart",
    "next_state",
    "note_failure",
]


class LifecycleEvent(StrEnum):
    """What can happen to a replica.

    start: somebody wants it · answered: a real generation worked · failed: it ended unasked, did
    not answer in time or could not be started · retry: the back-off is over · gave_up: it failed
    too often · stop: nobody wants it any more · stopped: nothing of it is left · slept: it keeps its
    processes only · wake: somebody wants it again.
    """

    START = "start"
    ANSWERED = "answered"
    FAILED = "failed"
    RETRY = "retry"
    GAVE_UP = "gave_up"
    STOP = "stop"
    STOPPED = "stopped"
    SLEPT = "slept"
    WAKE = "wake"


@dataclass(frozen=True, slots=True, kw_only=True)
class Refusal:
    """An event that has no meaning in a state; whoever sent it has a bug or lost a race."""

    state: ReplicaState
    event: LifecycleEvent

    def __str__(self) -> str:
        return f"{self.event} has no meaning while {self.state}"


_TABLE: dict[tuple[ReplicaState, LifecycleEvent], ReplicaState] = {
    (ReplicaState.STOPPED, LifecycleEvent.START): ReplicaState.STARTING,
    (ReplicaState.STARTING, LifecycleEvent.ANSWERED): ReplicaState.READY,
    (ReplicaState.STARTING, LifecycleEvent.FAILED): ReplicaState.BACKING_OFF,
    (ReplicaState.STARTING, LifecycleEvent.STOP): ReplicaState.STOPPING,
    (ReplicaState.READY, LifecycleEvent.FAILED): ReplicaState.BACKING_OFF,
    (ReplicaState.READY, LifecycleEvent.STOP): ReplicaState.STOPPING,
    (ReplicaState.BACKING_OFF, LifecycleEvent.RETRY): ReplicaState.STARTING,
    (ReplicaState.BACKING_OFF, LifecycleEvent.GAVE_UP): ReplicaState.FAILED,
    (ReplicaState.BACKING_OFF, LifecycleEvent.STOP): ReplicaState.STOPPING,
    (ReplicaState.FAILED, LifecycleEvent.START): ReplicaState.STARTING,
    (ReplicaState.FAILED, LifecycleEvent.STOP): ReplicaState.STOPPING,
    # An end that was asked for is no failure.
    (ReplicaState.STOPPING, LifecycleEvent.FAILED): ReplicaState.STOPPING,
    (ReplicaState.STOPPING, LifecycleEvent.STOP): ReplicaState.STOPPING,
    (ReplicaState.STOPPING, LifecycleEvent.STOPPED): ReplicaState.STOPPED,
    (ReplicaState.STOPPING, LifecycleEvent.SLEPT): ReplicaState.SLEEPING,
    # Found asleep, started by an earlier supervisor.
    (ReplicaState.STOPPED, LifecycleEvent.SLEPT): ReplicaState.SLEEPING,
    (ReplicaState.SLEEPING, LifecycleEvent.WAKE): ReplicaState.STARTING,
    (ReplicaState.SLEEPING, LifecycleEvent.STOP): ReplicaState.STOPPING,
}


def next_state(state: ReplicaState, event: LifecycleEvent) -> ReplicaState | Refusal:
    """The state after ``event``, or a refusal when the table has no such row."""
    return _TABLE.get((state, event), Refusal(state=state, event=event))


@dataclass(frozen=True, slots=True, kw_only=True)
class BackoffPolicy:
    """When to try again and when to stop trying.

    Delays grow by ``factor`` from ``first_s`` to ``cap_s``; ``jitter_ratio`` is the share of a delay
    that chance may add. ``max_failures`` within ``window_s`` parks the replica; a run that was ready
    for ``stable_s`` clears its past. The values follow systemd's habit (StartLimitBurst=5) with a
    window that holds five loads of a large model.
    """

    first_s: float = 0.2
    factor: float = 2.0
    cap_s: float = 30.0
    jitter_ratio: float = 0.2
    max_failures: int = 5
    window_s: float = 1800.0
    stable_s: float = 30.0


@dataclass(frozen=True, slots=True, kw_only=True)
class FailureHistory:
    """When a replica failed, oldest first, in seconds of a clock that never goes back."""

    failed_at_s: tuple[float, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Restart:
    """Try again after ``delay_s``."""

    delay_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class GiveUp:
    """Do not try again, for this reason."""

    reason: str


def note_failure(
    history: FailureHistory, policy: BackoffPolicy, *, now_s: float, was_ready_for_s: float
) -> FailureHistory:
    """The history with one more failure; only failures inside the window and since a stable run count."""
    if was_ready_for_s >= policy.stable_s:
        return FailureHistory(failed_at_s=(now_s,))
    recent = tuple(at_s for at_s in history.failed_at_s if now_s - at_s < policy.window_s)
    return replace(history, failed_at_s=(*recent, now_s))


def choose_restart(history: FailureHistory, policy: BackoffPolicy, *, jitter: float) -> Restart | GiveUp:
    """What to do after the latest failure; ``jitter`` is a random number in [0, 1)."""
    num_failures = len(history.failed_at_s)
    if num_failures >= policy.max_failures:
        within_s = history.failed_at_s[-1] - history.failed_at_s[0]
        return GiveUp(reason=f"failed {num_failures} times within {within_s:.0f} s")
    # The exponent is bounded, because a float is: 2.0 ** 1024 raises.
    exponent = min(max(num_failures - 1, 0), 64)
    delay_s = min(policy.cap_s, policy.first_s * policy.factor**exponent)
    return Restart(delay_s=delay_s * (1 + policy.jitter_ratio * jitter))
