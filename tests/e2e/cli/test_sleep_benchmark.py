"""The measurement for GPU hosts, over fake engines: what it writes, and that it leaves nothing."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import psutil
import pytest
from sleeping_stack import make_sleeping_stack

ROOT = Path(__file__).parents[3]

pytestmark = pytest.mark.slow


def test_both_phases_say_what_each_swap_was_and_what_it_freed(tmp_path):
    """Sleeps and wakes in the one, stops and starts in the other; every request answered in both."""
    environment = os.environ | make_sleeping_stack(tmp_path)
    model = str(tmp_path / "llama")
    words = ("--requests", "16", "--clients", "2", "--residence-s", "0.5", "--seconds", "200")
    program = str(ROOT / "benchmarks" / "sleep" / "run.py")
    done = subprocess.run(
        [sys.executable, program, str(tmp_path / "out.json"), model, model, *words],
        env=environment, capture_output=True, text=True, check=False, timeout=240,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr

    with_sleep, without = json.loads((tmp_path / "out.json").read_text())["phases"]
    for phase in (with_sleep, without):
        assert phase["num_answered"] == phase["num_asked"] == 16
        assert phase["refused"] == []
    kinds = [{swap["kind"] for swap in phase["swaps"]} for phase in (with_sleep, without)]
    assert kinds == [{"sleep", "wake", "start"}, {"stop", "start"}]
    slept = next(swap for swap in with_sleep["swaps"] if swap["kind"] == "sleep")
    name, mib = slept["model"], 1 << 20
    assert (slept["before"][name]["card_bytes"], slept["after"][name]["card_bytes"]) == (
        20_000 * mib,
        1_000 * mib,
    )
    assert slept["after"][name]["rss_bytes"] > 0
    left = [process.pid for process in psutil.process_iter() if str(tmp_path) in " ".join(cmdline(process))]
    assert left == []


def cmdline(process: psutil.Process) -> list[str]:
    try:
        return process.cmdline()
    except psutil.Error:
        return []
