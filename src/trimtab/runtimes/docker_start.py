"""I/O. Creates and starts one container at a Docker daemon; a refusal leaves nothing of it behind."""

from __future__ import annotations

import os
import re
import socket
import threading
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from trimtab.core.container import ContainerSpec, Mount
from trimtab.core.state import ReplicaSpec
from trimtab.errors import EngineStartError, EnvironmentMissingError
from trimtab.runtimes.docker_body import Dialect, Placement, render_create_body
from trimtab.runtimes.docker_connection import DockerConnection
from trimtab.runtimes.docker_errors import explain_refusal, is_missing, is_port_taken, is_same_name
from trimtab.runtimes.docker_images import PullProgress, has_image, missing_image, pull_image
from trimtab.runtimes.docker_labels import REPLICA_LABEL

__all__ = ["ContainerStart", "check_gpu_requests", "remove_container"]

# A picked port is taken by somebody else before the start about never; five times in a row is a fault.
_MAX_PORT_TRIES = 5
# Device requests are honoured since containers/podman pull request 25171, merged early in 2025.
_PODMAN_WITH_GPUS = (5, 4)


class ContainerStart:
    """One start: prepare, create, start. Runs in a thread; ``cancel`` is heard between the steps."""

    def __init__(
        self,
        connection: DockerConnection,
        spec: ReplicaSpec,
        container: ContainerSpec,
        *,
        own_labels: Mapping[str, str],
        on_pull: Callable[[PullProgress], None] | None,
    ) -> None:
        self._connection = connection
        self._spec = spec
        self._container = container
        self._own_labels = own_labels
        self._on_pull = on_pull
        self._is_cancelled = threading.Event()

    def cancel(self) -> None:
        """Let the thread give up; what it has made by then it removes itself."""
        self._is_cancelled.set()

    def run(self) -> dict[str, Any]:
        """Start it; gives the running container's inspection. Raises TrimtabError, then nothing is left."""
        if self._container.gpu_ids:
            check_gpu_requests(self._connection)
        sources = tuple(_resolve_mount(mount, self._spec.replica_id) for mount in self._container.mounts)
        self._provide_image()
        for attempt in range(1, _MAX_PORT_TRIES + 1):
            try:
                return self._try_once(sources)
            except OSError as error:
                picks = any(port.host_port == 0 for port in self._container.ports)
                if not (picks and is_port_taken(error) and attempt < _MAX_PORT_TRIES):
                    raise self._explain(error) from error
        raise AssertionError  # the last attempt returns or raises

    def _provide_image(self) -> None:
        image = self._container.image
        try:
            if has_image(self._connection.api, image):
                return
        except OSError as error:
            raise self._explain(error) from error
        if self._on_pull is None:
            raise missing_image(image)
        pull_image(self._connection.api, image, on_progress=self._on_pull, check=self._stop_if_cancelled)

    def _stop_if_cancelled(self) -> None:
        if self._is_cancelled.is_set():
            raise EngineStartError(f"the start of replica {self._spec.replica_id} was cancelled")

    def _try_once(self, sources: tuple[str, ...]) -> dict[str, Any]:
        api = self._connection.api
        body = render_create_body(
            self._spec,
            self._container,
            self._place(sources),
            dialect=self._connection.dialect,
            own_labels=self._own_labels,
        )
        container_id = api.create_container_from_config(body, name=self._container.name)["Id"]
        try:
            self._stop_if_cancelled()
            api.start(container_id)
            self._stop_if_cancelled()
            inspection: dict[str, Any] = api.inspect_container(container_id)
        except BaseException:
            self.undo({"Id": container_id})
            raise
        return inspection

    def undo(self, inspection: Mapping[str, Any]) -> None:
        """Remove what was created, as far as the daemon still answers."""
        with suppress(OSError):
            remove_container(self._connection.api, inspection["Id"])

    def _place(self, sources: tuple[str, ...]) -> Placement:
        return Placement(
            host_ports=tuple(
                port.host_port or _pick_port(port.host_ip, self._spec.replica_id)
                for port in self._container.ports
            ),
            mount_sources=sources,
            passed_env=tuple(
                (name, os.environ[name]) for name in self._container.passed_env if name in os.environ
            ),
        )

    def _explain(self, error: OSError) -> Exception:
        if is_same_name(error):
            return self._explain_same_name()
        return explain_refusal(error, replica_id=self._spec.replica_id, image=self._container.image)

    def _explain_same_name(self) -> Exception:
        name = self._container.name
        labels: Mapping[str, str] = {}
        with suppress(OSError):
            labels = self._connection.api.inspect_container(name)["Config"].get("Labels") or {}
        whose = (
            "of another state folder of trimtab" if REPLICA_LABEL in labels else "that trimtab did not start"
        )
        return EnvironmentMissingError(
            f"replica {self._spec.replica_id}: there is a container named {name} already, {whose}",
            hint=f"remove it if nobody needs it (docker rm -f {name}), or rename the stack",
        )


def check_gpu_requests(connection: DockerConnection) -> None:
    """Raise EnvironmentMissingError for a podman that would start the container without its cards."""
    match = re.match(r"(\d{1,4})\.(\d{1,4})", connection.version)
    if connection.dialect is not Dialect.PODMAN or match is None:
        return
    if (int(match[1]), int(match[2])) < _PODMAN_WITH_GPUS:
        raise EnvironmentMissingError(
            f"podman {connection.version} drops requests for GPUs that come through the Docker API",
            hint="use podman {}.{} or newer, or Docker, or runtime: process".format(*_PODMAN_WITH_GPUS),
        )


def remove_container(api: Any, container_id: str) -> None:
    """Kill and remove a container with its anonymous volumes; none of that name is no error."""
    try:
        api.remove_container(container_id, v=True, force=True)
    except OSError as error:
        if not is_missing(error):
            raise


def _pick_port(host_ip: str, replica_id: str) -> int:
    """A port that nobody holds at this moment; whoever takes it before the start makes us pick again."""
    with socket.socket() as holder:
        try:
            holder.bind((host_ip, 0))
        except OSError as error:
            reason = os.strerror(error.errno or 0).lower()
            raise EnvironmentMissingError(
                f"no free port on {host_ip} for replica {replica_id}: {reason}",
                hint="close some of this machine's listening programs",
            ) from error
        port: int = holder.getsockname()[1]
        return port


def _resolve_mount(mount: Mount, replica_id: str) -> str:
    """The final host path; a missing folder that may be written is made here, as this user, not as root."""
    source = Path(os.environ.get(mount.host_variable) or mount.source).expanduser()
    if source.exists():
        return str(source)
    if mount.is_read_only:
        raise EnvironmentMissingError(
            f"replica {replica_id}: {source}, which its container is to read, does not exist",
            hint="create it, or correct the path",
        )
    try:
        source.mkdir(parents=True)
    except OSError as error:
        reason = os.strerror(error.errno or 0).lower()
        raise EnvironmentMissingError(
            f"replica {replica_id}: cannot make {source} for its container: {reason}",
            hint="give this user write access there",
        ) from error
    return str(source)
