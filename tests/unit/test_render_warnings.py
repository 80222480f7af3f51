"""Warnings of a plan on screen: each in full once, and by name under every other model it is about."""

from __future__ import annotations

from dataclasses import replace

from vllm_plans import plan_of, vllm_plan

from trimtab.cli.render import render_plan
from trimtab.core.plan import HostBudget, ModelPlan, PlanWarning, ReplicaPlan

BUDGET = HostBudget(
    available_bytes=2**30,
    requested_bytes=2**20,
    weights_bytes=2**20,
    kv_cache_bytes=0,
    compute_bytes=0,
    process_bytes=0,
    prompt_cache_bytes=0,
    error_bytes=0,
)


def model(name: str, *texts: str) -> ModelPlan:
    """A model with these warnings."""
    warnings = tuple(PlanWarning(code="any", text=text) for text in texts)
    replicas = (ReplicaPlan(replica_id=f"{name}/0", host=BUDGET, max_concurrency=1.0),)
    return replace(vllm_plan(name, name, {}), warnings=warnings, replicas=replicas)


def test_what_holds_for_every_model_is_said_once():
    """Two models that share cards are one piece of news; a model's own warning stays beside it."""
    plan = plan_of("1xh200", model("one", "models share"), model("two", "models share", "only of two"))

    text = render_plan(plan)

    assert text.count("models share") == 1
    assert text.index("any, as for one above") > text.index("plan: two")
    assert text.index("only of two") > text.index("plan: two")
