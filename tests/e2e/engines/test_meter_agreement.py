"""`trimtab bench` and `vllm bench serve` say the same of a server whose times are known, or of a gateway."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from trimtab_program import Program, read_ready

from trimtab.gateway.usage_log import read_usage_totals

pytestmark = [pytest.mark.engine, pytest.mark.slow, pytest.mark.alone, pytest.mark.timeout(300)]

SERVER = Path(__file__).parents[2] / "fakes" / "timed_server.py"
TTFT_MS, ITL_MS = 120.0, 15.0
NUM_REQUESTS, NUM_TOKENS = 12, 20


@pytest.fixture
def endpoint():
    argv = [sys.executable, str(SERVER), "--late-role", "--ttft", str(TTFT_MS), "--itl", str(ITL_MS)]
    with subprocess.Popen(argv, stdout=subprocess.PIPE, text=True) as process:
        yield f"http://127.0.0.1:{int(process.stdout.readline())}"
        process.send_signal(signal.SIGTERM)


def ask_vllm(vllm, endpoint, folder, *, model="clock", key=None):
    """What vLLM's own meter says."""
    talks = [{"from": "human", "value": "a b c d e f g h"}, {"from": "gpt", "value": "."}]
    (folder / "talks.json").write_text(json.dumps([{"conversations": talks}] * NUM_REQUESTS))
    argv = [
        *(str(vllm.program), "bench", "serve", "--backend", "openai-chat", "--base-url", endpoint),
        *("--endpoint", "/v1/chat/completions", "--model", model),
        *("--tokenizer", str(vllm.checkpoint("qwen3")), "--dataset-name", "sharegpt"),
        *("--dataset-path", str(folder / "talks.json"), "--sharegpt-output-len", str(NUM_TOKENS)),
        *("--num-prompts", str(NUM_REQUESTS), "--max-concurrency", "2", "--disable-tqdm"),
        *("--percentile-metrics", "ttft,tpot,itl,e2el", "--ready-check-timeout-sec", "0"),
        *("--save-result", "--result-dir", str(folder), "--result-filename", "theirs.json"),
    ]
    env = {**os.environ, "HF_HUB_OFFLINE": "1", "VLLM_NO_USAGE_STATS": "1"}
    if key is not None:
        env["OPENAI_API_KEY"] = key
    subprocess.run(argv, check=True, capture_output=True, timeout=200, env=env)
    return json.loads((folder / "theirs.json").read_text())


def ask_trimtab(endpoint, folder):
    """What ours says."""
    prompts = [json.dumps({"prompt": "a b c d e f g h", "max_tokens": NUM_TOKENS})] * NUM_REQUESTS
    (folder / "prompts.jsonl").write_text("\n".join(prompts))
    argv = [
        *(sys.executable, "-m", "trimtab", "bench", endpoint, "--model", "clock", "--warmup", "0"),
        *("--prompts", str(folder / "prompts.jsonl"), "--requests", str(NUM_REQUESTS)),
        *("--concurrency", "2", "--out", str(folder / "ours.json")),
    ]
    # Exit code 1 only says that this machine held the client up.
    subprocess.run(argv, check=False, capture_output=True, timeout=100)
    return json.loads((folder / "ours.json").read_text())["runs"][0]


def test_both_meters_see_the_times_that_the_server_keeps(vllm, endpoint, tmp_path):
    """First token, time per token and whole answer mean the same in both, and are right."""
    theirs, ours = ask_vllm(vllm, endpoint, tmp_path), ask_trimtab(endpoint, tmp_path)
    truth = {"ttft_ms": TTFT_MS, "tpot_ms": ITL_MS, "e2el_ms": TTFT_MS + (NUM_TOKENS - 1) * ITL_MS}
    for run in (theirs, ours):
        assert (run["completed"], run["total_output_tokens"]) == (NUM_REQUESTS, NUM_REQUESTS * NUM_TOKENS)
    for metric, true in truth.items():
        # Medians: a busy machine holds up a request now and then.
        assert ours[f"median_{metric}"] == pytest.approx(true, abs=10, rel=0.1)
        assert ours[f"median_{metric}"] == pytest.approx(theirs[f"median_{metric}"], abs=10, rel=0.1)


def test_vllms_meter_is_served_through_the_gateway(vllm, endpoint, tmp_path):
    """`vllm bench serve` as it is, with a key: every request is answered, counted, and streamed."""
    program = Program(tmp_path)
    (tmp_path / "stack.yaml").write_text(f'models: {{m: {{url: "{endpoint}/v1", upstream_model: clock}}}}')
    key = program.run_json("keys", "add", "meter")["key"]
    try:
        front = read_ready(program.serve("gateway", "stack.yaml"))["endpoint"].removesuffix("/v1")
        theirs = ask_vllm(vllm, front, tmp_path, model="m", key=key)
    finally:
        program.close()
    (used,) = read_usage_totals(program.state / "usage.sqlite3")

    assert (theirs["completed"], theirs["failed"]) == (NUM_REQUESTS, 0)
    assert theirs["total_output_tokens"] == NUM_REQUESTS * NUM_TOKENS
    assert (used.key, used.num_requests, used.num_errors) == ("meter", NUM_REQUESTS, 0)
    assert (used.completion_tokens, used.num_estimated) == (NUM_REQUESTS * NUM_TOKENS, 0)
    # What is held back comes as one piece, after 400 ms; a busy machine alone is not so late.
    assert theirs["median_ttft_ms"] < TTFT_MS + 0.6 * NUM_TOKENS * ITL_MS
    assert theirs["median_tpot_ms"] > 0.6 * ITL_MS
