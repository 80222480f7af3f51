"""Pure. Two results side by side: differences with intervals, and whether they are real."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from trimtab.errors import StackFileError

__all__ = ["Difference", "compare_runs", "match_runs"]

_Z_95 = 1.959964
_FIGURES = (("ttft_ms", False), ("tpot_ms", False), ("itl_ms", False), ("e2el_ms", False))
_RATES = (("output_throughput", True), ("request_throughput", True))
_SMALL_RATIO = 0.03
"""Runs of one server differ by about this much from start to start; below it nothing is called real."""
_LARGE_RATIO = 0.1
"""A throughput is measured once a run, without an interval: only this much is called real."""

Run = Mapping[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class Difference:
    """One figure of two runs. ``change_ratio`` is B over A less 1, ``low`` and ``high`` its 95 % ends.

    The ends are None for throughputs, which one run measures once. ``words`` says it plainly.
    """

    figure: str
    a: float
    b: float
    change_ratio: float
    low: float | None
    high: float | None
    is_real: bool
    words: str


def match_runs(a: Mapping[str, Any], b: Mapping[str, Any]) -> list[tuple[str, Run, Run]]:
    """Runs of equal load in both results; StackFileError when there are none."""
    loads = {_load_of(run): run for run in b["runs"]}
    found = [(_load_of(run), run, loads[_load_of(run)]) for run in a["runs"] if _load_of(run) in loads]
    if not found:
        has = ", ".join(_load_of(run) for run in a["runs"])
        raise StackFileError(f"no load is in both results: A has {has}; B has {', '.join(loads)}")
    return found


def _load_of(run: Run) -> str:
    if run.get("max_concurrency") is not None:
        return f"concurrency {run['max_concurrency']}"
    return f"rate {run['request_rate']}"


def compare_runs(a: Run, b: Run) -> tuple[Difference, ...]:
    """Differences of means with their intervals, then of throughputs."""
    found = [_compare_mean(name, a, b) for name, _ in _FIGURES]
    rates = [_compare_rate(name, a, b) for name, _ in _RATES]
    return tuple(each for each in (*found, *rates) if each is not None)


def _compare_mean(name: str, a: Run, b: Run) -> Difference | None:
    """Welch's interval on the difference of two means, as a share of A's."""
    one, other = _moments(a, name), _moments(b, name)
    if one is None or other is None or one[0] <= 0:
        return None
    error = math.sqrt(one[1] ** 2 / one[2] + other[1] ** 2 / other[2])
    change, half = other[0] / one[0] - 1.0, _Z_95 * error / one[0]
    return _judge(f"mean_{name}", (one[0], other[0]), change, (change - half, change + half))


def _moments(run: Run, name: str) -> tuple[float, float, int] | None:
    """(mean, deviation, independent values). Gaps of one answer are no more than one value."""
    block = (run.get("intervals") or {}).get(name)
    mean, std = run.get(f"mean_{name}"), run.get(f"std_{name}")
    if block is None or mean is None or std is None:
        return None
    count = min(int(block["count"]), int(run.get("completed") or 0))
    return (float(mean), float(std), count) if count >= 2 else None


def _compare_rate(name: str, a: Run, b: Run) -> Difference | None:
    one, other = a.get(name), b.get(name)
    if not one or other is None:
        return None
    return _judge(name, (one, other), other / one - 1.0, None)


def _judge(
    figure: str, values: tuple[float, float], change: float, ends: tuple[float, float] | None
) -> Difference:
    low, high = ends if ends is not None else (None, None)
    if ends is None:
        is_real = abs(change) > _LARGE_RATIO
    else:
        is_real = (ends[0] > 0 or ends[1] < 0) and abs(change) > _SMALL_RATIO
    return Difference(
        figure=figure,
        a=values[0],
        b=values[1],
        change_ratio=change,
        low=low,
        high=high,
        is_real=is_real,
        words=_say(figure, change, ends, is_real=is_real),
    )


def _say(figure: str, change: float, ends: tuple[float, float] | None, *, is_real: bool) -> str:
    more = "higher" if change > 0 else "lower"
    size = f"{abs(change) * 100:.1f} %"
    if ends is None:
        seen = f"B's {figure} is {size} {more}"
        return f"{seen}, measured once each" + ("" if is_real else ": two starts may differ by as much")
    low, high = sorted(abs(end) * 100 for end in ends)
    if is_real:
        return f"B's {figure} is {size} {more} (between {low:.1f} and {high:.1f} %): the difference is real"
    if ends[0] <= 0 <= ends[1]:
        return f"{figure}: no difference can be told (B {size} {more}, within noise)"
    return f"B's {figure} is {size} {more}: steady, but no more than two starts of one server differ by"


def worst_check(runs: Sequence[Run]) -> str:
    """Why a result should not be trusted; empty when its client kept up."""
    reasons = [reason for run in runs for reason in run.get("self_check", {}).get("reasons", ())]
    return reasons[0] if reasons else ""
