"""kill -9 of anything at any moment: afterwards no process and no port of ours is left, ever."""

from __future__ import annotations

import asyncio
import os
import random
import signal
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path

import pytest
from processes_seen import is_port_open, pids_in_environment, pids_with, wait_until

from trimtab.launcher.apply import reap_leftovers
from trimtab.launcher.state_folder import find_supervisor, stop_supervisor
from trimtab.runtimes import guard
from trimtab.runtimes.local_process import LocalProcessRuntime

PROGRAM = Path(__file__).parent.parent / "fakes" / "supervising_program.py"
# Each round takes about a second; a longer hunt: TRIMTAB_CHAOS_ROUNDS=100.
NUM_ROUNDS = int(os.environ.get("TRIMTAB_CHAOS_ROUNDS", "4"))
KNOBS = ("--load-s", "0.2", "--children", "1", "--setsid-child")
VICTIMS = ("supervisor", "guard", "engine", "child")


@dataclass
class Scene:
    """One running supervisor with its engine, seen from outside."""

    state_dir: Path
    token: str
    mode: str

    def __post_init__(self) -> None:
        argv = [sys.executable, str(PROGRAM), str(self.state_dir), self.mode, "--say", self.token, *KNOBS]
        self.output = self.state_dir.with_suffix(".out").open("ab")
        self.supervisor = subprocess.Popen(argv, stdout=self.output, stderr=subprocess.STDOUT)
        self.runtime = LocalProcessRuntime(self.state_dir, python=sys.executable)

    def ours(self) -> list[int]:
        """All processes of the engine side: by mark, and by the token in their command line."""
        mark = f"{guard.MARKER}={self.state_dir}"
        found = {*pids_in_environment(mark), *pids_with(self.token)} - {self.supervisor.pid}
        return sorted(found)

    def victims(self, role: str) -> list[int]:
        if role == "supervisor":
            return [self.supervisor.pid] if self.supervisor.poll() is None else []
        guards = [pid for pid in self.ours() if sid_of(pid) == pid and pid not in pids_with(self.token)]
        engines = [pid for pid in self.ours() if parent_of(pid) in guards]
        if role == "guard":
            return guards
        if role == "engine":
            return engines
        return [pid for pid in self.ours() if pid not in {*guards, *engines}]

    def strike(self, role: str, chance: random.Random) -> bool:
        """Kill -9 one process of that role, if there is one just now."""
        found = self.victims(role)
        if found:
            try:
                os.kill(chance.choice(found), signal.SIGKILL)
            except ProcessLookupError:
                return False
        return bool(found)

    def down(self) -> None:
        """What ``trimtab down`` does: stop the supervisor if one lives, reap what it left."""
        record = find_supervisor(self.state_dir)

        async def stop_all() -> None:
            if record is not None:
                assert await stop_supervisor(record, grace_s=15)
            await reap_leftovers(self.runtime, grace_s=2)

        asyncio.run(stop_all())
        if record is None and self.supervisor.poll() is None:
            self.supervisor.terminate()  # so young that it has no record yet
            self.supervisor.wait(15)
            asyncio.run(reap_leftovers(self.runtime, grace_s=2))
        self.supervisor.wait(15)
        self.output.close()


def sid_of(pid: int) -> int | None:
    try:
        return os.getsid(pid)
    except ProcessLookupError:
        return None


def parent_of(pid: int) -> int | None:
    stat = guard.read_stat(pid)
    return None if stat is None else stat[1]


def ports_of(state_dir: Path) -> list[int]:
    """Every port that an engine of this folder said it listens on."""
    logs = (state_dir / "logs").glob("*.log")
    lines = (line for log in logs for line in log.read_text().splitlines())
    return sorted({int(line.split()[-1]) for line in lines if line.startswith("listening on")})


@pytest.fixture(scope="module")
def bystander():
    """A process of somebody else that runs all the time."""
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as process:
        yield process
        process.communicate(b"\n")
    assert process.returncode == 0


@pytest.mark.slow
@pytest.mark.timeout(60 + 30 * NUM_ROUNDS)
@pytest.mark.parametrize("mode", ["foreground", "detached"])
def test_nothing_is_left_after_killing_a_random_process_at_a_random_moment(tmp_path, mode, bystander):
    """Whatever dies with kill -9, the next ``down`` leaves no process and no port, and no bystander dies."""
    chance = random.Random(f"orphans-{mode}")
    for round_number in range(NUM_ROUNDS):
        scene = Scene(tmp_path / f"round {round_number}", f"chaos-{os.getpid()}-{mode}-{round_number}", mode)
        time.sleep(chance.uniform(0.1, 1.6))
        roles = [chance.choice(VICTIMS) for _ in range(chance.choice((1, 1, 2)))]
        for role in roles:
            scene.strike(role, chance)
            time.sleep(chance.choice((0.0, 0.0, 0.05, 0.3)))
        scene.down()
        assert scene.ours() == [], f"round {round_number}: {roles}"
        assert [port for port in ports_of(scene.state_dir) if is_port_open(port)] == []
        assert find_supervisor(scene.state_dir) is None
        assert bystander.poll() is None


@pytest.mark.parametrize("delay_s", [0.0, 0.15, 0.25, 0.35, 1.0], ids=lambda value: f"after-{value}s")
def test_foreground_engine_ends_by_itself_when_its_supervisor_is_killed(tmp_path, delay_s):
    """Closing the terminal the hard way never leaves an engine eating memory."""
    scene = Scene(tmp_path / "state", f"lifeline-{os.getpid()}-{delay_s}", "foreground")
    time.sleep(delay_s)
    scene.supervisor.kill()
    scene.supervisor.wait()
    wait_until(lambda: not scene.ours(), within_s=5, what="end of the engine")
    scene.output.close()


def test_detached_engine_outlives_its_supervisor_and_is_adopted(tmp_path):
    """After a kill -9 of a detached supervisor the next one goes on with the same engine."""
    first = Scene(tmp_path / "state", f"adopt-{os.getpid()}", "detached")
    out = tmp_path / "state.out"
    wait_until(lambda: "ready" in out.read_text(), within_s=15, what="first start")
    (engine,) = first.victims("engine")
    first.supervisor.kill()
    first.supervisor.wait()
    assert engine in first.ours()
    assert find_supervisor(first.state_dir) is None
    second = Scene(tmp_path / "state", first.token, "detached")
    wait_until(lambda: out.read_text().count("ready") == 2, within_s=15, what="adoption")
    assert f"adopted as process {engine}" in out.read_text()
    assert second.victims("engine") == [engine]
    second.down()
    assert second.supervisor.returncode == 0
    assert second.ours() == []
    first.output.close()


def test_supervisor_restarts_an_engine_that_was_killed(tmp_path):
    """A killed engine is back, answering, without anybody's help."""
    scene = Scene(tmp_path / "state", f"restart-{os.getpid()}", "foreground")
    out = tmp_path / "state.out"
    wait_until(lambda: "ready" in out.read_text(), within_s=15, what="first start")
    for num_ready, role in ((2, "engine"), (3, "guard")):
        assert scene.strike(role, random.Random(0))
        wait_until(lambda n=num_ready: out.read_text().count("ready") == n, within_s=15, what="restart")
    scene.down()
    assert scene.supervisor.returncode == 0
    assert scene.ours() == []
