"""I/O. Speaks to engines: sends a request, survives a stale connection, counts a prompt."""

from __future__ import annotations

import asyncio
import json
import ssl
import time
from types import TracebackType
from typing import Any, Final
from urllib.parse import unquote, urlsplit

from trimtab.core.state import ServedModel
from trimtab.errors import GatewayError
from trimtab.gateway.connect_fault import explain_connect_fault
from trimtab.gateway.descriptors import DescriptorBudget
from trimtab.gateway.endpoints import COUNT_CHAT, TOKENIZE
from trimtab.gateway.forced_call import TOOL_MARK, probe_tools
from trimtab.gateway.http_client import Answer, EngineConnection, UpstreamError
from trimtab.gateway.json_text import load_json
from trimtab.gateway.large_body import work_on

__all__ = ["Answer", "Upstream", "UpstreamError"]

_CONNECT_TIMEOUT_S: Final = 5.0
_COUNT_TIMEOUT_S: Final = 10.0
_APPLY_TEMPLATE: Final = "/apply-template"
# Engines of which it is remembered what their templates write.
_MAX_KNOWN: Final = 1024
# What of a chat or a completion decides its prompt, in the words of vLLM's /tokenize.
_VLLM_COUNTED: Final = frozenset((
    "model",
    "messages",
    "prompt",
    "tools",
    "chat_template",
    "chat_template_kwargs",
    "add_generation_prompt",
    "continue_final_message",
))  # fmt: skip
# llama.cpp closes an idle connection after 5 s (its Keep-Alive header says so): leave it before.
_KEEPALIVE_S: Final = 4.0
# A connection that was stale breaks within a round trip to the engine; what breaks later was at work.
_STALE_WITHIN_S: Final = 0.5
# URLs come from plans, and change with an engine's port: forgotten all at once above this.
_MAX_TARGETS: Final = 1024
_DEFAULT_PORTS: Final = {"http": 80, "https": 443}
# Bytes are passed on as they are, so that they must not come compressed.
_HEAD_END: Final = b"Accept: */*\r\nAccept-Encoding: identity\r\nContent-Length: %d\r\n\r\n"


class _Origin:
    """One engine's address, and the connections to it that wait for a request, newest last."""

    def __init__(self, scheme: str, netloc: str) -> None:
        self.scheme = scheme
        self.netloc = netloc
        self.idle: list[EngineConnection] = []
        if scheme == "http+unix":
            self.host_header = "localhost"
            return
        parts = urlsplit(f"{scheme}://{netloc}")
        self._host = parts.hostname or ""
        self._port = parts.port or _DEFAULT_PORTS[scheme]
        self.host_header = netloc.rpartition("@")[2]

    async def connect(self, upstream: Upstream) -> EngineConnection:
        """A new connection; OSError or TimeoutError where there is none to be had."""
        loop = asyncio.get_running_loop()

        def make() -> EngineConnection:
            return EngineConnection(
                lambda one: upstream.on_free(self, one), lambda one: upstream.on_lost(self, one)
            )

        async with asyncio.timeout(_CONNECT_TIMEOUT_S):
            if self.scheme == "http+unix":
                return (await loop.create_unix_connection(make, unquote(self.netloc)))[1]
            context = upstream.tls() if self.scheme == "https" else None
            return (await loop.create_connection(make, self._host, self._port, ssl=context))[1]


class _Opened:
    """An answer for the length of an ``async with``."""

    __slots__ = ("_answer", "_body", "_headers", "_upstream", "_url")

    def __init__(self, upstream: Upstream, url: str, body: bytes, headers: dict[str, str]) -> None:
        self._upstream, self._url, self._body, self._headers = upstream, url, body, headers
        self._answer: Answer | None = None

    async def __aenter__(self) -> Answer:
        self._answer = await self._upstream.post(self._url, self._body, self._headers)
        return self._answer

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._answer is not None:
            self._answer.close()


class Upstream:
    """All connections to engines of a gateway. Generation has no time limit of its own.

    URLs are ``http://``, ``https://`` or, for a socket in the file system, ``http+unix://`` with its path
    percent-encoded where the host stands. ``budget`` bounds how many connections there are.
    """

    def __init__(self, budget: DescriptorBudget) -> None:
        self._budget = budget
        self._origins: dict[tuple[str, str], _Origin] = {}
        self._writes_tools: dict[str, bool] = {}
        # URL → its origin and the head of a request to it up to the headers that differ.
        self._targets: dict[str, tuple[_Origin, bytes]] = {}
        self._connections: set[EngineConnection] = set()
        self._tls: ssl.SSLContext | None = None
        self._sweep_timer: asyncio.TimerHandle | None = None

    async def close(self) -> None:
        """Close every connection."""
        if self._sweep_timer is not None:
            self._sweep_timer.cancel()
        for connection in tuple(self._connections):
            connection.abort()
        # One turn of the loop, in which transports report their end.
        await asyncio.sleep(0)

    def open(self, url: str, body: bytes, headers: dict[str, str]) -> _Opened:
        """``post`` as an asynchronous context that closes the answer whatever happens."""
        return _Opened(self, url, body, headers)

    async def post(self, url: str, body: bytes, headers: dict[str, str]) -> Answer:
        """POST the body; the answer once its head is here. Whoever gets it must close it.

        Raises UpstreamError when the engine cannot be reached or answers nothing, GatewayError (503) when
        there is no descriptor left to reach it with.
        """
        origin, target = self._targets.get(url) or self._find_target(url)
        lines = "".join([f"{name}: {value}\r\n" for name, value in headers.items()])
        head = target + lines.encode("utf-8", "surrogateescape") + _HEAD_END % len(body)
        kept = _take_kept(origin)
        if kept is not None:
            started_s = time.monotonic()
            answer = kept.ask(head, body)
            try:
                await answer.came
                return answer.check_head()
            except asyncio.CancelledError:
                answer.close()
                raise
            except UpstreamError:
                # A kept connection that the engine closed just then carried nothing to it: safe to
                # repeat. One that lived on for a while may have started work: never repeated.
                if answer.came_at_all or time.monotonic() - started_s > _STALE_WITHIN_S:
                    raise
        answer = (await self._connect(origin)).ask(head, body)
        try:
            await answer.came
        except asyncio.CancelledError:
            answer.close()
            raise
        return answer.check_head()

    async def _connect(self, origin: _Origin) -> EngineConnection:
        if not self._budget.take():
            raise GatewayError(
                "trimtab has no descriptor left for a connection to the engine",
                status=503,
                code="too_many_connections",
                hint="try again later, or raise the limit of open files (ulimit -n)",
            )
        try:
            connection = await origin.connect(self)
        except BaseException as error:
            self._budget.give()
            if isinstance(error, TimeoutError):
                text = f"no connection within {_CONNECT_TIMEOUT_S:g} s"
                raise UpstreamError(text, is_unsent=True) from error
            if isinstance(error, OSError):
                raise UpstreamError(explain_connect_fault(error), is_unsent=True) from error
            raise
        if not connection.is_usable:
            self._budget.give()
            raise UpstreamError("the engine closed the connection at once", is_unsent=True)
        self._connections.add(connection)
        return connection

    def _find_target(self, url: str) -> tuple[_Origin, bytes]:
        parts = urlsplit(url)
        key = (parts.scheme, parts.netloc)
        if len(self._targets) >= _MAX_TARGETS:
            self._targets.clear()
        origin = self._origins.get(key)
        if origin is None:
            origin = self._origins[key] = _Origin(*key)
        path = (parts.path or "/") + (f"?{parts.query}" if parts.query else "")
        head = f"POST {path} HTTP/1.1\r\nHost: {origin.host_header}\r\n".encode()
        found = self._targets[url] = (origin, head)
        return found

    def tls(self) -> ssl.SSLContext:
        """What TLS connections are made with: the system's authorities, names checked."""
        if self._tls is None:
            self._tls = ssl.create_default_context()
        return self._tls

    def spare_one(self) -> bool:
        """Close a connection that waits for a request; False where none does."""
        for origin in self._origins.values():
            if origin.idle:
                origin.idle.pop(0).abort()
                return True
        return False

    def on_free(self, origin: _Origin, connection: EngineConnection) -> None:
        """A connection can take another request."""
        connection.free_since_s = time.monotonic()
        origin.idle.append(connection)
        if self._sweep_timer is None:
            self._sweep_timer = asyncio.get_running_loop().call_later(_KEEPALIVE_S, self._sweep)

    def on_lost(self, origin: _Origin, connection: EngineConnection) -> None:
        """A connection is closed."""
        if connection in self._connections:
            self._connections.discard(connection)
            self._budget.give()
        if connection in origin.idle:
            origin.idle.remove(connection)

    def _sweep(self) -> None:
        """Leave connections before their engine does, and forget engines nobody asks any more."""
        self._sweep_timer = None
        kept_since_s = time.monotonic() - _KEEPALIVE_S
        for origin in self._origins.values():
            for connection in [one for one in origin.idle if one.free_since_s <= kept_since_s]:
                origin.idle.remove(connection)
                connection.abort()
        if any(origin.idle for origin in self._origins.values()):
            self._sweep_timer = asyncio.get_running_loop().call_later(1.0, self._sweep)

    async def count_prompt_tokens(
        self, model: ServedModel, document: dict[str, Any], headers: dict[str, str], *, num_bytes: int
    ) -> int | None:
        """Tokens of the prompt as the engine will see it, or None where it cannot tell.

        ``num_bytes`` is about how long the document is as JSON; ``headers`` are what the engine wants.
        """
        try:
            async with asyncio.timeout(_COUNT_TIMEOUT_S):
                return await self._count(model, document, headers, num_bytes=num_bytes)
        except (UpstreamError, TimeoutError, ValueError, KeyError, TypeError, RecursionError):
            return None

    async def _count(
        self, model: ServedModel, document: dict[str, Any], headers: dict[str, str], *, num_bytes: int
    ) -> int | None:
        prompt = document.get("prompt")
        if isinstance(prompt, list) and all(isinstance(item, int) for item in prompt):
            return len(prompt)
        if "messages" not in document and not isinstance(prompt, str):
            return None
        if model.engine == "vllm":
            # Applies the chat template too.
            ask = {name: value for name, value in document.items() if name in _VLLM_COUNTED}
            found = await self._ask(f"{model.base_url}{TOKENIZE}", ask, headers, num_bytes=num_bytes)
            return int(found["count"])
        if "messages" in document:
            # Takes the body of a chat and counts with its template; equal to the usage that the answer
            # reports (checked with xllamacpp 2026.10.11549).
            url = f"{model.base_url}{COUNT_CHAT}"
            return int((await self._ask(url, document, headers, num_bytes=num_bytes))["input_tokens"])
        ask = {"content": prompt, "add_special": True, "parse_special": True}
        url = f"{model.base_url}{TOKENIZE}"
        return len((await self._ask(url, ask, headers, num_bytes=num_bytes))["tokens"])

    async def writes_tools(self, model: ServedModel) -> bool:
        """Whether llama.cpp's prompts of that model have the tools of a request in them.

        Not where it does not tell.
        """
        url = f"{model.base_url}{_APPLY_TEMPLATE}"
        known = self._writes_tools.get(url)
        if known is not None:
            return known
        try:
            async with asyncio.timeout(_COUNT_TIMEOUT_S):
                ask = probe_tools(model.upstream_model or model.name)
                found = await self._ask(url, ask, {"Content-Type": "application/json"}, num_bytes=0)
            known = TOOL_MARK in str(found["prompt"])
        except (UpstreamError, TimeoutError, ValueError, KeyError, TypeError, RecursionError):
            return False
        if len(self._writes_tools) >= _MAX_KNOWN:
            self._writes_tools.clear()
        self._writes_tools[url] = known
        return known

    async def _ask(
        self, url: str, document: dict[str, Any], headers: dict[str, str], *, num_bytes: int
    ) -> dict[str, Any]:
        body = await work_on(num_bytes, lambda: json.dumps(document).encode())
        async with self.open(url, body, headers) as response:
            if response.status != 200:
                raise UpstreamError(f"{url} answered {response.status}")
            answer: dict[str, Any] = load_json(await response.read())
        return answer


def _take_kept(origin: _Origin) -> EngineConnection | None:
    kept_since_s = time.monotonic() - _KEEPALIVE_S
    while origin.idle:
        connection = origin.idle.pop()
        if connection.is_usable and connection.free_since_s > kept_since_s:
            return connection
        connection.abort()
    return None
