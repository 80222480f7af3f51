"""I/O. Runs the copy test between cards and tells what came of it, also when it hangs.

The result is of now: never kept, because a changed BIOS setting, RAM or driver changes it
(github.com/noonghunna/club-3090 issue 873).
"""

from __future__ import annotations

import contextlib
import json
import subprocess
import sys
from collections.abc import Sequence
from itertools import permutations
from typing import Any, Final

from trimtab.core.gpu_facts import PeerCopies, PeerCopy
from trimtab.core.hardware import Gpu

__all__ = ["probe_peer_copies"]

# Contexts on eight cards take some seconds; a copy of 16 MiB takes milliseconds.
_PATIENCE_S: Final = 60.0
_PROGRAM: Final = (sys.executable, "-m", "trimtab.probes.gpu_peer_copy")
_OUTCOMES: Final = frozenset({"right", "wrong", "refused", "failed"})


def probe_peer_copies(
    gpus: Sequence[Gpu], *, program: Sequence[str] = _PROGRAM, timeout_s: float = _PATIENCE_S
) -> PeerCopies:
    """What copying between every two of ``gpus`` showed; cards need a uuid.

    Takes some hundred MB of each card while it runs, so only cards that no engine uses are to be
    given. A pair that hangs is "hung", and those after it are not known. Never raises for what a
    machine lacks.
    """
    cards = [gpu for gpu in gpus if gpu.uuid]
    if len(cards) < 2:
        return PeerCopies()
    argv = [*program, *(gpu.uuid for gpu in cards)]
    try:
        process = subprocess.Popen(argv, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
    except OSError as error:
        return PeerCopies(error=f"the copy test cannot be run: {(error.strerror or str(error)).lower()}")
    try:
        output, _ = process.communicate(timeout=timeout_s)
        hung = False
    except subprocess.TimeoutExpired:
        output, hung = _end(process), True
    return _decode(output, cards, hung=hung, code=process.returncode)


def _end(process: subprocess.Popen[str]) -> str:
    """What it had said; one that waits inside the driver cannot be killed and is left behind."""
    process.kill()
    with contextlib.suppress(subprocess.TimeoutExpired):
        return process.communicate(timeout=5)[0]
    return ""


def _decode(output: str, cards: Sequence[Gpu], *, hung: bool, code: int | None) -> PeerCopies:
    copies: list[PeerCopy] = []
    error = ""
    # In the program's order.
    numbers = list(permutations(range(len(cards)), 2))
    asked = [(cards[source].index, cards[target].index) for source, target in numbers]
    for line in output.splitlines():
        entry = _decode_line(line)
        if "error" in entry:
            error = f"CUDA cannot be started: {entry['error']}"
            continue
        number, outcome = (entry.get("source"), entry.get("target")), entry.get("outcome")
        if number in numbers and outcome in _OUTCOMES:
            source, target = asked[numbers.index(number)]
            detail = str(entry.get("detail", ""))
            copies.append(PeerCopy(source=source, target=target, outcome=outcome, detail=detail))
    if hung and len(copies) < len(asked):
        source, target = asked[len(copies)]
        copies.append(PeerCopy(source=source, target=target, outcome="hung"))
    elif not hung and not error and code != 0:
        error = f"the copy test ended with {code}"
    return PeerCopies(copies=tuple(copies), error=error)


def _decode_line(line: str) -> dict[str, Any]:
    try:
        entry = json.loads(line)
    except ValueError:
        return {}
    return entry if isinstance(entry, dict) else {}
