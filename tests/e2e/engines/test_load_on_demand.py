"""Models that do not fit together, on the real llama.cpp: swapped under load, after failures and kills."""

from __future__ import annotations

import os
import shutil
import signal
import threading
import time
from contextlib import suppress

import psutil
import pytest
from gguf_files import embedded_gguf
from mixed_clients import MixedClients, ask_once, count_loads, fewest_loads, mixed_orders
from trimtab_program import Program, read_ready

pytestmark = pytest.mark.engine

# Room for one of the two, not for both.
STACK = """
ram: 360MiB
swap: {min_residence_s: 20}
gateway: {port: 0, limits: {max_wait_s: 300}}
models:
  a: {checkpoint: a.gguf, context: 1024, concurrency: 2, engine_args: {cache_ram_mib: 0}}
  b: {checkpoint: b.gguf, context: 1024, concurrency: 2, engine_args: {cache_ram_mib: 0}}
"""


@pytest.fixture
def program(tmp_path):
    """The program in folders of its own, with one model under two names; nothing of it runs afterwards."""
    for name in "ab":
        shutil.copy(embedded_gguf(), tmp_path / f"{name}.gguf")
    (tmp_path / "stack.yaml").write_text(STACK)
    made = Program(tmp_path)
    yield made
    made.close()


def running(program: Program) -> set[str]:
    return {item["model"] for item in program.run_json("status")["replicas"] if item["running"]}


def wait_until(condition, timeout_s: float = 90) -> None:
    deadline_s = time.monotonic() + timeout_s
    while not condition():
        assert time.monotonic() < deadline_s
        time.sleep(0.05)


class Witness(threading.Thread):
    """Looks again and again which engines live; ``most`` is how many did at once."""

    def __init__(self, program: Program) -> None:
        super().__init__(daemon=True)
        self._program = program
        self._is_over = threading.Event()
        self.most = 0

    def run(self) -> None:
        while not self._is_over.wait(0.5):
            engines = [item for item in self._program.processes() if is_engine(item)]
            self.most = max(self.most, len(engines))

    def finish(self) -> None:
        self._is_over.set()
        self.join()


def is_engine(process: psutil.Process) -> bool:
    try:
        return any("llama_cpp_host" in word for word in process.cmdline()) and "guard" not in str(
            process.cmdline()[:4]
        )
    except psutil.Error:
        return False


@pytest.mark.slow
@pytest.mark.timeout(1200)
def test_200_mixed_requests_of_8_clients_are_answered_with_few_swaps(program):
    """All answered in time, hardly more loads than the best order needs, never both at once."""
    orders = mixed_orders("ab", num_clients=8, num_requests=200, seed=9)
    endpoint = program.run_json("up", "stack.yaml", "-d")["endpoint"]
    witness = Witness(program)
    witness.start()
    clients = MixedClients(endpoint, orders)
    began_s = time.monotonic()
    clients.run()
    took_s = time.monotonic() - began_s
    witness.finish()

    loads, best = count_loads(endpoint), fewest_loads(orders, first="a")
    slowest_s = max(one.seconds for one in clients.asked)
    print(f"200 requests in {took_s:.0f} s, {loads} loads (best order {best}), slowest {slowest_s:.1f} s")
    assert [one for one in clients.asked if one.status != 200] == []
    assert len(clients.asked) == 200
    assert loads <= 1.5 * best
    assert slowest_s < 300
    assert witness.most == 1


def test_a_file_that_breaks_is_told_once_and_the_other_model_comes_back(program):
    """What waits for it gets one error with its reason; the other serves on as if nothing had been."""
    endpoint = program.run_json("up", "stack.yaml", "-d")["endpoint"]
    whole = (program.root / "b.gguf").read_bytes()
    (program.root / "b.gguf").write_bytes(whole[: len(whole) // 2])

    clients = MixedClients(endpoint, [["b"]] * 3)
    clients.run()
    assert {one.status for one in clients.asked} == {503}
    assert all('"model_load_failed"' in one.text for one in clients.asked)
    again = ask_once(endpoint, "b")
    assert (again.status, again.seconds < 5) == (503, True)
    wait_until(lambda: running(program) == {"a"})
    assert ask_once(endpoint, "a").status == 200
    status = program.run("status").stdout
    assert "the model file is cut off" in status, status


def test_one_that_is_waited_for_is_taken_out_and_says_so(program):
    """``down b`` while requests wait for it: they end, the other serves on."""
    endpoint = program.run_json("up", "stack.yaml", "-d")["endpoint"]
    long = threading.Thread(target=ask_once, args=(endpoint, "a"), kwargs={"max_tokens": 300})
    long.start()
    time.sleep(0.5)
    waiting = MixedClients(endpoint, [["b"]])
    waiter = threading.Thread(target=waiting.run)
    waiter.start()
    time.sleep(0.5)

    done = program.run("down", "b")

    waiter.join()
    long.join()
    assert done.returncode == 0, done.stderr
    assert waiting.asked[0].status in (404, 200)  # 200 where the swap was faster than the command
    assert ask_once(endpoint, "a").status == 200
    assert ask_once(endpoint, "b").status == 404


@pytest.mark.parametrize("delay_s", [0.0, 1.0])
def test_a_kill_inside_a_swap_leaves_what_the_next_up_takes_over(program, delay_s):
    """Whatever was half done: the next one has one engine, adopted or started, and no orphan stays."""
    started = program.run_json("up", "stack.yaml", "-d")
    supervisor = program.run_json("status")["supervisor"]["pid"]
    asker = threading.Thread(target=_ask_in_vain, args=(started["endpoint"], "b"))
    asker.start()
    time.sleep(0.3 + delay_s)
    os.kill(supervisor, signal.SIGKILL)
    asker.join()

    endpoint = program.run_json("up", "stack.yaml", "-d")["endpoint"]

    assert len(running(program)) == 1
    assert {ask_once(endpoint, name).status for name in "ab"} == {200}
    assert len([item for item in program.processes() if is_engine(item)]) == 1
    program.run("down")
    program.wait_empty()


def test_a_kill_inside_a_swap_in_the_foreground_leaves_nothing(program):
    """Engines end with the terminal's trimtab."""
    process = program.up("stack.yaml")
    endpoint = read_ready(process)["endpoint"]
    asker = threading.Thread(target=_ask_in_vain, args=(endpoint, "b"))
    asker.start()
    time.sleep(0.8)
    process.send_signal(signal.SIGKILL)
    asker.join()
    program.wait_empty()


def _ask_in_vain(endpoint: str, model: str) -> None:
    with suppress(OSError):
        ask_once(endpoint, model)
