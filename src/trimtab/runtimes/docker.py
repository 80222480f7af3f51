"""I/O. Replicas as containers of this machine's Docker daemon; facts come from the daemon and our labels.

Only containers that carry this state folder's label are ever listed, stopped or removed. There is no
record beside them: whatever a later trimtab must know is in the labels.
"""

from __future__ import annotations

import asyncio
import sys
import time
import uuid
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

from trimtab.core.state import ExitStatus, ObservedReplica, ReplicaSpec
from trimtab.errors import EngineStartError, EnvironmentMissingError, TrimtabError
from trimtab.runtimes.docker_connection import DockerConnection, connect_docker
from trimtab.runtimes.docker_errors import is_missing, shorten
from trimtab.runtimes.docker_images import PullProgress
from trimtab.runtimes.docker_labels import (
    LIFELINE_LABEL,
    REPLICA_LABEL,
    STATE_LABEL,
    decode_observed,
    is_live,
)
from trimtab.runtimes.docker_lifeline import Lifeline
from trimtab.runtimes.docker_start import ContainerStart, remove_container
from trimtab.runtimes.docker_watch import ContainerWatch
from trimtab.runtimes.state_layout import log_path_of, make_folders

__all__ = ["DockerRuntime"]

_T = TypeVar("_T")
# After SIGKILL only a process inside a system call that cannot be interrupted remains.
_KILL_WAIT_S = 10.0
_LOG_TAIL_BYTES = 64 * 1024


class DockerRuntime:
    """Runs engines as containers; ``on_pull`` hears of the progress of a missing image and so allows it.

    Without ``on_pull`` a missing image is refused. The daemon is looked for at the first call.
    """

    def __init__(
        self,
        state_dir: Path,
        *,
        python: str = sys.executable,
        connect: Callable[[], DockerConnection] = connect_docker,
        on_pull: Callable[[PullProgress], None] | None = None,
    ) -> None:
        self._state_dir = state_dir
        self._state_label = str(state_dir.resolve())
        self._python = python
        self._connect = connect
        self._on_pull = on_pull
        self._connection: DockerConnection | None = None
        self._watches: dict[str, ContainerWatch] = {}
        # What dies with this supervisor, and the process that sees to it.
        self._lifeline: Lifeline | None = None
        self._tied: set[str] = set()

    async def start_replica(self, spec: ReplicaSpec) -> ObservedReplica:
        """Start and return at once, before the engine is ready; see the Runtime protocol."""
        container = spec.container
        if container is None:
            raise EngineStartError(f"replica {spec.replica_id} has no container to run in")
        found = await self._find(spec.replica_id)
        if any(is_live(inspection) for inspection in found):
            raise EngineStartError(f"replica {spec.replica_id} runs already", hint="stop it first")
        await self.stop_replica(spec.replica_id, grace_s=0)
        log_path = log_path_of(self._state_dir, spec.model)
        make_folders(self._state_dir, log_path.parent)
        connection = await asyncio.to_thread(self._connected)
        own_labels = {STATE_LABEL: self._state_label}
        if spec.dies_with_supervisor:
            own_labels[LIFELINE_LABEL] = self._tie(spec.replica_id, connection.address)
        start = ContainerStart(connection, spec, container, own_labels=own_labels, on_pull=self._on_pull)
        try:
            inspection = await _run_to_the_end(start)
        except BaseException:  # also when cancelled
            self._untie(spec.replica_id)
            raise
        self._watch(inspection, log_path=log_path, since_s=int(time.time()) - 1)
        return decode_observed(inspection, log_path=str(log_path))

    async def list_replicas(self) -> tuple[ObservedReplica, ...]:
        """Everything of this state folder that runs, or ended without being stopped."""
        observed = await self._ask(self._observe_all)
        return tuple(sorted(observed, key=lambda replica: replica.replica_id))

    async def wait_exit(self, replica_id: str) -> ExitStatus:
        """Return when the replica has ended, started here or adopted; unknown status without a container."""
        found = await self._find(replica_id)
        if not found:
            return ExitStatus(code=None)
        inspection = next((one for one in found if is_live(one)), found[0])
        return await self._watch_adopted(inspection).wait()

    async def stop_replica(self, replica_id: str, *, grace_s: float) -> None:
        """SIGTERM, wait, kill; afterwards no container of it is left. Idempotent.

        Raises EnvironmentMissingError naming the container when it survives.
        """
        for inspection in await self._find(replica_id):
            container_id = inspection["Id"]
            if grace_s > 0 and is_live(inspection):
                await self._end_gently(inspection, grace_s=grace_s)
            await self._ask(partial(remove_container, container_id=container_id))
            self._watches.pop(container_id, None)
        self._untie(replica_id)
        left = await self._find(replica_id)
        if left:
            names = ", ".join(str(one.get("Name", "")).lstrip("/") for one in left)
            raise EnvironmentMissingError(
                f"container {names} of replica {replica_id} survives its removal",
                hint="it hangs inside the kernel (driver or disk); see dmesg",
            )

    def read_log_tail(self, replica_id: str, *, max_lines: int) -> tuple[str, ...]:
        """The last lines that the container wrote, oldest first."""
        try:
            api = self._connected().api
            found = self._inspect_ours(api, replica_id=replica_id)
            raw: bytes = api.logs(found[0]["Id"], tail=max_lines) if found else b""
        except (OSError, EnvironmentMissingError):
            return ()
        return tuple(raw[-_LOG_TAIL_BYTES:].decode(errors="replace").splitlines()[-max_lines:])

    def close(self) -> None:
        """Let go of the daemon and of the lifeline; what is tied to it is not stopped by this."""
        if self._lifeline is not None:
            self._lifeline.release()
            self._lifeline = None
        if self._connection is not None:
            self._connection.api.close()
            self._connection = None

    def _connected(self) -> DockerConnection:
        if self._connection is None:
            self._connection = self._connect()
        return self._connection

    async def _ask(self, question: Callable[[Any], _T]) -> _T:
        """Put a question to the daemon in a thread; EnvironmentMissingError when it fails."""
        connection = await asyncio.to_thread(self._connected)
        try:
            return await asyncio.to_thread(question, connection.api)
        except OSError as error:
            reason = shorten(str(getattr(error, "explanation", None) or error))
            raise EnvironmentMissingError(
                f"the Docker daemon at {connection.address} does not do what it was asked: {reason}",
                hint="the daemon's log tells more: journalctl -u docker",
            ) from error

    async def _find(self, replica_id: str) -> tuple[dict[str, Any], ...]:
        return await self._ask(partial(self._inspect_ours, replica_id=replica_id))

    def _inspect_ours(self, api: Any, *, replica_id: str | None = None) -> tuple[dict[str, Any], ...]:
        """Every container of this state folder, or of one replica, live ones first."""
        wanted = [f"{STATE_LABEL}={self._state_label}"]
        wanted.append(REPLICA_LABEL if replica_id is None else f"{REPLICA_LABEL}={replica_id}")
        inspections = []
        for entry in api.containers(all=True, filters={"label": wanted}):
            try:
                inspections.append(api.inspect_container(entry["Id"]))
            except OSError as error:
                if not is_missing(error):  # removed since it was listed
                    raise
        return tuple(sorted(inspections, key=is_live, reverse=True))

    def _observe_all(self, api: Any) -> list[ObservedReplica]:
        return [
            decode_observed(
                inspection,
                log_path=str(self._log_path_of(inspection)),
                rss_bytes=_read_memory_bytes(api, inspection["Id"]) if is_live(inspection) else None,
            )
            for inspection in self._inspect_ours(api)
        ]

    def _log_path_of(self, inspection: dict[str, Any]) -> Path:
        return log_path_of(self._state_dir, decode_observed(inspection, log_path="").model)

    def _watch(self, inspection: dict[str, Any], *, log_path: Path, since_s: int) -> ContainerWatch:
        watch = ContainerWatch(self._connected(), inspection["Id"])
        watch.copy_log(log_path, since_s=max(1, since_s))
        self._watches[inspection["Id"]] = watch
        return watch

    def _watch_adopted(self, inspection: dict[str, Any]) -> ContainerWatch:
        """The watch of a container; the log of an adopted one is copied on from its last write."""
        known = self._watches.get(inspection["Id"])
        if known is not None:
            return known
        log_path = self._log_path_of(inspection)
        make_folders(self._state_dir, log_path.parent)
        since_s = int(log_path.stat().st_mtime) if log_path.exists() else 1
        return self._watch(inspection, log_path=log_path, since_s=since_s)

    async def _end_gently(self, inspection: dict[str, Any], *, grace_s: float) -> None:
        # Guard: `down` stops what a supervisor watches; copying the log is then the supervisor's.
        watch = self._watches.get(inspection["Id"]) or ContainerWatch(self._connected(), inspection["Id"])
        await self._ask(partial(_send_sigterm, container_id=inspection["Id"]))
        with suppress(TimeoutError):
            await asyncio.wait_for(watch.wait(), grace_s)
            await asyncio.to_thread(watch.join_copy)

    def _tie(self, replica_id: str, address: str) -> str:
        """Tie a replica's life to this process; gives the token that its container must carry."""
        if self._lifeline is None:
            self._lifeline = Lifeline(python=self._python, address=address, token=uuid.uuid4().hex)
        self._tied.add(replica_id)
        return self._lifeline.token

    def _untie(self, replica_id: str) -> None:
        self._tied.discard(replica_id)
        if not self._tied and self._lifeline is not None:
            self._lifeline.release()
            self._lifeline = None


async def _run_to_the_end(start: ContainerStart) -> dict[str, Any]:
    """Run a start in a thread; a cancelled one is waited for until it has cleaned up after itself."""
    running = asyncio.ensure_future(asyncio.to_thread(start.run))
    try:
        return await asyncio.shield(running)
    except asyncio.CancelledError:
        start.cancel()
        while not running.done():
            with suppress(asyncio.CancelledError, TrimtabError):
                await asyncio.shield(running)
        if running.exception() is None:  # it was too late to hear of it
            start.undo(running.result())
        raise


def _send_sigterm(api: Any, container_id: str) -> None:
    try:
        api.kill(container_id, signal="SIGTERM")
    except OSError as error:
        if getattr(error, "status_code", None) not in (404, 409):  # it has ended meanwhile
            raise


def _read_memory_bytes(api: Any, container_id: str) -> int | None:
    """Memory of the container's processes without the page cache, as `docker stats` counts it."""
    try:
        memory = api.stats(container_id, stream=False, one_shot=True)["memory_stats"]
        details = memory.get("stats") or {}
        cached = details.get("inactive_file", details.get("total_inactive_file", 0))
        return max(0, int(memory["usage"]) - int(cached)) or None
    except (OSError, KeyError, TypeError, ValueError):
        return None
