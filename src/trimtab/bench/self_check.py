"""Pure. Whether the client measured the server or itself."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from trimtab.bench.stats import percentile

__all__ = ["ClientLoad", "SelfCheck", "judge_client"]

_MOST_SEND_LAG_MS = 20.0
_MOST_LOOP_LAG_MS = 10.0
_MOST_CPU_SHARE = 0.9
"""Limits of an honest client. Lags are the 99th percentile: a late send moves the load, a late loop
every stamp; above 90 % of its core the client's own queue is part of what it measures."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ClientLoad:
    """What the client cost: lags per request that was answered and per tick in ms, CPU and wall seconds."""

    send_lags_ms: Sequence[float]
    loop_lags_ms: Sequence[float]
    cpu_s: float
    wall_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class SelfCheck:
    """``is_valid`` False means that the figures say more about the client than about the server."""

    is_valid: bool
    reasons: tuple[str, ...]
    p99_send_lag_ms: float
    p99_loop_lag_ms: float
    max_loop_lag_ms: float
    cpu_share: float


def judge_client(load: ClientLoad) -> SelfCheck:
    """The check of one run; reasons name the figure and its limit, none where nothing was answered."""
    send, loop = sorted(load.send_lags_ms) or [0.0], sorted(load.loop_lags_ms) or [0.0]
    late_send, late_loop = percentile(send, 99.0), percentile(loop, 99.0)
    share = load.cpu_s / load.wall_s if load.wall_s > 0 else 0.0
    checks = (
        (late_send, _MOST_SEND_LAG_MS, "requests left {0:.1f} ms late (99th percentile), above {1:g} ms"),
        (
            late_loop,
            _MOST_LOOP_LAG_MS,
            "the event loop ran {0:.1f} ms late (99th percentile), above {1:g} ms",
        ),
        (share * 100, _MOST_CPU_SHARE * 100, "the client used {0:.0f} % of its core, above {1:g} %"),
    )
    reasons = tuple(words.format(value, limit) for value, limit, words in checks if value > limit)
    if not load.send_lags_ms:
        reasons = ()
    return SelfCheck(
        is_valid=not reasons,
        reasons=reasons,
        p99_send_lag_ms=late_send,
        p99_loop_lag_ms=late_loop,
        max_loop_lag_ms=loop[-1],
        cpu_share=share,
    )
