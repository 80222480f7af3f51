"""Pure. From what is wanted and what runs to the ordered list of steps, each with its cause in words."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable

from trimtab.core.state import Action, ActionKind, ObservedReplica, ReplicaSpec

__all__ = ["NOTHING_RUNS", "config_hash_of", "find_running_models", "reconcile", "render_actions"]

# Leftovers go first and starts come last, so that what is freed is free when it is needed.
_ORDER: tuple[ActionKind, ...] = ("reap", "stop", "keep", "adopt", "replace", "start")
_HASH_DIGITS = 16
# The cause of every first start, which needs no explanation.
NOTHING_RUNS = "nothing runs"
_KIND_WIDTH = max(len(kind) for kind in _ORDER)


def config_hash_of(argv: tuple[str, ...], env: tuple[tuple[str, str], ...], engine_version: str) -> str:
    """A fingerprint of everything that needs a restart when it changes.

    ``argv`` still holds its port placeholder, so that the port of a run does not matter; the order
    of ``env`` does not matter either.
    """
    document = json.dumps([list(argv), sorted(env), engine_version], ensure_ascii=True)
    return hashlib.sha256(document.encode()).hexdigest()[:_HASH_DIGITS]


def reconcile(
    wanted: tuple[ReplicaSpec, ...],
    observed: tuple[ObservedReplica, ...],
    *,
    ours: frozenset[str] = frozenset(),
) -> tuple[Action, ...]:
    """The steps from ``observed`` to ``wanted``; only keeps when nothing differs.

    ``ours`` are the replicas that this very process supervises already. Within one kind of step
    the order is that of ``wanted``, then that of ``observed``. Raises ValueError when a replica id
    is wanted or observed twice, which is a bug of the caller.
    """
    _check_unique(spec.replica_id for spec in wanted)
    _check_unique(replica.replica_id for replica in observed)
    found = {replica.replica_id: replica for replica in observed}
    wanted_ids = {spec.replica_id for spec in wanted}
    actions = [_choose_for_wanted(spec, found.get(spec.replica_id), ours) for spec in wanted]
    actions += [_choose_for_unwanted(rest) for rest in observed if rest.replica_id not in wanted_ids]
    return tuple(sorted(actions, key=lambda action: _ORDER.index(action.kind)))


def find_running_models(wanted: Iterable[ReplicaSpec], observed: Iterable[ObservedReplica]) -> frozenset[str]:
    """Models of which a replica runs with the settings that are wanted."""
    hashes = {spec.replica_id: spec.config_hash for spec in wanted}
    ours = (one for one in observed if one.is_running and hashes.get(one.replica_id) == one.config_hash)
    return frozenset(one.model for one in ours)


def render_actions(actions: Iterable[Action]) -> str:
    """One line per step: what, which replica, why."""
    rows = tuple(actions)
    width = max((len(row.replica_id) for row in rows), default=0)
    return "".join(f"{row.kind:<{_KIND_WIDTH}}  {row.replica_id:<{width}}  {row.cause}\n" for row in rows)


def _check_unique(replica_ids: Iterable[str]) -> None:
    seen: set[str] = set()
    for replica_id in replica_ids:
        if replica_id in seen:
            raise ValueError(f"replica {replica_id} appears twice")
        seen.add(replica_id)


def _choose_for_wanted(spec: ReplicaSpec, found: ObservedReplica | None, ours: frozenset[str]) -> Action:
    if found is None:
        return Action(kind="start", replica_id=spec.replica_id, cause=NOTHING_RUNS)
    is_ours = spec.replica_id in ours
    kind, cause = next((kind, cause) for holds, kind, cause in _rules(spec, found, is_ours=is_ours) if holds)
    return Action(kind=kind, replica_id=spec.replica_id, cause=cause)


def _rules(
    spec: ReplicaSpec, found: ObservedReplica, *, is_ours: bool
) -> tuple[tuple[bool, ActionKind, str], ...]:
    """What to do with a wanted replica that was found: the first rule that holds decides."""
    process = f"process {found.pid}"
    changed = f"settings changed: {found.config_hash} is now {spec.config_hash}"
    return (
        (not found.is_running, "start", f"its last run ended: {found.exit_status}"),
        (not found.config_hash, "replace", f"{process} runs without a readable record"),
        (found.config_hash != spec.config_hash, "replace", changed),
        (is_ours, "keep", "runs as wanted"),
        (found.dies_with_supervisor, "replace", f"{process} ends with an earlier supervisor"),
        (spec.dies_with_supervisor, "replace", f"{process} was started detached, now foreground is wanted"),
        (True, "adopt", f"{process} runs as wanted, from an earlier supervisor"),
    )


def _choose_for_unwanted(found: ObservedReplica) -> Action:
    kind: ActionKind = "reap"
    if not found.is_running:
        cause = f"its last run ended: {found.exit_status}"
    elif not found.config_hash:
        cause = f"process {found.pid} runs without a readable record"
    else:
        kind, cause = "stop", f"no longer wanted, started for stack {found.stack}"
    return Action(kind=kind, replica_id=found.replica_id, cause=cause)
