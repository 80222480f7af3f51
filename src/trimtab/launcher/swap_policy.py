"""Pure. Which model is loaded and unloaded next, where not all fit at once.

A resident model that is busy is never unloaded: once its time is over and others wait it is closed, so that
its new requests wait too, and unloaded when what is inside has ended. One that rests gives way at once.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from collections.abc import Set as AbstractSet
from dataclasses import dataclass
from typing import Final, Literal, TypeAlias

from trimtab.core.plan import SwapPlan

__all__ = ["Decision", "ModelDemand", "ModelNow", "Phase", "Step", "choose_first", "choose_steps"]

# absent: nothing runs · loading · resident: loaded, or restarting after a failure · leaving: being stopped.
Phase: TypeAlias = Literal["absent", "loading", "resident", "leaving"]

# A model that has just become idle is left alone so long: whoever got an answer may send the next request.
_LINGER_S: Final = 0.25
# Who has waited so long goes first whatever the priorities.
_AGED_S: Final = 60.0
# A load must begin so long before the deadline of whoever waits for it, on top of the time that it takes.
_DEADLINE_MARGIN_S: Final = 5.0


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelDemand:
    """What the gateway has for one model; times are those of a clock that never goes back.

    ``num_waiting``, ``waiting_since_s`` and ``deadline_s`` are of people's requests, the times infinite
    where none waits; ``num_background`` are waiting calls for whose answers nobody waits. ``used_s`` is when
    its latest answer ended.
    """

    model: str
    num_running: int = 0
    num_waiting: int = 0
    num_background: int = 0
    waiting_since_s: float = math.inf
    deadline_s: float = math.inf
    used_s: float = -math.inf

    @property
    def is_idle(self) -> bool:
        """Whether no person wants anything of it, and nothing is inside."""
        return not self.num_running and not self.num_waiting


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelNow:
    """One model at one moment. ``since_s`` is when its phase began; ``load_s`` what a load took before.

    ``is_open`` tells whether its requests are let through. After a failed load it is not tried again
    before ``barred_until_s``.
    """

    demand: ModelDemand
    phase: Phase
    since_s: float = 0.0
    is_open: bool = True
    load_s: float | None = None
    barred_until_s: float = -math.inf

    @property
    def name(self) -> str:
        """The served name."""
        return self.demand.model

    @property
    def rests_since_s(self) -> float:
        """Since when nobody has used it; only where it is idle."""
        return max(self.since_s, self.demand.used_s)


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """One thing to do, with its cause in words; ``room_for`` is the model that an unload makes room for."""

    kind: Literal["load", "unload", "close", "open"]
    model: str
    cause: str
    room_for: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Decision:
    """Steps to take now, and when to look again although nothing has happened (perhaps never)."""

    steps: tuple[Step, ...] = ()
    look_again_s: float = math.inf


def choose_first(rules: SwapPlan, running: AbstractSet[str] = frozenset()) -> frozenset[str]:
    """The models to begin with: as many of those that run already as may, then as many others as fit."""
    chosen = frozenset(rules.keep_loaded)
    order = tuple(dict.fromkeys(name for names in rules.resident_sets for name in names))
    for name in sorted(order, key=lambda name: name not in running):
        if rules.fits_together(chosen | {name}):
            chosen |= {name}
    return chosen


def choose_steps(
    rules: SwapPlan, models: Iterable[ModelNow], *, restore: tuple[str, ...] = (), now_s: float
) -> Decision:
    """What to do now. ``restore`` are models that had to leave for one whose load then failed.

    Guaranteed: what is resident after the steps fits together as the rules say; only idle models are
    unloaded, and none of ``keep_loaded``; a step that needs room is taken once the room is there.
    """
    return _Chooser(rules, tuple(models), now_s).choose(restore)


class _Chooser:
    def __init__(self, rules: SwapPlan, models: tuple[ModelNow, ...], now_s: float) -> None:
        self._rules = rules
        self._models = models
        self._by_name = {model.name: model for model in models}
        self._now_s = now_s
        self._priority = dict(rules.priority)
        self._looks: list[float] = []

    def choose(self, restore: tuple[str, ...]) -> Decision:
        if any(model.phase in ("loading", "leaving") for model in self._models):
            return Decision()  # its end is told
        waiting = sorted(self._waiting(), key=self._by_right)
        steps = list(self._serve(waiting)) or list(self._serve_background())
        closing = {step.model for step in steps if step.kind == "close"}
        wanted = {victim.name for victim in self._victims(waiting[0])} if waiting else set()
        steps.extend(
            Step(kind="open", model=model.name, cause="nobody waits for its room any more")
            for model in self._models
            if not model.is_open and model.name not in wanted | closing
        )
        if not steps and not waiting:
            steps.extend(self._restore(restore) or self._unload_idle())
        return Decision(steps=tuple(steps), look_again_s=self._next_look_s())

    def _waiting(self) -> Iterator[ModelNow]:
        """Models that people want and that are not there; those that are barred are looked at later."""
        for model in self._models:
            if model.phase == "absent" and model.demand.num_waiting and self._is_allowed(model):
                yield model

    def _is_allowed(self, model: ModelNow) -> bool:
        if model.barred_until_s > self._now_s:
            self._looks.append(model.barred_until_s)
            return False
        return True

    def _serve_background(self) -> Iterator[Step]:
        """Calls for whose answers nobody waits take room that is free, where no person wants any."""
        if any(model.phase == "absent" and model.demand.num_waiting for model in self._models):
            return
        for model in self._models:
            wanted = model.phase == "absent" and model.demand.num_background and self._is_allowed(model)
            if wanted and self._rules.fits_together(self._resident() | {model.name}):
                yield Step(kind="load", model=model.name, cause="waited for by background calls")
                return

    def _by_right(self, model: ModelNow) -> tuple[bool, float, float]:
        """Aged ones first, then by priority, then who waits longest."""
        since_s = model.demand.waiting_since_s
        is_aged = self._now_s - since_s >= _AGED_S
        return not is_aged, 0.0 if is_aged else -self._priority.get(model.name, 0), since_s

    def _resident(self) -> frozenset[str]:
        here = {model.name for model in self._models if model.phase != "absent"}
        return frozenset(here) | frozenset(self._rules.keep_loaded)

    def _serve(self, waiting: list[ModelNow]) -> Iterator[Step]:
        """Make room for the first that waits; others only take room that is free."""
        for place, target in enumerate(waiting):
            victims = self._victims(target)
            if not victims:
                if self._rules.fits_together(self._resident() | {target.name}):
                    yield Step(kind="load", model=target.name, cause=_waiters(target))
                    return
                continue
            if place == 0:
                yield from self._make_room(target, victims)

    def _make_room(self, target: ModelNow, victims: tuple[ModelNow, ...]) -> Iterator[Step]:
        cause = f"{target.name} is waited for by {_requests(target)}"
        ready = [self._may_unload(victim, target) for victim in victims]
        if all(ready):
            for victim in victims:
                yield Step(kind="unload", model=victim.name, cause=cause, room_for=target.name)
            return
        for victim in victims:
            if victim.is_open and not victim.demand.is_idle and self._is_over(victim, target):
                yield Step(kind="close", model=victim.name, cause=cause)

    def _may_unload(self, victim: ModelNow, target: ModelNow) -> bool:
        """Whether nothing is inside and its next request need not be waited for."""
        demand = victim.demand
        if demand.num_running:
            return False
        if demand.num_waiting:
            return not victim.is_open or self._is_over(victim, target)
        lingers_until_s = victim.rests_since_s + _LINGER_S
        if victim.is_open and lingers_until_s > self._now_s:
            self._looks.append(lingers_until_s)
            return False
        return True

    def _is_over(self, victim: ModelNow, target: ModelNow) -> bool:
        """Whether a busy model has had its time, or the one that waits can wait no longer."""
        residence_s = max(self._rules.min_residence_s, target.load_s or 0.0)
        latest_s = target.demand.deadline_s - 2 * (target.load_s or 0.0) - _DEADLINE_MARGIN_S
        over_s = min(victim.since_s + residence_s, latest_s)
        if over_s > self._now_s:
            self._looks.append(over_s)
            return False
        return True

    def _victims(self, target: ModelNow) -> tuple[ModelNow, ...]:
        """Who must leave for it: the choice that disturbs least; empty where it fits, or fits nowhere."""
        resident = self._resident()
        choices = [resident - set(names) for names in self._rules.resident_sets if target.name in names]
        leaving = min(choices, key=self._harm, default=frozenset[str]())
        return tuple(self._by_name[name] for name in sorted(leaving) if name in self._by_name)

    def _harm(self, names: frozenset[str]) -> tuple[int, int, int, float]:
        """How busy, how important, how many and how lately used."""
        models = [self._by_name[name] for name in names if name in self._by_name]
        return (
            sum(not model.demand.is_idle for model in models),
            max((self._priority.get(model.name, 0) for model in models), default=-(10**9)),
            len(models),
            max((model.rests_since_s for model in models), default=-math.inf),
        )

    def _restore(self, restore: tuple[str, ...]) -> tuple[Step, ...]:
        """One model that had to leave for nothing comes back, where there is room."""
        for name in restore:
            model = self._by_name.get(name)
            if model is None or model.phase != "absent" or model.barred_until_s > self._now_s:
                continue
            if self._rules.fits_together(self._resident() | {name}):
                cause = "it had to leave for a model that could not be loaded"
                return (Step(kind="load", model=name, cause=cause),)
        return ()

    def _unload_idle(self) -> tuple[Step, ...]:
        limit_s = self._rules.idle_unload_s
        if limit_s is None:
            return ()
        steps = []
        for model in self._models:
            is_wanted = not model.demand.is_idle or model.demand.num_background
            if model.phase != "resident" or is_wanted or model.name in self._rules.keep_loaded:
                continue
            over_s = model.rests_since_s + limit_s
            if over_s <= self._now_s:
                steps.append(Step(kind="unload", model=model.name, cause=f"unused for {limit_s:g} s"))
            else:
                self._looks.append(over_s)
        return tuple(steps)

    def _next_look_s(self) -> float:
        return min((at_s for at_s in self._looks if at_s > self._now_s), default=math.inf)


def _requests(model: ModelNow) -> str:
    count = model.demand.num_waiting
    return "1 request" if count == 1 else f"{count} requests"


def _waiters(model: ModelNow) -> str:
    return f"waited for by {_requests(model)}"
