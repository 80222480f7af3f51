"""Pure. Measured over predicted speed of one start, and what later plans of the same model make of it."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from statistics import fmean, median
from typing import Final

from trimtab.core.stack import SettingValue
from trimtab.planner.calibration import CalibrationKey
from trimtab.planner.latency import SpeedCalibration
from trimtab.planner.speed_ratios import SpeedRatio

__all__ = ["MeasuredPoint", "SpeedRecord", "find_speed_calibration", "summarise_points"]

# Settings that decide how fast a token is; the rest of a key (batches, limits) is in the model's formulas.
_OF_SPEED: Final = frozenset(
    {
        "tensor_parallel_size",
        "pipeline_parallel_size",
        "enable_expert_parallel",
        "kv_cache_dtype",
        "enforce_eager",
        "compilation_config",
        "quantization",
        "dtype",
    }
)
# A model that is off by more than this was not measured: the card was shared, or is another one.
_MOST_OFF: Final = 5.0
_CALIBRATED: Final = "calibrated by trimtab try on this machine"


@dataclass(frozen=True, slots=True, kw_only=True)
class MeasuredPoint:
    """One load's means in milliseconds as the uncalibrated model says and as measured; None: not measured."""

    concurrency: int
    input_tokens: int
    predicted_ttft_ms: float
    predicted_tpot_ms: float
    ttft_ms: float | None
    tpot_ms: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class SpeedRecord:
    """What one start's loads took over what the uncalibrated model says, at ``at_s`` seconds since 1970."""

    key: CalibrationKey
    at_s: float
    ttft: tuple[SpeedRatio, ...]
    tpot: tuple[SpeedRatio, ...]


def summarise_points(
    points: Iterable[MeasuredPoint], key: CalibrationKey, *, at_s: float
) -> SpeedRecord | None:
    """The record of a start's loads; None where too little, or something impossible, was measured."""
    found = tuple(points)
    ttft = _ratios((point, point.ttft_ms, point.predicted_ttft_ms) for point in found)
    tpot = _ratios((point, point.tpot_ms, point.predicted_tpot_ms) for point in found)
    idle = [item.ratio for item in ttft if item.concurrency == 1]
    if not idle or not tpot or not all(map(_is_possible, (median(idle), median(t.ratio for t in tpot)))):
        return None
    return SpeedRecord(
        key=key,
        at_s=at_s,
        ttft=tuple(item for item in ttft if _is_possible(item.ratio)),
        tpot=tuple(item for item in tpot if _is_possible(item.ratio)),
    )


def _ratios(
    loads: Iterable[tuple[MeasuredPoint, float | None, float]],
) -> tuple[SpeedRatio, ...]:
    """One per load, the mean where a load was measured twice."""
    found: dict[tuple[int, int], list[float]] = {}
    for point, measured_ms, predicted_ms in loads:
        if measured_ms and predicted_ms:
            where = point.concurrency, point.input_tokens
            found.setdefault(where, []).append(measured_ms / predicted_ms)
    return tuple(
        SpeedRatio(concurrency=users, input_tokens=tokens, ratio=fmean(ratios))
        for (users, tokens), ratios in found.items()
    )


def _is_possible(ratio: float) -> bool:
    return 1 / _MOST_OFF <= ratio <= _MOST_OFF


def find_speed_calibration(records: Iterable[SpeedRecord], key: CalibrationKey) -> SpeedCalibration | None:
    """The newest measurement of the same model on the same card, version and speed settings."""
    alike = [record for record in records if _is_alike(record.key, key)]
    if not alike:
        return None
    newest = max(alike, key=lambda record: record.at_s)
    return SpeedCalibration(ttft=newest.ttft, tpot=newest.tpot, source=_CALIBRATED)


def _is_alike(one: CalibrationKey, other: CalibrationKey) -> bool:
    return (one.card, one.engine_version, one.checkpoint, _speed_part(one)) == (
        other.card,
        other.engine_version,
        other.checkpoint,
        _speed_part(other),
    )


def _speed_part(key: CalibrationKey) -> tuple[tuple[str, SettingValue], ...]:
    return tuple((name, value) for name, value in key.settings if name in _OF_SPEED)
