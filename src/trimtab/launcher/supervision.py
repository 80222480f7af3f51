"""Pure. What a supervisor tells others: events, its policy, the words for a failure, the served models."""

from __future__ import annotations

import shlex
from dataclasses import dataclass, field
from typing import Literal, TypeAlias

from trimtab.core.state import (
    PORT_PLACEHOLDER,
    Action,
    ExitStatus,
    ObservedReplica,
    ReplicaSpec,
    ReplicaState,
    ServedModel,
    ServedReplica,
)
from trimtab.errors import EngineStartError
from trimtab.launcher.lifecycle import BackoffPolicy
from trimtab.units import format_duration_s

__all__ = [
    "RunEnd",
    "Supervised",
    "SupervisionPolicy",
    "SupervisorEvent",
    "SupervisorEventKind",
    "render_failure",
    "to_planned_event",
    "to_served_models",
]

SupervisorEventKind: TypeAlias = Literal[
    "planned",
    "adopted",
    "started",
    "loading",
    "ready",
    "exited",
    "backing_off",
    "replanned",
    "failed",
    "stopping",
    "stopped",
    "asleep",
    "waking",
]

_LOG_LINES_IN_FAILURE = 20


@dataclass(frozen=True, slots=True, kw_only=True)
class SupervisorEvent:
    """Something a person may want to see; ``elapsed_s`` counts from the replica's latest start.

    ``phase`` is the part of its start that a loading engine is in, empty where it does not say;
    ``expected_s`` is what such a start took before.
    """

    kind: SupervisorEventKind
    replica_id: str
    model: str
    state: ReplicaState
    text: str
    elapsed_s: float = 0.0
    phase: str = ""
    expected_s: float | None = None


def to_planned_event(action: Action, model: str) -> SupervisorEvent:
    """What will be done to a replica that nobody here keeps."""
    return SupervisorEvent(
        kind="planned",
        replica_id=action.replica_id,
        model=model,
        state=ReplicaState.STOPPING,
        text=f"{action.kind}: {action.cause}",
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class SupervisionPolicy:
    """How patient a supervisor is; all times in seconds.

    ``first_start_tries``: a replica that never answered is not tried more often than this.
    ``port_races``: how often another program may take the port first without that being a failure.
    ``start_timeout_s``: from start to first token; ``stall_timeout_s``: how long a start may stand still
    where starts are known to hang. ``refusal_timeout_s``: how long an engine that is up may refuse (4xx) to
    generate, unless it says for good why (400, 422). ``max_liveness_failures``: so many refusals or wrong
    answers of /health in a row are a death. After ``still_s`` without a sign of life a real token is asked
    for, of an engine without work after ``idle_still_s``; the ``silent_*_s`` say how long silence may last
    (``launcher.liveness``). A hang that spins on a card is told from a long step only by time; without
    cards, where processes that compute do work, by more of it. Falling asleep and waking may take
    ``sleep_patience_s`` and the time of what is moved at ``sleep_bytes_per_s``; the cards must be seen to be
    free within ``sleep_check_s``; ``sleep_quiet_s`` is how long the last work may take to end,
    ``sleep_ask_s`` one question.
    """

    first_start_tries: int = 1
    port_races: int = 3
    start_timeout_s: float = 600.0
    stall_timeout_s: float = 180.0
    refusal_timeout_s: float = 30.0
    generation_timeout_s: float = 120.0
    poll_first_s: float = 0.05
    poll_cap_s: float = 0.1
    liveness_interval_s: float = 1.5
    liveness_timeout_s: float = 2.5
    max_liveness_failures: int = 3
    still_s: float = 2.0
    idle_still_s: float = 4.0
    silent_stopped_s: float = 3.0
    silent_quiet_s: float = 6.0
    silent_busy_s: float = 120.0
    silent_busy_cpu_s: float = 600.0
    restart_grace_s: float = 2.0
    sleep_patience_s: float = 30.0
    sleep_bytes_per_s: float = 1e9
    sleep_check_s: float = 10.0
    sleep_quiet_s: float = 5.0
    sleep_ask_s: float = 5.0
    backoff: BackoffPolicy = field(default_factory=BackoffPolicy)


@dataclass(frozen=True, slots=True, kw_only=True)
class RunEnd:
    """Why one run of an engine is over.

    ``exit_status`` is set when the process ended by itself, ``refusal`` when it could not be started
    and ``silence`` when it lives but does not answer. ``ready_for_s`` is None when it never answered.
    """

    ran_for_s: float
    ready_for_s: float | None = None
    exit_status: ExitStatus | None = None
    refusal: str = ""
    silence: str = ""
    log_tail: tuple[str, ...] = ()


def render_failure(
    spec: ReplicaSpec, end: RunEnd, *, cause: str | None, port: int | None
) -> EngineStartError:
    """The end of a run as a failure: command, exit, how long, likely cause, last log lines."""
    shown_port = PORT_PLACEHOLDER if port is None else str(port)
    command = shlex.join(word.replace(PORT_PLACEHOLDER, shown_port) for word in spec.argv)
    if end.refusal:
        what = end.refusal
    else:
        happened = f"does not answer ({end.silence})" if end.silence else f"ended with {end.exit_status}"
        when = "before it answered, " if end.ready_for_s is None else ""
        # A silence says itself what is wrong; an end does not.
        why = cause or ("" if end.silence else "its log does not say why")
        what = f"{spec.engine} {happened} {when}after {format_duration_s(end.ran_for_s)}"
        what += f": {why}" if why else ""
    return EngineStartError(
        f"model {spec.model}: {what}",
        hint=f"trimtab logs {shlex.quote(spec.model)} shows all that it wrote",
        log_tail=end.log_tail[-_LOG_LINES_IN_FAILURE:],
        command=command,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Supervised:
    """One replica as its supervisor sees it at one moment; ``failure`` is the latest one."""

    spec: ReplicaSpec
    state: ReplicaState = ReplicaState.STOPPED
    observed: ObservedReplica | None = None
    detail: str = ""
    restarts: int = 0
    failure: EngineStartError | None = None


# Of several replicas of one model, the one that is furthest speaks for it.
_BEST_FIRST = (
    ReplicaState.READY,
    ReplicaState.STARTING,
    ReplicaState.BACKING_OFF,
    ReplicaState.FAILED,
    ReplicaState.STOPPING,
    ReplicaState.SLEEPING,
    ReplicaState.STOPPED,
)


def to_served_models(replicas: tuple[Supervised, ...]) -> tuple[ServedModel, ...]:
    """One entry per served name, in order of first appearance, with all of its replicas."""
    of_model: dict[str, list[Supervised]] = {}
    for replica in replicas:
        of_model.setdefault(replica.spec.model, []).append(replica)
    return tuple(_to_served_model(group) for group in of_model.values())


def _to_served_model(group: list[Supervised]) -> ServedModel:
    best = min(group, key=lambda replica: _BEST_FIRST.index(replica.state))
    spec = best.spec
    return ServedModel(
        name=spec.model,
        engine=spec.engine,
        state=best.state,
        base_url=_base_url_of(best),
        upstream_model=spec.upstream_model,
        max_model_len=spec.max_model_len,
        detail=best.detail,
        restarts=sum(replica.restarts for replica in group),
        has_embeddings=spec.has_embeddings,
        family=spec.family,
        thinking=spec.thinking,
        replicas=tuple(_to_served_replica(replica) for replica in group),
        concurrency=spec.concurrency,
        kv_cache_tokens=spec.kv_cache_tokens,
    )


def _to_served_replica(replica: Supervised) -> ServedReplica:
    return ServedReplica(
        replica_id=replica.spec.replica_id,
        state=replica.state,
        base_url=_base_url_of(replica),
        detail=replica.detail,
        restarts=replica.restarts,
    )


def _base_url_of(replica: Supervised) -> str | None:
    """Where it answers; None while it does not."""
    if replica.state is not ReplicaState.READY or replica.observed is None:
        return None
    return replica.observed.base_url
