"""Who uses a model that is to be removed: processes by their command line, containers by their mounts."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from contextlib import contextmanager
from pathlib import Path

import pytest
from docker_daemon import docker_daemon
from fake_hub import wait_for

from trimtab.cli.folders import Folders
from trimtab.cli.in_use import find_users
from trimtab.runtimes.process_table import read_identity


@pytest.fixture
def folders(tmp_path):
    made = Folders(state=tmp_path / "state", cache=tmp_path / "cache")
    made.state.mkdir()
    return made


@contextmanager
def engine(folders, model, *words):
    """A process that looks like an engine which trimtab started: marked, with a record."""
    folder = folders.state / "replicas" / f"{model}%2F0"
    folder.mkdir(parents=True)
    process = subprocess.Popen(
        [sys.executable, "-c", "input()", *words],
        env=os.environ | {"TRIMTAB_REPLICA_DIR": str(folder)},
        stdin=subprocess.PIPE,
    )
    # The kernel closes the pipe that Popen waits for a moment before the new words can be read.
    wait_for(lambda: Path(f"/proc/{process.pid}/cmdline").read_bytes() != b"")
    identity = read_identity(process.pid)
    record = {
        "replica_id": f"{model}/0", "stack": "s", "model": model, "engine": "vllm", "config_hash": "h",
        "trimtab_version": "0", "dies_with_supervisor": False, "boot_id": identity.boot_id,
        "engine_pid": process.pid, "engine_start_ticks": identity.start_ticks, "guard_pid": 0,
        "guard_start_ticks": 0, "port": 1, "log_path": "", "log_offset": 0, "started_at_s": time.time(),
    }  # fmt: skip
    (folder / "record.json").write_text(json.dumps(record))
    try:
        yield
    finally:
        process.communicate(b"\n")


def test_nothing_runs_and_nothing_is_used(folders, tmp_path):
    """Without engines every model may go."""
    assert find_users(folders, ["/m"]) == ()
    assert find_users(Folders(state=tmp_path / "absent", cache=tmp_path), ["/m"]) == ()


def test_an_engine_that_serves_a_model_is_named(folders):
    """Removing a model under a running engine is refused with the replica's name."""
    with engine(folders, "chat", "serve", "/cache/org/m/c0ffee", "--port", "1"):
        assert find_users(folders, ["/cache/org/m/c0ffee"]) == ("chat/0",)
        assert find_users(folders, ["org/other", "/cache/org/other"]) == ()


def test_a_container_that_mounts_a_model_is_named(folders, monkeypatch):
    """An engine in Docker sees the model under another path; its mount tells."""
    container = {
        "Labels": {"trimtab.replica": "chat/0"}, "Command": "vllm serve /model",
        "Mounts": [{"Source": "/cache/org/m/c0ffee", "Destination": "/model"}],
    }  # fmt: skip
    with docker_daemon({}, containers=[container]) as address:
        monkeypatch.setenv("DOCKER_HOST", address)
        before = find_users(folders, ["/cache/org/m/c0ffee"])
        (folders.state / "uses-docker").touch()
        after = find_users(folders, ["/cache/org/m/c0ffee"])
        other = find_users(folders, ["/cache/org/other"])

    assert (before, after, other) == ((), ("chat/0",), ())
