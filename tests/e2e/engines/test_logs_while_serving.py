"""Logs are kept small while trimtab serves."""

from __future__ import annotations

import time

import pytest
from trimtab_program import Program

from trimtab.launcher.state_folder import StateFolder

pytestmark = pytest.mark.engine


def test_a_log_that_has_grown_is_cut_while_the_stack_serves(tmp_path):
    """Nobody has to stop a stack that fills a disk; what was written is still there."""
    program = Program(tmp_path)
    log = StateFolder(program.state).logs / "old-0.log"
    log.parent.mkdir(parents=True)
    with log.open("wb") as file:
        file.truncate(65 * 2**20)
    try:
        program.run_json("up", "-d", "--port", "0", "--context", "512")
        deadline_s = time.monotonic() + 30
        parts = []
        while not parts and time.monotonic() < deadline_s:
            parts = list(log.parent.glob("old-0.log.1"))
            time.sleep(0.1)
    finally:
        program.run("down")

    assert parts
    assert log.stat().st_size < 2**20
