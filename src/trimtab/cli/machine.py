"""I/O. Gathers the facts that ``doctor`` judges; looks only, writes nothing that stays."""

from __future__ import annotations

import contextlib
import importlib.metadata
import importlib.util
import platform
import shutil
import tempfile
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import psutil

from trimtab.cli.folders import Folders
from trimtab.cli.machine_docker import read_docker
from trimtab.core.gpu_facts import GpuProbe
from trimtab.core.hardware import Gpu
from trimtab.core.preflight import FolderFacts, MachineFacts, VllmFacts
from trimtab.core.stack import EngineName
from trimtab.core.state import ObservedReplica
from trimtab.engines.llama_cpp import REQUIRED_XLLAMACPP
from trimtab.errors import EnvironmentMissingError
from trimtab.launcher.state_folder import find_supervisor
from trimtab.probes.embedded_model import find_embedded_model
from trimtab.probes.gpu_peers import probe_peer_copies
from trimtab.probes.gpus import probe_gpus
from trimtab.probes.host import probe_host
from trimtab.probes.hub import hub_endpoint, hub_is_offline
from trimtab.probes.hub_cache import hub_cache_dir
from trimtab.probes.processes import probe_port_holder
from trimtab.probes.vllm_program import find_vllm
from trimtab.runtimes.local_process import LocalProcessRuntime
from trimtab.runtimes.routed import RoutedRuntime
from trimtab.units import GIB

__all__ = ["DoctorWish", "choose_idle", "read_machine_facts", "read_own_pids", "read_vllm"]

# What an idle card holds: 1 MiB to some hundred MiB (desktop, persistence daemon).
_IDLE_BYTES: Final = GIB


@dataclass(frozen=True, slots=True, kw_only=True)
class DoctorWish:
    """What the user means to run, so far as they said; ``tries_copies`` allows copies between cards."""

    port: int
    engine: EngineName | None = None
    vllm_version: str = ""
    tries_copies: bool = False


async def read_machine_facts(folders: Folders, wish: DoctorWish) -> MachineFacts:
    """Everything ``planner.preflight.check_machine`` judges, as of now."""
    supervisor = find_supervisor(folders.state)
    engine_version, engine_error = _read_engine()
    embedded = find_embedded_model(folders.cache)
    replicas = await _read_replicas(folders.state)
    own_pids = _with_children(item.pid for item in replicas)
    gpus = probe_gpus()
    holder = probe_port_holder("127.0.0.1", wish.port)
    return MachineFacts(
        host=probe_host(),
        operating_system=platform.platform(terse=True),
        python_version=platform.python_version(),
        state=_read_folder(folders.state),
        cache=_read_folder(folders.cache),
        port=wish.port,
        port_holder=str(holder) if holder is not None else "",
        port_is_ours=supervisor is not None and supervisor.port == wish.port,
        engine_version=engine_version,
        engine_error=engine_error,
        required_engine_version=REQUIRED_XLLAMACPP,
        embedded_model_path=str(embedded or ""),
        pip_is_available=importlib.util.find_spec("pip") is not None,
        hub_endpoint=hub_endpoint(),
        hub_is_offline=hub_is_offline(),
        leftover_replicas=() if supervisor else tuple(item.replica_id for item in replicas),
        gpus=gpus,
        peer_copies=probe_peer_copies(choose_idle(gpus)) if wish.tries_copies else None,
        own_pids=own_pids,
        orphan_pids=frozenset(item.pid for item in gpus.processes if _is_orphan(item.pid)),
        wanted_engine=wish.engine,
        vllm=read_vllm(folders, wish.vllm_version),
        vllm_version=wish.vllm_version,
        docker=read_docker(),
        hub_cache=_read_shared_folder(hub_cache_dir()),
    )


def choose_idle(probe: GpuProbe) -> tuple[Gpu, ...]:
    """The cards that nobody uses: a copy test takes some hundred MB, which a busy card may not have."""
    return tuple(
        gpu
        for gpu in probe.gpus
        if gpu.free_bytes is not None and gpu.total_bytes - gpu.free_bytes <= _IDLE_BYTES
    )


def _read_engine() -> tuple[str, str]:
    """(version, "") of the installed xllamacpp, or ("", why it cannot be loaded)."""
    try:
        version = importlib.metadata.version("xllamacpp")
        import xllamacpp  # noqa: F401, PLC0415 - the import is the check
    except (ImportError, OSError) as error:
        return "", str(error)
    return version, ""


def _read_folder(folder: Path) -> FolderFacts:
    """Whether the folder, or the nearest one that exists above it, can be written."""
    nearest = folder
    while not nearest.exists() and nearest != nearest.parent:
        nearest = nearest.parent
    refusal, free_bytes = "", None
    try:
        free_bytes = shutil.disk_usage(nearest).free
        with tempfile.TemporaryFile(dir=nearest) as probe:
            probe.write(b"x")
    except OSError as error:
        refusal = (error.strerror or str(error)).lower()
    return FolderFacts(path=str(folder), free_bytes=free_bytes, refusal=refusal)


def _read_shared_folder(folder: Path) -> FolderFacts | None:
    """A folder that is only read; None where it isn't there."""
    try:
        if not folder.is_dir():
            return None
        next(folder.iterdir(), None)
        return FolderFacts(path=str(folder), free_bytes=shutil.disk_usage(folder).free)
    except OSError as error:
        reason = (error.strerror or str(error)).lower()
        return FolderFacts(path=str(folder), free_bytes=None, refusal=reason)


def read_vllm(folders: Folders, version: str) -> VllmFacts:
    """The vLLM that a start would use: of the asked version, else any."""
    try:
        wanted = version.removeprefix("v") or None
        found = find_vllm(wanted, cache_dir=folders.cache)
        if found is None and wanted is not None:
            found = find_vllm(None, cache_dir=folders.cache)
    except EnvironmentMissingError as error:
        return VllmFacts(problem=error.message, fix=error.hint)
    if found is None:
        return VllmFacts()
    return VllmFacts(
        path=found.path,
        version=found.version,
        is_cpu_build=found.is_cpu_build,
        cuda_version=found.cuda_version,
    )


async def _read_replicas(state: Path) -> tuple[ObservedReplica, ...]:
    """What runs of this state folder, as processes and in containers."""
    try:
        replicas = await RoutedRuntime(state, python="").list_replicas()
    except (EnvironmentMissingError, ImportError):
        replicas = await LocalProcessRuntime(state, python="").list_replicas()
    return tuple(item for item in replicas if item.is_running)


async def read_own_pids(state: Path) -> frozenset[int]:
    """The processes of engines that trimtab runs from this state folder, their workers too."""
    return _with_children(item.pid for item in await _read_replicas(state))


def _with_children(pids: Iterable[int]) -> frozenset[int]:
    """The processes and everything below them: vLLM's workers hold the cards, not its server."""
    found: set[int] = set()
    for pid in pids:
        with contextlib.suppress(psutil.Error):
            found.update((pid, *(child.pid for child in psutil.Process(pid).children(recursive=True))))
    return frozenset(found)


def _is_orphan(pid: int) -> bool:
    """Whether this is a part of a vLLM (VLLM::EngineCore, VLLM::Worker) whose server is gone."""
    try:
        process = psutil.Process(pid)
        return process.name().startswith("VLLM::") and process.ppid() == 1
    except psutil.Error:
        return False
