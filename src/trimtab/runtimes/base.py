"""Pure. The Runtime protocol: starts, adopts, lists and stops replicas; takes no decisions."""

from __future__ import annotations

from typing import Protocol

from trimtab.core.state import ExitStatus, ObservedReplica, ReplicaSpec

__all__ = ["Runtime"]


class Runtime(Protocol):
    """Where engines run. Only what carries trimtab's marks is ever listed or stopped."""

    async def start_replica(self, spec: ReplicaSpec) -> ObservedReplica:
        """Start and return at once, before the engine is ready.

        Raises EngineStartError when the program cannot be executed, EnvironmentMissingError when
        the machine refuses (disk, permission); nothing half-started is left.
        """
        ...

    async def list_replicas(self) -> tuple[ObservedReplica, ...]:
        """Everything of this state folder that runs, or ended without being stopped; asks the world."""
        ...

    async def wait_exit(self, replica_id: str) -> ExitStatus:
        """Return when the replica has ended; works for adopted ones too."""
        ...

    async def stop_replica(self, replica_id: str, *, grace_s: float) -> None:
        """SIGTERM, wait up to ``grace_s``, then kill; returns when nothing of it is left. Idempotent."""
        ...

    def read_log_tail(self, replica_id: str, *, max_lines: int) -> tuple[str, ...]:
        """The last lines the engine wrote, oldest first; empty when there is none."""
        ...
