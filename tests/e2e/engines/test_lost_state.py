"""The state folder is damaged or deleted while a stack runs: it is stopped as if it were whole."""

import os
import re
import shutil
import signal
import time

import pytest
from trimtab_program import Program

from trimtab.launcher.state_folder import find_supervisor

pytestmark = [pytest.mark.engine, pytest.mark.timeout(240)]


@pytest.fixture
def program(tmp_path):
    program = Program(tmp_path)
    yield program
    program.close()


def _damage(state):
    (state / "supervisor.json").write_text("{")


@pytest.mark.parametrize(
    "spoil",
    [pytest.param(_damage, id="record-damaged"), pytest.param(shutil.rmtree, id="folder-deleted")],
)
def test_down_stops_a_supervisor_that_its_folder_does_not_tell_of(program, spoil):
    """Nothing is said to be stopped that starts again a second later."""
    started = program.run("up", "-d", "--port", "0")
    assert started.returncode == 0, started.stderr
    spoil(program.state)

    again = program.run("up", "-d", "--port", "0")
    assert again.returncode == 4
    assert "already supervised by process" in again.stderr

    done = program.run("down", "--timeout", "10")
    assert done.returncode == 0, done.stderr
    assert "stopped" in done.stdout
    program.wait_empty(5)
    assert "nothing was running" in program.run("down").stdout


def test_status_says_which_record_is_damaged_instead_of_showing_nonsense(program):
    """An engine without its record has no port 0, and is not up since 1970."""
    assert program.run("up", "-d", "--port", "0").returncode == 0
    (record,) = (program.state / "replicas").glob("*/record.json")
    record.write_text("{")

    shown = program.run("status").stdout
    replica = program.run_json("status")["replicas"][0]

    assert "its run record is missing or damaged" in shown
    assert not re.search(r"\d{5,}h", shown)
    assert (replica["port"], replica["started_at_s"], replica["record_damaged"]) == (None, None, True)

    _damage(program.state)
    assert "whose record is missing or damaged" in program.run("status").stdout


def test_a_supervisor_that_is_killed_while_it_starts_is_said_to_be_dead(program):
    """The command that waits says what happened, and the same command again just works."""
    up = program.up("-d")
    deadline_s = time.monotonic() + 30
    while (record := find_supervisor(program.state)) is None and time.monotonic() < deadline_s:
        time.sleep(0.01)
    os.kill(record.pid, signal.SIGKILL)
    _, said = up.communicate(timeout=30)
    again = program.run("up", "-d", "--port", "0")

    assert "killed by SIGKILL before it was ready" in said
    assert "already supervised" not in said
    assert again.returncode == 0, again.stderr


def test_a_folder_in_the_place_of_the_control_socket_is_refused_before_anything_loads(program):
    """What stands in the way is named at once, with what would work."""
    (program.state / "control.sock").mkdir(parents=True)

    done = program.run("up", "-d", "--port", "0")

    assert done.returncode == 4
    assert "control.sock" in done.stderr
    assert "is a folder" in done.stderr
    assert "Traceback" not in done.stderr
    assert not (program.state / "logs" / "smollm2-135m.log").exists()
