"""I/O. The checkpoints in trimtab's own cache: which there are, whether they are whole, and removing them.

``checkpoints/ORG/NAME/COMMIT/`` holds a checkpoint's files as an engine reads them (real files, so that
the folder can be mounted alone), and ``.trimtab.json`` once all of them are there and checked.
``hub/ORG/NAME/KEY/`` holds GGUF files (probes/hub.py).
"""

from __future__ import annotations

import difflib
import fcntl
import json
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, Literal, TypeAlias

from trimtab.errors import EnvironmentMissingError, StackFileError
from trimtab.probes.hub import is_repo_name
from trimtab.probes.hub_choice import choose_files

__all__ = [
    "CachedModel",
    "Manifest",
    "checkpoint_folder",
    "find_cached",
    "find_stored",
    "folder_lock",
    "list_cached",
    "read_manifest",
    "remove_cached",
    "write_manifest",
]

ModelKind: TypeAlias = Literal["checkpoint", "gguf"]

_MANIFEST: Final = ".trimtab.json"
_SCHEMA: Final = 1
_KINDS: Final[tuple[tuple[ModelKind, str], ...]] = (("checkpoint", "checkpoints"), ("gguf", "hub"))
_COMMIT_CHARS: Final = 12


@dataclass(frozen=True, slots=True, kw_only=True)
class Manifest:
    """What a whole checkpoint consists of; ``files`` are (name, bytes, SHA-256 or None)."""

    repo: str
    host: str
    commit: str
    revision: str
    files: tuple[tuple[str, int, str | None], ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class CachedModel:
    """One model in trimtab's cache; ``size_bytes`` is what it takes on disk, parts of downloads included.

    ``commit`` is empty for GGUF files, which are kept by content.
    """

    repo: str
    kind: ModelKind
    path: Path
    commit: str
    size_bytes: int
    is_complete: bool


def checkpoint_folder(cache_dir: Path, repo: str, commit: str) -> Path:
    """Where the checkpoint of ``repo`` at ``commit`` belongs."""
    safe = "".join(character for character in commit if character.isalnum())[:_COMMIT_CHARS]
    return cache_dir / "checkpoints" / repo / (safe or "unknown")


def find_stored(cache_dir: Path, repo: str, revision: str | None = None) -> tuple[Path, Manifest] | None:
    """The newest whole checkpoint of ``repo``, of ``revision`` where one is asked for."""
    if not is_repo_name(repo):
        return None
    folders = [entry for entry in (cache_dir / "checkpoints" / repo).glob("*") if entry.is_dir()]
    for folder in sorted(folders, key=lambda entry: entry.stat().st_mtime, reverse=True):
        manifest = read_manifest(folder)
        if manifest is not None and revision in (None, manifest.revision, manifest.commit):
            return folder, manifest
    return None


def read_manifest(folder: Path) -> Manifest | None:
    """The folder's record, None when it has none or a file of it is gone or of another size."""
    try:
        document: Any = json.loads((folder / _MANIFEST).read_bytes())
        if document["schema"] != _SCHEMA:
            return None
        files = tuple((str(name), int(size), digest) for name, size, digest in document["files"])
        if any((folder / name).stat().st_size != size for name, size, _ in files):
            return None
        return Manifest(
            repo=document["repo"],
            host=document["host"],
            commit=document["commit"],
            revision=document["revision"],
            files=files,
        )
    except (OSError, ValueError, KeyError, TypeError):
        return None


def write_manifest(folder: Path, manifest: Manifest) -> None:
    """Record that the folder is whole."""
    document = {
        "schema": _SCHEMA,
        "repo": manifest.repo,
        "host": manifest.host,
        "commit": manifest.commit,
        "revision": manifest.revision,
        "files": manifest.files,
    }
    part = folder / f"{_MANIFEST}.part"
    part.write_text(json.dumps(document), encoding="utf-8")
    part.replace(folder / _MANIFEST)


@contextmanager
def folder_lock(folder: Path, *, is_waiting: bool) -> Iterator[bool]:
    """Hold the folder for this process; yields False where another holds it and nobody waits."""
    folder.parent.mkdir(parents=True, exist_ok=True)
    with folder.with_name(f".{folder.name}.lock").open("ab") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX if is_waiting else fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            yield False
            return
        yield True


def list_cached(cache_dir: Path) -> tuple[CachedModel, ...]:
    """Every model in trimtab's own cache, by name; shared caches of other programs are not listed."""
    found = [
        model
        for kind, part in _KINDS
        for folder in sorted((cache_dir / part).glob("*/*/*"))
        if folder.is_dir() and (model := _describe(folder, kind)) is not None
    ]
    return tuple(sorted(found, key=lambda model: (model.repo.lower(), model.kind, model.commit)))


def _describe(folder: Path, kind: ModelKind) -> CachedModel | None:
    repo = f"{folder.parent.parent.name}/{folder.parent.name}"
    names = [path.name for path in folder.rglob("*") if path.is_file()]
    if not names:
        return None
    manifest = read_manifest(folder) if kind == "checkpoint" else None
    has_parts = any(name.endswith(".part") for name in names)
    is_whole_gguf = kind == "gguf" and not has_parts and any(name.lower().endswith(".gguf") for name in names)
    return CachedModel(
        repo=repo,
        kind=kind,
        path=folder,
        commit=(manifest.commit if manifest else folder.name) if kind == "checkpoint" else "",
        size_bytes=_size_of(folder),
        is_complete=manifest is not None or is_whole_gguf,
    )


def _size_of(folder: Path) -> int:
    """Bytes of the files, each counted once however often it is linked."""
    sizes: dict[tuple[int, int], int] = {}
    for path in folder.rglob("*"):
        status = path.lstat()
        if not path.is_dir():
            sizes[status.st_dev, status.st_ino] = status.st_size
    return sum(sizes.values())


def find_cached(cache_dir: Path, repo: str, file: str = "") -> tuple[CachedModel, ...]:
    """Every copy of ``repo`` in trimtab's cache, of GGUF files only those that ``file`` (or a quant) names.

    StackFileError when there is none.
    """
    models = list_cached(cache_dir)
    chosen = [model for model in models if model.repo.lower() == repo.strip().lower()]
    if file:
        chosen = [model for model in chosen if model.kind == "gguf" and _holds(model.path, file)]
    if not chosen:
        raise _nothing_to_remove(f"{repo}:{file}" if file else repo, models)
    return tuple(chosen)


def _holds(folder: Path, wanted: str) -> bool:
    names = [path.name.removesuffix(".part") for path in folder.rglob("*") if path.is_file()]
    try:
        return bool(choose_files(folder.name, wanted, names))
    except StackFileError:
        return False


def remove_cached(cache_dir: Path, repo: str, file: str = "") -> tuple[CachedModel, ...]:
    """Remove what ``find_cached`` finds from trimtab's cache; returns what was removed.

    StackFileError when there is none, EnvironmentMissingError while one is being downloaded or the
    disk refuses. Shared caches are never touched.
    """
    chosen = find_cached(cache_dir, repo, file)
    for model in chosen:
        with folder_lock(model.path, is_waiting=False) as is_held:
            if not is_held or _has_running_download(model.path):
                raise EnvironmentMissingError(
                    f"{model.repo} is being downloaded by another trimtab", hint="stop that one first"
                )
            try:
                shutil.rmtree(model.path)
            except OSError as error:
                raise EnvironmentMissingError(
                    f"{model.path} cannot be removed: {(error.strerror or str(error)).lower()}",
                    hint="make it writable, then run the same command again",
                ) from error
    _remove_empty(chosen)
    return chosen


def _nothing_to_remove(repo: str, models: tuple[CachedModel, ...]) -> StackFileError:
    names = sorted({model.repo for model in models})
    near = difflib.get_close_matches(repo, names, n=3) or names[:3]
    hint = f"there are: {', '.join(near)}" if near else "nothing has been downloaded"
    return StackFileError(f"{repo} is not in trimtab's cache", hint=hint)


def _has_running_download(folder: Path) -> bool:
    """Whether a file of the folder is locked by its download (probes/hub_download.py)."""
    for path in folder.rglob("*.lock"):
        with path.open("ab") as lock:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                return True
    return False


def _remove_empty(models: tuple[CachedModel, ...]) -> None:
    """The locks beside the folders, and the folders of the repo and its owner once they are empty."""
    for model in models:
        model.path.with_name(f".{model.path.name}.lock").unlink(missing_ok=True)
        for folder in (model.path.parent, model.path.parent.parent):
            try:
                folder.rmdir()
            except OSError:
                break
