"""Pure. /tokenize and /detokenize, in vLLM's words and in llama.cpp's, for either engine.

What both engines can say is translated; what only one of them can is refused with its name.
"""

from __future__ import annotations

import json
from typing import Any

from trimtab.core.state import ServedModel
from trimtab.errors import GatewayError
from trimtab.gateway.endpoints import DETOKENIZE, TOKENIZE
from trimtab.gateway.json_text import load_json
from trimtab.gateway.passage import Passage, same

__all__ = ["open_detokenize", "open_tokenize"]


def open_tokenize(document: dict[str, Any], body: bytes, model: ServedModel) -> Passage:
    """The request in the engine's own words. GatewayError: 400 no text, 501 what that engine cannot."""
    if model.engine == "llama_cpp" and "content" not in document:
        return _ask_llama_cpp(document, model)
    if model.engine == "vllm" and "content" in document and "prompt" not in document:
        return _ask_vllm(document, model)
    return Passage(path=TOKENIZE, body=body)


def open_detokenize(body: bytes) -> Passage:
    """The same for every engine; the answer has the text by both names."""
    return Passage(path=DETOKENIZE, body=body, translate=_name_text_twice)


def _ask_llama_cpp(document: dict[str, Any], model: ServedModel) -> Passage:
    if "messages" in document:
        raise _only(model, "messages", "vLLM", "send prompt; /v1/messages/count_tokens counts a conversation")
    if document.get("return_token_strs"):
        raise _only(model, "return_token_strs", "vLLM", "send content and with_pieces, as llama.cpp has it")
    ask = {
        "content": _text(document, "prompt"),
        "add_special": document.get("add_special_tokens", True),
        "parse_special": True,
    }
    limit = model.max_model_len

    def translate(answer: bytes) -> bytes:
        tokens = _read(answer).get("tokens")
        if not isinstance(tokens, list):
            return answer
        return json.dumps({"count": len(tokens), "max_model_len": limit, "tokens": tokens}).encode()

    return Passage(path=TOKENIZE, body=_with_model(ask, document), translate=translate)


def _ask_vllm(document: dict[str, Any], model: ServedModel) -> Passage:
    if document.get("with_pieces"):
        raise _only(model, "with_pieces", "llama.cpp", "send prompt and return_token_strs, as vLLM has it")
    if document.get("parse_special") is False:
        raise _only(model, "parse_special", "llama.cpp", "leave it out")
    ask = {
        "prompt": _text(document, "content"),
        "add_special_tokens": document.get("add_special", False),
    }

    def translate(answer: bytes) -> bytes:
        found = _read(answer)
        return json.dumps({"tokens": found["tokens"]}).encode() if "tokens" in found else answer

    return Passage(path=TOKENIZE, body=_with_model(ask, document), translate=translate)


def _name_text_twice(answer: bytes) -> bytes:
    found = _read(answer)
    text = found.get("prompt", found.get("content"))
    if not isinstance(text, str):
        return same(answer)
    return json.dumps(found | {"prompt": text, "content": text}).encode()


def _with_model(ask: dict[str, Any], document: dict[str, Any]) -> bytes:
    named = ask if document.get("model") is None else {"model": document["model"]} | ask
    return json.dumps(named).encode()


def _read(answer: bytes) -> dict[str, Any]:
    try:
        found = load_json(answer)
    except ValueError:
        return {}
    return found if isinstance(found, dict) else {}


def _text(document: dict[str, Any], field: str) -> str:
    value = document.get(field)
    if not isinstance(value, str):
        raise GatewayError(
            f"{field} is {'missing' if value is None else 'no text'}",
            status=400,
            code="invalid_value",
            param=field,
            hint=f"send the text to tokenize as {field}",
        )
    return value


def _only(model: ServedModel, field: str, engine: str, hint: str) -> GatewayError:
    return GatewayError(
        f"only {engine} has {field}, and the model {model.name!r} runs on another engine",
        status=501,
        code="not_supported",
        param=field,
        hint=hint,
    )
