"""Real vLLM, really killed, under streaming load through the gateway: found, replaced, nothing left."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections import Counter
from dataclasses import replace
from pathlib import Path

import pytest

from trimtab.core.plan import Plan
from trimtab.core.stack import GatewaySettings
from trimtab.core.state import ReplicaState
from trimtab.engines import describe_boot, explain_exit
from trimtab.engines.vllm import Vllm
from trimtab.launcher.replan import Replanner
from trimtab.launcher.specs import SpecOptions, specs_of
from trimtab.launcher.supervise import EngineKnowledge, Supervisor
from trimtab.probes.generation import EngineProbe
from trimtab.runtimes.local_process import LocalProcessRuntime

pytestmark = [pytest.mark.engine, pytest.mark.slow, pytest.mark.timeout(1800)]

ROUNDS = Path(__file__).parents[3] / "benchmarks" / "reliability" / "rounds.py"
KILLS = ("core", "worker", "api", "group", "stop-core")
# Three of each take eight minutes on two quiet cores; TRIMTAB_RELIABILITY_ROUNDS=1 takes one of each.
REPEATS = int(os.environ.get("TRIMTAB_RELIABILITY_ROUNDS", "3"))
# The fifth failure in a row parks a model; trimtab's own death begins anew.
IN_A_ROW = 4


def victims():
    """Every kind REPEATS times, with trimtab itself whenever one failure more would park the model."""
    failures = KILLS * REPEATS
    rows = [failures[start : start + IN_A_ROW] for start in range(0, len(failures), IN_A_ROW)]
    return [kind for row in rows for kind in (*row, "trimtab")][: len(failures) + REPEATS]


@pytest.mark.timeout(2700)
def test_whatever_part_of_a_serving_stack_dies_it_serves_again(vllm, tmp_path):
    """Each part is killed or stopped: told within ten seconds, served again, no orphan, no hung client."""
    out, kinds = tmp_path / "rounds.json", victims()
    argv = [
        *(sys.executable, str(ROUNDS)),
        *("--vllm", str(vllm.program), "--checkpoint", str(vllm.checkpoint("qwen3"))),
        *("--rounds", str(len(kinds)), "--kinds", ",".join(kinds)),
        *("--stable-s", "1", "--max-tokens", "400"),
        *("--out", str(out)),
    ]
    done = subprocess.run(argv, check=False, capture_output=True, text=True, timeout=2600)
    assert done.returncode == 0, done.stderr[-4000:]
    document = json.loads(out.read_text())
    assert document["faults"] == []
    assert Counter(item["kind"] for item in document["rounds"]) == dict.fromkeys((*KILLS, "trimtab"), REPEATS)
    for item in document["rounds"]:
        assert item["detected_s"] <= 10
        assert item["orphans"] == []
        assert item["served_after"] > 0
        # A stream that was cut ends with an error or a broken connection, never in silence.
        assert set(item["in_flight"]) <= {"error event", "cut", "broken", "complete"}


class Served:
    """The plan that is served, as `trimtab up` holds it."""

    def __init__(self, vllm, **changes) -> None:
        model = replace(vllm.plan("qwen3", **changes), runtime="process")
        settings = tuple(
            replace(item, origin="chosen") if item.name == "max_model_len" else item
            for item in model.settings
        )
        model = replace(model, settings=settings)
        model = replace(model, argv=Vllm().render_argv(model))
        self.options = SpecOptions(
            trimtab_version="0",
            dies_with_supervisor=True,
            vllm_programs={model.engine_version: str(vllm.program)},
        )
        self.plan = Plan(stack="tests", fits=True, models=(model,), gateway=GatewaySettings())
        self.replanner = Replanner(read=lambda: self.plan, take=self.take, specs_of=self.specs_of)
        self.events = []

    def take(self, plan) -> None:
        self.plan = plan

    def specs_of(self, plan):
        return specs_of(plan, self.options)


async def start_and_stop(served, state_dir):
    """Bring it up, ask what is served, take it down."""
    known = EngineKnowledge(
        explain_exit=explain_exit, describe_boot=describe_boot, replan=served.replanner.replan
    )
    runtime = LocalProcessRuntime(state_dir, python=sys.executable)
    async with EngineProbe() as probe:
        supervisor = Supervisor(
            served.specs_of(served.plan), runtime, probe, known=known, on_event=served.events.append
        )
        try:
            await supervisor.start()
            await supervisor.wait_ready(600)
            return supervisor.snapshot()[0]
        finally:
            await supervisor.stop(10)
            assert await runtime.list_replicas() == ()


async def test_a_context_that_the_cache_cannot_hold_is_shortened_to_what_it_can(vllm, tmp_path, monkeypatch):
    """The first start fails, vLLM's own words say how long fits, and the second start really serves that."""
    monkeypatch.delenv("VLLM_CPU_KVCACHE_SPACE", raising=False)
    # 1 KiB per token: room for 1,536 of 2,048.
    served = Served(vllm, kv_cache_memory_bytes=1_572_864)
    model = await start_and_stop(served, tmp_path)
    assert model.state is ReplicaState.READY
    assert 1024 <= model.max_model_len < 1600
    (said,) = [event.text for event in served.events if event.kind == "replanned"]
    assert said.startswith(f"smaller plan 1: max_model_len {model.max_model_len:,} instead of 2,048")
