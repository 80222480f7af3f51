"""I/O. Keeps the replicas of a stack running: adopts or starts them, restarts what fails, stops everything.

One task per replica owns its state; states change only along the table in ``lifecycle``. Any end that
nobody asked for is a failure, whatever its exit code.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace

from trimtab.core.state import Action, ObservedReplica, ReplicaSpec, ReplicaState, ServedModel
from trimtab.errors import EngineStartError
from trimtab.launcher.apply import apply_actions
from trimtab.launcher.card_gate import CardGate
from trimtab.launcher.engine_sleep import EngineSleep
from trimtab.launcher.keeper import ReplicaKeeper
from trimtab.launcher.reconcile import find_running_models, reconcile
from trimtab.launcher.sleepers import Sleepers, find_left
from trimtab.launcher.supervision import (
    SupervisionPolicy,
    SupervisorEvent,
    SupervisorEventKind,
    to_planned_event,
    to_served_models,
)
from trimtab.launcher.watch import EngineKnowledge, Surroundings
from trimtab.probes.generation import EngineProbe
from trimtab.runtimes.base import Runtime

__all__ = ["EngineKnowledge", "SupervisionPolicy", "Supervisor", "SupervisorEvent"]

_LOG = logging.getLogger(__name__)


def _ignore_event(event: SupervisorEvent) -> None:
    del event


class Supervisor:
    """Runs ``specs`` through ``runtime``; start, wait_ready and stop may each be cancelled at any moment.

    After ``stop`` has returned nothing of the stack runs. ``on_event`` is called in the event loop and
    must not block.
    """

    def __init__(
        self,
        specs: Sequence[ReplicaSpec],
        runtime: Runtime,
        probe: EngineProbe,
        *,
        known: EngineKnowledge,
        on_event: Callable[[SupervisorEvent], None] = _ignore_event,
        policy: SupervisionPolicy | None = None,
    ) -> None:
        self._runtime = runtime
        self._on_event = on_event
        self._policy = policy or SupervisionPolicy()
        self._around = Surroundings(
            runtime=runtime,
            probe=probe,
            policy=self._policy,
            known=known,
            gate=CardGate(),
            sleep=EngineSleep(
                probe, self._policy, read_cards=known.read_card_state, read_free_ram=known.read_free_ram
            ),
        )
        self._sleepers = Sleepers()
        self._keepers = {spec.replica_id: self._make_keeper(spec) for spec in specs}
        self._tasks: dict[str, asyncio.Task[None]] = {}
        self._changed = asyncio.Event()
        self._stopping: asyncio.Task[None] | None = None
        self._changing: asyncio.Task[tuple[Action, ...]] | None = None
        # Held while replicas are being started, so that a stop never overtakes a start.
        self._lock = asyncio.Lock()
        self._served: tuple[ServedModel, ...] = ()
        self._publish()

    async def start(
        self, choose_first: Callable[[frozenset[str]], frozenset[str]] | None = None
    ) -> tuple[Action, ...]:
        """Bring the world to the specs and watch them from here on; returns before they are ready.

        ``choose_first``: (models that run already) → those to begin with; without it all.

        Gives the actions taken. When one cannot be carried out, what was started is stopped again and
        EngineStartError or EnvironmentMissingError goes on.
        """
        async with self._lock:
            if self._stopping is not None:
                return ()  # a stop came first: nothing is started any more
            specs = tuple(keeper.spec for keeper in self._keepers.values())
            found, asleep = await find_left(self._around, specs)
            awake = tuple(one for one in found if one.replica_id not in asleep)
            first = self._specs_to_begin_with(awake, choose_first)
            begun = {spec.replica_id for spec in first}
            specs = (*first, *(self._keepers[name].spec for name in sorted(asleep - begun)))
            actions = reconcile(specs, found)
            for action in actions:
                self._tell_planned(action, found)
            started = await self._carry_out(actions, specs)
            adopted = {action.replica_id for action in actions if action.kind in ("adopt", "keep")}
            left = (item for item in found if item.replica_id in adopted)
            running = {replica.replica_id: replica for replica in (*started, *left)}
            for replica_id in asleep & adopted:
                self._keepers[replica_id].take_asleep(running.pop(replica_id))
            for replica_id in asleep - begun:
                await self._keep_asleep(replica_id)
            for replica_id in (spec.replica_id for spec in first):
                keeper = self._keepers[replica_id]
                replica = running.get(replica_id)
                if replica is not None:
                    keeper.take(replica, is_adopted=replica_id in adopted)
                self._watch_over(keeper)
        return actions

    async def _keep_asleep(self, replica_id: str) -> None:
        """Leave one asleep that was found so, where that is true."""
        if not await self._sleepers.adopt(self._keepers[replica_id]):
            await self._end_keeper(replica_id)
            self._rest(self._keepers[replica_id].spec)

    def _specs_to_begin_with(
        self,
        found: Sequence[ObservedReplica],
        choose_first: Callable[[frozenset[str]], frozenset[str]] | None,
    ) -> tuple[ReplicaSpec, ...]:
        specs = tuple(keeper.spec for keeper in self._keepers.values())
        if choose_first is None:
            return specs
        first = choose_first(find_running_models(specs, found))
        return tuple(spec for spec in specs if spec.model in first)

    async def load(self, model: str) -> None:
        """Start or wake what a model needs and return at once; not where it is there, nor after a stop."""
        async with self._lock:
            if self._stopping is not None:
                return
            for replica_id in self._ids_of(model):
                if replica_id not in self._tasks:
                    await self._rouse(replica_id)

    async def _rouse(self, replica_id: str) -> None:
        """Wake one that sleeps; any other is started."""
        is_sleeper = replica_id in self._sleepers
        await self._sleepers.leave(replica_id)
        keeper = self._keepers[replica_id]
        if keeper.view.state is not ReplicaState.SLEEPING:
            if is_sleeper:  # its engine has just ended
                await keeper.stop(self._policy.restart_grace_s)
            self._rest(keeper.spec)
        self._watch_over(self._keepers[replica_id])

    async def unload(self, model: str) -> None:
        """Put a model to sleep, or stop it; it may be loaded again. A TrimtabError names what does not go."""
        async with self._lock:
            for replica_id in self._ids_of(model):
                if not await self._lull(replica_id):
                    await self._end_keeper(replica_id)
                    self._rest(self._keepers[replica_id].spec)

    async def _lull(self, replica_id: str) -> bool:
        """Whether it sleeps now; else it must be stopped."""
        keeper = self._keepers[replica_id]
        if self._stopping is not None or not self._sleepers.may_sleep(keeper):
            return False
        await self._end_task(replica_id)
        # What ended at the same moment cannot be put to sleep.
        return self._sleepers.may_sleep(keeper) and await self._sleepers.lull(keeper)

    def _ids_of(self, model: str) -> tuple[str, ...]:
        return tuple(name for name, keeper in self._keepers.items() if keeper.spec.model == model)

    def _rest(self, spec: ReplicaSpec) -> None:
        """A keeper that does nothing yet."""
        self._keepers[spec.replica_id] = self._make_keeper(spec)
        self._publish()

    async def _carry_out(
        self, actions: Iterable[Action], specs: tuple[ReplicaSpec, ...]
    ) -> tuple[ObservedReplica, ...]:
        """Carry out the actions; starts on cards are left to the keepers, which take turns."""
        on_cards = {spec.replica_id for spec in specs if spec.gpus}
        now = []
        for action in actions:
            if action.replica_id not in on_cards or action.kind not in ("start", "replace"):
                now.append(action)
            elif action.kind == "replace":
                now.append(replace(action, kind="stop"))
        return await apply_actions(now, specs, self._runtime, grace_s=self._policy.restart_grace_s)

    def _make_keeper(self, spec: ReplicaSpec) -> ReplicaKeeper:
        return ReplicaKeeper(spec, self._around, tell=self._tell)

    def _watch_over(self, keeper: ReplicaKeeper) -> None:
        task = asyncio.ensure_future(keeper.keep())
        self._tasks[keeper.spec.replica_id] = task
        task.add_done_callback(self._note_task_end)

    async def change(
        self, specs: Sequence[ReplicaSpec], *, resident: frozenset[str] | None = None
    ) -> tuple[Action, ...]:
        """Bring what runs to other specs in place; returns when what had to change answers again.

        Replicas whose settings are the same serve on. Those that change restart one after the other;
        what is no longer wanted is stopped first. EngineStartError when one does not come up: the rest
        stays as it is. A ``stop`` cuts it short. Of models that are loaded on demand only those of
        ``resident`` run afterwards.
        """
        self._changing = asyncio.ensure_future(self._change(tuple(specs), resident))
        try:
            return await asyncio.shield(self._changing)
        except asyncio.CancelledError:
            if self._changing.cancelled():
                raise EngineStartError("the change was cut short: everything is being stopped") from None
            raise

    async def _change(
        self, specs: tuple[ReplicaSpec, ...], resident: frozenset[str] | None
    ) -> tuple[Action, ...]:
        async with self._lock:
            if self._stopping is not None:
                raise EngineStartError("nothing can be changed: everything is being stopped")
            found = await self._runtime.list_replicas()
            here = frozenset(self._tasks) | self._sleepers.ids
            running = tuple(spec for spec in specs if _is_in(spec, resident) or self._sleeps_on(spec))
            actions = reconcile(running, found, ours=here)
            wanted = {spec.replica_id: spec for spec in running}
            for action in actions:
                self._tell_planned(action, (*found, *specs))
            at_rest = {spec.replica_id: spec for spec in specs if spec.replica_id not in wanted}
            await self._drop(set(self._keepers) - set(wanted) - (set(at_rest) - here))
            for spec in at_rest.values():
                self._rest(spec)
            for action in actions:
                if action.kind == "keep":
                    self._keepers[action.replica_id].renew(wanted[action.replica_id])
                    is_asleep = action.replica_id in self._sleepers
                    if is_asleep and _is_in(wanted[action.replica_id], resident):
                        await self._rouse(action.replica_id)
            self._publish()
            changed = [wanted[a.replica_id] for a in actions if a.kind in ("start", "replace", "adopt")]
            await self._restart_in_turn(changed)
            self._keepers = {spec.replica_id: self._keepers[spec.replica_id] for spec in specs}
            self._publish()
        return actions

    def _sleeps_on(self, spec: ReplicaSpec) -> bool:
        """Whether it sleeps and may go on doing so under another plan."""
        keeper = self._keepers.get(spec.replica_id)
        if keeper is None or keeper.view.state is not ReplicaState.SLEEPING or spec.sleep is None:
            return False
        return keeper.spec.config_hash == spec.config_hash

    async def _restart_in_turn(self, specs: Sequence[ReplicaSpec]) -> None:
        """One after the other; whatever holds cards that one of them wants goes first."""
        old_cards = {spec.replica_id: self._cards_of(spec.replica_id) for spec in specs}
        for spec in specs:
            in_the_way = {name for name, cards in old_cards.items() if cards & set(spec.gpus)}
            in_the_way.add(spec.replica_id)
            await self._drop(in_the_way & set(self._keepers))
            old_cards = {name: cards for name, cards in old_cards.items() if name not in in_the_way}
            await self._bring_up(spec)

    def _cards_of(self, replica_id: str) -> set[int]:
        keeper = self._keepers.get(replica_id)
        return set(keeper.spec.gpus) if keeper is not None else set()

    async def _drop(self, replica_ids: Iterable[str]) -> None:
        """Stop these replicas and forget them."""
        for replica_id in sorted(replica_ids):
            await self._end_keeper(replica_id)
            del self._keepers[replica_id]
            self._publish()

    async def _end_task(self, replica_id: str) -> None:
        task = self._tasks.pop(replica_id, None)
        if task is not None:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)

    async def _end_keeper(self, replica_id: str) -> None:
        await self._end_task(replica_id)
        await self._sleepers.leave(replica_id)
        await self._keepers[replica_id].stop(self._policy.restart_grace_s)

    async def _bring_up(self, spec: ReplicaSpec) -> None:
        """Start one replica and return when it answers; EngineStartError when it is given up."""
        keeper = self._make_keeper(spec)
        self._keepers[spec.replica_id] = keeper
        self._watch_over(keeper)
        while keeper.view.state is not ReplicaState.READY:
            if keeper.view.state is ReplicaState.FAILED and keeper.view.failure is not None:
                raise keeper.view.failure
            self._changed.clear()
            await self._changed.wait()

    async def wait_ready(self, timeout_s: float) -> None:
        """Return when every replica has answered.

        When one is given up before, or ``timeout_s`` is over, everything is stopped and
        EngineStartError says which model, why, and what its engine wrote last.
        """
        try:
            async with asyncio.timeout(timeout_s):
                while not self._is_ready():
                    self._changed.clear()
                    await self._changed.wait()
        except TimeoutError:
            failure = self._render_late(timeout_s)
            await self.stop(self._policy.restart_grace_s)
            raise failure from None
        except EngineStartError:
            await self.stop(self._policy.restart_grace_s)
            raise

    def snapshot(self) -> tuple[ServedModel, ...]:
        """The served models as of now; cheap, for every request."""
        return self._served

    def replicas(self) -> tuple[ObservedReplica, ...]:
        """The replicas that run under this supervisor."""
        views = (keeper.view for keeper in self._keepers.values())
        return tuple(view.observed for view in views if view.observed is not None)

    async def stop(self, grace_s: float = 10.0) -> None:
        """Stop everything; idempotent, and to be called again after a cancel to wait for the rest.

        Raises EnvironmentMissingError when a process survives even SIGKILL.
        """
        if self._stopping is None or (self._stopping.done() and _has_failed(self._stopping)):
            self._stopping = asyncio.ensure_future(self._stop(grace_s))
        await asyncio.shield(self._stopping)

    async def _stop(self, grace_s: float) -> None:
        if self._changing is not None and not self._changing.done():
            self._changing.cancel()
        self._sleepers.hurry()
        async with self._lock:
            await self._sleepers.end()
            for task in self._tasks.values():
                task.cancel()
            await asyncio.gather(*self._tasks.values(), return_exceptions=True)
            stops = (keeper.stop(grace_s) for keeper in self._keepers.values())
            for outcome in await asyncio.gather(*stops, return_exceptions=True):
                if isinstance(outcome, BaseException):
                    raise outcome

    def _tell(self, keeper: ReplicaKeeper, kind: SupervisorEventKind, text: str) -> None:
        """Publish a keeper's new state, then tell the listener."""
        self._publish()
        self._on_event(keeper.make_event(kind, text))

    def _publish(self) -> None:
        self._served = to_served_models(tuple(keeper.view for keeper in self._keepers.values()))
        self._changed.set()

    def _tell_planned(self, action: Action, known: tuple[ObservedReplica | ReplicaSpec, ...]) -> None:
        keeper = self._keepers.get(action.replica_id)
        if keeper is not None:
            self._tell(keeper, "planned", f"{action.kind}: {action.cause}")
            return
        model = next(item.model for item in known if item.replica_id == action.replica_id)
        self._on_event(to_planned_event(action, model))

    def _is_ready(self) -> bool:
        """Whether all are ready; raises the failure of one that was given up, and any bug of a task."""
        for task in self._tasks.values():
            if task.done() and not task.cancelled():
                task.result()
        views = tuple(self._keepers[replica_id].view for replica_id in self._tasks)
        for view in views:
            if view.state is ReplicaState.FAILED and view.failure is not None:
                raise view.failure
        return all(view.state is ReplicaState.READY for view in views)

    def _render_late(self, timeout_s: float) -> EngineStartError:
        kept = (self._keepers[replica_id] for replica_id in self._tasks)
        late = next(keeper for keeper in kept if keeper.view.state is not ReplicaState.READY)
        if late.view.failure is not None:
            return late.view.failure
        return late.render_late(timeout_s)

    def _note_task_end(self, task: asyncio.Task[None]) -> None:
        self._changed.set()
        if _has_failed(task) and not task.cancelled():
            _LOG.error("supervision of a replica ended by a bug", exc_info=task.exception())


def _is_in(spec: ReplicaSpec, resident: frozenset[str] | None) -> bool:
    return resident is None or spec.model in resident


def _has_failed(task: asyncio.Task[None]) -> bool:
    return task.cancelled() or task.exception() is not None
