"""Pure. Text for a POSIX shell: every word quoted, one option a line."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Final

from trimtab.core.container import ContainerSpec, Mount, PublishedPort
from trimtab.units import GIB, MIB

__all__ = [
    "EMITTED_LABEL",
    "ShellNames",
    "comment",
    "group_flags",
    "join_lines",
    "render_docker_remove",
    "render_docker_run",
    "render_docker_wait",
    "sharing",
    "shell_path",
    "shell_size",
    "shell_source",
    "with_emitted_label",
]

EMITTED_LABEL: Final = "trimtab.emitted"
"""Marks containers that a printed text has started; its value is their name."""

# What could end a comment's line or isn't allowed in YAML at all.
_CONTROL: Final = re.compile(r"[\x00-\x1f\x7f-\x9f\u2028\u2029\ufeff\ufffe\uffff]+")
_NOT_IN_CSV: Final = re.compile(r'[",\n\r]')
_EVERY_ADDRESS: Final = ("0.0.0.0", "", "*")  # noqa: S104  # what the operator asked for, in Docker's words


@dataclass(frozen=True, slots=True, kw_only=True)
class ShellNames:
    """Words of a script's own instead of those of the container, already quoted; empty keeps the latter.

    ``sources`` replaces the hosts' ends of the mounts, in their order.
    """

    name: str = ""
    image: str = ""
    host_port: str = ""
    sources: tuple[str, ...] = ()


def comment(text: str) -> str:
    """One line of comment, whatever the text holds."""
    return f"# {_CONTROL.sub(' ', text)}".rstrip()


def join_lines(lines: Iterable[str]) -> str:
    """One command over several lines."""
    return " \\\n  ".join(lines)


def shell_path(path: str) -> str:
    """A path as a quoted word; ``~`` and relative ones hold wherever the word is used."""
    if path == "~":
        return '"$HOME"'
    if path.startswith("~/"):
        return f'"$HOME"/{shlex.quote(path[2:])}' if path[2:] else '"$HOME"/'
    if path.startswith(("/", "~")):
        return shlex.quote(path)
    rest = path.removeprefix("./")
    return f'"$PWD"/{shlex.quote(rest)}' if rest and rest != "." else '"$PWD"'


def shell_size(num_bytes: int) -> str:
    """Bytes as Docker's --shm-size takes them: whole GiB or MiB where they are, else bytes."""
    if num_bytes % GIB == 0:
        return f"{num_bytes // GIB}g"
    return f"{num_bytes // MIB}m" if num_bytes % MIB == 0 else f"{num_bytes}b"


def group_flags(words: Sequence[str]) -> list[str]:
    """Quoted words, each option with its values on one line."""
    lines: list[str] = []
    for word in words:
        quoted = shlex.quote(word)
        if lines and not word.startswith("-"):
            lines[-1] += f" {quoted}"
        else:
            lines.append(quoted)
    return lines


def render_docker_remove(spec: ContainerSpec) -> str:
    """Removes an earlier container that such a text has started, by its label; nobody else's of that name."""
    mark = shlex.quote(f"label={EMITTED_LABEL}={spec.name}")
    return f"docker rm -f $(docker ps -aq --filter {mark}) >/dev/null 2>&1 || true"


def with_emitted_label(spec: ContainerSpec) -> ContainerSpec:
    """The container with the mark by which a later run of the same text finds it."""
    return replace(spec, labels=(*spec.labels, (EMITTED_LABEL, spec.name)))


def _health_url(spec: ContainerSpec) -> str:
    """Where the host asks whether the server is ready."""
    port = spec.ports[0]
    host = "127.0.0.1" if port.host_ip in (*_EVERY_ADDRESS, "::") else port.host_ip
    return f"http://{f'[{host}]' if ':' in host else host}:{port.host_port}/health"


def sharing(specs: Sequence[ContainerSpec], index: int) -> list[ContainerSpec]:
    """The containers before this one that have a card in common with it."""
    own = set(specs[index].gpu_ids)
    return [other for other in specs[:index] if own & set(other.gpu_ids)]


def render_docker_wait(spec: ContainerSpec) -> list[str]:
    """Lines that return when the container's server answers, or say why it does not."""
    name = shlex.quote(spec.name)
    return [
        comment(f"the next server shares a card with {spec.name} and must find its part of it free"),
        f"until curl -fsS -o /dev/null -m 5 {shlex.quote(_health_url(spec))} 2>/dev/null; do",
        f"""  if [ "$(docker inspect -f '{{{{.State.Running}}}}' {name} 2>/dev/null)" != true ]; then""",
        f"    echo {shlex.quote(f'{spec.name} ended while starting; its last lines:')} >&2",
        f"    docker logs --tail 40 {name} >&2",
        "    break",
        "  fi",
        "  sleep 2",
        "done",
    ]


def render_docker_run(spec: ContainerSpec, names: ShellNames | None = None) -> str:
    """`docker run` of the container, detached."""
    own = names or ShellNames()
    lines = [f"docker run -d --name {own.name or shlex.quote(spec.name)}"]
    if spec.gpu_ids:
        # The inner quotes are Docker's: the value is CSV, and a list of cards holds commas.
        lines.append(f"--gpus {shlex.quote(_devices(spec.gpu_ids))}")
    if spec.ipc != "private":
        lines.append(f"--ipc={spec.ipc}")
    if spec.shm_bytes is not None:
        lines.append(f"--shm-size={shell_size(spec.shm_bytes)}")
    lines += [f"-p {_port(port, own.host_port)}" for port in spec.ports]
    sources = own.sources or tuple(shell_source(mount) for mount in spec.mounts)
    lines += [_mount(mount, source) for mount, source in zip(spec.mounts, sources, strict=True)]
    lines += [f"-e {shlex.quote(f'{name}={value}')}" for name, value in spec.env]
    lines += [f"-e {shlex.quote(name)}" for name in spec.passed_env]
    lines += [f"--label {shlex.quote(f'{name}={value}')}" for name, value in spec.labels]
    lines.append(own.image or shlex.quote(spec.image))
    return join_lines([*lines, *group_flags(spec.args)])


def _devices(gpu_ids: Sequence[str]) -> str:
    return f'"device={",".join(gpu_ids)}"'


def _port(port: PublishedPort, host_port: str) -> str:
    outer = host_port or str(port.host_port or "")
    if port.host_ip in _EVERY_ADDRESS:
        return f"{outer}:{port.container_port}" if outer else str(port.container_port)
    address = f"[{port.host_ip}]" if ":" in port.host_ip else port.host_ip
    return f"{shlex.quote(address + ':')}{outer}:{port.container_port}"


def shell_source(mount: Mount) -> str:
    """The host's end of a mount as a quoted word."""
    path = shell_path(mount.source)
    if not mount.host_variable:
        return path
    default = mount.source.replace("~", "$HOME", 1) if mount.source.startswith("~") else mount.source
    return f'"${{{mount.host_variable}:-{default}}}"'


def _mount(mount: Mount, source: str) -> str:
    """``-v source:target:ro``, or --mount, as a line of CSV, where a path has a colon."""
    if ":" not in mount.source + mount.target:
        return f"-v {source}:{shlex.quote(mount.target + (':ro' if mount.is_read_only else ''))}"
    quote = '"' if _NOT_IN_CSV.search(mount.source + mount.target) else ""
    host = shell_path(mount.source.replace('"', '""')) if quote else source
    inside = mount.target.replace('"', '""') if quote else mount.target
    ending = ",readonly" if mount.is_read_only else ""
    return (
        f"--mount {shlex.quote(f'type=bind,{quote}source=')}{host}"
        f"{shlex.quote(f'{quote},{quote}target={inside}{quote}{ending}')}"
    )
