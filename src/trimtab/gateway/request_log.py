"""I/O. One line of JSON per request in a file, written by a thread of its own in groups.

What was asked and answered is not in it: no text, no header, no key but its name.
"""

from __future__ import annotations

import contextlib
import errno
import json
import logging
import os
import threading
import time
from collections import deque
from datetime import UTC, datetime
from functools import lru_cache
from pathlib import Path
from typing import Final

from trimtab.gateway.usage import TokenCount

__all__ = ["RequestLog", "render_line"]

_LOG: Final = logging.getLogger(__name__)
# Lines wait so long for others to be written with.
_GROUP_S: Final = 0.25
# A disk that took nothing is asked again after so long, if only to tell what is missing.
_AGAIN_S: Final = 2.0
# Where a disk takes nothing, the newest lines beyond so many are dropped, and counted.
_MAX_HELD: Final = 10_000
_AT_ONCE: Final = 256
# The end waits so long for a disk that takes its time.
_CLOSE_S: Final = 5.0
_NO_TOKENS: Final = TokenCount()


def render_line(  # noqa: PLR0913 - what a line holds
    *,
    request_id: str,
    endpoint: str,
    model: str,
    status: int,
    duration_s: float | None = None,
    replica: str | None = None,
    key: str | None = None,
    error: str | None = None,
    ttft_s: float | None = None,
    tokens: TokenCount = _NO_TOKENS,
) -> str:
    """What is known of a request that ends now, as JSON on one line; what is unknown is left out.

    ``key`` is a key's name, ``error`` the code of what went wrong. ``model`` is empty where none was found,
    ``duration_s`` None where the request was refused at the door, ``ttft_s`` for what was not streamed.
    """
    # An id of letters and digits, which most are, needs no quoting.
    is_plain = request_id.isalnum() and request_id.isascii()
    prompt, completion, _ = tokens
    template = _template(
        endpoint, model, replica, key, status, error,
        duration_s is not None, ttft_s is not None, prompt > 0, completion > 0,
    )  # fmt: skip
    return template % (
        _moment(int(time.time() * 1000)),
        f'"{request_id}"' if is_plain else json.dumps(request_id),
        (duration_s or 0) * 1000,
        (ttft_s or 0) * 1000,
        prompt,
        completion,
    )


@lru_cache(maxsize=1024)
def _template(
    endpoint: str, model: str, replica: str | None, key: str | None, status: int, error: str | None,
    *has: bool,
) -> str:  # fmt: skip
    """A line but for what every request has of its own: the same few, put together once."""
    words = {
        "endpoint": endpoint,
        "model": model,
        "replica": replica,
        "key": key,
        "status": status,
        "error": error,
    }
    said = json.dumps({name: value for name, value in words.items() if value is not None})[1:-1]
    fields = (
        ', "duration_ms": %.1f', ', "ttft_ms": %.1f', ', "prompt_tokens": %d', ', "completion_tokens": %d'
    )  # fmt: skip
    # What is unknown takes its value and shows nothing of it.
    rest = "".join(field if is_known else "%.0s" for field, is_known in zip(fields, has, strict=True))
    return '{"time": "%s", "request_id": %s, ' + said.replace("%", "%%") + rest + "}"


@lru_cache(maxsize=4)
def _moment(at_ms: int) -> str:
    """A time in ISO 8601; where it matters, many requests end within the same millisecond."""
    return f"{_second(at_ms // 1000)}.{at_ms % 1000:03d}+00:00"


@lru_cache(maxsize=4)
def _second(at_s: int) -> str:
    return datetime.fromtimestamp(at_s, UTC).strftime("%Y-%m-%dT%H:%M:%S")


class RequestLog:
    """Takes lines at once and appends them soon; a disk that refuses costs lines, never an answer.

    ``add`` is called by one thread only, the one that put the line together: the one that writes would
    take turns with it at every line.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._held: deque[str] = deque()
        # Counts that only grow, each of one thread: lines not taken, not written, and told to be missing.
        self._num_refused = 0
        self._num_unwritten = 0
        self._num_told = 0
        self._writing = threading.Lock()
        self._is_failing = False
        self._is_closing = False
        self._is_closed = False
        self._is_awake = False
        self._wake = threading.Event()
        self._thread = threading.Thread(target=self._work, name="trimtab-requests", daemon=True)
        self._thread.start()

    def add(self, line: str) -> None:
        """A request is over; ``line`` is what ``render_line`` made.

        After ``close`` it is written at once, or by the thread that is still stuck in the line before.
        """
        if len(self._held) >= _MAX_HELD:
            self._num_refused += 1
            return
        self._held.append(line)
        if self._is_closed:
            self._write(waits=False)
        elif not self._is_awake:
            self._is_awake = True
            self._wake.set()

    def close(self) -> None:
        """Write what is left, as far as that can be done; idempotent."""
        self._is_closing = True
        self._wake.set()
        self._thread.join(_CLOSE_S)
        self._is_closed = True
        if not self._thread.is_alive():
            self._write()  # what came while the thread ended

    def _work(self) -> None:
        while not self._is_closing:
            # While lines are missing nobody may come to wake it: the disk is asked again and again.
            self._wake.wait(_AGAIN_S if self._num_dropped else None)
            if not self._is_closing:
                time.sleep(_GROUP_S)
            self._wake.clear()
            # Before the lines are taken: what comes later wakes this thread again.
            self._is_awake = False
            self._write()
        self._write()

    def _write(self, *, waits: bool = True) -> None:
        """Write what is held; where another thread is at it and this one not to wait, that one does."""
        while self._writing.acquire(blocking=waits):
            try:
                self._write_held()
            finally:
                self._writing.release()
            if not self._held:
                return
            # It came after the last look, from one who did not wait.
            waits = False

    def _write_held(self) -> None:
        while part := self._take():
            if not self._try_append(part):
                self._num_unwritten += len(part)
        dropped = self._num_dropped
        if dropped and self._try_append([json.dumps({"dropped": dropped})]):
            self._num_told += dropped

    @property
    def _num_dropped(self) -> int:
        """Lines that are missing, and not told to be."""
        return self._num_refused + self._num_unwritten - self._num_told

    def _take(self) -> list[str]:
        part: list[str] = []
        with contextlib.suppress(IndexError):
            while len(part) < _AT_ONCE:
                part.append(self._held.popleft())
        return part

    def _try_append(self, lines: list[str]) -> bool:
        try:
            self._append("\n".join(lines).encode() + b"\n")
        except OSError as error:
            if not self._is_failing:
                _LOG.warning("requests cannot be logged to %s: %s", self._path, error)
            self._is_failing = True
            return False
        self._is_failing = False
        return True

    def _append(self, data: bytes) -> None:
        """All or nothing. Opened for each part: the file may be rotated under us."""
        self._path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        descriptor = os.open(self._path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            written = os.write(descriptor, data)
            if written < len(data):
                # A full disk took a part: half a line would spoil the next one as well.
                os.ftruncate(descriptor, os.fstat(descriptor).st_size - written)
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        finally:
            os.close(descriptor)
