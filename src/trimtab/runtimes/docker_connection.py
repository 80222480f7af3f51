"""I/O. Finds the Docker daemon of this machine, Docker's own or podman's, and says who it is."""

from __future__ import annotations

import os
import socket
import stat
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from trimtab.errors import EnvironmentMissingError
from trimtab.runtimes.docker_body import Dialect
from trimtab.runtimes.docker_errors import unreachable

__all__ = ["DockerConnection", "connect_docker", "knock", "list_socket_paths", "open_api"]

# Long enough for a daemon that unpacks an image on a slow disk while it answers.
_TIMEOUT_S = 60
_LOCAL_HOSTS = frozenset({"localhost", "127.0.0.1", "::1"})


@dataclass(frozen=True, slots=True, kw_only=True)
class DockerConnection:
    """An answering daemon: ``api`` is the SDK's APIClient, ``address`` what it was reached at."""

    api: Any
    address: str
    dialect: Dialect
    version: str


def connect_docker() -> DockerConnection:
    """Connect as the docker command would: DOCKER_HOST and its TLS variables, else the usual sockets.

    Raises EnvironmentMissingError when nobody answers, or when the daemon is on another machine: the
    plan is made for the cards and ports of this one.
    """
    address = os.environ.get("DOCKER_HOST", "").strip()
    if address:
        _check_local(address)
    else:
        address = f"unix://{_choose_socket()}"
    api = open_api(address)
    try:
        document = api.version()
    except OSError as error:
        raise unreachable(address, error) from error
    return DockerConnection(
        api=api,
        address=address,
        dialect=_read_dialect(document),
        version=str(document.get("Version", "")),
    )


def open_api(address: str) -> Any:
    """The SDK's client for a daemon, with the TLS settings of the environment.

    Raises EnvironmentMissingError when nobody answers there.
    """
    from docker import APIClient  # noqa: PLC0415 - 0.2 s that only users of Docker pay
    from docker.errors import DockerException  # noqa: PLC0415
    from docker.utils import kwargs_from_env  # noqa: PLC0415

    try:
        knock(address)
        settings: dict[str, Any] = {**kwargs_from_env(environment={**os.environ, "DOCKER_HOST": address})}
        return APIClient(**{"base_url": address, **settings}, version="auto", timeout=_TIMEOUT_S)
    except (OSError, ValueError, DockerException) as error:
        raise unreachable(address, error) from error


def knock(address: str) -> None:
    """Raise the plain OSError of a socket that nobody serves; the SDK would wrap it and leak its own."""
    if address.startswith("unix://"):
        with socket.socket(socket.AF_UNIX) as visitor:
            visitor.settimeout(_TIMEOUT_S)
            visitor.connect(address.removeprefix("unix://"))


def list_socket_paths(environ: dict[str, str]) -> tuple[Path, ...]:
    """Where daemons listen without DOCKER_HOST, in the order they are tried."""
    runtime_dir = environ.get("XDG_RUNTIME_DIR")
    mine = (Path(runtime_dir),) if runtime_dir else ()
    return (
        Path("/var/run/docker.sock"),
        *(folder / "docker.sock" for folder in mine),
        *(folder / "podman" / "podman.sock" for folder in mine),
        Path("/run/podman/podman.sock"),
    )


def _choose_socket() -> Path:
    """The first path that is a socket; Docker's own when there is none, so that it is named."""
    paths = list_socket_paths(dict(os.environ))
    return next((path for path in paths if _is_socket(path)), paths[0])


def _is_socket(path: Path) -> bool:
    try:
        return stat.S_ISSOCK(path.stat().st_mode)
    except OSError:
        return False


def _check_local(address: str) -> None:
    parts = urlsplit(address)
    if parts.scheme in ("tcp", "http", "https", "ssh") and (parts.hostname or "") not in _LOCAL_HOSTS:
        raise EnvironmentMissingError(
            f"DOCKER_HOST is {address}, a daemon on another machine, but the plan is for this one",
            hint="run trimtab there, or unset DOCKER_HOST",
        )


def _read_dialect(document: dict[str, Any]) -> Dialect:
    components: Iterable[dict[str, Any]] = document.get("Components") or ()
    is_podman = any("podman" in str(part.get("Name", "")).lower() for part in components)
    return Dialect.PODMAN if is_podman else Dialect.DOCKER
