"""A real vLLM under our process runtime: phases, chat, reasoning, and every process gone in the end."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
import time
from pathlib import Path

import psutil
import pytest
from trimtab_program import ask
from vllm_cpu import ANSWER, THOUGHT

from trimtab.core.state import ExitStatus
from trimtab.engines.vllm_phases import BootPhase, read_boot
from trimtab.probes.generation import EngineProbe
from trimtab.runtimes.local_process import LocalProcessRuntime

pytestmark = [pytest.mark.engine, pytest.mark.slow, pytest.mark.timeout(900)]

# 20 s on an idle machine; two cores that are busy with something else take several times that.
READY_S = 240.0


@pytest.fixture
async def runtime(tmp_path):
    chosen = LocalProcessRuntime(tmp_path, python=sys.executable)
    yield chosen
    for replica in await chosen.list_replicas():
        await chosen.stop_replica(replica.replica_id, grace_s=5)


async def wait_ready(runtime, observed) -> list[BootPhase]:
    """Wait until the engine answers a chat; gives the phases that its log went through."""
    seen: list[BootPhase] = []
    deadline = time.monotonic() + READY_S
    async with EngineProbe() as probe:
        while True:
            phase = read_boot(read_log(observed)).phase
            if phase not in seen:
                seen.append(phase)
            answer = await probe.probe_generation(observed.base_url, model=observed.model, timeout_s=30)
            if answer.is_ok:
                seen.append(read_boot(read_log(observed)).phase)
                return seen
            (listed,) = await runtime.list_replicas()
            assert listed.is_running, runtime.read_log_tail(observed.replica_id, max_lines=40)
            assert time.monotonic() < deadline, answer.detail
            await asyncio.sleep(0.2)


def read_log(observed) -> list[str]:
    return Path(observed.log_path).read_text(errors="replace").splitlines()


def family_of(observed) -> list[psutil.Process]:
    """The API server and everything below it."""
    server = psutil.Process(observed.pid)
    return [server, *server.children(recursive=True)]


def left_of(processes) -> list[psutil.Process]:
    return [item for item in processes if item.is_running() and item.status() != psutil.STATUS_ZOMBIE]


async def chat(observed, **changes):
    body = {
        "model": observed.model,
        "messages": [{"role": "user", "content": "What is the value?"}],
        "max_tokens": 40,
        "temperature": 0,
        **changes,
    }
    status, document = await asyncio.to_thread(ask, f"{observed.base_url}/v1", body)
    assert status == 200, document
    return document["choices"][0]["message"]


@pytest.mark.parametrize("family", ["qwen3", "qwen3_5", "qwen3_5_moe"])
async def test_a_planned_vllm_boots_chats_thinks_and_leaves_nothing(vllm, runtime, family):
    """What the plan says is what the server does: no thinking by default, split when asked, clean end."""
    observed = await runtime.start_replica(vllm.spec(family))
    seen = await wait_ready(runtime, observed)
    order = list(BootPhase)
    assert seen[-1] == BootPhase.READY
    assert sorted(seen, key=order.index) == seen

    plain = await chat(observed)
    thinking = await chat(observed, chat_template_kwargs={"enable_thinking": True})
    assert (plain["content"].strip(), plain.get("reasoning")) == (ANSWER, None)
    assert (thinking["content"].strip(), thinking["reasoning"].strip()) == (ANSWER, THOUGHT)

    facts = read_boot(read_log(observed)).facts
    assert facts.engine_version == vllm.plan(family).engine_version
    assert facts.tokens_per_request == observed.max_model_len == 2048
    assert facts.kv_cache_tokens == pytest.approx(facts.max_concurrency * 2048, rel=0.001)
    assert facts.init_s > 0

    family_at_work = family_of(observed)
    assert len(family_at_work) >= 2
    began_s = time.monotonic()
    await runtime.stop_replica(observed.replica_id, grace_s=20)
    assert time.monotonic() - began_s < 20
    assert left_of(family_at_work) == []
    assert await runtime.list_replicas() == ()


async def test_a_killed_server_takes_its_engine_and_workers_along(vllm, runtime):
    """By itself vLLM leaves EngineCore and workers with all their memory; under us nothing stays."""
    observed = await runtime.start_replica(vllm.spec("qwen3"))
    await wait_ready(runtime, observed)
    family_at_work = family_of(observed)
    os.kill(observed.pid, signal.SIGKILL)

    status = await asyncio.wait_for(runtime.wait_exit(observed.replica_id), 30)

    assert status == ExitStatus(code=None, signal=signal.SIGKILL)
    assert left_of(family_at_work) == []


async def test_a_dead_engine_core_is_an_end_although_the_server_exits_with_0(vllm, runtime):
    """VLLM's server ends with exit code 0 when its engine died: it is told, and nothing stays."""
    observed = await runtime.start_replica(vllm.spec("qwen3"))
    await wait_ready(runtime, observed)
    family_at_work = family_of(observed)
    core = next(item for item in family_at_work if "EngineCore" in " ".join(item.cmdline()))
    core.kill()

    status = await asyncio.wait_for(runtime.wait_exit(observed.replica_id), 60)

    assert status == ExitStatus(code=0)
    assert left_of(family_at_work) == []
    (listed,) = await runtime.list_replicas()
    assert not listed.is_running


async def test_a_wrong_argument_ends_the_start_with_its_reason(vllm, runtime):
    """A start that cannot work is over in seconds, and the log says why."""
    spec = vllm.spec("qwen3", max_model_len=1_000_000)
    observed = await runtime.start_replica(spec)

    status = await asyncio.wait_for(runtime.wait_exit(observed.replica_id), READY_S)

    assert status == ExitStatus(code=1)
    tail = "\n".join(runtime.read_log_tail(observed.replica_id, max_lines=60))
    assert "max_model_len (1000000) is greater than the derived max_model_len" in tail
