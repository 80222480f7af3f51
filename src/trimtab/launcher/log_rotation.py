"""I/O. Keeps logs small while engines write to them: what is old goes into files of its own.

An engine holds its log open for appending, so the file cannot be renamed away from it. Its beginning is
copied to ``<name>.log.1`` (older parts move on to ``.2`` and ``.3``), then cut off. On ext4 and XFS the
cut takes away exactly what was copied (FALLOC_FL_COLLAPSE_RANGE, fallocate(2)), whatever is appended
meanwhile: no byte is lost. Elsewhere the rest is copied too and the log emptied; what an engine writes
between its last copied byte and the cut, microseconds, is lost. A cut falls between bytes, not lines:
the parts one after the other are the log.
"""

from __future__ import annotations

import asyncio
import ctypes
import errno
import logging
import os
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO, Final

from trimtab.launcher.log_files import list_log_files, log_lock, older_part
from trimtab.units import MIB

__all__ = ["RotatedLog", "keep_logs_small", "rotate_logs"]

_LOG = logging.getLogger(__name__)
_EVERY_S: Final = 60.0
_COPY_BYTES: Final = MIB
# <linux/falloc.h>
_COLLAPSE_RANGE: Final = 0x08
_DISK_IS_FULL: Final = frozenset({errno.ENOSPC, errno.EDQUOT})


@dataclass(frozen=True, slots=True, kw_only=True)
class RotatedLog:
    """One log that was too large; ``problem`` says why it stayed as it was, empty when it was cut."""

    path: Path
    moved_bytes: int
    problem: str = ""


async def keep_logs_small(logs_dir: Path) -> None:
    """Rotate what is too large, every minute, until cancelled; never raises for a disk that refuses."""
    said: dict[Path, str] = {}
    while True:
        for log in await asyncio.to_thread(rotate_logs, logs_dir):
            if log.problem and said.get(log.path) != log.problem:
                _LOG.warning("%s grows: %s", log.path, log.problem)
            said[log.path] = log.problem
        await asyncio.sleep(_EVERY_S)


def rotate_logs(logs_dir: Path, *, max_bytes: int = 64 * MIB, keep: int = 3) -> tuple[RotatedLog, ...]:
    """Cut every log of the folder that has more than ``max_bytes``; ``keep`` older parts of each stay.

    Safe while engines write and while `trimtab logs` reads. A log that cannot be cut, for example on a
    full disk, keeps every byte and is told in the result.
    """
    try:
        paths = sorted(path for path in logs_dir.glob("*.log") if path.is_file())
    except OSError:
        return ()
    cut = (_rotate(path, max_bytes, keep) for path in paths)
    return tuple(log for log in cut if log is not None)


def _rotate(path: Path, max_bytes: int, keep: int) -> RotatedLog | None:
    try:
        descriptor = os.open(path, os.O_RDWR | os.O_CLOEXEC)
    except OSError as error:
        return RotatedLog(path=path, moved_bytes=0, problem=_reason(error))
    try:
        if os.fstat(descriptor).st_size <= max_bytes:
            return None
        return RotatedLog(path=path, moved_bytes=_cut(path, descriptor, keep))
    except OSError as error:
        return RotatedLog(path=path, moved_bytes=0, problem=_reason(error))
    finally:
        os.close(descriptor)


def _reason(error: OSError) -> str:
    return (error.strerror or str(error)).lower()


def _cut(path: Path, descriptor: int, keep: int) -> int:
    """Move the beginning of the log into its first older part; how many bytes that were."""
    # A range that is to be removed ends at a block and before the end of the file.
    block = os.fstat(descriptor).st_blksize
    at = (os.fstat(descriptor).st_size - 1) // block * block
    fresh = path.with_name(f"{path.name}.new")
    try:
        _copy_or_make_room(path, descriptor, fresh, at)
        is_exact = _can_collapse(path.parent, block)
        with log_lock(descriptor, is_reader=False):
            if not is_exact:
                at = _copy(descriptor, fresh, begin=at)
            _shift(path, fresh, keep)
            if not is_exact or not _collapse(descriptor, at):
                at = _copy_and_empty(descriptor, older_part(path, 1), begin=at)
    except OSError:
        fresh.unlink(missing_ok=True)
        raise
    return at


def _shift(path: Path, fresh: Path, keep: int) -> None:
    """Every older part one number up, what is beyond ``keep`` away, the fresh one first."""
    for part in list_log_files(path)[:-1]:  # oldest first
        number = int(part.name.rpartition(".")[2])
        if number >= keep:
            part.unlink(missing_ok=True)
        else:
            part.replace(older_part(path, number + 1))
    fresh.replace(older_part(path, 1))


def _copy_or_make_room(path: Path, descriptor: int, fresh: Path, size: int) -> None:
    """Copy the beginning; on a full disk the oldest part makes room, never the log itself."""
    while True:
        try:
            fresh.unlink(missing_ok=True)
            _copy(descriptor, fresh, begin=0, end=size)
        except OSError as error:
            fresh.unlink(missing_ok=True)
            older = list_log_files(path)[:-1]
            if error.errno not in _DISK_IS_FULL or not older:
                raise
            older[0].unlink(missing_ok=True)
        else:
            return


def _copy(descriptor: int, target: Path, *, begin: int, end: int | None = None) -> int:
    """Append the log's bytes from ``begin`` to ``end`` (None: its end) to ``target``; where that was."""
    at = begin
    with _appending(target) as out:
        while end is None or at < end:
            piece = os.pread(descriptor, _COPY_BYTES if end is None else min(_COPY_BYTES, end - at), at)
            if not piece:
                break
            _write_all(out.fileno(), piece)
            at += len(piece)
        os.fsync(out.fileno())
    return at


def _copy_and_empty(descriptor: int, target: Path, *, begin: int) -> int:
    """As ``_copy``, and empty the log in the moment its end is reached."""
    at = begin
    with _appending(target) as out:
        while piece := os.pread(descriptor, _COPY_BYTES, at):
            _write_all(out.fileno(), piece)
            at += len(piece)
        os.ftruncate(descriptor, 0)
    return at


def _appending(path: Path) -> BinaryIO:
    """The file, made if needed for this user alone, every write at its end."""
    flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC
    return os.fdopen(os.open(path, flags, 0o600), "ab", buffering=0)


def _write_all(descriptor: int, piece: bytes) -> None:
    rest = memoryview(piece)
    while rest:
        rest = rest[os.write(descriptor, rest) :]


def _can_collapse(folder: Path, block: int) -> bool:
    """Whether the folder's file system can take a range out of a file; tried on a file of two blocks."""
    try:
        with tempfile.TemporaryFile(dir=folder) as scratch:
            scratch.write(bytes(2 * block))
            scratch.flush()
            return _collapse(scratch.fileno(), block)
    except OSError:
        return False


def _collapse(descriptor: int, size: int) -> bool:
    """Take the first ``size`` bytes out of the file; False where that isn't possible, and nothing is done."""
    call = _find_fallocate()
    return call is not None and call(descriptor, _COLLAPSE_RANGE, 0, size) == 0


def _find_fallocate() -> Any:
    """fallocate(2) with 64-bit offsets, None where the C library has none; Python has no mode for it."""
    library = ctypes.CDLL(None, use_errno=True)
    call = getattr(library, "fallocate64", None) or getattr(library, "fallocate", None)
    if call is not None:
        call.argtypes = (ctypes.c_int, ctypes.c_int, ctypes.c_int64, ctypes.c_int64)
        call.restype = ctypes.c_int
    return call
