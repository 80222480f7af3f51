"""Pure. Measured over predicted speed of one start, and what later plans of the same model make of it."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from statistics import median
from typing import Final

from trimtab.core.stack import SettingValue
from trimtab.planner.calibration import CalibrationKey
from trimtab.planner.latency import SpeedCalibration

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
    """One load's means in milliseconds as the uncalibrated model says and as measured; None: not measured.

    ``is_idle``: a single user.
    """

    predicted_ttft_ms: float
    predicted_tpot_ms: float
    ttft_ms: float | None
    tpot_ms: float | None
    is_idle: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class SpeedRecord:
    """One start's corrections of the uncalibrated model; ``at_s`` is seconds since the epoch.

    First token = predicted x ``ttft_factor`` + ``ttft_extra_ms``; token = predicted x ``tpot_factor``.
    """

    key: CalibrationKey
    at_s: float
    ttft_factor: float
    ttft_extra_ms: float
    tpot_factor: float
    num_points: int


def summarise_points(
    points: Iterable[MeasuredPoint], key: CalibrationKey, *, at_s: float
) -> SpeedRecord | None:
    """The record of a start's loads; None where too little, or something impossible, was measured.

    The first token is fitted to single users: queues are the model's own business.
    """
    found = tuple(points)
    idle = [(point.predicted_ttft_ms, point.ttft_ms) for point in found if point.is_idle and point.ttft_ms]
    ratios = [point.tpot_ms / point.predicted_tpot_ms for point in found if point.tpot_ms]
    if not idle or not ratios:
        return None
    extra_ms, factor = _fit_line(idle)
    tpot_factor = median(ratios)
    if not all(1 / _MOST_OFF <= each <= _MOST_OFF for each in (factor, tpot_factor)):
        return None
    return SpeedRecord(
        key=key,
        at_s=at_s,
        ttft_factor=factor,
        ttft_extra_ms=extra_ms,
        tpot_factor=tpot_factor,
        num_points=len(found),
    )


def _fit_line(pairs: Sequence[tuple[float, float]]) -> tuple[float, float]:
    """(on top, factor) with the least relative squares; nothing on top where that would be negative."""
    ones = [1 / got for _, got in pairs]
    said = [predicted / got for predicted, got in pairs]
    square_1, square_2 = sum(x * x for x in ones), sum(x * x for x in said)
    cross = sum(x * y for x, y in zip(ones, said, strict=True))
    determinant = square_1 * square_2 - cross * cross
    if len({predicted for predicted, _ in pairs}) > 1 and determinant > 0:
        extra = (sum(ones) * square_2 - sum(said) * cross) / determinant
        factor = (sum(said) * square_1 - sum(ones) * cross) / determinant
        if extra >= 0 and factor > 0:
            return extra, factor
    return 0.0, median(got / predicted for predicted, got in pairs)


def find_speed_calibration(records: Iterable[SpeedRecord], key: CalibrationKey) -> SpeedCalibration | None:
    """The newest measurement of the same model on the same card, version and speed settings."""
    alike = [record for record in records if _is_alike(record.key, key)]
    if not alike:
        return None
    newest = max(alike, key=lambda record: record.at_s)
    return SpeedCalibration(
        ttft_factor=newest.ttft_factor,
        ttft_extra_ms=newest.ttft_extra_ms,
        tpot_factor=newest.tpot_factor,
        source=_CALIBRATED,
    )


def _is_alike(one: CalibrationKey, other: CalibrationKey) -> bool:
    return (one.card, one.engine_version, one.checkpoint, _speed_part(one)) == (
        other.card,
        other.engine_version,
        other.checkpoint,
        _speed_part(other),
    )


def _speed_part(key: CalibrationKey) -> tuple[tuple[str, SettingValue], ...]:
    return tuple((name, value) for name, value in key.settings if name in _OF_SPEED)
