"""I/O. The keys file: written by ``trimtab keys``, followed by a gateway while it serves."""

from __future__ import annotations

import fcntl
import logging
import os
import secrets
import stat
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Final

from trimtab.errors import StackFileError
from trimtab.gateway.keys import (
    ApiKey,
    KeyLimits,
    KeyUse,
    check_key_name,
    decode_keys,
    hash_key,
    render_keys,
)

__all__ = ["KeyRing", "add_key", "read_keys", "remove_key"]

# A new or removed key counts from this much later on.
_LOOK_EVERY_S: Final = 1.0
_PREFIX: Final = "tt-"
_LOG: Final = logging.getLogger(__name__)
# Longer than many changes at once take, each of which waits for the disk.
_LOCK_PATIENCE_S: Final = 30.0
_LOCK_POLL_S: Final = 0.01


def read_keys(path: Path) -> tuple[ApiKey, ...]:
    """The keys of a file, none where there is no file; StackFileError where it cannot be read."""
    try:
        text = path.read_text("utf-8")
    except FileNotFoundError:
        return ()
    except UnicodeDecodeError as error:
        raise StackFileError(f"{path} is no keys file: byte {error.start} is not UTF-8") from error
    except OSError as error:
        raise StackFileError(f"{path} cannot be read: {error.strerror}") from error
    return decode_keys(text, source=str(path))


def add_key(
    path: Path,
    name: str,
    limits: KeyLimits,
    *,
    priority: int = 0,
    show: Callable[[str], None] | None = None,
) -> str:
    """Make a key, keep its hash in the file and give the key: it cannot be had again.

    ``show`` is called with it before it is kept: a key that nobody could be shown (a full disk, a reader
    that left) is not made.
    """
    check_key_name(name)
    with _changing(path):
        keys = read_keys(path)
        if any(key.name == name for key in keys):
            raise StackFileError(
                f"there is a key {name!r} already", hint=f"another name, or first: trimtab keys rm {name}"
            )
        key = _PREFIX + secrets.token_urlsafe(32)
        made = ApiKey(
            name=name, sha256=hash_key(key), created_at_s=time.time(), limits=limits, priority=priority
        )
        _write(path, render_keys((*keys, made)), before=None if show is None else partial(show, key))
    return key


def remove_key(path: Path, name: str) -> int:
    """Forget a key, and tell how many are left; StackFileError where there is none of that name."""
    with _changing(path):
        keys = read_keys(path)
        kept = tuple(key for key in keys if key.name != name)
        if len(kept) == len(keys):
            known = ", ".join(ascii(key.name)[1:-1] for key in keys) or "none"
            raise StackFileError(f"there is no key {name!a}", hint=f"known: {known}")
        _write(path, render_keys(kept))
    return len(kept)


@contextmanager
def _changing(path: Path) -> Iterator[None]:
    """Nobody else changes the file meanwhile; StackFileError where somebody does for too long.

    The lock is a file of its own, as the keys file is replaced by each change.
    """
    lock = path.with_name(f"{path.name}.lock")
    try:
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        descriptor = os.open(lock, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    except OSError as error:
        raise StackFileError(f"{lock} cannot be written: {error.strerror}") from error
    try:
        _take(descriptor, lock)
        yield
    finally:
        os.close(descriptor)


def _take(descriptor: int, lock: Path) -> None:
    deadline_s = time.monotonic() + _LOCK_PATIENCE_S
    while True:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            if time.monotonic() > deadline_s:
                raise StackFileError(
                    f"{lock} has been held by another trimtab keys for {_LOCK_PATIENCE_S:g} s",
                    hint="end that one, or try again",
                ) from None
            time.sleep(_LOCK_POLL_S)
        except OSError as error:
            raise StackFileError(f"{lock} cannot be locked: {error.strerror}") from error
        else:
            return


def _write(path: Path, text: str, *, before: Callable[[], None] | None = None) -> None:
    """The whole file or nothing, readable by its owner only; ``before`` is called just before it counts."""
    try:
        descriptor, made = tempfile.mkstemp(dir=path.parent, prefix=path.name)
    except OSError as error:
        raise StackFileError(f"{path} cannot be written: {error.strerror}") from error
    try:
        try:
            with os.fdopen(descriptor, "w") as file:
                file.write(text)
                file.flush()
                os.fsync(file.fileno())
        except OSError as error:
            raise StackFileError(f"{path} cannot be written: {error.strerror}") from error
        if before is not None:
            before()
        try:
            Path(made).replace(path)
        except OSError as error:
            raise StackFileError(f"{path} cannot be written: {error.strerror}") from error
    except BaseException:
        Path(made).unlink(missing_ok=True)
        raise


class KeyRing:
    """The keys that a gateway accepts, followed as the file changes.

    Keys are asked for from the first moment the file is there, also when none is left in it. A file that
    goes or cannot be read leaves the keys as they were: a fault never opens the gateway.
    """

    def __init__(self, path: Path) -> None:
        """StackFileError where the file is there but is no keys file."""
        self._path = path
        self._stamp = self._read_stamp()
        self._by_hash = {key.sha256: key for key in read_keys(path)}
        # Of a file that could not be read: it is not read again until it changes.
        self._broken_stamp: tuple[int, int, int] | None = None
        self._uses: dict[str, KeyUse] = {}
        self._look_at_s = time.monotonic() + _LOOK_EVERY_S

    @property
    def is_on(self) -> bool:
        """Whether a key is asked for."""
        self._follow()
        return self._stamp is not None

    def find(self, authorization: str | None) -> ApiKey | None:
        """The key of a request, None where it carries none that is known."""
        if authorization is None:
            return None
        scheme, _, given = authorization.partition(" ")
        if scheme != "Bearer" and scheme.lower() != "bearer":
            return None
        # Found by its hash: how long that takes tells nothing about any key.
        return self._by_hash.get(hash_key(given.strip()))

    def begin(self, key: ApiKey, model: str) -> None:
        """A request of this key begins; GatewayError where its limits forbid it."""
        use = self._uses.get(key.name)
        if use is None:
            use = self._uses[key.name] = KeyUse()
        use.begin(key, model, now_s=time.monotonic())

    def end(self, key: ApiKey, *, num_tokens: int) -> None:
        """A request that had begun is over."""
        self._uses[key.name].end(key, num_tokens=num_tokens, now_s=time.monotonic())

    def _follow(self) -> None:
        now_s = time.monotonic()
        if now_s < self._look_at_s:
            return
        self._look_at_s = now_s + _LOOK_EVERY_S
        stamp = self._read_stamp()
        if stamp is None or stamp in (self._stamp, self._broken_stamp):
            return
        try:
            self._by_hash = {key.sha256: key for key in read_keys(self._path)}
        except StackFileError as error:
            self._broken_stamp = stamp
            _LOG.warning("the keys stay as they were: %s", error.message)
            return
        self._stamp, self._broken_stamp = stamp, None

    def _read_stamp(self) -> tuple[int, int, int] | None:
        try:
            found = self._path.stat()
        except OSError:
            return None
        if not stat.S_ISREG(found.st_mode):
            return None  # Nobody's keys; to read a pipe would wait for its writer.
        return found.st_ino, found.st_mtime_ns, found.st_size
