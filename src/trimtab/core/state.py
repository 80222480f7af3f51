"""Pure. What runs: replicas as started and as observed, the actions between plan and world."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import Literal, TypeAlias

from trimtab.core.container import ContainerSpec
from trimtab.core.stack import ThinkingDefault

__all__ = [
    "PORT_PLACEHOLDER",
    "Action",
    "ActionKind",
    "ExitStatus",
    "ObservedReplica",
    "ReplicaSpec",
    "ReplicaState",
    "ServedModel",
    "ServedReplica",
    "SleepLimits",
]

# Stands in a ReplicaSpec's argv for the port that the runtime picks at start.
PORT_PLACEHOLDER = "{port}"


class ReplicaState(StrEnum):
    """The life of one replica as its supervisor sees it; transitions are in launcher.lifecycle."""

    STOPPED = "stopped"
    STARTING = "starting"
    READY = "ready"
    BACKING_OFF = "backing_off"
    STOPPING = "stopping"
    SLEEPING = "sleeping"
    FAILED = "failed"


@dataclass(frozen=True, slots=True, kw_only=True)
class SleepLimits:
    """What one replica may take while it sleeps: of RAM in all, and of each of its cards.

    ``freed_bytes`` is the least that falling asleep frees of each card.
    """

    host_bytes: int
    card_bytes: int
    freed_bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplicaSpec:
    """What a runtime is asked to start; equal ``config_hash`` means nothing needs a restart.

    ``argv`` may contain PORT_PLACEHOLDER. ``env`` is added to the runtime's own environment.
    ``predicted_bytes`` is the planned resident memory. ``dies_with_supervisor`` ties the engine's
    life to the process that starts it (foreground); otherwise it outlives it (detached).
    ``upstream_model`` is the name the engine itself answers to, where it differs from ``model``;
    with ``has_embeddings`` the engine answers /v1/embeddings instead of generating. With ``container``
    the replica is that container and ``argv`` only documents what runs inside; otherwise a process.
    ``gpus`` are the cards it uses: starts on one card follow one another. ``family`` and ``thinking`` tell
    the gateway how requests of this model are switched, ``concurrency`` how many the engine works on at
    once, None where that is not known; ``kv_cache_tokens`` is what those share, None where each has its own.
    With ``takes_ids`` the engine has no tokenizer and is asked by ids.
    With ``sleep`` it may be put to sleep instead of being stopped.
    """

    replica_id: str
    stack: str
    model: str
    engine: str
    argv: tuple[str, ...]
    env: tuple[tuple[str, str], ...]
    config_hash: str
    trimtab_version: str
    predicted_bytes: int | None = None
    max_model_len: int | None = None
    dies_with_supervisor: bool = True
    upstream_model: str | None = None
    has_embeddings: bool = False
    container: ContainerSpec | None = None
    gpus: tuple[int, ...] = ()
    family: str = "plain"
    thinking: ThinkingDefault | None = None
    concurrency: int | None = None
    kv_cache_tokens: int | None = None
    takes_ids: bool = False
    sleep: SleepLimits | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ExitStatus:
    """How an engine ended. ``code`` is the exit code, or None when a signal ended it or it is unknown.

    ``signal`` is the signal number, or None.
    """

    code: int | None
    signal: int | None = None

    def __str__(self) -> str:
        if self.signal is not None:
            return f"signal {self.signal}"
        return "unknown exit" if self.code is None else f"exit code {self.code}"


@dataclass(frozen=True, slots=True, kw_only=True)
class ObservedReplica:
    """A replica that a runtime found in the world, alive or just ended.

    ``pid`` is the engine's process; ``base_url`` is its HTTP root without a path;
    ``started_at_s`` is seconds since the epoch; ``rss_bytes`` is resident memory of the engine
    and its children, None where it cannot be read; ``exit_status`` is None while it runs.
    """

    replica_id: str
    stack: str
    model: str
    engine: str
    config_hash: str
    pid: int
    port: int
    base_url: str
    started_at_s: float
    log_path: str
    dies_with_supervisor: bool
    predicted_bytes: int | None = None
    max_model_len: int | None = None
    rss_bytes: int | None = None
    exit_status: ExitStatus | None = None

    @property
    def is_running(self) -> bool:
        """Whether the engine's process is alive."""
        return self.exit_status is None


ActionKind: TypeAlias = Literal["start", "stop", "replace", "adopt", "keep", "reap"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Action:
    """One step from the world to the plan, with its cause in words.

    start: nothing runs · stop: no longer wanted · replace: runs with other settings ·
    adopt: runs as wanted, from an earlier supervisor · keep: runs as wanted, nothing to do ·
    reap: a leftover that cannot be adopted.
    """

    kind: ActionKind
    replica_id: str
    cause: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ServedReplica:
    """One replica of a served model; ``base_url`` is None while it does not answer."""

    replica_id: str
    state: ReplicaState
    base_url: str | None = None
    detail: str = ""
    restarts: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class ServedModel:
    """One model as the gateway must know it; ``base_url`` is None while nothing answers.

    ``detail`` is a short reason when not ready; ``max_model_len`` is tokens per request;
    ``has_embeddings`` tells whether the engine was started for embeddings. ``family`` names how the
    model's thinking is switched, ``thinking`` the default of requests that do not say. ``state``,
    ``base_url`` and ``detail`` are those of the replica that is furthest; ``replicas`` are all of them,
    empty for an endpoint of others. ``concurrency`` is how many requests one replica works on at once,
    None where that is not known, and ``kv_cache_tokens`` what those share. A model ``on_demand`` is loaded
    when a request wants it, which took ``load_s`` before, and has been so ``num_loads`` times, ``num_wakes``
    of them by waking a sleeping engine (then ``load_s`` is what that took); its requests wait meanwhile, and
    while it does not let (``admits``) any through because it must leave; one whose load failed is tried again
    within ``retry_after_s``. ``is_key_refused``: somebody else's endpoint wants another key than ours, or one
    at all.
    """

    name: str
    engine: str
    state: ReplicaState
    base_url: str | None = None
    upstream_model: str | None = None
    max_model_len: int | None = None
    detail: str = ""
    restarts: int = 0
    has_embeddings: bool = False
    family: str = "plain"
    thinking: ThinkingDefault | None = None
    replicas: tuple[ServedReplica, ...] = ()
    concurrency: int | None = None
    kv_cache_tokens: int | None = None
    on_demand: bool = False
    admits: bool = True
    load_s: float | None = None
    num_loads: int = 0
    num_wakes: int = 0
    retry_after_s: float | None = None
    is_key_refused: bool = False
