"""Pure. Whether an engine that has answered before still works: looks in, a verdict in words out.

A sign of life is a counter of the engine that moved, a generated token, or an answer of the loop that
computes. /health alone is none: vLLM answers 200 while its engine core is stopped. How long silence may
last depends on what the processes do meanwhile:

- one is stopped by a signal: ``stopped_s``
- none uses the CPU: ``quiet_s``, or twice the longest pause between two steps seen so far
- they compute (a long step, a compilation, or a hang that spins): ``busy_s``, or ten times that pause

/health that is refused or answers anything but 200 counts by itself: three times in a row are enough.

An engine that is known to be without work is asked for a token now and then and left alone in between:
every question is a line in its log, and a token wakes its cards.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Final

from trimtab.engines.progress import EngineProgress

__all__ = [
    "Health",
    "LivenessLimits",
    "LivenessState",
    "Look",
    "choose_pause_s",
    "follow",
    "judge",
    "wants_generation",
]

_QUIET_STEPS: Final = 2
_BUSY_STEPS: Final = 10
# Below this share of one core a process tree waits. vLLM 0.32.0 on a CPU with its engine core held by a
# debugger stayed below it while it was asked at this rate (benchmarks/reliability, 2026-11-30).
_QUIET_CORES: Final = 0.06
# A share is only worth something over a while.
_SHARE_OVER_S: Final = 2.0


class Health(StrEnum):
    """ok: 200 · wrong: refused, or another answer · late: none in time · unknown: we could not ask."""

    OK = "ok"
    WRONG = "wrong"
    LATE = "late"
    UNKNOWN = "unknown"


@dataclass(frozen=True, slots=True, kw_only=True)
class LivenessLimits:
    """Seconds of silence; ``still_s`` after which a real generation is asked for, ``max_wrong`` of /health.

    ``idle_still_s`` is ``still_s`` of an engine without work. ``pause_s`` between two looks means that the
    observer itself was held up, and nothing is concluded.
    """

    still_s: float
    idle_still_s: float
    stopped_s: float
    quiet_s: float
    busy_s: float
    max_wrong: int
    pause_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Look:
    """What one look found; ``cpu_s`` and the rest are None where the processes were not looked at.

    ``has_generated``: a generation that was asked for came back, or was refused in so many words.
    ``cpu_before`` is (moment, CPU seconds) from before anything was asked, which may have taken a while.
    """

    at_s: float
    health: Health
    detail: str = ""
    progress: EngineProgress | None = None
    has_generated: bool = False
    cpu_s: float | None = None
    cpu_before: tuple[float, float] | None = None
    stopped_pids: tuple[int, ...] = ()
    num_in_kernel: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class LivenessState:
    """What is known between two looks; times are of one clock that never goes back.

    ``longest_step_s`` is the longest pause that ended well while requests ran. ``cpu_from`` is where the
    present silence's CPU time is counted from: (moment, seconds). ``is_idle``: its counters say that no
    request is there; never for an engine whose answer is a sign of life by itself.
    """

    alive_at_s: float
    looked_at_s: float
    longest_step_s: float = 0.0
    num_wrong: int = 0
    marks: tuple[tuple[str, float], ...] = ()
    has_work: bool = False
    is_idle: bool = False
    cpu_from: tuple[float, float] | None = None
    cores: float | None = None


def follow(state: LivenessState, look: Look, limits: LivenessLimits) -> LivenessState:
    """The state after one more look."""
    progress = look.progress
    marks = state.marks if progress is None else progress.marks
    has_moved = bool(state.marks) and marks != state.marks
    is_life = look.has_generated or has_moved or (progress is not None and progress.answer_is_life)
    was_held_up = look.at_s - state.looked_at_s > limits.pause_s
    step_s = state.longest_step_s
    if is_life and state.has_work and not was_held_up:
        step_s = max(step_s, look.at_s - state.alive_at_s)
    is_forgiven = is_life or was_held_up or look.health is Health.UNKNOWN
    cpu_from, cores = (None, None) if is_forgiven else _count_cpu(state, look)
    return replace(
        state,
        alive_at_s=look.at_s if is_forgiven else state.alive_at_s,
        looked_at_s=look.at_s,
        longest_step_s=step_s,
        num_wrong=state.num_wrong + 1 if look.health is Health.WRONG else 0,
        marks=marks,
        has_work=state.has_work if progress is None else progress.num_running > 0,
        is_idle=state.is_idle if progress is None else _is_idle(progress),
        cpu_from=cpu_from,
        cores=cores,
    )


def _is_idle(progress: EngineProgress) -> bool:
    return not progress.answer_is_life and progress.num_running + progress.num_waiting == 0


def _count_cpu(state: LivenessState, look: Look) -> tuple[tuple[float, float] | None, float | None]:
    """Where CPU time is counted from, and how many cores were in use since."""
    if look.cpu_s is None:
        return state.cpu_from, state.cores
    from_s, from_cpu_s = state.cpu_from or look.cpu_before or (look.at_s, look.cpu_s)
    if look.at_s - from_s < _SHARE_OVER_S:
        return (from_s, from_cpu_s), state.cores
    used_s = look.cpu_s - from_cpu_s
    # Less than before: a descendant has ended, which is no rest.
    cores = 1.0 if used_s < 0 else used_s / (look.at_s - from_s)
    return (look.at_s, look.cpu_s), cores


def wants_generation(state: LivenessState, limits: LivenessLimits, *, now_s: float) -> bool:
    """Whether a real generation is due: nothing else has shown life for a while."""
    return now_s - state.alive_at_s >= _still_s(state, limits)


def choose_pause_s(state: LivenessState, limits: LivenessLimits, *, now_s: float, interval_s: float) -> float:
    """How long to wait before the next look: ``interval_s``, half of it in silence, longer without work."""
    left_s = state.alive_at_s + _still_s(state, limits) - now_s
    if left_s <= 0:
        return interval_s / 2
    return left_s if state.is_idle else interval_s


def _still_s(state: LivenessState, limits: LivenessLimits) -> float:
    return limits.idle_still_s if state.is_idle else limits.still_s


def judge(state: LivenessState, look: Look, limits: LivenessLimits) -> str:
    """Why the engine is taken for dead; empty while it is not."""
    if state.num_wrong >= limits.max_wrong:
        return f"/health {state.num_wrong} times in a row: {look.detail}"
    silent_s = look.at_s - state.alive_at_s
    if look.stopped_pids and silent_s >= limits.stopped_s:
        pids = ", ".join(str(pid) for pid in look.stopped_pids)
        return f"no progress for {silent_s:.0f} s: a signal stopped process {pids}"
    is_quiet = state.cores is not None and state.cores < _QUIET_CORES and not look.num_in_kernel
    quiet_s = max(limits.quiet_s, min(_QUIET_STEPS * state.longest_step_s, limits.busy_s))
    if is_quiet and silent_s >= quiet_s:
        health = "" if look.health is Health.OK else f", {look.detail}"
        return f"no token and no progress for {silent_s:.0f} s while its processes rest{health}"
    busy_s = max(limits.busy_s, _BUSY_STEPS * state.longest_step_s)
    if silent_s >= busy_s:
        return f"no token and no progress for {silent_s:.0f} s although its processes are busy"
    return ""
