"""What must hold for every plan of the llama.cpp planner, whatever the model, the machine and the wish."""

from __future__ import annotations

from dataclasses import replace

from hypothesis import given, settings
from hypothesis import strategies as st
from strategies import checkpoints, hosts, requests

from trimtab.core.checkpoint import GgufCheckpoint
from trimtab.core.hardware import Host
from trimtab.core.plan import HostBudget, ModelPlan
from trimtab.core.stack import ModelRequest
from trimtab.engines.llama_cpp import REQUIRED_XLLAMACPP
from trimtab.errors import StackFileError
from trimtab.planner.llama_cpp import LlamaCppOutcome, plan_llama_cpp
from trimtab.units import MIB, parse_bytes


def _plan(
    request: ModelRequest, checkpoint: GgufCheckpoint, host: Host, *, ram_bytes: int | None = None
) -> LlamaCppOutcome | None:
    """The outcome, or None where the wish is refused as contradictory."""
    try:
        return plan_llama_cpp(
            request,
            checkpoint,
            host,
            ram_bytes=ram_bytes,
            python="python",
            engine_version=REQUIRED_XLLAMACPP,
        )
    except StackFileError:
        assert request.context is not None
        assert request.context > checkpoint.trained_context_tokens
        return None


def _budget(model: ModelPlan) -> HostBudget:
    budget = model.replicas[0].host
    assert budget is not None
    return budget


def _setting(model: ModelPlan, name: str) -> object:
    return next(item.value for item in model.settings if item.name == name)


@settings(max_examples=150, deadline=None)
@given(requests(), checkpoints(), hosts())
def test_budget_adds_up_and_a_fitting_plan_stays_within_the_ram(
    request: ModelRequest, checkpoint: GgufCheckpoint, host: Host
):
    """What is planned never takes more RAM than the machine has free."""
    outcome = _plan(request, checkpoint, host)
    if outcome is None:
        return
    budget = _budget(outcome.model)
    parts = (budget.weights_bytes, budget.kv_cache_bytes, budget.compute_bytes, budget.process_bytes)
    assert budget.requested_bytes == sum(parts)
    assert all(part >= 0 for part in parts)
    needed = budget.requested_bytes + budget.prompt_cache_bytes + budget.error_bytes
    assert outcome.model.fits == (needed <= host.available_ram_bytes)
    assert bool(outcome.rejections) or outcome.model.fits


@settings(max_examples=150, deadline=None)
@given(requests(), checkpoints(), hosts())
def test_what_was_asked_is_what_is_planned(request: ModelRequest, checkpoint: GgufCheckpoint, host: Host):
    """Asked context and concurrency are obeyed even when they do not fit, and never exceed the training."""
    outcome = _plan(request, checkpoint, host)
    if outcome is None:
        return
    model = outcome.model
    assert model.max_model_len <= checkpoint.trained_context_tokens
    if request.context is not None:
        assert request.context <= model.max_model_len < request.context + 256
    if request.concurrency is not None:
        assert model.replicas[0].max_concurrency == request.concurrency
        assert _setting(model, "n_parallel") == request.concurrency


@settings(max_examples=100, deadline=None)
@given(requests(), checkpoints(), hosts())
def test_every_nearest_change_fits_when_it_is_made(
    request: ModelRequest, checkpoint: GgufCheckpoint, host: Host
):
    """A proposed change, typed in as proposed, leads to a plan that fits."""
    cap = host.available_ram_bytes // 2
    outcome = _plan(request, checkpoint, host, ram_bytes=cap)
    if outcome is None:
        return
    assert not (outcome.model.fits and outcome.nearest_fit)
    for change in outcome.nearest_fit:
        changed, changed_cap = request, cap
        for key, value in change.change:
            if key == "ram":
                changed_cap = parse_bytes(str(value))
            elif key in ("context", "concurrency"):
                changed = replace(changed, **{key: value})
            else:
                changed = replace(changed, engine_args=(*changed.engine_args, (key, value)))
        retried = _plan(changed, checkpoint, host, ram_bytes=changed_cap)
        assert retried is not None
        assert retried.model.fits, change.text


@settings(max_examples=100, deadline=None)
@given(requests(), checkpoints(), hosts(), st.integers(MIB, 2**40))
def test_more_ram_never_makes_a_fitting_plan_unfit(
    request: ModelRequest, checkpoint: GgufCheckpoint, host: Host, more: int
):
    """Adding memory to a machine never takes a model away, nor shortens its context."""
    outcome = _plan(request, checkpoint, host)
    larger = _plan(request, checkpoint, replace(host, available_ram_bytes=host.available_ram_bytes + more))
    if outcome is None or larger is None or not outcome.model.fits:
        return
    assert larger.model.fits
    pool, larger_pool = _setting(outcome.model, "n_ctx"), _setting(larger.model, "n_ctx")
    assert isinstance(pool, int)
    assert isinstance(larger_pool, int)
    assert larger_pool >= pool


@settings(max_examples=100, deadline=None)
@given(checkpoints(), hosts(), st.integers(1, 32), st.data())
def test_memory_grows_with_context_and_slots(
    checkpoint: GgufCheckpoint, host: Host, slots: int, data: st.DataObject
):
    """A longer context or more requests at once are never planned to take less."""
    context = data.draw(st.integers(1, checkpoint.trained_context_tokens))
    small = ModelRequest(name="m", checkpoint="m", context=context, concurrency=slots)
    for wider in (
        replace(small, concurrency=slots + 1),
        replace(small, context=data.draw(st.integers(context, checkpoint.trained_context_tokens))),
    ):
        before, after = _plan(small, checkpoint, host), _plan(wider, checkpoint, host)
        assert before is not None
        assert after is not None
        assert _budget(after.model).requested_bytes >= _budget(before.model).requested_bytes


@settings(max_examples=50, deadline=None)
@given(requests(), checkpoints(), hosts())
def test_planning_is_deterministic_and_largest_context_fits(
    request: ModelRequest, checkpoint: GgufCheckpoint, host: Host
):
    """The same wish gives the same plan, and the longest context that it names can be asked for."""
    outcome = _plan(request, checkpoint, host)
    assert outcome == _plan(request, checkpoint, host)
    if outcome is None:
        return
    longest = outcome.model.replicas[0].max_model_len_that_fits
    if longest is not None:
        slots = outcome.model.replicas[0].max_concurrency
        assert slots is not None
        asked = _plan(replace(request, context=longest, concurrency=int(slots)), checkpoint, host)
        assert asked is not None
        assert asked.model.fits
