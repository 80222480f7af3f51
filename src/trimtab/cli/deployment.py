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
from trimtab.cli.progress import Progress
from trimtab.core.checkpoint import GgufCheckpoint
from trimtab.core.plan import Plan
from trimtab.core.stack import GatewaySettings, ModelRequest, Stack
from trimtab.engines import embedded_model
from trimtab.errors import DoesNotFitError, EnvironmentMissingError, StackFileError
from trimtab.planner.stack_plan import plan_stack
from trimtab.probes.embedded_model import fetch_embedded_model
from trimtab.probes.gguf_header import read_gguf_header
from trimtab.probes.host import probe_host
from trimtab.probes.hub import resolve_checkpoint
from trimtab.stackfile.decode import check_model_name
from trimtab.stackfile.names import served_name_of
from trimtab.stackfile.plan_document import plan_from_document
from trimtab.stackfile.read import is_stack_path, read_stack
from trimtab.units import parse_bytes

__all__ = ["make_plan", "misfit_error"]

# A bare model name is looked up in these, in this order, in the current folder.
_DEFAULT_STACKS: Final = ("stack.yaml", "trimtab.yaml")
# A saved plan of a hundred models stays far below this.
_MAX_PLAN_CHARS: Final = 4 * 1024 * 1024


def make_plan(wish: Wish, folders: Folders, progress: Progress) -> Plan:
    """The plan for a wish; fetches what must be fetched. A saved plan is taken as it is."""
    if wish.plan_file is not None:
        _check_alone(wish)
        return _with_gateway(_read_plan(wish.plan_file), wish)
    stack = _with_overrides(_read_wish(wish), wish)
    checkpoints = tuple(_read_checkpoint(model, folders, progress) for model in stack.models)
    return plan_stack(
        stack, checkpoints, probe_host(), python=sys.executable, engine_version=_read_engine_version()
    )


def _check_alone(wish: Wish) -> None:
    """A saved plan is run as reviewed: what would change it is refused, not left out in silence."""
    others = {
        "MODEL": wish.target,
        "--context": wish.context,
        "--concurrency": wish.concurrency,
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


def _read_wish(wish: Wish) -> Stack:
    """The stack that the target names: a file, a model of ./stack.yaml, one model, or the default."""
    target = wish.target
    if target is None or target == embedded_model.SERVED_NAME:
        request = ModelRequest(name=embedded_model.SERVED_NAME, checkpoint=embedded_model.SERVED_NAME)
        return Stack(name="default", models=(request,))
    if is_stack_path(target):
        return read_stack(Path(target))
    if "/" not in target and not target.endswith(".gguf") and not Path(target).exists():
        return _find_in_default_stack(target)
    if target.endswith((".json", ".safetensors", ".bin")):
        raise StackFileError(
            f"{target!r} is not a .gguf file, and this version runs GGUF models only",
            hint="name a .gguf file, or a repo id whose name ends in -GGUF",
        )
    name = served_name_of(target)
    check_model_name(name, where="MODEL")
    return Stack(name=name, models=(ModelRequest(name=name, checkpoint=target),))


def _find_in_default_stack(name: str) -> Stack:
    for file in _DEFAULT_STACKS:
        if not Path(file).is_file():
            continue
        stack = read_stack(Path(file))
        chosen = tuple(model for model in stack.models if model.name == name)
        if chosen:
            return replace(stack, models=chosen)
        known = ", ".join(model.name for model in stack.models)
        raise StackFileError(f"{file} has no model {name!r}", hint=f"its models: {known}")
    raise StackFileError(
        f"{name!r} is neither a file, nor a repo id (org/name), nor a model of ./stack.yaml (there is none)",
        hint=f"for example: trimtab up ./model.gguf, or trimtab up for {embedded_model.SERVED_NAME}",
    )


def _with_overrides(stack: Stack, wish: Wish) -> Stack:
    """The stack with what the command line sets; per-model flags need a stack of one model."""
    has_model_flags = wish.context is not None or wish.concurrency is not None or wish.pins
    if has_model_flags and len(stack.models) > 1:
        names = ", ".join(model.name for model in stack.models)
        raise StackFileError(
            f"--context, --concurrency and --set mean one model, and {stack.source} has {len(stack.models)}",
            hint=f"set them in the file, under models.<name>; its models: {names}",
        )
    models = tuple(_with_model_flags(model, wish) for model in stack.models)
    ram_bytes = stack.ram_bytes
    if wish.ram is not None:
        try:
            ram_bytes = parse_bytes(wish.ram)
        except ValueError as error:
            raise StackFileError(f"--ram: {error}") from None
    gateway = _gateway_of(stack.gateway, wish)
    return replace(stack, models=models, ram_bytes=ram_bytes, gateway=gateway)


def _with_model_flags(model: ModelRequest, wish: Wish) -> ModelRequest:
    return replace(
        model,
        context=model.context if wish.context is None else wish.context,
        concurrency=model.concurrency if wish.concurrency is None else wish.concurrency,
        engine_args=tuple((dict(model.engine_args) | dict(wish.pins)).items()),
    )


def _read_checkpoint(model: ModelRequest, folders: Folders, progress: Progress) -> GgufCheckpoint:
    if model.checkpoint == embedded_model.SERVED_NAME:
        path = fetch_embedded_model(folders.cache, progress.show_bytes)
    else:
        path = resolve_checkpoint(model.checkpoint, cache_dir=folders.cache, report=progress.show_bytes)
    return read_gguf_header(path.absolute())


def _read_engine_version() -> str:
    try:
        return importlib.metadata.version("xllamacpp")
    except importlib.metadata.PackageNotFoundError:
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


def _with_gateway(plan: Plan, wish: Wish) -> Plan:
    return replace(plan, gateway=_gateway_of(plan.gateway, wish))


def _gateway_of(settings: GatewaySettings, wish: Wish) -> GatewaySettings:
    return replace(
        settings,
        host=settings.host if wish.host is None else wish.host,
        port=settings.port if wish.port is None else wish.port,
    )
