"""Pure. What a plan is expected to serve: lengths and users, and how fast it will."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, TypeAlias

__all__ = ["Interval", "SpeedPlan", "SpeedSource", "Workload"]

SpeedSource: TypeAlias = Literal["roofline", "calibrated", "measured"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Workload:
    """A closed loop: ``concurrency`` users over all replicas, each asking anew when it is answered.

    ISL and OSL in the field's words: tokens of a prompt, tokens of an answer.
    """

    input_tokens: int = 1024
    output_tokens: int = 512
    concurrency: int = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Interval:
    """A mean over requests, and the band that four of five measured rows of this kind lay in."""

    mean: float
    low: float
    high: float


@dataclass(frozen=True, slots=True, kw_only=True)
class SpeedPlan:
    """How fast the plan will be under ``workload``; times in milliseconds, rates in tokens per second.

    ``output_tokens_per_s`` is all users' together, ``output_tokens_per_s_per_user`` one user's once
    tokens flow. ``error_ratio`` is the half-width of the TPOT band; ``basis`` says which measurements
    stand behind it.
    """

    workload: Workload
    ttft_ms: Interval
    tpot_ms: Interval
    output_tokens_per_s: Interval
    output_tokens_per_s_per_user: Interval
    source: SpeedSource
    error_ratio: float
    basis: str
