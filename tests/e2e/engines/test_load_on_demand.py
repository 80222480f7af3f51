"""Models that do not fit together, on the real llama.cpp: swapped under load, after failures and kills."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import threading
import time
from contextlib import suppress

import pytest
from engine_witness import EngineWitness, models_with_engines
from gguf_files import embedded_gguf
from mixed_clients import MixedClients, ask_once, count_loads, fewest_loads, mixed_orders
from trimtab_program import Program, read_ready

# A start takes two seconds, or many times that on a machine that does other work.
pytestmark = [pytest.mark.engine, pytest.mark.timeout(400)]

# Room for one of the two, not for both. One thread each: on a busy machine two wait for each other.
STACK = """
ram: 360MiB
swap: {min_residence_s: 20}
gateway: {port: 0, limits: {max_wait_s: 300}}
models:
  a:
    checkpoint: a.gguf
    context: 1024
    concurrency: 2
    engine_args: {cache_ram_mib: 0, n_threads: 1, n_threads_batch: 1}
  b:
    checkpoint: b.gguf
    context: 1024
    concurrency: 2
    engine_args: {cache_ram_mib: 0, n_threads: 1, n_threads_batch: 1}
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


@pytest.mark.slow
@pytest.mark.timeout(1200)
def test_200_mixed_requests_of_8_clients_are_answered_with_few_swaps(program):
    """All answered in time, hardly more loads than the best order needs, never both at once."""
    orders = mixed_orders("ab", num_clients=8, num_requests=200, seed=9)
    endpoint = program.run_json("up", "stack.yaml", "-d")["endpoint"]
    witness = EngineWitness(program, "ab")
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
    assert str(program.root) not in clients.asked[0].text
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


def test_a_model_that_is_away_comes_and_goes_by_its_name(program):
    """No engine is touched then, and yet what is served has changed: that is said, also before it is done."""
    program.run_json("up", "stack.yaml", "-d")
    (loaded,) = running(program)
    away = "b" if loaded == "a" else "a"

    gone = program.run("down", away)
    dry = program.run("up", "stack.yaml", "-d", "--dry-run")
    back = program.run("up", "stack.yaml", "-d")
    same = program.run("up", "stack.yaml", "-d")

    assert f"{away} is no longer served: it was not loaded\n1 changed" in gone.stdout
    assert f"{away} is served now: loaded when a request wants it" in dry.stdout
    assert f"{away} is served now: loaded when a request wants it\n1 changed" in back.stdout
    assert "was already serving" in same.stdout
    assert running(program) == {loaded}


def test_the_live_table_shows_what_is_loaded_how_fast_and_who_waits(program):
    """Speed of an answer while it comes, who waits for the other model, and what its load took before."""
    endpoint = program.run_json("up", "stack.yaml", "-d")["endpoint"]
    assert [ask_once(endpoint, name).status for name in "ba"] == [200, 200]
    is_over = threading.Event()

    def keep_asking() -> None:
        while not is_over.is_set():
            ask_once(endpoint, "a", max_tokens=100, is_stream=True)

    asker = threading.Thread(target=keep_asking)
    asker.start()
    waiter = threading.Thread(target=ask_once, args=(endpoint, "b"))
    waiter.start()
    try:
        frames = read_frames(program, seconds=9)
    finally:
        is_over.set()
        asker.join()
        waiter.join()

    rows = [line.split("  ") for line in frames.splitlines() if line.startswith(("a ", "b "))]
    cells = [[cell.strip() for cell in row if cell.strip()] for row in rows]
    busy = [row for row in cells if row[0] == "a" and row[1] == "ready" and row[2] not in ("-", "0.0")]
    assert busy, frames
    assert any(row[3] != "-" and row[4] != "-" and row[5] == "1" for row in busy), frames
    assert all(row[8] == "210.0 MiB" and row[9].endswith("MiB") for row in busy), frames
    assert any(row[7].endswith("%") for row in busy), frames
    assert any(row[0] == "b" and row[1].startswith("waited for, a load takes about") for row in cells), frames


def read_frames(program: Program, *, seconds: float) -> str:
    """What ``status --watch`` prints in that time."""
    watching = subprocess.Popen(
        [sys.executable, "-m", "trimtab", "status", "--watch"],
        env=program.environment(),
        stdout=subprocess.PIPE,
        text=True,
    )
    time.sleep(seconds)
    watching.send_signal(signal.SIGINT)
    shown, _ = watching.communicate(timeout=30)
    assert watching.returncode == 0
    return shown


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
    assert len(models_with_engines(program, "ab")) == 1
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
