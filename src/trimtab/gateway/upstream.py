"""I/O. Speaks to engines: opens a request, survives a stale connection, counts a prompt."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from types import SimpleNamespace
from typing import Any, Final

import aiohttp

from trimtab.core.state import ServedModel

__all__ = ["Upstream", "UpstreamError"]

_CONNECT_TIMEOUT_S: Final = 5.0
_COUNT_TIMEOUT_S: Final = 10.0
# llama.cpp closes an idle connection after 5 s (its Keep-Alive header says so): leave it before.
_KEEPALIVE_S: Final = 4.0
# A connection that was stale breaks within a round trip to the engine; what breaks later was at work.
_STALE_WITHIN_S: Final = 0.5


class UpstreamError(Exception):
    """The engine refused the connection, closed it, or broke the protocol, before or inside an answer."""


class Upstream:
    """One pool of connections to all engines of a gateway. Generation has no time limit of its own."""

    def __init__(self) -> None:
        trace = aiohttp.TraceConfig()
        trace.on_connection_reuseconn.append(_mark_reused)
        self._session = _make_session(trace, keepalive_timeout=_KEEPALIVE_S)
        # Its connections carry one request each, so that none of them can be stale.
        self._fresh_session = _make_session(force_close=True)

    async def close(self) -> None:
        """Close every connection."""
        await self._session.close()
        await self._fresh_session.close()

    @asynccontextmanager
    async def open(
        self, url: str, body: bytes, headers: dict[str, str]
    ) -> AsyncIterator[aiohttp.ClientResponse]:
        """POST the body; yields the answer once its head is here, and closes it whatever happens.

        Raises UpstreamError when the engine cannot be reached or answers nothing.
        """
        response = await self._post(url, body, headers)
        forget = _end_reading_with_connection(response)
        try:
            yield response
        finally:
            forget()
            # Not release(): an answer that was not read to its end must end the engine's work.
            response.close() if not response.content.at_eof() else response.release()

    async def _post(self, url: str, body: bytes, headers: dict[str, str]) -> aiohttp.ClientResponse:
        attempt = SimpleNamespace(is_reused=False)
        started_s = time.monotonic()
        try:
            return await self._session.post(
                url, data=body, headers=headers, allow_redirects=False, trace_request_ctx=attempt
            )
        except (aiohttp.ServerDisconnectedError, aiohttp.ClientOSError) as error:
            # A pooled connection that the engine closed just then carried nothing to it: safe to repeat.
            # One that was fresh, or that lived on for a while, may have started work: never repeated.
            if not attempt.is_reused or time.monotonic() - started_s > _STALE_WITHIN_S:
                raise UpstreamError(_text(error)) from error
        except (aiohttp.ClientError, TimeoutError) as error:
            raise UpstreamError(_text(error)) from error
        try:
            return await self._fresh_session.post(url, data=body, headers=headers, allow_redirects=False)
        except (aiohttp.ClientError, TimeoutError) as error:
            raise UpstreamError(_text(error)) from error

    async def count_prompt_tokens(self, model: ServedModel, document: dict[str, Any]) -> int | None:
        """Tokens of the prompt as the engine will see it, or None where it cannot tell."""
        try:
            async with asyncio.timeout(_COUNT_TIMEOUT_S):
                return await self._count(model, document)
        except (UpstreamError, aiohttp.ClientError, TimeoutError, ValueError, KeyError, TypeError):
            return None

    async def _count(self, model: ServedModel, document: dict[str, Any]) -> int | None:
        if "messages" in document:
            # Takes the body of a chat and counts with its template; equal to the usage that the answer
            # reports (checked with xllamacpp 2026.10.11549).
            counted: int = (await self._ask(model, "/v1/chat/completions/input_tokens", document))[
                "input_tokens"
            ]
            return counted
        prompt = document.get("prompt")
        if isinstance(prompt, list) and all(isinstance(item, int) for item in prompt):
            return len(prompt)
        if isinstance(prompt, str):
            ask = {"content": prompt, "add_special": True, "parse_special": True}
            return len((await self._ask(model, "/tokenize", ask))["tokens"])
        return None

    async def _ask(self, model: ServedModel, path: str, document: dict[str, Any]) -> dict[str, Any]:
        body = json.dumps(document).encode()
        async with self.open(
            f"{model.base_url}{path}", body, {"Content-Type": "application/json"}
        ) as response:
            if response.status != 200:
                raise UpstreamError(f"{path} answered {response.status}")
            answer: dict[str, Any] = json.loads(await response.read())
        return answer


def _end_reading_with_connection(response: aiohttp.ClientResponse) -> Callable[[], None]:
    """See to it that reading an answer ends when its connection does; returns how to undo that.

    aiohttp 3.14.5 closes a connection whose body breaks HTTP (a chunk without a length, say) and leaves
    the reader waiting for ever: measured, 300 s until the default time limit, of which we have none.
    """
    protocol = response.connection.protocol if response.connection is not None else None
    closed = protocol.closed if protocol is not None else None
    if closed is None:
        return _do_nothing

    def end(_: object) -> None:
        content = response.content
        if not content.is_eof() and content.exception() is None:
            content.set_exception(aiohttp.ClientPayloadError("the engine broke HTTP inside its answer"))

    def forget() -> None:
        closed.remove_done_callback(end)

    closed.add_done_callback(end)
    return forget


def _do_nothing() -> None:
    """Nothing to undo."""


def _make_session(*traces: aiohttp.TraceConfig, **connector: Any) -> aiohttp.ClientSession:
    return aiohttp.ClientSession(
        connector=aiohttp.TCPConnector(limit=0, **connector),
        timeout=aiohttp.ClientTimeout(total=None, sock_connect=_CONNECT_TIMEOUT_S),
        # Bytes are passed on as they are, so that they must not come compressed.
        headers={"Accept-Encoding": "identity"},
        auto_decompress=False,
        cookie_jar=aiohttp.DummyCookieJar(),
        trace_configs=list(traces),
    )


async def _mark_reused(session: aiohttp.ClientSession, context: SimpleNamespace, params: Any) -> None:
    del session, params
    if context.trace_request_ctx is not None:
        context.trace_request_ctx.is_reused = True


def _text(error: BaseException) -> str:
    if isinstance(error, aiohttp.ClientResponseError):
        return f"its answer is no HTTP ({error.message.splitlines()[0]})"
    return str(error) or type(error).__name__
