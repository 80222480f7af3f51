"""Warnings of a plan on screen: each in full once, and by name under every other model it is about."""

from __future__ import annotations

from dataclasses import replace

import pytest
from vllm_plans import plan_of, vllm_plan

from trimtab.cli.render import render_plan
from trimtab.core.plan import GpuBudget, HostBudget, ModelPlan, PlanWarning, Rejection, ReplicaPlan
from trimtab.core.stack import ModelRequest

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
    shared = "models share, as said"
    plan = plan_of("1xh200", model("one", shared), model("two", shared, "only of two"))

    text = render_plan(plan)

    assert text.count(shared) == 1
    assert text.index("as for one above: models share\n") > text.index("plan: two")
    assert text.index("only of two") > text.index("plan: two")


@pytest.mark.parametrize(("code", "is_shown"), [("memory", True), ("heads", False)])
def test_what_no_engine_would_run_has_no_figures(code, is_shown):
    """Tokens and concurrency of an impossible split would be read as what one gets."""
    budget = GpuBudget(
        total_bytes=2**35, requested_bytes=2**34, weights_bytes=2**33, activation_bytes=0, non_torch_bytes=0,
        cuda_graph_bytes=0, kv_cache_bytes=2**30, outside_budget_bytes=0, error_bytes=0,
    )  # fmt: skip
    one = vllm_plan("one", "one", {})
    replicas = tuple(
        replace(replica, per_gpu=(budget,), kv_cache_tokens=4096, max_concurrency=7.2)
        for replica in one.replicas
    )
    plan = replace(
        plan_of("1xh200", replace(one, fits=False, replicas=replicas)),
        fits=False,
        rejections=(Rejection(candidate=(("model", "one"),), code=code, text="models.one: the reason"),),
    )

    text = render_plan(plan)

    assert ("7.20 requests" in text, "4,096 tokens" in text) == (is_shown, is_shown)
    assert "does not fit: models.one: the reason" in text


def test_a_plan_that_a_full_batch_may_break_is_called_tight():
    """It starts, so it fits; whoever reads only the first line is told that this is not all."""
    warning = PlanWarning(code="runtime_peak_exceeds_card", text="a full batch may exceed the card by 1 GiB")
    tight = replace(model("one"), warnings=(warning,))

    assert "plan: one with vllm 0.25.1: TIGHT" in render_plan(plan_of("1xh200", tight))
    assert ": fits" in render_plan(plan_of("1xh200", model("one")))


def test_what_is_missing_is_said_instead_of_a_negative_cache():
    """No tokens, no requests and no speed stand beside a plan whose weights alone exceed the card."""
    budget = GpuBudget(
        total_bytes=2**35, requested_bytes=2**34, weights_bytes=2**35, activation_bytes=0, non_torch_bytes=0,
        cuda_graph_bytes=0, kv_cache_bytes=-(2**34), outside_budget_bytes=0, error_bytes=0,
    )  # fmt: skip
    one = vllm_plan("one", "one", {})
    replicas = tuple(replace(replica, per_gpu=(budget,)) for replica in one.replicas)
    text = render_plan(plan_of("1xh200", replace(one, fits=False, replicas=replicas)))

    assert "16.00 too much" in text
    assert "KV cache" not in text
    assert "concurrency" not in text


def test_endpoints_elsewhere_are_named():
    """A stack of nothing but endpoints is no empty page."""
    request = ModelRequest(name="far", checkpoint="", url="http://127.0.0.1:1/v1")

    assert render_plan(replace(plan_of("1xh200"), externals=(request,))).startswith("endpoint: far")
