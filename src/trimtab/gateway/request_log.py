"""I/O. One line of JSON per request in a file, written by a thread of its own in groups.

What was asked and answered is not in it: no text, no header, no key but its name.
"""

from __future__ import annotations

import errno
import json
import logging
import os
import threading
import time
from datetime import UTC, datetime
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Final, NamedTuple

from trimtab.gateway.usage import TokenCount

if TYPE_CHECKING:
    from trimtab.gateway.http_message import Request
    from trimtab.gateway.relay import Relay
    from trimtab.gateway.replica_route import ReplicaRoute

__all__ = ["RequestLog", "RequestNote", "note_of"]

_LOG: Final = logging.getLogger(__name__)
# Lines wait so long for others to be written with.
_GROUP_S: Final = 0.25
# Where a disk takes nothing, the newest lines beyond so many are dropped, and counted.
_MAX_HELD: Final = 10_000
_AT_ONCE: Final = 64
_NO_TOKENS: Final = TokenCount()


class RequestNote(NamedTuple):
    """What is known of a request at its end. A tuple: one is made per request.

    ``key`` is a key's name, ``error`` the code of what went wrong. ``model`` is empty where none was found,
    ``duration_s`` None where the request was refused at the door, ``ttft_s`` for what was not streamed.
    """

    request_id: str
    endpoint: str
    model: str
    status: int
    duration_s: float | None = None
    replica: str | None = None
    key: str | None = None
    error: str | None = None
    ttft_s: float | None = None
    tokens: TokenCount = _NO_TOKENS

    def render(self, *, at_s: float) -> str:
        """One line of JSON; what is unknown is left out."""
        line = f'{{"time": "{_second(int(at_s))}.{int(at_s % 1 * 1000):03d}+00:00"'
        line += f', "request_id": {json.dumps(self.request_id)}, "endpoint": {_quoted(self.endpoint)}'
        line += f', "model": {_quoted(self.model)}'
        if self.replica is not None:
            line += f', "replica": {_quoted(self.replica)}'
        if self.key is not None:
            line += f', "key": {_quoted(self.key)}'
        line += f', "status": {self.status}'
        if self.error is not None:
            line += f', "error": {_quoted(self.error)}'
        if self.duration_s is not None:
            line += f', "duration_ms": {self.duration_s * 1000:.1f}'
        if self.ttft_s is not None:
            line += f', "ttft_ms": {self.ttft_s * 1000:.1f}'
        if self.tokens.prompt:
            line += f', "prompt_tokens": {self.tokens.prompt}'
        if self.tokens.completion:
            line += f', "completion_tokens": {self.tokens.completion}'
        return line + "}"


# The same few words again and again: a line costs a third of what json.dumps of it would.
_quoted = lru_cache(maxsize=1024)(json.dumps)


@lru_cache(maxsize=4)
def _second(at_s: int) -> str:
    return datetime.fromtimestamp(at_s, UTC).strftime("%Y-%m-%dT%H:%M:%S")


def note_of(  # noqa: PLR0913 - builds a tuple
    request: Request,
    route: ReplicaRoute | None,
    relay: Relay | None,
    *,
    model: str,
    status: int,
    duration_s: float,
    tokens: TokenCount,
    error: str | None,
) -> RequestNote:
    """The note of a request that came to a model; ``error`` is the gateway's own refusal."""
    return RequestNote(
        request_id=request.request_id,
        endpoint=request.asked_path or request.path,
        model=model,
        status=status,
        duration_s=duration_s,
        replica=None if route is None else route.replica_id,
        key=None if request.key is None else request.key.name,
        error=error if error is not None or relay is None else relay.error,
        ttft_s=None if relay is None else relay.ttft_s,
        tokens=tokens,
    )


class RequestLog:
    """Takes notes at once and appends them soon; a disk that refuses costs lines, never an answer."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._held: list[tuple[float, RequestNote]] = []
        self._num_dropped = 0
        self._lock = threading.Lock()
        self._is_failing = False
        self._is_closing = False
        self._wake = threading.Event()
        self._thread = threading.Thread(target=self._work, name="trimtab-requests", daemon=True)
        self._thread.start()

    def add(self, note: RequestNote) -> None:
        """A request is over."""
        with self._lock:
            if len(self._held) >= _MAX_HELD:
                self._num_dropped += 1
                return
            self._held.append((time.time(), note))
            is_first = len(self._held) == 1
        if is_first:
            self._wake.set()

    def close(self) -> None:
        """Write what is left, as far as that can be done; idempotent."""
        self._is_closing = True
        self._wake.set()
        self._thread.join(5)

    def _work(self) -> None:
        while not self._is_closing:
            self._wake.wait()
            if not self._is_closing:
                time.sleep(_GROUP_S)
            self._wake.clear()
            self._write()
        self._write()

    def _write(self) -> None:
        with self._lock:
            held, self._held = self._held, []
            dropped, self._num_dropped = self._num_dropped, 0
        for start in range(0, len(held), _AT_ONCE):
            part = held[start : start + _AT_ONCE]
            if not self._try_append([note.render(at_s=at_s) for at_s, note in part]):
                dropped += len(part)
            time.sleep(0)  # whoever answers requests goes first
        if dropped and not self._try_append([json.dumps({"dropped": dropped})]):
            with self._lock:
                self._num_dropped += dropped

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
