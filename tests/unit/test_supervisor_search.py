"""A supervisor without its record is found, refused beside, and stopped."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys

import pytest
from test_state_folder import HOLDER

from trimtab.errors import EnvironmentMissingError
from trimtab.launcher.state_folder import StateFolder, find_supervisor, stop_supervisor
from trimtab.launcher.supervisor_search import find_unrecorded


@pytest.fixture
def holder(tmp_path):
    """(its process, its folder): another process that holds a folder until the test is over."""
    state = tmp_path / "state"
    argv = [sys.executable, "-c", HOLDER, str(state), "polite"]
    with subprocess.Popen(argv, stdout=subprocess.PIPE) as process:
        assert process.stdout.readline() == b"held\n"
        yield process, state
        process.kill()


def _damage(state):
    (state / "supervisor.json").write_text("{")


def _remove_record(state):
    (state / "supervisor.json").unlink()


def _replace_lock(state):
    _damage(state)
    (state / "supervisor.lock").unlink()
    (state / "supervisor.lock").touch()


FAULTS = pytest.mark.parametrize(
    "spoil",
    [
        pytest.param(_damage, id="record-damaged"),
        pytest.param(_remove_record, id="record-gone"),
        pytest.param(shutil.rmtree, id="folder-deleted"),
        pytest.param(_replace_lock, id="lock-replaced"),
    ],
)


@FAULTS
async def test_a_supervisor_without_its_record_is_stopped(holder, spoil):
    """``down`` ends what would start again everything that it stops."""
    process, state = holder
    spoil(state)
    assert find_supervisor(state) is None
    found = find_unrecorded(state)
    assert found.pid == process.pid
    assert await stop_supervisor(found, grace_s=10)
    assert process.wait(5) == 0
    assert find_unrecorded(state) is None


@FAULTS
def test_a_second_one_is_refused_with_the_name_of_one_without_its_record(holder, spoil):
    """Two never supervise one folder, and who runs is said by its process."""
    process, state = holder
    spoil(state)
    with pytest.raises(EnvironmentMissingError) as error:
        StateFolder(state).hold(mode="detached", stack="other")
    assert f"process {process.pid}" in error.value.message
    assert "trimtab down" in error.value.hint


def test_one_that_only_waits_for_the_lock_is_no_supervisor(tmp_path):
    """A command that has the lock file open, without the lock, is left alone."""
    (tmp_path / "supervisor.lock").touch()
    script = "import sys; f = open(sys.argv[1]); print('open', flush=True); sys.stdin.read()"
    argv = [sys.executable, "-c", script, str(tmp_path / "supervisor.lock")]
    with subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdout.readline() == b"open\n"
        assert find_unrecorded(tmp_path) is None
        process.stdin.close()


def test_a_supervisor_that_dies_this_moment_is_waited_for(holder):
    """After kill -9 the next start just works, however soon it comes."""
    process, state = holder
    process.kill()
    with StateFolder(state).hold(mode="detached", stack="box"):
        assert find_supervisor(state).pid == os.getpid()
        assert find_unrecorded(state) is None
