"""I/O. The run records: one folder per replica, written by its guard, read by everybody else.

``<state>/replicas/<replica>/record.json`` says what was started and which processes that was;
``exit.json`` beside it says how the engine ended. Names of replicas and models are percent-encoded
in file names. What cannot be read is reported in the log and otherwise treated as absent.
"""

from __future__ import annotations

import hashlib
import json
import logging
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any
from urllib.parse import quote, unquote

from trimtab.core.state import ExitStatus, ReplicaSpec
from trimtab.runtimes.guard import EXIT_FILE, OUT_OF_DESCRIPTORS, RECORD_FILE
from trimtab.runtimes.process_table import ProcessIdentity

__all__ = [
    "RunRecord",
    "encode_file_name",
    "read_exit_status",
    "read_record",
    "remove_record",
    "render_record",
    "replica_id_of",
]

_LOG = logging.getLogger(__name__)
# File systems allow 255 bytes a name; suffixes such as ".log" and temporary files need some of it.
_MAX_NAME_BYTES = 200


@dataclass(frozen=True, slots=True, kw_only=True)
class RunRecord:
    """What a guard wrote before its engine began; ``log_offset`` is where its output begins in the log."""

    replica_id: str
    stack: str
    model: str
    engine: str
    config_hash: str
    trimtab_version: str
    dies_with_supervisor: bool
    boot_id: str
    engine_pid: int
    engine_start_ticks: int
    guard_pid: int
    guard_start_ticks: int
    port: int
    log_path: str
    log_offset: int
    started_at_s: float
    predicted_bytes: int | None = None
    max_model_len: int | None = None

    @property
    def engine_process(self) -> ProcessIdentity:
        """The engine's own process."""
        return ProcessIdentity(pid=self.engine_pid, start_ticks=self.engine_start_ticks, boot_id=self.boot_id)

    @property
    def guard_process(self) -> ProcessIdentity:
        """The guard, its parent."""
        return ProcessIdentity(pid=self.guard_pid, start_ticks=self.guard_start_ticks, boot_id=self.boot_id)


def encode_file_name(name: str) -> str:
    """A replica's or model's name as one path component, reversible unless it is very long."""
    encoded = quote(name, safe="", errors="surrogateescape")
    if encoded.startswith("."):
        encoded = f"%2E{encoded[1:]}"
    if len(encoded) <= _MAX_NAME_BYTES:
        return encoded
    digest = hashlib.sha256(encoded.encode()).hexdigest()[:16]
    return f"{encoded[: _MAX_NAME_BYTES - 17]}~{digest}"


def replica_id_of(folder_name: str) -> str:
    """The replica a folder name stands for, as far as the name alone tells."""
    return unquote(folder_name, errors="surrogateescape")


def render_record(spec: ReplicaSpec) -> dict[str, object]:
    """What a spec contributes to its record. Neither argv nor env: they may hold secrets."""
    return {
        "replica_id": spec.replica_id,
        "stack": spec.stack,
        "model": spec.model,
        "engine": spec.engine,
        "config_hash": spec.config_hash,
        "trimtab_version": spec.trimtab_version,
        "dies_with_supervisor": spec.dies_with_supervisor,
        "predicted_bytes": spec.predicted_bytes,
        "max_model_len": spec.max_model_len,
    }


def read_record(folder: Path) -> RunRecord | None:
    """The record of a replica's folder; None, with a warning unless it is simply absent, when unusable.

    OSError where this process has no descriptor left to look with.
    """
    path = folder / RECORD_FILE
    try:
        record = _decode(json.loads(path.read_bytes()))
    except (FileNotFoundError, NotADirectoryError):
        return None
    except (OSError, ValueError, RecursionError) as error:
        if isinstance(error, OSError) and error.errno in OUT_OF_DESCRIPTORS:
            raise
        _LOG.warning("run record %s is ignored: %s", path, error)
        return None
    if encode_file_name(record.replica_id) != folder.name:
        _LOG.warning("run record %s is ignored: it speaks of replica %r", path, record.replica_id)
        return None
    return record


def _decode(document: Any) -> RunRecord:
    """The record in a JSON value; ValueError names what is missing or of the wrong kind."""
    if not isinstance(document, dict):
        raise ValueError("not a JSON object")  # noqa: TRY004 - the file is wrong, not the call
    values: dict[str, Any] = {}
    for field in fields(RunRecord):
        value = document.get(field.name)
        kind, is_optional = _KINDS[str(field.type).removesuffix(" | None")], "None" in str(field.type)
        if not (isinstance(value, kind) or (value is None and is_optional)):
            raise ValueError(f"{field.name} is {value!r}, not {field.type}")
        values[field.name] = value
    return RunRecord(**values)


_KINDS: dict[str, type | tuple[type, ...]] = {"str": str, "int": int, "bool": bool, "float": (int, float)}


def read_exit_status(folder: Path) -> ExitStatus:
    """How the engine of this folder ended; unknown when its guard could not tell."""
    try:
        document = json.loads((folder / EXIT_FILE).read_bytes())
        code, number = document["code"], document["signal"]
    except (OSError, ValueError, KeyError, TypeError):
        return ExitStatus(code=None)
    return ExitStatus(
        code=code if isinstance(code, int) else None, signal=number if isinstance(number, int) else None
    )


def remove_record(folder: Path) -> None:
    """Remove our own files and the folder, unless somebody put something else there."""
    try:
        for path in folder.iterdir():
            if path.name.startswith((RECORD_FILE, EXIT_FILE)):
                path.unlink(missing_ok=True)
        folder.rmdir()
    except FileNotFoundError:
        return
    except OSError as error:
        _LOG.warning("run folder %s stays: %s", folder, error)
