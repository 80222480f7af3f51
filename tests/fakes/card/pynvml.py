"""Stands in front of pynvml on PYTHONPATH: one H200 whose processes are those that files of $FAKE_CARD name.

Each file holds "pid MiB", as the fake engine with --card-file writes it; one of a process that is gone counts
for nothing.
"""

from __future__ import annotations

import importlib
import os
import sys
from pathlib import Path
from typing import Any

_HERE = Path(__file__).parent
_own = sys.modules.pop(__name__)
_path, sys.path = sys.path, [folder for folder in sys.path if Path(folder).resolve() != _HERE]
try:
    importlib.import_module("pynvml")
    sys.path.insert(0, str(_HERE.parent))
    _fakes = importlib.import_module("fake_nvml")
finally:
    sys.path = _path
    sys.modules[__name__] = _own


def _held() -> list[tuple[int, int, str]]:
    entries = [file.read_text().split() for file in Path(os.environ["FAKE_CARD"]).glob("card-*")]
    return [(int(pid), int(mib), "vllm") for pid, mib in entries if Path(f"/proc/{pid}").exists()]


class _Card(_fakes.FakeNvml):
    """The machine as its files are now."""

    @property
    def machine(self) -> dict[str, Any]:
        machine = _fakes.MACHINES["8xh200"]
        total, reserved, _ = machine["cards"][0]["memory_mib"]
        held = _held()
        card = machine["cards"][0] | {
            "memory_mib": [total, reserved, sum(mib for _, mib, _ in held)],
            "compute": held,
        }
        return machine | {"cards": [card]}

    @machine.setter
    def machine(self, value: dict[str, Any]) -> None:
        del value


_card = _Card("8xh200")


def __getattr__(name: str) -> Any:
    return getattr(_card, name)
