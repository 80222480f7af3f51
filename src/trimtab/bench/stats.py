"""Pure. Percentiles and means with their intervals; no assumption about how latencies are spread.

Percentiles take order statistics with binomial bounds, means the normal approximation. Both treat
requests as independent; requests of one run share its luck, so two runs differ by more.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import fmean, stdev

__all__ = ["Interval", "Spread", "describe_spread", "mean_interval", "percentile", "percentile_interval"]

_Z_95 = 1.959964
"""Half-width of 95 % of a normal distribution, in standard deviations."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Interval:
    """95 % of the time the true value lies between; both ends are None where data cannot tell."""

    low: float | None
    high: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Spread:
    """A figure over requests: mean, deviation, percentiles by number, and their intervals."""

    count: int
    mean: float
    std: float
    mean_interval: Interval
    percentiles: tuple[tuple[float, float], ...]
    intervals: tuple[tuple[float, Interval], ...]

    def at(self, wanted: float) -> float:
        """The value of one percentile asked for."""
        return dict(self.percentiles)[wanted]


def percentile(ordered: Sequence[float], wanted: float) -> float:
    """The ``wanted`` percentile of sorted values, linear between neighbours (numpy's default)."""
    position = (len(ordered) - 1) * wanted / 100.0
    below = math.floor(position)
    above = min(below + 1, len(ordered) - 1)
    return ordered[below] + (ordered[above] - ordered[below]) * (position - below)


def percentile_interval(ordered: Sequence[float], wanted: float) -> Interval:
    """Values whose ranks bound the percentile's rank; an end beyond the data is None."""
    count, share = len(ordered), wanted / 100.0
    half = _Z_95 * math.sqrt(count * share * (1.0 - share))
    low, high = math.floor(count * share - half), math.ceil(count * share + half)
    return Interval(low=ordered[low - 1] if low >= 1 else None, high=ordered[high] if high < count else None)


def mean_interval(values: Sequence[float]) -> Interval:
    """Mean +- 1.96 standard errors; unknown below two values."""
    if len(values) < 2:
        return Interval(low=None, high=None)
    middle, half = fmean(values), _Z_95 * stdev(values) / math.sqrt(len(values))
    return Interval(low=middle - half, high=middle + half)


def describe_spread(values: Sequence[float], wanted: Sequence[float]) -> Spread | None:
    """The spread of values at the wanted percentiles; None without values."""
    if not values:
        return None
    ordered = sorted(values)
    return Spread(
        count=len(ordered),
        mean=fmean(ordered),
        std=stdev(ordered) if len(ordered) > 1 else 0.0,
        mean_interval=mean_interval(ordered),
        percentiles=tuple((each, percentile(ordered, each)) for each in wanted),
        intervals=tuple((each, percentile_interval(ordered, each)) for each in wanted),
    )
