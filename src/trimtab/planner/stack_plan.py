"""Pure. One plan for a whole stack: models on GPUs placed jointly, models on the CPU one after the other."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Final

from trimtab.core.checkpoint import GgufCheckpoint
from trimtab.core.hardware import Host, Inventory
from trimtab.core.model_source import ModelSource
from trimtab.core.plan import Change, ModelPlan, Plan, Rejection, SwapPlan
from trimtab.core.stack import ModelRequest, Stack
from trimtab.core.workload import Workload
from trimtab.core.written_check import WrittenCheck
from trimtab.engines.vllm import Vllm
from trimtab.engines.vllm_env import gpus_of_replica
from trimtab.errors import MissingFactError, StackFileError
from trimtab.planner.calibration import CalibrationRecord
from trimtab.planner.llama_cpp import LlamaCppOutcome, plan_llama_cpp
from trimtab.planner.resident_sets import Homes, in_loading_order, make_swap_plan, most_ram_bytes
from trimtab.planner.rope_stretch import stretch_facts
from trimtab.planner.sleep_plan import plan_sleep
from trimtab.planner.speed_calibration import SpeedRecord
from trimtab.planner.swap_plan import InTurn, plan_cpu_in_turn, plan_gpus_in_turn
from trimtab.planner.vllm_nearest import FindAlternatives
from trimtab.planner.vllm_plan import VllmOutcome, outcome_of, plan_vllm
from trimtab.planner.vllm_versions import DEFAULT_VLLM_VERSION, find_planned_version
from trimtab.planner.vllm_wish import VllmWish
from trimtab.planner.vllm_written import (
    compare_plans,
    estimate_flag_costs,
    judge_as_written,
    place_instead,
    serves_no_more,
    with_defaults,
)

__all__ = ["World", "check_written", "make_wish", "plan_stack", "with_checkpoint"]

_NO_MACHINE: Final = Inventory(
    host=Host(total_ram_bytes=0, available_ram_bytes=0, physical_cores=0, logical_cores=0)
)


@dataclass(frozen=True, slots=True, kw_only=True)
class World:
    """What a plan is made for: the machine, the interpreter of embedded engines and llama.cpp's version.

    ``find_alternatives`` names other quantisations of a model; it is asked only when nothing fits.
    ``workload`` is what speed is estimated for, None a single user. ``calibration`` is what earlier starts
    on this machine measured, ``speeds`` how fast they were.
    """

    inventory: Inventory
    python: str
    llama_cpp_version: str
    find_alternatives: FindAlternatives | None = None
    workload: Workload | None = None
    calibration: tuple[CalibrationRecord, ...] = ()
    speeds: tuple[SpeedRecord, ...] = ()


def plan_stack(stack: Stack, sources: tuple[GgufCheckpoint | ModelSource, ...], world: World) -> Plan:
    """The plan of every model of ``stack``; ``sources`` is parallel to the models that have a checkpoint.

    Models that do not fit leave the plan whole, with ``fits`` False and what would fit instead.
    Raises StackFileError when a wish contradicts itself, MissingFactError when a model needs GPUs
    and there are none.
    """
    started = tuple(model for model in stack.models if model.url is None)
    pairs = tuple(zip(started, sources, strict=True))
    on_gpus = tuple(
        replace(make_wish(request, source), calibration=world.calibration, speeds=world.speeds)
        for request, source in pairs
        if isinstance(source, ModelSource)
    )
    vllm = _plan_gpus(on_gpus, world) if on_gpus else None
    llama = [(request.name, outcome) for request, outcome in _plan_cpu(stack, pairs, world)]
    models = {name: outcome.model for name, outcome in llama}
    models |= {model.name: model for model in vllm.models} if vllm else {}
    ordered = tuple(models[request.name] for request in started)
    plan = Plan(
        stack=stack.name,
        fits=all(model.fits for model in ordered),
        models=ordered,
        gateway=stack.gateway,
        hardware=world.inventory,
        externals=tuple(model for model in stack.models if model.url is not None),
        idle_gpus=vllm.placement.idle if vllm else (),
        rejections=(*_rejections(llama), *(vllm.rejections if vllm else ())),
        nearest_fit=(*_changes(llama), *(vllm.nearest_fit if vllm else ())),
    )
    if plan.fits:
        return replace(plan, swap=_swap_when_idle(started, stack))
    return _plan_on_demand(plan, stack, pairs, on_gpus, world) or plan


def _swap_when_idle(started: tuple[ModelRequest, ...], stack: Stack) -> SwapPlan | None:
    """Models that all fit come and go only where idle ones are to be unloaded."""
    if stack.swap.idle_unload_s is None or not started:
        return None
    names = tuple(request.name for request in in_loading_order(started))
    return SwapPlan(
        resident_sets=(names,),
        keep_loaded=tuple(request.name for request in in_loading_order(started) if request.keep_loaded),
        idle_unload_s=stack.swap.idle_unload_s,
        min_residence_s=stack.swap.min_residence_s,
    )


def _plan_on_demand(
    plan: Plan,
    stack: Stack,
    pairs: tuple[tuple[ModelRequest, GgufCheckpoint | ModelSource], ...],
    on_gpus: tuple[VllmWish, ...],
    world: World,
) -> Plan | None:
    """The plan with models that do not fit together loaded in turn; None where that is no way out."""
    files = {request.name: source for request, source in pairs if isinstance(source, GgufCheckpoint)}
    requests = tuple(request for request, _ in pairs)
    if len(requests) < 2 or all(request.keep_loaded for request in requests):
        return None
    on_cpu = tuple(request for request in requests if request.name in files)
    gpu_part = cpu_part = InTurn(models={}, round_of={})
    if on_gpus:
        found = plan_gpus_in_turn(on_gpus, world.inventory.gpus, world.find_alternatives, world.workload)
        if found is None:
            return None
        gpu_part = found
    if on_cpu:
        found = plan_cpu_in_turn(
            on_cpu, lambda one, held: _plan_one_cpu(one, files[one.name], stack, world, held)
        )
        if found is None:
            return None
        cpu_part = found
    host_bytes = world.inventory.host.available_ram_bytes
    ram_bytes = host_bytes if stack.ram_bytes is None else min(host_bytes, stack.ram_bytes)
    homes = Homes(
        round_of=gpu_part.round_of | cpu_part.round_of,
        cards={
            name: frozenset(card for replica in model.replicas for card in replica.gpus)
            for name, model in gpu_part.models.items()
        },
        ram=cpu_part.ram,
        ram_bytes=ram_bytes,
    )
    before = tuple((gpu_part.models | cpu_part.models).values())
    swap = None
    if all(model.fits for model in before):
        swap = make_swap_plan(requests, before, homes, stack.swap)
        left_bytes = max(0, ram_bytes - most_ram_bytes(swap, cpu_part.ram))
        gpu_part, swap = _choose_sleepers(gpu_part, swap, stack, on_gpus, world, left_bytes)
    return _in_turn(plan, requests, gpu_part, cpu_part, swap, world)


def _choose_sleepers(
    part: InTurn, swap: SwapPlan, stack: Stack, wishes: tuple[VllmWish, ...], world: World, ram_bytes: int
) -> tuple[InTurn, SwapPlan]:
    """Models on cards with room for those that sleep, and who does; unchanged where nobody has to leave."""
    if stack.swap.sleep == "off" or len(set(part.round_of.values())) < 2:
        return part, swap
    asleep = plan_sleep(part, wishes, world.inventory.gpus, world.workload, ram_bytes=ram_bytes)
    return asleep.part, replace(swap, sleepers=asleep.sleepers, stopped=asleep.stopped)


def _in_turn(
    plan: Plan,
    requests: tuple[ModelRequest, ...],
    gpu_part: InTurn,
    cpu_part: InTurn,
    swap: SwapPlan | None,
    world: World,
) -> Plan:
    commanded = {name: _with_command(model, world, Vllm()) for name, model in gpu_part.models.items()}
    by_name = commanded | cpu_part.models
    models = tuple(by_name[request.name] for request in requests)
    used = {card for model in models if model.fits for replica in model.replicas for card in replica.gpus}
    fits = all(model.fits for model in models)
    return replace(
        plan,
        fits=fits,
        models=models,
        idle_gpus=tuple(gpu.index for gpu in world.inventory.gpus if fits and gpu.index not in used),
        rejections=(*cpu_part.rejections, *gpu_part.rejections),
        nearest_fit=(*cpu_part.nearest_fit, *gpu_part.nearest_fit),
        swap=swap,
    )


def check_written(stack: Stack, sources: tuple[ModelSource, ...], world: World) -> WrittenCheck:
    """A stack whose flags somebody wrote, judged as it is, and what the planner would do in its place.

    ``stack`` has every flag pinned; what it leaves out has the engine's default. Raises as ``plan_stack``.
    """
    wishes = tuple(make_wish(model, source) for model, source in zip(stack.models, sources, strict=True))
    _check_gpus(wishes, world.inventory)
    gpus = world.inventory.gpus
    written = outcome_of(wishes, judge_as_written(wishes, gpus), world.workload)
    items = tuple(zip(wishes, written.models, written.placement.chosen, strict=True))
    models = tuple(with_defaults(wish, model, item) for wish, model, item in items)
    loose = outcome_of(*place_instead(wishes, written.placement.chosen, gpus), world.workload)
    keeps_share = serves_no_more(written.placement.chosen, loose.placement)
    return WrittenCheck(
        plan=_gpu_plan(stack, replace(written, models=models), world),
        costs=tuple(cost for wish, _, item in items for cost in estimate_flag_costs(wish, item)),
        changes=tuple(
            change
            # What does not fit either is no better way.
            for before, after in (zip(models, loose.models, strict=True) if loose.fits else ())
            for change in compare_plans(before, after, keeps_share=keeps_share)
        ),
        proposal=_gpu_plan(stack, loose, world) if loose.fits else None,
    )


def _gpu_plan(stack: Stack, outcome: VllmOutcome, world: World) -> Plan:
    return Plan(
        stack=stack.name,
        fits=outcome.fits,
        models=tuple(_with_command(model, world, Vllm()) for model in outcome.models),
        gateway=stack.gateway,
        hardware=world.inventory,
        idle_gpus=outcome.placement.idle,
        rejections=outcome.rejections,
        nearest_fit=outcome.nearest_fit,
    )


def make_wish(request: ModelRequest, source: ModelSource) -> VllmWish:
    """A request and what is known about its checkpoint, at the version that it names or the default.

    StackFileError for a version that is older than all that are known here.
    """
    return VllmWish(
        request=request,
        checkpoint=source.checkpoint,
        facts=stretch_facts(source.facts, dict(request.engine_args)),
        parts=source.parts,
        version=find_planned_version(request.engine_version or DEFAULT_VLLM_VERSION),
        warnings=source.warnings,
    )


def with_checkpoint(plan: Plan, name: str, checkpoint: str) -> Plan:
    """The plan with one vLLM model loaded from another place: its command and environment follow."""
    world = World(inventory=plan.hardware or _NO_MACHINE, python="", llama_cpp_version="")
    models = tuple(
        _with_command(replace(model, checkpoint=checkpoint), world, Vllm()) if model.name == name else model
        for model in plan.models
    )
    return replace(plan, models=models)


def _plan_gpus(wishes: tuple[VllmWish, ...], world: World) -> VllmOutcome:
    _check_gpus(wishes, world.inventory)
    outcome = plan_vllm(wishes, world.inventory.gpus, world.find_alternatives, world.workload)
    engine = Vllm()
    models = tuple(_with_command(model, world, engine) for model in outcome.models)
    return replace(outcome, models=models)


def _check_gpus(wishes: tuple[VllmWish, ...], inventory: Inventory) -> None:
    if not inventory.gpus:
        names = ", ".join(wish.name for wish in wishes)
        raise MissingFactError(
            f"no GPU was found on this machine and none is named, and vLLM needs one for {names}",
            hint="to run it here, on the CPU, name a GGUF file of it (org/repo-GGUF:file.gguf, or a path);"
            " to see what cards would do: trimtab plan ... --gpus 4xrtx4090, or --gpus"
            " '1x custom:mem=24GiB,bw=1000GB/s,cc=8.9'",
        )
    _check_named_cards(wishes, inventory)


def _with_command(model: ModelPlan, world: World, engine: Vllm) -> ModelPlan:
    model = replace(model, argv=engine.render_argv(model, python=world.python))
    cards = [card for replica in model.replicas for card in gpus_of_replica(replica, world.inventory.gpus)]
    return replace(model, env=engine.render_env(model, gpus=tuple(cards)))


def _check_named_cards(wishes: tuple[VllmWish, ...], inventory: Inventory) -> None:
    known = {gpu.index for gpu in inventory.gpus}
    for wish in wishes:
        absent = [index for index in wish.card_indices or () if index not in known]
        if absent:
            raise StackFileError(
                f"models.{wish.name}.gpus names card {absent[0]}, and there are cards"
                f" {', '.join(str(index) for index in sorted(known))}"
            )


def _plan_cpu(
    stack: Stack, pairs: tuple[tuple[ModelRequest, GgufCheckpoint | ModelSource], ...], world: World
) -> list[tuple[ModelRequest, LlamaCppOutcome]]:
    """Each model from the RAM that the earlier ones leave."""
    outcomes: list[tuple[ModelRequest, LlamaCppOutcome]] = []
    reserved_bytes = 0
    for request, checkpoint in pairs:
        if not isinstance(checkpoint, GgufCheckpoint):
            continue
        _check_cpu_request(request, world)
        outcome = _plan_one_cpu(request, checkpoint, stack, world, reserved_bytes)
        outcomes.append((request, outcome))
        budgets = [replica.host for replica in outcome.model.replicas if replica.host is not None]
        reserved_bytes += sum(budget.requested_bytes + budget.prompt_cache_bytes for budget in budgets)
    return outcomes


def _plan_one_cpu(
    request: ModelRequest, checkpoint: GgufCheckpoint, stack: Stack, world: World, reserved_bytes: int
) -> LlamaCppOutcome:
    return plan_llama_cpp(
        request,
        checkpoint,
        world.inventory.host,
        ram_bytes=stack.ram_bytes,
        python=world.python,
        engine_version=world.llama_cpp_version,
        reserved_bytes=reserved_bytes,
    )


def _check_cpu_request(request: ModelRequest, world: World) -> None:
    """What only engines on GPUs can do is refused, not left out in silence."""
    where = f"models.{request.name}"
    if request.gpus is not None:
        raise StackFileError(
            f"{where}.gpus: llama.cpp runs on the CPU here and takes no cards", hint="leave it out"
        )
    if request.replicas not in {None, 1}:
        raise StackFileError(
            f"{where}.replicas: llama.cpp serves all slots from one process, so 1 is all there is",
            hint=f"write concurrency: {request.replicas} instead",
        )
    if request.runtime != "process":
        raise StackFileError(f"{where}.runtime: llama.cpp runs as a process", hint="leave it out")
    wanted = request.engine_version
    if wanted is not None and wanted.removeprefix("v") != world.llama_cpp_version:
        raise StackFileError(
            f"{where}.engine_version is {wanted}, and the llama.cpp that came with trimtab is"
            f" {world.llama_cpp_version}",
            hint="leave it out",
        )


def _rejections(llama: list[tuple[str, LlamaCppOutcome]]) -> tuple[Rejection, ...]:
    return tuple(item for _, outcome in llama for item in outcome.rejections)


def _changes(llama: list[tuple[str, LlamaCppOutcome]]) -> tuple[Change, ...]:
    return tuple(item for _, outcome in llama for item in outcome.nearest_fit)
