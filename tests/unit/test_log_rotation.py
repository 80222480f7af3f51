"""Logs stay small while engines write to them, and read as if nothing had been cut."""

from __future__ import annotations

import asyncio
import errno
import logging
import os
import stat
import subprocess
import sys
import time
from contextlib import contextmanager
from itertools import pairwise

import pytest
from fake_hub import wait_for

from trimtab.launcher import log_rotation
from trimtab.launcher.log_files import LogFollower, list_log_files, read_last_lines
from trimtab.launcher.log_rotation import keep_logs_small, rotate_logs

# Writes numbered lines of changing length until its stdin ends, then says how many.
# Ten digits: no two halves of lines make a number.
WRITER = """
import os, select, sys
log = os.open(sys.argv[1], os.O_WRONLY | os.O_CREAT | os.O_APPEND)
number = 0
while number % 64 or not select.select([0], [], [], 0)[0]:
    os.write(log, b"%010d %s\\n" % (number, b"x" * (number % 120)))
    number += 1
print(number)
"""
# As a full disk does, this limit on the size of a file refuses a copy, from the kernel.
LIMITED = """
import resource, sys
from pathlib import Path
from trimtab.launcher.log_rotation import rotate_logs
resource.setrlimit(resource.RLIMIT_FSIZE, (int(sys.argv[2]), int(sys.argv[2])))
(log,) = rotate_logs(Path(sys.argv[1]), max_bytes=10_000)
print(log.moved_bytes, log.problem)
"""
KIB = 1024


@contextmanager
def writer(path):
    """An engine that writes without pause; ``finish`` ends it and tells how many lines it wrote."""
    process = subprocess.Popen(
        [sys.executable, "-c", WRITER, str(path)], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    )
    wait_for(lambda: path.exists() and path.stat().st_size > 0)
    try:
        yield lambda: int(process.communicate(b".")[0])
    finally:
        process.kill()
        process.communicate()


def numbers_in(files) -> list[int]:
    """The line numbers of a log over all its files."""
    data = b"".join(file.read_bytes() for file in files)
    return [int(line.split(b" ")[0]) for line in data.splitlines()]


def is_as_written(line: bytes) -> bool:
    """Whether nothing of the line is missing and nothing came into it."""
    number, _, rest = line.partition(b" ")
    return len(number) == 10 and number.isdigit() and rest == b"x" * (int(number) % 120)


def rotate_for(folder, seconds, *, keep) -> int:
    """Cut again and again while something writes; how often that was."""
    cuts, deadline_s = 0, time.monotonic() + seconds
    while time.monotonic() < deadline_s and cuts < keep:
        cuts += sum(not log.problem for log in rotate_logs(folder, max_bytes=256 * KIB, keep=keep))
        time.sleep(0.01)
    return cuts


@pytest.fixture
def can_collapse(tmp_path):
    if not log_rotation._can_collapse(tmp_path, 4096):
        pytest.skip("this file system cannot take a range out of a file (ext4 and XFS can)")


def test_no_line_is_lost_while_an_engine_writes(tmp_path, can_collapse):
    """An error that is looked for later is there, in its place, however often logs were cut."""
    path = tmp_path / "m.log"
    with writer(path) as finish:
        cuts = rotate_for(tmp_path, 2, keep=500)
        count = finish()

    assert cuts >= 2
    assert numbers_in(list_log_files(path)) == list(range(count))


def test_elsewhere_only_what_falls_into_the_cut_is_lost(tmp_path, monkeypatch):
    """On other file systems a cut costs at most the lines of a moment, never order and never more."""
    monkeypatch.setattr(log_rotation, "_can_collapse", lambda *_: False)
    monkeypatch.setattr(log_rotation, "_collapse", lambda *_: False)
    path = tmp_path / "m.log"
    with writer(path) as finish:
        cuts = rotate_for(tmp_path, 2, keep=500)
        count = finish()
    data = b"".join(file.read_bytes() for file in list_log_files(path)).splitlines()
    numbers = [int(line.split(b" ")[0]) for line in data if is_as_written(line)]
    gaps = sum(later - earlier != 1 for earlier, later in pairwise(numbers))

    assert cuts >= 2
    assert numbers == sorted(set(numbers))
    assert gaps <= cuts
    assert len(data) - len(numbers) <= cuts
    assert len(numbers) > count * 0.9


@pytest.mark.parametrize("is_exact", [True, False], ids=["collapse", "truncate"])
def test_following_survives_a_cut(tmp_path, monkeypatch, request, is_exact):
    """`trimtab logs -f` shows every line once, also across cuts."""
    if is_exact:
        request.getfixturevalue("can_collapse")
    else:
        monkeypatch.setattr(log_rotation, "_can_collapse", lambda *_: False)
        monkeypatch.setattr(log_rotation, "_collapse", lambda *_: False)
    path = tmp_path / "m.log"
    written = 0

    def write(count: int) -> None:
        nonlocal written
        with path.open("ab") as log:
            log.writelines(b"%d %s\n" % (number, b"y" * 90) for number in range(written, written + count))
        written += count

    write(10)
    follower = LogFollower(path, 0)
    seen: list[int] = []
    for _ in range(5):
        write(700)
        seen += [int(line.split()[0]) for line in follower.read_lines()]
        write(300)  # cut off before it was read
        assert rotate_logs(tmp_path, max_bytes=1000)
        write(5)
        seen += [int(line.split()[0]) for line in follower.read_lines()]
    follower.close()

    assert seen == list(range(written))


def test_a_log_that_was_begun_anew_is_followed(tmp_path):
    """Whoever empties or replaces a log by hand sees what comes next."""
    path = tmp_path / "m.log"
    path.write_bytes(b"old\n" * 10)
    follower = LogFollower(path, 40)
    os.truncate(path, 0)
    with path.open("ab") as log:
        log.write(b"new\nhal")
    emptied = follower.read_lines()
    path.unlink()
    path.write_bytes(b"other\n")
    replaced = follower.read_lines()
    follower.close()

    assert emptied == [b"new"]
    assert replaced[-1].endswith(b"other")


def test_the_last_lines_are_found_across_files(tmp_path, can_collapse):
    """`trimtab logs -n 200` right after a cut shows 200 lines, not the few since."""
    path = tmp_path / "m.log"
    path.write_bytes(b"".join(b"%d\n" % number for number in range(20_000)))
    rotate_logs(tmp_path, max_bytes=1000)
    with path.open("ab") as log:
        log.write(b"last\nunfinished")
    shown, _ = read_last_lines(path, 200)
    whole, offset = read_last_lines(path, 3, is_whole=True)

    assert path.stat().st_size < 9000
    assert shown == [*(b"%d" % number for number in range(19_802, 20_000)), b"last", b"unfinished"]
    assert whole == [b"19998", b"19999", b"last"]
    assert path.read_bytes()[offset:] == b"unfinished"
    assert read_last_lines(path, 0)[0] == []
    assert len(read_last_lines(path, 10**6)[0]) == 20_002


@pytest.mark.parametrize("count", [0, 1, 2, 3, 4, 5, 9])
def test_as_many_lines_as_there_are(tmp_path, count):
    """Asking for more lines than a log has shows all of them."""
    path = tmp_path / "m.log"
    path.write_bytes(b"a\nb\r\nc\n")

    assert read_last_lines(path, count)[0] == [b"a", b"b", b"c"][max(0, 3 - count) :]


def test_older_parts_move_on_and_the_oldest_goes(tmp_path):
    """A run of weeks keeps the last parts and no more disk."""
    path = tmp_path / "m.log"
    for letter in b"abcde":
        with path.open("ab") as log:
            log.write(bytes([letter]) * 20_000)
        rotate_logs(tmp_path, max_bytes=10_000)

    assert [file.name for file in list_log_files(path)] == ["m.log.3", "m.log.2", "m.log.1", "m.log"]
    assert b"e" in (tmp_path / "m.log.1").read_bytes()
    assert path.stat().st_size <= 10_000
    assert stat.S_IMODE((tmp_path / "m.log.1").stat().st_mode) == 0o600
    assert sorted(entry.name for entry in tmp_path.iterdir()) == ["m.log", "m.log.1", "m.log.2", "m.log.3"]


def test_small_logs_and_other_files_are_left_alone(tmp_path):
    """Only logs that grew too large are cut."""
    (tmp_path / "small.log").write_bytes(b"x" * 100)
    (tmp_path / "notes.txt").write_bytes(b"x" * 20_000)
    (tmp_path / "folder.log").mkdir()

    assert rotate_logs(tmp_path, max_bytes=10_000) == ()
    assert rotate_logs(tmp_path / "absent", max_bytes=1) == ()


def test_a_full_disk_costs_no_line(tmp_path):
    """Where a copy cannot be kept, the log stays whole and the reason is told."""
    path = tmp_path / "m.log"
    content = b"".join(b"%d\n" % number for number in range(9000))
    path.write_bytes(content)
    done = subprocess.run(
        [sys.executable, "-c", LIMITED, str(tmp_path), "8192"], capture_output=True, text=True, check=True
    )

    assert done.stdout.strip() == "0 file too large"
    assert path.read_bytes() == content
    assert [entry.name for entry in tmp_path.iterdir()] == ["m.log"]


def test_on_a_full_disk_the_oldest_part_makes_room(tmp_path, monkeypatch):
    """What was logged weeks ago goes before what was logged now."""
    path = tmp_path / "m.log"
    for number in (3, 2, 1):
        (tmp_path / f"m.log.{number}").write_bytes(b"%d" % number)
    path.write_bytes(b"now" * 5000)
    copy = log_rotation._copy
    refusals = [OSError(errno.ENOSPC, "no space left on device")] * 2

    def refuse(descriptor, target, **options):
        if refusals:
            target.write_bytes(b"half")
            raise refusals.pop()
        return copy(descriptor, target, **options)

    monkeypatch.setattr(log_rotation, "_copy", refuse)
    (log,) = rotate_logs(tmp_path, max_bytes=10_000)

    assert log.problem == ""
    assert b"".join(file.read_bytes() for file in list_log_files(path)) == b"1" + b"now" * 5000


def test_a_disk_that_refuses_is_said_once(tmp_path, monkeypatch, caplog):
    """A warning a minute for hours would be a log of its own; serving goes on."""
    path = tmp_path / "m.log"
    path.write_bytes(b"x")
    log = log_rotation.RotatedLog(path=path, moved_bytes=0, problem="no space left on device")
    rounds = []

    def refuse(folder):
        rounds.append(folder)
        return (log,)

    monkeypatch.setattr(log_rotation, "rotate_logs", refuse)
    monkeypatch.setattr(log_rotation, "_EVERY_S", 0.005)

    async def run() -> None:
        task = asyncio.ensure_future(keep_logs_small(tmp_path))
        while len(rounds) < 5:
            await asyncio.sleep(0.005)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    with caplog.at_level(logging.WARNING):
        asyncio.run(run())

    assert [record.getMessage() for record in caplog.records] == [f"{path} grows: no space left on device"]
