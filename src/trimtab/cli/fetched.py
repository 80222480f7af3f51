"""I/O. Brings the files of one model to this machine, whichever kind of model it is."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Literal, TypeAlias

from trimtab.cli.folders import Folders
from trimtab.cli.interrupt import KeptInterrupt
from trimtab.cli.progress import Progress
from trimtab.core.model_source import GgufSource
from trimtab.core.stack import ModelRequest
from trimtab.engines import embedded_model
from trimtab.errors import StackFileError, TrimtabError
from trimtab.probes.embedded_model import fetch_embedded_model
from trimtab.probes.gguf_header import read_gguf_header
from trimtab.probes.hub import is_repo_id, resolve_checkpoint
from trimtab.probes.hub_checkpoint import fetch_checkpoint
from trimtab.probes.hub_errors import hub_is_offline
from trimtab.probes.hub_http import SourceName
from trimtab.probes.hub_store import list_cached
from trimtab.probes.model_source import read_model_source
from trimtab.probes.model_source_repo import RepoRequest

__all__ = ["FetchWish", "FetchedModel", "fetch_model"]

FetchedKind: TypeAlias = Literal["checkpoint", "gguf"]


@dataclass(frozen=True, slots=True, kw_only=True)
class FetchWish:
    """How to fetch: ``revision`` of a checkpoint, from which hub, and whether to look for a newer commit."""

    revision: str | None = None
    source: SourceName = "auto"
    is_refreshed: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class FetchedModel:
    """A model on this machine: ``path`` is its folder, or its (first) GGUF file.

    ``commit`` is empty where none is known; ``is_new`` tells that bytes were downloaded for it now;
    ``size_bytes`` is what its files take.
    """

    name: str
    checkpoint: str
    kind: FetchedKind
    path: Path
    commit: str
    is_new: bool
    size_bytes: int


class _Watched:
    """Passes reports on, and remembers whether anything was downloaded."""

    def __init__(self, progress: Progress, interrupt: KeptInterrupt) -> None:
        self._progress = progress
        self._interrupt = interrupt
        self.has_downloaded = False

    def report(self, what: str, done: int, total: int | None) -> None:
        """As DownloadReport asks."""
        self._interrupt.check()
        self.has_downloaded = self.has_downloaded or what.startswith(("downloading", "fetching"))
        if done == 0 and total is None:
            self._progress.show_phase(what)
        else:
            self._progress.show_bytes(what, done, total)


def fetch_model(request: ModelRequest, wish: FetchWish, folders: Folders, progress: Progress) -> FetchedModel:
    """The model's files, downloaded where they aren't here; what is here is used where it lies.

    StackFileError when it names nothing usable, EnvironmentMissingError when the hub or the disk is in
    the way; a download that was interrupted goes on where it stopped.
    """
    with KeptInterrupt() as interrupt:
        return _fetch(request, wish, folders, _Watched(progress, interrupt))


def _fetch(request: ModelRequest, wish: FetchWish, folders: Folders, watched: _Watched) -> FetchedModel:
    checkpoint = request.checkpoint
    if request.url is not None:
        raise StackFileError(
            f"models.{request.name} is an endpoint elsewhere ({request.url}): it has no files to fetch"
        )
    if checkpoint == embedded_model.SERVED_NAME:
        path = fetch_embedded_model(folders.cache, watched.report)
        return _fetched_gguf(request, path, watched)
    if _is_gguf(request, wish, folders):
        return _fetch_gguf(request, wish, folders, watched)
    if not is_repo_id(checkpoint):
        return _find_local(request, wish, folders, watched)
    asked = RepoRequest(
        repo=checkpoint,
        cache_dir=folders.cache,
        revision=wish.revision,
        is_offline=hub_is_offline(),
        source=wish.source,
    )
    try:
        fetched = fetch_checkpoint(asked, watched.report, is_refreshed=wish.is_refreshed)
    except StackFileError:
        if wish.revision is not None or not _holds_gguf(request, wish, folders):
            raise
        return _fetch_gguf(request, wish, folders, watched)
    return FetchedModel(
        name=request.name,
        checkpoint=checkpoint,
        kind="checkpoint",
        path=fetched.path,
        commit=fetched.commit,
        is_new=fetched.fetched_bytes > 0,
        size_bytes=_size_of(fetched.path),
    )


def _is_gguf(request: ModelRequest, wish: FetchWish, folders: Folders) -> bool:
    """Whether the name, the engine, or what was fetched earlier says that it is a GGUF model."""
    checkpoint = request.checkpoint
    if request.engine == "llama_cpp" or checkpoint.lower().endswith((".gguf", "-gguf")):
        return True
    if is_repo_id(checkpoint):
        has_gguf = any(
            model.repo.lower() == checkpoint.lower() and model.kind == "gguf"
            for model in list_cached(folders.cache)
        )
        return ":" in checkpoint or (has_gguf and wish.revision is None)
    return False


def _holds_gguf(request: ModelRequest, wish: FetchWish, folders: Folders) -> bool:
    """Whether the hub says that the repository holds GGUF files and nothing else to load."""
    try:
        found = read_model_source(request.checkpoint, cache_dir=folders.cache, source=wish.source)
    except TrimtabError:
        return False  # what the caller met says more
    return isinstance(found, GgufSource)


def _fetch_gguf(request: ModelRequest, wish: FetchWish, folders: Folders, watched: _Watched) -> FetchedModel:
    if wish.revision is not None:
        raise StackFileError(
            f"--revision is for checkpoints, and {request.checkpoint} is a GGUF model, kept by its content",
            hint="leave --revision out",
        )
    path = resolve_checkpoint(
        request.checkpoint, cache_dir=folders.cache, report=watched.report, source=wish.source
    )
    return _fetched_gguf(request, path, watched)


def _fetched_gguf(request: ModelRequest, path: Path, watched: _Watched) -> FetchedModel:
    header = read_gguf_header(path.absolute())
    return FetchedModel(
        name=request.name,
        checkpoint=request.checkpoint,
        kind="gguf",
        path=path.absolute(),
        commit="",
        is_new=watched.has_downloaded,
        size_bytes=header.file_bytes,
    )


def _find_local(request: ModelRequest, wish: FetchWish, folders: Folders, watched: _Watched) -> FetchedModel:
    """A folder or file of the user's own: nothing to fetch, but it must be a model."""
    found = read_model_source(request.checkpoint, cache_dir=folders.cache, source=wish.source)
    if isinstance(found, GgufSource):
        return _fetch_gguf(request, wish, folders, watched)
    if found.local_path is None:
        raise StackFileError(
            f"{request.checkpoint} is a config alone, without weights", hint="name the repo or its folder"
        )
    folder = Path(found.local_path)
    return FetchedModel(
        name=request.name,
        checkpoint=request.checkpoint,
        kind="checkpoint",
        path=folder,
        commit=found.revision,
        is_new=False,
        size_bytes=_size_of(folder),
    )


def _size_of(folder: Path) -> int:
    """Bytes of the files, links followed: a shared cache keeps them elsewhere."""
    return sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())
