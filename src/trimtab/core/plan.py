"""Pure. The plan: what will run, with which settings, what it takes, and why not something else.

The classes mirror the ``plan --json`` document field for field; integers of bytes throughout.
"""

from __future__ import annotations

from collections.abc import Set as AbstractSet
from dataclasses import dataclass, replace
from typing import Literal, TypeAlias

from trimtab.core.hardware import Inventory
from trimtab.core.stack import (
    EngineName,
    GatewaySettings,
    ModelRequest,
    RuntimeName,
    SettingValue,
    ThinkingDefault,
)
from trimtab.core.workload import SpeedPlan

__all__ = [
    "PLAN_SCHEMA",
    "Change",
    "GpuBudget",
    "HostBudget",
    "ModelPlan",
    "Plan",
    "PlanWarning",
    "Rejection",
    "ReplicaPlan",
    "Setting",
    "SettingOrigin",
    "SleepPlan",
    "SwapPlan",
]

PLAN_SCHEMA = 1

SettingOrigin: TypeAlias = Literal["pinned", "asked", "default", "measured", "chosen"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Setting:
    """One engine setting by its Python name, where it came from and why it has this value.

    ``origin``: pinned (engine_args or --set), asked (context, concurrency …), default (the
    engine's), measured (the machine), chosen (by the planner).
    """

    name: str
    value: SettingValue
    origin: SettingOrigin
    reason: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class GpuBudget:
    """How one card's memory is spent, as the engine will account it.

    requested = weights + activation + non_torch + cuda_graph + kv_cache; ``outside_budget_bytes``
    comes on top; ``error_bytes`` is the half-width of the band. ``requested_bytes`` is None where
    the KV cache was pinned in bytes.
    """

    total_bytes: int
    requested_bytes: int | None
    weights_bytes: int
    activation_bytes: int
    non_torch_bytes: int
    cuda_graph_bytes: int
    kv_cache_bytes: int
    outside_budget_bytes: int
    error_bytes: int

    @property
    def inside_bytes(self) -> int:
        """What the engine takes of its own account: its share, or beside a pinned cache its parts."""
        if self.requested_bytes is not None:
            return self.requested_bytes
        parts = self.weights_bytes + self.activation_bytes + self.non_torch_bytes + self.cuda_graph_bytes
        return parts + self.kv_cache_bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class HostBudget:
    """How host RAM is spent by an engine on the CPU; predicted resident memory of its processes.

    requested = weights + kv_cache + compute + process; ``available_bytes`` is what the plan may
    use; ``prompt_cache_bytes`` is the most the engine's cache of old prompts may grow to, on top
    of what is resident at start; ``error_bytes`` is the half-width of the band.
    """

    available_bytes: int
    requested_bytes: int
    weights_bytes: int
    kv_cache_bytes: int
    compute_bytes: int
    process_bytes: int
    prompt_cache_bytes: int
    error_bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplicaPlan:
    """One engine endpoint. ``per_gpu`` is parallel to ``gpus``; ``host`` is set on CPU engines.

    ``kv_cache_tokens`` and ``max_concurrency`` are what the engine will print or allow;
    ``max_model_len_that_fits`` is the longest context this budget would carry.
    """

    replica_id: str
    gpus: tuple[int, ...] = ()
    per_gpu: tuple[GpuBudget, ...] = ()
    host: HostBudget | None = None
    kv_block_tokens: int | None = None
    kv_blocks: int | None = None
    kv_cache_tokens: int | None = None
    max_concurrency: float | None = None
    max_model_len_that_fits: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class PlanWarning:
    """Something a reader should know about a plan; ``source`` says where the fact is from."""

    code: str
    text: str
    source: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelPlan:
    """One served model: its engine, settings, replicas, command and environment.

    ``argv`` and ``env`` are what the runtime will start; ``{port}`` in ``argv`` stands for the
    port that is picked at start. ``max_model_len`` is tokens one request may use. ``family`` says how
    a request's thinking is switched ("plain": not at all), ``thinking`` its default, None the template's;
    ``speed`` is None where it cannot be estimated.
    """

    name: str
    checkpoint: str
    fits: bool
    engine: EngineName
    engine_version: str
    runtime: RuntimeName
    max_model_len: int
    settings: tuple[Setting, ...]
    replicas: tuple[ReplicaPlan, ...]
    family: str = "plain"
    thinking: ThinkingDefault | None = None
    speed: SpeedPlan | None = None
    argv: tuple[str, ...] = ()
    env: tuple[tuple[str, str], ...] = ()
    warnings: tuple[PlanWarning, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Rejection:
    """One candidate that was not chosen: its settings in words, a stable code, and the reason."""

    candidate: tuple[tuple[str, SettingValue], ...]
    code: str
    text: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Change:
    """One change of the wish that the planner verified would fit."""

    change: tuple[tuple[str, SettingValue], ...]
    text: str


@dataclass(frozen=True, slots=True, kw_only=True)
class SleepPlan:
    """A model that sleeps instead of being stopped: its processes stay, its weights move to host RAM.

    ``host_bytes`` of RAM are taken from its first sleep on, asleep or awake, until it is stopped. Asleep it
    keeps at most ``card_bytes`` of each of its cards; falling asleep frees at least ``freed_bytes`` of each.
    """

    model: str
    host_bytes: int
    card_bytes: int
    freed_bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class SwapPlan:
    """Which models may be loaded at the same time, and when they come and go.

    ``resident_sets`` are the largest sets that fit together, the one to begin with first; every part of one
    fits too. ``keep_loaded`` are in all of them. ``priority`` gives (model, number) for those that have one.
    The times are those of ``core.stack.SwapSettings``. ``sleepers`` sleep when they give way, all others are
    stopped; ``stopped`` gives (model, why it cannot sleep) for those whose engine could.
    """

    resident_sets: tuple[tuple[str, ...], ...]
    keep_loaded: tuple[str, ...] = ()
    priority: tuple[tuple[str, int], ...] = ()
    idle_unload_s: float | None = None
    min_residence_s: float = 20.0
    sleepers: tuple[SleepPlan, ...] = ()
    stopped: tuple[tuple[str, str], ...] = ()

    def fits_together(self, models: AbstractSet[str]) -> bool:
        """Whether these may be loaded at the same time."""
        return any(models <= set(one) for one in self.resident_sets)

    def without(self, model: str) -> SwapPlan:
        """The same where this model is served no longer."""
        left = [tuple(name for name in names if name != model) for names in self.resident_sets]
        largest = [one for one in dict.fromkeys(left) if not any(set(one) < set(other) for other in left)]
        return replace(
            self,
            resident_sets=tuple(largest),
            keep_loaded=tuple(name for name in self.keep_loaded if name != model),
            priority=tuple(pair for pair in self.priority if pair[0] != model),
            sleepers=tuple(one for one in self.sleepers if one.model != model),
            stopped=tuple(pair for pair in self.stopped if pair[0] != model),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """The whole answer; a plan that does not fit is still complete, with ``fits`` False.

    ``externals`` are models at somebody else's url; ``idle_gpus`` indices of cards that nothing uses.
    ``swap`` is set where models are loaded on demand, because not all fit together or idle ones are unloaded.
    """

    stack: str
    fits: bool
    models: tuple[ModelPlan, ...]
    gateway: GatewaySettings
    hardware: Inventory | None = None
    externals: tuple[ModelRequest, ...] = ()
    idle_gpus: tuple[int, ...] = ()
    rejections: tuple[Rejection, ...] = ()
    nearest_fit: tuple[Change, ...] = ()
    swap: SwapPlan | None = None
    schema: int = PLAN_SCHEMA
