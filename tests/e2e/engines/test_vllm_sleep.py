"""Sleep with the real vLLM: its endpoints are what we ask, and a build that frees nothing is found out."""

from __future__ import annotations

import asyncio
import json
import sys
import urllib.request
from dataclasses import replace

import pytest
from trimtab_program import Program
from vllm_cpu import VERSION

from trimtab.core.state import SleepLimits
from trimtab.launcher.engine_sleep import EngineSleep
from trimtab.launcher.sleep_check import CardsNow
from trimtab.launcher.supervision import SupervisionPolicy
from trimtab.probes.generation import EngineProbe
from trimtab.runtimes.local_process import LocalProcessRuntime
from trimtab.units import GIB

pytestmark = [pytest.mark.engine, pytest.mark.timeout(900)]

CARD = "1xrtx4090"
LIMITS = SleepLimits(host_bytes=GIB, card_bytes=GIB, freed_bytes=10 * GIB)
# A CPU build refuses the flag at its start; the endpoints come with the variable alone.
WITHOUT_FLAG = """\
#!{python}
import os, sys
argv = [word for word in sys.argv[1:] if word != "--enable-sleep-mode"]
os.execv({vllm!r}, [{vllm!r}, *argv])
"""
STACK = """\
gateway: {{port: 0, limits: {{max_wait_s: 600}}}}
models:
  a: {{checkpoint: {folder}, engine_version: "{version}", context: 2048, concurrency: 4, engine_args: {args}}}
  b: {{checkpoint: {folder}, engine_version: "{version}", context: 2048, concurrency: 4, engine_args: {args}}}
"""
ARGS = "{dtype: bfloat16, enforce_eager: true, max_num_batched_tokens: 1024, gpu_memory_utilization: 0.6}"


async def test_it_sleeps_says_so_and_answers_after_a_wake(vllm, tmp_path):
    """What we ask of /sleep, /is_sleeping and /wake_up, of the engine itself."""
    runtime = LocalProcessRuntime(tmp_path, python=sys.executable)
    spec = vllm.spec("qwen3")
    spec = replace(spec, env=(*spec.env, ("VLLM_SERVER_DEV_MODE", "1")), gpus=(0,))
    free = iter([0, 20 * GIB, 0, 0, 0, 0, 0, 0, 0, 0])
    async with EngineProbe() as probe:
        sleep = EngineSleep(
            probe, SupervisionPolicy(sleep_check_s=0.5),
            read_cards=lambda: CardsNow(free_bytes={0: next(free)}), read_free_ram=lambda: 100 * GIB,
        )  # fmt: skip
        observed = await runtime.start_replica(spec)
        try:
            async with asyncio.timeout(300):
                while not (await ask(probe, spec, observed)).is_ok:
                    await asyncio.sleep(0.5)
            assert await sleep.is_asleep(observed.base_url) is False
            first = await sleep.put_to_sleep(spec, observed, LIMITS, has_slept=False)
            assert first.slept == "asleep"
            assert await sleep.is_asleep(observed.base_url) is True
            # Asleep it takes a question and does not answer: nothing may be asked of it.
            assert (await ask(probe, spec, observed, timeout_s=2)).is_late
            assert await sleep.wake(spec, observed, LIMITS) == ""
            assert (await ask(probe, spec, observed)).is_ok
            again = await sleep.put_to_sleep(spec, observed, LIMITS, has_slept=True)
            assert again.slept == "never"
            assert "card 0 has 0 B more free" in again.reason
        finally:
            await runtime.stop_replica(spec.replica_id, grace_s=5)


async def ask(probe, spec, observed, timeout_s: float = 60):
    return await probe.probe_generation(observed.base_url, model=spec.model, timeout_s=timeout_s)


@pytest.mark.slow
def test_a_build_that_frees_nothing_is_stopped_and_both_models_are_served(vllm, tmp_path, monkeypatch):
    """The plan says that it sleeps, the look says that nothing was freed: it is stopped, once and for all."""
    program = tmp_path / "vllm"
    python = vllm.folder / "bin" / "python"
    program.write_text(WITHOUT_FLAG.format(python=python, vllm=str(vllm.program)))
    program.chmod(0o755)
    monkeypatch.setenv("TRIMTAB_VLLM", str(program))
    made = Program(tmp_path)
    try:
        text = STACK.format(folder=vllm.checkpoint("qwen3"), version=VERSION, args=ARGS)
        (tmp_path / "stack.yaml").write_text(text)
        done = made.run("up", "stack.yaml", "--gpus", CARD, "-d", timeout_s=400)
        assert done.returncode == 0, done.stdout + done.stderr
        assert "sleeps       a: takes" in done.stdout
        endpoint = made.run_json("status")["endpoint"]
        for name in "ba":
            chat(endpoint, name)
        logs = "".join(file.read_text(errors="replace") for file in made.state.rglob("*.log"))
        assert 'POST /sleep?level=1 HTTP/1.1" 200' in logs
        assert "sleep mode is not supported on CPU" in logs
        reason = "is stopped, since it cannot sleep: nothing tells what it holds of card 0"
        assert logs.count(f"{reason}; it is not put to sleep again in this run") == 2
        assert made.run_json("status")["models"]["b"]["state"] == "stopped"
    finally:
        made.close()


@pytest.mark.slow
def test_a_build_that_refuses_the_flag_is_started_without_it(vllm, tmp_path, monkeypatch):
    """Sleep is the default and must not keep anybody from serving: a CPU build ends at once over the flag."""
    monkeypatch.setenv("TRIMTAB_VLLM", str(vllm.program))
    made = Program(tmp_path)
    try:
        text = STACK.format(folder=vllm.checkpoint("qwen3"), version=VERSION, args=ARGS)
        (tmp_path / "stack.yaml").write_text(text)
        done = made.run("up", "stack.yaml", "--gpus", CARD, "-d", timeout_s=400)
        assert done.returncode == 0, done.stdout + done.stderr
        logs = "".join(file.read_text(errors="replace") for file in made.state.rglob("*.log"))
        assert "its engine did not start with enable_sleep_mode: it is tried without" in logs
        assert made.run_json("status")["models"]["a"]["state"] == "ready"
        chat(made.run_json("status")["endpoint"], "a")
    finally:
        made.close()


def chat(endpoint: str, model: str) -> None:
    body = {"model": model, "max_tokens": 4, "messages": [{"role": "user", "content": "Hi"}]}
    request = urllib.request.Request(
        f"{endpoint}/chat/completions", json.dumps(body).encode(), {"Content-Type": "application/json"}
    )
    with urllib.request.urlopen(request, timeout=500) as answer:
        assert answer.status == 200
