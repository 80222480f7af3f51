"""``trimtab gateway``: the endpoint alone, in front of a real engine that another trimtab runs."""

from __future__ import annotations

import os
import signal
import subprocess
import sys

import pytest
from trimtab_program import Program, ask, read_ready

pytestmark = pytest.mark.engine


@pytest.fixture
def engine(tmp_path):
    """A serving trimtab, standing in for somebody else's endpoint."""
    program = Program(tmp_path / "engine")
    program.root.mkdir()
    yield program.run_json("up", "-d", "--port", "0", "--context", "512")["endpoint"]
    program.close()


@pytest.fixture
def front(tmp_path):
    """A program whose only job is the gateway."""
    program = Program(tmp_path / "front")
    program.root.mkdir()
    yield program
    program.close()


def start(program: Program, stack: str) -> subprocess.Popen[str]:
    """A foreground ``gateway``."""
    path = program.root / "stack.yaml"
    path.write_text(stack)
    process = subprocess.Popen(
        [sys.executable, "-m", "trimtab", "gateway", str(path), "--port", "0", "--json"],
        env=program.environment() | {"HF_HUB_OFFLINE": "1"},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    program.ups.append(process)
    return process


def bench(url: str, *arguments: str) -> tuple[int, str]:
    """Exit code and stderr of a measurement that ends before its load."""
    done = subprocess.run(
        [sys.executable, "-m", "trimtab", "bench", url, "--requests", "100", *arguments],
        capture_output=True, text=True, timeout=60, check=False, env=os.environ | {"OPENAI_API_KEY": ""},
    )  # fmt: skip
    assert done.stdout == ""
    return done.returncode, done.stderr


def test_a_measurement_that_would_be_refused_stops_at_the_first_request(engine, front):
    """A wrong name and a missing key are one sentence with a way out, not a hundred failed requests."""
    code, told = bench(engine, "--model", "tiny")
    assert (code, "does not serve 'tiny'" in told, "smollm2-135m" in told) == (2, True, True)

    stack = f'gateway: {{keys: [secret]}}\nmodels: {{mine: {{url: "{engine}", family: plain}}}}'
    url = read_ready(start(front, stack))["endpoint"]
    code, told = bench(url, "--model", "mine")
    assert (code, "wants a key (401)" in told, "--api-key" in told) == (4, True, True)
    code, told = bench(url, "--model", "mine", "--api-key", "wrong")
    assert (code, "refuses this key (401)" in told) == (4, True)


def test_an_endpoint_of_somebody_else_answers_under_our_name(engine, front):
    """Listed with its real context, answered, and ended by Ctrl-C without touching the engine."""
    process = start(front, f'models: {{mine: {{url: "{engine}", family: plain}}}}')
    url = read_ready(process)["endpoint"]

    body = {"model": "mine", "max_tokens": 4, "messages": [{"role": "user", "content": "Hi"}]}
    status, document = ask(url, body)
    assert status == 200, document
    assert document["usage"]["completion_tokens"] == 4

    os.kill(process.pid, signal.SIGINT)
    assert process.wait(timeout=30) == 0
    assert ask(engine, body | {"model": "smollm2-135m"})[0] == 200


def test_an_endpoint_that_is_not_there_is_said_and_awaited(front):
    """The gateway serves on; a request gets 503 with the reason."""
    process = start(front, 'models: {gone: {url: "http://127.0.0.1:9/v1"}}')
    url = read_ready(process)["endpoint"]

    status, document = ask(url, {"model": "gone", "messages": [{"role": "user", "content": "Hi"}]})

    assert status == 503
    assert "gone" in document["error"]["message"]
    os.kill(process.pid, signal.SIGINT)
    assert "gone: nothing listens there" in process.communicate(timeout=30)[1]


def test_a_stack_with_a_checkpoint_is_refused(front):
    """Gateway starts no engine; up does."""
    process = start(front, "models: {m: {checkpoint: smollm2-135m}}")

    assert process.wait(timeout=30) == 2
    assert "gateway starts no engine" in process.stderr.read()


def test_a_key_that_is_not_there_is_one_sentence(front):
    """The variable is named before anything listens."""
    process = start(front, 'models: {m: {url: "http://127.0.0.1:9/v1", api_key_env: NO_SUCH_KEY}}')

    assert process.wait(timeout=30) == 4
    assert "models.m.api_key_env names the variable NO_SUCH_KEY, which is not set" in process.stderr.read()


def test_the_key_of_an_endpoint_is_in_no_record(engine, front, monkeypatch):
    """Plans, records, logs and status hold the variable's name at most."""
    monkeypatch.setenv("BOX_KEY", "sk-very-secret-4711")
    stack = f'models: {{mine: {{url: "{engine}", family: plain, api_key_env: BOX_KEY}}}}'
    process = start(front, stack)
    url = read_ready(process)["endpoint"]
    assert (
        ask(url, {"model": "mine", "max_tokens": 2, "messages": [{"role": "user", "content": "Hi"}]})[0]
        == 200
    )
    told = front.run("status", "--json").stdout + front.run("status").stdout + front.run("logs").stdout
    plan = front.run("plan", "stack.yaml", "--json").stdout
    os.kill(process.pid, signal.SIGINT)
    told += "".join(process.communicate(timeout=30))
    files = [path.read_bytes() for path in front.root.rglob("*") if path.is_file()]
    assert "BOX_KEY" in plan
    assert "sk-very-secret" not in told + plan
    assert not any(b"sk-very-secret" in data for data in files)


def test_status_and_down_know_whose_a_model_is(engine, front):
    """One row per endpoint with its url and what is wrong; none can be stopped from here."""
    process = start(
        front,
        f'models: {{mine: {{url: "{engine}", family: plain}}, gone: {{url: "http://127.0.0.1:9/v1"}}}}',
    )
    read_ready(process)

    lines = front.run("status").stdout.splitlines()
    down = front.run("down", "mine")
    second = front.run("gateway", str(front.root / "stack.yaml"), "--port", "0")

    rows = {line.split()[0]: line for line in lines}
    assert "replica" not in rows
    assert "ready" in rows["mine"]
    assert engine in rows["mine"]
    assert "not seen yet" in rows["gone"]
    assert "http://127.0.0.1:9/v1" in rows["gone"]
    assert "nothing listens there" in rows["gone"]
    assert down.returncode == 2
    assert "somebody else runs it" in down.stderr
    assert "take it out of the stack file" in down.stderr
    assert second.returncode == 4
    assert "another XDG_STATE_HOME" in second.stderr
