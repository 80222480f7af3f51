"""I/O. What a text names on this disk, if anything: also texts that no file system would take as a path."""

from __future__ import annotations

import errno
import os
import stat
from pathlib import Path
from typing import Final, Literal, TypeAlias

from trimtab.errors import StackFileError

__all__ = ["PathKind", "cut", "expanded", "find_path_kind", "path_exists"]

PathKind: TypeAlias = Literal["folder", "file", "other"]

# What means that nothing of this name is there: too long, a file in the place of a folder, links in a circle.
_ABSENT: Final = frozenset({errno.ENOENT, errno.ENOTDIR, errno.ENAMETOOLONG, errno.ELOOP, errno.EINVAL})
_MOST_SHOWN: Final = 100


def find_path_kind(text: str | Path) -> PathKind | None:
    """What is at ``text`` (``~`` is this user's home), None for nothing; "other" is a pipe or a device.

    StackFileError where the disk does not say, such as below a folder that this user may not enter.
    """
    try:
        mode = os.stat(Path(text).expanduser()).st_mode  # noqa: PTH116 - Path.stat, without its own exceptions
    except OSError as error:
        if error.errno in _ABSENT:
            return None
        reason = (error.strerror or str(error)).lower()
        raise StackFileError(f"{cut(str(text))} cannot be read: {reason}") from error
    except (ValueError, RuntimeError):
        return None  # A null byte, half a character, or the home of a user who does not exist.
    return "folder" if stat.S_ISDIR(mode) else "file" if stat.S_ISREG(mode) else "other"


def expanded(text: str) -> Path:
    """The path with ``~`` as a home folder, unchanged where no such user is."""
    try:
        return Path(text).expanduser()
    except RuntimeError:
        return Path(text)


def path_exists(text: str | Path) -> bool:
    """Whether anything is there, as far as this user may see."""
    try:
        return find_path_kind(text) is not None
    except StackFileError:
        return True


def cut(text: str) -> str:
    """A path or name as messages show it: long ones keep both ends."""
    return text if len(text) <= _MOST_SHOWN else f"{text[: _MOST_SHOWN - 40]}...{text[-37:]}"
