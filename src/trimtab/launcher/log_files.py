"""I/O. A log and its older parts as one stream: names, the last lines, and what is written from now on.

``<name>.log`` is written to; ``<name>.log.1`` holds what came before it, ``.2`` what came before that.
A line may begin in one file and end in the next (see log_rotation).
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Final, TypeAlias

__all__ = ["LogFollower", "list_log_files", "log_lock", "older_part", "read_last_lines"]

# Device, inode and time of a file: a new older part is another file than the one before.
_Identity: TypeAlias = tuple[int, int, int]

_BLOCK_BYTES: Final = 64 * 1024
_LOCK_PATIENCE_S: Final = 1.0
_LOCK_POLL_S: Final = 0.005


def older_part(path: Path, number: int) -> Path:
    """The file with the ``number``-th part before ``path``; 0 is ``path`` itself."""
    return path.with_name(f"{path.name}.{number}") if number else path


def list_log_files(path: Path) -> tuple[Path, ...]:
    """Every file of the log that exists, oldest first."""
    numbers = (entry.name[len(path.name) + 1 :] for entry in path.parent.glob(f"{_escaped(path.name)}.*"))
    older = sorted((int(number) for number in numbers if number.isdecimal()), reverse=True)
    files = (older_part(path, number) for number in (*older, 0))
    return tuple(file for file in files if file.is_file())


def _escaped(name: str) -> str:
    return "".join(f"[{character}]" if character in "*?[" else character for character in name)


@contextlib.contextmanager
def log_lock(descriptor: int, *, is_reader: bool) -> Iterator[None]:
    """Keep the files of a log as they are meanwhile.

    Whoever holds it longer than a second (a stopped process) is not waited for: a log that grows is
    worse than a reader who sees a line twice.
    """
    kind = fcntl.LOCK_SH if is_reader else fcntl.LOCK_EX
    deadline_s = time.monotonic() + _LOCK_PATIENCE_S
    is_held = False
    while not is_held and time.monotonic() < deadline_s:
        try:
            fcntl.flock(descriptor, kind | fcntl.LOCK_NB)
            is_held = True
        except OSError:
            time.sleep(_LOCK_POLL_S)
    try:
        yield
    finally:
        if is_held:
            fcntl.flock(descriptor, fcntl.LOCK_UN)


def read_last_lines(path: Path, num_lines: int, *, is_whole: bool = False) -> tuple[list[bytes], int]:
    """The last lines of the log, oldest first and without their ends, and the offset in ``path`` after them.

    With ``is_whole`` a last line that has no end yet is left out. FileNotFoundError without a log.
    """
    with path.open("rb") as newest, log_lock(newest.fileno(), is_reader=True):
        end = os.fstat(newest.fileno()).st_size
        tail = _read_back(list_log_files(path), num_lines + 1)
    rest = tail.rpartition(b"\n")[2]
    lines = tail.split(b"\n")
    if is_whole or not rest:
        lines.pop()
    if is_whole:
        end = max(0, end - len(rest))
    return [line.removesuffix(b"\r") for line in lines[-num_lines:] if num_lines], end


def _read_back(files: tuple[Path, ...], num_ends: int) -> bytes:
    """The end of the stream with at least so many line ends, or all of it."""
    pieces: list[bytes] = []
    found = 0
    for file in reversed(files):
        with contextlib.suppress(FileNotFoundError), file.open("rb") as data:
            at = data.seek(0, os.SEEK_END)
            while at > 0 and found <= num_ends:
                begin = max(0, at - _BLOCK_BYTES)
                piece = os.pread(data.fileno(), at - begin, begin)
                pieces.append(piece)
                found += piece.count(b"\n")
                at = begin
        if found > num_ends:
            break
    return b"".join(reversed(pieces))


class LogFollower:
    """Reads what is appended to a log from an offset on, across rotations; ``close`` it at the end."""

    def __init__(self, path: Path, offset: int) -> None:
        self._path = path
        self._descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        self._offset = offset
        self._older = self._identify_older()
        self._rest = b""

    def read_lines(self) -> list[bytes]:
        """The whole lines that have come since the last call, without their ends."""
        with log_lock(self._descriptor, is_reader=True):
            data = self._read_rotated() + self._read_new()
        *lines, self._rest = (self._rest + data).split(b"\n")
        return [line.removesuffix(b"\r") for line in lines]

    def close(self) -> None:
        """Let go of the file."""
        os.close(self._descriptor)

    def _identify_older(self) -> _Identity | None:
        try:
            status = older_part(self._path, 1).stat()
        except OSError:
            return None
        return status.st_dev, status.st_ino, status.st_mtime_ns

    def _read_rotated(self) -> bytes:
        """What was cut off before it was read; moves the offset along with the cut."""
        older = self._identify_older()
        if older is None or older == self._older:
            return b""
        self._older = older
        try:
            with older_part(self._path, 1).open("rb") as part:
                size = part.seek(0, os.SEEK_END)
                part.seek(min(self._offset, size))
                unread = part.read()
        except OSError:
            return b""
        self._offset = max(0, self._offset - size)
        return unread

    def _read_new(self) -> bytes:
        data = self._read_to_end()
        if self._is_replaced():
            os.close(self._descriptor)
            self._descriptor = os.open(self._path, os.O_RDONLY | os.O_CLOEXEC)
            self._offset = 0
            data += self._read_to_end()
        return data

    def _read_to_end(self) -> bytes:
        size = os.fstat(self._descriptor).st_size
        if size < self._offset:  # emptied by somebody else
            self._offset = 0
        data = os.pread(self._descriptor, size - self._offset, self._offset)
        self._offset += len(data)
        return data

    def _is_replaced(self) -> bool:
        """Whether another file has the log's name now."""
        try:
            now = self._path.stat()
        except OSError:
            return False
        mine = os.fstat(self._descriptor)
        return (now.st_dev, now.st_ino) != (mine.st_dev, mine.st_ino)
