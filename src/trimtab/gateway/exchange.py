"""I/O. One request through the gateway: read, route, ask the engine, pass its answer on."""

from __future__ import annotations

import asyncio
import json
import logging
import time
from contextlib import AbstractAsyncContextManager, AsyncExitStack
from typing import Final, TypeAlias

from trimtab.core.stack import GatewaySettings
from trimtab.core.state import ServedModel
from trimtab.errors import GatewayError
from trimtab.gateway.admission_gate import ModelGate, Slot
from trimtab.gateway.admission_lane import find_lane, find_max_wait_s, is_background
from trimtab.gateway.assemble import Assembly, StreamedError
from trimtab.gateway.endpoints import CHAT, GENERATING_PATHS, TOKENIZING_PATHS
from trimtab.gateway.engine_answer import check_answer, find_request_fault
from trimtab.gateway.error_body import ORIGIN_HEADER, render_gateway_error, shape_engine_error
from trimtab.gateway.exchange_task import EngineTask, make_task, read_chat_settings
from trimtab.gateway.external_listing import EXTERNAL_ENGINE
from trimtab.gateway.http_message import Request, Response
from trimtab.gateway.http_service import AnswerTo, failed
from trimtab.gateway.large_body import work_on
from trimtab.gateway.metrics import ModelMetrics
from trimtab.gateway.parts import GatewayParts
from trimtab.gateway.pass_through import PassedTask, find_pass_through
from trimtab.gateway.reasoning_answer import reshape_body
from trimtab.gateway.reasoning_source import LimitedThought
from trimtab.gateway.reasoning_stream import CUT_THOUGHT_NOTE, ReasoningStream
from trimtab.gateway.relay import KEEP_ALIVE, NO_BUFFERING, ReadPiece, Relay
from trimtab.gateway.replica_route import ReplicaRoute, choose_route
from trimtab.gateway.request import RequestFacts, decode_request
from trimtab.gateway.request_body import decode_body
from trimtab.gateway.request_log import render_line
from trimtab.gateway.routing import choose_mode, choose_model, stopping_error, unanswered_error
from trimtab.gateway.stream_end import DONE_EVENT
from trimtab.gateway.thinking import VirtualMode
from trimtab.gateway.thinking_request import prepare_chat
from trimtab.gateway.token_limit import cap_max_tokens, check_limits
from trimtab.gateway.upstream import Answer, UpstreamError
from trimtab.gateway.upstream_key import upstream_headers
from trimtab.gateway.usage import TokenCount, read_usage

__all__ = ["CAPPED_HEADER", "NOTE_HEADER", "Exchange"]

_LOG: Final = logging.getLogger(__name__)

CAPPED_HEADER: Final = "x-trimtab-max-tokens-capped"
# A word on an unstreamed answer that the client should know; streams carry it as a comment.
NOTE_HEADER: Final = "x-trimtab-note"
# What a client that left is counted as; the word comes from nginx, which no client ever sees.
_STATUS_CLIENT_LEFT: Final = 499
_EVENT_STREAM: Final = "text/event-stream"
_Wish: TypeAlias = tuple[VirtualMode | None, GatewaySettings]


class Exchange:
    """One request and its answer; ``is_counted`` tells whether its model's metrics have it."""

    def __init__(self, request: Request, client: AnswerTo, parts: GatewayParts) -> None:
        self._request = request
        self._client = client
        self._endpoint = request.path
        self._parts = parts
        self._upstream = parts.upstream
        self._route: ReplicaRoute | None = None
        self._started_s = time.monotonic()
        self._request_id = request.request_id
        self._headers = {"X-Request-Id": request.request_id}
        self._relay: Relay | None = None
        self._task = asyncio.current_task()
        self._is_interrupted = False
        self._is_stream = False
        # Whether the head of a stream went out before the engine had answered.
        self._is_early = False
        self._num_beats = 0
        self._tokens = TokenCount()
        self._slot: Slot | None = None
        self._error: str | None = None
        self.is_counted = False

    def interrupt(self) -> None:
        """Let the answer end now, with an error that the client can read, because trimtab stops."""
        if self._task is not None and not self._is_interrupted:
            self._is_interrupted = True
            self._task.cancel()

    async def run(self, settings: GatewaySettings) -> Response:
        """The answer, already sent where it is a stream. GatewayError refuses the request."""
        try:
            response = await self._run(settings)
        except asyncio.CancelledError:
            if not self._is_interrupted or self._task is None:
                raise
            self._task.uncancel()
            if self._relay is not None:
                return self._relay.interrupt()
            if not self._is_early:
                raise stopping_error() from None
            return self._end_early(render_gateway_error(stopping_error()))
        except GatewayError as refusal:
            if not self._is_early:
                raise
            return self._end_early(render_gateway_error(refusal))
        if self._is_early and not response.is_sent:
            return self._end_early(response.body)
        return response

    def beat(self) -> None:
        """Called again and again: a stream that has been silent gets a comment.

        Before the engine has answered this begins the stream, whose errors are then events inside it.
        """
        if self._relay is not None:
            self._relay.beat()
        elif self._is_stream:
            self._num_beats += 1
            if self._num_beats > 1:
                self._is_early = True
                more = {"Content-Type": _EVENT_STREAM, ORIGIN_HEADER: "gateway"} | NO_BUFFERING
                self._client.begin_stream(self._headers | more)
                self._client.send(KEEP_ALIVE)

    def _end_early(self, body: bytes) -> Response:
        """End a stream that began before its answer was known to be none; ``body`` is what there is."""
        self._client.send(b"data: " + body.replace(b"\n", b" ") + b"\n\n" + DONE_EVENT)
        self._client.end_stream()
        return Response(is_sent=True)

    async def _run(self, settings: GatewaySettings) -> Response:
        body = decode_body(self._request, settings.max_body_bytes)
        facts = await work_on(len(body), lambda: decode_request(body))
        self._is_stream, self._request.asked_model = facts.is_stream, facts.model
        find_max_wait_s(self._request)  # an illegal header is refused, whether the request must wait or not
        served = self._parts.snapshot()
        name, mode = choose_mode(facts.model, served)
        model = choose_model(name, served, may_wait=True)
        metrics = self._parts.metrics.of_model(model.name)
        status = _STATUS_CLIENT_LEFT
        self._begin(model.name)
        try:
            response = await self._serve(body, facts, model, (mode, settings), metrics)
            status = response.status
        except UpstreamError as error:
            metrics.upstream_errors.inc()
            # Not kept in a variable: an error that its own frame holds is garbage only a collection finds.
            status = 503 if model.engine == EXTERNAL_ENGINE else 502
            self._error = "engine_unreachable"
            raise unanswered_error(model, str(error)) from error
        except GatewayError as error:
            status = error.status
            metrics.reject(error.code)
            self._error = error.code
            raise
        except Exception as error:
            status, self._error = 500, failed().code
            if self._relay is not None:
                raise
            _LOG.exception("error answering a request")
            raise failed() from error
        finally:
            duration_s = time.monotonic() - self._started_s
            self._leave(metrics, model.name, status, duration_s)
            self.is_counted = True
            metrics.count(self._request.asked_path or self._endpoint, status, duration_s)
        return response

    async def _serve(
        self, body: bytes, facts: RequestFacts, model: ServedModel, wish: _Wish, metrics: ModelMetrics
    ) -> Response:
        settings = wish[1]
        gate = self._parts.gates.find(model)
        if gate is not None and (model.on_demand or self._endpoint not in TOKENIZING_PATHS):
            lane = find_lane(self._request, self._client, has_keys=bool(settings.keys))
            slot = gate.expect(lane, facts, len(body), has_answer=self._endpoint in GENERATING_PATHS)
            self._slot = slot.begin() if gate.queue.is_roomy(slot.num_tokens) else None
            if self._slot is None:
                model = await self._wait(gate, slot, model, facts)
        if len(model.replicas) > 1:
            need = None if self._slot is None else self._slot.need()
            self._route = choose_route(self._request, facts.document, self._parts, model.name, need)
        passed = find_pass_through(self._request, facts, model, settings)
        if passed is not None and not self._must_count(facts, model, num_body_bytes=len(body)):
            return await self._pass(body, passed, metrics)
        return await self._change(body, facts, model, wish, metrics)

    def _begin(self, model: str) -> None:
        """Count the request for its key; GatewayError where the key's limits forbid it."""
        keys, key = self._parts.keys, self._request.key
        if keys is not None and key is not None:
            keys.begin(key, model)

    def _leave(self, metrics: ModelMetrics, model: str, status: int, duration_s: float) -> None:
        """Give back what the request held, and count what its answer took."""
        self._request.is_countable = False
        if self._route is not None:
            self._route.end()
        tokens = self._tokens if self._relay is None else self._relay.tokens()
        if self._slot is not None:
            self._slot.end(tokens, is_whole=status == 200)
        keys, usage, key = self._parts.keys, self._parts.usage, self._request.key
        metrics.count_tokens(tokens)
        if keys is not None and key is not None:
            keys.end(key, num_tokens=tokens.prompt + tokens.completion)
        if usage is not None:
            usage.add(key="" if key is None else key.name, model=model, status=status, tokens=tokens)
        if self._parts.request_log is not None:
            route, relay = self._route, self._relay
            line = render_line(
                request_id=self._request_id, endpoint=self._request.asked_path or self._endpoint, model=model,
                status=status, duration_s=duration_s, replica=None if route is None else route.replica_id,
                key=None if key is None else key.name,
                error=self._error if self._error is not None or relay is None else relay.error,
                ttft_s=None if relay is None else relay.ttft_s, tokens=tokens,
            )  # fmt: skip
            self._parts.request_log.add(line)

    async def _wait(
        self, gate: ModelGate, slot: Slot, model: ServedModel, facts: RequestFacts
    ) -> ServedModel:
        """Until the model's engines have a slot; the model as it is then. GatewayError where that fails."""
        yields = self._endpoint == CHAT and is_background(self._request, facts.document)
        if not slot.try_begin(is_background=yields):
            # What can never work is refused before it waits.
            self._must_count(facts, model, num_body_bytes=len(self._request.body))
            priority = 0 if self._request.key is None else self._request.key.priority
            await gate.wait(
                slot, is_background=yields, max_wait_s=find_max_wait_s(self._request), priority=priority
            )
            self._parts.metrics.of_model(model.name).queue_s.observe(time.monotonic() - self._started_s)
        self._slot = slot
        return choose_model(model.name, self._parts.snapshot())

    def _headers_for(self, model: ServedModel) -> dict[str, str]:
        """What the engine is sent besides the body; nothing of the client's own headers."""
        headers = {"Content-Type": "application/json", "X-Request-Id": self._request_id}
        keys = self._parts.upstream_keys
        return headers | upstream_headers(model, keys) if keys else headers

    async def _pass(self, body: bytes, task: PassedTask, metrics: ModelMetrics) -> Response:
        """The answer to a request whose bytes go to the engine as they are."""
        headers = self._headers_for(task.model)
        if self._route is None:
            answer = await self._upstream.post(f"{task.model.base_url}{self._endpoint}", body, headers)
        else:
            answer = await self._route.post(self._endpoint, body, headers)
        try:
            if self._is_stream and answer.status == 200 and answer.content_type.startswith(_EVENT_STREAM):
                return await self._stream(None, answer, task, metrics)
            return self._whole(await answer.read(), answer, task, metrics)
        finally:
            answer.close()

    async def _change(
        self, body: bytes, facts: RequestFacts, model: ServedModel, wish: _Wish, metrics: ModelMetrics
    ) -> Response:
        """The answer to a request that may need a change, or whose answer may."""
        mode, settings = wish
        chat = None
        if self._endpoint == CHAT:
            wishes = read_chat_settings(self._request, model, mode, settings)
            chat = await work_on(len(body), lambda: prepare_chat(facts.document, wishes))
            self._headers |= chat.headers()
        task = await work_on(len(body), lambda: make_task(facts, model, chat, endpoint=self._endpoint))
        capped = await self._check_limits(task.facts, model, num_body_bytes=len(body))
        return await self._ask(await work_on(len(body), lambda: task.finish(body, capped=capped)), metrics)

    def _must_count(self, facts: RequestFacts, model: ServedModel, *, num_body_bytes: int) -> bool:
        """Whether the prompt must be counted; GatewayError (400) for what can never fit."""
        limit = model.max_model_len
        if limit is None or self._endpoint not in GENERATING_PATHS:
            return False
        return check_limits(facts, body_bytes=num_body_bytes, limit=limit)

    async def _check_limits(
        self, facts: RequestFacts, model: ServedModel, *, num_body_bytes: int
    ) -> int | None:
        """The lower ``max_tokens`` that still fits, None where nothing need change."""
        limit = model.max_model_len
        if limit is None or not self._must_count(facts, model, num_body_bytes=num_body_bytes):
            return None
        prompt_tokens = await self._upstream.count_prompt_tokens(
            model, facts.document, self._headers_for(model), num_bytes=num_body_bytes
        )
        if prompt_tokens is None:
            return None
        capped = cap_max_tokens(facts.max_tokens or 1, prompt_tokens=prompt_tokens, limit=limit)
        if capped is not None:
            self._headers[CAPPED_HEADER] = str(capped)
        return capped

    def _open(self, task: EngineTask, body: bytes) -> AbstractAsyncContextManager[Answer]:
        headers = self._headers_for(task.model)
        if self._route is not None:
            return self._route.open(self._endpoint, body, headers)
        return self._upstream.open(f"{task.model.base_url}{self._endpoint}", body, headers)

    async def _ask(self, task: EngineTask, metrics: ModelMetrics) -> Response:
        async with AsyncExitStack() as opened:
            answer = await opened.enter_async_context(self._open(task, task.body))
            if answer.status == 400 and task.budget_field is not None:
                refusal = await answer.read()
                if task.budget_field.encode() not in refusal:
                    return self._whole(refusal, answer, task, metrics)
                # This engine was started without what its own bound needs: the gateway watches instead.
                await opened.aclose()
                task = task.without_engine_budget()
                answer = await opened.enter_async_context(self._open(task, task.body))
            is_stream = task.comes_as_stream and answer.content_type.startswith(_EVENT_STREAM)
            if answer.status != 200 or not is_stream:
                return self._whole(await answer.read(), answer, task, metrics)
            read = self._limit(opened, answer, task)
            if task.must_assemble:
                return await self._assemble(read, answer, task, metrics)
            return await self._stream(read, answer, task, metrics)

    def _limit(self, opened: AsyncExitStack, answer: Answer, task: EngineTask) -> ReadPiece | None:
        """How to read an answer whose thought the gateway ends, None for all others."""
        if task.shape is None or task.limit_tokens is None:
            return None
        return LimitedThought(
            opened,
            answer,
            open_answer=lambda body: self._open(task, body),
            body=task.body,
            shape=task.shape,
            budget_tokens=task.limit_tokens,
        ).read

    async def _stream(
        self, read: ReadPiece | None, answer: Answer, task: EngineTask | PassedTask, metrics: ModelMetrics
    ) -> Response:
        self._note_answer(answer)
        reshaped = ReasoningStream(task.shape) if task.shape is not None and read is None else None
        self._relay = Relay(self._client, self._headers, metrics, reshaped)
        if read is not None:
            return await self._relay.run(read, started_s=self._started_s)
        return await self._relay.pass_on(answer, started_s=self._started_s)

    def _note_answer(self, answer: Answer) -> None:
        self._headers["Content-Type"] = answer.content_type
        self._headers[ORIGIN_HEADER] = "engine"
        if b"retry-after" in answer.fields:
            self._headers["Retry-After"] = answer.header("retry-after") or ""

    def _whole(
        self, body: bytes, answer: Answer, task: EngineTask | PassedTask, metrics: ModelMetrics
    ) -> Response:
        has_key = task.model.name in self._parts.upstream_keys
        body = check_answer(task.model, answer, body, path=self._endpoint, has_key=has_key)
        self._note_answer(answer)
        if answer.status == 200 and task.shape is not None:
            body, is_cut = reshape_body(body, task.shape)
            if is_cut:
                self._headers[NOTE_HEADER] = CUT_THOUGHT_NOTE
        return self._respond(body, answer.status, task, metrics)

    def _respond(
        self, body: bytes, status: int, task: EngineTask | PassedTask, metrics: ModelMetrics
    ) -> Response:
        fault = find_request_fault(task.model, task.document, body) if status == 500 else None
        if fault is not None:
            status, body = fault.status, render_gateway_error(fault)
            self._headers[ORIGIN_HEADER] = "gateway"
        elif status >= 400:
            body = shape_engine_error(body, status=status)
        if status >= 400:
            self._headers["Content-Type"] = "application/json"
        metrics.response_bytes.inc(len(body))
        if status == 200:
            self._tokens = read_usage(body)
        return Response(status=status, body=body, headers=self._headers)

    async def _assemble(
        self, read: ReadPiece | None, answer: Answer, task: EngineTask, metrics: ModelMetrics
    ) -> Response:
        """The whole answer out of a stream that the client did not ask for."""
        assembly = Assembly()
        self._note_answer(answer)
        self._headers["Content-Type"] = "application/json"
        try:
            if read is None:
                await answer.pass_to(assembly.take)
            else:
                while piece := await read():
                    assembly.take(piece)
        except ValueError as error:
            raise UpstreamError(f"its answer cannot be read ({error})") from error
        except StreamedError as error:
            return self._respond(json.dumps({"error": error.error}).encode(), 500, task, metrics)
        if not assembly.is_whole:
            raise UpstreamError("it ended inside its answer")
        body = json.dumps(assembly.finish()).encode()
        if task.shape is not None and task.limit_tokens is None:
            body, is_cut = reshape_body(body, task.shape)
            if is_cut:
                self._headers[NOTE_HEADER] = CUT_THOUGHT_NOTE
        return self._respond(body, 200, task, metrics)
