"""One supervisor per state folder, and how others find and stop it."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from trimtab.errors import EnvironmentMissingError
from trimtab.launcher.state_folder import StateFolder, find_supervisor, stop_supervisor
from trimtab.runtimes.process_table import read_identity

HOLDER = """
import signal, sys, time
from pathlib import Path
from trimtab.launcher.state_folder import StateFolder
if sys.argv[2] == "stubborn":
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
else:
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
with StateFolder(Path(sys.argv[1])).hold(mode="detached", stack="box") as held:
    held.publish(host="127.0.0.1", port=8123)
    print("held", flush=True)
    time.sleep(60)
"""


@pytest.fixture
def start_holder(tmp_path):
    """Starts another process that holds the folder; it is gone after the test."""
    running: list[subprocess.Popen] = []

    def start(kind: str = "polite") -> subprocess.Popen:
        argv = [sys.executable, "-c", HOLDER, str(tmp_path), kind]
        holder = subprocess.Popen(argv, stdout=subprocess.PIPE)
        running.append(holder)
        assert holder.stdout.readline() == b"held\n"
        return holder

    yield start
    for holder in running:
        holder.kill()
        holder.communicate()


def test_second_supervisor_is_refused_with_the_name_of_the_first(tmp_path, start_holder):
    """A second ``up`` says who runs already, where it answers, and what would work."""
    holder = start_holder()
    with pytest.raises(EnvironmentMissingError) as error:
        StateFolder(tmp_path).hold(mode="foreground", stack="other")
    assert error.value.message == (
        "the state folder is already supervised by "
        f"process {holder.pid} (detached, stack box) at http://127.0.0.1:8123"
    )
    assert "trimtab down" in error.value.hint


def test_folder_is_free_again_after_release(tmp_path):
    """Stopping and starting again in the same folder just works."""
    for _ in range(2):
        with StateFolder(tmp_path).hold(mode="foreground", stack="box") as held:
            found = find_supervisor(tmp_path)
            assert (found.pid, found.port, found.mode) == (os.getpid(), 0, "foreground")
            held.publish(host="0.0.0.0", port=8000)
            assert find_supervisor(tmp_path).port == 8000
        held.release()
        assert find_supervisor(tmp_path) is None


def test_killed_supervisor_is_seen_as_gone_and_frees_the_folder(tmp_path, start_holder):
    """After kill -9 nothing claims that a supervisor still runs, and the next one may start."""
    holder = start_holder()
    assert find_supervisor(tmp_path).pid == holder.pid
    holder.kill()
    holder.wait()
    assert find_supervisor(tmp_path) is None
    with StateFolder(tmp_path).hold(mode="foreground", stack="box"):
        assert find_supervisor(tmp_path).pid == os.getpid()


async def test_supervisor_is_stopped_by_sigterm(tmp_path, start_holder):
    """``down`` ends a running supervisor the polite way."""
    holder = start_holder()
    record = find_supervisor(tmp_path)
    assert await stop_supervisor(record, grace_s=10) is True
    assert holder.wait(5) == 0
    assert find_supervisor(tmp_path) is None
    assert await stop_supervisor(record, grace_s=10) is True


async def test_stubborn_supervisor_is_killed_after_the_grace(tmp_path, start_holder):
    """A supervisor that hangs cannot hold up ``down``; the caller learns that it had to be killed."""
    holder = start_holder("stubborn")
    began_s = time.monotonic()
    assert await stop_supervisor(find_supervisor(tmp_path), grace_s=0.2) is False
    assert holder.wait(5) == -signal.SIGKILL
    assert time.monotonic() - began_s < 5


async def test_process_that_took_over_the_pid_is_never_signalled(tmp_path):
    """After a reboot or a wrap of pids no stranger is stopped in place of the supervisor."""
    with StateFolder(tmp_path).hold(mode="foreground", stack="box"):
        document = json.loads((tmp_path / "supervisor.json").read_text())
        with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as stranger:
            identity = read_identity(stranger.pid)
            other = {**document, "pid": stranger.pid, "start_ticks": identity.start_ticks - 1}
            (tmp_path / "supervisor.json").write_text(json.dumps(other))
            assert find_supervisor(tmp_path) is None
            (tmp_path / "supervisor.json").write_text(
                json.dumps({**other, "start_ticks": identity.start_ticks, "boot_id": "another"})
            )
            assert find_supervisor(tmp_path) is None
            assert stranger.poll() is None
            stranger.communicate(b"\n")


@pytest.mark.parametrize(
    "content",
    [
        pytest.param(b"", id="empty"),
        pytest.param(b"{", id="truncated"),
        pytest.param(b"[]", id="not-an-object"),
        pytest.param(b"\xff\xfe", id="not-text"),
        pytest.param(b'{"pid": "1"}', id="wrong-types"),
        pytest.param(b'{"pid": 1}', id="fields-missing"),
    ],
)
def test_damaged_record_is_no_supervisor(tmp_path, content):
    """A damaged file never stops a command from working."""
    (tmp_path / "supervisor.json").write_bytes(content)
    assert find_supervisor(tmp_path) is None
    with StateFolder(tmp_path).hold(mode="foreground", stack="box"):
        assert find_supervisor(tmp_path).pid == os.getpid()


def test_folder_that_cannot_be_made_is_named(tmp_path):
    """A state folder that cannot be written is one sentence with the path and the way out."""
    (tmp_path / "file").write_text("")
    with pytest.raises(EnvironmentMissingError, match="file/trimtab: not a directory") as error:
        StateFolder(tmp_path / "file" / "trimtab").hold(mode="foreground", stack="box")
    assert "XDG_STATE_HOME" in error.value.hint


def test_only_this_user_may_read_the_folder(tmp_path):
    """Logs may hold prompts: nobody else on the machine reads them."""
    folder = StateFolder(tmp_path / "deep" / "trimtab")
    folder.prepare()
    for path in (folder.path, folder.logs):
        assert path.stat().st_mode & 0o077 == 0
    assert folder.log_path_of("org/name") == folder.logs / "org%2Fname.log"


def test_disk_that_is_full_is_named():
    """A full disk is told as such, with what would work."""
    from trimtab.runtimes.state_layout import refused_path

    refusal = refused_path(OSError(28, "ENOSPC"), Path("/state/supervisor.json"))
    assert refusal.message == "cannot write /state/supervisor.json: no space left on device"
    assert "free some space" in refusal.hint
