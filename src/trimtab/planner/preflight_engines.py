"""Pure. Judges what vLLM would run on: the cards, the program, Docker; quiet on machines without a GPU."""

from __future__ import annotations

import re
from collections.abc import Iterator

from trimtab.core.preflight import DockerFacts, Finding, MachineFacts
from trimtab.planner.preflight_gpus import check_gpus
from trimtab.planner.preflight_peers import check_peer_copies, with_peer_copies
from trimtab.planner.vllm_versions import DEFAULT_VLLM_VERSION
from trimtab.units import format_bytes

__all__ = ["check_docker", "check_gpu_side", "check_vllm"]

_PLAIN_VERSION = re.compile(r"v?\d+\.\d+")
_INSTALL = (
    f"pip install vllm=={DEFAULT_VLLM_VERSION} in an environment of its own, with its bin folder on PATH"
)


def check_gpu_side(facts: MachineFacts) -> Iterator[Finding]:
    """The cards for the vLLM that would use them; one quiet finding where none is missed."""
    probe = facts.gpus if facts.peer_copies is None else with_peer_copies(facts.gpus, facts.peer_copies)
    needs_gpus = _needs_gpus(facts)
    if not probe.gpus and not probe.problems:
        text = f"no GPU ({probe.absence or 'none was found'})"
        if needs_gpus and facts.wanted_engine == "vllm":
            fix = "use a machine with an NVIDIA card, a build of vLLM for CPUs, or llama.cpp"
            yield Finding(code="gpus", severity="error", text=f"{text}, and vLLM needs one", fix=fix)
        else:
            yield Finding(code="gpus", severity="ok", text=f"{text}: models run on the CPU with llama.cpp")
        return
    yield from check_gpus(
        probe,
        engine_version=_judged_version(facts),
        own_pids=facts.own_pids,
        is_needed=needs_gpus,
        engine_cuda=_seen_cuda(facts),
    )
    yield from _check_free(facts)
    yield from _check_orphans(facts)
    if facts.peer_copies is not None:
        yield from check_peer_copies(facts.peer_copies)
    elif len(probe.gpus) > 1:
        text = "whether copies between the cards arrive was not tried; trimtab doctor --copies does"
        yield Finding(code="gpu-p2p", severity="ok", text=text)


def _needs_gpus(facts: MachineFacts) -> bool:
    """Whether somebody means to run vLLM on cards here: it was asked for, or it is installed."""
    if facts.vllm.is_cpu_build or facts.wanted_engine == "llama_cpp":
        return False
    return facts.wanted_engine == "vllm" or bool(facts.vllm.path)


def _judged_version(facts: MachineFacts) -> str:
    version = facts.vllm_version or facts.vllm.version
    return version if facts.vllm_version or _PLAIN_VERSION.match(version) else DEFAULT_VLLM_VERSION


def _seen_cuda(facts: MachineFacts) -> tuple[int, int] | None:
    """The CUDA beside the installed vLLM, where that is the one that is judged."""
    is_judged = facts.vllm_version in {"", facts.vllm.version}
    return facts.vllm.cuda_version if is_judged and not facts.vllm.is_cpu_build else None


def _check_free(facts: MachineFacts) -> Iterator[Finding]:
    """What every card has free, in one line."""
    known = [gpu for gpu in facts.gpus.gpus if gpu.free_bytes is not None]
    if known:
        shares = ", ".join(
            f"GPU {gpu.index} {format_bytes(gpu.free_bytes or 0)} of {format_bytes(gpu.total_bytes)}"
            for gpu in known
        )
        yield Finding(code="gpu-free", severity="ok", text=f"free memory: {shares}")


def _check_orphans(facts: MachineFacts) -> Iterator[Finding]:
    for process in facts.gpus.processes:
        if process.pid in facts.orphan_pids - facts.own_pids:
            held = "memory" if process.used_bytes is None else format_bytes(process.used_bytes)
            yield Finding(
                code="gpu-orphan",
                severity="warning",
                text=f"{process.name or 'a process'} (pid {process.pid}) holds {held} of GPU "
                f"{process.gpu_index}, and the server that it belonged to is gone",
                fix=f"kill {process.pid}",
            )


def check_vllm(facts: MachineFacts) -> Iterator[Finding]:
    """The program; nothing where neither it nor a card is there and nobody asks for it."""
    vllm = facts.vllm
    is_asked = facts.wanted_engine == "vllm"
    if vllm.problem:
        yield Finding(
            code="vllm", severity="error" if is_asked else "warning", text=vllm.problem, fix=vllm.fix
        )
    elif vllm.path:
        yield from _check_found(facts)
    elif is_asked or (facts.gpus.gpus and facts.wanted_engine is None):
        if facts.docker.version and facts.docker.gives_gpus is not False:
            text = "vLLM is not installed as a program; runtime: docker runs its image"
            yield Finding(code="vllm", severity="ok", text=text)
        else:
            text = "vLLM is not installed; the first start makes an environment for it (several GB)"
            yield Finding(code="vllm", severity="warning", text=text, fix=f"to do it now: {_INSTALL}")


def _check_found(facts: MachineFacts) -> Iterator[Finding]:
    vllm, wanted = facts.vllm, facts.vllm_version.removeprefix("v")
    text = f"vLLM {vllm.version} at {vllm.path}"
    if wanted and vllm.version != wanted:
        yield Finding(
            code="vllm",
            severity="warning",
            text=f"{text}, and {wanted} was asked for",
            fix=f"a start makes an environment for {wanted}; or leave engine_version out",
        )
    elif vllm.is_cpu_build and facts.gpus.gpus:
        yield Finding(
            code="vllm",
            severity="warning",
            text=f"{text} is a build for CPUs: it leaves the cards idle",
            fix=_INSTALL,
        )
    elif not _PLAIN_VERSION.match(vllm.version):
        yield Finding(
            code="vllm",
            severity="warning",
            text=f"{text} is no release; it is judged as {DEFAULT_VLLM_VERSION}",
            fix="name the release that it is nearest to: engine_version under the model",
        )
    else:
        build = " (a build for CPUs)" if vllm.is_cpu_build else ""
        yield Finding(code="vllm", severity="ok", text=f"{text}{build}")


def check_docker(facts: MachineFacts) -> Iterator[Finding]:
    """The daemon, and whether it hands out cards; needed only for ``runtime: docker``."""
    docker = facts.docker
    if not docker.address:
        text = "no Docker daemon: engines run as processes"
        yield Finding(code="docker", severity="ok", text=text)
    elif not docker.version:
        yield Finding(
            code="docker",
            severity="warning",
            text=f"{docker.problem}; runtime: docker does not work",
            fix=docker.fix,
        )
    else:
        yield _check_daemon(facts, docker)


def _check_daemon(facts: MachineFacts, docker: DockerFacts) -> Finding:
    text = f"{'podman' if docker.is_podman else 'Docker'} {docker.version} at {docker.address}"
    if not facts.gpus.gpus:
        return Finding(code="docker", severity="ok", text=text)
    if docker.gives_gpus:
        return Finding(code="docker", severity="ok", text=f"{text}, which can give containers the cards")
    if docker.is_podman:
        lacks = "the cards are not described for it (no CDI file)"
        fix = "sudo nvidia-ctk cdi generate --output=/etc/cdi/nvidia.yaml"
    else:
        lacks = "NVIDIA's container runtime is not registered"
        fix = (
            "install NVIDIA's container toolkit, then: sudo nvidia-ctk runtime configure --runtime=docker"
            " && sudo systemctl restart docker"
        )
    text = f"{text} cannot give containers the cards: {lacks}"
    return Finding(code="docker", severity="warning", text=text, fix=fix)
