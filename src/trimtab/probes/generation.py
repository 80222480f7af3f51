"""I/O. Asks an engine for one real token (or one embedding), or just whether it is there."""

from __future__ import annotations

import asyncio
import errno
import json
import time
from dataclasses import dataclass
from types import TracebackType
from typing import Any, Self
from urllib.parse import urlsplit

import aiohttp

from trimtab.engines.progress import EngineProgress, read_progress

__all__ = ["EngineProbe", "ProbeResult"]

# What the probe sends: the shortest prompt every chat template and tokenizer takes.
_PROMPT = "Hi"
# A token that every vocabulary has.
_ANY_ID = 1
# Statuses that say "this engine has no such endpoint, or cannot do this with this model".
_ASK_ELSEWHERE = frozenset({400, 404, 405, 422, 501})
# Those of them that an engine which has loaded says again, however often it is asked.
_FINAL = frozenset({400, 422})
_MAX_DETAIL_CHARS = 200
# What this process or machine has run out of: descriptors, ports, memory. It says nothing about an engine.
_OWN_FAULTS = frozenset({errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM, errno.EADDRNOTAVAIL})


@dataclass(frozen=True, slots=True, kw_only=True)
class ProbeResult:
    """``detail`` says in a few words what came back; ``is_refusal``: the engine is up and says no (4xx).

    ``is_final``: such a no with a reason, which it will say again. ``is_late``: no answer in time.
    ``is_own_fault``: it could not even be asked, for want of descriptors, ports or memory on this side.
    """

    is_ok: bool
    detail: str
    elapsed_ms: float
    is_refusal: bool = False
    is_final: bool = False
    is_late: bool = False
    is_own_fault: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class _Answer:
    """``status`` is 0 when no HTTP answer came; then ``detail`` says why."""

    status: int
    detail: str = ""
    document: Any = None
    data: bytes = b""
    is_late: bool = False
    is_own_fault: bool = False


class EngineProbe:
    """Owns one HTTP session; use as an async context manager. It never raises for what an engine does."""

    def __init__(self) -> None:
        self._session: aiohttp.ClientSession | None = None

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._session is not None:
            await self._session.close()
            self._session = None

    async def probe_generation(
        self,
        base_url: str,
        *,
        model: str,
        has_embeddings: bool = False,
        takes_ids: bool = False,
        timeout_s: float,
    ) -> ProbeResult:
        """Let the engine compute one token, by chat or else by completion; with embeddings one of those.

        ``takes_ids``: it has no tokenizer, so that its prompt is a token id.
        """
        began_s = time.perf_counter()
        answer = _Answer(status=0)
        for path, body in _requests(model, has_embeddings=has_embeddings, takes_ids=takes_ids):
            answer = await self._send("POST", f"{base_url}{path}", body, timeout_s=timeout_s)
            if answer.status not in _ASK_ELSEWHERE:
                break
        return _judge(answer, began_s, has_what_was_asked=_has_content(answer.document))

    async def probe_liveness(self, base_url: str, *, timeout_s: float) -> ProbeResult:
        """Whether GET /health answers 200 in time."""
        began_s = time.perf_counter()
        answer = await self._send("GET", f"{base_url}/health", None, timeout_s=timeout_s)
        return _judge(answer, began_s, has_what_was_asked=True)

    async def probe_progress(self, base_url: str, *, timeout_s: float) -> EngineProgress | None:
        """The counters of GET /metrics; None where there are none, or none in time."""
        answer = await self._send("GET", f"{base_url}/metrics", None, timeout_s=timeout_s)
        return read_progress(answer.data.decode(errors="replace")) if answer.status == 200 else None

    async def probe_listener(self, base_url: str, *, timeout_s: float) -> bool:
        """Whether anybody at all accepts connections there."""
        where = urlsplit(base_url)
        try:
            async with asyncio.timeout(timeout_s):
                _, writer = await asyncio.open_connection(where.hostname, where.port)
        except OSError:  # TimeoutError is one
            return False
        writer.close()
        return True

    async def _send(self, method: str, url: str, body: dict[str, Any] | None, *, timeout_s: float) -> _Answer:
        if self._session is None:
            # A connection of its own for each probe: an engine that was replaced must not be met through
            # an old one. No proxies: engines are on this machine or on the stack's own hosts.
            self._session = aiohttp.ClientSession(
                connector=aiohttp.TCPConnector(force_close=True), trust_env=False
            )
        timeout = aiohttp.ClientTimeout(total=timeout_s)
        try:
            async with self._session.request(method, url, json=body, timeout=timeout) as response:
                data = await response.read()
        except TimeoutError:
            return _Answer(status=0, detail=f"no answer within {timeout_s:g} s", is_late=True)
        except (aiohttp.ClientError, OSError) as error:
            return _answer_of(error)
        return _Answer(
            status=response.status, document=_parse(data), detail=f"HTTP {response.status}", data=data
        )


def _answer_of(error: Exception) -> _Answer:
    """No answer, in words; what this side lacks is told apart from what the engine does."""
    if isinstance(error, OSError) and error.errno in _OWN_FAULTS:
        lack = errno.errorcode[error.errno]
        return _Answer(
            status=0, detail=f"trimtab itself is at a limit of the system ({lack})", is_own_fault=True
        )
    if isinstance(error, aiohttp.ClientConnectorError):
        return _Answer(status=0, detail="does not listen yet")
    return _Answer(status=0, detail=f"breaks the connection ({type(error).__name__})")


def _requests(model: str, *, has_embeddings: bool, takes_ids: bool) -> tuple[tuple[str, dict[str, Any]], ...]:
    if has_embeddings:
        return (("/v1/embeddings", {"model": model, "input": _PROMPT}),)
    common = {"model": model, "max_tokens": 1, "temperature": 0, "stream": False}
    if takes_ids:
        return (("/v1/completions", {**common, "prompt": [_ANY_ID]}),)
    message = {"role": "user", "content": _PROMPT}
    return (
        ("/v1/chat/completions", {**common, "messages": [message]}),
        ("/v1/completions", {**common, "prompt": _PROMPT}),
    )


def _parse(data: bytes) -> Any:
    try:
        return json.loads(data)
    except (ValueError, RecursionError):
        return None


def _has_content(document: Any) -> bool:
    """Whether a 200 carries a generated choice or an embedding, and no token count of zero."""
    if not isinstance(document, dict) or document.get("error"):
        return False
    items = document.get("choices") or document.get("data")
    if not isinstance(items, list) or not items or not isinstance(items[0], dict):
        return False
    if "data" in document:
        return bool(items[0].get("embedding"))
    usage = document.get("usage")
    # An engine that counts tells whether it computed; the text of one token may well be empty.
    return not isinstance(usage, dict) or usage.get("completion_tokens") != 0


def _judge(answer: _Answer, began_s: float, *, has_what_was_asked: bool) -> ProbeResult:
    is_ok = answer.status == 200 and has_what_was_asked
    detail = answer.detail
    message = _error_message(answer.document)
    if is_ok:
        detail = "answers"
    elif answer.status == 200:
        detail = "answers 200 without a token"
    elif message:
        detail = f"{answer.detail}: {message}"
    return ProbeResult(
        is_ok=is_ok,
        detail=detail[:_MAX_DETAIL_CHARS],
        elapsed_ms=(time.perf_counter() - began_s) * 1000,
        is_refusal=400 <= answer.status < 500,
        is_final=answer.status in _FINAL and bool(message),
        is_late=answer.is_late,
        is_own_fault=answer.is_own_fault,
    )


def _error_message(document: Any) -> str:
    error = document.get("error") if isinstance(document, dict) else None
    message = error.get("message") if isinstance(error, dict) else error
    return " ".join(message.split()) if isinstance(message, str) else ""
