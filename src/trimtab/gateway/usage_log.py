"""I/O. Usage per day, key and model in an SQLite file, written by a thread of its own in groups."""

from __future__ import annotations

import contextlib
import logging
import sqlite3
import threading
import time
from pathlib import Path
from typing import Final

from trimtab.errors import StackFileError
from trimtab.gateway.usage import TokenCount, UsageTotal

__all__ = ["UsageLog", "read_usage_totals"]

_LOG: Final = logging.getLogger(__name__)
# Records wait so long for others to be written with; safe within a second leaves room for a slow disk.
_GROUP_S: Final = 0.25
_FIRST_ERROR: Final = 400
# Far above any answer's: an engine's nonsense must not overflow what the database adds up.
_MAX_TOKENS: Final = 2**32
# Written at each start: no later write but a checkpoint waits for the disk.
_VERSION: Final = 1
_BUSY_S: Final = 5.0
_SCHEMA: Final = """
CREATE TABLE IF NOT EXISTS usage (
    day TEXT NOT NULL, key TEXT NOT NULL, model TEXT NOT NULL,
    num_requests INTEGER NOT NULL, num_errors INTEGER NOT NULL,
    prompt_tokens INTEGER NOT NULL, completion_tokens INTEGER NOT NULL, num_estimated INTEGER NOT NULL,
    PRIMARY KEY (day, key, model)
) WITHOUT ROWID"""
_ADD: Final = """
INSERT INTO usage VALUES (?, ?, ?, ?, ?, ?, ?, ?) ON CONFLICT (day, key, model) DO UPDATE SET
    num_requests = num_requests + excluded.num_requests,
    num_errors = num_errors + excluded.num_errors,
    prompt_tokens = prompt_tokens + excluded.prompt_tokens,
    completion_tokens = completion_tokens + excluded.completion_tokens,
    num_estimated = num_estimated + excluded.num_estimated"""


class UsageLog:
    """Takes counts at once and writes them soon: an answer is safe one second after its end.

    Safe means that the end of this process, by SIGKILL too, does not lose it. A group is written whole
    or not at all, so that nothing is counted twice. What cannot be written (a full disk) is kept and
    tried again; requests go on. A day is that of the moment
    of writing, in UTC. ``max_pages`` bounds the file, for tests of a full disk.
    """

    def __init__(self, path: Path, *, max_pages: int | None = None) -> None:
        self._path = path
        self._max_pages = max_pages
        # What is not written yet, by key and model; and what could not be written, with its day.
        self._fresh: dict[tuple[str, str], list[int]] = {}
        self._kept: dict[tuple[str, str, str], list[int]] = {}
        self._lock = threading.Lock()
        self._wake = threading.Event()
        self._is_closing = False
        self._connection: sqlite3.Connection | None = None
        # The device and inode of the file that the connection has open.
        self._identity: tuple[int, int] | None = None
        self._own_beside: dict[Path, tuple[int, int] | None] = {}
        self._is_failing = False
        # What is slow on a busy disk (making the file, the first sync of its log) is done before anything
        # is served, not while the first counts wait to be safe.
        try:
            self._open()
        except Exception as error:  # noqa: BLE001 - see _write
            self._on_failure(error)
        self._thread = threading.Thread(target=self._work, name="trimtab-usage", daemon=True)
        self._thread.start()

    def add(self, *, key: str, model: str, status: int, tokens: TokenCount) -> None:
        """An answer is over. Added up at once, so that the thread has little to do while others wait."""
        if not (key.isascii() and model.isascii()):
            # What has no UTF-8 (a lone surrogate) cannot stand in the database as it is.
            key, model = (name.encode("utf-8", "backslashreplace").decode() for name in (key, model))
        prompt, completion, is_estimated = tokens
        with self._lock:
            numbers = self._fresh.get((key, model))
            if numbers is None:
                numbers = self._fresh[key, model] = [0, 0, 0, 0, 0]
                self._wake.set()
            numbers[0] += 1
            numbers[1] += status >= _FIRST_ERROR
            numbers[2] += min(_MAX_TOKENS, prompt)
            numbers[3] += min(_MAX_TOKENS, completion)
            numbers[4] += is_estimated

    def close(self) -> None:
        """Write what is left, as far as that can be done; idempotent."""
        self._is_closing = True
        self._wake.set()
        self._thread.join(_BUSY_S * 2)

    def _work(self) -> None:
        while not self._is_closing:
            self._wake.wait()
            if not self._is_closing:
                time.sleep(_GROUP_S)
            self._wake.clear()
            if not self._write() and not self._is_closing:
                self._wake.set()
                time.sleep(_GROUP_S)
        self._write()
        self._close()

    def _write(self) -> bool:
        """Write all that there is; False where it must be kept."""
        with self._lock:
            fresh, self._fresh = self._fresh, {}
        day = time.strftime("%Y-%m-%d", time.gmtime())
        for (key, model), numbers in fresh.items():
            kept = self._kept.setdefault((day, key, model), [0, 0, 0, 0, 0])
            for index, number in enumerate(numbers):
                kept[index] += number
        if not self._kept:
            return True
        try:
            self._leave_replaced()
            connection = self._open()
            with connection:
                connection.executemany(_ADD, [(*names, *numbers) for names, numbers in self._kept.items()])
        except Exception as error:  # noqa: BLE001 - whatever it is, the counts after it must be written
            self._on_failure(error)
            return False
        self._kept = {}
        self._is_failing = False
        return True

    def _open(self) -> sqlite3.Connection:
        if self._connection is None:
            self._path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            connection = sqlite3.connect(self._path, timeout=_BUSY_S, check_same_thread=False)
            try:
                connection.execute("PRAGMA synchronous=NORMAL")
                connection.execute("PRAGMA journal_mode=WAL")
                if self._max_pages is not None:
                    connection.execute(f"PRAGMA max_page_count={self._max_pages:d}")
                connection.execute(_SCHEMA)
                connection.execute(f"PRAGMA user_version={_VERSION:d}")
            except sqlite3.Error:
                connection.close()
                raise
            self._connection = connection
            self._identity, self._own_beside = _identify(self._path), self._identify_beside()
        return self._connection

    def _identify_beside(self) -> dict[Path, tuple[int, int] | None]:
        """The files that SQLite keeps beside the database."""
        names = (f"{self._path.name}-wal", f"{self._path.name}-shm")
        return {path: _identify(path) for path in (self._path.with_name(name) for name in names)}

    def _leave_replaced(self) -> None:
        """Let go of a database that was removed or replaced: what is written to it nobody could read."""
        if self._connection is None or _identify(self._path) == self._identity:
            return
        _LOG.warning("%s was removed or replaced while serving: usage goes on in a new one", self._path)
        self._close()
        # SQLite would take them for those of the new database, and write the old one's pages into it.
        for path, found in self._identify_beside().items():
            if found is not None and found == self._own_beside.get(path):
                path.unlink()

    def _on_failure(self, error: Exception) -> None:
        if not self._is_failing:
            _LOG.warning("usage cannot be written to %s and is kept in memory: %s", self._path, error)
        self._is_failing = True
        self._close()

    def _close(self) -> None:
        if self._connection is not None:
            # By itself SQLite leaves out what its log holds of a file that was moved.
            with contextlib.suppress(sqlite3.Error):
                self._connection.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchall()
            with contextlib.suppress(sqlite3.Error):
                self._connection.close()
            self._connection = None


def _identify(path: Path) -> tuple[int, int] | None:
    """Device and inode of the file that has the name now, None where none has."""
    try:
        found = path.stat()
    except FileNotFoundError:
        return None
    return found.st_dev, found.st_ino


def read_usage_totals(path: Path) -> tuple[UsageTotal, ...]:
    """All that was written, oldest day first; none where there is no file."""
    if not path.exists():
        return ()
    try:
        with contextlib.closing(sqlite3.connect(path, timeout=_BUSY_S)) as connection:
            if not connection.execute("SELECT 1 FROM sqlite_master WHERE name = 'usage'").fetchall():
                return ()
            rows = connection.execute("SELECT * FROM usage ORDER BY day, key, model").fetchall()
    except sqlite3.Error as error:
        raise StackFileError(f"{path} cannot be read: {error}") from error
    return tuple(
        UsageTotal(
            day=row[0], key=row[1], model=row[2], num_requests=row[3], num_errors=row[4],
            prompt_tokens=row[5], completion_tokens=row[6], num_estimated=row[7],
        )
        for row in rows
    )  # fmt: skip
