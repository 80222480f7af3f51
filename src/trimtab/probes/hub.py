"""I/O. Turns what a user calls a model into a GGUF file on this machine, fetching it where needed.

Downloads land in trimtab's cache; a file that the shared Hugging Face cache has is used there.
HF_ENDPOINT, HF_TOKEN, HF_HUB_OFFLINE, HF_HUB_DOWNLOAD_TIMEOUT and the proxy variables are obeyed.
"""

from __future__ import annotations

import hashlib
import re
from pathlib import Path
from typing import Final

from trimtab.errors import StackFileError
from trimtab.probes.embedded_model import ProgressReport
from trimtab.probes.hub_choice import choose_files
from trimtab.probes.hub_download import HubFile, check_room, fetch_hub_file, partial_bytes
from trimtab.probes.hub_errors import (
    HubUnreachableError,
    hub_endpoint,
    hub_is_offline,
    offline_error,
    translated_errors,
)
from trimtab.probes.hub_http import HubHost, SourceName, choose_host
from trimtab.probes.hub_listing import RemoteRepo, endpoint_of, prepare_library, read_listing
from trimtab.probes.path_kind import cut, expanded, find_path_kind, path_exists

__all__ = ["hub_endpoint", "hub_is_offline", "is_repo_id", "is_repo_name", "resolve_checkpoint"]

_REPO: Final = re.compile(r"[A-Za-z0-9][\w.\-]*/[A-Za-z0-9][\w.\-]*(:[^:\n]+)?", re.ASCII)
# Caches name a folder models--org--name, and file systems take 255 bytes; Hugging Face itself takes 96.
_MOST_REPO_CHARS: Final = 200
_MAX_LISTED: Final = 8


def is_repo_id(text: str) -> bool:
    """Whether ``text`` reads as ``org/name`` or ``org/name:file.gguf`` and no such path exists."""
    return _is_repo(text) and not path_exists(text)


def is_repo_name(text: str) -> bool:
    """Whether ``text`` reads as ``org/name``; such a name stays inside a folder that it is put in."""
    return ":" not in text and _is_repo(text)


def _is_repo(text: str) -> bool:
    return len(text.partition(":")[0]) <= _MOST_REPO_CHARS and bool(_REPO.fullmatch(text))


def resolve_checkpoint(
    text: str, *, cache_dir: Path, report: ProgressReport, source: SourceName = "auto"
) -> Path:
    """The GGUF file that ``text`` (a path or a repo id) names; the first part of a split one.

    StackFileError when it names nothing usable, EnvironmentMissingError when the hub or the disk
    is in the way. A download that was interrupted goes on where it stopped; where the hub cannot
    be reached, what is in a cache is used. ``source`` says which hub a repo is of.
    """
    if text.endswith(".gguf") and ":" not in text:
        return expanded(text)
    kind = find_path_kind(text)
    if kind == "folder":
        return _choose_in_folder(expanded(text))
    if kind == "file":
        raise StackFileError(f"{text} is not a .gguf file", hint="this version runs GGUF models only")
    if not is_repo_id(text):
        raise StackFileError(
            f"{cut(text)!r} is neither a file, nor a repo id (org/name), nor a model of ./stack.yaml",
            hint="for example: trimtab up ./model.gguf, or trimtab up org/name-GGUF:file.gguf",
        )
    repo, _, file = text.partition(":")
    return _resolve_repo(repo, file, cache_dir, report, choose_host(source))


def _choose_in_folder(folder: Path) -> Path:
    try:
        names = [entry.name for entry in folder.iterdir()]
    except OSError as error:
        raise StackFileError(f"{folder} cannot be read: {(error.strerror or str(error)).lower()}") from None
    if not any(name.lower().endswith(".gguf") for name in names):
        raise StackFileError(
            f"{folder} holds no .gguf file", hint="this version runs GGUF models; name the .gguf file itself"
        )
    try:
        return folder / choose_files(str(folder), "", names)[0]
    except StackFileError as error:
        ggufs = sorted(name for name in names if name.lower().endswith(".gguf"))
        raise StackFileError(error.message, hint=f"name one of: {', '.join(ggufs[:_MAX_LISTED])}") from None


def _resolve_repo(repo: str, file: str, cache_dir: Path, report: ProgressReport, host: HubHost) -> Path:
    prepare_library()
    if hub_is_offline():
        cached = _find_cached(repo, file, cache_dir)
        if cached is None:
            raise offline_error(f"{repo}:{file}" if file else repo)
        return cached
    report(f"looking up {repo}", 0, None)
    try:
        listing = read_listing(repo, host=host)
    except HubUnreachableError:
        cached = _find_cached(repo, file, cache_dir)
        if cached is None:
            raise
        report(f"{endpoint_of(host)} cannot be reached; using the copy in the cache", 0, None)
        return cached
    return _fetch(repo, file, listing, cache_dir, report)


def _fetch(repo: str, wanted: str, listing: RemoteRepo, cache_dir: Path, report: ProgressReport) -> Path:
    by_name = {file.name: file for file in listing.files}
    chosen = [by_name[name] for name in choose_files(repo, wanted, by_name)]
    shared = _find_shared(repo, listing.commit, chosen)
    if shared is not None:
        return shared
    folder = _folder_of(repo, cache_dir) / _content_key(listing, chosen)
    targets = [folder / file.name.rsplit("/", 1)[-1] for file in chosen]
    needed = sum(
        (file.size_bytes or 0) - partial_bytes(file, to) for file, to in zip(chosen, targets, strict=True)
    )
    check_room(cache_dir, needed, f"{repo}:{chosen[0].name}")
    for file, target in zip(chosen, targets, strict=True):
        with translated_errors(f"{repo}:{file.name}"):
            fetch_hub_file(file, target, report)
    return targets[0]


def _folder_of(repo: str, cache_dir: Path) -> Path:
    return cache_dir / "hub" / repo


def _content_key(listing: RemoteRepo, files: list[HubFile]) -> str:
    """Names a folder by what is in it, so that a commit elsewhere in the repo fetches nothing anew."""
    digests = [file.sha256 for file in files]
    text = listing.commit if None in digests else " ".join(map(str, digests))
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def _find_shared(repo: str, commit: str, files: list[HubFile]) -> Path | None:
    import huggingface_hub as hub  # noqa: PLC0415

    paths = [hub.try_to_load_from_cache(repo, file.name, revision=commit) for file in files]
    return Path(str(paths[0])) if all(isinstance(path, str) for path in paths) else None


def _find_cached(repo: str, wanted: str, cache_dir: Path) -> Path | None:
    """The newest matching checkpoint in trimtab's cache, else in the shared one."""
    folders = [entry for entry in _folder_of(repo, cache_dir).glob("*") if entry.is_dir()]
    folders.sort(key=lambda folder: folder.stat().st_mtime, reverse=True)
    shared = _shared_snapshot(repo)
    for folder in [*folders, *([shared] if shared else [])]:
        names = [str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file()]
        try:
            return folder / choose_files(repo, wanted, names)[0]
        except StackFileError:
            continue
    return None


def _shared_snapshot(repo: str) -> Path | None:
    import huggingface_hub as hub  # noqa: PLC0415

    try:
        return Path(hub.snapshot_download(repo, local_files_only=True, allow_patterns="*.gguf"))
    except (OSError, ValueError):
        return None
