"""I/O. The keys file: written by ``trimtab keys``, followed by a gateway while it serves."""

from __future__ import annotations

import os
import secrets
import tempfile
import time
from pathlib import Path
from typing import Final

from trimtab.errors import StackFileError
from trimtab.gateway.keys import ApiKey, KeyLimits, KeyUse, decode_keys, hash_key, render_keys

__all__ = ["KeyRing", "add_key", "read_keys", "remove_key"]

# A new or removed key counts from this much later on.
_LOOK_EVERY_S: Final = 1.0
_PREFIX: Final = "tt-"


def read_keys(path: Path) -> tuple[ApiKey, ...]:
    """The keys of a file, none where there is no file; StackFileError where it cannot be read."""
    try:
        text = path.read_text()
    except FileNotFoundError:
        return ()
    except (OSError, UnicodeDecodeError) as error:
        raise StackFileError(f"{path} cannot be read: {error}") from error
    return decode_keys(text, source=str(path))


def add_key(path: Path, name: str, limits: KeyLimits) -> str:
    """Make a key, keep its hash in the file and give the key: it cannot be had again."""
    keys = read_keys(path)
    if any(key.name == name for key in keys):
        raise StackFileError(
            f"there is a key {name!r} already", hint=f"another name, or first: trimtab keys rm {name}"
        )
    key = _PREFIX + secrets.token_urlsafe(32)
    made = ApiKey(name=name, sha256=hash_key(key), created_at_s=time.time(), limits=limits)
    _write(path, render_keys((*keys, made)))
    return key


def remove_key(path: Path, name: str) -> None:
    """Forget a key; StackFileError where there is none of that name."""
    keys = read_keys(path)
    kept = tuple(key for key in keys if key.name != name)
    if len(kept) == len(keys):
        known = ", ".join(key.name for key in keys) or "none"
        raise StackFileError(f"there is no key {name!r}", hint=f"known: {known}")
    _write(path, render_keys(kept))


def _write(path: Path, text: str) -> None:
    """The whole file or nothing, readable by its owner only."""
    try:
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        descriptor, made = tempfile.mkstemp(dir=path.parent, prefix=path.name)
        try:
            with os.fdopen(descriptor, "w") as file:
                file.write(text)
                file.flush()
                os.fsync(file.fileno())
            Path(made).replace(path)
        except BaseException:
            Path(made).unlink(missing_ok=True)
            raise
    except OSError as error:
        raise StackFileError(f"{path} cannot be written: {error}") from error


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
        self._uses: dict[str, KeyUse] = {}
        self._look_at_s = time.monotonic() + _LOOK_EVERY_S

    @property
    def is_on(self) -> bool:
        """Whether a key is asked for."""
        self._follow()
        return self._stamp is not None

    def find(self, authorization: str | None) -> ApiKey | None:
        """The key of a request, None where it carries none that is known."""
        scheme, _, given = (authorization or "").partition(" ")
        if scheme.lower() != "bearer":
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
        if stamp is None or stamp == self._stamp:
            return
        try:
            self._by_hash = {key.sha256: key for key in read_keys(self._path)}
        except StackFileError:
            return
        self._stamp = stamp

    def _read_stamp(self) -> tuple[int, int, int] | None:
        try:
            found = self._path.stat()
        except OSError:
            return None
        return found.st_ino, found.st_mtime_ns, found.st_size
