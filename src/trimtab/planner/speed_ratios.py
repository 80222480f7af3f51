"""Pure. Measured over predicted at the loads that were measured, carried over to loads between them."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

__all__ = ["SpeedRatio", "blend_ratios"]

# Twice the users are as far as four times the tokens: who decodes along changes more than how much is read.
_USERS_SCALE: Final = 2.0


@dataclass(frozen=True, slots=True, kw_only=True)
class SpeedRatio:
    """Measured over predicted where ``concurrency`` users had prompts of ``input_tokens``."""

    concurrency: int
    input_tokens: int
    ratio: float


def blend_ratios(ratios: Iterable[SpeedRatio], concurrency: float, input_tokens: float) -> float:
    """The ratio of a load from those of the measured ones near it; 1 where there are none.

    Inverse-distance weights (Shepard) over the logarithms of users and tokens: a measured load gets its own
    ratio back, and nothing gets one outside of what was measured.
    """
    total = weighted = 0.0
    for each in ratios:
        users = _USERS_SCALE * math.log2(max(1.0, concurrency) / each.concurrency)
        tokens = math.log2(max(1.0, input_tokens) / each.input_tokens)
        distance = users * users + tokens * tokens
        if not distance:
            return each.ratio
        total += 1.0 / distance
        weighted += math.log(each.ratio) / distance
    return math.exp(weighted / total) if total else 1.0
