"""I/O. Gathers the facts that ``doctor`` judges; looks only, writes nothing that stays."""

from __future__ import annotations

import importlib.metadata
import importlib.util
import platform
import shutil
import tempfile
from pathlib import Path

from trimtab.cli.folders import Folders
from trimtab.core.preflight import FolderFacts, MachineFacts
from trimtab.engines.llama_cpp import REQUIRED_XLLAMACPP
from trimtab.launcher.state_folder import find_supervisor
from trimtab.probes.embedded_model import find_embedded_model
from trimtab.probes.host import probe_host
from trimtab.probes.hub import hub_endpoint, hub_is_offline
from trimtab.probes.processes import probe_port_holder
from trimtab.runtimes.local_process import LocalProcessRuntime

__all__ = ["read_machine_facts"]


async def read_machine_facts(folders: Folders, *, port: int) -> MachineFacts:
    """Everything ``planner.preflight.check_machine`` judges, as of now."""
    supervisor = find_supervisor(folders.state)
    engine_version, engine_error = _read_engine()
    embedded = find_embedded_model(folders.cache)
    has_leftovers = supervisor is None and folders.state.is_dir()
    holder = probe_port_holder("127.0.0.1", port)
    return MachineFacts(
        host=probe_host(),
        operating_system=platform.platform(terse=True),
        python_version=platform.python_version(),
        state=_read_folder(folders.state),
        cache=_read_folder(folders.cache),
        port=port,
        port_holder=str(holder) if holder is not None else "",
        port_is_ours=supervisor is not None and supervisor.port == port,
        engine_version=engine_version,
        engine_error=engine_error,
        required_engine_version=REQUIRED_XLLAMACPP,
        embedded_model_path=str(embedded or ""),
        pip_is_available=importlib.util.find_spec("pip") is not None,
        hub_endpoint=hub_endpoint(),
        hub_is_offline=hub_is_offline(),
        gpu_names=_read_gpu_names(),
        leftover_replicas=await _read_leftovers(folders.state) if has_leftovers else (),
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


def _read_gpu_names() -> tuple[str, ...]:
    """Names of NVIDIA cards as the driver lists them; empty without a driver."""
    names: list[str] = []
    for card in sorted(Path("/proc/driver/nvidia/gpus").glob("*/information")):
        text = card.read_text(errors="replace")
        names.extend(line.split(":", 1)[1].strip() for line in text.splitlines() if line.startswith("Model"))
    return tuple(names)


async def _read_leftovers(state: Path) -> tuple[str, ...]:
    runtime = LocalProcessRuntime(state, python="")
    return tuple(item.replica_id for item in await runtime.list_replicas() if item.is_running)
