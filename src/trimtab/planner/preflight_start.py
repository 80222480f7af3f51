"""Pure. Judges what a plan meets on this machine right before it starts: the cards it uses, and Docker."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Final

from trimtab.core.gpu_facts import GpuProbe
from trimtab.core.plan import ModelPlan, Plan
from trimtab.core.preflight import DockerFacts, Finding, VllmFacts
from trimtab.planner.preflight_gpus import check_gpus

__all__ = ["StartFacts", "check_start"]

# What `doctor` also says and a start need not repeat: how things are, and doubts that cost nothing.
_SILENT: Final = frozenset({"gpu-display", "gpu-wsl", "gpu-device-order", "gpu-reserve-unknown"})


@dataclass(frozen=True, slots=True, kw_only=True)
class StartFacts:
    """What is known right before a start; ``programs`` are the installed vLLMs by version.

    ``docker`` is None where no model runs in a container; ``own_pids`` are engines that trimtab runs.
    """

    gpus: GpuProbe
    docker: DockerFacts | None = None
    programs: Mapping[str, VllmFacts]
    own_pids: frozenset[int] = frozenset()


def check_start(plan: Plan, facts: StartFacts) -> tuple[Finding, ...]:
    """What stands in the way (severity error) or is worth a word (warning), each thing once.

    Models on CPUs and those that run elsewhere are not judged.
    """
    models = [model for model in plan.models if model.engine == "vllm"]
    found = [*_check_cards(models, facts), *_check_docker(models, facts.docker)]
    return tuple(dict.fromkeys(finding for finding in found if finding.severity != "ok"))


def _check_cards(models: Iterable[ModelPlan], facts: StartFacts) -> Iterator[Finding]:
    for model in models:
        used = frozenset(index for replica in model.replicas for index in replica.gpus)
        if not used:
            continue
        program = facts.programs.get(model.engine_version)
        is_it = model.runtime == "process" and program and program.version == model.engine_version
        findings = check_gpus(
            _only(facts.gpus, used),
            engine_version=model.engine_version,
            own_pids=facts.own_pids,
            engine_cuda=program.cuda_version if program and is_it else None,
        )
        yield from (finding for finding in findings if finding.code not in _SILENT)


def _only(probe: GpuProbe, used: frozenset[int]) -> GpuProbe:
    """The probe as if the machine had these cards only."""
    return replace(
        probe,
        gpus=tuple(gpu for gpu in probe.gpus if gpu.index in used),
        cards=tuple(card for card in probe.cards if card.index in used),
        processes=tuple(process for process in probe.processes if process.gpu_index in used),
        links=tuple(link for link in probe.links if {link.first, link.second} <= used),
        problems=tuple(
            problem for problem in probe.problems if problem.gpu_index is None or problem.gpu_index in used
        ),
    )


def _check_docker(models: Iterable[ModelPlan], docker: DockerFacts | None) -> Iterator[Finding]:
    inside = [model for model in models if model.runtime == "docker"]
    if not inside or docker is None:
        return
    names = ", ".join(model.name for model in inside)
    if not docker.version:
        problem = docker.problem or "no Docker daemon is on this machine"
        fix = docker.fix or "start Docker or podman's API, or leave runtime: docker out"
        yield Finding(code="docker", severity="error", text=f"{problem}, and {names} runs in Docker", fix=fix)
    elif docker.gives_gpus is False and any(replica.gpus for model in inside for replica in model.replicas):
        # A warning: a daemon may know the cards in ways that are not seen from here, and will say so itself.
        yield Finding(
            code="docker",
            severity="warning",
            text=f"the daemon at {docker.address} does not show that it can give {names} the cards",
            fix="see trimtab doctor",
        )
