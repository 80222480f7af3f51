"""Rounds of kill -9 on anything of ours at any moment: the next `up` always chats, nothing stays."""

import os
import random
import time

import psutil
import pytest
from processes_seen import is_port_open
from trimtab_program import Program, chat, read_ready

pytestmark = [pytest.mark.engine, pytest.mark.slow, pytest.mark.timeout(900)]

ROUNDS = int(os.environ.get("TRIMTAB_KILL_ROUNDS", "20"))
SEED = int(os.environ.get("TRIMTAB_KILL_SEED", "20261130"))


@pytest.fixture
def program(tmp_path):
    program = Program(tmp_path)
    yield program
    program.close()


def kill_one(program, rng, *, within_s):
    """After a random while, SIGKILL a random own process, if one is there; gives its command."""
    time.sleep(rng.uniform(0, within_s))
    processes = program.processes()
    if not processes:
        return "nothing"
    victim = rng.choice(sorted(processes, key=lambda item: item.pid))
    try:
        command = " ".join(victim.cmdline()[1:4])
        victim.kill()
    except psutil.NoSuchProcess:
        return "nothing"
    return command


# In parts, for the workers of a parallel run.
@pytest.mark.parametrize("part", [1, 2])
@pytest.mark.parametrize("mode", ["foreground", "detached"])
def test_up_kill_up_chat_down(program, mode, part):
    """Every round ends with an answered chat, then with no process and no port."""
    rng = random.Random(f"{SEED}-{mode}-{part}")
    share = max(1, ROUNDS // (2 if mode == "foreground" else 4))
    for number in range(share):
        first = program.up() if mode == "foreground" else program.run("up", "-d", "--port", "0")
        killed = kill_one(program, rng, within_s=2.5 if mode == "foreground" else 0.3)
        if mode == "foreground":
            # A run that survived the kill is asked to go; one that was killed is reaped by our wait.
            program.run("down", "--timeout", "10")
            first.communicate(timeout=30)

        if mode == "foreground":
            endpoint = read_ready(program.up())["endpoint"]
        else:
            again = program.run("up", "-d", "--port", "0")
            assert again.returncode == 0, f"round {number}: after killing {killed}: {again.stderr}"
            endpoint = program.run_json("status")["endpoint"]
        assert endpoint, f"round {number}: nothing serves after killing {killed}"
        assert chat(endpoint, max_tokens=4), f"round {number}: no answer after killing {killed}"

        assert program.run("down").returncode == 0
        program.wait_empty()
        port = int(endpoint.removesuffix("/v1").rsplit(":", 1)[1])
        assert not is_port_open(port), f"round {number}: port {port} is still open after killing {killed}"
