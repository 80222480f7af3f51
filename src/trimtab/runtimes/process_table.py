"""I/O. Which processes are ours, for certain: identity by start time and mark, signals without races.

A pid alone is never trusted. An identity is (boot, pid, start time in clock ticks), and a process is
touched only when it also carries our mark in its environment. Signals go through a pidfd that was
opened before the identity was checked, so a pid that changes hands in between is never hit.
"""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import psutil

from trimtab.runtimes.guard import BOOT_ID_PATH, MARKER, OUT_OF_DESCRIPTORS, read_stat

__all__ = [
    "ProcessIdentity",
    "is_alive",
    "list_marked",
    "read_identity",
    "read_mark",
    "read_tree_rss_bytes",
    "send_signal",
    "wait_gone",
]

_DEAD_STATES = frozenset("ZX")


@dataclass(frozen=True, slots=True, kw_only=True)
class ProcessIdentity:
    """One process of one boot; ``start_ticks`` is its start in clock ticks since that boot."""

    pid: int
    start_ticks: int
    boot_id: str


@cache
def read_boot_id() -> str:
    """The kernel's random id of this boot."""
    return Path(BOOT_ID_PATH).read_text().strip()


def read_identity(pid: int) -> ProcessIdentity | None:
    """Who this pid is now; None when nobody is, or only an uncollected zombie."""
    stat = read_stat(pid)
    if stat is None or stat[0] in _DEAD_STATES:
        return None
    return ProcessIdentity(pid=pid, start_ticks=stat[2], boot_id=read_boot_id())


def is_alive(identity: ProcessIdentity) -> bool:
    """Whether exactly this process still runs."""
    return read_identity(identity.pid) == identity


def read_mark(pid: int) -> str | None:
    """The replica folder that a process carries in its environment; None when it carries none."""
    try:
        entries = Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
    except OSError as error:
        if error.errno in OUT_OF_DESCRIPTORS:
            raise
        return None  # gone, or another user's
    prefix = MARKER.encode() + b"="
    marks = [entry[len(prefix) :] for entry in entries if entry.startswith(prefix)]
    return os.fsdecode(marks[0]) if marks else None


def list_marked(folder: Path) -> dict[str, tuple[ProcessIdentity, ...]]:
    """Every living process marked with a replica folder directly inside ``folder``, by that folder's name."""
    found: dict[str, list[ProcessIdentity]] = {}
    for pid in psutil.pids():
        mark = read_mark(pid)
        if mark is None or os.path.dirname(mark) != str(folder):  # noqa: PTH120 - a string, not a place
            continue
        identity = read_identity(pid)
        if identity is not None:
            found.setdefault(os.path.basename(mark), []).append(identity)  # noqa: PTH119
    return {name: tuple(identities) for name, identities in found.items()}


def send_signal(identity: ProcessIdentity, number: signal.Signals) -> bool:
    """Signal exactly this process; False when it has gone."""
    try:
        pidfd = os.pidfd_open(identity.pid)
    except ProcessLookupError:
        return False
    try:
        if not is_alive(identity):
            return False
        signal.pidfd_send_signal(pidfd, number)
    except ProcessLookupError:
        return False
    finally:
        os.close(pidfd)
    return True


async def wait_gone(identities: Iterable[ProcessIdentity], *, timeout_s: float | None = None) -> bool:
    """Wait until all of them have ended; False when ``timeout_s`` was not enough."""
    try:
        async with asyncio.timeout(timeout_s):
            for identity in identities:
                await _wait_one_gone(identity)
    except TimeoutError:
        return False
    return True


async def _wait_one_gone(identity: ProcessIdentity) -> None:
    try:
        pidfd = os.pidfd_open(identity.pid)
    except ProcessLookupError:
        return
    loop = asyncio.get_running_loop()
    ended: asyncio.Future[None] = loop.create_future()
    try:
        if is_alive(identity):
            loop.add_reader(pidfd, _settle, ended)
            await ended
    finally:
        loop.remove_reader(pidfd)
        os.close(pidfd)


def _settle(ended: asyncio.Future[None]) -> None:
    if not ended.done():
        ended.set_result(None)


def read_tree_rss_bytes(pid: int) -> int | None:
    """Resident memory of a process and its descendants, in bytes; None when it cannot be read."""
    try:
        root = psutil.Process(pid)
        family = [root, *root.children(recursive=True)]
    except psutil.Error:
        return None
    total_bytes = 0
    for process in family:
        with suppress(psutil.Error):
            total_bytes += process.memory_info().rss
    return total_bytes or None
