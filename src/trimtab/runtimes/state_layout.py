"""I/O. Where things lie inside the state folder, and one sentence for every way it can refuse us.

<state>/supervisor.json, supervisor.lock   who supervises (launcher.state_folder)
<state>/replicas/<replica>/                run records (run_record)
<state>/logs/<model>.log                   what the engines of a served model wrote
"""

from __future__ import annotations

import errno
import os
from pathlib import Path

from trimtab.errors import EnvironmentMissingError
from trimtab.runtimes.run_record import encode_file_name

__all__ = ["log_path_of", "logs_dir_of", "make_folders", "refused_path", "replicas_dir_of"]


def replicas_dir_of(state_dir: Path) -> Path:
    """The folder of all run records; resolved, because processes are marked with it."""
    return state_dir.resolve() / "replicas"


def logs_dir_of(state_dir: Path) -> Path:
    """The folder of all engine logs."""
    return state_dir.resolve() / "logs"


def log_path_of(state_dir: Path, model: str) -> Path:
    """Where the engine output of a served model is kept."""
    return logs_dir_of(state_dir) / f"{encode_file_name(model)}.log"


def make_folders(*folders: Path) -> None:
    """Make folders that only this user may read; EnvironmentMissingError says which one was refused."""
    for folder in folders:
        try:
            folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        except OSError as error:
            raise refused_path(error, folder) from error


def refused_path(error: OSError, path: Path | str) -> EnvironmentMissingError:
    """The refusal of a path in the state folder, as a sentence and what would work."""
    reason = os.strerror(error.errno).lower() if error.errno else str(error)
    if error.errno in (errno.ENOSPC, errno.EDQUOT):
        hint = "free some space, or set XDG_STATE_HOME to a folder on another disk"
    elif error.errno == errno.ENAMETOOLONG:
        hint = "set XDG_STATE_HOME to a shorter path"
    else:
        hint = "give this user write access there, or set XDG_STATE_HOME to a folder it may write"
    shown = os.fsencode(path).decode(errors="backslashreplace")
    return EnvironmentMissingError(f"cannot write {shown}: {reason}", hint=hint)
