"""A running stack is edited: what changes restarts, what does not answers all the while."""

from __future__ import annotations

import json
import threading
import time
import urllib.error
import urllib.request

import pytest
from trimtab_program import Program

pytestmark = pytest.mark.engine

TWO = """
models:
  steady: {checkpoint: smollm2-135m, context: 512, concurrency: 1}
  other: {checkpoint: smollm2-135m, context: 512, concurrency: 1, engine_args: {cache_ram_mib: 0}}
"""


@pytest.fixture
def program(tmp_path):
    """The program in folders of its own; nothing of it runs afterwards."""
    made = Program(tmp_path)
    yield made
    made.run("down")


def ask(url: str, model: str) -> int:
    """The status of one short chat."""
    body = {"model": model, "max_tokens": 2, "messages": [{"role": "user", "content": "Hi"}]}
    request = urllib.request.Request(
        f"{url}/chat/completions", json.dumps(body).encode(), {"Content-Type": "application/json"}
    )
    try:
        with urllib.request.urlopen(request, timeout=60) as answer:
            return answer.status
    except urllib.error.HTTPError as error:
        return error.code


def test_only_the_edited_model_restarts_and_the_other_never_misses_a_request(program):
    """Edit the file, up again: one process is new, the other is the same and served every request."""
    stack = program.root / "stack.yaml"
    stack.write_text(TWO)
    started = program.run_json("up", str(stack), "-d", "--port", "0")
    url, before = started["endpoint"], pids(program)
    statuses: list[int] = []
    done = threading.Event()

    def keep_asking() -> None:
        while not done.is_set():
            statuses.append(ask(url, "steady"))

    asker = threading.Thread(target=keep_asking)
    asker.start()
    try:
        stack.write_text(
            TWO.replace(
                "other: {checkpoint: smollm2-135m, context: 512",
                "other: {checkpoint: smollm2-135m, context: 1024",
            )
        )
        changed = program.run_json("up", str(stack), "--port", "0")
    finally:
        done.set()
        asker.join()

    after = pids(program)
    kinds = {action["replica_id"]: action["kind"] for action in changed["actions"]}
    assert kinds == {"steady/0": "keep", "other/0": "replace"}
    assert after["steady"] == before["steady"]
    assert after["other"] != before["other"]
    assert statuses
    assert set(statuses) == {200}
    assert ask(url, "other") == 200


def test_a_dry_run_says_what_the_change_will_do_and_why(program):
    """The running trimtab is asked, so the words before are the words after; each stands there once."""
    stack = program.root / "stack.yaml"
    stack.write_text(TWO)
    port = program.run_json("up", str(stack), "-d", "--port", "0")["endpoint"].split(":")[2].split("/")[0]
    before = pids(program)
    stack.write_text(TWO.replace("512, concurrency: 1, engine_args", "1K, concurrency: 1, engine_args"))

    dry = program.run("up", str(stack), "--port", "0", "--dry-run")
    assert pids(program) == before
    other_port = program.run("up", str(stack), "--port", str(int(port) - 1), "--dry-run")
    stack.rename(program.root / "renamed.yaml")
    renamed = program.run("up", "renamed.yaml", "--port", "0", "--dry-run")
    (program.root / "renamed.yaml").rename(stack)
    done = program.run("up", str(stack), "--port", "0")

    expected = ["keep     steady/0  runs as wanted", "replace  other/0   context 512 → 1,024"]
    for run in (dry, done):
        lines = (run.stdout + run.stderr).splitlines()
        assert [line for line in lines if "/0 " in line] == expected
    assert other_port.returncode == renamed.returncode == 4
    assert f"listens on port {port}" in other_port.stderr
    assert "write name: stack into it" in renamed.stderr
    assert "XDG_STATE_HOME" in renamed.stderr
    assert "plan:" not in renamed.stdout


def test_a_start_in_the_background_is_told_once(program):
    """One line, the second time with what the first start took; the time it took comes at the end."""
    for _ in range(2):
        told = program.run("up", "-d", "--port", "0").stderr.splitlines()
        (line,) = [text for text in told if "start" in text and text.endswith(" ...")]
        assert line.startswith("starting smollm2-135m")
        assert "nothing runs" not in "".join(told)
        program.run("down")


def test_one_model_is_stopped_and_brought_back(program):
    """Down MODEL frees it, up brings it back; the other is the same process throughout."""
    stack = program.root / "stack.yaml"
    stack.write_text(TWO)
    url = program.run_json("up", str(stack), "-d", "--port", "0")["endpoint"]
    before = pids(program)

    program.run("down", "other")
    assert set(pids(program)) == {"steady"}
    assert ask(url, "other") == 404
    assert ask(url, "steady") == 200
    program.run("up", str(stack), "-d", "--port", "0")

    assert set(pids(program)) == {"steady", "other"}
    assert pids(program)["steady"] == before["steady"]
    assert ask(url, "other") == 200


def test_a_change_that_cannot_work_is_refused_and_nothing_changes(program):
    """A broken file, a plan that does not fit, an unknown model: one sentence, everything serves on."""
    stack = program.root / "stack.yaml"
    stack.write_text(TWO)
    url = program.run_json("up", str(stack), "-d", "--port", "0")["endpoint"]
    before = pids(program)

    stack.write_text(TWO.replace("512", "99999"))
    assert program.run("up", str(stack), "--port", "0").returncode == 2
    stack.write_text(TWO)
    assert program.run("up", str(stack), "--ram", "120MiB", "--port", "0").returncode == 3
    unknown = program.run("down", "ghost")

    assert unknown.returncode == 2
    assert "served: steady, other" in unknown.stderr
    assert pids(program) == before
    assert ask(url, "steady") == ask(url, "other") == 200


def pids(program: Program) -> dict[str, int]:
    """Model → process of its engine, of those that run."""
    deadline_s = time.monotonic() + 10
    while time.monotonic() < deadline_s:
        replicas = program.run_json("status")["replicas"]
        if all(item["running"] for item in replicas):
            break
    return {item["model"]: item["pid"] for item in replicas}
