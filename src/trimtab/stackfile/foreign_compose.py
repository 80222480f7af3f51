"""Pure. A compose file → the containers of its services.

Interpolation follows the compose specification (``$X``, ``${X:-default}``, ``$$``); ``.env`` and
``env_file`` are not read, ``extends`` is not followed, and both are named.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Mapping
from dataclasses import replace
from typing import Final

from trimtab.errors import StackFileError
from trimtab.stackfile.foreign_container import (
    Container,
    Mount,
    Port,
    decode_docker_size,
    decode_gpu_request,
    decode_port,
    decode_volume,
    device_names,
)
from trimtab.stackfile.foreign_expand import expand_parameter
from trimtab.stackfile.foreign_model import Argument, Finding, ForeignEnv, ForeignGpus, at_line
from trimtab.stackfile.foreign_secrets import shown
from trimtab.stackfile.foreign_yaml import Node, load_nodes

__all__ = ["read_compose"]

_NAME: Final = re.compile(r"[A-Za-z_]\w*")
_USE: Final = re.compile(r"\$\$|\$\{([A-Za-z_]\w*)\}|\$([A-Za-z_]\w*)")
_MAX_SERVICES: Final = 200


def read_compose(text: str, findings: list[Finding], variables: Mapping[str, Argument]) -> list[Container]:
    """Every service as a container, in the order written; what concerns the file goes to ``findings``.

    ``variables`` are known beforehand.
    """
    services = load_nodes(text).get("services")
    services = _filled(services, variables) if services is not None and variables else services
    if services is None or not services.entries:
        raise StackFileError("services holds no service")
    if len(services.entries) > _MAX_SERVICES:
        raise StackFileError(f"services holds more than {_MAX_SERVICES}")
    containers: list[Container] = []
    for name, service in services.entries.items():
        if service.entries is None:
            text = f"the service {shown(name)} is not keys and values"
            findings.append(
                Finding(
                    code="service_not_understood",
                    severity="unknown",
                    text=text,
                    where=at_line(service.line),
                )
            )
            continue
        containers.append(_read_service(name, service))
    return containers


def _filled(node: Node, variables: Mapping[str, Argument]) -> Node:
    """A node with plain uses of known variables filled in; ``$$`` stays for later."""

    def fill(match: re.Match[str]) -> str:
        known = variables.get(match.group(1) or match.group(2) or "")
        return match.group() if known is None else known.text

    if node.text is not None:
        return replace(node, text=_USE.sub(fill, node.text))
    if node.items is not None:
        return replace(node, items=tuple(_filled(item, variables) for item in node.items))
    entries = {key: _filled(value, variables) for key, value in (node.entries or {}).items()}
    return replace(node, entries=entries)


def _read_service(name: str, service: Node) -> Container:
    container = Container(line=service.line, name=name)
    image = service.get("image")
    if image is not None:
        container.image = _interpolated(image)
    elif service.get("build") is not None:
        container.note(
            "image_is_built", f"the image of {shown(name)} is built here and not known", service.line
        )
    container.name = _text(service, "container_name") or name
    container.command = _command(service.get("command"))
    entrypoint = service.get("entrypoint")
    if entrypoint is not None and not entrypoint.is_null:
        container.entrypoint = _command(entrypoint)
    _read_environment(container, service.get("environment"))
    _read_mounts(container, service.get("volumes"))
    _read_ports(container, service.get("ports"))
    _read_cards(container, service)
    container.ipc = _text(service, "ipc")
    container.network = _text(service, "network_mode") or ""
    container.has_nvidia_runtime = (_text(service, "runtime") or "").startswith("nvidia")
    shm = service.get("shm_size")
    if shm is not None:
        container.shm_bytes = decode_docker_size(_interpolated(shm).text)
    _note_unread(container, service)
    return container


def _note_unread(container: Container, service: Node) -> None:
    for key, text in (
        ("extends", "extends takes settings from another service and was not followed"),
        ("env_file", "an env file is given and was not read"),
        ("scale", "scale starts this service more than once; it is read once"),
    ):
        node = service.get(key)
        if node is not None:
            container.note(key, text, node.line)
    replicas = service.get("deploy", "replicas")
    if replicas is not None and replicas.text not in {"1", None}:
        container.note("scale", "replicas starts this service more than once; it is read once", replicas.line)


def _text(service: Node, key: str) -> str | None:
    node = service.get(key)
    return None if node is None or node.text is None else _interpolated(node).text


def _interpolated(node: Node) -> Argument:
    """A scalar with its variables filled in, as far as the file gives defaults."""
    text = node.text or ""
    pieces: list[str] = []
    unknowns: list[str] = []
    at = 0
    while (dollar := text.find("$", at)) >= 0:
        pieces.append(text[at:dollar])
        at, inside = _variable_at(text, dollar)
        if inside is None:
            pieces.append("$")
            continue
        value = expand_parameter(inside, {})
        pieces.append(value.text)
        unknowns.extend(value.unknowns)
    pieces.append(text[at:])
    return Argument(text="".join(pieces), line=node.line, unknowns=tuple(dict.fromkeys(unknowns)))


def _variable_at(text: str, dollar: int) -> tuple[int, str | None]:
    """Where the variable at a dollar sign ends, and its inside; None where a dollar is meant."""
    following = text[dollar + 1 : dollar + 2]
    if following == "$":
        return dollar + 2, None
    if following == "{":
        depth = 0
        for at in range(dollar + 1, len(text)):
            depth += {"{": 1, "}": -1}.get(text[at], 0)
            if depth == 0:
                return at + 1, text[dollar + 2 : at]
        raise StackFileError("a variable's bracket ${ is never closed")
    match = _NAME.match(text, dollar + 1)
    return (match.end(), match.group()) if match else (dollar + 1, None)


def _command(node: Node | None) -> tuple[Argument, ...]:
    """A list as it is; a string as the shell would split it, its variables being compose's."""
    if node is None or node.is_null:
        return ()
    if node.items is not None:
        return tuple(_interpolated(item) for item in node.items)
    whole = _interpolated(node)
    try:
        texts = shlex.split(whole.text)
    except ValueError:
        raise StackFileError(f"line {node.line}: a quote in the command is never closed") from None
    return tuple(
        Argument(
            text=text,
            line=node.line,
            unknowns=tuple(name for name in whole.unknowns if f"${{{name}" in text),
        )
        for text in texts
    )


def _read_environment(container: Container, node: Node | None) -> None:
    if node is None:
        return
    for key, value in (node.entries or {}).items():
        written = _interpolated(value)
        is_known = not value.is_null and not written.unknowns
        container.env.append(ForeignEnv(name=key, value=written.text if is_known else None, line=value.line))
    for item in node.items or ():
        written = _interpolated(item)
        name, separator, text = written.text.partition("=")
        is_known = bool(separator) and not written.unknowns
        container.env.append(ForeignEnv(name=name, value=text if is_known else None, line=item.line))


def _read_mounts(container: Container, node: Node | None) -> None:
    for item in (node.items if node else None) or ():
        if item.entries is None:
            container.mounts.extend(decode_volume(_interpolated(item).text))
            continue
        source, target = _text(item, "source") or "", _text(item, "target") or ""
        is_bind = _text(item, "type") == "bind"
        if target:
            container.mounts.append(
                Mount(source=source if is_bind else "", target=target, volume="" if is_bind else source)
            )


def _read_ports(container: Container, node: Node | None) -> None:
    for item in (node.items if node else None) or ():
        if item.entries is None:
            container.ports.extend(decode_port(_interpolated(item).text))
            continue
        target, published = _text(item, "target") or "", _text(item, "published") or ""
        if target.isdecimal() and len(target) < 6:
            host_port = int(published) if published.isdecimal() and len(published) < 6 else None
            address = _text(item, "host_ip") or ""
            container.ports.append(Port(container_port=int(target), host_port=host_port, address=address))


def _read_cards(container: Container, service: Node) -> None:
    """``deploy.resources.reservations.devices``, ``gpus`` (all, or a list of the same) and CDI devices."""
    devices = service.get("deploy", "resources", "reservations", "devices")
    gpus = service.get("gpus")
    if gpus is not None and gpus.text is not None:
        container.gpus = decode_gpu_request(_interpolated(gpus).text)
    for item in (*((devices.items if devices else None) or ()), *((gpus.items if gpus else None) or ())):
        kinds = {kind.text for kind in (item.get("capabilities") or item).items or ()}
        if _text(item, "driver") not in {None, "nvidia", "cdi"} or (kinds and "gpu" not in kinds):
            continue
        container.gpus = _device_request(item)
        if container.gpus is None:
            container.note("gpus_not_understood", "these cards were not understood", item.line)
    for item in (service.get("devices") or service).items or ():
        name = _interpolated(item).text
        if name.startswith("nvidia.com/gpu=") and container.gpus is None:
            container.gpus = device_names([name.partition("=")[2]])


def _device_request(item: Node) -> ForeignGpus | None:
    ids = item.get("device_ids")
    if ids is not None and ids.items is not None:
        names = (piece for node in ids.items for piece in _interpolated(node).text.split(","))
        return device_names(names)
    count = _text(item, "count")
    return ForeignGpus(is_all=True) if count is None else decode_gpu_request(count)
