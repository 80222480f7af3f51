"""Pure. API keys: what is kept of one, what it may do, and whether it may now."""

from __future__ import annotations

import hashlib
import json
from collections import deque
from collections.abc import Iterable
from dataclasses import asdict, dataclass, fields
from typing import Any, Final

from trimtab.errors import GatewayError, StackFileError

__all__ = ["ApiKey", "KeyLimits", "KeyUse", "decode_keys", "hash_key", "render_keys"]

_VERSION: Final = 1
_NEW: Final = "move it away; trimtab keys add makes a new one"
_WINDOW_S: Final = 60.0


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


@dataclass(frozen=True, slots=True, kw_only=True)
class ApiKey:
    """A key by its name.

    Of the key itself only ``sha256`` is kept: it is 256 bits of chance, not a word that could be
    guessed, so that a slow hash would only cost time.
    """

    name: str
    sha256: str
    created_at_s: float
    limits: KeyLimits = KeyLimits()


def hash_key(key: str) -> str:
    """What is kept of a key."""
    return hashlib.sha256(key.encode("utf-8", "surrogateescape")).hexdigest()


def render_keys(keys: Iterable[ApiKey]) -> str:
    """The text of a keys file."""
    return json.dumps({"version": _VERSION, "keys": [asdict(key) for key in keys]}, indent=2) + "\n"


def decode_keys(text: str, *, source: str) -> tuple[ApiKey, ...]:
    """The keys of a keys file; StackFileError names ``source`` where it is none."""
    try:
        document = json.loads(text)
        version, keys = document["version"], tuple(_decode_key(item) for item in document["keys"])
    except (ValueError, TypeError, KeyError, AttributeError) as error:
        raise StackFileError(f"{source} is no keys file: {error}", hint=_NEW) from error
    if version != _VERSION:
        raise StackFileError(
            f"{source} is no keys file of this trimtab: its version is {version!r}", hint=_NEW
        )
    return keys


def _decode_key(item: dict[str, Any]) -> ApiKey:
    limits = item["limits"]
    known = {field.name: limits.get(field.name) for field in fields(KeyLimits)}
    known["models"] = tuple(known["models"] or ())
    return ApiKey(
        name=str(item["name"]),
        sha256=str(item["sha256"]),
        created_at_s=float(item["created_at_s"]),
        limits=KeyLimits(**known),
    )


class KeyUse:
    """What one key did within the last minute and does now; times are of a clock that never jumps."""

    def __init__(self) -> None:
        self.num_running = 0
        self._began_s: deque[float] = deque()
        self._spent: deque[tuple[float, int]] = deque()
        self._num_spent = 0

    def begin(self, key: ApiKey, model: str, *, now_s: float) -> None:
        """One more request runs; GatewayError: 403 not this model, 429 not now."""
        self._forget(now_s)
        limits = key.limits
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
