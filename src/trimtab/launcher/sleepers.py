"""I/O. The replicas of one supervisor that sleep: who does, who is watched, who is not put to sleep again."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterable
from typing import Final

from trimtab.core.state import ObservedReplica, ReplicaSpec, ReplicaState
from trimtab.launcher.keeper import ReplicaKeeper
from trimtab.launcher.watch import Surroundings

__all__ = ["Sleepers", "find_left"]

_LOG: Final = logging.getLogger(__name__)
_LISTENER_TIMEOUT_S: Final = 1.0


class Sleepers:
    """Holds a task per sleeping replica that notices its end; ``in`` asks whether one is among them."""

    def __init__(self) -> None:
        self._watches: dict[str, asyncio.Task[None]] = {}
        self._never: set[str] = set()
        self._dozing: asyncio.Task[bool] | None = None
        self._is_hurried = False

    def __contains__(self, replica_id: object) -> bool:
        return replica_id in self._watches

    @property
    def ids(self) -> frozenset[str]:
        """The replicas that sleep, or ended while they did."""
        return frozenset(self._watches)

    def may_sleep(self, keeper: ReplicaKeeper) -> bool:
        """Whether it is planned to, answers now, and has never disappointed in this run."""
        spec = keeper.spec
        if keeper.is_sleepless:
            self._never.add(spec.replica_id)
        is_ready = keeper.view.state is ReplicaState.READY
        return is_ready and spec.sleep is not None and spec.replica_id not in self._never

    async def lull(self, keeper: ReplicaKeeper) -> bool:
        """Put a replica to sleep whose own task has ended; False when it is to be stopped instead."""
        self._dozing = asyncio.ensure_future(keeper.doze())
        try:
            is_asleep = await asyncio.shield(self._dozing)
        except asyncio.CancelledError:
            self._dozing.cancel()
            await asyncio.gather(self._dozing, return_exceptions=True)
            if not self._is_hurried:
                raise
            return False
        finally:
            self._dozing = None
        if keeper.is_sleepless:
            self._never.add(keeper.spec.replica_id)
        if is_asleep:
            self._watch(keeper)
        return is_asleep

    async def adopt(self, keeper: ReplicaKeeper) -> bool:
        """Keep one asleep that an earlier supervisor put to sleep; False when it must be stopped instead."""
        if not await keeper.confirm_asleep():
            return False
        self._watch(keeper)
        return True

    def _watch(self, keeper: ReplicaKeeper) -> None:
        self._watches[keeper.spec.replica_id] = asyncio.ensure_future(keeper.keep_asleep())

    async def leave(self, replica_id: str) -> None:
        """It is no sleeper any more; idempotent."""
        task = self._watches.pop(replica_id, None)
        if task is not None:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)

    def hurry(self) -> None:
        """Everything is to be stopped: nobody is put to sleep any more, nor waited for."""
        self._is_hurried = True
        if self._dozing is not None:
            self._dozing.cancel()

    async def end(self) -> None:
        """Watch none of them any more."""
        for replica_id in tuple(self._watches):
            await self.leave(replica_id)


async def find_left(
    around: Surroundings, specs: Iterable[ReplicaSpec]
) -> tuple[tuple[ObservedReplica, ...], frozenset[str]]:
    """What an earlier supervisor left, and who of that sleeps; what would not say so is stopped.

    One that does not listen yet is still starting.
    """
    found = await around.runtime.list_replicas()
    wanted = {spec.replica_id: spec.config_hash for spec in specs if spec.sleep is not None}
    left, asleep = [], set()
    for replica in found:
        may_sleep = replica.is_running and wanted.get(replica.replica_id) == replica.config_hash
        told: bool | None = False
        if may_sleep and not replica.dies_with_supervisor:
            told = await around.sleep.is_asleep(replica.base_url)
        if told is None and await around.probe.probe_listener(
            replica.base_url, timeout_s=_LISTENER_TIMEOUT_S
        ):
            _LOG.warning("replica %s is stopped: it does not say whether it sleeps", replica.replica_id)
            await around.runtime.stop_replica(replica.replica_id, grace_s=around.policy.restart_grace_s)
            continue
        left.append(replica)
        if told:
            asleep.add(replica.replica_id)
    return tuple(left), frozenset(asleep)
