"""I/O. The gateway: one port in front of every engine, speaking the OpenAI protocol.

Bytes of an answer are passed on as they come; a client that leaves ends the engine's work at once;
whatever was accepted ends with the engine's own end or with an error the client can read.
"""

from __future__ import annotations

import asyncio
import errno
import json
import socket
import time
import uuid
from collections.abc import Callable
from http import HTTPStatus
from typing import Final

from aiohttp import web

from trimtab.core.stack import GatewaySettings
from trimtab.core.state import ServedModel
from trimtab.errors import EnvironmentMissingError, GatewayError
from trimtab.gateway.access import check_key
from trimtab.gateway.error_body import ORIGIN_HEADER, render_gateway_error
from trimtab.gateway.exchange import Exchange
from trimtab.gateway.http_server import HttpServer
from trimtab.gateway.metrics import GatewayMetrics
from trimtab.gateway.routing import render_health, render_models
from trimtab.gateway.upstream import Upstream
from trimtab.probes.processes import probe_port_holder

__all__ = ["Gateway", "url_of"]

# How long an interrupted answer may take to send its last words: a reader that is gone takes forever.
_LAST_WORDS_S: Final = 0.5
_GENERATION_PATHS: Final = frozenset({"/v1/chat/completions", "/v1/completions", "/v1/embeddings"})
_READ_PATHS: Final = frozenset({"/v1/models", "/health", "/metrics"})
# A wildcard address to listen on → the address that reaches it from this machine.
_WILDCARDS: Final = {"0.0.0.0": "127.0.0.1", "::": "::1", "": "127.0.0.1"}  # noqa: S104 - a key, not a bind


def url_of(host: str, port: int) -> str:
    """The root URL by which this machine reaches a listener; wildcards become loopback."""
    reached = _WILDCARDS.get(host, host)
    return f"http://[{reached}]:{port}" if ":" in reached else f"http://{reached}:{port}"


class Gateway:
    """Listens where ``settings`` say; asks ``snapshot`` for the models at every request."""

    def __init__(
        self, settings: GatewaySettings, snapshot: Callable[[], tuple[ServedModel, ...]], *, version: str
    ) -> None:
        self._settings = settings
        self._snapshot = snapshot
        self._version = version
        self._metrics = GatewayMetrics()
        self._created_s = int(time.time())
        self._upstream: Upstream | None = None
        self._runner: web.ServerRunner | None = None
        self._site: web.TCPSite | None = None
        self._port = settings.port
        self._idle = asyncio.Event()
        self._idle.set()
        self._is_draining = False
        self._exchanges: set[Exchange] = set()

    @property
    def num_in_flight(self) -> int:
        """Requests whose answers are not over."""
        return len(self._exchanges)

    @property
    def port(self) -> int:
        """The port it listens on; the free one that was taken where 0 was asked for."""
        return self._port

    @property
    def url(self) -> str:
        """The root that clients on this machine use, without a path."""
        return url_of(self._settings.host, self._port)

    async def start(self) -> None:
        """Listen. EnvironmentMissingError names who holds the port, where the system tells."""
        self._upstream = Upstream()
        # handler_cancellation: a client that leaves cancels the handler, and with it the engine's work.
        server = HttpServer(self._handle, handler_cancellation=True, access_log=None)
        self._runner = web.ServerRunner(server, shutdown_timeout=_LAST_WORDS_S)
        await self._runner.setup()
        self._site = web.TCPSite(self._runner, self._settings.host, self._settings.port, backlog=1024)
        try:
            await self._site.start()
        except (OSError, OverflowError, UnicodeError) as error:
            await self.stop()
            raise self._bind_error(error) from error
        self._port = self._runner.addresses[0][1]

    def _bind_error(self, error: OSError | OverflowError | UnicodeError) -> EnvironmentMissingError:
        host, port = self._settings.host, self._settings.port
        code = error.errno if isinstance(error, OSError) else None
        if code == errno.EADDRINUSE:
            holder = probe_port_holder(host, port)
            by = f" by {holder}" if holder is not None else ""
            return EnvironmentMissingError(
                f"port {port} on {host} is taken{by}",
                hint="choose another with --port N, or --port 0 for any free one",
            )
        if code == errno.EACCES:
            return EnvironmentMissingError(
                f"port {port} on {host} may not be opened by this user",
                hint="ports from 1024 up are free to use",
            )
        if code == errno.EADDRNOTAVAIL or isinstance(error, socket.gaierror | UnicodeError):
            return EnvironmentMissingError(
                f"{host!r} is no address of this machine",
                hint="use 127.0.0.1, or 0.0.0.0 for every interface",
            )
        return EnvironmentMissingError(f"cannot listen on {host}:{port}: {error}")

    async def drain(self, timeout_s: float) -> None:
        """Refuse new requests and wait until those inside have ended, at most ``timeout_s``."""
        self._is_draining = True
        if self._site is not None:
            await self._site.stop()
            self._site = None
        try:
            async with asyncio.timeout(timeout_s):
                await self._idle.wait()
        except TimeoutError:
            pass

    async def stop(self) -> None:
        """Close everything at once; idempotent. Answers that are not over end with an error inside."""
        self._is_draining = True
        for exchange in tuple(self._exchanges):
            exchange.interrupt()
        await self.drain(_LAST_WORDS_S)
        if self._runner is not None:
            await self._runner.cleanup()
            self._runner = None
        if self._upstream is not None:
            await self._upstream.close()
            self._upstream = None

    async def _handle(self, request: web.BaseRequest) -> web.StreamResponse:
        request_id = request.headers.get("X-Request-Id", "")[:200] or uuid.uuid4().hex
        try:
            return await self._route(request, request_id)
        except GatewayError as error:
            path = request.path if request.path in _GENERATION_PATHS | _READ_PATHS else "other"
            self._metrics.requests.labels(path, "", str(error.status)).inc()
            return _refuse(request, error, request_id)

    async def _route(self, request: web.BaseRequest, request_id: str) -> web.StreamResponse:
        path = request.path
        if path in _GENERATION_PATHS:
            if request.method == "OPTIONS":
                return _allow("POST, OPTIONS")
            _check_method(request, "POST")
            check_key(request.headers.get("Authorization"), self._settings.keys)
            return await self._generate(request, request_id)
        if path in _READ_PATHS:
            return self._read(request)
        known = ", ".join(sorted(_GENERATION_PATHS | _READ_PATHS))
        raise GatewayError(
            f"there is no {path[:200]}", status=404, code="unknown_path", hint=f"there are {known}"
        )

    def _read(self, request: web.BaseRequest) -> web.Response:
        if request.method == "OPTIONS":
            return _allow("GET, HEAD, OPTIONS")
        _check_method(request, "GET")
        if request.path == "/health":
            status, document = render_health(self._snapshot(), version=self._version)
            return _json_response(document, status=status)
        check_key(request.headers.get("Authorization"), self._settings.keys)
        if request.path == "/metrics":
            text = self._metrics.render(self._snapshot(), num_in_flight=len(self._exchanges))
            return web.Response(
                body=text, headers={"Content-Type": "text/plain; version=0.0.4; charset=utf-8"}
            )
        return _json_response(render_models(self._snapshot(), created_s=self._created_s))

    async def _generate(self, request: web.BaseRequest, request_id: str) -> web.StreamResponse:
        if self._is_draining or self._upstream is None:
            raise GatewayError("trimtab is stopping", status=503, code="stopping", hint="try again later")
        exchange = Exchange(
            request, request_id, upstream=self._upstream, metrics=self._metrics, served=self._snapshot()
        )
        self._exchanges.add(exchange)
        self._idle.clear()
        try:
            return await exchange.run(max_body_bytes=self._settings.max_body_bytes)
        except GatewayError as error:
            if not exchange.is_counted:
                raise
            return _refuse(request, error, request_id)
        finally:
            self._exchanges.discard(exchange)
            if not self._exchanges:
                self._idle.set()


def _refuse(request: web.BaseRequest, error: GatewayError, request_id: str) -> web.Response:
    headers = {ORIGIN_HEADER: "gateway", "Content-Type": "application/json", "X-Request-Id": request_id}
    if error.status == HTTPStatus.SERVICE_UNAVAILABLE:
        headers["Retry-After"] = "2"
    if error.status == HTTPStatus.METHOD_NOT_ALLOWED:
        headers["Allow"] = error.hint.removeprefix("use ")
    response = web.Response(status=error.status, body=render_gateway_error(error), headers=headers)
    if not request.content.is_eof():
        # The rest of a body that was refused unread must not be taken for the next request.
        response.force_close()
    return response


def _check_method(request: web.BaseRequest, method: str) -> None:
    if request.method != method and not (method == "GET" and request.method == "HEAD"):
        raise GatewayError(
            f"{request.path} does not take {request.method[:20]}",
            status=405,
            code="method",
            hint=f"use {method}",
        )


def _allow(methods: str) -> web.Response:
    return web.Response(status=204, headers={"Allow": methods})


def _json_response(document: dict[str, object], *, status: int = 200) -> web.Response:
    return web.Response(
        status=status, body=json.dumps(document).encode(), headers={"Content-Type": "application/json"}
    )
