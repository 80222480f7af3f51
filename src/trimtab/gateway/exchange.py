"""I/O. One request through the gateway: read, route, ask the engine, pass its answer on."""

from __future__ import annotations

import asyncio
import json
import time
from typing import Final

import aiohttp
from aiohttp import web

from trimtab.core.state import ServedModel
from trimtab.errors import GatewayError
from trimtab.gateway.assemble import (
    ENGINES_TO_ASSEMBLE,
    Assembly,
    StreamedError,
    ask_for_stream,
    decode_events,
)
from trimtab.gateway.error_body import ORIGIN_HEADER, render_error_event, shape_engine_error
from trimtab.gateway.event_cut import split_whole_events
from trimtab.gateway.metrics import GatewayMetrics
from trimtab.gateway.request import RequestFacts, decode_request, replace_fields
from trimtab.gateway.routing import choose_model
from trimtab.gateway.token_limit import cap_max_tokens, check_max_tokens, needs_prompt_count
from trimtab.gateway.upstream import Upstream, UpstreamError

__all__ = ["CAPPED_HEADER", "Exchange"]

CAPPED_HEADER: Final = "x-trimtab-max-tokens-capped"
_EVENT_STREAM: Final = "text/event-stream"


class Exchange:
    """One request and its answer."""

    def __init__(
        self,
        request: web.BaseRequest,
        request_id: str,
        *,
        upstream: Upstream,
        metrics: GatewayMetrics,
        served: tuple[ServedModel, ...],
    ) -> None:
        self._request = request
        self._request_id = request_id
        self._upstream = upstream
        self._metrics = metrics
        self._served = served
        self._started_s = time.monotonic()
        self._headers = {"X-Request-Id": request_id}
        self._must_assemble = False

    async def run(self, *, max_body_bytes: int) -> web.StreamResponse:
        """The answer, already sent where it is a stream. GatewayError refuses the request."""
        body = await _read_body(self._request, max_body_bytes)
        facts = decode_request(body)
        model = choose_model(facts.model, self._served)
        self._must_assemble = (
            model.engine in ENGINES_TO_ASSEMBLE
            and not facts.is_stream
            and self._request.path != "/v1/embeddings"
        )
        body = await self._adapt(body, facts, model)
        try:
            response = await self._ask(body, model)
        except UpstreamError as error:
            self._metrics.upstream_errors.labels(model.name).inc()
            raise GatewayError(
                f"the engine of {model.name!r} did not answer: {error}",
                status=502,
                code="engine_unreachable",
                hint="it is being restarted; try again in a few seconds",
            ) from error
        except asyncio.CancelledError:
            self._metrics.disconnects.labels(model.name).inc()
            raise
        endpoint = self._request.path
        self._metrics.requests.labels(endpoint, model.name, str(response.status)).inc()
        self._metrics.duration_s.labels(endpoint, model.name).observe(time.monotonic() - self._started_s)
        return response

    async def _adapt(self, body: bytes, facts: RequestFacts, model: ServedModel) -> bytes:
        """The body for the engine: the client's own bytes unless a field must change."""
        limit = model.max_model_len
        capped = None
        if limit is not None and self._request.path != "/v1/embeddings":
            check_max_tokens(facts, limit=limit)
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

    async def _ask(self, body: bytes, model: ServedModel) -> web.StreamResponse:
        url = f"{model.base_url}{self._request.path}"
        headers = {"Content-Type": "application/json", "X-Request-Id": self._request_id}
        async with self._upstream.open(url, body, headers) as answer:
            content_type = answer.headers.get("Content-Type", "application/json")
            self._headers |= {"Content-Type": content_type, ORIGIN_HEADER: "engine"}
            if answer.status == 200 and content_type.startswith(_EVENT_STREAM):
                if self._must_assemble:
                    return await self._assemble(answer)
                return await self._pass_stream(answer, model)
            try:
                payload = await answer.read()
            except aiohttp.ClientError as error:
                raise UpstreamError(f"it broke off inside its answer ({error})") from error
            if answer.status >= 400:
                payload = shape_engine_error(payload, status=answer.status)
                self._headers["Content-Type"] = "application/json"
            return web.Response(status=answer.status, body=payload, headers=self._headers)

    async def _assemble(self, answer: aiohttp.ClientResponse) -> web.StreamResponse:
        """The whole answer out of a stream that the client did not ask for."""
        assembly = Assembly()
        held = b""
        self._headers["Content-Type"] = "application/json"
        try:
            async for chunk in answer.content.iter_any():
                whole, held = split_whole_events(held + chunk)
                for document in decode_events(whole):
                    assembly.add(document)
        except (aiohttp.ClientError, ValueError) as error:
            raise UpstreamError(f"it broke off inside its answer ({error})") from error
        except StreamedError as error:
            body = shape_engine_error(json.dumps({"error": error.error}).encode(), status=500)
            return web.Response(status=500, body=body, headers=self._headers)
        return web.Response(body=json.dumps(assembly.finish()).encode(), headers=self._headers)

    async def _pass_stream(self, answer: aiohttp.ClientResponse, model: ServedModel) -> web.StreamResponse:
        self._headers |= {"Cache-Control": "no-cache", "X-Accel-Buffering": "no"}
        response = web.StreamResponse(status=200, headers=self._headers)
        held = b""
        try:
            await response.prepare(self._request)
            is_first = True
            async for chunk in answer.content.iter_any():
                if is_first:
                    is_first = False
                    self._metrics.ttft_s.labels(model.name).observe(time.monotonic() - self._started_s)
                whole, held = split_whole_events(held + chunk if held else chunk)
                if whole:
                    await response.write(whole)
            if held:
                await response.write(held)
        except (aiohttp.ClientPayloadError, aiohttp.ClientConnectionError, TimeoutError) as error:
            if self._request.transport is None or self._request.transport.is_closing():
                self._metrics.disconnects.labels(model.name).inc()
                raise
            self._metrics.upstream_errors.labels(model.name).inc()
            text = f"the engine of {model.name!r} broke off inside its answer ({error})"
            await response.write(render_error_event(text, code="engine_died", origin="gateway"))
            await response.write(b"data: [DONE]\n\n")
        await response.write_eof()
        return response


async def _read_body(request: web.BaseRequest, max_body_bytes: int) -> bytes:
    """The whole body, never more than ``max_body_bytes`` of it in memory."""
    length = request.content_length
    if length is not None and length > max_body_bytes:
        raise _too_large(max_body_bytes)
    if request.headers.get("Expect", "").lower() == "100-continue" and request.transport is not None:
        request.transport.write(b"HTTP/1.1 100 Continue\r\n\r\n")
    parts: list[bytes] = []
    size = 0
    try:
        async for part in request.content.iter_any():
            size += len(part)
            if size > max_body_bytes:
                raise _too_large(max_body_bytes)
            parts.append(part)
    except aiohttp.ClientError as error:
        raise GatewayError(f"the body broke off: {error}", status=400, code="broken_body") from error
    except web.RequestPayloadError as error:
        raise GatewayError(f"the body cannot be read: {error}", status=400, code="broken_body") from error
    return parts[0] if len(parts) == 1 else b"".join(parts)


def _too_large(max_body_bytes: int) -> GatewayError:
    return GatewayError(
        f"the body is larger than {max_body_bytes:,} bytes, the limit of one request",
        status=413,
        code="body_too_large",
        hint="raise gateway.limits.max_body_bytes in the stack file, or send less",
    )
