"""Pure. API keys: what is kept of one, what it may do, and whether it may now."""

from __future__ import annotations

import hashlib
import json
import re
from collections import deque
from collections.abc import Iterable
from dataclasses import asdict, dataclass, fields
from typing import Any, Final

from trimtab.errors import GatewayError, StackFileError

__all__ = [
    "PRIORITIES",
    "ApiKey",
    "KeyLimits",
    "KeyUse",
    "check_key_name",
    "decode_keys",
    "hash_key",
    "render_keys",
]

_VERSION: Final = 1
_NEW: Final = "move it away; trimtab keys add makes a new one"
_WINDOW_S: Final = 60.0
# Ageing lifts a key by one every 30 s: over all of them within the time that a request may wait.
PRIORITIES: Final = (-5, 5)
_MAX_NAME: Final = 100
_SHA256: Final = re.compile(r"[0-9a-f]{64}")
# The end of the year 9999: no calendar goes further.
_LAST_S: Final = 253_402_300_799


@dataclass(frozen=True, slots=True, kw_only=True)
class KeyLimits:
    """What a key may do; None is no limit. ``models`` are served names, empty for all of them.

    Tokens are those of prompts and answers together, counted when an answer is over: the request that
    goes above the limit is still answered, the next is not.
    """

    requests_per_minute: int | None = None
    tokens_per_minute: int | None = None
    concurrency: int | None = None
    models: tuple[str, ...] = ()


# Keys that may do everything share it.
_NO_LIMITS: Final = KeyLimits()


@dataclass(frozen=True, slots=True, kw_only=True)
class ApiKey:
    """A key by its name.

    Of the key itself only ``sha256`` is kept: it is 256 bits of chance, not a word that could be
    guessed, so that a slow hash would only cost time. While a model is busy, requests of a higher
    ``priority`` are let through first.
    """

    name: str
    sha256: str
    created_at_s: float
    limits: KeyLimits = _NO_LIMITS
    priority: int = 0


def hash_key(key: str) -> str:
    """What is kept of a key."""
    return hashlib.sha256(key.encode("utf-8", "surrogateescape")).hexdigest()


def render_keys(keys: Iterable[ApiKey]) -> str:
    """The text of a keys file."""
    return json.dumps({"version": _VERSION, "keys": [asdict(key) for key in keys]}, indent=2) + "\n"


def check_key_name(name: str) -> str:
    """The name itself; StackFileError unless it can stand on a screen, in a table and in a database."""
    if not 1 <= len(name) <= _MAX_NAME or not name.isprintable() or name != name.strip():
        shown = ascii(name[:40]) + ("..." if len(name) > 40 else "")
        raise StackFileError(
            f"a key cannot be named {shown}: a name is 1 to {_MAX_NAME} printable characters,"
            " with no blank at its ends",
            hint="such as alice or open-webui",
        )
    return name


def decode_keys(text: str, *, source: str) -> tuple[ApiKey, ...]:
    """The keys of a keys file; StackFileError names ``source`` and the field where it is none."""
    try:
        return _decode_document(_load(text))
    except _FaultError as fault:
        raise StackFileError(f"{source} is no keys file of this trimtab: {fault}", hint=_NEW) from None


class _FaultError(Exception):
    """What is wrong with a keys file, and where."""


def _load(text: str) -> Any:
    try:
        return json.loads(text)
    except json.JSONDecodeError as error:
        raise _FaultError(f"it is not JSON at line {error.lineno}, column {error.colno}") from None
    except RecursionError:
        raise _FaultError("it is nested too deeply") from None
    except ValueError:
        raise _FaultError("it holds a number that is too long") from None


def _decode_document(document: Any) -> tuple[ApiKey, ...]:
    if not isinstance(document, dict):
        raise _FaultError("it is not an object")
    version, items = document.get("version"), document.get("keys")
    if version != _VERSION or isinstance(version, bool):
        raise _wrong("version", version, str(_VERSION))
    if not isinstance(items, list):
        raise _wrong("keys", items, "a list")
    keys = tuple(_decode_key(f"keys[{index}]", item) for index, item in enumerate(items))
    names: set[str] = set()
    for index, key in enumerate(keys):
        if key.name in names:
            raise _wrong(f"keys[{index}].name", key.name, "a name that no other key has")
        names.add(key.name)
    return keys


def _decode_key(at: str, item: Any) -> ApiKey:
    if not isinstance(item, dict):
        raise _wrong(at, item, "an object")
    name, digest, made = item.get("name"), item.get("sha256"), item.get("created_at_s")
    if not isinstance(name, str):
        raise _wrong(f"{at}.name", name, "text")
    if not isinstance(digest, str) or not _SHA256.fullmatch(digest):
        raise _wrong(f"{at}.sha256", "..." if isinstance(digest, str) else digest, "64 hex digits")
    if isinstance(made, bool) or not isinstance(made, int | float) or not 0 <= made <= _LAST_S:
        raise _wrong(f"{at}.created_at_s", made, "seconds since 1970, before the year 10000")
    return ApiKey(
        name=name,
        sha256=digest,
        created_at_s=float(made),
        limits=_decode_limits(f"{at}.limits", item.get("limits")),
        priority=_decode_priority(f"{at}.priority", item.get("priority", 0)),
    )


def _decode_priority(at: str, value: Any) -> int:
    low, high = PRIORITIES
    if type(value) is not int or not low <= value <= high:
        raise _wrong(at, value, f"a whole number from {low} to {high}")
    return value


def _decode_limits(at: str, item: Any) -> KeyLimits:
    if not isinstance(item, dict):
        raise _wrong(at, item, "an object")
    known = {field.name for field in fields(KeyLimits)}
    for name, value in item.items():
        # A limit that is not understood must not become none.
        if name not in known:
            raise _wrong(f"{at}.{ascii(name[:40])[1:-1]}", value, f"one of {', '.join(sorted(known))}")
        if name != "models" and not (value is None or (type(value) is int and value >= 1)):
            raise _wrong(f"{at}.{name}", value, "a whole number from 1, or null")
    models = item.get("models") or []
    if not isinstance(models, list) or not all(isinstance(one, str) and one for one in models):
        raise _wrong(f"{at}.models", models, "a list of models' names")
    limits = KeyLimits(**(item | {"models": tuple(models)}))
    return _NO_LIMITS if limits == _NO_LIMITS else limits


def _wrong(at: str, value: Any, legal: str) -> _FaultError:
    if isinstance(value, dict | list):
        shown = "a list" if isinstance(value, list) else "an object"
    elif isinstance(value, int) and abs(value) > _LAST_S:
        shown = "a very large number"
    else:
        shown = json.dumps(value)
    return _FaultError(f"{at} is {shown if len(shown) <= 60 else shown[:57] + '...'}; legal is {legal}")


class KeyUse:
    """What one key did within the last minute and does now; times are of a clock that never jumps."""

    def __init__(self) -> None:
        self.num_running = 0
        self._began_s: deque[float] = deque()
        self._spent: deque[tuple[float, int]] = deque()
        self._num_spent = 0

    def begin(self, key: ApiKey, model: str, *, now_s: float) -> None:
        """One more request runs; GatewayError: 403 not this model, 429 not now."""
        limits = key.limits
        if limits is _NO_LIMITS:
            self.num_running += 1
            return
        self._forget(now_s)
        if limits.models and model not in limits.models:
            raise GatewayError(
                f"the key {key.name!r} may not use the model {model[:200]!r}",
                status=403,
                code="model_not_allowed",
                param="model",
                hint=f"it may use: {', '.join(limits.models)}",
            )
        if limits.concurrency is not None and self.num_running >= limits.concurrency:
            raise _too_many(key, f"has {self.num_running} requests under way, its limit", 1.0)
        if limits.requests_per_minute is not None and len(self._began_s) >= limits.requests_per_minute:
            wait_s = self._began_s[0] + _WINDOW_S - now_s if self._began_s else _WINDOW_S
            raise _too_many(key, f"has sent {len(self._began_s)} requests within a minute, its limit", wait_s)
        if limits.tokens_per_minute is not None and self._num_spent >= limits.tokens_per_minute:
            wait_s = self._spent[0][0] + _WINDOW_S - now_s if self._spent else _WINDOW_S
            raise _too_many(
                key,
                f"has used {self._num_spent:,} tokens within a minute, above {limits.tokens_per_minute:,}",
                wait_s,
            )
        self.num_running += 1
        if limits.requests_per_minute is not None:
            self._began_s.append(now_s)

    def end(self, key: ApiKey, *, num_tokens: int, now_s: float) -> None:
        """A request is over, and took so many tokens."""
        self.num_running -= 1
        if key.limits.tokens_per_minute is not None and num_tokens:
            self._spent.append((now_s, num_tokens))
            self._num_spent += num_tokens

    def _forget(self, now_s: float) -> None:
        since_s = now_s - _WINDOW_S
        while self._began_s and self._began_s[0] <= since_s:
            self._began_s.popleft()
        while self._spent and self._spent[0][0] <= since_s:
            self._num_spent -= self._spent.popleft()[1]


def _too_many(key: ApiKey, what: str, wait_s: float) -> GatewayError:
    return GatewayError(
        f"the key {key.name!r} {what}",
        status=429,
        code="key_limit",
        hint="try again later",
        retry_after_s=max(1, int(wait_s) + 1),
    )
