"""I/O. Requests of other protocols: asked as what an engine knows, answered as they came.

Behind the door everything is as for a chat: thinking, limits, queue, replicas, usage. Only what goes in
and what comes out is translated, by pure functions.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import TypeAlias

from trimtab.core.stack import GatewaySettings
from trimtab.core.state import ServedModel
from trimtab.errors import GatewayError
from trimtab.gateway.endpoints import CHAT, explain_missing
from trimtab.gateway.error_body import name_fields
from trimtab.gateway.exchange_task import choose_wished_form
from trimtab.gateway.forced_call import must_call, open_forced_call
from trimtab.gateway.http_client import UpstreamError
from trimtab.gateway.http_message import Request, Response
from trimtab.gateway.http_service import AnswerTo, Flow
from trimtab.gateway.large_body import work_on
from trimtab.gateway.passage import Passage, StreamTranslator
from trimtab.gateway.protocols import open_passage, read_asked, word_error
from trimtab.gateway.reasoning_form import REASONING_HEADER
from trimtab.gateway.repair import REPAIRS_HEADER, choose_repairs, unwrap_extra_body
from trimtab.gateway.request import RequestFacts
from trimtab.gateway.request_body import decode_body
from trimtab.gateway.tool_choice import check_chat_choice

__all__ = ["answer_translated"]

# Asks the gateway itself, as a client would.
Ask: TypeAlias = Callable[[Request, AnswerTo], Awaitable[Response]]
# Whether the template of a model writes tools.
WritesTools: TypeAlias = Callable[[ServedModel], Awaitable[bool]]


class _TranslatedClient:
    """The client's connection for an answer that is translated on its way."""

    def __init__(self, client: AnswerTo, stream: StreamTranslator, repair: str) -> None:
        self._client = client
        self._stream = stream
        self._repair = repair
        self._has_left = False

    @property
    def peer(self) -> object:
        """Who it is."""
        return self._client.peer

    def begin_stream(self, headers: dict[str, str], flow: Flow | None = None) -> None:
        """Send the head."""
        self._client.begin_stream(_with_repair(headers, self._repair), flow)

    def send(self, data: bytes) -> None:
        """Send what can be told by now."""
        self._client.send(self._stream.feed(data))
        if self._stream.is_broken and not self._has_left:
            self._has_left = True
            raise UpstreamError("one event is too long")  # ends the stream, and the engine's work

    async def drained(self) -> None:
        """Until the client has caught up."""
        await self._client.drained()

    def end_stream(self) -> None:
        """Send what is left, and the end."""
        self._client.send(self._stream.end())
        self._client.end_stream()


async def answer_translated(  # noqa: PLR0913 - what the gateway lends it
    request: Request,
    client: AnswerTo,
    ask: Ask,
    *,
    served: tuple[ServedModel, ...],
    settings: GatewaySettings,
    writes_tools: WritesTools,
    render: Callable[[GatewayError], Response],
) -> Response:
    """The answer to a request that is asked as another; GatewayError refuses it before it is counted.

    A chat passes as it is, unless llama.cpp must have a tool called; ``writes_tools`` tells of templates.
    ``render`` words a refusal that an engine's own stands for.
    """
    body = decode_body(request, settings.max_body_bytes)
    repairs = choose_repairs(request.header(REPAIRS_HEADER), default=settings.repairs)
    facts = await work_on(len(body), lambda: read_asked(request.path, body, repairs))
    request.asked_model = facts.model
    passage, model = await work_on(len(body), lambda: open_passage(request.path, body, facts, served))
    if request.path == CHAT:
        extra = "extra-body" in repairs
        check_chat_choice(unwrap_extra_body(facts.document) if extra else facts.document)
        if "tool-choice" in repairs:
            passage = await _with_forced_call(passage, facts, model, writes_tools)
    inside = client if passage.stream is None else _TranslatedClient(client, passage.stream, passage.repair)
    asked = _ask_inside(request, passage, settings)
    request.is_countable = False
    response = await ask(asked, inside)
    if response.is_sent:
        return response
    response.headers = _with_repair(response.headers, passage.repair)
    if response.status == 200:
        answer = response.body
        try:
            response.body = await work_on(len(answer), lambda: passage.translate(answer))
        except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
            return render(_unreadable(model, error))
        return response
    missing = explain_missing(request.path, model, status=response.status, body=response.body)
    if missing is not None:
        return render(missing)
    told = name_fields(response.body, passage.names)
    response.body = word_error(request.path, told, status=response.status, request_id=request.request_id)
    return response


def _with_repair(headers: dict[str, str], repair: str) -> dict[str, str]:
    """The head of an answer that tells of a repair more."""
    if not repair:
        return headers
    before = headers.get(REPAIRS_HEADER)
    return headers | {REPAIRS_HEADER: repair if before is None else f"{before}, {repair}"}


async def _with_forced_call(
    passage: Passage, facts: RequestFacts, model: ServedModel, writes_tools: WritesTools
) -> Passage:
    """The chat as it is, or as one for JSON where llama.cpp must have a tool called."""
    narrowed = must_call(facts.document) if model.engine == "llama_cpp" else None
    if narrowed is None:
        return passage
    # Nobody knows of a model that is not loaded: then it is told in any case.
    is_told = model.base_url is not None and await writes_tools(model)
    forced = await work_on(len(passage.body), lambda: open_forced_call(narrowed, is_told=is_told))
    return passage if forced is None else forced


def _unreadable(model: ServedModel, error: Exception) -> GatewayError:
    why = str(error) if isinstance(error, ValueError) else f"it has another shape ({type(error).__name__})"
    return GatewayError(
        f"the answer of the engine of {model.name!r} cannot be read: {why}",
        status=502,
        code="engine_answer",
    )


def _ask_inside(request: Request, passage: Passage, settings: GatewaySettings) -> Request:
    """The request as it goes on: the client's headers, another path and body."""
    fields = {name: value for name, value in request.fields.items() if name != b"content-encoding"}
    if passage.thoughts is not None and choose_wished_form(request, settings) != "none":
        fields[REASONING_HEADER.encode()] = passage.thoughts.encode()
    fields[b"content-length"] = str(len(passage.body)).encode()
    return Request(
        method=request.method,
        path=passage.path,
        fields=fields,
        body_parts=[passage.body],
        num_body_bytes=len(passage.body),
        is_whole=True,
        request_id=request.request_id,
        key=request.key,
        asked_path=request.asked_path or request.path,
        is_countable=request.is_countable,
    )
