"""I/O. Finds a living supervisor whose record is missing or damaged, by what the kernel knows of it.

It holds the lock of its state folder, which shows in /proc even when the file, or the whole folder, was
deleted; and it is the parent of its engines' guards, which carry the folder's name in their environment.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import psutil

from trimtab.runtimes.guard import read_stat
from trimtab.runtimes.process_table import ProcessIdentity, list_marked, read_identity, read_mark
from trimtab.runtimes.state_layout import replicas_dir_of

__all__ = ["LOCK_FILE", "UnrecordedSupervisor", "find_unrecorded"]

LOCK_FILE: Final = "supervisor.lock"
# What the kernel puts behind the path of an open file that was deleted.
_DELETED: Final = " (deleted)"


@dataclass(frozen=True, slots=True, kw_only=True)
class UnrecordedSupervisor:
    """A living supervisor that its folder's record does not tell of."""

    process: ProcessIdentity

    @property
    def pid(self) -> int:
        """Its process."""
        return self.process.pid

    def __str__(self) -> str:
        return f"process {self.pid}, whose record is missing or damaged"


def find_unrecorded(state_dir: Path) -> UnrecordedSupervisor | None:
    """The process that supervises a state folder, whatever its record says; never this process itself.

    Of several the one that began first: a child that was just forked shares its parent's lock.
    """
    pids = {*_holders(state_dir), *_guard_parents(state_dir)} - {os.getpid()}
    found = [identity for pid in pids if (identity := read_identity(pid)) is not None]
    if not found:
        return None
    return UnrecordedSupervisor(process=min(found, key=lambda identity: identity.start_ticks))


def _holders(state_dir: Path) -> Iterator[int]:
    """Processes that hold the folder's lock, as far as this user may look."""
    path = str(state_dir.resolve() / LOCK_FILE)
    for pid in psutil.pids():
        with suppress(OSError):
            for name in os.listdir(f"/proc/{pid}/fd"):  # noqa: PTH208 - thousands of them
                if _is_held(pid, name, path):
                    yield pid


def _is_held(pid: int, name: str, path: str) -> bool:
    """Whether a descriptor is the lock file, with the lock: somebody who only tries has it open too."""
    try:
        if os.readlink(f"/proc/{pid}/fd/{name}").removesuffix(_DELETED) != path:  # noqa: PTH115
            return False
        return b"FLOCK" in Path(f"/proc/{pid}/fdinfo/{name}").read_bytes()
    except OSError:
        return False


def _guard_parents(state_dir: Path) -> Iterator[int]:
    """Parents of processes that are marked with this folder, where they are trimtab's own program."""
    for identities in list_marked(replicas_dir_of(state_dir)).values():
        for identity in identities:
            stat = read_stat(identity.pid)
            if stat is not None and read_mark(stat[1]) is None and _is_trimtab(stat[1]):
                yield stat[1]


def _is_trimtab(pid: int) -> bool:
    """Whether a process is ``trimtab …`` or ``python -m trimtab …``."""
    try:
        words = Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")
    except OSError:
        return False
    programs = [word.rpartition(b"/")[2] for word in words[:2]]
    return words[1:3] == [b"-m", b"trimtab"] or b"trimtab" in programs
