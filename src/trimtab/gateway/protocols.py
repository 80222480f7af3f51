"""Pure. Which protocol a path speaks: how its requests are opened and its errors are worded."""

from __future__ import annotations

from collections.abc import Collection
from typing import Final

from trimtab.core.stack import RepairName
from trimtab.core.state import ServedModel
from trimtab.gateway.endpoints import (
    COUNT_TOKENS,
    DETOKENIZE,
    MESSAGES,
    RESPONSES,
    TOKENIZE,
    check_engine_has,
)
from trimtab.gateway.messages_answer import shape_message_error
from trimtab.gateway.messages_passage import open_count, open_messages
from trimtab.gateway.passage import Passage
from trimtab.gateway.repair import EXTRA_BODY, unwrap_extra_body
from trimtab.gateway.request import RequestFacts, decode_request, read_facts
from trimtab.gateway.responses_passage import open_response
from trimtab.gateway.routing import choose_mode, choose_model
from trimtab.gateway.thinking import VirtualMode
from trimtab.gateway.tokens_passage import open_detokenize, open_tokenize

__all__ = ["open_passage", "read_asked", "word_error"]

_ASKED_AS_CHATS: Final = frozenset({MESSAGES, COUNT_TOKENS, RESPONSES})


def read_asked(path: str, body: bytes, repairs: Collection[RepairName]) -> RequestFacts:
    """The request of any path as it is to be understood; GatewayError (400) for what is no request.

    What a literal ``extra_body`` says is put where a translation reads it, as ``stream``. An empty one
    stays: by it the chat that is asked tells what was repaired.
    """
    facts = decode_request(body)
    if "extra-body" not in repairs or path not in _ASKED_AS_CHATS:
        return facts
    unwrapped = unwrap_extra_body(facts.document)
    return facts if unwrapped is facts.document else read_facts(unwrapped | {EXTRA_BODY: {}})


def open_passage(
    path: str, body: bytes, facts: RequestFacts, served: tuple[ServedModel, ...]
) -> tuple[Passage, ServedModel]:
    """What to ask of which model's engine. GatewayError refuses the request before it waits."""
    document = facts.document
    model, mode = _find_model(facts.model, served)
    check_engine_has(path, model)
    if path == MESSAGES:
        return open_messages(document, model), model
    if path == COUNT_TOKENS:
        return open_count(document, body, model, mode), model
    if path == RESPONSES:
        return open_response(document, model), model
    if path == TOKENIZE:
        return open_tokenize(document, body, model), model
    if path == DETOKENIZE:
        return open_detokenize(body), model
    return Passage(path=path, body=body), model


def word_error(path: str, body: bytes, *, status: int, request_id: str) -> bytes:
    """An error body in the words of the protocol that the path speaks."""
    if path in {MESSAGES, COUNT_TOKENS}:
        return shape_message_error(body, status=status, request_id=request_id)
    return body


def _find_model(name: str | None, served: tuple[ServedModel, ...]) -> tuple[ServedModel, VirtualMode | None]:
    """The model, ready or not: whether it is told where it is asked. GatewayError where there is none."""
    name, mode = choose_mode(name, served)
    if name is None and len(served) == 1:
        return served[0], mode
    found = next((model for model in served if model.name == name), None)
    return choose_model(name, served) if found is None else found, mode
