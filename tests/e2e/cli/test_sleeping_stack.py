"""Models that sleep, through the whole program: requests, status, metrics, kill -9, and what stays closed."""

from __future__ import annotations

import json
import os
import signal
import time
import urllib.error
import urllib.request

import psutil
import pytest
from sleeping_stack import make_sleeping_stack
from trimtab_program import Program

DEVELOPMENT = (
    "/sleep", "/sleep?level=1", "/wake_up", "/is_sleeping", "/collective_rpc", "/server_info",
    "/reset_prefix_cache", "/v1/sleep", "/v1/../sleep",
)  # fmt: skip


@pytest.fixture
def program(tmp_path, monkeypatch):
    for name, value in make_sleeping_stack(tmp_path).items():
        monkeypatch.setenv(name, value)
    made = Program(tmp_path)
    yield made
    made.close()
    logs = "".join(file.read_text() for file in made.state.rglob("*.log"))
    assert "ASKED ASLEEP" not in logs


def up(program: Program) -> str:
    done = program.run("up", "stack.yaml", "-d", timeout_s=90)
    assert done.returncode == 0, done.stdout + done.stderr
    return program.run_json("status")["endpoint"]


def ask(endpoint: str, model: str) -> int:
    body = json.dumps({"model": model, "prompt": [1, 2, 3], "max_tokens": 1}).encode()
    return send(f"{endpoint}/completions", body)[0]


def send(url: str, body: bytes | None = None) -> tuple[int, str]:
    request = urllib.request.Request(url, body, {"Content-Type": "application/json"})
    try:
        with urllib.request.urlopen(request, timeout=60) as answer:
            return answer.status, answer.read().decode()
    except urllib.error.HTTPError as error:
        return error.code, error.read().decode()


def models(program: Program) -> dict[str, str]:
    return {name: model["state"] for name, model in program.run_json("status")["models"].items()}


def pids(program: Program) -> dict[str, int]:
    found = program.run_json("status")["replicas"]
    return {item["model"]: item["pid"] for item in found if item["running"]}


def test_one_sleeps_while_the_other_answers_and_everything_says_so(program):
    """No second start of either, whoever is asked."""
    endpoint = up(program)
    for name in "babab":
        assert ask(endpoint, name) == 200

    assert models(program) == {"a": "sleeping", "b": "ready"}
    assert set(pids(program)) == {"a", "b"}
    root = endpoint.removesuffix("/v1")
    _, metrics = send(f"{root}/metrics")
    assert 'trimtab_model_asleep{model="a"} 1.0' in metrics
    assert 'trimtab_model_wakes_total{model="b"} 2.0' in metrics
    assert 'trimtab_model_loads_total{model="b"} 3.0' in metrics
    listed = json.loads(send(f"{endpoint}/models")[1])["data"]
    assert {entry["id"]: entry["status"]["value"] for entry in listed} == {"a": "sleeping", "b": "loaded"}
    assert "a: sleeps; the next request wakes it" in program.run("status").stdout
    boot = json.loads((program.state / "boot-times.json").read_text())
    assert sum(key.startswith("wake:") for key in boot) == 2
    assert max(value for key, value in boot.items() if key.startswith("wake:")) < 1.0
    logs = "".join(file.read_text() for file in program.state.rglob("*.log"))
    assert logs.count("fake engine") == 2
    assert logs.count("dev mode: 1") == 2


def test_no_development_endpoint_is_reached_through_the_gateway_or_from_elsewhere(program):
    """The engines listen on loopback only, and the gateway knows none of these paths."""
    endpoint = up(program)
    root = endpoint.removesuffix("/v1")
    for path in DEVELOPMENT:
        for body in (None, b"{}"):
            status, _ = send(f"{root}{path}", body)
            assert status in {404, 405}, path
    assert models(program)["a"] == "ready"
    engine = psutil.Process(pids(program)["a"])
    listens = [one.laddr.ip for one in engine.net_connections() if one.status == psutil.CONN_LISTEN]
    assert listens == ["127.0.0.1"]


def test_trimtab_killed_while_one_sleeps_finds_both_as_they_were(program):
    """The next `up` adopts the one that answers and leaves the other asleep; its request wakes it."""
    endpoint = up(program)
    assert ask(endpoint, "b") == 200
    before = pids(program)
    supervisor = program.run_json("status")["supervisor"]["pid"]
    os.kill(supervisor, signal.SIGKILL)
    psutil.wait_procs([psutil.Process(supervisor)] if psutil.pid_exists(supervisor) else [], timeout=10)

    endpoint = up(program)
    assert models(program) == {"a": "sleeping", "b": "ready"}
    assert pids(program) == before
    assert ask(endpoint, "a") == 200
    assert pids(program) == before
    # The same file again changes nothing, also not who sleeps.
    done = program.run("up", "stack.yaml", "-d", timeout_s=60)
    assert done.returncode == 0, done.stderr
    assert models(program) == {"a": "ready", "b": "sleeping"}
    assert pids(program) == before


def test_taking_out_one_that_sleeps_ends_its_engine(program):
    """``down MODEL``, and ``down`` for the rest."""
    endpoint = up(program)
    assert ask(endpoint, "b") == 200
    assert program.run("down", "a").returncode == 0
    assert set(pids(program)) == {"b"}
    assert ask(endpoint, "a") == 404
    assert ask(endpoint, "b") == 200
    assert program.run("down").returncode == 0
    program.wait_empty()


def test_an_engine_killed_asleep_is_started_by_its_next_request(program):
    """Nothing restarts it before."""
    endpoint = up(program)
    assert ask(endpoint, "b") == 200
    os.kill(pids(program)["a"], signal.SIGKILL)
    deadline_s = time.monotonic() + 20
    while models(program)["a"] != "stopped" and time.monotonic() < deadline_s:
        time.sleep(0.1)
    assert models(program) == {"a": "stopped", "b": "ready"}
    assert ask(endpoint, "a") == 200
