"""Pure. After a failed run: whether a smaller plan of its model is tried, and with which command."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, replace

from trimtab.core.plan import Plan
from trimtab.core.state import ReplicaSpec
from trimtab.engines.vllm_diagnosis import diagnose_vllm
from trimtab.launcher.supervision import RunEnd
from trimtab.planner.sleep_plan import without_sleep
from trimtab.planner.smaller_plan import MAX_SMALLER_PLANS, smaller_plan

__all__ = ["Replanned", "Replanner"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Replanned:
    """``spec`` is what to start instead, None where only the user can help; ``text`` says what and why."""

    spec: ReplicaSpec | None
    text: str


class Replanner:
    """Makes one plan's models smaller, each at most MAX_SMALLER_PLANS times.

    ``read`` gives the plan of now, ``take`` gets the smaller one, ``specs_of`` renders a plan.
    """

    def __init__(
        self,
        *,
        read: Callable[[], Plan],
        take: Callable[[Plan], None],
        specs_of: Callable[[Plan], tuple[ReplicaSpec, ...]],
    ) -> None:
        self._read = read
        self._take = take
        self._specs_of = specs_of
        self._tries: Counter[str] = Counter()

    def replan(self, spec: ReplicaSpec, end: RunEnd) -> Replanned | None:
        """What to start after this end of a run of ``spec``; None where the same is to be tried."""
        plan = self._read()
        current = self._spec_in(plan, spec.replica_id)
        model = next((item for item in plan.models if item.name == spec.model), None)
        if current is None or model is None or model.engine != "vllm" or end.refusal:
            return None
        if current.config_hash != spec.config_hash:
            return Replanned(spec=current, text="as its sibling after a failed start")
        diagnosis = diagnose_vllm(end.log_tail, is_silent=bool(end.silence))
        found = smaller_plan(model, diagnosis)
        if found is None:
            return self._without_sleep(plan, spec, end)
        if found.model is None:
            return Replanned(spec=None, text=found.text)
        if self._tries[model.name] >= MAX_SMALLER_PLANS:
            text = f"{MAX_SMALLER_PLANS} smaller plans were tried; next would be {found.text}"
            return Replanned(spec=None, text=text)
        self._tries[model.name] += 1
        models = tuple(found.model if item.name == model.name else item for item in plan.models)
        smaller = replace(plan, models=models)
        made = self._spec_in(smaller, spec.replica_id)
        self._take(smaller)
        return Replanned(spec=made, text=f"smaller plan {self._tries[model.name]}: {found.text}")

    def _without_sleep(self, plan: Plan, spec: ReplicaSpec, end: RunEnd) -> Replanned | None:
        """A start that failed for no reason of size may have failed for its sleep mode, which is our wish."""
        text = "its engine did not start with enable_sleep_mode"
        changed = without_sleep(plan, spec.model, text) if end.ready_for_s is None else None
        if changed is None:
            return None
        self._take(changed)
        made = self._spec_in(changed, spec.replica_id)
        return Replanned(spec=made, text=f"{text}: it is tried without, and stopped when it gives way")

    def _spec_in(self, plan: Plan, replica_id: str) -> ReplicaSpec | None:
        return next((item for item in self._specs_of(plan) if item.replica_id == replica_id), None)
