"""Pure. Which protocol a path speaks: how its requests are opened and its errors are worded."""

from __future__ import annotations

from trimtab.core.state import ServedModel
from trimtab.gateway.endpoints import DETOKENIZE, TOKENIZE, check_engine_has
from trimtab.gateway.passage import Passage
from trimtab.gateway.request import decode_request
from trimtab.gateway.routing import choose_mode, choose_model
from trimtab.gateway.tokens_passage import open_detokenize, open_tokenize

__all__ = ["open_passage"]


def open_passage(path: str, body: bytes, served: tuple[ServedModel, ...]) -> tuple[Passage, ServedModel]:
    """What to ask of which model's engine. GatewayError refuses the request before it waits."""
    facts = decode_request(body)
    model = _find_model(facts.model, served)
    check_engine_has(path, model)
    if path == TOKENIZE:
        return open_tokenize(facts.document, body, model), model
    if path == DETOKENIZE:
        return open_detokenize(body), model
    return Passage(path=path, body=body), model


def _find_model(name: str | None, served: tuple[ServedModel, ...]) -> ServedModel:
    """The model, ready or not: whether it is told where it is asked. GatewayError where there is none."""
    name, _ = choose_mode(name, served)
    if name is None and len(served) == 1:
        return served[0]
    found = next((model for model in served if model.name == name), None)
    return choose_model(name, served) if found is None else found
