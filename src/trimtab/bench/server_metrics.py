"""Pure. What an engine says about its own queue, out of Prometheus text; None wherever it doesn't."""

from __future__ import annotations

import re

__all__ = ["QueueTotals", "decode_queue_totals", "mean_queue_ms"]

QueueTotals = tuple[float, float]
"""Seconds waited over all requests so far, and the number of requests."""

_NAMES = ("vllm:request_queue_time_seconds", "sglang:queue_time_seconds", "tgi_request_queue_duration")
_LINE = re.compile(r"^([\w:]+)(?:\{[^}]*\})?\s+([-+.\deE]+)", re.MULTILINE)


def decode_queue_totals(text: str) -> QueueTotals | None:
    """Sum and count of the queue-time histogram, added up over models and engines; None without one."""
    sums: dict[str, float] = {}
    for name, value in _LINE.findall(text):
        for base in _NAMES:
            if name in (f"{base}_sum", f"{base}_count"):
                try:
                    sums[name] = sums.get(name, 0.0) + float(value)
                except ValueError:
                    continue
    for base in _NAMES:
        if f"{base}_sum" in sums and f"{base}_count" in sums:
            return sums[f"{base}_sum"], sums[f"{base}_count"]
    return None


def mean_queue_ms(before: QueueTotals | None, after: QueueTotals | None) -> float | None:
    """Mean wait of the requests between two readings; None where there are none."""
    if before is None or after is None or after[1] <= before[1]:
        return None
    return (after[0] - before[0]) / (after[1] - before[1]) * 1e3
