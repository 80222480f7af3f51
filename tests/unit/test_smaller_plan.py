"""After a start that failed for want of memory: what is tried next, and what is left to its user."""

from __future__ import annotations

from dataclasses import replace

import pytest
from test_vllm_diagnosis import BLOCK, CONTEXT, NOT_FREE, SAMPLER, STATES
from wishes import DENSE_AWQ, MOE_AWQ, plan, wish

from trimtab.core.plan import Plan
from trimtab.core.stack import GatewaySettings
from trimtab.engines.vllm_diagnosis import diagnose_vllm
from trimtab.launcher.replan import Replanner
from trimtab.launcher.specs import SpecOptions, specs_of
from trimtab.launcher.supervision import RunEnd
from trimtab.planner.smaller_plan import MAX_SMALLER_PLANS, smaller_plan

OUT_OF_MEMORY = "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 394.00 MiB. GPU 0 has"
NO_CACHE = "ValueError: No available memory for the cache blocks. Try increasing `gpu_memory_utilization`"
WEIGHTS = "ERROR Failed to load model - not enough GPU memory. Try lowering --gpu-memory-utilization"


def planned(repo: str = DENSE_AWQ, gpus: str = "1xrtx4090", **request):
    (model,) = plan(gpus, wish(repo, **request)).models
    return model


def value(model, name):
    return next((item.value for item in model.settings if item.name == name), None)


def after(line: str, model):
    return smaller_plan(model, diagnose_vllm((line,)))


@pytest.mark.parametrize(
    ("line", "name"),
    [
        pytest.param(NOT_FREE.replace("18.1", "21.0"), "gpu_memory_utilization", id="card-not-free"),
        pytest.param(SAMPLER.replace("1024", "32"), "max_num_seqs", id="sampler"),
        pytest.param(STATES.replace("327", "3"), "max_num_seqs", id="states"),
        pytest.param(NO_CACHE, "max_num_batched_tokens", id="no-cache"),
        pytest.param(OUT_OF_MEMORY, "gpu_memory_utilization", id="out-of-memory"),
    ],
)
def test_the_setting_that_was_too_large_becomes_smaller(line, name):
    """Exactly what the engine complained about shrinks, on the command line too, and the reason stands by."""
    model = planned(gpus="1xh100", engine_args={"max_model_len": 4096})
    found = after(line, model)
    made = found.model
    assert value(made, name) < value(model, name)
    assert made.argv != model.argv
    assert str(value(made, name)) in made.argv
    assert [item.code for item in made.warnings][-1] == "smaller_plan"
    assert name in found.text
    changed = {item.name for item, old in zip(made.settings, model.settings, strict=True) if item != old}
    assert changed == {name}


def test_the_length_that_vllm_says_fits_is_taken():
    """The context follows the engine's own figure, for the gateway as well."""
    model = planned(MOE_AWQ, "2xrtx4090")
    line = CONTEXT.replace("152889", str(model.max_model_len - 1000))
    made = after(line, model).model
    assert made.max_model_len == value(made, "max_model_len") == (model.max_model_len - 1000) // 16 * 16


def test_a_batch_grows_to_hold_a_block():
    """The one case where more is what helps: a state block must fit into a batch."""
    model = planned(MOE_AWQ, "2xrtx4090")
    settings = tuple(
        replace(item, value=2048) if item.name == "max_num_batched_tokens" else item
        for item in model.settings
    )
    assert value(after(BLOCK, replace(model, settings=settings)).model, "max_num_batched_tokens") == 2096


@pytest.mark.parametrize(
    ("line", "pins", "says"),
    [
        pytest.param(CONTEXT, {"max_model_len": 262144}, "max_model_len is pinned as 262,144", id="context"),
        pytest.param(
            STATES, {"max_num_seqs": 512}, "max_num_seqs is pinned as 512, 327 would help", id="states"
        ),
    ],
)
def test_what_is_pinned_stays_and_is_named(line, pins, says):
    """A value that the user wrote is never changed; the answer says which other would help."""
    model = planned(MOE_AWQ, "2xrtx4090", engine_args=pins)
    found = after(line, model)
    assert found.model is None
    assert says in found.text


def test_a_context_that_was_asked_for_is_not_shortened():
    """The stack file's own word counts as much as a pinned flag."""
    found = after(CONTEXT, planned(MOE_AWQ, "2xrtx4090", context=200_000))
    assert found.model is None
    assert "max_model_len is asked as 200,000" in found.text


@pytest.mark.parametrize(
    "line",
    [
        pytest.param(WEIGHTS, id="weights"),
        pytest.param("OSError: [Errno 98] Address already in use", id="port"),
        pytest.param("hello", id="unknown"),
        pytest.param("MemoryError", id="host-memory"),
    ],
)
def test_where_less_would_not_help_nothing_is_tried(line):
    """No smaller plan makes weights fit a card, or frees a port."""
    assert after(line, planned()) is None


def test_a_card_with_hardly_anything_free_is_not_squeezed_into():
    """A share that would not even hold the weights is no plan."""
    assert after(NOT_FREE.replace("18.1", "9.0"), planned()) is None


def test_steps_end():
    """However often it fails, the plan never shrinks for ever."""
    model, steps = planned(), 0
    for line in (OUT_OF_MEMORY, NO_CACHE):
        while (found := after(line, model)) is not None and found.model is not None:
            model, steps = found.model, steps + 1
            assert steps < 40
    assert value(model, "max_num_seqs") >= 1


class Running:
    """A plan as a serving trimtab holds it."""

    def __init__(self, *models) -> None:
        self.plan = Plan(stack="box", fits=True, models=models, gateway=GatewaySettings())
        self.replanner = Replanner(read=lambda: self.plan, take=self.take, specs_of=self.specs_of)

    def take(self, plan) -> None:
        self.plan = plan

    def specs_of(self, plan):
        return specs_of(plan, SpecOptions(trimtab_version="0", dies_with_supervisor=True))

    def replan(self, spec, *log):
        return self.replanner.replan(spec, RunEnd(ran_for_s=1, log_tail=log))


def test_a_smaller_plan_is_tried_twice_and_then_explained():
    """Two tries by itself, each shown; after that the user is told what would come next."""
    running = Running(planned(gpus="1xh100"))
    (spec,) = running.specs_of(running.plan)
    shares = []
    for number in range(1, MAX_SMALLER_PLANS + 1):
        made = running.replan(spec, OUT_OF_MEMORY)
        assert made.text.startswith(f"smaller plan {number}: gpu_memory_utilization")
        assert made.spec.config_hash != spec.config_hash
        spec = made.spec
        shares.append(value(running.plan.models[0], "gpu_memory_utilization"))
    assert shares == sorted(shares, reverse=True)
    last = running.replan(spec, OUT_OF_MEMORY)
    assert last.spec is None
    assert last.text.startswith("2 smaller plans were tried; next would be gpu_memory_utilization")


def test_replicas_of_one_model_shrink_together():
    """The second replica starts with the smaller plan of the first, and costs no try of its own."""
    running = Running(planned(gpus="2xrtx4090", replicas=2))
    first, second = running.specs_of(running.plan)
    running.replan(first, OUT_OF_MEMORY)
    made = running.replan(second, OUT_OF_MEMORY)
    assert made.spec == running.specs_of(running.plan)[1]
    assert made.text == "as its sibling after a failed start"


def test_an_end_that_memory_did_not_cause_leaves_the_plan_alone():
    """A killed engine is started again as it was."""
    running = Running(planned())
    (spec,) = running.specs_of(running.plan)
    assert running.replan(spec, "EngineDeadError: EngineCore encountered an issue.") is None
    assert running.specs_of(running.plan) == (spec,)
