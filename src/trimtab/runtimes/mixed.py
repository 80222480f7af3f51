"""I/O. One runtime for stacks whose replicas are partly processes and partly containers.

A file in the state folder notes that containers are in use, from before the first is started until the
last is gone: a machine without Docker is never asked about containers that it cannot have.
"""

from __future__ import annotations

from pathlib import Path

from trimtab.core.state import ExitStatus, ObservedReplica, ReplicaSpec
from trimtab.runtimes.base import Runtime
from trimtab.runtimes.state_layout import make_folders, refused_path

__all__ = ["MixedRuntime"]

_NOTE = "containers"


class MixedRuntime:
    """Starts a spec with a container as one, every other as a process; sees and stops both kinds."""

    def __init__(self, state_dir: Path, *, processes: Runtime, containers: Runtime) -> None:
        self._state_dir = state_dir
        self._note = state_dir / _NOTE
        self._processes = processes
        self._containers = containers

    async def start_replica(self, spec: ReplicaSpec) -> ObservedReplica:
        """Start and return at once, before the engine is ready; see the Runtime protocol."""
        if spec.container is None:
            return await self._processes.start_replica(spec)
        make_folders(self._state_dir)
        is_first = not self._uses_containers()
        try:
            self._note.touch(mode=0o600)
        except OSError as error:
            raise refused_path(error, self._note) from error
        try:
            return await self._containers.start_replica(spec)
        except BaseException:
            if is_first:  # the refused one left nothing behind
                self._note.unlink(missing_ok=True)
            raise

    async def list_replicas(self) -> tuple[ObservedReplica, ...]:
        """Everything of this state folder that runs, or ended without being stopped."""
        found = await self._processes.list_replicas()
        if self._uses_containers():
            found += await self._containers.list_replicas()
        return tuple(sorted(found, key=lambda replica: replica.replica_id))

    async def wait_exit(self, replica_id: str) -> ExitStatus:
        """Return when the replica has ended, whatever it is."""
        return await (await self._home_of(replica_id)).wait_exit(replica_id)

    async def stop_replica(self, replica_id: str, *, grace_s: float) -> None:
        """SIGTERM, wait, kill; returns when nothing of it is left. Idempotent."""
        await self._processes.stop_replica(replica_id, grace_s=grace_s)
        if self._uses_containers():
            await self._containers.stop_replica(replica_id, grace_s=grace_s)
            if not await self._containers.list_replicas():
                self._note.unlink(missing_ok=True)

    def read_log_tail(self, replica_id: str, *, max_lines: int) -> tuple[str, ...]:
        """The last lines the engine wrote, oldest first; empty when there is none."""
        tail = self._processes.read_log_tail(replica_id, max_lines=max_lines)
        if tail or not self._uses_containers():
            return tail
        return self._containers.read_log_tail(replica_id, max_lines=max_lines)

    def _uses_containers(self) -> bool:
        return self._note.exists()

    async def _home_of(self, replica_id: str) -> Runtime:
        if self._uses_containers():
            contained = await self._containers.list_replicas()
            if any(replica.replica_id == replica_id for replica in contained):
                return self._containers
        return self._processes
