"""I/O. Where trimtab keeps things: state and cache folders from the XDG variables, nothing else."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

from trimtab.errors import EnvironmentMissingError

__all__ = ["Folders", "keys_path", "read_folders", "request_log_path", "usage_path"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Folders:
    """``state`` holds run records and logs, ``cache`` holds downloads; neither need exist yet."""

    state: Path
    cache: Path


def read_folders() -> Folders:
    """The two folders, absolute; relative XDG values are ignored, as their specification asks."""
    return Folders(
        state=_xdg_folder("XDG_STATE_HOME", ".local/state") / "trimtab",
        cache=_xdg_folder("XDG_CACHE_HOME", ".cache") / "trimtab",
    )


def keys_path(folders: Folders) -> Path:
    """The file of API keys."""
    return folders.state / "keys.json"


def usage_path(folders: Folders) -> Path:
    """The database of usage per day, key and model."""
    return folders.state / "usage.sqlite3"


def request_log_path(folders: Folders) -> Path:
    """The gateway's log, a line per request; rotated and shown as the others."""
    return folders.state / "logs" / "trimtab-requests.log"


def _xdg_folder(variable: str, default: str) -> Path:
    value = os.environ.get(variable, "")
    if value.startswith("/"):
        return Path(value)
    try:
        return Path.home() / default
    except RuntimeError as error:
        raise EnvironmentMissingError(
            f"no home folder is known and {variable} is not set",
            hint=f"set {variable} to a folder that this user may write",
        ) from error
