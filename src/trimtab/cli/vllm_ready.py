"""I/O. Before a plan with vLLM starts: its programs found or made, its cards really there."""

from __future__ import annotations

from dataclasses import replace

from trimtab.cli.fetched import FetchWish, fetch_model
from trimtab.cli.folders import Folders
from trimtab.cli.progress import Progress
from trimtab.core.plan import ModelPlan, Plan
from trimtab.core.stack import ModelRequest
from trimtab.engines.vllm_env import is_local_checkpoint
from trimtab.errors import EnvironmentMissingError
from trimtab.planner.stack_plan import with_checkpoint
from trimtab.probes.gpus import probe_gpus
from trimtab.probes.vllm_program import VllmProgram, find_vllm, make_vllm

__all__ = [
    "check_cards",
    "is_for_cpus",
    "prepare_vllm",
    "preview_vllm",
    "read_programs",
    "with_found_version",
]


def with_found_version(model: ModelRequest, folders: Folders) -> ModelRequest:
    """The request at the version that is installed, where it names none and runs as a process."""
    if model.engine_version is not None or model.runtime != "process":
        return model
    found = find_vllm(None, cache_dir=folders.cache)
    return model if found is None else replace(model, engine_version=found.version)


def prepare_vllm(plan: Plan, folders: Folders, progress: Progress) -> Plan:
    """Check the cards, fetch the checkpoints, make the engines; gives the plan on the fetched folders.

    EnvironmentMissingError says what stands in the way. A version that is not installed gets an
    environment of its own, which takes some minutes once.
    """
    models = [model for model in plan.models if model.engine == "vllm"]
    programs = _check(plan, folders, progress)
    for version, program in programs.items():
        if program is None:
            make_vllm(version, cache_dir=folders.cache, report=progress.show_phase)
    for model in models:
        if not is_local_checkpoint(model.checkpoint):
            request = ModelRequest(name=model.name, checkpoint=model.checkpoint, engine="vllm")
            fetched = fetch_model(request, FetchWish(), folders, progress)
            plan = with_checkpoint(plan, model.name, str(fetched.path))
    return plan


def preview_vllm(plan: Plan, folders: Folders, progress: Progress) -> None:
    """What ``prepare_vllm`` would refuse with, and a word on each engine that it would have to make."""
    for version, program in _check(plan, folders, progress).items():
        if program is None:
            progress.note(f"note: vLLM {version} is not installed; a start makes an environment for it first")


def is_for_cpus(plan: Plan, folders: Folders) -> bool:
    """Whether every vLLM that would run this plan is a build for CPUs."""
    return _is_for_cpus(_find_programs([model for model in plan.models if model.engine == "vllm"], folders))


def check_cards(plan: Plan, folders: Folders) -> None:
    """EnvironmentMissingError for a plan whose cards this machine lacks."""
    models = [model for model in plan.models if model.engine == "vllm"]
    if models and not _is_for_cpus(_find_programs(models, folders)):
        _check_cards(models)


def _check(plan: Plan, folders: Folders, progress: Progress) -> dict[str, VllmProgram | None]:
    """Engine version → its vLLM as found; EnvironmentMissingError says what stands in the way."""
    models = [model for model in plan.models if model.engine == "vllm"]
    programs = _find_programs(models, folders)
    if models and not _is_for_cpus(programs):
        from trimtab.cli.preflight import check_before_start  # noqa: PLC0415 - only starts look that closely

        _check_cards(models)
        check_before_start(plan, folders, progress.note)
    return programs


def _find_programs(models: list[ModelPlan], folders: Folders) -> dict[str, VllmProgram | None]:
    return {model.engine_version: _find(model, folders) for model in _as_processes(models)}


def _is_for_cpus(programs: dict[str, VllmProgram | None]) -> bool:
    return bool(programs) and all(item is not None and item.is_cpu_build for item in programs.values())


def read_programs(plan: Plan, folders: Folders) -> dict[str, str]:
    """Engine version → path of the vLLM that runs it; EnvironmentMissingError when one is absent."""
    found: dict[str, str] = {}
    for model in _as_processes(plan.models):
        program = _find(model, folders)
        if program is None:
            raise EnvironmentMissingError(
                f"vLLM {model.engine_version} is not installed",
                hint=f"put one with vllm=={model.engine_version} on PATH, or write runtime: docker",
            )
        found[model.engine_version] = program.path
    return found


def _as_processes(models: list[ModelPlan] | tuple[ModelPlan, ...]) -> list[ModelPlan]:
    return [model for model in models if model.engine == "vllm" and model.runtime == "process"]


def _find(model: ModelPlan, folders: Folders) -> VllmProgram | None:
    return find_vllm(model.engine_version, cache_dir=folders.cache)


def _check_cards(models: list[ModelPlan]) -> None:
    """A plan for named cards is for looking; starting it needs them."""
    probe = probe_gpus()
    present = {gpu.index for gpu in probe.gpus}
    for model in models:
        wanted = {index for replica in model.replicas for index in replica.gpus}
        absent = sorted(wanted - present)
        if absent:
            there = f"there are {len(present)}" if present else probe.absence or "there is none"
            raise EnvironmentMissingError(
                f"models.{model.name} is planned for card {absent[0]}, and this machine lacks it: {there}",
                hint="run it on a machine with such cards; trimtab plan shows here what would run there;"
                " trimtab doctor says why a card is not seen",
            )
