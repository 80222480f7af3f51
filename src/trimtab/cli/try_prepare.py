"""I/O. Before a try: what is planned, whether this machine can run it, and the folders without weights."""

from __future__ import annotations

import sys
from dataclasses import dataclass, replace

from trimtab import __version__
from trimtab.cli.deployment import misfit_error, read_inventory
from trimtab.cli.folders import Folders
from trimtab.cli.options import Wish
from trimtab.cli.progress import Progress
from trimtab.cli.sources import find_alternatives, find_facts
from trimtab.cli.vllm_ready import (
    check_cards,
    is_for_cpus,
    prepare_vllm,
    read_programs,
    with_found_version,
)
from trimtab.cli.wished_stack import read_wished_stack
from trimtab.core.hardware import Gpu
from trimtab.core.model_source import ModelSource
from trimtab.core.plan import ModelPlan, Plan
from trimtab.core.stack import ModelRequest, RuntimeName, Stack
from trimtab.core.state import ReplicaSpec
from trimtab.engines import embedded_model
from trimtab.engines.vllm_env import gpus_of_replica
from trimtab.engines.vllm_flags import find_flag, has_env
from trimtab.errors import EnvironmentMissingError, StackFileError
from trimtab.launcher.calibration_store import CalibrationStore, SpeedStore
from trimtab.launcher.specs import SpecOptions, specs_of
from trimtab.planner.accelerator_specs import complete_gpu
from trimtab.planner.dummy_plan import with_dummy_weights
from trimtab.planner.gpu_spec import decode_gpu_spec
from trimtab.planner.stack_plan import World, plan_stack
from trimtab.probes.dummy_checkpoint import DummyCheckpoint, fetch_dummy_checkpoint
from trimtab.probes.gpus import probe_gpus
from trimtab.probes.vllm_program import find_vllm

__all__ = ["PreparedTry", "TryJob", "plan_again", "prepare_try"]


@dataclass(frozen=True, slots=True, kw_only=True)
class TryJob:
    """One model to try: ``model`` as it was planned, ``spec`` as it is started."""

    model: ModelPlan
    plan: Plan
    spec: ReplicaSpec
    source: ModelSource
    cards: tuple[Gpu, ...]
    is_cpu_build: bool
    has_tokenizer: bool
    notes: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class PreparedTry:
    """All that a try needs; nothing has been started. The plan was made without any calibration."""

    stack: Stack
    sources: tuple[ModelSource, ...]
    world: World
    plan: Plan
    jobs: tuple[TryJob, ...]


def prepare_try(wish: Wish, folders: Folders, progress: Progress) -> PreparedTry:
    """Plan, check and fetch what a try needs; a TrimtabError says in one sentence what stands in the way."""
    if wish.target is None:
        raise StackFileError(
            "try needs a model or a stack", hint="for example: trimtab try Qwen/Qwen3.5-27B-FP8"
        )
    stack = read_wished_stack(wish)
    if stack.gpus is not None:
        decode_gpu_spec(stack.gpus)
    sources = tuple(_read_source(model, folders, progress) for model in stack.models)
    wished = zip(stack.models, sources, strict=True)
    stack = replace(stack, models=tuple(_at_hand(model, source, folders) for model, source in wished))
    world = World(
        inventory=read_inventory(stack.gpus, needs_gpus=True),
        python=sys.executable,
        llama_cpp_version="",
        find_alternatives=find_alternatives,
    )
    if not world.inventory.gpus:
        raise EnvironmentMissingError(
            "try starts real vLLM on this machine's cards, and no GPU was found here",
            hint="what cards would do: trimtab plan ... --gpus 4xrtx4090; with a CPU build of vLLM here, name"
            " cards with --gpus as well",
        )
    plan = plan_stack(stack, sources, world)
    if not plan.fits:
        raise misfit_error(plan)
    check_cards(plan, folders)
    is_cpu_build = is_for_cpus(plan, folders)
    if stack.gpus is not None and not is_cpu_build:
        _check_same_cards(plan)
    pairs = zip(plan.models, sources, strict=True)
    jobs = tuple(_make_job(plan, model, source, folders, progress) for model, source in pairs)
    return PreparedTry(stack=stack, sources=sources, world=world, plan=plan, jobs=jobs)


def plan_again(prepared: PreparedTry, folders: Folders) -> Plan:
    """The same wish once more, with what has been measured on this machine by now."""
    world = replace(
        prepared.world,
        calibration=CalibrationStore(folders.state).read(),
        speeds=SpeedStore(folders.state).read(),
    )
    return plan_stack(prepared.stack, prepared.sources, world)


def _at_hand(request: ModelRequest, source: ModelSource, folders: Folders) -> ModelRequest:
    """The request at the installed version; without FlashInfer its linear attention is Triton's.

    vLLM chooses FlashInfer on some cards without looking whether it is there, and then dies at the first
    prompt.
    """
    model = with_found_version(request, folders)
    pins = dict(model.engine_args)
    if not source.facts.is_hybrid or "gdn_prefill_backend" in pins:
        return model
    version = model.engine_version
    if version is None or not _lacks_flashinfer(model.runtime, version, folders):
        return model
    if find_flag(version, "gdn_prefill_backend") is None:
        return model
    return replace(model, engine_args=(*model.engine_args, ("gdn_prefill_backend", "triton")))


def _lacks_flashinfer(runtime: RuntimeName, version: str, folders: Folders) -> bool:
    """Whether the vLLM that is installed here for cards has no FlashInfer beside it; images have it."""
    program = find_vllm(version, cache_dir=folders.cache) if runtime == "process" else None
    return program is not None and not program.is_cpu_build and not program.has_flashinfer


def _without_flashinfer(plan: Plan) -> Plan:
    """The sampler of newer versions takes FlashInfer for given as well."""
    (model,) = plan.models
    variable = "VLLM_USE_FLASHINFER_SAMPLER"
    if not has_env(model.engine_version, variable) or variable in dict(model.env):
        return plan
    return replace(plan, models=(replace(model, env=(*model.env, (variable, "0"))),))


def _read_source(request: ModelRequest, folders: Folders, progress: Progress) -> ModelSource:
    where = f"models.{request.name}"
    if request.url is not None:
        raise StackFileError(
            f"{where} is an endpoint elsewhere ({request.url}), which trimtab does not start",
            hint=f"measure it as it runs: trimtab bench {request.url}",
        )
    if request.checkpoint != embedded_model.SERVED_NAME and request.engine != "llama_cpp":
        found = find_facts(request, folders, progress)
        if isinstance(found, ModelSource):
            return replace(
                found, warnings=tuple(item for item in found.warnings if item.code != "no_weights")
            )
    raise StackFileError(
        f"{where}: {request.checkpoint} runs on llama.cpp, which has no dummy weights to try it with",
        hint="start it and measure: trimtab up, then trimtab bench",
    )


def _check_same_cards(plan: Plan) -> None:
    """Figures of another card than the one that was named would calibrate the wrong one."""
    present = {gpu.index: complete_gpu(gpu) for gpu in probe_gpus().gpus}
    named = plan.hardware.gpus if plan.hardware is not None else ()
    for model in plan.models:
        for card in gpus_of_replica(model.replicas[0], named):
            here = present[card.index]
            if here.spec != card.spec or not here.spec:
                raise StackFileError(
                    f"--gpus names {card.name} as card {card.index}, and it is a {here.name}: try measures"
                    " the cards that are here",
                    hint="leave --gpus out; a smaller card's budget: --set gpu_memory_utilization=0.17",
                )


def _make_job(
    plan: Plan, model: ModelPlan, source: ModelSource, folders: Folders, progress: Progress
) -> TryJob:
    dummy = fetch_dummy_checkpoint(source, cache_dir=folders.cache, report=progress.show_bytes)
    _check_processor(model, source, dummy)
    alone = with_dummy_weights(plan, model.name, str(dummy.path), has_tokenizer=dummy.has_tokenizer)
    prepare_vllm(alone, folders, progress)
    if _lacks_flashinfer(alone.models[0].runtime, alone.models[0].engine_version, folders):
        alone = _without_flashinfer(alone)
    options = SpecOptions(
        trimtab_version=__version__,
        dies_with_supervisor=True,
        vllm_programs=read_programs(alone, folders),
    )
    spec = specs_of(alone, options)[0]
    if spec.has_embeddings:
        raise StackFileError(
            f"models.{model.name} embeds instead of generating, and try measures generation",
            hint="start it with trimtab up",
        )
    cards = plan.hardware.gpus if plan.hardware is not None else ()
    notes = [dummy.note] if dummy.note else []
    if not dummy.has_tokenizer:
        notes.append("there is no tokenizer: prompts are token ids")
    if len(plan.models) > 1:
        notes.append("the models of a stack are tried one after the other, each with its planned share")
    if model.replicas[1:]:
        notes.append(f"one of {len(model.replicas)} replicas was started")
    return TryJob(
        model=model,
        plan=plan,
        spec=spec,
        source=source,
        cards=gpus_of_replica(model.replicas[0], cards),
        is_cpu_build=is_for_cpus(alone, folders),
        has_tokenizer=dummy.has_tokenizer,
        notes=tuple(notes),
    )


def _check_processor(model: ModelPlan, source: ModelSource, dummy: DummyCheckpoint) -> None:
    values = {item.name: item.value for item in model.settings}
    if source.facts.vision is None or values.get("language_model_only") or dummy.has_processor:
        return
    raise StackFileError(
        f"models.{model.name} takes images, and {dummy.path} has no preprocessor_config.json, without which"
        " vLLM does not start it",
        hint="add that file, or leave the images out: --set language_model_only=true",
    )
