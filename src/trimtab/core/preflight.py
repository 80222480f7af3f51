"""Pure. What ``doctor`` looks at and what it says: facts of a machine, findings with their fix."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, TypeAlias

from trimtab.core.hardware import Host

__all__ = ["Finding", "FolderFacts", "MachineFacts", "Severity"]

Severity: TypeAlias = Literal["ok", "warning", "error"]


@dataclass(frozen=True, slots=True, kw_only=True)
class FolderFacts:
    """One folder trimtab wants to write; ``free_bytes`` is None where it cannot be read.

    ``refusal`` is the system's reason why it cannot be written, empty when it can.
    """

    path: str
    free_bytes: int | None
    refusal: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class MachineFacts:
    """Everything ``doctor`` judges, as recorded from one machine.

    ``port_holder`` names who listens on ``port`` (empty: free); ``engine_version`` is the
    installed xllamacpp (empty: not importable, with ``engine_error`` saying why);
    ``embedded_model_path`` is empty while the default model is neither installed nor cached;
    ``leftover_replicas`` are engines whose supervisor is gone.
    """

    host: Host
    operating_system: str
    python_version: str
    state: FolderFacts
    cache: FolderFacts
    port: int
    port_holder: str
    port_is_ours: bool
    engine_version: str
    engine_error: str
    required_engine_version: str
    embedded_model_path: str
    pip_is_available: bool
    hub_endpoint: str
    hub_is_offline: bool
    gpu_names: tuple[str, ...] = ()
    leftover_replicas: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """One thing looked at; ``fix`` is what to do, empty when nothing is wrong."""

    code: str
    severity: Severity
    text: str
    fix: str = ""
