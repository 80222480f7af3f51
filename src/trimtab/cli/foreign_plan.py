"""I/O. ``plan --from FILE``: a launch command somebody wrote, judged on these cards, flag by flag."""

from __future__ import annotations

import sys
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from trimtab.cli.deployment import read_inventory
from trimtab.cli.folders import Folders
from trimtab.cli.options import Wish
from trimtab.cli.progress import Progress
from trimtab.cli.sources import read_source
from trimtab.cli.wished_stack import with_overrides
from trimtab.core.hardware import Inventory
from trimtab.core.model_source import ModelSource
from trimtab.core.plan import PlanWarning
from trimtab.core.stack import ModelRequest, Stack
from trimtab.core.written_check import WrittenCheck
from trimtab.errors import StackFileError
from trimtab.planner.quantisations import find_by_name
from trimtab.planner.stack_plan import World, check_written
from trimtab.probes.builtin_models import list_builtin_models
from trimtab.stackfile.foreign_check import check_foreign
from trimtab.stackfile.foreign_model import Finding, ForeignModel, ForeignStack
from trimtab.stackfile.foreign_read import read_foreign
from trimtab.stackfile.names import served_name_of

__all__ = ["ForeignCheck", "check_file"]


@dataclass(frozen=True, slots=True, kw_only=True)
class ForeignCheck:
    """What a file says, what is wrong with it, and how its plan and the planner's own compare."""

    foreign: ForeignStack
    findings: tuple[Finding, ...]
    check: WrittenCheck

    def as_document(self) -> dict[str, Any]:
        """The part of the JSON document that a plan does not have."""
        return {
            "source": self.foreign.source,
            "form": self.foreign.form,
            "findings": [_as_dict(item) for item in self.findings],
            "flag_costs": [_as_dict(item) for item in self.check.costs],
            "changes": [_as_dict(item) for item in self.check.changes],
        }


def _as_dict(item: Any) -> dict[str, Any]:
    return {name: getattr(item, name) for name in item.__slots__}


def check_file(file: str, wish: Wish, folders: Folders, progress: Progress) -> ForeignCheck:
    """The judgement of ``file`` on the cards that the wish names, or on this machine's own.

    MODEL beside it says where the facts of its one model are, when its folder is elsewhere.
    """
    foreign = read_foreign(file)
    inventory = read_inventory(wish.gpus, needs_gpus=True)
    stack, sources = _stack_of(foreign, wish, inventory, folders, progress)
    world = World(inventory=inventory, python=sys.executable, llama_cpp_version="", workload=wish.workload)
    check = check_written(stack, sources, world)
    p2p = {gpu.has_p2p for gpu in inventory.gpus}
    findings = check_foreign(
        foreign,
        has_p2p=None if len(p2p) != 1 else p2p.pop(),
        engine_version=wish.engine_version,
        gpu_total_bytes=min((gpu.total_bytes for gpu in inventory.gpus), default=None),
    )
    return ForeignCheck(foreign=foreign, findings=(*foreign.findings, *findings), check=check)


def _stack_of(
    foreign: ForeignStack, wish: Wish, inventory: Inventory, folders: Folders, progress: Progress
) -> tuple[Stack, tuple[ModelSource, ...]]:
    """The stack with its cards and facts; flags of the command line lie on top."""
    if wish.target is not None and len(foreign.models) > 1:
        raise StackFileError(
            f"{foreign.source} starts {len(foreign.models)} models, and MODEL names the facts of one",
            hint="leave MODEL out, or give a file with one model",
        )
    requests, sources = [], []
    for model in foreign.models:
        request = replace(model.request, gpus=_cards_of(model, inventory))
        request, source = _read_facts(request, model, wish, folders, progress)
        requests.append(request)
        sources.append(source)
    stack = Stack(
        name=served_name_of(Path(foreign.source).stem) or "checked",
        models=tuple(requests),
        gpus=wish.gpus,
        source=foreign.source,
    )
    return with_overrides(stack, replace(wish, target=None)), tuple(sources)


def _cards_of(model: ForeignModel, inventory: Inventory) -> str | None:
    """Card numbers that the file gives, as a request has them; None for any."""
    gpus, known = model.gpus, [gpu.index for gpu in inventory.gpus]
    if gpus.indices:
        return ",".join(str(index) for index in gpus.indices)
    if gpus.uuids:
        by_uuid = {gpu.uuid: gpu.index for gpu in inventory.gpus if gpu.uuid}
        found = [by_uuid[uuid] for uuid in gpus.uuids if uuid in by_uuid]
        return ",".join(str(index) for index in found) if len(found) == len(gpus.uuids) else None
    if gpus.count is not None and 0 < gpus.count <= len(known):
        return ",".join(str(index) for index in known[: gpus.count])
    return None


def _read_facts(
    request: ModelRequest, model: ForeignModel, wish: Wish, folders: Folders, progress: Progress
) -> tuple[ModelRequest, ModelSource]:
    """The model's facts: as MODEL says, where the file says, or of the repository of that name."""
    place = wish.target or request.checkpoint
    guess = None
    if wish.target is None and not Path(place).expanduser().exists() and place.startswith(("/", ".", "~")):
        names = (place, model.checkpoint_seen, *model.served_names)
        guess = find_by_name(names, list_builtin_models())
        if guess is None:
            raise StackFileError(
                f"{model.where or 'the file'} loads {place}, and that folder is not on this machine",
                hint="say where its facts are: trimtab plan REPO_ID_OR_FOLDER --from FILE",
            )
        place = guess
    found = read_source(replace(request, checkpoint=place, engine="vllm"), folders, progress)
    if not isinstance(found, ModelSource):
        raise StackFileError(f"{place} is a GGUF model, and {request.name} is started by vLLM")
    source = replace(found, checkpoint=request.checkpoint)
    if guess is not None:
        warning = PlanWarning(
            code="facts_by_name",
            text=f"{request.checkpoint} is not on this machine: the facts are {guess}'s, by its name",
            source="another folder: trimtab plan FOLDER --from FILE",
        )
        source = replace(source, warnings=(warning, *source.warnings))
    return request, source
