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


def read_foreign(path: str | Path) -> ForeignStack:
    """What the file at ``path`` serves; ``-`` reads standard input.

    StackFileError when it is missing, no ordinary file, too large, or no UTF-8 text, besides what
    ``decode_foreign`` refuses.
    """
    if str(path) == "-":
        return decode_foreign(
            _decoded(_bounded(sys.stdin.buffer, "standard input"), "standard input"), source="-"
        )
    place = Path(path)
    return decode_foreign(_decoded(_read_bytes(place), str(place)), source=str(place))


def _read_bytes(path: Path) -> bytes:
    try:
        mode = path.stat().st_mode
        if stat.S_ISDIR(mode):
            near = sorted(entry.name for entry in path.iterdir() if entry.suffix in {".sh", ".yml", ".yaml"})[
                :5
            ]
            hint = f"in it there are: {', '.join(near)}" if near else ""
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
