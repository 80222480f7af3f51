"""I/O. The gateway: one port in front of every engine, speaking the OpenAI protocol.

Bytes of an answer are passed on as they come; a client that leaves ends the engine's work at once;
whatever was accepted ends with the engine's own end or with an error the client can read.
"""

from __future__ import annotations

import asyncio
import errno
import json
import random
import socket
import time
from collections.abc import Callable, Coroutine
from http import HTTPStatus
from typing import Any, Final

from trimtab.core.stack import GatewaySettings
from trimtab.core.state import ServedModel
from trimtab.engines.progress import EngineProgress
from trimtab.errors import EnvironmentMissingError, GatewayError
from trimtab.gateway.access import NO_KEY, check_key
from trimtab.gateway.admission import AdmissionSettings
from trimtab.gateway.admission_gate import ModelGates
from trimtab.gateway.descriptors import DescriptorBudget, read_descriptor_limit
from trimtab.gateway.door import answer_translated
from trimtab.gateway.endpoints import CHAT, DIRECT_PATHS, POST_PATHS, READ_PATHS
from trimtab.gateway.error_body import ORIGIN_HEADER, render_gateway_error
from trimtab.gateway.exchange import Exchange
from trimtab.gateway.external_listing import Traffic
from trimtab.gateway.forced_call import may_force_call
from trimtab.gateway.http_connection import ClientConnection
from trimtab.gateway.http_message import Request, Response
from trimtab.gateway.http_server import HttpServer
from trimtab.gateway.http_service import AnswerTo, Service
from trimtab.gateway.keys import ApiKey
from trimtab.gateway.metrics import GatewayMetrics
from trimtab.gateway.parts import GatewayMore, GatewayParts
from trimtab.gateway.protocols import word_error
from trimtab.gateway.replicas import ReplicaLoads
from trimtab.gateway.request_body import check_content_type, too_large
from trimtab.gateway.request_log import render_line
from trimtab.gateway.routing import find_served_name, render_health, render_models
from trimtab.gateway.upstream import Upstream
from trimtab.gateway.usage import TokenCount
from trimtab.launcher.swap_policy import ModelDemand
from trimtab.probes.processes import probe_port_holder

__all__ = ["Gateway", "url_of"]

# How long an interrupted answer may take to send its last words: a reader that is gone takes forever.
_LAST_WORDS_S: Final = 0.5
# A wildcard address to listen on → the address that reaches it from this machine.
_WILDCARDS: Final = {"0.0.0.0": "127.0.0.1", "::": "::1", "": "127.0.0.1"}  # noqa: S104 - a key, not a bind


def url_of(host: str, port: int) -> str:
    """The root URL by which this machine reaches a listener; wildcards become loopback."""
    reached = _WILDCARDS.get(host, host)
    return f"http://[{reached}]:{port}" if ":" in reached else f"http://{reached}:{port}"


class Gateway:
    """Listens where ``settings`` say; asks ``snapshot`` for the models at every request."""

    def __init__(
        self,
        settings: GatewaySettings,
        snapshot: Callable[[], tuple[ServedModel, ...]],
        *,
        version: str,
        num_descriptors: int | None = None,
        more: GatewayMore | None = None,
    ) -> None:
        """``num_descriptors`` bounds the connections of both sides; None takes the process's own limit.

        ``more`` are parts that not every gateway has.
        """
        self._settings = settings
        self._snapshot = snapshot
        self._version = version
        self._metrics = GatewayMetrics()
        self._created_s = int(time.time())
        self._budget = DescriptorBudget(num_descriptors or read_descriptor_limit())
        self._upstream = Upstream(self._budget)
        more = more or GatewayMore()
        self._keys = more.keys
        self._parts = GatewayParts(
            snapshot=snapshot,
            upstream=self._upstream,
            metrics=self._metrics,
            gates=ModelGates(
                more.admission or AdmissionSettings.of_stack(settings), on_pressure=more.on_pressure
            ),
            keys=more.keys,
            usage=more.usage,
            request_log=more.request_log,
            upstream_keys=more.upstream_keys,
            loads=ReplicaLoads(seed=random.getrandbits(32)),
        )
        service = Service(
            check_head=self._check_head,
            answer=self._answer,
            refuse=self._refuse,
            too_large=too_large,
            max_body_bytes=settings.max_body_bytes,
        )
        self._server = HttpServer(service, self._budget)
        self._budget.make_room = lambda: self._server.spare_one() or self._upstream.spare_one()
        self._port = settings.port
        self._idle = asyncio.Event()
        self._idle.set()
        self._is_draining = False
        self._exchanges: set[Exchange] = set()
        self._heart: asyncio.TimerHandle | None = None

    @property
    def num_in_flight(self) -> int:
        """Requests whose answers are not over."""
        return len(self._exchanges)

    def traffic_of(self, model: str) -> Traffic:
        """What was seen of a served model's answers so far."""
        counted = self._metrics.of_model(model)
        return Traffic(num_errors=counted.upstream_errors.value, num_bytes=counted.response_bytes.value)

    def demand(self) -> tuple[ModelDemand, ...]:
        """What requests there are for every model that somebody has asked for."""
        return tuple(gate.demand() for gate in self._parts.gates)

    def note_engine(self, model: str, replica_id: str, progress: EngineProgress) -> None:
        """One of a model's engines tells what it does, and how full its cache is."""
        self._parts.gates.note_engine(model, replica_id, progress)

    def note_models(self, *, is_settled: bool = False) -> None:
        """The models have changed; ``is_settled``: what is missing now is served no longer."""
        self._parts.gates.follow(self._snapshot())
        if is_settled:
            self._parts.gates.forget_others(self._snapshot())

    def render_metrics(self) -> bytes:
        """The text of GET /metrics."""
        return self._metrics.render(
            self._snapshot(), num_in_flight=len(self._exchanges), occupied=self._parts.occupancy()
        )

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
        try:
            self._port = await self._server.start(self._settings.host, self._settings.port)
        except (OSError, OverflowError, UnicodeError) as error:
            await self.stop()
            raise self._bind_error(error) from error

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
        self._server.stop_listening()
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
        if self._heart is not None:
            self._heart.cancel()
        await self._server.close(_LAST_WORDS_S)
        await self._upstream.close()

    def _check_head(self, request: Request) -> None:
        """GatewayError for a request that is refused whatever its body says."""
        given = request.fields.get(b"x-request-id")
        if given:
            request.request_id = given[:200].decode("utf-8", "surrogateescape")
        else:
            request.request_id = _new_id()
        path = request.path
        if path in POST_PATHS:
            if request.method == "OPTIONS":
                return
            if request.method != "POST":
                _check_method(request, "POST")
            self._check_key(request)
            request.is_countable = True
            check_content_type(request)
        elif path in READ_PATHS:
            if request.method == "OPTIONS":
                return
            _check_method(request, "GET")
            if path != "/health":
                self._check_key(request)
        else:
            known = ", ".join(sorted(POST_PATHS | READ_PATHS))
            raise GatewayError(
                f"there is no {path[:200]}", status=404, code="unknown_path", hint=f"there are {known}"
            )

    def _check_key(self, request: Request) -> None:
        fields = request.fields
        if b"authorization" not in fields and b"x-api-key" in fields:
            # How Anthropic's clients send it: from here on it is the same key.
            fields[b"authorization"] = b"Bearer " + fields[b"x-api-key"]
        authorization = request.header("Authorization")
        if self._keys is not None and self._keys.is_on:
            request.key = self._keys.find(authorization)
            if request.key is None:
                check_key(authorization, self._settings.keys or (NO_KEY,))
        elif self._settings.keys:
            check_key(authorization, self._settings.keys)

    def _answer(self, request: Request, client: ClientConnection) -> Response | Coroutine[Any, Any, Response]:
        path = request.path
        if path in POST_PATHS:
            if request.method == "OPTIONS":
                return _allow("POST, OPTIONS")
            return self._ask(request, client) if path in DIRECT_PATHS else self._translate(request, client)
        return _allow("GET, HEAD, OPTIONS") if request.method == "OPTIONS" else self._read(request)

    def _read(self, request: Request) -> Response:
        if request.path == "/health":
            status, document = render_health(self._snapshot(), version=self._version)
            return _json_response(document, status=status)
        if request.path == "/metrics":
            return Response(
                body=self.render_metrics(),
                headers={"Content-Type": "text/plain; version=0.0.4; charset=utf-8"},
            )
        with_virtual = self._settings.list_thinking_names
        served = _usable_by(request.key, self._snapshot())
        return _json_response(render_models(served, created_s=self._created_s, with_virtual=with_virtual))

    def _ask(self, request: Request, client: AnswerTo) -> Coroutine[Any, Any, Response]:
        # A compressed body cannot be seen from here.
        is_packed = b"content-encoding" in request.fields
        may_change = request.path == CHAT and (is_packed or may_force_call(request.body))
        return self._translate(request, client) if may_change else self._generate(request, client)

    async def _translate(self, request: Request, client: AnswerTo) -> Response:
        try:
            return await answer_translated(
                request,
                client,
                self._generate if request.path == CHAT else self._ask,
                served=self._snapshot(),
                settings=self._settings,
                writes_tools=self._upstream.writes_tools,
                render=lambda error: _render_refusal(request, error),
            )
        except GatewayError as error:
            return self._refuse(request, error)

    async def _generate(self, request: Request, client: AnswerTo) -> Response:
        if self._is_draining:
            error = GatewayError("trimtab is stopping", status=503, code="stopping", hint="try again later")
            return self._refuse(request, error)
        exchange = Exchange(request, client, self._parts)
        self._exchanges.add(exchange)
        self._idle.clear()
        if self._heart is None:
            self._start_beat()
        try:
            return await exchange.run(self._settings)
        except GatewayError as error:
            return _render_refusal(request, error) if exchange.is_counted else self._refuse(request, error)
        finally:
            self._exchanges.discard(exchange)
            if not self._exchanges:
                self._idle.set()

    def _start_beat(self) -> None:
        every_s = self._parts.gates.settings.keep_alive_s / 2
        if every_s > 0:
            self._heart = asyncio.get_running_loop().call_later(every_s, self._beat)

    def _beat(self) -> None:
        """Keep streams that are silent alive, as long as there are any."""
        self._heart = None
        for exchange in self._exchanges:
            exchange.beat()
        if self._exchanges:
            self._start_beat()

    def _refuse(self, request: Request, error: GatewayError) -> Response:
        request.request_id = request.request_id or _new_id()
        path = request.asked_path or request.path
        path = path if path in POST_PATHS | READ_PATHS else "other"
        self._metrics.requests.labels(path, "", str(error.status)).inc()
        self._metrics.rejections.labels("", error.code).inc()
        model = find_served_name(request.asked_model, self._snapshot())
        key = None if request.key is None else request.key.name
        if self._parts.usage is not None and request.is_countable:
            request.is_countable = False
            self._parts.usage.add(key=key or "", model=model, status=error.status, tokens=TokenCount())
        if self._parts.request_log is not None:
            line = render_line(
                request_id=request.request_id, endpoint=path, model=model, key=key, status=error.status,
                error=error.code,
            )  # fmt: skip
            self._parts.request_log.add(line)
        return _render_refusal(request, error)


def _render_refusal(request: Request, error: GatewayError) -> Response:
    request_id = request.request_id or _new_id()
    headers = {ORIGIN_HEADER: "gateway", "Content-Type": "application/json", "X-Request-Id": request_id}
    if error.status == HTTPStatus.SERVICE_UNAVAILABLE:
        headers["Retry-After"] = str(error.retry_after_s or 2)
    elif error.retry_after_s is not None:
        headers["Retry-After"] = str(error.retry_after_s)
    if error.status == HTTPStatus.METHOD_NOT_ALLOWED:
        headers["Allow"] = error.hint.removeprefix("use ")
    body = word_error(request.path, render_gateway_error(error), status=error.status, request_id=request_id)
    return Response(status=error.status, body=body, headers=headers)


def _usable_by(key: ApiKey | None, served: tuple[ServedModel, ...]) -> tuple[ServedModel, ...]:
    """The models that a key may ask for."""
    if key is None or not key.limits.models:
        return served
    return tuple(model for model in served if model.name in key.limits.models)


def _new_id() -> str:
    """32 hex digits that name one request in logs; nothing depends on their being hard to guess."""
    return f"{random.getrandbits(128):032x}"


def _check_method(request: Request, method: str) -> None:
    if request.method != method and not (method == "GET" and request.method == "HEAD"):
        raise GatewayError(
            f"{request.path} does not take {request.method[:20]}",
            status=405,
            code="method",
            hint=f"use {method}",
        )


def _allow(methods: str) -> Response:
    return Response(status=204, headers={"Allow": methods})


def _json_response(document: dict[str, object], *, status: int = 200) -> Response:
    return Response(
        status=status, body=json.dumps(document).encode(), headers={"Content-Type": "application/json"}
    )
