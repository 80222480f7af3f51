"""Pure. What a container is given (cards, folders, ports, memory, environment) and the command inside it."""

from __future__ import annotations

import csv
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Final

from trimtab.stackfile.foreign_container_options import (
    SHORT_NAMES,
    SWITCHES,
    VALUED,
    canonical_option,
)
from trimtab.stackfile.foreign_model import Argument, Finding, ForeignEnv, ForeignGpus, at_line
from trimtab.stackfile.foreign_secrets import shown

__all__ = [
    "Container",
    "Mount",
    "Port",
    "decode_docker_size",
    "decode_gpu_request",
    "decode_mount",
    "decode_port",
    "decode_volume",
    "read_container",
]

_SIZE: Final = re.compile(r"(\d+(?:\.\d+)?)\s*([bkmgt]?)(?:i?b)?", re.IGNORECASE)
_UNITS: Final = {"": 1, "b": 1, "k": 2**10, "m": 2**20, "g": 2**30, "t": 2**40}
_UNQUOTED_DEVICES: Final = re.compile(r"device=[^\s\",=]+(?:,[^\s\",=]+)+")


@dataclass(frozen=True, slots=True, kw_only=True)
class Mount:
    """A folder of the host inside the container; ``source`` is empty for a named volume or a tmpfs."""

    source: str
    target: str
    volume: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Port:
    """A published port; ``host_port`` is None where docker picks one, ``address`` empty for every one."""

    container_port: int
    host_port: int | None
    address: str = ""


@dataclass(slots=True)
class Container:
    """A container as it is described; ``entrypoint`` is None where the image's own is kept."""

    image: Argument = field(default_factory=lambda: Argument(text=""))
    command: tuple[Argument, ...] = ()
    entrypoint: tuple[Argument, ...] | None = None
    name: str = ""
    env: list[ForeignEnv] = field(default_factory=list)
    mounts: list[Mount] = field(default_factory=list)
    ports: list[Port] = field(default_factory=list)
    gpus: ForeignGpus | None = None
    has_nvidia_runtime: bool = False
    shm_bytes: int | None = None
    ipc: str | None = None
    network: str = ""
    line: int = 0
    findings: list[Finding] = field(default_factory=list)

    def note(self, code: str, text: str, line: int) -> None:
        """Something about it that was not understood or not read."""
        found = Finding(code=code, severity="unknown", text=text, where=at_line(line))
        self.findings.append(found)


def read_container(
    arguments: Sequence[Argument], *, host_env: Iterable[ForeignEnv] = (), line: int = 0
) -> Container:
    """The container that ``docker run ARGUMENTS`` starts; ``host_env`` is what docker itself sees."""
    container = Container(line=line)
    seen = {entry.name: entry for entry in host_env}
    at = 0
    while at < len(arguments):
        argument = arguments[at]
        if argument.text == "--":
            at += 1
            break
        if _hides_options(arguments, at):
            names = ", ".join(shown(name) for name in argument.unknowns)
            text = f"{names} may hold further options of the container, which the file does not say"
            container.note("arguments_unknown", text, argument.line)
            at += 1
            continue
        if not argument.text.startswith("-") or argument.text == "-":
            break
        at = _read_option(container, arguments, at, seen)
    if at < len(arguments):
        container.image = arguments[at]
        container.command = tuple(arguments[at + 1 :])
    return container


def _hides_options(arguments: Sequence[Argument], at: int) -> bool:
    """Whether something unknown stands where the image could, and the image comes later."""
    argument = arguments[at]
    is_bare = bool(argument.unknowns) and argument.text.startswith(("$", "`"))
    return is_bare and any(
        "/" in later.text and "vllm" in later.text.lower() and not later.text.startswith("-")
        for later in arguments[at + 1 :]
    )


def _read_option(
    container: Container, arguments: Sequence[Argument], at: int, host_env: dict[str, ForeignEnv]
) -> int:
    """Reads the option at ``at`` with its value; the place after it."""
    argument = arguments[at]
    name, separator, value = argument.text.partition("=")
    if not argument.text.startswith("--"):
        return _read_short(container, arguments, at, host_env)
    name = canonical_option(name)
    if separator:
        _apply(container, name, _replaced(argument, value), host_env)
        return at + 1
    if name in SWITCHES:
        return at + 1
    has_next = at + 1 < len(arguments)
    if name not in VALUED:
        container.note(
            "unknown_container_option", f"{shown(name)} is not an option of docker run", argument.line
        )
        if not has_next or _looks_like_start(arguments, at + 1):
            return at + 1
    if has_next:
        _apply(container, name, arguments[at + 1], host_env)
    return at + 2


def _read_short(
    container: Container, arguments: Sequence[Argument], at: int, host_env: dict[str, ForeignEnv]
) -> int:
    """``-d``, ``-itd``, ``-p 8000:8000``, ``-p8000:8000``."""
    argument = arguments[at]
    letters = argument.text[1:]
    for place, letter in enumerate(letters):
        name = SHORT_NAMES.get(letter)
        if name is None:
            container.note(
                "unknown_container_option", f"-{shown(letter)} is not an option of docker run", argument.line
            )
            return at + 1
        if name in SWITCHES:
            continue
        rest = letters[place + 1 :].removeprefix("=")
        if rest:
            _apply(container, name, _replaced(argument, rest), host_env)
            return at + 1
        if at + 1 < len(arguments):
            _apply(container, name, arguments[at + 1], host_env)
        return at + 2
    return at + 1


def _looks_like_start(arguments: Sequence[Argument], at: int) -> bool:
    """Whether the next option or the image comes here rather than a value."""
    text = arguments[at].text
    return text.startswith("-") or "vllm" in text.lower()


def _replaced(argument: Argument, text: str) -> Argument:
    return Argument(text=text, line=argument.line, unknowns=argument.unknowns)


def _apply(container: Container, name: str, value: Argument, host_env: dict[str, ForeignEnv]) -> None:
    """Takes over an option that matters; the others change nothing the planner looks at."""
    text = value.text
    if name == "--env":
        container.env.append(_decode_env(value, host_env))
    elif name == "--env-file":
        container.note("env_file", "an env file is given and was not read", value.line)
    elif name in {"--volume", "--mount"}:
        container.mounts.extend(decode_volume(text) if name == "--volume" else decode_mount(text))
    elif name == "--publish":
        container.ports.extend(decode_port(text))
    elif name == "--entrypoint":
        container.entrypoint = (value,) if text else ()
    elif name in {"--gpus", "--device", "--shm-size"}:
        _apply_resource(container, name, value)
    else:
        _apply_text(container, name, text)


def _apply_text(container: Container, name: str, text: str) -> None:
    if name == "--ipc":
        container.ipc = text
    elif name == "--name":
        container.name = text
    elif name == "--network":
        container.network = text
    elif name == "--runtime":
        container.has_nvidia_runtime = text.rsplit("/", 1)[-1].startswith("nvidia")


def _apply_resource(container: Container, name: str, value: Argument) -> None:
    if name == "--device":
        _apply_device(container, value.text)
        return
    if name == "--shm-size":
        container.shm_bytes = decode_docker_size(value.text)
        is_understood = container.shm_bytes is not None
    else:
        container.gpus = decode_gpu_request(value.text)
        is_understood = container.gpus is not None
        if _UNQUOTED_DEVICES.fullmatch(value.text):
            container.findings.append(_lost_quotes(value))
    if not is_understood:
        code = "gpus_not_understood" if name == "--gpus" else "shm_not_understood"
        container.note(code, f"{name} {shown(value.text)} was not understood", value.line)


def _lost_quotes(value: Argument) -> Finding:
    return Finding(
        code="gpus_quotes_lost",
        severity="error",
        text="docker takes what follows the first comma of --gpus as another setting, and refuses it",
        where=at_line(value.line),
        hint=f"two pairs of quotes: --gpus '\"{shown(value.text)}\"'",
    )


def _apply_device(container: Container, text: str) -> None:
    """``--device nvidia.com/gpu=all`` as podman names cards (CDI)."""
    if not text.startswith("nvidia.com/gpu="):
        return
    wanted = text.partition("=")[2]
    more = ForeignGpus(is_all=True) if wanted == "all" else decode_gpu_request(f"device={wanted}")
    have = container.gpus
    if more is not None and have is not None and not have.is_all and not more.is_all:
        more = ForeignGpus(indices=have.indices + more.indices, uuids=have.uuids + more.uuids)
    container.gpus = more or have


def _decode_env(value: Argument, host_env: dict[str, ForeignEnv]) -> ForeignEnv:
    name, separator, text = value.text.partition("=")
    if separator:
        return ForeignEnv(name=name, value=None if value.unknowns else text, line=value.line)
    known = host_env.get(name)
    return ForeignEnv(name=name, value=known.value if known else None, line=value.line)


def decode_gpu_request(text: str) -> ForeignGpus | None:
    """``all``, ``2``, ``"device=0,1"``, ``count=2,capabilities=compute`` …; None if it is none of these."""
    text = text.strip()
    plain = text.strip("\"'")
    if plain in {"all", "-1"}:
        return ForeignGpus(is_all=True)
    if plain.isdecimal() and len(plain) < 4:
        return ForeignGpus(count=int(plain))
    fields = next(iter(csv.reader([text])), []) if "\n" not in text else []
    if plain != text and "capabilities" not in text and "count" not in text:
        fields = [plain]
    return _decode_gpu_fields(fields)


def _decode_gpu_fields(fields: Sequence[str]) -> ForeignGpus | None:
    """The comma-separated key=value pairs; bare values go on with the key before (``device=0,1``)."""
    values: dict[str, list[str]] = {}
    key = ""
    for part in (piece for text in fields for piece in text.split(",")):
        head, separator, rest = part.strip().strip("\"'").partition("=")
        key = head if separator else key
        values.setdefault(key, []).append(rest if separator else head)
    devices = values.get("device")
    if devices is not None:
        return device_names(devices)
    count = values.get("count", [""])[0]
    if count in {"all", "-1"}:
        return ForeignGpus(is_all=True)
    return ForeignGpus(count=int(count)) if count.isdecimal() and len(count) < 4 else None


def device_names(names: Iterable[str]) -> ForeignGpus | None:
    """Indices or UUIDs; None where one is neither."""
    stripped = [name.strip() for name in names if name.strip()]
    if stripped == ["all"]:
        return ForeignGpus(is_all=True)
    if all(name.isdecimal() and len(name) < 4 for name in stripped):
        return ForeignGpus(indices=tuple(dict.fromkeys(int(name) for name in stripped)))
    if all(name.startswith(("GPU-", "MIG-")) for name in stripped):
        return ForeignGpus(uuids=tuple(stripped))
    return None


def decode_docker_size(text: str) -> int | None:
    """Bytes of ``16g``, ``16gb``, ``1024``; docker's units are powers of 1024. None if it is no size."""
    match = _SIZE.fullmatch(text.strip())
    if match is None or len(text) > 30:
        return None
    return int(float(match.group(1)) * _UNITS[match.group(2).lower()])


def decode_volume(text: str) -> list[Mount]:
    """``/host:/container[:ro]``, a named volume, or a Windows path."""
    drive = re.match(r"[A-Za-z]:[\\/]", text)
    head = text[: drive.end()] if drive else ""
    pieces = text[len(head) :].split(":")
    if len(pieces) < 2 or not pieces[1].startswith("/"):
        return []
    source = head + pieces[0]
    is_path = bool(drive) or source.startswith(("/", ".", "~", "$"))
    return [Mount(source=source if is_path else "", target=pieces[1], volume="" if is_path else source)]


def decode_mount(text: str) -> list[Mount]:
    """``type=bind,source=/host,target=/container,readonly``."""
    values = dict(part.strip().partition("=")[::2] for part in text.split(","))
    source = values.get("source") or values.get("src") or ""
    target = values.get("target") or values.get("destination") or values.get("dst") or ""
    if not target:
        return []
    is_bind = values.get("type", "volume") == "bind"
    return [Mount(source=source if is_bind else "", target=target, volume="" if is_bind else source)]


def decode_port(text: str) -> list[Port]:
    """``8000:8000``, ``127.0.0.1:8000:8000/tcp``, ``8000``, or ranges of equal length."""
    plain = text.partition("/")[0]
    host, _, container = plain.rpartition(":")
    address, _, host = host.rpartition(":")
    inner, outer = _port_range(container), _port_range(host)
    if not inner:
        return []
    if not host:
        return [Port(container_port=port, host_port=None, address=address) for port in inner]
    return [
        Port(container_port=port, host_port=at, address=address)
        for port, at in zip(inner, outer, strict=False)
    ]


def _port_range(text: str) -> range:
    first, _, last = text.partition("-")
    if not (first.isdecimal() and (last or first).isdecimal() and len(text) <= 11):
        return range(0)
    begin, end = int(first), int(last or first)
    return range(begin, end + 1) if 0 < begin <= end <= 65535 else range(0)
