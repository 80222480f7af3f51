"""Looks again and again which models of a program have engines that live."""

from __future__ import annotations

import threading
from collections.abc import Sequence

import psutil
from trimtab_program import Program

_LOOK_S = 0.5


class EngineWitness(threading.Thread):
    """``most``: the largest number of models with an engine at one look; ``num_looks``: how often."""

    def __init__(self, program: Program, models: Sequence[str]) -> None:
        super().__init__(daemon=True)
        self._program, self._models = program, tuple(models)
        self._is_over = threading.Event()
        self.most = 0
        self.num_looks = 0

    def run(self) -> None:
        while not self._is_over.wait(_LOOK_S):
            self.most = max(self.most, len(models_with_engines(self._program, self._models)))
            self.num_looks += 1

    def finish(self) -> None:
        """Look no more."""
        self._is_over.set()
        self.join()


def models_with_engines(program: Program, models: Sequence[str]) -> set[str]:
    """Those whose engine lives: its command names what it serves."""
    found: set[str] = set()
    for process in program.processes():
        try:
            words = process.cmdline()
        except psutil.Error:
            continue
        if "--alias" in words or "--served-model-name" in words:
            found.update(name for name in models if name in words)
    return found
