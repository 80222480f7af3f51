"""Who may come in, and that what opens the door stands in no log, record or list."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request

import psutil
import pytest
from thinking_engine import ANSWER, ThinkingEngine
from trimtab_program import Program, read_ready

SECRETS = ("sk-of-the-stack-4711", "sk-nobody-knows-4712", "the-prompt-is-private-4713")


@pytest.fixture
def engine():
    engine = ThinkingEngine(gap_s=0.0).start()
    yield engine
    engine.stop()


@pytest.fixture
def program(tmp_path):
    program = Program(tmp_path)
    yield program
    program.close()


def serve(program, engine, *flags, gateway="", stderr=subprocess.PIPE, env=None):
    """A foreground gateway; gives its process."""
    stack = f'models: {{m: {{url: "{engine.url}", upstream_model: thinker, family: qwen3.5}}}}\n{gateway}'
    (program.root / "stack.yaml").write_text(stack)
    process = subprocess.Popen(
        [sys.executable, "-m", "trimtab", "gateway", "stack.yaml", "--port", "0", *flags],
        env=program.environment() | (env or {}), cwd=program.root, stdout=subprocess.PIPE, stderr=stderr,
        text=True, start_new_session=True,
    )  # fmt: skip
    program.ups.append(process)
    return process


def ask(url, path="/v1/chat/completions", *, key=None, **fields):
    """(status, text) of a chat, or of a GET elsewhere."""
    messages = [{"role": "user", "content": SECRETS[2]}]
    body = json.dumps({"model": "m", "messages": messages} | fields).encode() if "chat" in path else None
    headers = {"Content-Type": "application/json"} | ({"Authorization": f"Bearer {key}"} if key else {})
    request = urllib.request.Request(url.removesuffix("/v1") + path, body, headers)
    try:
        with urllib.request.urlopen(request, timeout=30) as answer:
            return answer.status, answer.read().decode()
    except urllib.error.HTTPError as error:
        return error.code, error.read().decode()


def end(process):
    """What it wrote, after Ctrl-C."""
    os.kill(process.pid, signal.SIGINT)
    return process.communicate(timeout=30)


def files_of(program):
    return {path: path.read_bytes() for path in program.root.rglob("*") if path.is_file()}


def test_a_key_for_a_model_that_is_not_served_is_warned_of(program, engine):
    """Only where something runs that serves others; the key is made all the same."""
    before = program.run("keys", "add", "early", "--model", "elsewhere")
    assert (before.returncode, "warning" in before.stderr) == (0, False)
    read_ready(serve(program, engine, "--json"))
    slip = program.run("keys", "add", "slip", "--model", "nn", "--model", "m")
    right = program.run("keys", "add", "right", "--model", "m")

    assert (slip.returncode, slip.stdout[:3]) == (0, "tt-")
    assert "warning: the running stack stack serves no 'nn' (it serves m)" in slip.stderr
    assert (right.returncode, right.stderr) == (0, "")


def test_an_endpoint_that_others_can_reach_gets_a_key(program, engine):
    """Opened to the network without a key it makes one, says it once and keeps its hash only."""
    process = serve(program, engine, "--host", "0.0.0.0", "--json")
    ready = read_ready(process)
    key = ready["key"]

    assert key.startswith("tt-")
    assert ask(ready["endpoint"])[0] == 401
    assert ask(ready["endpoint"], "/v1/models")[0] == 401
    assert ask(ready["endpoint"], "/health")[0] == 200
    assert ANSWER in ask(ready["endpoint"], key=key)[1]
    out, err = end(process)
    assert key not in out
    assert err.count(key) == 1
    assert [path for path, data in files_of(program).items() if key.encode() in data] == []
    assert program.state.stat().st_mode & 0o077 == 0
    # The second start finds it there, and has nothing to print.
    process = serve(program, engine, "--host", "0.0.0.0", "--json")
    ready = read_ready(process)
    assert "key" not in ready
    assert ANSWER in ask(ready["endpoint"], key=key)[1]
    assert key not in "".join(end(process))


def test_examples_are_printed_with_the_key(program, engine):
    """What is printed works as pasted."""
    process = serve(program, engine, "--host", "0.0.0.0")
    lines = []
    while not lines or not lines[-1].startswith("serving"):
        lines.append(process.stdout.readline())
        assert lines[-1], process.stderr.read()
    out, key = "".join(lines), program.run_json("keys", "list")["keys"][0]["name"]

    assert key == "first"
    made = next(word for word in end(process)[1].split() if word.startswith("tt-"))
    assert f"Authorization: Bearer {made}'" in out
    assert f'api_key="{made}"' in out


@pytest.mark.parametrize(
    ("flags", "gateway"),
    [
        pytest.param((), "", id="default"),
        pytest.param(("--host", "127.0.0.2"), "", id="loopback"),
        pytest.param(("--host", "localhost"), "", id="localhost"),
        pytest.param((), "gateway: {host: 0.0.0.0, keys: [a-key]}", id="stack-has-one"),
    ],
)
def test_no_key_is_made_where_none_is_needed(program, engine, flags, gateway):
    """On this machine alone nobody needs a key, and who wrote one into the stack has one."""
    process = serve(program, engine, *flags, "--json", gateway=gateway)
    ready = read_ready(process)

    assert "key" not in ready
    assert ask(ready["endpoint"], key="a-key")[0] == 200
    assert "tt-" not in "".join(end(process))
    assert not (program.state / "keys.json").exists()


def test_no_key_is_printed_into_the_journal(program, engine):
    """Started by systemd it refuses, and says how to make a key that no log holds."""
    log = (program.root / "journal").open("w+")
    status = os.fstat(log.fileno())
    journal = {"JOURNAL_STREAM": f"{status.st_dev}:{status.st_ino}"}
    process = serve(program, engine, "--host", "0.0.0.0", stderr=log, env=journal)

    assert process.wait(30) == 4
    assert "trimtab keys add NAME" in (program.root / "journal").read_text()
    assert not (program.state / "keys.json").exists()
    log.close()


def test_secrets_stand_in_no_log_record_or_list(program, engine):
    """Keys and prompts are nowhere but where they belong, whatever goes wrong."""
    gateway = f"gateway: {{keys: [{SECRETS[0]}], reasoning_fields_by_key: {{{SECRETS[0]}: inline}}}}"
    process = serve(program, engine, "--json", gateway=gateway)
    url = read_ready(process)["endpoint"]
    made = program.run_json("keys", "add", "alice", "--requests-per-minute", "2")["key"]
    secrets = (*SECRETS, made)

    assert ask(url, key=SECRETS[0])[0] == 200
    assert ask(url, key=SECRETS[1])[0] == 401
    engine.die = True
    assert "engine_died" in ask(url, key=SECRETS[0], stream=True)[1]
    engine.die = False
    # A key counts within a second of its making.
    deadline_s = time.monotonic() + 20
    while (status := ask(url, key=made)[0]) != 429 and time.monotonic() < deadline_s:
        time.sleep(0.1)
    assert status == 429
    told = [ask(url, path, key=SECRETS[0])[1] for path in ("/metrics", "/health", "/v1/models")]
    told += [program.run(*words).stdout for words in (["status"], ["usage"], ["keys", "list"])]
    assert all(len(text) > 10 for text in told)
    told += [str(item.cmdline()) + str(item.environ()) for item in program.processes() if item.pid]
    told += [str(one.headers) for one in engine.asked]
    told += end(process)
    (program.root / "stack.yaml").unlink()
    told += [data.decode(errors="replace") for data in files_of(program).values()]

    assert [secret for secret in secrets if any(secret in text for text in told)] == []


def test_nothing_that_changes_trimtab_is_asked_over_the_network(program, engine):
    """Admin commands go over a socket file that its owner alone may open; one port listens, no other."""
    process = serve(program, engine, "--json")
    url = read_ready(process)["endpoint"]
    listening = [
        entry.laddr.port
        for entry in psutil.Process(process.pid).net_connections("inet")
        if entry.status == psutil.CONN_LISTEN
    ]

    assert listening == [int(url.removesuffix("/v1").rsplit(":", 1)[1])]
    for path in ("/admin", "/keys", "/v1/keys", "/models/unload", "/models/load", "/shutdown"):
        assert ask(url, path)[0] == 404
    control = program.state / "control.sock"
    assert control.stat().st_mode & 0o077 == 0
    assert control.is_socket()
    with socket.socket(socket.AF_UNIX) as client:
        client.connect(str(control))
    assert "tt-" not in "".join(end(process))
