"""I/O. Finds what the caches that other programs share hold: Hugging Face's and ModelScope's.

Both layouts are read straight from the folders: importing the libraries takes longer than a plan.
Hugging Face: ``models--ORG--NAME/refs/REVISION`` holds a commit, ``snapshots/COMMIT`` its files
(their cache guide). ModelScope: ``models/ORG/NAME`` (``.`` in names written as ``___``).
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

__all__ = ["CachedSnapshot", "find_hub_snapshot", "find_modelscope_snapshot", "hub_cache_dir", "repo_folder"]


@dataclass(frozen=True, slots=True, kw_only=True)
class CachedSnapshot:
    """One repository at one commit, as far as it was fetched; ``commit`` is empty where unknown."""

    folder: Path
    commit: str


def hub_cache_dir() -> Path:
    """Hugging Face's cache: HF_HUB_CACHE, HF_HOME and XDG_CACHE_HOME decide, as for the library."""
    from huggingface_hub import constants  # noqa: PLC0415 - a light module, 10 ms

    return Path(constants.HF_HUB_CACHE)


def repo_folder(repo: str) -> Path:
    """Where Hugging Face's cache keeps ``repo``."""
    return hub_cache_dir() / f"models--{repo.replace('/', '--')}"


def find_hub_snapshot(repo: str, revision: str | None = None) -> CachedSnapshot | None:
    """The snapshot of ``revision`` (a branch, tag or commit; None: main), None when it isn't there."""
    folder = repo_folder(repo)
    commit = revision or "main"
    reference = folder / "refs" / commit
    try:
        if reference.is_file():
            commit = reference.read_text(encoding="utf-8").strip()
        snapshot = folder / "snapshots" / commit
        is_there = bool(commit) and snapshot.parent == folder / "snapshots" and snapshot.is_dir()
    except (OSError, ValueError):
        return None
    return CachedSnapshot(folder=snapshot, commit=commit) if is_there else None


def find_modelscope_snapshot(repo: str) -> CachedSnapshot | None:
    """The folder into which ``modelscope download`` put ``repo``, None when there is none."""
    home = os.environ.get("MODELSCOPE_CACHE", "")
    bases = [Path(home)] if home else [Path.home() / ".cache" / "modelscope" / "hub"]
    owner, _, name = repo.partition("/")
    for base in (bases[0], bases[0] / "hub", bases[0] / "models", bases[0] / "hub" / "models"):
        for spelled in (name, name.replace(".", "___")):
            folder = base / owner / spelled
            if (folder / "config.json").is_file():
                return CachedSnapshot(folder=folder, commit="")
    return None
