"""I/O. Speaks to engines: opens a request, survives a stale connection, counts a prompt."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from types import SimpleNamespace
from typing import Any, Final

import aiohttp

from trimtab.core.state import ServedModel

__all__ = ["Upstream", "UpstreamError"]

_CONNECT_TIMEOUT_S: Final = 5.0
_TEMPLATE_FIELDS: Final[tuple[str, ...]] = ("messages", "tools", "chat_template_kwargs")
_COUNT_TIMEOUT_S: Final = 10.0
# llama.cpp closes an idle connection after 5 s (its Keep-Alive header says so): leave it before.
_KEEPALIVE_S: Final = 4.0


class UpstreamError(Exception):
    """The engine refused the connection, closed it, or broke the protocol, before or inside an answer."""


class Upstream:
    """One pool of connections to all engines of a gateway. Generation has no time limit of its own."""

    def __init__(self) -> None:
        trace = aiohttp.TraceConfig()
        trace.on_connection_reuseconn.append(_mark_reused)
        self._session = aiohttp.ClientSession(
            connector=aiohttp.TCPConnector(limit=0, keepalive_timeout=_KEEPALIVE_S),
            timeout=aiohttp.ClientTimeout(total=None, sock_connect=_CONNECT_TIMEOUT_S),
            auto_decompress=False,
            trace_configs=[trace],
        )

    async def close(self) -> None:
        """Close every connection."""
        await self._session.close()

    @asynccontextmanager
    async def open(
        self, url: str, body: bytes, headers: dict[str, str]
    ) -> AsyncIterator[aiohttp.ClientResponse]:
        """POST the body; yields the answer once its head is here, and closes it whatever happens.

        Raises UpstreamError when the engine cannot be reached or answers nothing.
        """
        response = await self._post(url, body, headers)
        try:
            yield response
        finally:
            # Not release(): an answer that was not read to its end must end the engine's work.
            response.close() if not response.content.at_eof() else response.release()

    async def _post(self, url: str, body: bytes, headers: dict[str, str]) -> aiohttp.ClientResponse:
        reused = SimpleNamespace(flag=False)
        try:
            return await self._session.post(url, data=body, headers=headers, trace_request_ctx=reused)
        except (aiohttp.ServerDisconnectedError, aiohttp.ClientOSError) as error:
            # A pooled connection that the engine had closed meanwhile carried nothing to it: safe to
            # repeat. A fresh one that breaks may have started work: never repeated.
            if not reused.flag:
                raise UpstreamError(_text(error)) from error
        except (aiohttp.ClientError, TimeoutError) as error:
            raise UpstreamError(_text(error)) from error
        try:
            return await self._session.post(url, data=body, headers=headers | {"Connection": "close"})
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
            kept = {key: document[key] for key in _TEMPLATE_FIELDS if key in document}
            prompt = (await self._ask(model, "/apply-template", kept))["prompt"]
        else:
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


async def _mark_reused(session: aiohttp.ClientSession, context: SimpleNamespace, params: Any) -> None:
    del session, params
    if context.trace_request_ctx is not None:
        context.trace_request_ctx.flag = True


def _text(error: BaseException) -> str:
    return str(error) or type(error).__name__
