"""The whole way with two real vLLM engines: plan, up, chat, a changed setting, down."""

from __future__ import annotations

import json
import threading
import time

import pytest
from trimtab_program import Program, ask
from vllm_cpu import ANSWER, THOUGHT, VERSION

pytestmark = [pytest.mark.engine, pytest.mark.slow, pytest.mark.timeout(1200)]

# Cards of the plan: a CPU build looks at none, and what is planned is what is started.
CARDS = "2xrtx4090"
# Two starts, one after the other, on two busy cores.
UP_S = 600.0
STACK = """\
models:
  hybrid:
    checkpoint: {hybrid}
    engine_version: "{version}"
    context: 2048
    concurrency: 4
    thinking: off
    engine_args: {{dtype: bfloat16, enforce_eager: true, max_num_batched_tokens: 1024}}
  dense:
    checkpoint: {dense}
    engine_version: "{version}"
    context: 2048
    concurrency: {concurrency}
    thinking: off
    engine_args: {{dtype: bfloat16, enforce_eager: true, max_num_batched_tokens: 1024}}
"""


@pytest.fixture
def program(vllm, tmp_path, monkeypatch):
    monkeypatch.setenv("TRIMTAB_VLLM", str(vllm.program))
    program = Program(tmp_path)
    yield program
    program.close()


def write_stack(program, vllm, *, concurrency: int) -> None:
    (program.root / "stack.yaml").write_text(
        STACK.format(
            hybrid=vllm.checkpoint("qwen3_5_moe"),
            dense=vllm.checkpoint("qwen3"),
            version=VERSION,
            concurrency=concurrency,
        )
    )


def up(program) -> str:
    """Start or change the stack in the background; gives what it printed."""
    done = program.run("up", "stack.yaml", "--gpus", CARDS, "--port", "0", "-d", timeout_s=UP_S)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout + done.stderr


def pids(program) -> dict[str, int]:
    return {item["model"]: item["pid"] for item in program.run_json("status")["replicas"]}


def message(endpoint: str, model: str, **changes):
    body = {
        "model": model,
        "messages": [{"role": "user", "content": "What is the value?"}],
        "max_tokens": 40,
        "temperature": 0,
        **changes,
    }
    status, document = ask(endpoint, body)
    assert status == 200, document
    return document["choices"][0]["message"]


class SteadyClient(threading.Thread):
    """Somebody who goes on chatting with one model; ``failures`` holds what was not answered."""

    def __init__(self, endpoint: str, model: str) -> None:
        super().__init__(daemon=True)
        self._endpoint, self._model = endpoint, model
        self._is_over = threading.Event()
        self.num_answers = 0
        self.failures: list[str] = []

    def run(self) -> None:
        while not self._is_over.wait(0.5):
            try:
                assert message(self._endpoint, self._model)["content"].strip() == ANSWER
                self.num_answers += 1
            except (AssertionError, OSError) as error:
                self.failures.append(f"{time.monotonic():.1f}: {error}")

    def finish(self) -> None:
        self._is_over.set()
        self.join(60)


def test_two_vllm_engines_are_planned_started_changed_and_stopped(vllm, program):
    """A changed setting restarts the one engine that it concerns, while the other goes on answering."""
    write_stack(program, vllm, concurrency=4)
    plan = program.run("plan", "stack.yaml", "--gpus", CARDS, "--json")
    assert set(json.loads(plan.stdout)["models"]) == {"hybrid", "dense"}
    up(program)
    endpoint = program.run_json("status")["endpoint"]
    for model in ("hybrid", "dense"):
        plain = message(endpoint, model)
        thinking = message(endpoint, model, chat_template_kwargs={"enable_thinking": True})
        assert (plain["content"].strip(), plain.get("reasoning")) == (ANSWER, None)
        assert (thinking["content"].strip(), thinking["reasoning"].strip()) == (ANSWER, THOUGHT)

    before = pids(program)
    write_stack(program, vllm, concurrency=3)
    client = SteadyClient(endpoint, "hybrid")
    client.start()
    said = up(program)
    client.finish()
    after = pids(program)
    assert after["hybrid"] == before["hybrid"]
    assert after["dense"] != before["dense"]
    assert "dense" in said
    assert (client.failures, client.num_answers > 0) == ([], True)
    assert message(endpoint, "dense")["content"].strip() == ANSWER

    assert program.run("down", "dense").returncode == 0
    assert set(pids(program)) == {"hybrid"}
    assert message(endpoint, "hybrid")["content"].strip() == ANSWER
    assert program.run("down").returncode == 0
    program.wait_empty()
