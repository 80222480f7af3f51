"""Pure. After a start that failed for want of memory: the next smaller plan of the same model.

Only what the planner chose is made smaller. What the user pinned or asked for stays, and then the answer
says what would help. Each step follows from what the engine said (its own figures where it named any).
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Final

from trimtab.core.plan import GpuBudget, ModelPlan, PlanWarning, ReplicaPlan, Setting
from trimtab.core.stack import SettingValue
from trimtab.engines.vllm import Vllm
from trimtab.engines.vllm_diagnosis import Diagnosis

__all__ = ["MAX_SMALLER_PLANS", "SmallerPlan", "smaller_plan"]

MAX_SMALLER_PLANS: Final = 2
"""How often one model is made smaller by itself before it is left to its user."""
_SHARE_STEP: Final = 0.04
_SMALLEST_SHARE: Final = 0.3
_CACHE_SIZE: Final = "kv_cache_memory_bytes"
_SMALLEST_BATCH: Final = 256
_CONTEXT_STEP: Final = 16
_SMALLEST_CONTEXT: Final = 1024
_FIXED: Final = frozenset({"pinned", "asked"})
# Which settings are made smaller, in this order, where the engine's words name no value.
_STEPS: Final[dict[str, tuple[str, ...]]] = {
    "card_not_free": ("gpu_memory_utilization",),
    "sampler_out_of_memory": ("max_num_seqs", "gpu_memory_utilization"),
    "too_few_state_blocks": ("max_num_seqs",),
    "context_exceeds_cache": ("max_model_len",),
    "block_above_batch": ("max_num_batched_tokens",),
    "no_room_for_cache": ("max_num_batched_tokens", "max_num_seqs"),
    "no_token_fits": ("max_num_batched_tokens", "max_num_seqs"),
    "workspace_locked": ("max_num_batched_tokens",),
    "gpu_out_of_memory": ("gpu_memory_utilization", "max_num_batched_tokens", "max_num_seqs"),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class SmallerPlan:
    """``model`` is the plan to try, None where only what the user fixed would help; ``text`` says what."""

    model: ModelPlan | None
    text: str


def smaller_plan(model: ModelPlan, diagnosis: Diagnosis) -> SmallerPlan | None:
    """The plan to try after this failure; None where no smaller one would help."""
    if model.engine != "vllm":
        return None
    if diagnosis.code == "memory_changed":
        return SmallerPlan(model=model, text="the same once more: another process changed the card's memory")
    kept: list[str] = []
    settings = {item.name: item for item in model.settings}
    for name, value in _candidates(model, diagnosis):
        held = settings.get(name)
        if held is not None and held.origin in _FIXED:
            kept.append(f"{name} is {held.origin} as {_show(held.value)}, {_show(value)} would help")
            continue
        made = _with_setting(model, name, value, diagnosis)
        if made is None:
            continue
        before = _show(held.value) if held is not None else "the engine's own"
        text = f"{name} {_show(value)} instead of {before}: {diagnosis.why}"
        return SmallerPlan(model=_noted(made, text), text=text)
    return SmallerPlan(model=None, text="; ".join(kept)) if kept else None


def _candidates(model: ModelPlan, diagnosis: Diagnosis) -> Iterator[tuple[str, SettingValue]]:
    """Values that are smaller than what ran, the engine's own proposals first."""
    values = {item.name: item.value for item in model.settings}
    named = dict(diagnosis.change)
    for name in _STEPS.get(diagnosis.code, ()):
        now = values.get(name)
        value = named.get(name, _step(model, name, now))
        before, after = _number_of(now), _number_of(value)
        if (
            value is None
            or after is None
            or (before is not None and not _leads_away(diagnosis, before, after))
        ):
            continue
        yield name, value


def _leads_away(diagnosis: Diagnosis, before: float, after: float) -> bool:
    """Whether the value leads away from what failed: down, but for a batch that must hold a block."""
    return after > before if diagnosis.code == "block_above_batch" else after < before


def _step(model: ModelPlan, name: str, now: SettingValue | None) -> SettingValue | None:
    """One step down from ``now``; None at the end of the stairs, or where no value is known."""
    before = _number_of(now)
    if before is None:
        return None
    if name == "gpu_memory_utilization":
        share = math.floor((before - _SHARE_STEP) * 100 + 1e-9) / 100
        return share if share >= _SMALLEST_SHARE else None
    half = int(before) // 2
    if name == "max_num_batched_tokens":
        # A state block must fit into a batch; blocks of attention alone are far smaller.
        block = max((replica.kv_block_tokens or 0 for replica in model.replicas), default=0)
        return half if half >= max(_SMALLEST_BATCH, block) else None
    return half if name == "max_num_seqs" and half >= 1 else None


def _with_setting(model: ModelPlan, name: str, value: SettingValue, diagnosis: Diagnosis) -> ModelPlan | None:
    """The plan with one setting changed, and what follows from it; None where that leads nowhere."""
    made = _replaced(model, name, value, f"made smaller after a failed start: {diagnosis.why}")
    if name == "gpu_memory_utilization" and isinstance(value, float):
        return _with_share(made, value, diagnosis)
    if name == "max_model_len" and isinstance(value, int):
        if value < _SMALLEST_CONTEXT:
            return None
        made = replace(made, max_model_len=value)
    replicas = tuple(replace(item, kv_blocks=None, kv_cache_tokens=None) for item in made.replicas)
    return _rendered(replace(made, replicas=replicas))


def _with_share(model: ModelPlan, share: float, diagnosis: Diagnosis) -> ModelPlan | None:
    """The budgets under another share of the cards; the context shrinks with the cache where it must."""
    replicas = tuple(_replica_with_share(item, share) for item in model.replicas)
    if any(budget.kv_cache_bytes <= 0 for item in replicas for budget in item.per_gpu):
        return None
    made = _with_cache_size(replace(model, replicas=replicas), diagnosis)
    fits = min((item.max_model_len_that_fits or 0 for item in replicas if item.per_gpu), default=0)
    if 0 < fits < model.max_model_len:
        context = next((item for item in model.settings if item.name == "max_model_len"), None)
        if (context is not None and context.origin in _FIXED) or fits < _SMALLEST_CONTEXT:
            return None
        made = _replaced(made, "max_model_len", fits, f"what is left holds no more: {diagnosis.why}")
        made = replace(made, max_model_len=fits)
    return _rendered(made)


def _with_cache_size(model: ModelPlan, diagnosis: Diagnosis) -> ModelPlan:
    """A cache whose size was chosen by itself follows the share, which it would otherwise ignore."""
    if all(item.name != _CACHE_SIZE or item.origin in _FIXED for item in model.settings):
        return model
    size = min(budget.kv_cache_bytes for item in model.replicas for budget in item.per_gpu)
    return _replaced(model, _CACHE_SIZE, size, f"made smaller after a failed start: {diagnosis.why}")


def _replica_with_share(replica: ReplicaPlan, share: float) -> ReplicaPlan:
    budgets = tuple(_budget_with_share(budget, share) for budget in replica.per_gpu)
    left = min(
        (new.kv_cache_bytes / old.kv_cache_bytes for new, old in zip(budgets, replica.per_gpu, strict=True)
         if old.kv_cache_bytes > 0),
        default=1.0,
    )  # fmt: skip
    fits = replica.max_model_len_that_fits
    return replace(
        replica,
        per_gpu=budgets,
        kv_blocks=None,
        kv_cache_tokens=None,
        max_concurrency=None,
        max_model_len_that_fits=None if fits is None else int(fits * left) // _CONTEXT_STEP * _CONTEXT_STEP,
    )


def _budget_with_share(budget: GpuBudget, share: float) -> GpuBudget:
    requested = math.ceil(budget.total_bytes * share)
    rest = budget.weights_bytes + budget.activation_bytes + budget.non_torch_bytes + budget.cuda_graph_bytes
    return replace(budget, requested_bytes=requested, kv_cache_bytes=requested - rest)


def _replaced(model: ModelPlan, name: str, value: SettingValue, reason: str) -> ModelPlan:
    made = Setting(name=name, value=value, origin="measured", reason=reason)
    if all(item.name != name for item in model.settings):
        return replace(model, settings=(*model.settings, made))
    return replace(model, settings=tuple(made if item.name == name else item for item in model.settings))


def _rendered(model: ModelPlan) -> ModelPlan:
    return replace(model, argv=Vllm().render_argv(model))


def _noted(model: ModelPlan, text: str) -> ModelPlan:
    warning = PlanWarning(code="smaller_plan", text=text, source="a failed start on this machine")
    return replace(model, warnings=(*model.warnings, warning))


def _number_of(value: SettingValue | None) -> float | None:
    return value if isinstance(value, int | float) and not isinstance(value, bool) else None


def _show(value: SettingValue) -> str:
    return f"{value:,}" if isinstance(value, int) and not isinstance(value, bool) else str(value)
