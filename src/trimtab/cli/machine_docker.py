"""I/O. The Docker daemon of this machine for ``doctor``: whether it is there, answers, gives out cards."""

from __future__ import annotations

import contextlib
import os
import shutil
import threading
from pathlib import Path
from typing import Any, Final

from trimtab.core.preflight import DockerFacts
from trimtab.errors import EnvironmentMissingError
from trimtab.runtimes.docker_body import Dialect
from trimtab.runtimes.docker_connection import connect_docker, list_socket_paths

__all__ = ["read_docker"]

# A daemon answers in milliseconds; one that does not must not hold a look at the machine up.
_PATIENCE_S: Final = 5.0
# Where CDI files are looked for (github.com/cncf-tags/container-device-interface, SPEC.md).
_CDI_FOLDERS: Final = (Path("/etc/cdi"), Path("/var/run/cdi"))
# Docker finds this program on its own PATH when cards are asked for with --gpus.
_HOOK: Final = "nvidia-container-runtime-hook"


def read_docker(*, patience_s: float = _PATIENCE_S) -> DockerFacts:
    """What answers where the docker command would look; nothing is started and no image touched."""
    address = _find_address()
    if not address:
        return DockerFacts()
    found: list[DockerFacts] = []
    asker = threading.Thread(target=lambda: found.append(_ask(address)), name="ask-docker", daemon=True)
    asker.start()
    asker.join(patience_s)
    if found:
        return found[0]
    problem = f"the Docker daemon at {address} has not answered for {patience_s:.0f} s"
    return DockerFacts(address=address, problem=problem, fix="see its log: journalctl -u docker")


def _find_address() -> str:
    address = os.environ.get("DOCKER_HOST", "").strip()
    if address:
        return address
    socket = next((path for path in list_socket_paths(dict(os.environ)) if _is_there(path)), None)
    return "" if socket is None else f"unix://{socket}"


def _is_there(path: Path) -> bool:
    try:
        return path.exists()
    except OSError:
        return True  # its folder may not be entered: somebody's daemon is there


def _ask(address: str) -> DockerFacts:
    try:
        connection = connect_docker()
        with contextlib.closing(connection.api) as api:
            info = api.info()
    except EnvironmentMissingError as error:
        return DockerFacts(address=address, problem=error.message, fix=error.hint)
    except ImportError:
        problem = "the package docker isn't installed, so the daemon cannot be asked"
        return DockerFacts(address=address, problem=problem, fix="python -m pip install docker")
    except OSError as error:
        problem = (
            f"the Docker daemon at {address} answers with an error: {' '.join(str(error).split())[:200]}"
        )
        return DockerFacts(address=address, problem=problem, fix="see its log: journalctl -u docker")
    is_podman = connection.dialect is Dialect.PODMAN
    return DockerFacts(
        address=connection.address,
        version=connection.version or "of unknown version",
        is_podman=is_podman,
        gives_gpus=_has_cdi_file() if is_podman else _gives_gpus(info),
    )


def _gives_gpus(info: dict[str, Any]) -> bool:
    """By the registered runtime, by the hook that --gpus needs, or by cards described as CDI devices."""
    devices = info.get("DiscoveredDevices") or ()
    has_device = any("nvidia.com/gpu" in str(device.get("ID", "")) for device in devices)
    return "nvidia" in (info.get("Runtimes") or {}) or has_device or shutil.which(_HOOK) is not None


def _has_cdi_file() -> bool:
    files = (path for folder in _CDI_FOLDERS for path in folder.glob("*"))
    return any(path.suffix in {".yaml", ".json"} and "nvidia" in path.name for path in files)
