"""I/O. Carries out actions through a runtime; if one fails, what was started is stopped in reverse."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterable

from trimtab.core.state import Action, ObservedReplica, ReplicaSpec
from trimtab.errors import TrimtabError
from trimtab.runtimes.base import Runtime

__all__ = ["apply_actions", "reap_leftovers"]

_LOG = logging.getLogger(__name__)


async def apply_actions(
    actions: Iterable[Action], wanted: tuple[ReplicaSpec, ...], runtime: Runtime, *, grace_s: float
) -> tuple[ObservedReplica, ...]:
    """Carry out the actions in their order; gives the replicas that were started.

    When a step fails or this is cancelled, every replica started here is stopped again, the last
    one first, before the failure goes on.
    """
    specs = {spec.replica_id: spec for spec in wanted}
    started: list[ObservedReplica] = []
    try:
        for action in actions:
            if action.kind in ("stop", "reap", "replace"):
                await runtime.stop_replica(action.replica_id, grace_s=grace_s)
            if action.kind in ("start", "replace"):
                started.append(await runtime.start_replica(specs[action.replica_id]))
    except BaseException:
        await _stop_all(tuple(reversed(started)), runtime, grace_s=grace_s)
        raise
    return tuple(started)


async def _stop_all(replicas: tuple[ObservedReplica, ...], runtime: Runtime, *, grace_s: float) -> None:
    """Stop each one, whatever happens to the others; a second cancellation does not cut it short."""
    for replica in replicas:
        stopping = asyncio.ensure_future(runtime.stop_replica(replica.replica_id, grace_s=grace_s))
        while not stopping.done():
            try:
                await asyncio.shield(stopping)
            except asyncio.CancelledError:
                continue
            except TrimtabError as error:
                _LOG.warning("clean-up of replica %s failed: %s", replica.replica_id, error)


async def reap_leftovers(
    runtime: Runtime, *, model: str | None = None, grace_s: float
) -> tuple[ObservedReplica, ...]:
    """Stop everything that the runtime finds, or what serves ``model`` only; gives what it found.

    Meant for after the supervisor has ended. All are stopped at the same time.
    """
    found = await runtime.list_replicas()
    chosen = tuple(replica for replica in found if model in (None, replica.model))
    stops = (runtime.stop_replica(replica.replica_id, grace_s=grace_s) for replica in chosen)
    for outcome in await asyncio.gather(*stops, return_exceptions=True):
        if isinstance(outcome, BaseException):
            raise outcome
    return chosen
