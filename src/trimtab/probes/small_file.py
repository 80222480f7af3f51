"""I/O. Reads the small files of a checkpoint folder: regular files, up to a size, and nothing that blocks.

A folder may be somebody else's: a pipe in the place of config.json would never end, a link to a device
would fill the memory.
"""

from __future__ import annotations

import os
import stat
from pathlib import Path
from typing import Final

from trimtab.errors import StackFileError
from trimtab.probes.path_kind import cut

__all__ = ["MAX_SMALL_BYTES", "read_small_file"]

MAX_SMALL_BYTES: Final = 64 << 20
"""Ten times the largest tokenizer or index that is published."""


def read_small_file(path: Path, *, max_bytes: int = MAX_SMALL_BYTES) -> bytes:
    """The content; StackFileError in one sentence when it is no regular file, too long, or cannot be read."""
    try:
        # Without O_NONBLOCK the opening of a pipe waits for somebody to write.
        handle = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
        with os.fdopen(handle, "rb") as file:
            if not stat.S_ISREG(os.fstat(handle).st_mode):
                raise StackFileError(
                    f"{cut(str(path))} is not a regular file (a pipe, a device or a folder)",
                    hint="put the file itself there",
                )
            content = file.read(max_bytes + 1)
    except (OSError, ValueError) as error:
        raise StackFileError(f"{cut(str(path))} cannot be read: {_why(error)}") from error
    if len(content) > max_bytes:
        raise StackFileError(f"{cut(str(path))} has more than {max_bytes:,} bytes, too many for its kind")
    return content


def _why(error: OSError | ValueError) -> str:
    text = error.strerror if isinstance(error, OSError) else None
    return (text or str(error)).lower()
