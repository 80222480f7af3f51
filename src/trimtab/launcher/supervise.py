"""I/O. Keeps the replicas of a stack running: adopts or starts them, restarts what fails, stops everything.

One task per replica owns its state; states change only along the table in ``lifecycle``. Any end that
nobody asked for is a failure, whatever its exit code.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence

from trimtab.core.state import Action, ObservedReplica, ReplicaSpec, ReplicaState, ServedModel
from trimtab.errors import EngineStartError
from trimtab.launcher.apply import apply_actions
from trimtab.launcher.keeper import ExplainExit, ReplicaKeeper
from trimtab.launcher.reconcile import reconcile
from trimtab.launcher.supervision import (
    SupervisionPolicy,
    SupervisorEvent,
    SupervisorEventKind,
    to_served_models,
)
from trimtab.probes.generation import EngineProbe
from trimtab.runtimes.base import Runtime

__all__ = ["ExplainExit", "SupervisionPolicy", "Supervisor", "SupervisorEvent"]

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
        explain_exit: ExplainExit,
        on_event: Callable[[SupervisorEvent], None] = _ignore_event,
        policy: SupervisionPolicy | None = None,
    ) -> None:
        self._runtime = runtime
        self._on_event = on_event
        self._policy = policy or SupervisionPolicy()
        self._keepers = {
            spec.replica_id: ReplicaKeeper(
                spec, runtime, probe, explain_exit=explain_exit, policy=self._policy, tell=self._tell
            )
            for spec in specs
        }
        self._tasks: list[asyncio.Task[None]] = []
        self._changed = asyncio.Event()
        self._stopping: asyncio.Task[None] | None = None
        # Held while replicas are being started, so that a stop never overtakes a start.
        self._lock = asyncio.Lock()
        self._served: tuple[ServedModel, ...] = ()
        self._publish()

    async def start(self) -> tuple[Action, ...]:
        """Bring the world to the specs and watch them from here on; returns before they are ready.

        Gives the actions taken. When one cannot be carried out, what was started is stopped again and
        EngineStartError or EnvironmentMissingError goes on.
        """
        async with self._lock:
            if self._stopping is not None:
                return ()  # a stop came first: nothing is started any more
            specs = tuple(keeper.spec for keeper in self._keepers.values())
            found = await self._runtime.list_replicas()
            actions = reconcile(specs, found)
            for action in actions:
                self._tell_planned(action, found)
            grace_s = self._policy.restart_grace_s
            started = await apply_actions(actions, specs, self._runtime, grace_s=grace_s)
            adopted = {action.replica_id for action in actions if action.kind in ("adopt", "keep")}
            running = (*started, *(replica for replica in found if replica.replica_id in adopted))
            for replica in running:
                keeper = self._keepers[replica.replica_id]
                keeper.take(replica, is_adopted=replica.replica_id in adopted)
                self._tasks.append(asyncio.ensure_future(keeper.keep()))
                self._tasks[-1].add_done_callback(self._note_task_end)
        return actions

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
        async with self._lock:
            for task in self._tasks:
                task.cancel()
            await asyncio.gather(*self._tasks, return_exceptions=True)
            stops = (keeper.stop(grace_s) for keeper in self._keepers.values())
            for outcome in await asyncio.gather(*stops, return_exceptions=True):
                if isinstance(outcome, BaseException):
                    raise outcome

    def _tell(self, keeper: ReplicaKeeper, kind: SupervisorEventKind, text: str) -> None:
        """Publish a keeper's new state, then tell the listener."""
        self._publish()
        spec = keeper.spec
        self._on_event(
            SupervisorEvent(
                kind=kind,
                replica_id=spec.replica_id,
                model=spec.model,
                state=keeper.view.state,
                text=text,
                elapsed_s=keeper.elapsed_s,
            )
        )

    def _publish(self) -> None:
        self._served = to_served_models(tuple(keeper.view for keeper in self._keepers.values()))
        self._changed.set()

    def _tell_planned(self, action: Action, found: tuple[ObservedReplica, ...]) -> None:
        keeper = self._keepers.get(action.replica_id)
        if keeper is not None:
            self._tell(keeper, "planned", f"{action.kind}: {action.cause}")
            return
        model = next(item.model for item in found if item.replica_id == action.replica_id)
        self._on_event(
            SupervisorEvent(
                kind="planned",
                replica_id=action.replica_id,
                model=model,
                state=ReplicaState.STOPPING,
                text=f"{action.kind}: {action.cause}",
            )
        )

    def _is_ready(self) -> bool:
        """Whether all are ready; raises the failure of one that was given up, and any bug of a task."""
        for task in self._tasks:
            if task.done() and not task.cancelled():
                task.result()
        views = tuple(keeper.view for keeper in self._keepers.values())
        for view in views:
            if view.state is ReplicaState.FAILED and view.failure is not None:
                raise view.failure
        return all(view.state is ReplicaState.READY for view in views)

    def _render_late(self, timeout_s: float) -> EngineStartError:
        late = next(k for k in self._keepers.values() if k.view.state is not ReplicaState.READY)
        if late.view.failure is not None:
            return late.view.failure
        return late.render_late(timeout_s)

    def _note_task_end(self, task: asyncio.Task[None]) -> None:
        self._changed.set()
        if _has_failed(task) and not task.cancelled():
            _LOG.error("supervision of a replica ended by a bug", exc_info=task.exception())


def _has_failed(task: asyncio.Task[None]) -> bool:
    return task.cancelled() or task.exception() is not None
