"""I/O. A repository's facts, from the nearest place that has them.

In this order: the shared cache of its hub, facts read from the hub earlier, the table of known
models where it is exact, the hub itself, ModelScope where Hugging Face cannot be reached, facts that
are old, the rest of the table. A network that is not there costs seconds at most, and never a plan
that can be made without it.
"""

from __future__ import annotations

import difflib
import os
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final, Literal, TypeAlias

from trimtab.core.model_source import GgufSource, MaskOrigin, ModelSource
from trimtab.core.plan import PlanWarning
from trimtab.errors import StackFileError
from trimtab.planner.model_parts import decode_parts
from trimtab.probes.builtin_models import BuiltinModel, list_builtin_models, read_builtin_model
from trimtab.probes.hub_cache import CachedSnapshot, find_hub_snapshot, find_modelscope_snapshot
from trimtab.probes.hub_download import DownloadReport
from trimtab.probes.model_source_kind import find_kind
from trimtab.probes.model_source_local import make_source, pickled_warning, recall_folder_survey

__all__ = ["RepoRequest", "SourceName", "read_repo_source"]

SourceName: TypeAlias = Literal["auto", "huggingface", "modelscope"]

# Built-in facts within this are as good as the hub's, so that it need not be asked.
_EXACT_ERROR_RATIO: Final = 0.005


@dataclass(frozen=True, slots=True, kw_only=True)
class RepoRequest:
    """Which repository, and where it may be looked for."""

    repo: str
    cache_dir: Path
    revision: str | None
    is_offline: bool
    source: SourceName

    @property
    def prefers_modelscope(self) -> bool:
        """The engine would load this from ModelScope."""
        if self.source != "auto":
            return self.source == "modelscope"
        return os.environ.get("VLLM_USE_MODELSCOPE", "").strip().lower() in {"1", "true"}


def read_repo_source(request: RepoRequest, report: DownloadReport) -> ModelSource | GgufSource:  # noqa: ARG001
    """The repository's facts; errors as ``read_model_source`` says."""
    cached = _from_shared_cache(request)
    if isinstance(cached, GgufSource) or (cached is not None and cached.local_path is not None):
        return cached
    builtin = read_builtin_model(request.repo)
    if cached is None and builtin is not None:
        return builtin_source(builtin)
    if cached is not None:
        return cached
    raise not_found_error(request.repo)


def _from_shared_cache(request: RepoRequest) -> ModelSource | GgufSource | None:
    """What the hub's own cache has: the whole checkpoint, or at least its config; None without one."""
    snapshot = (
        find_modelscope_snapshot(request.repo)
        if request.prefers_modelscope
        else find_hub_snapshot(request.repo, request.revision)
    )
    if snapshot is None:
        return None
    names = [str(path.relative_to(snapshot.folder)) for path in snapshot.folder.rglob("*") if path.is_file()]
    kind = find_kind(names)
    if kind == "gguf":
        return GgufSource(checkpoint=request.repo)
    if kind not in {"safetensors", "pickled", "config only"}:
        return None
    return _from_snapshot(request, snapshot, names)


def _from_snapshot(request: RepoRequest, snapshot: CachedSnapshot, names: list[str]) -> ModelSource | None:
    try:
        survey = recall_folder_survey(snapshot.folder, request.cache_dir)
    except StackFileError:
        return None  # A damaged copy is not the user's word; the hub knows better.
    is_whole = find_kind(names) == "pickled" or (
        survey.has_weights and not survey.missing_files and not survey.damaged_files
    )
    warnings = list(pickled_warning(names, request.repo))
    if survey.has_weights and not is_whole:
        count = len(survey.missing_files) + len(survey.damaged_files)
        text = (
            f"the copy of {request.repo} in the shared cache lacks {count} of its files; a start fetches them"
        )
        warnings.append(PlanWarning(code="incomplete-cache", text=text, source=str(snapshot.folder)))
    source = make_source(
        survey,
        checkpoint=request.repo,
        origin="hub cache",
        where=f"{request.repo}: config.json",
        local_path=str(snapshot.folder) if is_whole else None,
        warnings=warnings,
    )
    return replace(source, revision=snapshot.commit)


def builtin_source(builtin: BuiltinModel, warnings: tuple[PlanWarning, ...] = ()) -> ModelSource:
    """The table's facts; a mask that was worked out from sizes is said to be."""
    notes = list(warnings)
    if builtin.is_inferred:
        text = (
            f"which layers of {builtin.repo_id} are quantised was worked out from its published size, "
            f"so weights are within {builtin.facts.error_ratio:.0%} only"
        )
        notes.append(PlanWarning(code="inferred-mask", text=text, source=builtin.source))
    mask: MaskOrigin = "not quantised" if builtin.facts.quant is None else "config"
    return ModelSource(
        checkpoint=builtin.repo_id,
        facts=builtin.facts,
        parts=decode_parts(builtin.facts),
        origin="built in",
        mask_origin="inferred" if builtin.is_inferred else mask,
        warnings=tuple(notes),
    )


def not_found_error(repo: str) -> StackFileError:
    """The error for a repository that nobody knows."""
    near = nearest_builtins(repo)
    known = f"nearest known without a network: {', '.join(near)}; or " if near else ""
    return StackFileError(
        f"{repo} is not in the cache and not among the models known without a network",
        hint=f"{known}give its folder or its config.json",
    )


def nearest_builtins(repo: str) -> tuple[str, ...]:
    """Up to three known repositories whose names look like ``repo``."""
    by_lower = {name.lower(): name for name in list_builtin_models()}
    near = difflib.get_close_matches(repo.lower(), by_lower, n=3, cutoff=0.7)
    return tuple(by_lower[name] for name in near)
