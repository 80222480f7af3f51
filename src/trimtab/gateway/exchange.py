"""I/O. One request through the gateway: read, route, ask the engine, pass its answer on."""

from __future__ import annotations

import asyncio
import json
import time
from typing import Final

from trimtab.core.state import ServedModel
from trimtab.errors import GatewayError
from trimtab.gateway.assemble import (
    ENGINES_TO_ASSEMBLE,
    Assembly,
    StreamedError,
    ask_for_stream,
    decode_events,
)
from trimtab.gateway.error_body import ORIGIN_HEADER, shape_engine_error
from trimtab.gateway.event_cut import split_whole_events
from trimtab.gateway.http_connection import ClientConnection
from trimtab.gateway.http_message import Request, Response
from trimtab.gateway.metrics import GatewayMetrics, ModelMetrics
from trimtab.gateway.relay import Relay
from trimtab.gateway.request import RequestFacts, decode_request, replace_fields
from trimtab.gateway.request_body import decode_body
from trimtab.gateway.routing import choose_model
from trimtab.gateway.token_limit import cap_max_tokens, check_max_tokens, check_windows, needs_prompt_count
from trimtab.gateway.upstream import Answer, Upstream, UpstreamError

__all__ = ["CAPPED_HEADER", "Exchange"]

CAPPED_HEADER: Final = "x-trimtab-max-tokens-capped"
# What a client that left is counted as; the word comes from nginx, which no client ever sees.
_STATUS_CLIENT_LEFT: Final = 499
_EVENT_STREAM: Final = "text/event-stream"
_EMBEDDINGS: Final = "/v1/embeddings"
# One event of an answer that is put together here; it is held whole in any case.
_MAX_ASSEMBLED_EVENT_BYTES: Final = 64 * 1024 * 1024


class Exchange:
    """One request and its answer; ``is_counted`` tells whether its model's metrics have it."""

    def __init__(
        self,
        request: Request,
        client: ClientConnection,
        *,
        upstream: Upstream,
        metrics: GatewayMetrics,
        served: tuple[ServedModel, ...],
    ) -> None:
        self._request = request
        self._client = client
        self._endpoint = request.path
        self._upstream = upstream
        self._metrics = metrics
        self._served = served
        self._started_s = time.monotonic()
        self._request_id = request.request_id
        self._headers = {"X-Request-Id": request.request_id}
        self._must_assemble = False
        self._relay: Relay | None = None
        self._task = asyncio.current_task()
        self._is_interrupted = False
        self.is_counted = False

    def interrupt(self) -> None:
        """Let the answer end now, with an error that the client can read, because trimtab stops."""
        if self._task is not None and not self._is_interrupted:
            self._is_interrupted = True
            self._task.cancel()

    async def run(self, *, max_body_bytes: int) -> Response:
        """The answer, already sent where it is a stream. GatewayError refuses the request."""
        try:
            return await self._run(max_body_bytes)
        except asyncio.CancelledError:
            if not self._is_interrupted or self._task is None:
                raise
            self._task.uncancel()
            if self._relay is not None:
                return self._relay.interrupt()
            raise GatewayError(
                "trimtab was stopped before the answer came", status=503, code="stopping"
            ) from None

    async def _run(self, max_body_bytes: int) -> Response:
        body = decode_body(self._request, max_body_bytes)
        facts = decode_request(body)
        model = choose_model(facts.model, self._served)
        metrics = self._metrics.of_model(model.name)
        self._must_assemble = (
            model.engine in ENGINES_TO_ASSEMBLE and not facts.is_stream and self._endpoint != _EMBEDDINGS
        )
        status = _STATUS_CLIENT_LEFT
        try:
            body = await self._adapt(body, facts, model)
            response = await self._ask(body, model, metrics)
            status = response.status
        except UpstreamError as error:
            metrics.upstream_errors.inc()
            status = 502
            raise GatewayError(
                f"the engine of {model.name!r} did not answer: {error}",
                status=502,
                code="engine_unreachable",
                hint="try again in a few seconds; trimtab status tells how it is",
            ) from error
        except GatewayError as error:
            status = error.status
            raise
        finally:
            self.is_counted = True
            metrics.count(self._endpoint, status, time.monotonic() - self._started_s)
        return response

    async def _adapt(self, body: bytes, facts: RequestFacts, model: ServedModel) -> bytes:
        """The body for the engine: the client's own bytes unless a field must change."""
        limit = model.max_model_len
        capped = None
        if limit is not None and self._endpoint != _EMBEDDINGS:
            check_max_tokens(facts, limit=limit)
            check_windows(facts, limit=limit)
            if needs_prompt_count(facts, body_bytes=len(body), limit=limit):
                capped = await self._cap(facts, model, limit)
        renamed = model.upstream_model if model.upstream_model not in (None, facts.model) else None
        if capped is None and renamed is None and not self._must_assemble:
            return body
        document = ask_for_stream(facts.document) if self._must_assemble else facts.document
        return replace_fields(document, model=renamed, max_tokens=capped)

    async def _cap(self, facts: RequestFacts, model: ServedModel, limit: int) -> int | None:
        prompt_tokens = await self._upstream.count_prompt_tokens(model, facts.document)
        if prompt_tokens is None or facts.max_tokens is None:
            return None
        capped = cap_max_tokens(facts.max_tokens, prompt_tokens=prompt_tokens, limit=limit)
        if capped is not None:
            self._headers[CAPPED_HEADER] = str(capped)
        return capped

    async def _ask(self, body: bytes, model: ServedModel, metrics: ModelMetrics) -> Response:
        url = f"{model.base_url}{self._endpoint}"
        headers = {"Content-Type": "application/json", "X-Request-Id": self._request_id}
        async with self._upstream.open(url, body, headers) as answer:
            content_type = answer.header("content-type") or "application/json"
            self._headers |= {"Content-Type": content_type, ORIGIN_HEADER: "engine"}
            retry_after = answer.header("retry-after")
            if retry_after is not None:
                self._headers["Retry-After"] = retry_after
            if answer.status == 200 and content_type.startswith(_EVENT_STREAM):
                if self._must_assemble:
                    return await self._assemble(answer, metrics)
                self._relay = Relay(self._client, self._headers, metrics)
                return await self._relay.pass_on(answer, started_s=self._started_s)
            return self._whole(await answer.read(), answer.status, metrics)

    def _whole(self, body: bytes, status: int, metrics: ModelMetrics) -> Response:
        if status >= 400:
            body = shape_engine_error(body, status=status)
            self._headers["Content-Type"] = "application/json"
        metrics.response_bytes.inc(len(body))
        return Response(status=status, body=body, headers=self._headers)

    async def _assemble(self, answer: Answer, metrics: ModelMetrics) -> Response:
        """The whole answer out of a stream that the client did not ask for."""
        assembly = Assembly()
        held = b""
        self._headers["Content-Type"] = "application/json"
        try:
            while piece := await answer.read_piece():
                whole, held = split_whole_events(held + piece, max_held_bytes=_MAX_ASSEMBLED_EVENT_BYTES)
                for document in decode_events(whole):
                    assembly.add(document)
        except ValueError as error:
            raise UpstreamError(f"its answer is no JSON ({error})") from error
        except StreamedError as error:
            return self._whole(json.dumps({"error": error.error}).encode(), 500, metrics)
        if not assembly.is_whole:
            raise UpstreamError("it ended inside its answer")
        return self._whole(json.dumps(assembly.finish()).encode(), 200, metrics)
