"""Pure. The search for the largest load that still meets the objectives: double, then halve the gap."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

__all__ = ["Trial", "best_load", "next_load"]

_CLOSE_RATIO = 1.1
"""The search ends when the smallest load that failed is within 10 % of the largest that held."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Trial:
    """One load that was tried, and whether enough requests met the objectives."""

    load: float
    is_met: bool


def best_load(trials: Sequence[Trial]) -> float | None:
    """The largest load that held below the smallest that failed; None when none held."""
    failed = min((trial.load for trial in trials if not trial.is_met), default=float("inf"))
    return max((trial.load for trial in trials if trial.is_met and trial.load < failed), default=None)


def next_load(trials: Sequence[Trial], *, first: float, most: float, is_whole: bool) -> float | None:
    """The load to try next between 0 and ``most``; None when the search is over.

    ``is_whole`` keeps to whole numbers (concurrency). A load is never tried twice.
    """
    if not trials:
        return min(first, most)
    failed = min((trial.load for trial in trials if not trial.is_met), default=None)
    held = best_load(trials)
    if failed is None:
        largest = max(trial.load for trial in trials)
        return None if largest >= most else min(2.0 * largest, most)
    low = held if held is not None else 0.0
    if is_whole:
        middle = float(int((low + failed) / 2.0))
        is_over = failed - low <= max(1.0, low * (_CLOSE_RATIO - 1.0)) or middle < 1
    else:
        middle = (low + failed) / 2.0
        is_over = failed <= max(low, first / 1024.0) * _CLOSE_RATIO
    tried = {trial.load for trial in trials}
    return None if is_over or middle in tried else middle
