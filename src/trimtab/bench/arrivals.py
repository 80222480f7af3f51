"""Pure. When requests of an open loop are sent: fixed gaps or a Poisson process, from given chance."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from typing import Literal, TypeAlias

from trimtab.errors import StackFileError

__all__ = ["ArrivalKind", "iterate_arrivals_s"]

ArrivalKind: TypeAlias = Literal["poisson", "constant"]


def iterate_arrivals_s(rate: float, kind: ArrivalKind, draw: Callable[[], float]) -> Iterator[float]:
    """Seconds after the start of each request, without end, the first at 0.

    ``rate`` is requests per second on average; ``draw`` gives uniform numbers in [0, 1) and is the
    only source of chance, so a seeded one repeats the run. StackFileError: a rate that isn't above 0.
    """
    if not (rate > 0 and math.isfinite(rate)):
        raise StackFileError(f"rate is {rate:g} requests per second, expected above 0")
    return _walk(rate, kind, draw)


def _walk(rate: float, kind: ArrivalKind, draw: Callable[[], float]) -> Iterator[float]:
    number, at_s = 0, 0.0
    while True:
        yield at_s
        number += 1
        # Multiples of the gap, not sums: a long constant run must not drift.
        at_s = number / rate if kind == "constant" else at_s - math.log(1.0 - draw()) / rate
