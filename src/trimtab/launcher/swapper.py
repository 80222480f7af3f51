"""I/O. Loads and unloads models of a supervisor as requests want them, as ``swap_policy`` decides."""

from __future__ import annotations

import asyncio
import logging
import math
import time
from collections.abc import AsyncIterator, Callable, Iterable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from typing import Final

from trimtab.core.plan import SwapPlan
from trimtab.core.state import ReplicaState, ServedModel
from trimtab.errors import TrimtabError
from trimtab.launcher.supervise import Supervisor
from trimtab.launcher.swap_policy import (
    ModelDemand,
    ModelNow,
    Phase,
    Step,
    choose_first,
    choose_steps,
)
from trimtab.units import format_duration_s

__all__ = ["Swapper"]

_LOG: Final = logging.getLogger(__name__)

# Decisions follow one another no faster, however many answers end.
_PAUSE_S: Final = 0.02
# A model whose load failed is tried again after so long, twice as long each time in a row.
_BARRED_S: Final = (30.0, 600.0)
# More would go beyond what a number can be, after a week of failures.
_MAX_DOUBLINGS: Final = 16
# Between the failure, which waiters are told at once, and the look that counts from it.
_MARGIN_S: Final = 0.25
# What could not be stopped is tried again after so long.
_STUCK_S: Final = 5.0
_PHASES: Final[dict[ReplicaState, Phase]] = {
    ReplicaState.STOPPED: "absent",
    ReplicaState.SLEEPING: "absent",
    ReplicaState.STARTING: "loading",
    ReplicaState.STOPPING: "leaving",
}


@dataclass(slots=True)
class _Known:
    """What the swapper remembers of one model."""

    phase: Phase = "absent"
    since_s: float = 0.0
    is_open: bool = True
    # Whether its latest load has been told to have succeeded.
    is_noted: bool = False
    load_s: float | None = None
    num_loads: int = 0
    num_wakes: int = 0
    # As what it is away: it sleeps, or nothing of it is there.
    away_as: ReplicaState | None = None
    num_failures: int = 0
    barred_until_s: float = -math.inf
    # Why its latest load failed, while it is not tried again; afterwards what the next request may meet.
    failure: str = ""
    past_failure: str = ""


class Swapper:
    """Decides whenever something has happened; ``wake`` says that it has.

    ``read_demand`` tells what requests there are now. ``expect_load_s`` tells what a model's load took
    before, None where that is not known; ``on_change`` is called when ``snapshot`` has changed, ``tell``
    hears every step in words.
    """

    def __init__(
        self,
        supervisor: Supervisor,
        rules: SwapPlan,
        *,
        read_demand: Callable[[], Iterable[ModelDemand]],
        expect_load_s: Callable[[str], float | None],
        on_change: Callable[[], None],
        tell: Callable[[Step], None],
    ) -> None:
        self._supervisor = supervisor
        self._rules = rules
        self._read_demand = read_demand
        self._expect_load_s = expect_load_s
        self._on_change = on_change
        self._tell = tell
        self._known: dict[str, _Known] = {}
        self._displaced: tuple[str, ...] = ()
        self._woken = asyncio.Event()
        # Held while a step is taken, so that a change of the stack finds no half-done one.
        self._busy = asyncio.Lock()
        self._seen: tuple[ServedModel, ...] | None = None
        self._served: tuple[ServedModel, ...] = ()
        self._counts_down = False
        self._second = 0

    def wake(self) -> None:
        """Something has happened."""
        self._woken.set()

    def snapshot(self) -> tuple[ServedModel, ...]:
        """The served models, with what is known of loads; cheap, for every request."""
        seen = self._supervisor.snapshot()
        # What is left of a wait goes by without anything else happening.
        second = int(time.monotonic()) if self._counts_down else 0
        if seen is not self._seen or second != self._second:
            self._seen, self._second = seen, second
            self._served = tuple(self._dress(model) for model in seen)
            self._counts_down = any(model.retry_after_s is not None for model in self._served)
        return self._served

    def choose_resident(self, rules: SwapPlan) -> frozenset[str]:
        """Which models run under other rules: those of now as far as they may, then others that fit."""
        here = {model.name for model in self._supervisor.snapshot() if _phase_of(model) != "absent"}
        return choose_first(rules, here)

    @asynccontextmanager
    async def paused(self) -> AsyncIterator[None]:
        """No step is taken inside."""
        async with self._busy:
            yield
        self.wake()

    def take_rules(self, rules: SwapPlan) -> None:
        """Follow other rules from now on; to be called inside ``paused``."""
        self._rules = rules
        self._displaced = ()
        self._changed()

    async def run(self) -> None:
        """Decide and act until cancelled."""
        while True:
            self._woken.clear()
            async with self._busy:
                try:
                    look_again_s = await self._act()
                except Exception:  # noqa: BLE001 - a bug in one decision must not be the last one
                    _LOG.exception("error deciding which models are loaded")
                    look_again_s = time.monotonic() + _STUCK_S
            await asyncio.sleep(_PAUSE_S)
            wait_s = look_again_s - time.monotonic()
            try:
                async with asyncio.timeout(max(0.0, wait_s) if wait_s < math.inf else None):
                    await self._woken.wait()
            except TimeoutError:
                continue

    async def _act(self) -> float:
        models = self._observe()
        self._allow_again()
        for model in models:
            if model.phase == "resident" and self._has_failed(model.name):
                await self._give_up(model.name)
                return time.monotonic()
        decision = choose_steps(self._rules, models, restore=self._displaced, now_s=time.monotonic())
        for step in decision.steps:
            await self._carry_out(step)
        barred_s = [known.barred_until_s for known in self._known.values() if known.failure]
        return min((decision.look_again_s, *barred_s))

    def _allow_again(self) -> None:
        """Requests for a model whose load failed some time ago are let wait again, and so have it tried."""
        now_s = time.monotonic()
        for known in self._known.values():
            if known.failure and known.barred_until_s <= now_s:
                known.past_failure, known.failure = known.failure, ""
                self._changed()

    def _observe(self) -> tuple[ModelNow, ...]:
        """The models that come and go, as of now."""
        demand: Mapping[str, ModelDemand] = {item.model: item for item in self._read_demand()}
        now_s = time.monotonic()
        found = []
        for model in self._supervisor.snapshot():
            if model.name in self._rules.keep_loaded:
                continue
            known = self._of(model.name)
            phase = _phase_of(model)
            if phase != known.phase:
                known.phase, known.since_s = phase, now_s
                known.is_noted = False
            if phase == "absent":
                self._note_away(model, known)
            else:
                known.away_as = None
            if model.state is ReplicaState.READY and not known.is_noted:
                known.is_noted = True
                self._note_loaded(model.name, known)
            found.append(
                ModelNow(
                    demand=demand.get(model.name, ModelDemand(model=model.name)),
                    phase=phase,
                    since_s=known.since_s,
                    is_open=known.is_open,
                    load_s=known.load_s,
                    barred_until_s=known.barred_until_s,
                )
            )
        return tuple(found)

    def _note_away(self, model: ServedModel, known: _Known) -> None:
        """What its next load takes depends on whether it sleeps or nothing of it is there."""
        if model.state is not known.away_as:
            known.away_as = model.state
            known.load_s = self._expect_load_s(model.name)
            self._changed()

    def _of(self, model: str) -> _Known:
        known = self._known.get(model)
        if known is None:
            known = self._known[model] = _Known(load_s=self._expect_load_s(model))
        return known

    def _note_loaded(self, model: str, known: _Known) -> None:
        known.load_s = self._expect_load_s(model)
        known.num_failures, known.failure, known.past_failure = 0, "", ""
        # One that came back leaves the others that had to go with it; any other is what they went for.
        rest = tuple(name for name in self._displaced if name != model)
        self._displaced = rest if model in self._displaced else ()
        self._changed()

    def _has_failed(self, model: str) -> bool:
        return any(
            one.name == model and one.state is ReplicaState.FAILED for one in self._supervisor.snapshot()
        )

    async def _give_up(self, model: str) -> None:
        """Its load failed: its requests are told, it is not tried again for a while."""
        known = self._of(model)
        known.failure = next(one.detail for one in self._supervisor.snapshot() if one.name == model)
        known.barred_until_s = time.monotonic() + _next_bar_s(known)
        known.num_failures += 1
        self._tell(Step(kind="unload", model=model, cause="it could not be loaded"))
        await self._unload(model)

    async def _carry_out(self, step: Step) -> None:
        known = self._of(step.model)
        self._tell(step)
        if step.kind in ("open", "close"):
            known.is_open = step.kind == "open"
            self._changed()
        elif step.kind == "load":
            known.num_loads += 1
            known.num_wakes += self._is_asleep(step.model)
            known.failure = ""
            self._changed()
            await self._supervisor.load(step.model)
        else:
            # Closed before anything is waited for: no request may slip in.
            known.is_open = False
            self._changed()
            if step.room_for is not None:
                self._displaced = (*self._displaced, step.model)
            await self._unload(step.model)

    def _is_asleep(self, model: str) -> bool:
        return any(
            one.name == model and one.state is ReplicaState.SLEEPING for one in self._supervisor.snapshot()
        )

    async def _unload(self, model: str) -> None:
        while True:
            try:
                await self._supervisor.unload(model)
                break
            except TrimtabError as error:
                self._tell(Step(kind="unload", model=model, cause=f"tried again: {error.message}"))
                await asyncio.sleep(_STUCK_S)
        self._of(model).is_open = True
        self._changed()

    def _changed(self) -> None:
        self._seen = None
        self._on_change()

    def _dress(self, model: ServedModel) -> ServedModel:
        if model.name in self._rules.keep_loaded:
            return model
        known = self._of(model.name)
        dressed = replace(
            model,
            on_demand=True,
            admits=known.is_open,
            load_s=known.load_s,
            num_loads=known.num_loads,
            num_wakes=known.num_wakes,
        )
        if model.state is ReplicaState.FAILED:
            return replace(dressed, retry_after_s=_left_s(known))
        took = "" if known.load_s is None else f" (took {format_duration_s(known.load_s)} before)"
        if model.state is ReplicaState.STARTING:
            return replace(dressed, detail=f"loading{took}: {model.detail or 'begins'}")
        if model.state is ReplicaState.SLEEPING:
            return replace(dressed, detail=f"sleeps; the next request wakes it{took}")
        return _dress_absent(dressed, known, took) if model.state is ReplicaState.STOPPED else dressed


def _dress_absent(model: ServedModel, known: _Known, took: str) -> ServedModel:
    """A model that is not loaded, and what its next request meets."""
    if known.failure:
        return replace(model, state=ReplicaState.FAILED, detail=known.failure, retry_after_s=_left_s(known))
    if known.past_failure:
        detail = f"not loaded; the next request tries again what failed before: {known.past_failure}"
        return replace(model, detail=detail)
    return replace(model, detail=f"not loaded; the next request loads it{took}")


def _next_bar_s(known: _Known) -> float:
    """How long a model is left alone whose load has just failed."""
    first_s, cap_s = _BARRED_S
    return min(cap_s, first_s * 2.0 ** min(known.num_failures, _MAX_DOUBLINGS))


def _left_s(known: _Known) -> float:
    """When it is worth to ask again: a little after it is tried, so that nobody comes just before."""
    left_s = known.barred_until_s - time.monotonic() if known.failure else _next_bar_s(known)
    return max(0.0, left_s) + _MARGIN_S


def _phase_of(model: ServedModel) -> Phase:
    """The phase of all its replicas: what one of them still holds is not free."""
    states = {replica.state for replica in model.replicas} or {model.state}
    if ReplicaState.STOPPING in states:
        return "leaving"
    return _PHASES.get(model.state, "resident")
