"""I/O. One runtime over processes and containers: each replica goes where its spec says."""

from __future__ import annotations

import logging
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

from trimtab.core.state import ExitStatus, ObservedReplica, ReplicaSpec
from trimtab.errors import EnvironmentMissingError
from trimtab.runtimes.base import Runtime
from trimtab.runtimes.local_process import LocalProcessRuntime

if TYPE_CHECKING:
    from trimtab.runtimes.docker_images import PullProgress

__all__ = ["RoutedRuntime", "has_containers"]

_LOG = logging.getLogger(__name__)
# Where this file lies, containers were started at some time, so that the daemon is asked about them.
_MARKER = "uses-docker"


def has_containers(state_dir: Path) -> bool:
    """Whether containers were ever started from this state folder."""
    return (state_dir / _MARKER).exists()


class RoutedRuntime:
    """Starts containers through Docker and the rest as processes; lists and stops both.

    Docker is asked only where it was ever used from this state folder or is wanted now, so that a
    machine without it never waits for it. ``on_pull`` as DockerRuntime takes it.
    """

    def __init__(
        self,
        state_dir: Path,
        *,
        python: str,
        on_pull: Callable[[PullProgress], None] | None = None,
    ) -> None:
        self._state_dir = state_dir
        self._python = python
        self._on_pull = on_pull
        self._processes = LocalProcessRuntime(state_dir, python=python)
        self._containers: Runtime | None = None
        self._in_containers: set[str] = set()

    async def start_replica(self, spec: ReplicaSpec) -> ObservedReplica:
        """Start it where its spec says; see the Runtime protocol."""
        if spec.container is None:
            self._in_containers.discard(spec.replica_id)
            return await self._processes.start_replica(spec)
        self._state_dir.mkdir(parents=True, exist_ok=True)
        with suppress(OSError):
            (self._state_dir / _MARKER).touch()
        self._in_containers.add(spec.replica_id)
        return await self._docker().start_replica(spec)

    async def list_replicas(self) -> tuple[ObservedReplica, ...]:
        """What runs as a process, then what runs in a container."""
        found = await self._processes.list_replicas()
        if not self._uses_docker():
            return found
        try:
            containers = await self._docker().list_replicas()
        except EnvironmentMissingError as error:
            if self._in_containers:
                raise
            _LOG.warning("containers of earlier runs cannot be seen: %s", error)
            return found
        self._in_containers.update(replica.replica_id for replica in containers)
        return (*found, *containers)

    async def wait_exit(self, replica_id: str) -> ExitStatus:
        """Return when the replica has ended."""
        if replica_id not in self._in_containers and self._uses_docker():
            await self.list_replicas()  # one that an earlier supervisor started
        return await self._home_of(replica_id).wait_exit(replica_id)

    async def stop_replica(self, replica_id: str, *, grace_s: float) -> None:
        """Leave nothing of it, wherever it ran."""
        if self._uses_docker():
            await self._stop_container(replica_id, grace_s=grace_s)
        await self._processes.stop_replica(replica_id, grace_s=grace_s)

    async def _stop_container(self, replica_id: str, *, grace_s: float) -> None:
        """A daemon that is gone is in the way only of what is known to run there."""
        try:
            await self._docker().stop_replica(replica_id, grace_s=grace_s)
        except EnvironmentMissingError:
            if replica_id in self._in_containers:
                raise

    def read_log_tail(self, replica_id: str, *, max_lines: int) -> tuple[str, ...]:
        """The last lines the engine wrote."""
        return self._home_of(replica_id).read_log_tail(replica_id, max_lines=max_lines)

    def _home_of(self, replica_id: str) -> Runtime:
        return self._docker() if replica_id in self._in_containers else self._processes

    def _uses_docker(self) -> bool:
        return bool(self._in_containers) or has_containers(self._state_dir)

    def _docker(self) -> Runtime:
        if self._containers is None:
            from trimtab.runtimes.docker import DockerRuntime  # noqa: PLC0415 - 0.2 s only where it is used

            self._containers = DockerRuntime(self._state_dir, python=self._python, on_pull=self._on_pull)
        return self._containers
