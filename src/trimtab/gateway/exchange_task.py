"""Pure. What one request makes the gateway ask of an engine, and how the answer is to be read."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

from trimtab.core.stack import GatewaySettings, ReasoningForm
from trimtab.core.state import ServedModel
from trimtab.gateway.assemble import ENGINES_TO_ASSEMBLE, ask_for_stream
from trimtab.gateway.endpoints import GENERATING_PATHS
from trimtab.gateway.http_message import Request
from trimtab.gateway.reasoning_form import REASONING_HEADER, AnswerShape, choose_form
from trimtab.gateway.repair import REPAIRS_HEADER, choose_repairs
from trimtab.gateway.repair_background import TASK_HEADER
from trimtab.gateway.request import RequestFacts, read_facts, replace_fields
from trimtab.gateway.thinking import VirtualMode, reserve_answer_tokens
from trimtab.gateway.thinking_families import find_thinking_family
from trimtab.gateway.thinking_request import BUDGET_FIELDS, ChatSettings, PreparedChat

__all__ = ["EngineTask", "choose_wished_form", "make_task", "read_chat_settings"]


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineTask:
    """One request for an engine.

    ``facts`` and their document are the request as decided on, ``sent`` the document that the client
    sent, ``body`` the bytes for the engine. ``must_assemble``: the client wants a whole answer, the
    engine is asked for a stream. ``shape`` tells how the answer is read, None where it passes as it is.
    ``budget_field`` is the field by which the engine bounds the thought; ``limit_tokens`` is set where
    the gateway bounds it instead.
    """

    facts: RequestFacts
    model: ServedModel
    sent: dict[str, Any]
    shape: AnswerShape | None = None
    body: bytes = b""
    budget_tokens: int | None = None
    budget_field: str | None = None
    limit_tokens: int | None = None
    must_assemble: bool = False

    @property
    def document(self) -> dict[str, Any]:
        """The request as decided on."""
        return self.facts.document

    @property
    def comes_as_stream(self) -> bool:
        """Whether the engine is asked for a stream, for the client or for the whole of it."""
        return self.facts.is_stream or self.must_assemble

    def finish(self, body: bytes, *, capped: int | None = None) -> EngineTask:
        """The task with its body: ``body``, the client's own, unless a field must change.

        ``capped`` is a lower token limit; the thought's bound follows it.
        """
        task = self
        if capped is not None and self.budget_tokens is not None:
            task = self._with_budget(reserve_answer_tokens(self.budget_tokens, max_tokens=capped))
        name = task.facts.model
        target = task.model.upstream_model or (None if name is None else task.model.name)
        renamed = target if target != name else None
        is_same = task.document is task.sent and not task.must_assemble
        if is_same and capped is None and renamed is None:
            return replace(task, body=body)
        document = ask_for_stream(task.document) if task.must_assemble else task.document
        return replace(task, body=replace_fields(document, model=renamed, max_tokens=capped))

    def without_engine_budget(self) -> EngineTask:
        """The task for an engine that refused its own field: the gateway bounds the thought."""
        document = {name: value for name, value in self.document.items() if name != self.budget_field}
        task = replace(
            self,
            facts=self.facts._replace(document=document),
            budget_field=None,
            limit_tokens=_limit_of(document, self.budget_tokens),
            must_assemble=not self.facts.is_stream,
        )
        return task.finish(self.body)

    def _with_budget(self, budget_tokens: int | None) -> EngineTask:
        if self.budget_field is None:
            return replace(self, budget_tokens=budget_tokens, limit_tokens=budget_tokens)
        document = self.document | {self.budget_field: budget_tokens}
        facts = self.facts._replace(document=document)
        return replace(self, budget_tokens=budget_tokens, facts=facts)


def make_task(
    facts: RequestFacts, model: ServedModel, chat: PreparedChat | None, *, endpoint: str
) -> EngineTask:
    """What to ask of ``model``; ``chat`` is the prepared request of a chat, None elsewhere."""
    must_assemble = (
        model.engine in ENGINES_TO_ASSEMBLE and not facts.is_stream and endpoint in GENERATING_PATHS
    )
    if chat is None:
        return EngineTask(facts=facts, model=model, sent=facts.document, must_assemble=must_assemble)
    field = None if chat.budget_tokens is None else BUDGET_FIELDS.get(model.engine)
    limit = None if field is not None else _limit_of(chat.document, chat.budget_tokens)
    return EngineTask(
        facts=facts if chat.document is facts.document else read_facts(chat.document),
        model=model,
        sent=facts.document,
        shape=chat.shape,
        budget_tokens=chat.budget_tokens,
        budget_field=field,
        limit_tokens=limit,
        must_assemble=must_assemble or (limit is not None and not facts.is_stream),
    )


def _limit_of(document: dict[str, Any], budget_tokens: int | None) -> int | None:
    """The bound that the gateway keeps: none for several choices, which go on at different times."""
    return budget_tokens if document.get("n") in (None, 1) else None


def read_chat_settings(
    request: Request, model: ServedModel, mode: VirtualMode | None, settings: GatewaySettings
) -> ChatSettings:
    """What the model's side and the request's headers say; GatewayError (400) for a header's odd value."""
    wish = request.header(REASONING_HEADER)
    by_key = _form_of_key(request.header("authorization"), settings)
    return ChatSettings(
        family=find_thinking_family(model.family),
        engine=model.engine,
        default_is_on=None if model.thinking is None else model.thinking == "on",
        mode=mode,
        form=choose_form(wish, default=by_key or settings.reasoning_fields),
        is_form_wished=wish is not None or by_key is not None,
        repairs=choose_repairs(request.header(REPAIRS_HEADER), default=settings.repairs),
        task_header=request.header(TASK_HEADER),
    )


def choose_wished_form(request: Request, settings: GatewaySettings) -> ReasoningForm:
    """How this client gets a thought: its header's form, else its key's, else everybody's."""
    by_key = _form_of_key(request.header("authorization"), settings)
    return choose_form(request.header(REASONING_HEADER), default=by_key or settings.reasoning_fields)


def _form_of_key(authorization: str | None, settings: GatewaySettings) -> ReasoningForm | None:
    if authorization is None or not settings.reasoning_fields_by_key:
        return None
    given = authorization.partition(" ")[2].strip()
    return dict(settings.reasoning_fields_by_key).get(given)
