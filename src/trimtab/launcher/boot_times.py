"""I/O. How long engines took to start here before: what a waiting person is told to expect."""

from __future__ import annotations

import json
import math
from contextlib import suppress
from pathlib import Path
from typing import Any, Final

from trimtab.core.state import ReplicaSpec

__all__ = ["BootTimes"]

_FILE: Final = "boot-times.json"
# More models than one machine serves in its life; the oldest entries go first.
_MOST_ENTRIES: Final = 200


class BootTimes:
    """Seconds from start to first answer, and of wakes, per settings.

    A file that is damaged or foreign counts as none. Without a folder nothing is remembered.
    """

    def __init__(self, state_dir: Path | None = None) -> None:
        self._path = None if state_dir is None else state_dir / _FILE

    def expect_s(self, spec: ReplicaSpec) -> float | None:
        """What the latest start with these settings took, else the latest of this model; None for neither."""
        known = self._read()
        exact = known.get(_key(spec))
        if exact is not None:
            return exact
        of_model = [seconds for key, seconds in known.items() if key.startswith(_prefix(spec))]
        return of_model[-1] if of_model else None

    def expect_wake_s(self, spec: ReplicaSpec) -> float | None:
        """What the latest wake of an engine with these settings took."""
        return self._read().get(_wake_key(spec))

    def note(self, spec: ReplicaSpec, seconds: float) -> None:
        """Remember a start that has answered; what cannot be written is not remembered."""
        self._note(_key(spec), round(seconds, 1))

    def note_wake(self, spec: ReplicaSpec, seconds: float) -> None:
        """The same for a wake."""
        self._note(_wake_key(spec), round(seconds, 2))

    def _note(self, key: str, seconds: float) -> None:
        if self._path is None:
            return
        known = self._read()
        known.pop(key, None)
        known[key] = seconds
        kept = dict(list(known.items())[-_MOST_ENTRIES:])
        temporary = self._path.with_suffix(".new")
        with suppress(OSError):
            temporary.write_text(json.dumps(kept), encoding="utf-8")
            temporary.replace(self._path)

    def _read(self) -> dict[str, float]:
        if self._path is None:
            return {}
        try:
            document: Any = json.loads(self._path.read_text(encoding="utf-8"))
        except (OSError, ValueError, RecursionError):
            return {}
        if not isinstance(document, dict):
            return {}
        return {str(key): float(value) for key, value in document.items() if _is_duration(value)}


def _is_duration(value: Any) -> bool:
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    return is_number and math.isfinite(value) and value >= 0


def _prefix(spec: ReplicaSpec) -> str:
    return f"{spec.engine}/{spec.model}/"


def _wake_key(spec: ReplicaSpec) -> str:
    return f"wake:{_key(spec)}"


def _key(spec: ReplicaSpec) -> str:
    return f"{_prefix(spec)}{spec.config_hash}"
