"""Pure. A start that was found → a ForeignModel: model folder, names, version, cards, port, environment."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import Final

from trimtab.core.stack import ModelRequest, SettingValue
from trimtab.errors import StackFileError
from trimtab.stackfile.decode import check_model_name
from trimtab.stackfile.foreign_arguments import EngineArguments, read_arguments
from trimtab.stackfile.foreign_container import Container, Mount, device_names
from trimtab.stackfile.foreign_launch import Launch, ScriptText, find_launch, speaks_of_vllm
from trimtab.stackfile.foreign_model import (
    Argument,
    Finding,
    FindingSeverity,
    ForeignEnv,
    ForeignFlag,
    ForeignGpus,
    ForeignModel,
    at_line,
)
from trimtab.stackfile.foreign_mounts import find_unused_mounts
from trimtab.stackfile.foreign_secrets import is_secret_name, is_secret_value, shown
from trimtab.stackfile.foreign_shell import read_script
from trimtab.stackfile.names import served_name_of

__all__ = ["Assembly"]

# Flags that have a place of their own in ForeignModel or say nothing about the engine's work.
_PLACED: Final = frozenset({"model", "model_tag", "served_model_name", "host", "port"})
_TELLING: Final = frozenset({"--model", "--served-model-name", "--tensor-parallel-size", "--max-model-len"})
_DEFAULT_PORT: Final = 8000
_TAG: Final = re.compile(r"v?([01]\.\d{1,3}\.\d{1,3})(?:\.post\d+)?(?:[-+._].*)?")
# Images whose tags are vLLM's own versions; others (nvcr.io/nvidia/vllm:25.09-py3) number otherwise.
_OWN_TAGS: Final = re.compile(r"(?:^|/)vllm-(?:openai|cpu|tpu|arm64|gh200)[a-z0-9\-]*$")
_EVERYWHERE: Final = frozenset({"", "0.0.0.0", "::", "[::]"})  # noqa: S104
_HUB_CACHE: Final = "/root/.cache/huggingface"


@dataclass(slots=True)
class Assembly:
    """Collects the models and the findings of one file; ``home`` is what ``~`` stands for, empty unknown."""

    home: str = ""
    models: list[ForeignModel] = field(default_factory=list)
    findings: list[Finding] = field(default_factory=list)

    def add_engine(self, launch: Launch) -> None:
        """A bare ``vllm serve``."""
        parsed = read_arguments(launch.arguments, version=None)
        self._add(Container(line=launch.line), parsed, launch.env)

    def add_container(self, container: Container) -> None:
        """A container; one that has nothing to do with vLLM is left aside."""
        self.findings.extend(container.findings)
        name = _image_name(container.image.text).lower()
        command = (*(container.entrypoint or ()), *container.command)
        is_hidden = bool(container.image.unknowns) and _speaks_like_vllm(command)
        is_own = "vllm" in name or is_hidden
        if not is_own and not speaks_of_vllm(command):
            text = f"the container with the image {shown(container.image.text) or 'unknown'} is not vLLM's"
            self._find("other_container", "note", text, container.line)
            return
        found = find_launch(command) if command else None
        if isinstance(found, ScriptText):
            self._add_script(container, found.argument)
            return
        if found is not None:
            self._check_entrypoint(container, name)
            arguments: Sequence[Argument] = found[1]
        elif is_own and container.entrypoint is None:
            arguments = container.command
            if arguments and arguments[0].text == "serve":
                self._check_entrypoint(container, name)
                arguments = arguments[1:]
        else:
            self._find(
                "command_not_understood",
                "unknown",
                "the container's command mentions vLLM and was not understood",
                container.line,
            )
            return
        parsed = read_arguments(arguments, version=_version_of(container.image.text))
        self._add(container, parsed, ())

    def _add_script(self, container: Container, argument: Argument) -> None:
        """``bash -c '… vllm serve …'`` as the container's command."""
        script = read_script(argument.text, first_line=argument.line)
        self.findings.extend(script.findings)
        for launch in script.launches:
            if launch.kind == "engine":
                parsed = read_arguments(launch.arguments, version=_version_of(container.image.text))
                self._add(container, parsed, launch.env)
        if not script.launches:
            self._find(
                "command_not_understood", "unknown", "the container's script starts no vLLM", container.line
            )

    def _check_entrypoint(self, container: Container, name: str) -> None:
        if container.entrypoint is None and _OWN_TAGS.search(name):
            self._find(
                "entrypoint_twice",
                "error",
                "the image already runs vllm serve, and gets these words once more as arguments",
                container.command[0].line,
                "give the image the arguments only, or set --entrypoint",
            )

    def _find(self, code: str, severity: FindingSeverity, text: str, line: int, hint: str = "") -> None:
        found = Finding(code=code, severity=severity, text=text, where=at_line(line), hint=hint)
        self.findings.append(found)

    def _add(self, container: Container, parsed: EngineArguments, engine_env: Iterable[ForeignEnv]) -> None:
        self.findings.extend(parsed.findings)
        if parsed.model is None or not parsed.model.text.strip():
            has_config = any(flag.name == "config" for flag in parsed.flags)
            why = "the model may stand in its config file, which was not read" if has_config else ""
            self._find("no_model", "error", "this start names no model", container.line, why)
            return
        env = tuple(self._guarded(entry) for entry in (*container.env, *engine_env))
        model = self._made(container, parsed, parsed.model, env)
        self._check_flags(parsed.flags)
        self._check_image(container)
        self.findings.extend(find_unused_mounts(container, parsed.model.text, parsed.flags, env))
        self.models.append(replace(model, request=self._named(model)))

    def _made(
        self,
        container: Container,
        parsed: EngineArguments,
        seen: Argument,
        env: tuple[ForeignEnv, ...],
    ) -> ForeignModel:
        image = container.image.text
        values = {flag.name: flag.value for flag in parsed.flags if not flag.is_unread}
        served = _texts_of(values.get("served_model_name")) or (seen.text,)
        gpus = self._gpus(container, env)
        is_port_unread = any(flag.name == "port" and flag.is_unread for flag in parsed.flags)
        wished_port = values.get("port", _DEFAULT_PORT)
        is_port = isinstance(wished_port, int) and not isinstance(wished_port, bool)
        listen_port = int(wished_port) if is_port and wished_port else _DEFAULT_PORT
        request = ModelRequest(
            name=served[0],
            checkpoint=self._checkpoint(container, seen, env),
            engine="vllm",
            engine_version=_version_of(image),
            runtime="docker" if image else "process",
            gpus=",".join(map(str, gpus.indices)) or None,
            engine_args=tuple((flag.name, flag.value) for flag in parsed.flags if _is_pinned(flag)),
        )
        host = values.get("host")
        host = host if isinstance(host, str) else None
        port, address = self._port(container, listen_port, host or "")
        return ForeignModel(
            request=request,
            served_names=served,
            checkpoint_seen=seen.text,
            flags=tuple(parsed.flags),
            env=env,
            gpus=gpus,
            host=host,
            port=None if is_port_unread else port,
            listen_port=listen_port,
            address=address,
            image=image,
            container_name=container.name,
            shm_bytes=container.shm_bytes,
            ipc=container.ipc,
            line=container.line,
        )

    def _named(self, model: ForeignModel) -> ModelRequest:
        """The request under a name that trimtab can serve, told apart from the models before."""
        wished = model.request.name
        try:
            check_model_name(wished, where="served name")
            name = wished
        except StackFileError:
            name = served_name_of(wished)
            name = "model" if name == "trimtab" else name
        taken = {other.request.name for other in self.models}
        if name in taken:
            number = next(n for n in range(2, len(taken) + 3) if f"{name}-{n}" not in taken)
            self._find(
                "same_name",
                "note",
                f"two models are served as {shown(name)}; here it is called {shown(name)}-{number}",
                model.line,
            )
            name = f"{name}-{number}"
        return replace(model.request, name=name)

    def _guarded(self, entry: ForeignEnv) -> ForeignEnv:
        """A secret's value goes no further than here."""
        if not entry.value or not (is_secret_name(entry.name) or is_secret_value(entry.value)):
            return entry
        self._find(
            "secret_in_clear",
            "harmful",
            f"the value of {shown(entry.name)} stands in the file in clear",
            entry.line,
            f"keep it out of the file: export it once and pass its name only (-e {shown(entry.name)})",
        )
        return replace(entry, value=None, is_secret=True)

    def _check_flags(self, flags: Iterable[ForeignFlag]) -> None:
        for flag in flags:
            if flag.is_secret:
                self._find(
                    "secret_in_clear",
                    "harmful",
                    f"the value of {shown(flag.written)} stands in the file in clear",
                    flag.line,
                    "keep it in the environment; for --api-key that is VLLM_API_KEY",
                )
            elif flag.name == "config":
                self._find("config_file", "unknown", "--config names a file that was not read", flag.line)

    def _check_image(self, container: Container) -> None:
        """Says why a container's version of vLLM is not known."""
        image = container.image
        if not image.text or _version_of(image.text) is not None:
            return
        tag = _tag_of(image.text)
        hint = "name the version: vllm/vllm-openai:v0.25.1, or give --engine-version"
        if image.unknowns:
            names = shown(", ".join(image.unknowns))
            text = f"the image's version hangs on {names}, which the file does not say"
        elif tag in {"", "latest"} or tag.startswith("nightly"):
            tag = tag or "latest"
            text = f"the tag {shown(tag)} is another version of vLLM each time it is pulled"
        else:
            text = f"the image {shown(image.text)} does not say which version of vLLM it has"
        self._find("version_unknown", "unknown", text, image.line or container.line, hint)

    def _checkpoint(self, container: Container, seen: Argument, env: Sequence[ForeignEnv]) -> str:
        """The model on the host: a folder through its mount, or a repo id as it is."""
        if seen.unknowns:
            names = shown(", ".join(seen.unknowns))
            self._find(
                "model_unknown",
                "unknown",
                f"the model hangs on {names}, which the file does not say",
                seen.line,
            )
        if not container.image.text:
            return self._expanded(seen.text)
        if not seen.text.startswith("/"):
            self._check_cache(container, seen, env)
            return seen.text
        mount = _covering(container.mounts, seen.text)
        if mount is None:
            self._find(
                "model_not_mounted",
                "error",
                f"the model is {shown(seen.text)} inside the container, and nothing is mounted there",
                seen.line,
                "mount the host's folder: -v /path/on/host:" + shown(seen.text) + ":ro",
            )
            return seen.text
        if not mount.source:
            text = f"the model is in the volume {shown(mount.volume)}, whose place on the host is not known"
            self._find("model_in_volume", "unknown", text, seen.line)
            return seen.text
        rest = seen.text[len(mount.target.rstrip("/")) :].rstrip("/")
        return self._expanded(mount.source.rstrip("/") + rest or "/")

    def _expanded(self, path: str) -> str:
        """A path with the home folder for its tilde."""
        is_home = self.home and (path == "~" or path.startswith("~/"))
        return self.home.rstrip("/") + path[1:] if is_home else path

    def _check_cache(self, container: Container, seen: Argument, env: Sequence[ForeignEnv]) -> None:
        home = next((entry.value for entry in env if entry.name == "HF_HOME" and entry.value), _HUB_CACHE)
        is_id = "/" in seen.text and not seen.text.startswith((".", "~"))
        if is_id and _covering(container.mounts, home) is None and not _has_inner(container.mounts, home):
            self._find(
                "download_not_kept",
                "note",
                f"{shown(seen.text)} is downloaded into the container and lost when that is removed",
                seen.line,
                f"mount the hub's cache: -v ~/.cache/huggingface:{home}",
            )

    def _gpus(self, container: Container, env: Sequence[ForeignEnv]) -> ForeignGpus:
        values = {entry.name: entry.value for entry in env}
        gpus = container.gpus
        if not container.image.text:
            is_hidden = "CUDA_VISIBLE_DEVICES" in values and values["CUDA_VISIBLE_DEVICES"] is None
            gpus = ForeignGpus(is_all=not is_hidden)
        elif gpus is None and container.has_nvidia_runtime:
            wanted = values.get("NVIDIA_VISIBLE_DEVICES") or "all"
            gpus = device_names(wanted.split(","))
        if gpus is None:
            self._find("no_gpus", "error", "the container is given no card", container.line, "add --gpus all")
            gpus = ForeignGpus()
        visible = values.get("CUDA_VISIBLE_DEVICES")
        return _narrowed(gpus, visible) if visible else gpus

    def _port(self, container: Container, listen_port: int, host: str) -> tuple[int | None, str]:
        """The port that clients use, and the address it is bound to (empty for all)."""
        own = "" if host in _EVERYWHERE else host
        if not container.image.text or container.network == "host":
            return listen_port, own
        found = [port for port in container.ports if port.container_port == listen_port]
        if found:
            address = found[-1].address
            return found[-1].host_port, "" if address in _EVERYWHERE else address
        if container.ports:
            inner = ", ".join(str(port.container_port) for port in container.ports[:4])
            self._find(
                "port_not_published",
                "error",
                f"the engine listens on {listen_port}, and the published port leads to {inner}",
                container.line,
                f"publish {listen_port}, or give --port {container.ports[0].container_port}",
            )
        else:
            self._find(
                "port_not_published",
                "note",
                f"port {listen_port} of the container is not published",
                container.line,
                f"-p {listen_port}:{listen_port}",
            )
        return None, ""


def _speaks_like_vllm(command: Iterable[Argument]) -> bool:
    """Whether the flags are vLLM's, for an image whose name is not known."""
    return any(argument.text.partition("=")[0] in _TELLING for argument in command)


def _is_pinned(flag: ForeignFlag) -> bool:
    return flag.name not in _PLACED and not flag.is_secret and not flag.is_unread


def _texts_of(value: SettingValue) -> tuple[str, ...]:
    """A list flag's words."""
    if not isinstance(value, str):
        return ()
    items = json.loads(value)
    return tuple(str(item) for item in items if str(item).strip())


def _image_name(image: str) -> str:
    """An image without registry port confusion, tag and digest."""
    name = image.partition("@")[0]
    head, _, last = name.rpartition("/")
    return f"{head}/{last.partition(':')[0]}" if head else last.partition(":")[0]


def _tag_of(image: str) -> str:
    last = image.partition("@")[0].rpartition("/")[2]
    return last.partition(":")[2]


def _version_of(image: str) -> str | None:
    """The version of vLLM as the tag says it; None where the tag is of another kind."""
    if not _OWN_TAGS.search(_image_name(image)):
        return None
    match = _TAG.fullmatch(_tag_of(image))
    return match.group(1) if match else None


def _covering(mounts: Iterable[Mount], path: str) -> Mount | None:
    """The mount with the longest target at or above ``path``."""
    found = [mount for mount in mounts if f"{path}/".startswith(mount.target.rstrip("/") + "/")]
    return max(found, key=lambda mount: len(mount.target), default=None)


def _has_inner(mounts: Iterable[Mount], path: str) -> bool:
    """Whether something below ``path`` is mounted (…/huggingface/hub)."""
    return any(mount.target.startswith(path.rstrip("/") + "/") for mount in mounts)


def _narrowed(gpus: ForeignGpus, visible: str) -> ForeignGpus:
    """Cards after CUDA_VISIBLE_DEVICES, whose indices count within what the container sees."""
    inner = device_names(visible.split(","))
    if inner is None or inner.is_all or not inner.num_known:
        return gpus
    if inner.uuids or gpus.is_all:
        return inner
    if gpus.indices and all(index < len(gpus.indices) for index in inner.indices):
        return ForeignGpus(indices=tuple(gpus.indices[index] for index in inner.indices))
    return ForeignGpus(count=inner.num_known)
