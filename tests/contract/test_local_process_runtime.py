"""What only real processes can show: identity, orphans, odd folders, lost records, refusals."""

from __future__ import annotations

import asyncio
import json
import logging
import os
import random
import signal
import socket
import subprocess
import sys
from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest
import uvloop
from processes_seen import is_port_open, pids_with, wait_until
from supervising_program import fake_spec

from trimtab.core.state import ExitStatus
from trimtab.errors import EngineStartError, EnvironmentMissingError
from trimtab.runtimes import guard
from trimtab.runtimes.local_process import LocalProcessRuntime
from trimtab.runtimes.process_table import list_marked, read_identity
from trimtab.runtimes.state_layout import log_path_of

_TOKENS = iter(range(10**9))


@pytest.fixture
def token():
    """A word in the command line of every process of one test; none may be left afterwards."""
    word = f"token-{os.getpid()}-{next(_TOKENS)}"
    yield word
    left = pids_with(word)
    for pid in left:
        os.kill(pid, signal.SIGKILL)
    assert left == []


@pytest.fixture
async def runtime(tmp_path, token):
    chosen = LocalProcessRuntime(tmp_path, python=sys.executable)
    yield chosen
    for replica in await chosen.list_replicas():
        await chosen.stop_replica(replica.replica_id, grace_s=0)


def record_path(state_dir: Path) -> Path:
    return state_dir / "replicas" / "fake-0" / guard.RECORD_FILE


async def started(runtime, *knobs, num_processes=1, token, **changes):
    """Start the fake engine and wait until it has all its children."""
    observed = await runtime.start_replica(fake_spec("--say", token, *knobs, **changes))
    wait_until(lambda: len(pids_with(token)) == num_processes, within_s=10, what="fake engine with children")
    return observed


async def test_replica_is_adopted_by_a_runtime_that_did_not_start_it(runtime, tmp_path, token):
    """After a kill -9 of the supervisor the next one sees the engine, waits for it and stops it."""
    observed = await started(runtime, token=token, detached=True)
    other = LocalProcessRuntime(tmp_path, python=sys.executable)
    (listed,) = await other.list_replicas()
    assert listed.pid == observed.pid
    waiting = asyncio.ensure_future(other.wait_exit("fake-0"))
    await other.stop_replica("fake-0", grace_s=5)
    await asyncio.wait_for(waiting, 5)
    assert await runtime.list_replicas() == ()


async def test_engine_that_ignores_sigterm_is_killed_after_the_grace(runtime, token):
    """A stuck engine cannot hold up a stop for longer than the grace."""
    await started(runtime, "--ignore-sigterm", token=token)
    await runtime.stop_replica("fake-0", grace_s=0.3)
    assert pids_with(token) == []


@pytest.mark.parametrize("victim", ["engine", "guard"])
async def test_children_of_a_killed_engine_are_gone_after_the_stop(runtime, token, victim):
    """Worker processes never outlive their engine, not even those in a session of their own."""
    observed = await started(runtime, "--children", "2", "--setsid-child", num_processes=4, token=token)
    pid = observed.pid if victim == "engine" else os.getpgid(os.getsid(observed.pid))
    os.kill(pid, signal.SIGKILL)
    status = await asyncio.wait_for(runtime.wait_exit("fake-0"), 5)
    assert status == ExitStatus(code=None, signal=signal.SIGKILL if victim == "engine" else None)
    if victim == "engine":
        assert pids_with(token) == []  # the guard has swept before it told the end
    await runtime.stop_replica("fake-0", grace_s=1)
    assert pids_with(token) == []


async def test_killed_guard_takes_the_engine_along_at_once(runtime, token):
    """An engine without its guard would be beyond control; the kernel ends it."""
    observed = await started(runtime, token=token)
    os.kill(os.getsid(observed.pid), signal.SIGKILL)
    wait_until(lambda: not pids_with(token), within_s=2, what="death of the engine")


async def test_stopped_guard_cannot_hold_up_a_stop(runtime, token):
    """A guard frozen by SIGSTOP is killed with its engine."""
    observed = await started(runtime, "--children", "1", num_processes=2, token=token)
    os.kill(os.getsid(observed.pid), signal.SIGSTOP)
    await runtime.stop_replica("fake-0", grace_s=0.2)
    assert pids_with(token) == []


async def test_foreign_process_with_the_recorded_pid_is_never_touched(runtime, tmp_path, token):
    """A pid that the system gave to somebody else is neither shown as ours nor killed."""
    with subprocess.Popen([sys.executable, "-c", "input()", token], stdin=subprocess.PIPE) as bystander:
        await started(runtime, num_processes=2, token=token, detached=True)
        path = record_path(tmp_path)
        record = json.loads(path.read_text())
        for pid in (record["guard_pid"], record["engine_pid"]):
            os.kill(pid, signal.SIGKILL)
        identity = read_identity(bystander.pid)
        ids = dict.fromkeys(("guard_pid", "engine_pid"), bystander.pid)
        ticks = dict.fromkeys(("guard_start_ticks", "engine_start_ticks"), identity.start_ticks)
        path.write_text(json.dumps({**record, **ids, **ticks}))
        (listed,) = await runtime.list_replicas()
        assert not listed.is_running
        await asyncio.wait_for(runtime.wait_exit("fake-0"), 1)
        await runtime.stop_replica("fake-0", grace_s=1)
        assert bystander.poll() is None
        bystander.communicate(b"\n")


async def test_record_of_an_earlier_boot_is_an_ended_run(runtime, tmp_path, token):
    """After a reboot nothing is mistaken for the engine that ran before."""
    await started(runtime, token=token)
    path = record_path(tmp_path)
    path.write_text(json.dumps({**json.loads(path.read_text()), "boot_id": "another"}))
    (listed,) = await runtime.list_replicas()
    assert not listed.is_running


@pytest.mark.parametrize(
    "content",
    [
        pytest.param(None, id="absent"),
        pytest.param(b"", id="empty"),
        pytest.param(b'{"replica_id": "fake-0", "po', id="truncated"),
        pytest.param(b"\xff\xfe\x00", id="not-text"),
        pytest.param(b"[1]", id="not-an-object"),
        pytest.param(b"[" * 100_000, id="too-deep"),
        pytest.param(b'{"replica_id": "fake-0"}', id="fields-missing"),
    ],
)
async def test_replica_with_a_lost_record_is_still_found_and_stopped(
    runtime, tmp_path, token, content, caplog
):
    """A damaged record costs a warning, never an engine that nobody can find again."""
    observed = await started(runtime, "--children", "1", num_processes=2, token=token, detached=True)
    path = record_path(tmp_path)
    if content is None:
        path.unlink()
    else:
        path.write_bytes(content)
    with caplog.at_level(logging.WARNING):
        (listed,) = await runtime.list_replicas()
    assert (listed.replica_id, listed.config_hash, listed.port) == ("fake-0", "", 0)
    assert listed.is_running
    assert ("is ignored" in caplog.text) == (content is not None)
    await runtime.stop_replica("fake-0", grace_s=1)
    assert pids_with(token) == []
    assert not is_port_open(observed.port)


async def test_what_others_put_into_the_folder_is_ignored_and_kept(runtime, tmp_path, token):
    """Stray files and folders in the state folder neither crash a command nor get lost."""
    replicas = tmp_path / "replicas"
    (replicas / "stray").mkdir(parents=True)
    (replicas / "note.txt").write_text("mine")
    (replicas / "stray" / "data").write_text("mine")
    await started(runtime, token=token)
    (replicas / "fake-0" / "data").write_text("mine")
    assert [replica.replica_id for replica in await runtime.list_replicas()] == ["fake-0"]
    await runtime.stop_replica("fake-0", grace_s=1)
    kept = sorted(str(path.relative_to(replicas)) for path in replicas.rglob("*") if path.is_file())
    assert kept == ["fake-0/data", "note.txt", "stray/data"]


@pytest.mark.parametrize(
    "name",
    [
        pytest.param("with space and 'quote' \"\n", id="spaces-quotes-newline"),
        pytest.param("odd-\udcff-bytes", id="not-utf-8"),
        pytest.param("=a=b;$HOME", id="shell-characters"),
        pytest.param("/".join(["n" * 200] * 6), id="long"),
    ],
)
async def test_any_state_folder_works(tmp_path, token, name):
    """XDG_STATE_HOME may be long, hold spaces, or bytes that are no text."""
    state_dir = tmp_path / name
    runtime = LocalProcessRuntime(state_dir, python=sys.executable)
    await started(runtime, "--setsid-child", num_processes=2, token=token)
    (listed,) = await runtime.list_replicas()
    assert listed.is_running
    assert set(list_marked(state_dir.resolve() / "replicas")) == {"fake-0"}
    record_path(state_dir).unlink()
    await runtime.stop_replica("fake-0", grace_s=1)
    assert pids_with(token) == []


async def test_state_folder_behind_a_link_is_the_same_folder(tmp_path, token):
    """A linked home folder does not hide engines from the next command."""
    (tmp_path / "real").mkdir()
    (tmp_path / "link").symlink_to("real")
    await started(LocalProcessRuntime(tmp_path / "link", python=sys.executable), token=token)
    direct = LocalProcessRuntime(tmp_path / "real", python=sys.executable)
    (listed,) = await direct.list_replicas()
    assert listed.is_running
    await direct.stop_replica("fake-0", grace_s=1)


@pytest.mark.parametrize(
    "name",
    [
        pytest.param("org/name:tag", id="repo-id"),
        pytest.param("..", id="parent"),
        pytest.param(".hidden", id="hidden"),
        pytest.param("ü" * 300, id="very-long"),
        pytest.param("a b\n", id="spaces"),
    ],
)
async def test_any_name_stays_inside_the_state_folder(runtime, tmp_path, token, name):
    """A model's name never leads a file out of the state folder, and comes back as it was."""
    spec = replace(fake_spec("--say", token), replica_id=name, model=name)
    observed = await runtime.start_replica(spec)
    (listed,) = await runtime.list_replicas()
    assert (listed.replica_id, listed.model) == (name, name)
    assert Path(observed.log_path).parent == (tmp_path / "logs").resolve()
    assert Path(observed.log_path) == log_path_of(tmp_path, name)
    await runtime.stop_replica(name, grace_s=1)
    assert await runtime.list_replicas() == ()


async def test_missing_program_is_refused_and_leaves_nothing(runtime, tmp_path):
    """An engine that is not installed is one sentence that names it."""
    spec = replace(fake_spec(), argv=("no-such-engine", "--port", "{port}"))
    with pytest.raises(EngineStartError, match="cannot execute no-such-engine: no such file"):
        await runtime.start_replica(spec)
    assert list((tmp_path / "replicas").iterdir()) == []
    assert await runtime.list_replicas() == ()


async def test_nul_character_in_the_command_is_refused(runtime):
    """A command that no system can run is refused, not half-started."""
    with pytest.raises(EngineStartError, match="cannot execute"):
        await runtime.start_replica(replace(fake_spec(), argv=(sys.executable, "a\0b")))
    assert await runtime.list_replicas() == ()


async def test_state_folder_that_cannot_be_made_is_refused_by_name(tmp_path):
    """A state folder below a file is one sentence with the path and what would work."""
    (tmp_path / "file").write_text("")
    runtime = LocalProcessRuntime(tmp_path / "file" / "trimtab", python=sys.executable)
    assert await runtime.list_replicas() == ()
    with pytest.raises(
        EnvironmentMissingError, match=r"cannot write .*file/trimtab: not a directory"
    ) as error:
        await runtime.start_replica(fake_spec())
    assert "XDG_STATE_HOME" in error.value.hint


@pytest.mark.parametrize("blocked", ["record", "log"])
async def test_file_that_cannot_be_written_stops_the_start(runtime, tmp_path, token, blocked):
    """When the record or the log cannot be written no engine is left running without it."""
    target = record_path(tmp_path) if blocked == "record" else log_path_of(tmp_path, "fake")
    (target / "in-the-way").mkdir(parents=True)
    with pytest.raises(EnvironmentMissingError, match=rf"cannot write .*{target.name}: "):
        await runtime.start_replica(fake_spec("--say", token))
    assert pids_with(token) == []
    assert await runtime.list_replicas() == ()


async def test_missing_interpreter_is_refused(tmp_path):
    """A broken installation is named, not shown as a crash."""
    runtime = LocalProcessRuntime(tmp_path, python="/nowhere/python3")
    with pytest.raises(EnvironmentMissingError, match="cannot run the interpreter /nowhere/python3"):
        await runtime.start_replica(fake_spec())


async def cancel_starts(runtime, token):
    """Cancel starts at random moments; each either ends as cancelled, with nothing left, or has started."""
    moments = random.Random(7)
    for _ in range(25):
        starting = asyncio.ensure_future(runtime.start_replica(fake_spec("--say", token)))
        await asyncio.sleep(moments.uniform(0, 0.06))
        starting.cancel()
        outcome = (await asyncio.gather(starting, return_exceptions=True))[0]
        if isinstance(outcome, asyncio.CancelledError):
            assert await runtime.list_replicas() == ()
            assert pids_with(token) == []
        else:
            assert not isinstance(outcome, BaseException), outcome
            await runtime.stop_replica("fake-0", grace_s=1)


@pytest.mark.parametrize(
    "new_loop", [asyncio.new_event_loop, uvloop.new_event_loop], ids=["asyncio", "uvloop"]
)
def test_start_cancelled_at_any_moment_leaves_nothing(tmp_path, token, new_loop):
    """Ctrl-C during a start never leaves an engine behind, and is no other failure."""
    runtime = LocalProcessRuntime(tmp_path, python=sys.executable)
    with asyncio.Runner(loop_factory=new_loop) as runner:
        runner.run(cancel_starts(runtime, token))


async def test_port_of_a_loading_engine_is_given_to_nobody_else(runtime, token):
    """Another program that asks for a free port never gets the one an engine will soon listen on."""
    observed = await started(runtime, "--late-listen-s", "30", token=token)
    with socket.socket() as thief, pytest.raises(OSError, match="in use"):
        thief.bind(("127.0.0.1", observed.port))


async def test_resident_memory_counts_the_engine_and_its_children(runtime, token):
    """Status shows what the engine really takes, workers included."""
    await started(runtime, token=token, num_processes=1)
    (small,) = await runtime.list_replicas()
    await runtime.stop_replica("fake-0", grace_s=1)
    await started(runtime, "--ballast-mib", "40", "--children", "1", num_processes=2, token=token)
    wait_until(
        lambda: is_port_open(json.loads(record_path(runtime._state_dir).read_text())["port"]),
        within_s=10,
        what="listening",
    )
    (large,) = await runtime.list_replicas()
    assert large.rss_bytes - small.rss_bytes > 40 * 1024 * 1024


async def test_engine_gets_a_clean_start(runtime):
    """The engine starts with default signal handling, no stray descriptors and a group of its own."""
    script = "grep -E 'Sig(Blk|Ign)' /proc/self/status; ls /proc/self/fd | wc -l"
    observed = await runtime.start_replica(
        replace(fake_spec(), argv=("sh", "-c", f"sh -c {script!r}; sleep 60"))
    )
    tail = partial(runtime.read_log_tail, "fake-0", max_lines=10)
    wait_until(lambda: len(tail()) == 3, within_s=5, what="three lines")
    blocked, ignored, num_open = (line.split()[-1] for line in tail())
    # Signals 32 and 33 belong to the C library; their state is the test machine's, not ours.
    assert int(blocked, 16) & ~(3 << 31) == 0
    assert int(ignored, 16) & ~(3 << 31) == 0
    assert int(num_open) == 4  # stdin, stdout, stderr, and the folder that ls reads
    assert os.getpgid(observed.pid) == observed.pid
