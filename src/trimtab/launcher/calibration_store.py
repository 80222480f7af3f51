"""I/O. What starts on this machine measured, memory and speed, kept in the state folder: one JSON a line.

Lines that are damaged, foreign or of another schema are ignored, with one warning; they are dropped when the
file is next made shorter.
"""

from __future__ import annotations

import json
import logging
import math
import os
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Any, Final, Generic, TypeVar

from trimtab.core.stack import SettingValue
from trimtab.planner.calibration import CalibrationKey, CalibrationRecord, MeasuredTerms
from trimtab.planner.speed_calibration import SpeedRecord
from trimtab.planner.speed_ratios import SpeedRatio

__all__ = ["CalibrationStore", "SpeedStore"]

_LOG = logging.getLogger(__name__)
_FILE: Final = "calibration.jsonl"
_SPEED_FILE: Final = "speed.jsonl"
_SCHEMA: Final = 1
_MOST_RECORDS: Final = 500
# A record takes below a kilobyte; what is far larger is no file of ours.
_MOST_BYTES: Final = 4 * 1024 * 1024


_Record = TypeVar("_Record", bound=CalibrationRecord | SpeedRecord)


class _RecordFile(Generic[_Record]):
    """The records of one file; what cannot be written is not kept, and nothing is raised for it."""

    def __init__(self, path: Path, decode: Callable[[Any], _Record]) -> None:
        self._path = path
        self._decode = decode

    def read(self) -> tuple[_Record, ...]:
        """Every record that can be understood, oldest first."""
        try:
            if self._path.stat().st_size > _MOST_BYTES:
                _LOG.warning("%s is ignored: it is larger than trimtab makes it", self._path)
                return ()
            lines = self._path.read_text(encoding="utf-8", errors="replace").splitlines()
        except FileNotFoundError:
            return ()
        except OSError as error:
            _LOG.warning("%s is ignored: %s", self._path, error)
            return ()
        found = [self._decode_line(line) for line in lines if line.strip()]
        num_bad = sum(record is None for record in found)
        if num_bad:
            _LOG.warning(
                "%s: %d of %d lines are no measurements and are ignored", self._path, num_bad, len(found)
            )
        return tuple(record for record in found if record is not None)

    def add(self, record: _Record) -> None:
        """Keep one more; the oldest go when there are too many."""
        line = json.dumps({"schema": _SCHEMA, **asdict(record)}) + "\n"
        try:
            self._path.parent.mkdir(parents=True, exist_ok=True)
            with self._path.open("a", encoding="utf-8") as file:
                file.write(line)
            self._shorten()
        except OSError as error:
            _LOG.warning("what was measured is not kept: %s", error)

    def _decode_line(self, line: str) -> _Record | None:
        """The record of one line; None for anything else."""
        try:
            document: Any = json.loads(line)
            if not isinstance(document, dict) or document.get("schema") != _SCHEMA:
                return None
            return self._decode(document)
        except (KeyError, TypeError, ValueError, OverflowError, RecursionError):
            return None

    def _shorten(self) -> None:
        records = self._path.read_bytes().count(b"\n")
        if records <= _MOST_RECORDS:
            return
        kept = self.read()[-_MOST_RECORDS // 2 :]
        temporary = self._path.with_suffix(".new")
        text = "".join(json.dumps({"schema": _SCHEMA, **asdict(record)}) + "\n" for record in kept)
        temporary.write_text(text, encoding="utf-8")
        os.replace(temporary, self._path)  # noqa: PTH105 - atomic, and says so


class CalibrationStore(_RecordFile[CalibrationRecord]):
    """What starts measured of memory, in one state folder."""

    def __init__(self, state_dir: Path) -> None:
        super().__init__(state_dir / _FILE, _decode_memory)


class SpeedStore(_RecordFile[SpeedRecord]):
    """How fast starts were, in one state folder."""

    def __init__(self, state_dir: Path) -> None:
        super().__init__(state_dir / _SPEED_FILE, _decode_speed)


def _decode_memory(document: Any) -> CalibrationRecord:
    return CalibrationRecord(
        key=_key(document["key"]),
        replica_id=_text(document["replica_id"]),
        at_s=_moment(document["at_s"]),
        predicted=_terms(document["predicted"]),
        measured=_terms(document["measured"]),
    )


def _decode_speed(document: Any) -> SpeedRecord:
    return SpeedRecord(
        key=_key(document["key"]),
        at_s=_moment(document["at_s"]),
        ttft=tuple(_ratio(item) for item in document["ttft"]),
        tpot=tuple(_ratio(item) for item in document["tpot"]),
    )


def _ratio(document: Any) -> SpeedRatio:
    return SpeedRatio(
        concurrency=max(1, _whole(document["concurrency"])),
        input_tokens=max(1, _whole(document["input_tokens"])),
        ratio=_factor(document["ratio"]),
    )


def _key(key: Any) -> CalibrationKey:
    return CalibrationKey(
        card=_text(key["card"]),
        engine_version=_text(key["engine_version"]),
        checkpoint=_text(key["checkpoint"]),
        settings=tuple((_text(name), _setting(value)) for name, value in key["settings"]),
        num_seqs=_whole(key["num_seqs"]),
    )


def _terms(document: Any) -> MeasuredTerms:
    tokens = document["kv_cache_tokens"]
    return MeasuredTerms(
        weights_bytes=_whole(document["weights_bytes"]),
        activation_bytes=_whole(document["activation_bytes"]),
        cuda_graph_bytes=_whole(document["cuda_graph_bytes"]),
        kv_cache_bytes=_whole(document["kv_cache_bytes"]),
        kv_cache_tokens=None if tokens is None else _whole(tokens),
    )


def _text(value: Any) -> str:
    if not isinstance(value, str):
        raise TypeError("no text")
    return value


def _whole(value: Any) -> int:
    """Bytes or tokens; no card holds a petabyte."""
    if not isinstance(value, int) or isinstance(value, bool) or not 0 <= value < 1 << 50:
        raise ValueError("no amount")
    return value


def _moment(value: Any) -> float:
    if not isinstance(value, int | float) or isinstance(value, bool) or not math.isfinite(value):
        raise ValueError("no moment")
    return float(value)


def _factor(value: Any) -> float:
    """Measured over predicted; a speed model is never off by more than a hundred times."""
    found = _moment(value)
    if not 0.01 <= found <= 100:
        raise ValueError("no factor")
    return found


def _setting(value: Any) -> SettingValue:
    if not isinstance(value, str | int | float | bool):
        raise TypeError("no setting")
    return value
