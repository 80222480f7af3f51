"""`trimtab try` with the real vLLM: from a lone config.json, without a network, a tokenizer or a card."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time

import pytest
from small_checkpoint import TINY
from trimtab_program import Program
from vllm_cpu import VERSION

pytestmark = [pytest.mark.engine, pytest.mark.slow, pytest.mark.timeout(900)]

# A CPU build looks at no card; what is planned is what is started.
SETTINGS = (
    *("--gpus", "1xrtx4090", "--engine-version", VERSION, "--context", "512", "--concurrency", "4"),
    *("--set", "dtype=bfloat16", "--set", "enforce_eager=true", "--set", "max_num_batched_tokens=512"),
)
START_S = 400.0
# Wide enough for the CPU build's attention kernel, which takes no heads of 16.
CONFIG = TINY | {"hidden_size": 256, "head_dim": 64}


@pytest.fixture
def program(vllm, tmp_path, monkeypatch):
    monkeypatch.setenv("TRIMTAB_VLLM", str(vllm.program))
    program = Program(tmp_path)
    yield program
    program.close()


def start_try(program: Program, *arguments: str) -> subprocess.Popen[str]:
    argv = [sys.executable, "-m", "trimtab", "try", *arguments, *SETTINGS]
    process = subprocess.Popen(
        argv,
        env=program.environment(),
        cwd=program.root,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    program.ups.append(process)
    return process


def wait_line(process: subprocess.Popen[str], part: str) -> None:
    """Read its progress until a line says ``part``."""
    assert process.stderr is not None
    seen = []
    deadline = time.monotonic() + START_S
    for line in process.stderr:
        seen.append(line)
        if part in line:
            return
        assert time.monotonic() < deadline, seen[-5:]
    raise AssertionError(f"ended with {process.wait()}: {seen[-20:]}")


def kept_result(program: Program):
    (file,) = (program.state / "try" / "results").glob("*.json")
    return json.loads(file.read_text())


def test_a_config_alone_is_tried_and_measured(program):
    """Dummy weights, token ids: loads are measured and kept, nothing is calibrated, nothing is left."""
    config = program.root / "some-model.json"
    config.write_text(json.dumps(CONFIG))
    out = program.root / "result.json"

    done = program.run(
        "try", config.name, *SETTINGS, "--budget", "10m", "--out", out.name, timeout_s=START_S + 200
    )

    assert done.returncode == 0, done.stdout + done.stderr
    program.wait_empty()
    assert "predicted" in done.stdout
    assert "the plan that follows:" in done.stdout
    assert "prompts are token ids" in done.stdout
    assert "a prompt of 504 tokens ran" in done.stdout
    document = json.loads(out.read_text())
    assert document == kept_result(program)
    (model,) = document["models"]
    assert (model["failure"], model["is_cpu_build"], model["has_tokenizer"]) == ("", True, False)
    assert model["checkpoint"] == "some-model.json"
    assert model["settings"]["max_num_seqs"] == 4
    speed = {(row["kind"], row["concurrency"], row["input_tokens"]): row for row in model["speed"]}
    assert {("decode", 1, 448), ("decode", 4, 448), ("prefill", 1, 504)} <= set(speed)
    for row in speed.values():
        assert (row["failed"], row["completed"]) == (0, row["concurrency"] * row["rounds"])
        assert row["mean_ttft_ms"] > 0
        assert row["mean_tpot_ms"] >= 0  # 0: on a busy machine an answer may come in one burst
    assert any(row["mean_tpot_ms"] > 0 for row in speed.values())
    tokens = next(row for row in model["memory"] if row["unit"] == "tokens")
    assert tokens["measured"] > 0
    assert model["calibrated"] == {"memory": False, "speed": None}
    assert not (program.state / "calibration.jsonl").exists()
    assert not (program.state / "speed.jsonl").exists()
    assert document["plan"]["fits"] is True


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGKILL], ids=["ctrl-c", "kill"])
def test_an_interrupted_try_leaves_no_process_and_keeps_its_results(program, vllm, number):
    """In the middle of a load: the engine goes at once, and what was measured before is on the disk."""
    process = start_try(program, str(vllm.checkpoint("qwen3")), "--budget", "10m", "--json")
    wait_line(process, "measuring")
    wait_line(process, "measuring")

    os.kill(process.pid, number)
    stdout, stderr = process.communicate(timeout=60)

    program.wait_empty(30)
    document = kept_result(program)
    (model,) = document["models"]
    assert document["is_interrupted"] is True
    assert model["speed"][0]["mean_tpot_ms"] > 0
    assert model["has_tokenizer"] is True
    if number is signal.SIGINT:
        assert process.returncode == 130, stderr
        assert json.loads(stdout) == document
        assert any("interrupted" in note for note in model["notes"])
        assert document["plan"]["fits"] is True


def test_a_start_that_outlasts_its_budget_says_so(program):
    """The engine is gone, the exit code is a failed start, and one sentence says why."""
    config = program.root / "config.json"
    config.write_text(json.dumps(CONFIG))

    done = program.run("try", "./config.json", *SETTINGS, "--budget", "3s", timeout_s=START_S)

    assert done.returncode == 5, done.stdout + done.stderr
    assert "--budget" in done.stderr
    program.wait_empty()
    assert "no token within" in kept_result(program)["models"][0]["failure"]
