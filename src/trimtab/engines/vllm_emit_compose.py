"""Pure. Containers as a Compose file. Strings are written as double-quoted YAML, `$` doubled for Compose."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from typing import Final

from trimtab.core.container import ContainerSpec, Mount, PublishedPort
from trimtab.engines.vllm_emit_shell import sharing, shell_size

__all__ = ["render_compose", "yaml_text"]

# A printable ASCII character stands for itself; letters of other scripts do as well.
_ESCAPES: Final = {'"': '\\"', "\\": "\\\\", "\n": "\\n", "\r": "\\r", "\t": "\\t"}
_PLAIN: Final = re.compile(r"[ -~\u00a1-\ud7ff\ue000-\ufefe\uff00-\uffef]")
_PLAIN_KEY: Final = re.compile(r"^[A-Za-z][A-Za-z0-9._-]*$")
# Words that YAML 1.1 reads as something else than text.
_NOT_TEXT: Final = frozenset({"y", "n", "yes", "no", "on", "off", "true", "false", "null"})
_EVERY_ADDRESS: Final = "0.0.0.0"  # noqa: S104  # Compose's own default, left out
# Weights are read and kernels compiled before the server answers; until then failing is no failure.
_START_PERIOD: Final = "60m"


def yaml_text(text: str) -> str:
    """A double-quoted YAML string that Compose passes on unchanged."""
    return f'"{"".join(_character(character) for character in text.replace("$", "$$"))}"'


def _character(character: str) -> str:
    if character in _ESCAPES:
        return _ESCAPES[character]
    if _PLAIN.match(character):
        return character
    code = ord(character)
    return f"\\x{code:02x}" if code < 0x100 else f"\\u{code:04x}" if code < 0x10000 else f"\\U{code:08x}"


def render_compose(specs: Sequence[ContainerSpec], *, notes: Sequence[Sequence[str]]) -> str:
    """A file with one service per container; ``notes`` are comment lines over each.

    Containers that share a card start one after the other: each measures the card's free memory.
    """
    lines = ["services:"]
    for index, (spec, above) in enumerate(zip(specs, notes, strict=True)):
        lines += [f"  {note}" for note in above]
        lines.append(f"  {_key(spec.name)}:")
        lines += [f"    {line}" for line in _service(spec, waits_for=sharing(specs, index))]
    return "\n".join(lines) + "\n"


def _key(name: str) -> str:
    """A container's name as a key; names have letters, digits and ``._-`` only."""
    return name if _PLAIN_KEY.match(name) and name.lower() not in _NOT_TEXT else yaml_text(name)


def _service(spec: ContainerSpec, *, waits_for: Sequence[ContainerSpec]) -> Iterable[str]:
    yield f"image: {yaml_text(spec.image)}"
    yield f"container_name: {yaml_text(spec.name)}"
    yield from _block("command", [f"- {yaml_text(word)}" for word in spec.args])
    variables = [f"{name}: {yaml_text(value)}" for name, value in spec.env]
    # A name without a value is taken from the caller's environment.
    yield from _block("environment", [*variables, *(f"{name}: null" for name in spec.passed_env)])
    yield from _block("volumes", [line for mount in spec.mounts for line in _mount(mount)])
    yield from _block("ports", [f"- {yaml_text(_port(port))}" for port in spec.ports])
    if spec.ipc != "private":
        yield f"ipc: {spec.ipc}"
    if spec.shm_bytes is not None:
        yield f"shm_size: {shell_size(spec.shm_bytes)}"
    yield from _block("labels", [f"{yaml_text(name)}: {yaml_text(value)}" for name, value in spec.labels])
    yield "restart: unless-stopped"
    yield from _health(spec)
    yield from _block(
        "depends_on",
        [line for other in waits_for for line in (f"{_key(other.name)}:", "  condition: service_healthy")],
    )
    yield from _cards(spec.gpu_ids)


def _block(key: str, lines: Sequence[str]) -> Iterable[str]:
    if lines:
        yield f"{key}:"
        yield from (f"  {line}" for line in lines)


def _mount(mount: Mount) -> Iterable[str]:
    yield "- type: bind"
    yield f"  source: {_source(mount)}"
    yield f"  target: {yaml_text(mount.target)}"
    if mount.is_read_only:
        yield "  read_only: true"
    # A cache is made where it is missing; an empty folder in a model's place would only fail later.
    yield f"  bind: {{create_host_path: {'false' if mount.is_read_only else 'true'}}}"


def _source(mount: Mount) -> str:
    """The host's end; Compose itself resolves ``./`` and ``~``, and variables with a default."""
    if not mount.host_variable:
        is_named = mount.source.startswith(("/", "~", "."))
        return yaml_text(mount.source if is_named else f"./{mount.source}")
    default = mount.source.replace("~", "${HOME}", 1)
    return f'"${{{mount.host_variable}:-{default}}}"'


def _port(port: PublishedPort) -> str:
    outer = str(port.host_port or "")
    if port.host_ip == _EVERY_ADDRESS:
        return f"{outer}:{port.container_port}" if outer else str(port.container_port)
    address = f"[{port.host_ip}]" if ":" in port.host_ip else port.host_ip
    return f"{address}:{outer}:{port.container_port}"


def _health(spec: ContainerSpec) -> Iterable[str]:
    port = next((port.container_port for port in spec.ports), None)
    if port is None:
        return
    check = f"import urllib.request; urllib.request.urlopen('http://127.0.0.1:{port}/health', timeout=5)"
    words = ", ".join(yaml_text(word) for word in ("CMD", "python3", "-c", check))
    yield from _block(
        "healthcheck", [f"test: [{words}]", "interval: 10s", "timeout: 10s", f"start_period: {_START_PERIOD}"]
    )


def _cards(gpu_ids: Sequence[str]) -> Iterable[str]:
    if not gpu_ids:
        return
    ids = ", ".join(yaml_text(gpu_id) for gpu_id in gpu_ids)
    yield "deploy:"
    yield "  resources:"
    yield "    reservations:"
    yield "      devices:"
    yield "        - driver: nvidia"
    yield f"          device_ids: [{ids}]"
    yield "          capabilities: [gpu]"
