"""The daemons that speak the Docker API, for fixtures: each in a folder of its own, or skipped aloud."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import docker_service
import podman_service
import pytest

SERVICES = {
    "podman": (podman_service.reason_to_skip, podman_service.PodmanService),
    "docker": (docker_service.reason_to_skip, docker_service.DockerService),
}


@dataclass(frozen=True)
class Daemon:
    """One that runs: ``address`` is what DOCKER_HOST is set to; ``restart`` ends it and starts it anew."""

    name: str
    address: str
    restart: Callable[[], None]


@contextmanager
def serve(name: str, folder: Path) -> Iterator[Daemon]:
    """A daemon with the tests' image; skips the test where this machine cannot have it."""
    why_not, make = SERVICES[name]
    reason = why_not()
    if reason:
        pytest.skip(reason)
    service = make(folder)
    try:
        service.import_image()
        yield Daemon(name=name, address=service.address, restart=service.restart)
    finally:
        service.close()
