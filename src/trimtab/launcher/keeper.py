"""I/O. One replica kept running: its state, its task, its restarts and the words for its failures."""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Callable
from dataclasses import replace

from trimtab.core.state import ObservedReplica, ReplicaSpec, ReplicaState
from trimtab.errors import EngineStartError, TrimtabError
from trimtab.launcher.card_release import wait_cards_released
from trimtab.launcher.lifecycle import (
    FailureHistory,
    GiveUp,
    LifecycleEvent,
    Refusal,
    choose_restart,
    next_state,
    note_failure,
)
from trimtab.launcher.own_limits import outlast_own_limits
from trimtab.launcher.supervision import (
    RunEnd,
    Supervised,
    SupervisorEvent,
    SupervisorEventKind,
    render_failure,
)
from trimtab.launcher.watch import LOG_TAIL_LINES, START_LOG_LINES, RunWatch, Surroundings
from trimtab.probes.process_activity import FamilyMember, probe_family

__all__ = ["ReplicaKeeper"]

_LISTENER_TIMEOUT_S = 1.0
# What could not be ended is tried again after so long.
_STUCK_S = 5.0


class ReplicaKeeper:
    """Owns the state of one replica and the task that keeps it running."""

    def __init__(
        self,
        spec: ReplicaSpec,
        around: Surroundings,
        *,
        tell: Callable[[ReplicaKeeper, SupervisorEventKind, str], None],
    ) -> None:
        self.spec = spec
        self.view = Supervised(spec=spec)
        self._around = around
        self._runtime = around.runtime
        self._probe = around.probe
        self._policy = around.policy
        self._gate = around.gate
        self._is_adopted = False
        self.phase = ""
        self._tell_supervisor = tell
        self._history = FailureHistory()
        self._has_answered = False
        # Whether the present engine has slept: its RAM is taken since.
        self._has_slept = False
        self._is_waking = False
        # Falling asleep has failed in a way that will not change.
        self.is_sleepless = False
        # Processes of the present run that may hold memory of cards; known before they die.
        self._family: frozenset[FamilyMember] = frozenset()
        self._num_port_races = 0
        self._began_s = time.monotonic()

    @property
    def elapsed_s(self) -> float:
        """Seconds since the latest start."""
        return time.monotonic() - self._began_s

    @property
    def expected_s(self) -> float | None:
        """What a start like this took before, or a wake."""
        known = self._around.known.boot_times
        return known.expect_wake_s(self.spec) if self._is_waking else known.expect_s(self.spec)

    def make_event(self, kind: SupervisorEventKind, text: str) -> SupervisorEvent:
        """Something that has happened to it, as of now."""
        return SupervisorEvent(
            kind=kind,
            replica_id=self.spec.replica_id,
            model=self.spec.model,
            state=self.view.state,
            text=text,
            elapsed_s=self.elapsed_s,
            phase=self.phase,
            expected_s=self.expected_s if kind in ("planned", "started", "loading") else None,
        )

    def take(self, observed: ObservedReplica, *, is_adopted: bool) -> None:
        """Take charge of a replica that runs."""
        self._began_s = time.monotonic()
        # An adopted engine has served before: when it fails it is restarted, not refused.
        self._has_answered = self._is_adopted = is_adopted
        self._advance(LifecycleEvent.START, observed=observed)
        kind: SupervisorEventKind = "adopted" if is_adopted else "started"
        self._tell(kind, f"{kind} as process {observed.pid} on port {observed.port}")

    def take_asleep(self, observed: ObservedReplica) -> None:
        """Take charge of a replica that an earlier supervisor put to sleep."""
        self._has_answered = self._has_slept = True
        self._advance(LifecycleEvent.SLEPT, observed=observed)
        self._tell("adopted", f"adopted asleep as process {observed.pid} on port {observed.port}")

    def renew(self, spec: ReplicaSpec) -> None:
        """Take over what may change while the engine runs on: the same process under a new wish."""
        self.spec = spec
        self.view = replace(self.view, spec=spec)

    async def keep(self) -> None:
        """Start where nothing was taken, wake what sleeps, watch, restart, give up.

        Returns only when the replica is parked.
        """
        is_asleep = self.view.state is ReplicaState.SLEEPING
        observed = await self._wake() if is_asleep else self.view.observed
        while True:
            if observed is None:
                end = await self._start()
                observed = self.view.observed
                if end is None:
                    continue
            else:
                end = await self._watch(observed)
            self._gate.leave(self.spec)
            if not await self._survive(end):
                return
            observed = None

    async def doze(self) -> bool:
        """Put it to sleep; False when it is to be stopped instead. Only while nothing else cares for it."""
        observed, limits = self.view.observed, self.spec.sleep
        if observed is None or limits is None:
            return False
        self._began_s = time.monotonic()
        self._advance(LifecycleEvent.STOP)
        self._tell("stopping", "falls asleep")
        outcome = await self._around.sleep.put_to_sleep(
            self.spec, observed, limits, has_slept=self._has_slept
        )
        if outcome.slept == "asleep":
            self._has_slept = True
            self._advance(LifecycleEvent.SLEPT, detail="")
            self._tell("asleep", f"sleeps, after {self.elapsed_s:.1f} s")
            return True
        self.is_sleepless = outcome.slept == "never"
        again = "; it is not put to sleep again in this run" if self.is_sleepless else ""
        self._tell("stopping", f"is stopped, since it cannot sleep: {outcome.reason}{again}")
        return False

    async def confirm_asleep(self) -> bool:
        """Whether one that was found asleep has freed its cards."""
        observed, limits = self.view.observed, self.spec.sleep
        if observed is None or limits is None:
            return False
        fault = await self._around.sleep.check_asleep(self.spec, observed, limits)
        if fault:
            self._tell("stopping", f"is stopped, though it sleeps: {fault}")
        return not fault

    async def keep_asleep(self) -> None:
        """Return when a sleeping engine has ended by itself: nothing of it is left, nothing restarts."""
        exit_status = await outlast_own_limits(lambda: self._runtime.wait_exit(self.spec.replica_id))
        self._advance(LifecycleEvent.STOP)
        self._tell("exited", f"{self.spec.engine} ended with {exit_status} while it slept")
        while True:
            try:
                await self._end(self._policy.restart_grace_s)
                break
            except TrimtabError as error:
                self._tell("stopping", error.message)
                await asyncio.sleep(_STUCK_S)
        self._advance(LifecycleEvent.STOPPED, observed=None, detail="")
        self._tell("stopped", "the next request starts it afresh")

    async def _wake(self) -> ObservedReplica | None:
        """The engine awake; None when it is to be started afresh, and then nothing of it is left."""
        observed, limits = self.view.observed, self.spec.sleep
        self._began_s = time.monotonic()
        self._is_waking = True
        self._advance(LifecycleEvent.WAKE, detail="wakes")
        self._tell("waking", "wakes")
        await self._gate.enter(self.spec, self._note_loading)
        if observed is not None and limits is not None:
            fault = await self._around.sleep.wake(self.spec, observed, limits)
            if not fault:
                return observed
            self.is_sleepless = True
            self._tell("waking", f"is started afresh, and not put to sleep again in this run: {fault}")
        self._gate.leave(self.spec)
        while True:
            try:
                await self._end(self._policy.restart_grace_s)
                break
            except TrimtabError as error:
                self._tell("waking", error.message)
                await asyncio.sleep(_STUCK_S)
        self._advance(None, observed=None)
        return None

    async def stop(self, grace_s: float) -> None:
        """Leave nothing of it."""
        self._gate.leave(self.spec)
        if self.view.state is not ReplicaState.STOPPED:
            self._advance(LifecycleEvent.STOP)
            self._tell("stopping", "stopping")
        await self._end(grace_s)
        if self.view.state is not ReplicaState.STOPPED:
            self._advance(LifecycleEvent.STOPPED, observed=None)
            self._tell("stopped", "stopped")

    async def _end(self, grace_s: float) -> None:
        """Then nothing of it runs and its cards are free of it; a TrimtabError names what stays."""
        observed, replica_id = self.view.observed, self.spec.replica_id
        if self.spec.gpus and observed is not None:
            self._family |= probe_family(observed.pid)
        await outlast_own_limits(lambda: self._runtime.stop_replica(replica_id, grace_s=grace_s))
        family, self._family = self._family, frozenset()
        await wait_cards_released(family, self._around.known.read_cards, replica_id=replica_id)

    def render_late(self, timeout_s: float) -> EngineStartError:
        """The failure of a replica that has not answered in the time a caller gives it."""
        silence = f"no token within {timeout_s:g} s" + (f": {self.view.detail}" if self.view.detail else "")
        tail = self._runtime.read_log_tail(self.spec.replica_id, max_lines=LOG_TAIL_LINES)
        return self._render(RunEnd(ran_for_s=self.elapsed_s, silence=silence, log_tail=tail))

    async def _watch(self, observed: ObservedReplica) -> RunEnd:
        watch = RunWatch(self.spec, self._around, on_loading=self._note_loading, on_ready=self._note_ready)
        return await watch.until_over(observed)

    def _note_loading(self, detail: str, phase: str = "") -> None:
        self.phase = phase
        self.view = replace(self.view, detail=phase or detail)
        self._tell("loading", phase or detail)

    def _note_ready(self) -> None:
        self._gate.leave(self.spec)
        if self._is_waking:
            self._around.known.boot_times.note_wake(self.spec, self.elapsed_s)
        elif not self._is_adopted:
            self._around.known.boot_times.note(self.spec, self.elapsed_s)
            log = self._runtime.read_log_tail(self.spec.replica_id, max_lines=START_LOG_LINES)
            self._around.known.note_start(self.spec, log)
        self._has_answered = True
        if self.spec.gpus and self.view.observed is not None:
            self._family = probe_family(self.view.observed.pid)
        self.phase = ""
        self._num_port_races = 0
        self._advance(LifecycleEvent.ANSWERED, detail="")
        self._tell("ready", "answers")

    async def _start(self) -> RunEnd | None:
        """Start for the first time, or anew after the back-off; the end of a try that could not begin."""
        self._began_s = time.monotonic()
        self._is_adopted = self._is_waking = self._has_slept = False
        is_first = self.view.state in {ReplicaState.STOPPED, ReplicaState.STARTING}
        restarts = self.view.restarts + (0 if is_first else 1)
        if self.view.state is not ReplicaState.STARTING:  # one that did not wake is starting already
            self._advance(LifecycleEvent.START if is_first else LifecycleEvent.RETRY, restarts=restarts)
        await self._gate.enter(self.spec, self._note_loading)
        self._began_s = time.monotonic()
        try:
            observed = await outlast_own_limits(lambda: self._runtime.start_replica(self.spec))
        except TrimtabError as error:
            return RunEnd(ran_for_s=0.0, refusal=error.message)
        self._advance(None, observed=observed)
        again = "" if is_first else " again"
        self._tell("started", f"started{again} as process {observed.pid} on port {observed.port}")
        return None

    async def _survive(self, end: RunEnd) -> bool:
        """After a failed run: clean up and wait, or park it; whether to try again."""
        failure = self._render(end)
        self._advance(LifecycleEvent.FAILED, detail=failure.message, failure=failure)
        self._tell("exited", failure.told)
        decision = await self._clear_and_decide(end)
        if self._takes_smaller_plan(end):
            decision = 0.0
        if isinstance(decision, GiveUp):
            self._advance(LifecycleEvent.GAVE_UP, detail=f"{decision.reason}; {failure.message}")
            self._tell("failed", decision.reason)
            return False
        self._tell("backing_off", f"tries again in {decision:.1f} s")
        await asyncio.sleep(decision)
        return True

    def _takes_smaller_plan(self, end: RunEnd) -> bool:
        """Whether the next try is one with a smaller plan; what only the user can change is said."""
        if self.view.observed is not None:
            return False  # it could not be killed
        made = self._around.known.replan(self.spec, end)
        if made is None:
            return False
        if made.spec is not None:
            self.renew(made.spec)
        self._tell("replanned", made.text)
        return made.spec is not None

    async def _clear_and_decide(self, end: RunEnd) -> float | GiveUp:
        """Leave nothing of the run, then say how long to wait; what cannot be killed parks the replica."""
        observed = self.view.observed
        try:
            await self._end(self._policy.restart_grace_s)
        except TrimtabError as error:
            return GiveUp(reason=error.message)
        self._advance(None, observed=None)
        return await self._decide(end, observed)

    async def _decide(self, end: RunEnd, observed: ObservedReplica | None) -> float | GiveUp:
        """Seconds to wait before the next try, or why there is none."""
        policy = self._policy
        if await self._lost_port_race(end, observed):
            self._num_port_races += 1
            return 0.0
        self._history = note_failure(
            self._history,
            policy.backoff,
            now_s=time.monotonic(),
            was_ready_for_s=end.ready_for_s or 0.0,
        )
        num_failures = len(self._history.failed_at_s)
        if not self._has_answered and num_failures >= policy.first_start_tries:
            return GiveUp(reason=f"never answered in {num_failures} tries")
        choice = choose_restart(self._history, policy.backoff, jitter=random.random())  # noqa: S311
        return choice if isinstance(choice, GiveUp) else choice.delay_s

    async def _lost_port_race(self, end: RunEnd, observed: ObservedReplica | None) -> bool:
        """Whether somebody else answers on the port of an engine that died before it ever did."""
        if end.ready_for_s is not None or end.exit_status is None or observed is None:
            return False
        if self._num_port_races >= self._policy.port_races:
            return False
        return await self._probe.probe_listener(observed.base_url, timeout_s=_LISTENER_TIMEOUT_S)

    def _render(self, end: RunEnd) -> EngineStartError:
        cause = self._around.known.explain_exit(self.spec.engine, end.log_tail)
        observed = self.view.observed
        return render_failure(self.spec, end, cause=cause, port=observed.port if observed else None)

    def _tell(self, kind: SupervisorEventKind, text: str) -> None:
        self._tell_supervisor(self, kind, text)

    def _advance(self, event: LifecycleEvent | None, **changes: object) -> None:
        """Change the view; a state that the table forbids is a bug and raises RuntimeError."""
        state = self.view.state
        if event is not None:
            following = next_state(state, event)
            if isinstance(following, Refusal):
                raise RuntimeError(f"replica {self.spec.replica_id}: {following}")
            state = following
        self.view = replace(self.view, state=state, **changes)  # type: ignore[arg-type]
