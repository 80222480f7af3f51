"""Keys, their limits, and what was used."""

import os
import random
import signal
import sqlite3
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor

import pytest
from safe_counts import num_safe

from trimtab.errors import GatewayError, StackFileError
from trimtab.gateway.key_ring import KeyRing, add_key, read_keys, remove_key
from trimtab.gateway.keys import ApiKey, KeyLimits, KeyUse, decode_keys, hash_key, render_keys
from trimtab.gateway.usage import TokenCount, read_usage
from trimtab.gateway.usage_log import UsageLog, read_usage_totals


def key_of(**limits):
    return ApiKey(name="k", sha256="x", created_at_s=1.0, limits=KeyLimits(**limits))


def refusal_of(use, key, model="m", *, now_s):
    with pytest.raises(GatewayError) as caught:
        use.begin(key, model, now_s=now_s)
    return caught.value


@pytest.mark.parametrize(
    ("limits", "num_free", "num_tokens", "status", "free_at_s"),
    [
        pytest.param({"requests_per_minute": 2}, 2, 0, 429, 61.0, id="requests"),
        pytest.param({"tokens_per_minute": 10}, 1, 10, 429, 61.0, id="tokens"),
        pytest.param({"models": ("other",)}, 0, 0, 403, None, id="model"),
    ],
)
def test_a_key_does_what_it_may_and_no_more(limits, num_free, num_tokens, status, free_at_s):
    """One user's script cannot use up what all share."""
    use, key = KeyUse(), key_of(**limits)
    for _ in range(num_free):
        use.begin(key, "m", now_s=1.0)
        use.end(key, num_tokens=num_tokens, now_s=1.0)
    error = refusal_of(use, key, now_s=1.5)

    assert error.status == status
    if free_at_s is not None:
        assert 59 <= error.retry_after_s <= 61
        use.begin(key, "m", now_s=free_at_s)


def test_a_key_runs_as_many_requests_as_it_may():
    """A limit of one at a time is one at a time."""
    use, key = KeyUse(), key_of(concurrency=1)
    use.begin(key, "m", now_s=0)
    assert refusal_of(use, key, now_s=100).status == 429
    use.end(key, num_tokens=5, now_s=100)

    use.begin(key, "m", now_s=100)


def test_a_key_is_shown_once_and_kept_as_its_hash(tmp_path):
    """Whoever reads the file cannot use the keys in it."""
    path = tmp_path / "sub" / "keys.json"
    key = add_key(path, "me", KeyLimits(models=("a",), concurrency=3))

    assert key not in path.read_text()
    assert path.stat().st_mode & 0o077 == 0
    (kept,) = read_keys(path)
    assert (kept.sha256, kept.limits.models, kept.limits.concurrency) == (hash_key(key), ("a",), 3)
    with pytest.raises(StackFileError, match="already"):
        add_key(path, "me", KeyLimits())
    remove_key(path, "me")
    assert read_keys(path) == ()
    with pytest.raises(StackFileError, match="no key"):
        remove_key(path, "me")


@pytest.mark.parametrize(
    "text", ["", "[]", "{}", '{"version": 2, "keys": []}', '{"version": 1, "keys": [1]}']
)
def test_a_broken_keys_file_is_named(text):
    """A file that is none is never taken for no keys."""
    with pytest.raises(StackFileError, match="F is no keys file"):
        decode_keys(text, source="F")


def test_keys_survive_writing_and_reading():
    """What is kept of a key comes back as it was."""
    keys = tuple(
        ApiKey(name=name, sha256=hash_key(name), created_at_s=1.5, limits=limits)
        for name, limits in [
            ("a", KeyLimits(requests_per_minute=3)),
            ("b", KeyLimits(models=("a", "b"))),
        ]
    )

    assert decode_keys(render_keys(keys), source="F") == keys


def test_a_serving_gateway_follows_its_keys_file(tmp_path, monkeypatch):
    """A key counts from its making on, and a file that breaks opens nothing."""
    path, now = tmp_path / "keys.json", [100.0]
    monkeypatch.setattr("trimtab.gateway.key_ring.time.monotonic", lambda: now[0])
    ring = KeyRing(path)
    assert not ring.is_on
    key = add_key(path, "me", KeyLimits())
    now[0] += 2
    assert ring.is_on
    assert ring.find(f"Bearer {key}").name == "me"
    assert ring.find("Bearer other") is None
    assert ring.find(key) is None
    for spoil in (lambda: path.write_text("broken"), path.unlink):
        spoil()
        now[0] += 2
        assert ring.is_on
        assert ring.find(f"Bearer {key}") is not None


@pytest.mark.parametrize(
    ("data", "num_events", "count"),
    [
        pytest.param(b'{"usage": {"prompt_tokens": 7, "completion_tokens": 9}}', 0, (7, 9, False), id="body"),
        pytest.param(
            b'{"usage":{"completion_tokens":9,"prompt_tokens":7,"prompt_tokens_details":{"cached_tokens":3}}}',
            4, (7, 9, False), id="details"),
        pytest.param(
            b'{"content": "\\"usage\\": {\\"prompt_tokens\\": 999}", "usage": {"prompt_tokens": 1}}',
            0, (1, 0, False), id="not-the-text"),
        pytest.param(b'data: {"timings":{"cache_n":2,"prompt_n":5,"predicted_n":6}}', 9, (7, 6, False),
                     id="llama-cpp"),
        pytest.param(b"data: [DONE]", 12, (0, 12, True), id="estimated"),
        pytest.param(b'{"usage": null}', 0, (0, 0, False), id="none"),
        pytest.param(
            b'{"usage":{"prompt_tokens":7,"total_tokens":16,"completion_tokens":9,"prompt_tokens_details":null}}',
            0, (7, 9, False), id="vllm"),
        pytest.param(
            b'{"usage":{"prompt_tokens":7,"completion_tokens":9},"choices":[{"message":{"content":"usage"}}]}',
            0, (7, 9, False), id="the-word-after-it"),
        pytest.param(
            b'data: {"usage":{"prompt_tokens":7,"completion_tokens":9}}\n\ndata: {"usage":null}\n\n',
            4, (7, 9, False), id="null-after-it"),
    ],
)  # fmt: skip
def test_tokens_are_read_off_an_answer(data, num_events, count):
    """What an engine says it used is what is counted."""
    assert read_usage(data, num_events=num_events) == count


def totals_of(path):
    return {(one.key, one.model): one for one in read_usage_totals(path)}


def days_of(path):
    return {one.day: one.num_requests for one in read_usage_totals(path)}


def test_usage_adds_up_per_key_and_model(tmp_path):
    """Who used what can be read, and survives restarts."""
    path = tmp_path / "usage.sqlite3"
    for _ in range(2):
        log = UsageLog(path)
        log.add(key="a", model="m", status=200, tokens=TokenCount(3, 4))
        log.add(key="a", model="m", status=500, tokens=TokenCount())
        log.add(key="", model="m", status=200, tokens=TokenCount(0, 5, is_estimated=True))
        log.close()
    one, other = totals_of(path)["a", "m"], totals_of(path)["", "m"]

    assert (one.num_requests, one.num_errors, one.prompt_tokens, one.completion_tokens) == (4, 2, 6, 8)
    assert (other.num_requests, other.completion_tokens, other.num_estimated) == (2, 10, 2)


def test_a_record_is_written_within_a_second(tmp_path):
    """What was answered is counted, without waiting for an end."""
    log = UsageLog(tmp_path / "usage.sqlite3")
    log.add(key="", model="m", status=200, tokens=TokenCount(1, 1))
    deadline_s = time.monotonic() + 10
    while not totals_of(tmp_path / "usage.sqlite3") and time.monotonic() < deadline_s:
        time.sleep(0.02)
    log.close()

    assert totals_of(tmp_path / "usage.sqlite3")["", "m"].num_requests == 1


def test_a_full_disk_loses_nothing_once_there_is_room(tmp_path):
    """Usage waits in memory while the disk is full; requests do not notice."""
    path = tmp_path / "usage.sqlite3"
    log = UsageLog(path, max_pages=3)
    for index in range(3000):
        log.add(key=f"key-{index}", model="m" * 50, status=200, tokens=TokenCount(1, 1))
    deadline_s = time.monotonic() + 10
    while not log._is_failing and time.monotonic() < deadline_s:
        time.sleep(0.02)
    assert log._is_failing
    assert totals_of(path) == {}
    log._max_pages = None
    log.close()

    assert sum(one.num_requests for one in read_usage_totals(path)) == 3000


def test_a_clock_that_jumps_counts_every_request_once(tmp_path, monkeypatch):
    """A wrong clock files requests under a wrong day; it loses none."""
    log = UsageLog(tmp_path / "usage.sqlite3")
    for moment in [time.gmtime(1.79e9 + jump_s) for jump_s in (0, 4e8, -4e8)]:
        monkeypatch.setattr("trimtab.gateway.usage_log.time.gmtime", lambda moment=moment: moment)
        log.add(key="", model="m", status=200, tokens=TokenCount(1, 1))
        day = time.strftime("%Y-%m-%d", moment)
        deadline_s = time.monotonic() + 10
        while day not in days_of(tmp_path / "usage.sqlite3") and time.monotonic() < deadline_s:
            time.sleep(0.02)
    log.close()

    assert sorted(days_of(tmp_path / "usage.sqlite3").values()) == [1, 1, 1]


@pytest.mark.parametrize("odd", ["caf\udce9", "\udcff\ud800", "\x00", "x" * 100_000])
def test_a_name_that_no_database_takes_does_not_end_the_counting(tmp_path, odd):
    """A file written by somebody's own hand may name a key anything."""
    path = tmp_path / "usage.sqlite3"
    log = UsageLog(path)
    log.add(key=odd, model="m", status=200, tokens=TokenCount(1, 1))
    time.sleep(0.4)
    log.add(key="", model="m", status=200, tokens=TokenCount(10**40, 1))
    wait_for(lambda: len(totals_of(path)) == 2)
    log.close()

    assert {one.num_requests for one in read_usage_totals(path)} == {1}


def test_the_counting_outlives_what_nobody_expected(tmp_path, monkeypatch):
    """Whatever a write ends with, it is tried again."""
    path = tmp_path / "usage.sqlite3"
    log, failures = UsageLog(path), [ValueError("a"), RuntimeError("b")]
    leave = log._leave_replaced
    monkeypatch.setattr(log, "_leave_replaced", lambda: raise_(failures.pop()) if failures else leave())
    log.add(key="a", model="m", status=200, tokens=TokenCount(1, 1))
    wait_for(lambda: ("a", "m") in totals_of(path))
    log.close()

    assert not failures


def raise_(error):
    raise error


def wait_for(condition):
    deadline_s = time.monotonic() + 10
    while not condition():
        assert time.monotonic() < deadline_s
        time.sleep(0.02)


@pytest.mark.parametrize("is_replaced", [False, True])
def test_a_database_that_is_removed_or_replaced_is_left_for_a_new_one(tmp_path, caplog, is_replaced):
    """What is counted from then on can be read, and nothing of the old one comes back."""
    path, backup = tmp_path / "usage.sqlite3", tmp_path / "backup.sqlite3"
    UsageLog(backup).close()
    log = UsageLog(path)
    log.add(key="old", model="m", status=200, tokens=TokenCount(1, 1))
    wait_for(lambda: ("old", "m") in totals_of(path))
    if is_replaced:
        backup.rename(path)
    else:
        path.unlink()
    for _ in range(3):
        log.add(key="new", model="m", status=200, tokens=TokenCount(1, 1))
        time.sleep(0.4)
    log.close()

    assert {names: one.num_requests for names, one in totals_of(path).items()} == {("new", "m"): 3}
    assert len([one for one in caplog.records if "removed or replaced" in one.message]) == 1
    with sqlite3.connect(path) as connection:
        assert connection.execute("PRAGMA integrity_check").fetchall() == [("ok",)]


@pytest.mark.parametrize("goes_on", [False, True])
def test_a_database_that_is_moved_away_keeps_what_was_counted(tmp_path, goes_on):
    """Whoever puts the file aside while trimtab serves has all that was counted so far in it."""
    path, aside = tmp_path / "usage.sqlite3", tmp_path / "aside.sqlite3"
    log = UsageLog(path)
    log.add(key="old", model="m", status=200, tokens=TokenCount(1, 1))
    wait_for(lambda: ("old", "m") in totals_of(path))
    path.rename(aside)
    if goes_on:
        log.add(key="new", model="m", status=200, tokens=TokenCount(1, 1))
        wait_for(lambda: path.exists() and ("new", "m") in totals_of(path))
        assert set(totals_of(aside)) == {("old", "m")}
    log.close()

    assert set(totals_of(aside)) == {("old", "m")}
    assert set(totals_of(path)) == ({("new", "m")} if goes_on else set())


WRITER = """
import sys, time
from pathlib import Path
from trimtab.gateway.usage import TokenCount
from trimtab.gateway.usage_log import UsageLog
log = UsageLog(Path(sys.argv[1]))
while True:
    log.add(key="k", model="m", status=200, tokens=TokenCount(1, 1))
    print(time.monotonic(), flush=True)
    time.sleep(0.002)
"""


def kill_writers(folder, number):
    """Five kills in the life of one database."""
    chance, path = random.Random(number), folder / f"usage-{number}.sqlite3"
    for kill in range(5):
        before = sum(one.num_requests for one in read_usage_totals(path))
        out = folder / f"out-{number}-{kill}"
        with out.open("wb") as file:
            process = subprocess.Popen([sys.executable, "-c", WRITER, str(path)], stdout=file)
            deadline_s = time.monotonic() + 20
            while out.stat().st_size == 0 and time.monotonic() < deadline_s:
                time.sleep(0.01)
            time.sleep(chance.uniform(0.9, 1.6))
            os.kill(process.pid, signal.SIGKILL)
            killed_s = time.monotonic()
            process.wait(10)
        # The last line may be cut off.
        ended_s = [float(line) for line in out.read_text().splitlines()[:-1]]
        counted = sum(one.num_requests for one in read_usage_totals(path)) - before

        assert num_safe(ended_s, killed_s) <= counted <= len(ended_s) + 2


def test_twenty_kills_lose_nothing_that_was_safe_and_count_nothing_twice(tmp_path):
    """Usage survives SIGKILL: what ended a second before is there, and no more than was answered."""
    with ThreadPoolExecutor(4) as threads:
        for done in [threads.submit(kill_writers, tmp_path, number) for number in range(4)]:
            done.result()
