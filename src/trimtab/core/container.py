"""Pure. One container as every runtime and every printed form of it must see it.

The Docker text that `plan --emit` prints and the body that the Docker runtime sends to the API are
both rendered from one ContainerSpec, so that what is reviewed is what runs.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, TypeAlias

__all__ = ["ContainerSpec", "IpcMode", "Mount", "PublishedPort"]

IpcMode: TypeAlias = Literal["host", "private", "shareable"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Mount:
    """One bind mount of a file or folder of the host.

    ``source`` is absolute, or begins with ``~`` (the home folder) or else is taken from the current
    folder: whoever starts or prints the container resolves that. ``host_variable`` names the host's
    variable that holds the folder instead when it is set (``HF_HOME`` for the hub's cache).
    """

    source: str
    target: str
    is_read_only: bool = False
    host_variable: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class PublishedPort:
    """A TCP port of the container on the host; ``host_port`` 0 takes a free one at start."""

    container_port: int
    host_port: int
    host_ip: str = "127.0.0.1"


@dataclass(frozen=True, slots=True, kw_only=True)
class ContainerSpec:
    """Everything that makes one engine container; nothing else is added when it is started.

    ``args`` follow the image and go to its entry point. ``env`` is set in the container, sorted by
    name; ``passed_env`` names variables that are handed through from the caller's environment where
    they are set (tokens never stand in a text). ``gpu_ids`` are card indices or ``GPU-…`` identifiers
    in CUDA order, empty without GPUs; inside, the cards count from 0. ``shm_bytes`` is the size of
    /dev/shm, which only matters where ``ipc`` isn't ``host``; both are given because some runtimes
    ignore ``ipc`` silently. ``labels`` mark what is ours.
    """

    name: str
    image: str
    args: tuple[str, ...] = ()
    env: tuple[tuple[str, str], ...] = ()
    passed_env: tuple[str, ...] = ()
    gpu_ids: tuple[str, ...] = ()
    mounts: tuple[Mount, ...] = ()
    ports: tuple[PublishedPort, ...] = ()
    shm_bytes: int | None = None
    ipc: IpcMode = "private"
    labels: tuple[tuple[str, str], ...] = ()
