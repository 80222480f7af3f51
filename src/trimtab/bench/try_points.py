"""Pure. Which loads tell most about an engine, in that order, and which of them a budget still allows."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final, Literal, TypeAlias

__all__ = ["Cut", "PointKind", "TryLimits", "TryPoint", "choose_point", "cut_rest", "list_points"]

PointKind: TypeAlias = Literal["decode", "prefill"]

_ANSWER_TOKENS: Final = 64
_SHORT_ANSWER_TOKENS: Final = 8
_USUAL_PROMPT: Final = 1024
_LENGTHS: Final = (512, 2048, 8192, 32768, 131072)
_USERS: Final = (1, 4, 16, 64, 256)
_DEPTHS: Final = (8192, 32768, 131072)


@dataclass(frozen=True, slots=True, kw_only=True)
class TryPoint:
    """One load: ``concurrency`` users, each sending ``rounds`` requests of these lengths.

    prefill: one user and a short answer, for the time to first token by length; decode: for the time per
    token by users and depth. ``is_full``: the longest prompt that the context takes.
    """

    kind: PointKind
    concurrency: int
    input_tokens: int
    output_tokens: int
    rounds: int = 2
    is_full: bool = False

    @property
    def num_requests(self) -> int:
        """Requests that count; a warm-up comes before them."""
        return self.concurrency * self.rounds

    def __str__(self) -> str:
        users = "1 user" if self.concurrency == 1 else f"{self.concurrency} users"
        return f"{users}, {self.input_tokens:,} in, {self.output_tokens:,} out"


@dataclass(frozen=True, slots=True, kw_only=True)
class TryLimits:
    """What the engine takes: tokens of a request, requests at once, tokens in its cache (None: unknown)."""

    max_model_len: int
    max_num_seqs: int
    kv_cache_tokens: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Cut:
    """A load that was not run, and why."""

    point: TryPoint
    reason: str


def list_points(limits: TryLimits) -> tuple[TryPoint, ...]:
    """Every load worth running, the most telling first; none twice, none that the engine would refuse.

    First one user, then all users, then a long prompt, then the longest; after these the gaps between.
    """
    most = max(1, limits.max_num_seqs)
    users = sorted({count for count in _USERS if count < most} | {most})
    found = [
        _decode(1, _USUAL_PROMPT, limits),
        _decode(most, _USUAL_PROMPT, limits),
        _prefill(8192, limits),
        _full(limits),
        _decode(4, _USUAL_PROMPT, limits),
        _decode(1, 32768, limits),
        _decode(most, 8192, limits),
        *(_prefill(length, limits) for length in _LENGTHS),
        *(_decode(count, _USUAL_PROMPT, limits) for count in users),
        *(_decode(1, depth, limits) for depth in _DEPTHS),
        *(_decode(count, depth, limits) for depth in _DEPTHS for count in users[1:]),
    ]
    return tuple(dict.fromkeys(point for point in found if point is not None))


def _decode(users: int, depth: int, limits: TryLimits) -> TryPoint | None:
    answer = max(2, min(_ANSWER_TOKENS, limits.max_model_len // 4))
    length = depth if depth != _USUAL_PROMPT else min(depth, limits.max_model_len - answer)
    if users > limits.max_num_seqs or length < 1:
        return None
    point = TryPoint(kind="decode", concurrency=users, input_tokens=length, output_tokens=answer)
    return point if _is_taken(point, limits) else None


def _prefill(length: int, limits: TryLimits) -> TryPoint | None:
    point = TryPoint(kind="prefill", concurrency=1, input_tokens=length, output_tokens=_SHORT_ANSWER_TOKENS)
    return point if _is_taken(point, limits) else None


def _full(limits: TryLimits) -> TryPoint | None:
    """The longest prompt, once: that it runs at all is what a plan promises."""
    length = limits.max_model_len - _SHORT_ANSWER_TOKENS
    if length < 1:
        return None
    return TryPoint(
        kind="prefill",
        concurrency=1,
        input_tokens=length,
        output_tokens=_SHORT_ANSWER_TOKENS,
        rounds=1,
        is_full=True,
    )


def _is_taken(point: TryPoint, limits: TryLimits) -> bool:
    """Within the context, and in the cache at once: beyond it requests wait, and measure the wait."""
    each = point.input_tokens + point.output_tokens
    held = limits.kv_cache_tokens
    return each <= limits.max_model_len and (held is None or point.concurrency * each <= held)


def choose_point(waiting: Iterable[tuple[TryPoint, float]], left_s: float) -> TryPoint | None:
    """The first of the waiting (with their expected seconds) that the time left allows; None when none."""
    return next((point for point, cost_s in waiting if cost_s <= left_s), None)


def cut_rest(waiting: Iterable[tuple[TryPoint, float]], left_s: float) -> tuple[Cut, ...]:
    """What is left when the budget is over, each with what it would have taken."""
    return tuple(
        Cut(
            point=point,
            reason=f"the budget: it takes about {_seconds(cost_s)}, {_seconds(max(0.0, left_s))} were left",
        )
        for point, cost_s in waiting
    )


def _seconds(value: float) -> str:
    return f"{value:.1f} s" if value < 10 else f"{value:,.0f} s"
