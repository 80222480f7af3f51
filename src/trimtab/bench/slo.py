"""Pure. Service-level objectives on requests, and which requests met them."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from trimtab.bench.record import RequestRecord
from trimtab.errors import StackFileError

__all__ = ["SLO_NAMES", "Slo", "decode_slos", "share_meeting"]

SLO_NAMES = ("ttft", "ttfo", "tpot", "e2el")


@dataclass(frozen=True, slots=True, kw_only=True)
class Slo:
    """``name`` (one of SLO_NAMES) must be at most ``limit_ms`` for a request to count."""

    name: str
    limit_ms: float

    def is_met(self, record: RequestRecord) -> bool:
        """A failed request meets nothing; a figure that doesn't exist (one token: no TPOT) doesn't count."""
        if not record.is_success:
            return False
        value: float | None = getattr(record, f"{self.name}_ms")
        return value is None or value <= self.limit_ms


def decode_slos(texts: Iterable[str]) -> tuple[Slo, ...]:
    """``ttft=500`` and the like, milliseconds; StackFileError says what is wrong."""
    found = []
    for text in texts:
        name, sign, value = text.partition("=")
        try:
            limit = float(value)
        except ValueError:
            limit = math.nan
        if not sign or name not in SLO_NAMES or not (limit > 0 and math.isfinite(limit)):
            raise StackFileError(
                f"--slo {text!r} isn't one of {', '.join(SLO_NAMES)} = milliseconds above 0",
                hint="write it like --slo ttft=500 --slo tpot=50",
            )
        found.append(Slo(name=name, limit_ms=limit))
    return tuple(found)


def share_meeting(records: Sequence[RequestRecord], slos: Sequence[Slo]) -> float:
    """Share of requests that met every objective; 0 without requests."""
    if not records:
        return 0.0
    return sum(1 for record in records if all(slo.is_met(record) for slo in slos)) / len(records)
