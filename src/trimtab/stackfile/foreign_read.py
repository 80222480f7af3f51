"""I/O. Reads somebody else's launch command, script or compose file from disk or standard input."""

from __future__ import annotations

import stat
import sys
from pathlib import Path
from typing import BinaryIO, Final

from trimtab.errors import StackFileError
from trimtab.stackfile.foreign import MAX_FOREIGN_CHARS, decode_foreign
from trimtab.stackfile.foreign_model import ForeignStack

__all__ = ["read_foreign"]

# UTF-8 has at most four bytes a character.
_MAX_BYTES: Final = 4 * MAX_FOREIGN_CHARS
_LIKELY: Final = frozenset({".sh", ".yaml", ".yml"})


def read_foreign(path: str | Path) -> ForeignStack:
    """What the file at ``path`` serves; ``-`` reads standard input. ``$HOME`` and ``~`` are this user's.

    StackFileError when it is missing, no ordinary file, too large, or no UTF-8 text, besides what
    ``decode_foreign`` refuses.
    """
    name = "standard input" if str(path) == "-" else str(path)
    data = _bounded(sys.stdin.buffer, name) if str(path) == "-" else _read_bytes(Path(path))
    return decode_foreign(_decoded(data, name), source=name, home=_home())


def _home() -> str:
    """The home folder, empty where there is none."""
    try:
        return str(Path.home())
    except RuntimeError:
        return ""


def _read_bytes(path: Path) -> bytes:
    try:
        mode = path.stat().st_mode
        if stat.S_ISDIR(mode):
            names = sorted(entry.name for entry in path.iterdir() if entry.suffix in _LIKELY)
            hint = f"in it there are: {', '.join(names[:5])}" if names else ""
            raise StackFileError(f"{path} is a folder, not a file", hint=hint)
        if not stat.S_ISREG(mode):
            raise StackFileError(
                f"{path} is a pipe, a socket or a device, not a file", hint="give - to read standard input"
            )
        with path.open("rb") as file:
            return _bounded(file, str(path))
    except FileNotFoundError:
        raise StackFileError(f"{path} does not exist") from None
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or str(error)
        raise StackFileError(f"{path} cannot be read: {reason.lower()}") from None


def _bounded(file: BinaryIO, name: str) -> bytes:
    data = file.read(_MAX_BYTES + 1)
    if len(data) > _MAX_BYTES:
        raise StackFileError(f"{name} is larger than {_MAX_BYTES:,} bytes, too large for a launch command")
    return data


def _decoded(data: bytes, name: str) -> str:
    if data.startswith((b"\xff\xfe", b"\xfe\xff")):
        raise StackFileError(f"{name} is UTF-16 text", hint="save it as UTF-8")
    try:
        return data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise StackFileError(
            f"{name} is not UTF-8 text: byte {error.start} is {data[error.start]:#04x}"
        ) from None
