"""I/O. From a command line to a plan: read the wish and the world, then let the planner decide."""

from __future__ import annotations

import importlib.metadata
import json
import sys
from dataclasses import replace
from pathlib import Path
from typing import Final

from trimtab.cli.folders import Folders
from trimtab.cli.options import Wish
from trimtab.cli.own_memory import OwnMemory, read_own_memory
from trimtab.cli.progress import Progress
from trimtab.cli.sources import find_alternatives, read_source
from trimtab.cli.vllm_ready import with_found_version
from trimtab.cli.wished_stack import gateway_of, read_wished_stack
from trimtab.core.hardware import Inventory
from trimtab.core.model_source import ModelSource
from trimtab.core.plan import ModelPlan, Plan, PlanWarning
from trimtab.core.stack import Stack
from trimtab.core.workload import Workload
from trimtab.errors import DoesNotFitError, EnvironmentMissingError, StackFileError
from trimtab.gateway.thinking_families import PLAIN, family_of_checkpoint
from trimtab.launcher.calibration_store import CalibrationStore, SpeedStore
from trimtab.planner.accelerator_specs import complete_gpu
from trimtab.planner.gpu_spec import decode_gpu_spec
from trimtab.planner.stack_plan import World, plan_stack
from trimtab.probes.gpus import probe_gpus
from trimtab.probes.host import probe_host
from trimtab.stackfile.plan_document import plan_from_document
from trimtab.units import format_bytes

__all__ = ["make_plan", "misfit_error", "plan_wished_stack", "read_inventory"]

# A saved plan of a hundred models stays far below this.
_MAX_PLAN_CHARS: Final = 4 * 1024 * 1024


def make_plan(wish: Wish, folders: Folders, progress: Progress, *, is_elsewhere: bool = False) -> Plan:
    """The plan for a wish; fetches what must be fetched. A saved plan is taken as it is.

    ``is_elsewhere``: nothing is started, so that cards and RAM that the wish names may be another machine's.
    """
    if wish.plan_file is not None:
        _check_alone(wish)
        plan = _read_plan(wish.plan_file)
        return replace(plan, gateway=gateway_of(plan.gateway, wish))
    stack = read_wished_stack(wish)
    return plan_wished_stack(stack, folders, progress, wish.workload, is_elsewhere=is_elsewhere)


def plan_wished_stack(
    stack: Stack,
    folders: Folders,
    progress: Progress,
    workload: Workload | None = None,
    *,
    is_elsewhere: bool = False,
) -> Plan:
    """The plan of a stack on the cards it names, or on this machine's own."""
    if stack.gpus is not None:
        decode_gpu_spec(stack.gpus)  # a typing error is said before anything is looked up
    sources = tuple(read_source(model, folders, progress) for model in stack.models if model.url is None)
    needs_gpus = any(isinstance(source, ModelSource) for source in sources)
    if needs_gpus and stack.gpus is None:
        stack = replace(stack, models=tuple(with_found_version(item, folders) for item in stack.models))
    inventory = read_inventory(stack.gpus, needs_gpus=needs_gpus, own=read_own_memory(folders, stack.name))
    if is_elsewhere and stack.gpus is not None:
        inventory = _with_ram(inventory, stack.ram_bytes)
    world = World(
        inventory=inventory,
        python=sys.executable,
        llama_cpp_version=_read_llama_cpp_version(is_needed=not needs_gpus),
        find_alternatives=find_alternatives,
        calibration=CalibrationStore(folders.state).read() if needs_gpus else (),
        speeds=SpeedStore(folders.state).read() if needs_gpus else (),
        workload=workload,
    )
    plan = _with_thinking_families(plan_stack(stack, sources, world), stack)
    plan = _with_capped_ram(plan, stack.ram_bytes, inventory.host.available_ram_bytes)
    return plan if workload is None else _with_unused_workload(plan)


def _with_ram(inventory: Inventory, ram_bytes: int | None) -> Inventory:
    """A machine of cards that are not here has the RAM that the stack says, not this one's."""
    if ram_bytes is None:
        return inventory
    total = max(inventory.host.total_ram_bytes, ram_bytes)
    host = replace(inventory.host, total_ram_bytes=total, available_ram_bytes=ram_bytes)
    return replace(inventory, host=host)


def _with_capped_ram(plan: Plan, ram_bytes: int | None, free_bytes: int) -> Plan:
    """A budget of RAM that is not there is not followed in silence."""
    if ram_bytes is None or ram_bytes <= free_bytes or not plan.models:
        return plan
    wished, free = format_bytes(ram_bytes), format_bytes(free_bytes)
    text = f"ram: {wished} is more than is free here: {free} count; another machine's cards go into --gpus"
    first = plan.models[0]
    warned = replace(first, warnings=(*first.warnings, PlanWarning(code="ram_capped", text=text)))
    return replace(plan, models=(warned, *plan.models[1:]))


def _with_unused_workload(plan: Plan) -> Plan:
    """Speed is estimated for vLLM only: whoever gave a workload is told where it went."""
    warning = PlanWarning(
        code="workload_unused",
        text="--workload changes nothing for llama.cpp on the CPU, whose speed is not estimated; measure it:"
        " trimtab up, then trimtab bench",
    )
    models = (
        replace(model, warnings=(*model.warnings, warning)) if model.engine == "llama_cpp" else model
        for model in plan.models
    )
    return replace(plan, models=tuple(models))


def _with_thinking_families(plan: Plan, stack: Stack) -> Plan:
    """GGUF files tell their family by name only; one that the stack states counts more."""
    stated = {model.name for model in stack.models if model.family is not None}
    models = tuple(
        replace(model, family=family_of_checkpoint(model.checkpoint))
        if model.engine == "llama_cpp" and model.name not in stated
        else model
        for model in plan.models
    )
    return replace(plan, models=tuple(_with_thinking_warning(model) for model in models))


def _with_thinking_warning(model: ModelPlan) -> ModelPlan:
    """A default that nothing can follow is said, not swallowed."""
    if model.thinking is None or model.family != PLAIN.name:
        return model
    warning = PlanWarning(
        code="thinking_not_switchable",
        text=f"thinking: {model.thinking} changes nothing for {model.name}: its family is plain, whose"
        " thinking cannot be switched (family: qwen3.5, say, in the stack file says it otherwise)",
        source="the checkpoint's name or template",
    )
    return replace(model, warnings=(*model.warnings, warning))


def read_inventory(gpus: str | None, *, needs_gpus: bool, own: OwnMemory | None = None) -> Inventory:
    """The host with the cards that ``gpus`` names, or with its own where any are needed.

    ``own`` is what engines hold that a new plan would replace or keep.
    """
    own = own or OwnMemory()
    host = own.free_host(probe_host())
    if gpus is not None:
        return Inventory(host=host, gpus=decode_gpu_spec(gpus))
    if not needs_gpus:
        return Inventory(host=host)
    probe = probe_gpus()
    found = own.free_gpus(probe.gpus, probe.processes)
    return Inventory(host=host, gpus=tuple(complete_gpu(gpu) for gpu in found))


def _check_alone(wish: Wish) -> None:
    """A saved plan is run as reviewed: what would change it is refused, not left out in silence."""
    others = {
        "MODEL": wish.target,
        "--context": wish.context,
        "--concurrency": wish.concurrency,
        "--replicas": wish.replicas,
        "--engine": wish.engine,
        "--engine-version": wish.engine_version,
        "--gpus": wish.gpus,
        "--ram": wish.ram,
        "--set": wish.pins or None,
    }
    given = [name for name, value in others.items() if value is not None]
    if given:
        raise StackFileError(
            f"--plan runs a saved plan as it is, and {', '.join(given)} would change it",
            hint="plan again with it and save that: trimtab plan ... --out FILE",
        )


def misfit_error(plan: Plan) -> DoesNotFitError:
    """Why a plan does not fit, with the nearest change that would, as the failure of a command."""
    reason = plan.rejections[0].text if plan.rejections else "the plan does not fit this machine"
    nearest = plan.nearest_fit[0].text if plan.nearest_fit else ""
    return DoesNotFitError(reason, hint=f"would fit: {nearest}" if nearest else "")


def _read_llama_cpp_version(*, is_needed: bool) -> str:
    try:
        return importlib.metadata.version("xllamacpp")
    except importlib.metadata.PackageNotFoundError:
        if not is_needed:
            return ""
        raise EnvironmentMissingError(
            "llama.cpp is not installed (the package xllamacpp is missing)",
            hint="install trimtab with its dependencies: pip install trimtab",
        ) from None


def _read_plan(file: str) -> Plan:
    source = "the plan on standard input" if file == "-" else file
    try:
        text = sys.stdin.read(_MAX_PLAN_CHARS + 1) if file == "-" else _read_text(Path(file))
        if len(text) > _MAX_PLAN_CHARS:
            raise StackFileError(f"{source} is too large for a plan: above {_MAX_PLAN_CHARS:,} characters")
        document = json.loads(text)
    except OSError as error:
        raise StackFileError(f"{file} cannot be read: {(error.strerror or str(error)).lower()}") from None
    except (ValueError, RecursionError) as error:
        raise StackFileError(f"{source} is not JSON: {error}", hint="save one: plan --out FILE") from None
    return plan_from_document(document, source=source)


def _read_text(path: Path) -> str:
    if path.exists() and not path.is_file():
        raise StackFileError(f"{path} is not a file")
    with path.open(encoding="utf-8") as file:
        return file.read(_MAX_PLAN_CHARS + 1)
