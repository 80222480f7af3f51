"""Pure. Who waits for a busy engine, and who is next.

Higher priorities first, fair among the keys of one priority, people before background calls.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final, TypeAlias

from trimtab.core.stack import GatewaySettings

__all__ = ["AdmissionSettings", "FairQueue", "Waiting"]

# A background call is sent before the user's own message (Open WebUI 0.12.4): up to 0.11 s on an idle machine
# (64 of 64 chats), 0.26 s on one that also draws the page on its two cores.
_HOLD_S: Final = 0.5
# After so long a background call waits like everybody else, so that a busy day does not starve it.
_MAX_YIELD_S: Final = 30.0
# A lane that nothing of was let through for so long counts as one priority higher, and so on.
_AGEING_S: Final = 30.0
# One that nothing of was let through for longer goes on by how long, however many new ones come.
_LATE_S: Final = 60.0
# The slot time that a lane had less or more than a new one counts so far only: lateness makes up for more.
_DEBT_BOUNDS_S: Final = (-60.0, 300.0)
# Lanes with nothing inside are forgotten above this many, as far as fairness no longer needs them.
_MAX_LANES: Final = 1024
# What counts of each new service time: about the last ten decide.
_SMOOTHING: Final = 0.1
_RETRY_BOUNDS_S: Final = (1, 120)


@dataclass(frozen=True, slots=True, kw_only=True)
class AdmissionSettings:
    """How requests wait while a model works on as many as it can.

    At most ``waiting_per_slot`` wait for each of its slots, and no fewer than ``min_waiting`` in all;
    ``max_wait_s`` bounds the wait. ``keep_alive_s``: a stream that is silent gets a comment at least so
    often, 0 for none. ``is_on`` False sends everything on at once, as far as the engine will.
    """

    is_on: bool = True
    waiting_per_slot: int = 16
    min_waiting: int = 1024
    max_wait_s: float = 600.0
    keep_alive_s: float = 15.0

    @classmethod
    def of_stack(cls, settings: GatewaySettings) -> AdmissionSettings:
        """What a stack file says."""
        if settings.max_waiting is None:
            return cls(max_wait_s=settings.max_wait_s, keep_alive_s=settings.keep_alive_s)
        return cls(
            waiting_per_slot=0,
            min_waiting=settings.max_waiting,
            max_wait_s=settings.max_wait_s,
            keep_alive_s=settings.keep_alive_s,
        )

    def max_waiting(self, num_slots: int) -> int:
        """How many may wait for that many slots."""
        return max(self.min_waiting, self.waiting_per_slot * num_slots)


class Waiting:
    """One request that waits until ``deadline_s``; ``reply`` is whatever its owner wants back with it.

    ``num_tokens`` is what it is expected to hold of an engine's cache, ``priority`` its key's.
    """

    __slots__ = ("deadline_s", "is_background", "lane", "num_tokens", "priority", "reply", "since_s")

    def __init__(  # noqa: PLR0913 - what one waits with
        self,
        lane: object,
        *,
        is_background: bool,
        since_s: float,
        deadline_s: float = math.inf,
        num_tokens: float = 0.0,
        priority: int = 0,
        reply: Any = None,
    ) -> None:
        self.lane = lane
        self.num_tokens = num_tokens
        self.priority = priority
        self.is_background = is_background
        self.since_s = since_s
        self.deadline_s = deadline_s
        self.reply = reply


class _Lane:
    """One key's requests. ``served_s`` is the slot time it had, in the queue's own reckoning.

    ``begun_s`` is when the last of those that had to wait was let through.
    """

    __slots__ = ("background", "begun_s", "last_turn", "num_running", "people", "priority", "served_s")

    def __init__(self, served_s: float) -> None:
        self.people: deque[Waiting] = deque()
        self.background: deque[Waiting] = deque()
        self.num_running = 0
        self.served_s = served_s
        self.last_turn = 0
        self.priority = 0
        self.begun_s = -math.inf

    @property
    def num_waiting(self) -> int:
        return len(self.people) + len(self.background)

    @property
    def is_active(self) -> bool:
        return bool(self.num_running or self.people or self.background)

    def waited_s(self, first: Waiting, now_s: float) -> float:
        """How long its first has waited, as everybody does, without anything let through."""
        since_s = first.since_s + _MAX_YIELD_S if first.is_background else first.since_s
        return now_s - max(since_s, self.begun_s)


_LineOf: TypeAlias = Callable[[_Lane, float], deque[Waiting] | None]


class FairQueue:
    """The slots of one model and those who wait for them.

    Guaranteed: never more than ``num_slots`` begun by ``next``; a free slot goes to the highest priority,
    of those to the lane with the fewest running, then to the one that had the least slot time while it
    wanted some, then in turn; inside a lane first come, first served. A lane that is passed over rises by
    one priority every ``_AGEING_S``, up to the highest that waits, and after ``_LATE_S`` it is ahead of
    others there by what it has waited more, so that none starves, however many new lanes come. A background
    call waits until nobody else does, leaves one slot free where there are several, and is held for a
    moment for the message that it belongs to. A full queue loses the newest of its longest lane, so that
    a flood pushes out only itself.

    Whoever is next also needs room for its tokens: those inside hold at most ``token_limit``, above which
    only ``num_engines`` run. Nobody is let by meanwhile, or one with much to read would never come.
    """

    def __init__(self, *, num_slots: int, max_waiting: int) -> None:
        self.num_slots = num_slots
        self.max_waiting = max_waiting
        self.num_running = 0
        self.num_waiting = 0
        self.num_tokens = 0.0
        # The most of them at once, since whoever reads it last set it back.
        self.most_tokens = 0.0
        self.token_limit = math.inf
        self.num_engines = 1
        self._lanes: dict[object, _Lane] = {}
        # What a lane that comes anew is taken to have had: no credit for time it did not ask for.
        self._floor_s = 0.0
        self._turn = 0
        self._mean_s = 0.0

    @property
    def mean_s(self) -> float:
        """How long the latest requests were inside, 0 where none has ended."""
        return self._mean_s

    @property
    def waits_for_tokens(self) -> bool:
        """Whether somebody waits though slots are free."""
        return self.num_waiting > 0 and self.num_running < self.num_slots

    def is_roomy(self, num_tokens: float) -> bool:
        """Whether anybody may go on at once, whoever it is."""
        if self.num_waiting or self.num_running + 1 >= self.num_slots:
            return False
        # As has_token_room, which most requests need not call.
        return self.num_tokens + num_tokens <= self.token_limit or self.num_running < self.num_engines

    def has_token_room(self, num_tokens: float) -> bool:
        """Whether so many tokens more may be inside."""
        return self.num_tokens + num_tokens <= self.token_limit or self.num_running < self.num_engines

    def try_begin(self, lane: object, *, is_background: bool, num_tokens: float = 0.0) -> bool:
        """Whether a request may go on at once, which then counts as running."""
        if self.num_waiting or self.num_running + is_background >= self.num_slots:
            return False
        if not self.has_token_room(num_tokens):
            return False
        self.begin(lane, num_tokens=num_tokens)
        return True

    def begin(self, lane: object, *, num_tokens: float = 0.0) -> None:
        """One more is running, without a question."""
        self._begin(self._lane(lane), num_tokens)

    def end(self, lane: object, *, held_s: float, num_tokens: float = 0.0) -> None:
        """A request that was running is over, after so long."""
        one = self._lanes[lane]
        one.num_running -= 1
        one.served_s += held_s
        self.num_running -= 1
        # Exactly nothing when nobody is inside, however the sums were rounded.
        self.num_tokens = max(0.0, self.num_tokens - num_tokens) if self.num_running else 0.0
        if held_s:
            self._mean_s += (held_s - self._mean_s) * (_SMOOTHING if self._mean_s else 1.0)
        if len(self._lanes) > _MAX_LANES:
            self._forget()

    def add(self, waiting: Waiting) -> Waiting | None:
        """Let one more wait; gives the one that must leave for it, perhaps itself, None for nobody."""
        lane = self._lane(waiting.lane)
        lane.priority = waiting.priority
        (lane.background if waiting.is_background else lane.people).append(waiting)
        self.num_waiting += 1
        if self.num_waiting <= self.max_waiting:
            return None
        # Of lanes of one length, the newcomer's.
        longest = max(self._lanes.values(), key=lambda one: (one.num_waiting, one is lane))
        out = (longest.background or longest.people).pop()
        self.num_waiting -= 1
        return out

    def remove(self, waiting: Waiting) -> None:
        """One does not wait any longer; nothing happens where it has left the queue already."""
        lane = self._lanes.get(waiting.lane)
        line = () if lane is None else lane.background if waiting.is_background else lane.people
        if isinstance(line, deque) and waiting in line:
            line.remove(waiting)
            self.num_waiting -= 1

    def waiting(self) -> tuple[Waiting, ...]:
        """All that wait, in no order that matters."""
        return tuple(one for lane in self._lanes.values() for one in (*lane.people, *lane.background))

    def clear(self) -> tuple[Waiting, ...]:
        """Let nobody wait any longer; gives those that did."""
        out = self.waiting()
        for lane in self._lanes.values():
            lane.people.clear()
            lane.background.clear()
        self.num_waiting = 0
        return out

    def next(self, now_s: float) -> Waiting | None:
        """The one whose turn it is, which then counts as running; None while nobody may go on."""
        num_free = self.num_slots - self.num_running
        if num_free < 1 or not self.num_waiting:
            return None
        found = self._first(_people_of, now_s)
        if found is None and num_free > (self.num_slots > 1):
            found = self._first(_background_of, now_s)
        if found is None:
            return None
        lane, line = found
        if not self.has_token_room(line[0].num_tokens):
            return None
        waiting = line.popleft()
        self.num_waiting -= 1
        low_s, high_s = _DEBT_BOUNDS_S
        lane.served_s = min(self._floor_s + high_s, max(self._floor_s + low_s, lane.served_s))
        self._floor_s = max(self._floor_s, lane.served_s)
        lane.begun_s = now_s
        self._begin(lane, waiting.num_tokens)
        return waiting

    def held_for_s(self, now_s: float) -> float:
        """How long until a background call may go on that may not yet; infinite where none is held."""
        waited = [now_s - lane.background[0].since_s for lane in self._lanes.values() if lane.background]
        left = (
            (_HOLD_S if one_s < _HOLD_S else _MAX_YIELD_S) - one_s for one_s in waited if one_s < _MAX_YIELD_S
        )
        return min(left, default=math.inf)

    def retry_after_s(self) -> int:
        """Whole seconds until those who wait now will be through, as far as can be told."""
        low, high = _RETRY_BOUNDS_S
        whole_s = self._mean_s * (self.num_waiting + 1) / max(1, self.num_slots)
        return min(high, max(low, math.ceil(whole_s)))

    def _first(self, line_of: _LineOf, now_s: float) -> tuple[_Lane, deque[Waiting]] | None:
        candidates = [(lane, line) for lane in self._lanes.values() if (line := line_of(lane, now_s))]
        if not candidates:
            return None
        top = max(lane.priority for lane, _ in candidates)
        floor_s = self._floor_s
        low_s, high_s = _DEBT_BOUNDS_S

        def by_right(found: tuple[_Lane, deque[Waiting]]) -> tuple[int, int, float, int]:
            lane, line = found
            waited_s = lane.waited_s(line[0], now_s)
            level = lane.priority
            if level < top and waited_s > 0:
                level = min(top, level + int(waited_s / _AGEING_S))
            debt_s = lane.served_s - floor_s
            if not low_s <= debt_s <= high_s:
                debt_s = low_s if debt_s < low_s else high_s
            if waited_s > _LATE_S:
                return -level, 0, debt_s + _LATE_S - waited_s, lane.last_turn
            return -level, lane.num_running, debt_s, lane.last_turn

        return min(candidates, key=by_right)

    def _begin(self, lane: _Lane, num_tokens: float) -> None:
        self._turn += 1
        lane.last_turn = self._turn
        lane.num_running += 1
        self.num_running += 1
        self.num_tokens += num_tokens
        self.most_tokens = max(self.most_tokens, self.num_tokens)

    def _lane(self, name: object) -> _Lane:
        lane = self._lanes.get(name)
        if lane is None:
            lane = self._lanes[name] = _Lane(self._floor_s)
        elif not lane.is_active and lane.served_s < self._floor_s:
            lane.served_s = self._floor_s
        return lane

    def _forget(self) -> None:
        """Drop idle lanes that a newcomer would not differ from, and more where they are too many."""
        idle = [name for name, lane in self._lanes.items() if not lane.is_active]
        idle.sort(key=lambda name: self._lanes[name].served_s)
        for name in idle[: len(self._lanes) - _MAX_LANES // 2]:
            del self._lanes[name]


def _people_of(lane: _Lane, now_s: float) -> deque[Waiting] | None:
    """The line of a lane whose first has waited longest as people do."""
    if not lane.background or now_s - lane.background[0].since_s < _MAX_YIELD_S:
        return lane.people
    due_s = lane.background[0].since_s + _MAX_YIELD_S
    return lane.people if lane.people and lane.people[0].since_s < due_s else lane.background


def _background_of(lane: _Lane, now_s: float) -> deque[Waiting] | None:
    """The line of a lane's background calls, once the first has been held for its moment."""
    return lane.background if lane.background and now_s - lane.background[0].since_s >= _HOLD_S else None
