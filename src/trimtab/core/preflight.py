"""Pure. What ``doctor`` looks at and what it says: facts of a machine, findings with their fix."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal, TypeAlias

from trimtab.core.gpu_facts import GpuProbe, PeerCopies
from trimtab.core.hardware import Host
from trimtab.core.stack import EngineName

__all__ = ["DockerFacts", "Finding", "FolderFacts", "MachineFacts", "Severity", "VllmFacts"]

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
class VllmFacts:
    """The vLLM that would be run as a process; ``path`` is empty where none was found.

    ``cuda_version`` is that of the CUDA libraries beside it, None where it is not known. ``problem`` and
    ``fix`` say why one that was named cannot be used.
    """

    path: str = ""
    version: str = ""
    is_cpu_build: bool = False
    cuda_version: tuple[int, int] | None = None
    problem: str = ""
    fix: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class DockerFacts:
    """The Docker daemon of this machine; ``address`` is empty where there is no socket at all.

    ``version`` is empty where nobody answered, and ``problem`` with ``fix`` say why.
    ``gives_gpus`` tells whether it can hand NVIDIA cards to containers, None where it does not say.
    """

    address: str = ""
    version: str = ""
    is_podman: bool = False
    gives_gpus: bool | None = None
    problem: str = ""
    fix: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class MachineFacts:
    """Everything ``doctor`` judges, as recorded from one machine.

    ``port_holder`` names who listens on ``port`` (empty: free); ``engine_version`` is the
    installed xllamacpp (empty: not importable, with ``engine_error`` saying why);
    ``embedded_model_path`` is empty while the default model is neither installed nor cached;
    ``leftover_replicas`` are engines whose supervisor is gone. ``wanted_engine`` is what the user
    means to run, None: whatever is there; ``vllm_version`` the version that cards and driver are held
    against, empty: the one found, else the default. ``own_pids`` are processes of engines that trimtab
    runs, ``orphan_pids`` parts of a vLLM whose server is gone. ``peer_copies`` is None where copying
    between cards was not tried; ``hub_cache`` is Hugging Face's shared cache.
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
    leftover_replicas: tuple[str, ...] = ()
    gpus: GpuProbe = field(default_factory=GpuProbe)
    peer_copies: PeerCopies | None = None
    own_pids: frozenset[int] = frozenset()
    orphan_pids: frozenset[int] = frozenset()
    wanted_engine: EngineName | None = None
    vllm: VllmFacts = VllmFacts()
    vllm_version: str = ""
    docker: DockerFacts = DockerFacts()
    hub_cache: FolderFacts | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """One thing looked at; ``fix`` is what to do, empty when nothing is wrong."""

    code: str
    severity: Severity
    text: str
    fix: str = ""
