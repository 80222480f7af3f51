"""The gateway's log: a line of JSON per request, by its id, and nothing of what was said."""

import json
import os
import resource
import signal
import time
from dataclasses import replace

import pytest
from scripted_engine import eventually

from trimtab.core.state import ReplicaState, ServedReplica
from trimtab.gateway.parts import GatewayMore
from trimtab.gateway.request_log import RequestLog, render_line

SECRET = "the password is swordfish"


@pytest.fixture
def path(tmp_path):
    return tmp_path / "logs" / "requests.log"


@pytest.fixture
def log(path):
    made = RequestLog(path)
    yield made
    made.close()


def lines(log, path):
    """All lines, in order; nothing is logged after this."""
    log.close()
    return [json.loads(line) for line in path.read_text().splitlines()]


async def ask(front, **fields):
    headers = fields.pop("headers", None)
    path = fields.pop("path", "/v1/chat/completions")
    messages = [{"role": "user", "content": SECRET}]
    async with front.post(path, headers=headers, **{"model": "m", "messages": messages} | fields) as answer:
        await answer.read()
        return answer


async def test_each_request_is_one_line_by_its_id(make_front, log, path):
    """A user who quotes the id of an answer is found in the log, with what the answer took."""
    front = await make_front(more=GatewayMore(request_log=log))
    whole = await ask(front, headers={"Authorization": "Bearer sk-very-secret"})
    await ask(front, stream=True, events=3, gap_s=0.02, headers={"X-Request-Id": "mine"})
    first, second = lines(log, path)

    assert first["request_id"] == whole.headers["X-Request-Id"]
    assert (first["endpoint"], first["model"], first["status"]) == ("/v1/chat/completions", "m", 200)
    assert (first["prompt_tokens"], first["completion_tokens"]) == (1, 1)
    assert "ttft_ms" not in first
    assert second["request_id"] == "mine"
    assert 0 < second["ttft_ms"] < second["duration_ms"]
    assert front.engine.requests[-1].headers["x-request-id"] == "mine"
    text = path.read_text()
    assert "swordfish" not in text
    assert "very-secret" not in text


async def test_what_went_wrong_is_told_by_its_code(make_front, log, path):
    """Refusals, at the door and later, and engines that break off can be told apart."""
    front = await make_front(more=GatewayMore(request_log=log))
    await ask(front, model="nobody")
    await ask(front, max_tokens=99_999)
    await ask(front, script="close_before_head")
    await ask(front, script="die_inside_stream", stream=True)
    await ask(front, path="/v1/messages", max_tokens=99_999)

    told = [(line["model"], line["status"], line.get("error")) for line in lines(log, path)]
    assert told == [
        ("", 404, "model_not_found"),
        ("m", 400, "max_tokens_exceeded"),
        ("m", 502, "engine_unreachable"),
        ("m", 200, "engine_died"),
        ("m", 400, "max_tokens_exceeded"),
    ]
    assert json.loads(path.read_text().splitlines()[-1])["endpoint"] == "/v1/messages"


async def test_a_client_that_left_and_the_replica_are_told(make_front, log, path):
    """Which engine a request was with is known afterwards."""
    front = await make_front(more=GatewayMore(request_log=log))
    replicas = tuple(
        ServedReplica(replica_id=name, state=ReplicaState.READY, base_url=front.engine.url)
        for name in ("m/0", "m/1")
    )
    front.models[0] = replace(front.models[0], replicas=replicas)
    async with front.post(model="m", script="hang_inside_stream", stream=True) as answer:
        await answer.content.readany()
    await eventually(lambda: log._held or path.exists())
    (line,) = lines(log, path)

    assert (line["status"], line["replica"] in ("m/0", "m/1")) == (499, True)


def test_a_disk_that_refuses_costs_lines_and_is_told(tmp_path, caplog):
    """No request waits for a log; what is missing is counted once the disk takes lines again."""
    folder = tmp_path / "logs"
    folder.write_text("in the way")
    log = RequestLog(folder / "requests.log")
    line = render_line(request_id="a", endpoint="/x", model="m", status=200, duration_s=0.0124)
    for _ in range(3):
        log.add(line)
    log._write()
    assert "cannot be logged" in caplog.text
    folder.unlink()
    log.add(line)

    told = lines(log, folder / "requests.log")
    assert [line.get("dropped") or line["duration_ms"] for line in told] == [12.4, 3]


def test_what_is_missing_is_told_without_another_request(tmp_path):
    """Whoever reads the log after a full disk sees that lines are missing, though nobody has asked since."""
    folder = tmp_path / "logs"
    folder.write_text("in the way")
    log = RequestLog(folder / "requests.log")
    line = render_line(request_id="a", endpoint="/x", model="m", status=200)
    log.add(line)
    deadline_s = time.monotonic() + 10
    while not log._num_dropped:
        assert time.monotonic() < deadline_s
        time.sleep(0.02)
    folder.unlink()
    path = folder / "requests.log"
    while not path.exists() or not path.read_text():
        assert time.monotonic() < deadline_s
        time.sleep(0.02)

    assert json.loads(path.read_text()) == {"dropped": 1}
    log.close()


def test_a_line_that_comes_after_the_end_is_written(tmp_path):
    """The last answers of a trimtab that stops are in its log too."""
    path = tmp_path / "requests.log"
    log = RequestLog(path)
    line = render_line(request_id="a", endpoint="/x", model="m", status=200)
    log.add(line)
    log.close()
    log.add(line)
    log.close()

    assert path.read_text().splitlines() == [line, line]


def test_a_line_after_the_end_does_not_wait_for_a_writer_that_is_stuck(tmp_path, monkeypatch):
    """The loop goes on while a disk hangs, and the line is in the log once it does not."""
    monkeypatch.setattr("trimtab.gateway.request_log._CLOSE_S", 0.1)
    path = tmp_path / "requests.log"
    os.mkfifo(path)  # opening it to write waits for a reader
    log = RequestLog(path)
    log.add("first")
    deadline_s = time.monotonic() + 10
    while log._held:
        assert time.monotonic() < deadline_s
        time.sleep(0.02)
    log.close()
    began_s = time.monotonic()
    log.add("second")
    took_s = time.monotonic() - began_s
    with path.open() as reader:
        assert [reader.readline() for _ in range(2)] == ["first\n", "second\n"]
    assert took_s < 1
    log.close()


def test_a_disk_that_takes_half_a_line_keeps_whole_lines_only(tmp_path):
    """A full disk in the middle of a write: what is there stays readable, what is missing is counted."""
    path = tmp_path / "requests.log"
    log = RequestLog(path)
    line = render_line(request_id="a", endpoint="/x", model="m", status=200, duration_s=0.0124)
    log.add(line)
    log._write()
    before = path.read_bytes()
    old = resource.getrlimit(resource.RLIMIT_FSIZE)
    held = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    try:
        resource.setrlimit(resource.RLIMIT_FSIZE, (len(before) + 5, old[1]))
        for _ in range(3):
            log.add(line)
        log._write()
        assert path.read_bytes() == before
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, old)
        signal.signal(signal.SIGXFSZ, held)
    log.add(line)

    told = lines(log, path)
    assert [line.get("dropped") or line["duration_ms"] for line in told] == [12.4, 12.4, 3]


def test_odd_words_are_json_all_the_same(tmp_path):
    """Whatever clients send as an id or a path: one line, one object."""
    path = tmp_path / "requests.log"
    log = RequestLog(path)
    odd = 'a"\\\n\x00\udce9é'
    log.add(render_line(request_id=odd, endpoint=odd, model=odd, status=200, replica=odd, key=odd, error=odd))

    (line,) = lines(log, path)
    assert {line[name] for name in ("request_id", "endpoint", "model", "replica", "key", "error")} == {odd}
