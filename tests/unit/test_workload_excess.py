"""A workload that a plan cannot serve as it is asked is said, with what to do."""

from __future__ import annotations

import pytest
from wishes import DENSE_AWQ, wish

from trimtab.core.workload import Workload
from trimtab.planner.gpu_spec import decode_gpu_spec
from trimtab.planner.vllm_plan import plan_vllm


def warnings(workload: Workload | None) -> list[str]:
    """What the plan of 27B in 4 bits on two cards, 16,384 tokens and 4 users says of a workload."""
    outcome = plan_vllm(
        (wish(DENSE_AWQ, context=16384, concurrency=4, replicas=1),),
        decode_gpu_spec("2xrtx4090"),
        workload=workload,
    )
    assert outcome.fits
    found = (item for model in outcome.models for item in model.warnings)
    return [item.text for item in found if item.code == "workload_exceeds_plan"]


@pytest.mark.parametrize(
    ("workload", "words"),
    [
        pytest.param(
            Workload(input_tokens=16384, output_tokens=1024),
            "16,384 + 1,024 tokens exceed the context of 16,384: such a request is refused; plan with"
            " --context 17408",
            id="length",
        ),
        pytest.param(
            Workload(concurrency=100_000),
            "100,000 users exceed the",
            id="users",
        ),
    ],
)
def test_what_exceeds_the_plan_is_said(workload, words):
    """A figure for a load that the engine would refuse is not given without a word."""
    (text,) = warnings(workload)

    assert words in text
    assert "plan with --" in text


@pytest.mark.parametrize("workload", [None, Workload(), Workload(concurrency=4)])
def test_what_the_plan_carries_is_not_commented(workload):
    """Nor is the default workload, which nobody asked for."""
    assert warnings(workload) == []
