"""Pure. What the Docker API is sent for one replica: the body of ``POST /containers/create``.

Field names are those of the Docker Engine API 1.41 and newer; the body is rendered here and not by the
SDK's keyword arguments, so that it can be compared field by field with what `plan --emit docker` prints.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from trimtab.core.container import ContainerSpec, PublishedPort
from trimtab.core.state import ReplicaSpec
from trimtab.runtimes.docker_labels import render_labels

__all__ = ["Dialect", "Placement", "render_create_body"]

# Docker before API 1.41 knew --gpus only through this capability; it is what the CLI's --gpus sends.
_GPU_CAPABILITIES = [["gpu"]]
_CDI_GPU = "nvidia.com/gpu"


class Dialect(StrEnum):
    """Who answers the Docker API: the two differ in GPU requests and in what they refuse."""

    DOCKER = "docker"
    PODMAN = "podman"


@dataclass(frozen=True, slots=True, kw_only=True)
class Placement:
    """What a spec leaves to the moment of the start.

    ``host_ports`` holds the picked port of each published one, in their order; ``mount_sources`` the
    final host path of each mount, in their order; ``passed_env`` the variables that were found set.
    """

    host_ports: tuple[int, ...]
    mount_sources: tuple[str, ...]
    passed_env: tuple[tuple[str, str], ...] = ()


def render_create_body(
    spec: ReplicaSpec,
    container: ContainerSpec,
    placement: Placement,
    *,
    dialect: Dialect,
    own_labels: Mapping[str, str],
) -> dict[str, Any]:
    """The JSON document that creates the container; ``own_labels`` are the runtime's, on top of the spec's.

    Nothing is in it that the spec does not ask for, except labels.
    """
    body: dict[str, Any] = {
        "Image": container.image,
        "Cmd": list(container.args),
        "Env": [f"{name}={value}" for name, value in (*container.env, *placement.passed_env)],
        "Labels": {**dict(container.labels), **render_labels(spec), **own_labels},
        "HostConfig": _host_config(container, placement, dialect),
    }
    if container.ports:
        body["ExposedPorts"] = {_port_key(port): {} for port in container.ports}
    return body


def _host_config(container: ContainerSpec, placement: Placement, dialect: Dialect) -> dict[str, Any]:
    config: dict[str, Any] = {"IpcMode": container.ipc}
    # Podman refuses a size for the host's own /dev/shm; Docker accepts and ignores it.
    if container.shm_bytes is not None and not (dialect is Dialect.PODMAN and container.ipc == "host"):
        config["ShmSize"] = container.shm_bytes
    if container.mounts:
        config["Mounts"] = [
            {"Type": "bind", "Source": source, "Target": mount.target, "ReadOnly": mount.is_read_only}
            for mount, source in zip(container.mounts, placement.mount_sources, strict=True)
        ]
    if container.ports:
        config["PortBindings"] = {
            _port_key(port): [{"HostIp": port.host_ip, "HostPort": str(host_port)}]
            for port, host_port in zip(container.ports, placement.host_ports, strict=True)
        }
    if container.gpu_ids:
        config["DeviceRequests"] = [_device_request(container.gpu_ids, dialect)]
    return config


def _port_key(port: PublishedPort) -> str:
    return f"{port.container_port}/tcp"


def _device_request(gpu_ids: tuple[str, ...], dialect: Dialect) -> dict[str, Any]:
    """Docker asks NVIDIA's runtime for cards by index or UUID; podman only knows CDI names.

    Podman 5 reads device requests whose driver is "cdi" and drops all others without a word
    (pkg/api/handlers/compat/containers_create.go, read 2026-11-30).
    """
    if dialect is Dialect.PODMAN:
        return {"Driver": "cdi", "DeviceIDs": [f"{_CDI_GPU}={gpu_id}" for gpu_id in gpu_ids]}
    return {"Driver": "nvidia", "DeviceIDs": list(gpu_ids), "Capabilities": _GPU_CAPABILITIES}
