"""I/O. Which running engines use a model: told from their command lines, and from what containers mount."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Iterator, Sequence
from typing import Any

import psutil

from trimtab.cli.folders import Folders
from trimtab.errors import EnvironmentMissingError
from trimtab.runtimes.docker_connection import connect_docker
from trimtab.runtimes.docker_labels import REPLICA_LABEL, STATE_LABEL
from trimtab.runtimes.local_process import LocalProcessRuntime
from trimtab.runtimes.routed import has_containers

__all__ = ["find_users"]


def find_users(folders: Folders, wanted: Sequence[str]) -> tuple[str, ...]:
    """Names of the replicas that were started with one of ``wanted`` (paths, repo ids) in a word.

    Engines of this state folder are looked at; a Docker daemon that does not answer runs none.
    """
    if not folders.state.is_dir():
        return ()
    replicas = asyncio.run(LocalProcessRuntime(folders.state, python="").list_replicas())
    users = {item.replica_id for item in replicas if item.is_running and _names(item.pid, wanted)}
    if has_containers(folders.state):
        users.update(_find_containers(folders, wanted))
    return tuple(sorted(users))


def _names(pid: int, wanted: Sequence[str]) -> bool:
    try:
        words = psutil.Process(pid).cmdline()
    except psutil.Error:
        return False
    return any(text in word for word in words for text in wanted)


def _find_containers(folders: Folders, wanted: Sequence[str]) -> Iterator[str]:
    label = f"{STATE_LABEL}={folders.state.resolve()}"
    try:
        with contextlib.closing(connect_docker().api) as api:
            containers: list[dict[str, Any]] = api.containers(filters={"label": label})
    except (EnvironmentMissingError, ImportError, OSError):
        return
    for container in containers:
        places = [str(mount.get("Source", "")) for mount in container.get("Mounts") or ()]
        if any(text in word for word in (*places, str(container.get("Command", ""))) for text in wanted):
            yield str(container["Labels"].get(REPLICA_LABEL, "a container"))
