"""I/O. ``plan --from FILE``: a launch command somebody wrote, judged on these cards, flag by flag."""

from __future__ import annotations

import sys
from collections.abc import Iterator
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
from trimtab.engines.vllm_flags import FLAG_VERSIONS, is_older_than_read
from trimtab.errors import NoPlanError, StackFileError, TrimtabError
from trimtab.planner.quantisations import find_by_name
from trimtab.planner.stack_plan import World, check_written, make_wish
from trimtab.planner.vllm_versions import find_version
from trimtab.planner.vllm_written import find_unusable
from trimtab.probes.builtin_models import list_builtin_models
from trimtab.probes.path_kind import cut, path_exists
from trimtab.stackfile.foreign_check import check_foreign
from trimtab.stackfile.foreign_model import Finding, ForeignModel, ForeignStack, at_line
from trimtab.stackfile.foreign_read import read_foreign
from trimtab.stackfile.foreign_secrets import shown
from trimtab.stackfile.names import served_name_of
from trimtab.stackfile.read import is_stack_path

__all__ = ["ForeignCheck", "LeftOut", "check_file"]


@dataclass(frozen=True, slots=True, kw_only=True)
class LeftOut:
    """A written flag without which the rest was judged, since this vLLM would refuse it."""

    model: str
    name: str
    written: str
    line: int
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ForeignCheck:
    """What a file says, what is wrong with it, and how its plan and the planner's own compare.

    ``exit_code`` is 2 where something would be refused, else that of a model whose facts could not be
    had, else 3 where the plan does not fit.
    """

    foreign: ForeignStack
    findings: tuple[Finding, ...]
    check: WrittenCheck
    left_out: tuple[LeftOut, ...] = ()
    unjudged_exit_code: int = 0

    @property
    def exit_code(self) -> int:
        """What the program ends with."""
        if any(item.severity == "error" for item in self.findings):
            return StackFileError.exit_code
        return self.unjudged_exit_code or (0 if self.check.plan.fits else NoPlanError.exit_code)

    def as_document(self) -> dict[str, Any]:
        """The part of the JSON document that a plan does not have."""
        return {
            "source": self.foreign.source,
            "form": self.foreign.form,
            "findings": [_as_dict(item) for item in self.findings],
            "left_out": [_as_dict(item) for item in self.left_out],
            "flag_costs": [_as_dict(item) for item in self.check.costs],
            "changes": [_as_dict(item) for item in self.check.changes],
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class _Known:
    """A model of the file with its facts; ``request`` is what is judged."""

    model: ForeignModel
    request: ModelRequest
    source: ModelSource


def _as_dict(item: Any) -> dict[str, Any]:
    return {name: getattr(item, name) for name in item.__slots__}


def check_file(file: str, wish: Wish, folders: Folders, progress: Progress) -> ForeignCheck:
    """The judgement of ``file`` on the cards that the wish names, or on this machine's own.

    MODEL beside it says where the facts of its one model are, when its folder is elsewhere. Flags that
    vLLM would refuse are findings, and the rest is judged without them; so is a model whose facts cannot
    be had, where there are others.
    """
    _check_target(wish)
    foreign = _at_version(read_foreign(file), wish)
    inventory = read_inventory(wish.gpus, needs_gpus=True)
    known, unjudged = _read_models(foreign, wish, inventory, folders, progress)
    stack = _stack_of(foreign, known, wish)
    stack, left_out = _without_unusable(stack, known, wish, inventory)
    world = World(inventory=inventory, python=sys.executable, llama_cpp_version="", workload=wish.workload)
    check = check_written(stack, tuple(item.source for item in known), world)
    p2p = {gpu.has_p2p for gpu in inventory.gpus}
    judged = check_foreign(
        foreign,
        has_p2p=None if len(p2p) != 1 else p2p.pop(),
        engine_version=wish.engine_version,
        gpu_total_bytes=min((gpu.total_bytes for gpu in inventory.gpus), default=None),
    )
    found = (*foreign.findings, *judged, *(finding for finding, _ in unjudged))
    return ForeignCheck(
        foreign=foreign,
        findings=(*found, *_unnamed(left_out, found, foreign)),
        check=check,
        left_out=left_out,
        unjudged_exit_code=max((code for _, code in unjudged), default=0),
    )


def _check_target(wish: Wish) -> None:
    if wish.target is not None and is_stack_path(wish.target):
        raise StackFileError(
            f"{wish.target} is a stack file, and MODEL beside --from is the repo id or folder of the facts",
            hint="plan one of the two: trimtab plan --from FILE, or trimtab plan STACK.yaml",
        )


def _at_version(foreign: ForeignStack, wish: Wish) -> ForeignStack:
    """The file's models with the version of the command line, where it gives one."""
    if wish.engine_version is None:
        return foreign
    find_version(wish.engine_version)
    models = tuple(
        replace(model, request=replace(model.request, engine_version=wish.engine_version))
        for model in foreign.models
    )
    return replace(foreign, models=models)


def _read_models(
    foreign: ForeignStack, wish: Wish, inventory: Inventory, folders: Folders, progress: Progress
) -> tuple[tuple[_Known, ...], tuple[tuple[Finding, int], ...]]:
    """The models whose facts could be had, and of the others what is missing with its exit code."""
    if wish.target is not None and len(foreign.models) > 1:
        raise StackFileError(
            f"{foreign.source} starts {len(foreign.models)} models, and MODEL names the facts of one",
            hint="leave MODEL out, or give a file with one model",
        )
    known: list[_Known] = []
    unjudged: list[tuple[Finding, int]] = []
    failures: list[TrimtabError] = []
    for model in foreign.models:
        request = replace(model.request, gpus=_cards_of(model, inventory))
        try:
            request, source = _read_facts(request, model, wish, folders, progress)
            make_wish(_at_judged_version(request), source)
        except TrimtabError as error:
            failures.append(error)
            unjudged.append((_unjudged(model, error), error.exit_code))
        else:
            known.append(_Known(model=model, request=request, source=source))
    if not known:
        raise failures[0]
    return tuple(known), tuple(unjudged)


def _unjudged(model: ForeignModel, error: TrimtabError) -> Finding:
    return Finding(
        code="facts_unknown",
        severity="unknown",
        text=f"{model.request.name} is not judged, and its memory is not counted: {error.message}",
        where=model.where,
        hint=error.hint,
    )


def _at_judged_version(request: ModelRequest) -> ModelRequest:
    """The request at the oldest version that is known where its own is older."""
    version = request.engine_version
    is_older = version is not None and is_older_than_read(version)
    return replace(request, engine_version=FLAG_VERSIONS[0]) if is_older else request


def _stack_of(foreign: ForeignStack, known: tuple[_Known, ...], wish: Wish) -> Stack:
    """The stack with its cards; flags of the command line lie on top."""
    stack = Stack(
        name=served_name_of(Path(foreign.source).stem) or "checked",
        models=tuple(item.request for item in known),
        gpus=wish.gpus,
        source=foreign.source,
    )
    stack = with_overrides(stack, replace(wish, target=None))
    return replace(stack, models=tuple(_at_judged_version(model) for model in stack.models))


def _without_unusable(
    stack: Stack, known: tuple[_Known, ...], wish: Wish, inventory: Inventory
) -> tuple[Stack, tuple[LeftOut, ...]]:
    """The stack without what its vLLM would refuse; flags of the command line stay and are refused later."""
    given = dict(wish.pins)
    models, left_out = [], []
    for request, item in zip(stack.models, known, strict=True):
        bad = {}
        if inventory.gpus:
            found = find_unusable(make_wish(request, item.source), inventory.gpus[0])
            bad = {name: reason for name, reason in found if name not in given}
        args = tuple((name, value) for name, value in request.engine_args if name not in bad)
        models.append(replace(request, engine_args=args))
        left_out += [_left_out(item.model, request, name, reason) for name, reason in bad.items()]
    return replace(stack, models=tuple(models)), tuple(left_out)


def _left_out(model: ForeignModel, request: ModelRequest, name: str, reason: str) -> LeftOut:
    flag = model.find_flag(name)
    return LeftOut(
        model=request.name,
        name=name,
        written=flag.written if flag is not None else name,
        line=flag.line if flag is not None else model.line,
        reason=reason,
    )


def _unnamed(
    left_out: tuple[LeftOut, ...], findings: tuple[Finding, ...], foreign: ForeignStack
) -> Iterator[Finding]:
    """Flags left out that no finding names; errors only where the version is known."""
    named = [(item.where, item.text) for item in findings if item.severity == "error"]
    versions = {model.request.name: model.request.engine_version for model in foreign.models}
    for item in left_out:
        where, version = at_line(item.line), versions.get(item.model)
        is_old = version is not None and is_older_than_read(version)
        words = (item.written, item.name, "--" + item.name.replace("_", "-"))
        if any(where == place and any(word in text for word in words) for place, text in named):
            continue
        yield Finding(
            code="flag_not_judged" if is_old else "bad_value",
            severity="unknown" if is_old else "error",
            text=f"whether vLLM {version} takes {shown(item.written)} as it is written is not known here"
            if is_old
            else f"{shown(item.written)}: {item.reason}",
            where=where,
        )


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
    if wish.target is None and not path_exists(place) and place.startswith(("/", ".", "~")):
        names = (place, model.checkpoint_seen, *model.served_names)
        guess = find_by_name(names, list_builtin_models())
        if guess is None:
            raise StackFileError(
                f"{model.where or 'the file'} loads {cut(place)}, and that folder is not on this machine",
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
