"""I/O. A repository's facts, from the nearest place that has them.

In this order: the shared cache of its hub, facts read from the hub earlier, the table of known
models where it is exact, the hub itself, ModelScope where Hugging Face cannot be reached, facts that
are old, the rest of the table. A network that is not there costs seconds at most, and never a plan
that can be made without it.
"""

from __future__ import annotations

import difflib
import re
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

from trimtab.core.model_source import GgufSource, MaskOrigin, ModelSource
from trimtab.core.plan import PlanWarning
from trimtab.errors import EnvironmentMissingError, StackFileError, TrimtabError
from trimtab.planner.model_parts import decode_parts
from trimtab.probes.builtin_models import BuiltinModel, list_builtin_models, read_builtin_model
from trimtab.probes.hub_cache import CachedSnapshot, find_hub_snapshot, find_modelscope_snapshot
from trimtab.probes.hub_download import DownloadReport
from trimtab.probes.hub_errors import HubUnreachableError
from trimtab.probes.hub_facts import read_remote_survey
from trimtab.probes.hub_http import HubHost, SourceName, choose_host
from trimtab.probes.hub_listing import endpoint_of, read_listing
from trimtab.probes.hub_reach import is_reachable
from trimtab.probes.hub_store import find_stored
from trimtab.probes.model_source_cache import recall_survey, remember_survey
from trimtab.probes.model_source_kind import check_kind, find_kind
from trimtab.probes.model_source_local import make_source, pickled_warning, recall_folder_survey
from trimtab.probes.model_source_survey import CheckpointSurvey

__all__ = ["RepoRequest", "read_repo_source", "read_shared_source"]

# Built-in facts within this are as good as the hub's, so that it need not be asked.
_EXACT_ERROR_RATIO: Final = 0.005
# Facts change with a commit only; within this time the hub is not asked whether there is one.
_FRESH_S: Final = 7 * 24 * 3600.0
# How long a connection may take to come about: alone, as a second try, and where there is something to
# fall back on (a connection across an ocean is made in 0.2 s).
_REACH_S: Final = 2.0
_REACH_SECOND_S: Final = 1.0
_REACH_SHORT_S: Final = 0.3
_LISTING_S: Final = 3.0
_COMMIT: Final = re.compile(r"[0-9a-f]{40}")


@dataclass(frozen=True, slots=True, kw_only=True)
class RepoRequest:
    """Which repository, and where it may be looked for."""

    repo: str
    cache_dir: Path
    revision: str | None
    is_offline: bool
    source: SourceName

    @property
    def host(self) -> HubHost:
        """The hub that the engine would load this from."""
        return choose_host(self.source)


@dataclass(frozen=True, slots=True, kw_only=True)
class _AtHand:
    """What can be used without a network, best first: ``is_enough`` says that no hub need be asked."""

    source: ModelSource | None
    is_enough: bool


def read_repo_source(request: RepoRequest, report: DownloadReport) -> ModelSource | GgufSource:
    """The repository's facts; errors as ``read_model_source`` says."""
    cached = read_shared_source(request)
    if isinstance(cached, GgufSource):
        return cached
    at_hand = _look_at_hand(request, cached)
    if at_hand.source is not None and (at_hand.is_enough or request.is_offline):
        return at_hand.source
    if request.is_offline:
        raise _not_found(request.repo)
    try:
        return _from_hubs(request, report, has_fallback=at_hand.source is not None)
    except (HubUnreachableError, StackFileError, EnvironmentMissingError) as error:
        if at_hand.source is None:
            raise _with_nearest(error, request.repo) from error
        return _instead(at_hand.source, error)


def _look_at_hand(request: RepoRequest, cached: ModelSource | None) -> _AtHand:
    if cached is not None and cached.local_path is not None:
        return _AtHand(source=cached, is_enough=True)
    remembered = recall_survey(request.cache_dir, _key(request, request.host))
    if remembered is not None:
        source = _from_survey(request, request.host, remembered.state, remembered.survey)
        is_pinned = request.revision is not None and _COMMIT.fullmatch(request.revision) is not None
        return _AtHand(source=source, is_enough=is_pinned or remembered.age_s < _FRESH_S)
    if cached is not None:
        return _AtHand(source=cached, is_enough=False)
    builtin = read_builtin_model(request.repo)
    if builtin is None or request.revision is not None:
        return _AtHand(source=None, is_enough=False)
    is_exact = not builtin.is_inferred and builtin.facts.error_ratio <= _EXACT_ERROR_RATIO
    return _AtHand(source=builtin_source(builtin), is_enough=is_exact and request.source == "auto")


def _from_hubs(
    request: RepoRequest, report: DownloadReport, *, has_fallback: bool
) -> ModelSource | GgufSource:
    """The facts from the hub, or from ModelScope where Hugging Face cannot be reached.

    A private name is not told to a second hub: only an unreachable first one leads there.
    """
    try:
        return _from_hub(request, request.host, report, _REACH_SHORT_S if has_fallback else _REACH_S)
    except HubUnreachableError as error:
        if request.source != "auto" or request.host == "modelscope" or has_fallback or request.revision:
            raise
        try:
            found = _from_hub(request, "modelscope", report, _REACH_SECOND_S)
        except (HubUnreachableError, StackFileError, EnvironmentMissingError):
            raise error from None
        if isinstance(found, GgufSource):
            return found
        text = (
            f"{error.message}; the facts are ModelScope's, and vLLM needs VLLM_USE_MODELSCOPE=True to load it"
        )
        warning = PlanWarning(code="modelscope_instead", text=text, source=endpoint_of("modelscope"))
        return replace(found, warnings=(*found.warnings, warning))


def _from_hub(
    request: RepoRequest, host: HubHost, report: DownloadReport, reach_s: float
) -> ModelSource | GgufSource:
    endpoint = endpoint_of(host)
    report(f"looking up {request.repo}", 0, None)
    if not is_reachable(endpoint, reach_s):
        raise HubUnreachableError(
            f"cannot get {request.repo} from {endpoint}: it cannot be reached in {reach_s:g} s",
            hint="give its folder or its config.json, or set HF_ENDPOINT to a mirror",
        )
    remote = read_listing(request.repo, host=host, revision=request.revision, timeout_s=_LISTING_S)
    remembered = recall_survey(request.cache_dir, _key(request, host))
    if remembered is not None and remembered.state == remote.commit:
        remember_survey(request.cache_dir, _key(request, host), remote.commit, remembered.survey)
        return _from_survey(request, host, remote.commit, remembered.survey)
    kind = find_kind(file.name for file in remote.files)
    if kind == "gguf":
        return GgufSource(checkpoint=request.repo)
    check_kind(kind, request.repo)
    survey, why_no_headers = read_remote_survey(remote, report)
    if survey.is_measured or not why_no_headers:
        remember_survey(request.cache_dir, _key(request, host), remote.commit, survey)
    source = _from_survey(request, host, remote.commit, survey)
    notes = list(pickled_warning([file.name for file in remote.files], request.repo))
    if not survey.has_weights:
        text = f"{request.repo} has a config.json and no weights: it can be planned, and not started"
        notes.append(PlanWarning(code="no_weights", text=text, source=endpoint))
    if why_no_headers:
        text = f"sizes are computed from the config, for the headers could not be read: {why_no_headers}"
        notes.append(PlanWarning(code="no_headers", text=text, source=endpoint))
    return replace(source, warnings=(*source.warnings, *notes))


def _from_survey(request: RepoRequest, host: HubHost, commit: str, survey: CheckpointSurvey) -> ModelSource:
    source = make_source(
        survey,
        checkpoint=request.repo,
        origin="modelscope" if host == "modelscope" else "hub",
        where=f"{request.repo}: config.json",
    )
    return replace(source, revision=commit)


def _key(request: RepoRequest, host: HubHost) -> str:
    return f"{host} {endpoint_of(host)} {request.repo}@{request.revision or ''}"


def _instead(source: ModelSource, error: TrimtabError) -> ModelSource:
    """``source`` with a word on why it is used."""
    used = (
        "the table of known models is used"
        if source.origin == "built in"
        else "what was read earlier is used"
    )
    warning = PlanWarning(code="hub_not_asked", text=f"{error.message}; {used}", source="the hub")
    return replace(source, warnings=(*source.warnings, warning))


def _with_nearest(error: TrimtabError, repo: str) -> TrimtabError:
    near = nearest_builtins(repo)
    hint = f"{error.hint}; known without a network: {', '.join(near)}" if near else error.hint
    return type(error)(error.message, hint=hint)


def read_shared_source(request: RepoRequest) -> ModelSource | GgufSource | None:
    """What a cache on this machine has: the whole checkpoint, or at least its config; None without one.

    trimtab's own cache comes first, then the one that the hub's library keeps.
    """
    stored = find_stored(request.cache_dir, request.repo, request.revision)
    if stored is not None:
        snapshot: CachedSnapshot | None = CachedSnapshot(folder=stored[0], commit=stored[1].commit)
    else:
        snapshot = _find_snapshot(request)
    if snapshot is None:
        return None
    names = [str(path.relative_to(snapshot.folder)) for path in snapshot.folder.rglob("*") if path.is_file()]
    kind = find_kind(names)
    if kind == "gguf":
        return GgufSource(checkpoint=request.repo)
    if kind not in {"safetensors", "pickled", "config only"}:
        return None
    return _from_snapshot(request, snapshot, names)


def _find_snapshot(request: RepoRequest) -> CachedSnapshot | None:
    if request.host == "modelscope":
        return find_modelscope_snapshot(request.repo)
    return find_hub_snapshot(request.repo, request.revision)


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
        warnings.append(PlanWarning(code="incomplete_cache", text=text, source=str(snapshot.folder)))
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
        notes.append(PlanWarning(code="inferred_mask", text=text, source=builtin.source))
    mask: MaskOrigin = "not quantised" if builtin.facts.quant is None else "config"
    return ModelSource(
        checkpoint=builtin.repo_id,
        facts=builtin.facts,
        parts=decode_parts(builtin.facts),
        origin="built in",
        mask_origin="inferred" if builtin.is_inferred else mask,
        warnings=tuple(notes),
    )


def _not_found(repo: str) -> StackFileError:
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
