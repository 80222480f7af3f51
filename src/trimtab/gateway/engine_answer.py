"""Pure. Whether an engine's whole answer is one, and whose fault an error of it is."""

from __future__ import annotations

import json
import re
from typing import Any, Final, Protocol

from trimtab.core.state import ServedModel
from trimtab.errors import GatewayError
from trimtab.gateway.endpoints import EMBEDDINGS, GENERATING_PATHS
from trimtab.gateway.external_listing import EXTERNAL_ENGINE
from trimtab.gateway.request import find_tools_fault
from trimtab.gateway.upstream_key import check_upstream_refusal

__all__ = ["AnswerHead", "check_answer", "find_request_fault"]

# llama.cpp's words for what it answers 500 to (checked with xllamacpp 2026.10.11549).
_TOO_LONG: Final = re.compile(rb"input \((\d+) tokens\) is too large.*?\(current batch size: (\d+)\)")
_MEDIUM: Final = re.compile(rb"(image|audio|video) input is not supported")

# The list that every client looks for first.
_FIELDS: Final = {**dict.fromkeys(GENERATING_PATHS, "choices"), EMBEDDINGS: "data"}
_LIST: Final = re.compile(rb'"(?:choices|data)"\s*:\s*\[|"error"\s*:')
# As nearly every answer is written; what is so is not read again.
_USUAL: Final = {
    field: re.compile(rb'"' + field.encode() + rb'"\s*:\s*\[\s*[{\]]') for field in ("choices", "data")
}
# What vLLM answers to encoding_format: bytes.
_NUMBERS: Final = "application/octet-stream"
_JSON_STARTS: Final = (b"{", b"[")
# A mark that some write before what they say in UTF-8, and that readers of JSON may stumble over.
_UTF8_MARK: Final = b"\xef\xbb\xbf"
# Read in some 50 us; a chat's answer is a tenth of it.
_SMALL_BYTES: Final = 16 * 1024


class AnswerHead(Protocol):
    """What an engine said before its body."""

    @property
    def status(self) -> int:
        """The status."""

    @property
    def content_type(self) -> str:
        """What the body is said to be."""


def check_answer(model: ServedModel, head: AnswerHead, body: bytes, *, path: str, has_key: bool) -> bytes:
    """The body, without a mark before it; GatewayError (502) where it is nothing that the client can use.

    An error is, with its status or inside a 200.
    """
    status = head.status
    check_upstream_refusal(model, status, has_key=has_key)
    if status == 200 and body and path == EMBEDDINGS and head.content_type.startswith(_NUMBERS):
        return body
    body = body.removeprefix(_UTF8_MARK)
    if 400 <= status <= 599 or (status == 200 and body and _may_be_one(body, path)):
        return body
    if status == 200:
        what = f"200 with what is no answer: it is no {_shape(path)}" if body else "200 with an empty body"
    elif 300 <= status <= 399:
        what = f"{status}, which sends elsewhere"
    else:
        what = f"{status}, which is no answer to a request"
    is_external = model.engine == EXTERNAL_ENGINE
    raise GatewayError(
        f"the {'endpoint' if is_external else 'engine'} of the model {model.name!r} answered {what}",
        status=502,
        code="engine_answer",
        hint=f"see models.{model.name}.url in the stack file" if is_external else "",
    )


def _may_be_one(body: bytes, path: str) -> bool:
    """Whether a whole answer is JSON with what every client looks for first; an error stands for it.

    One as it is usually written, and a large one, is not read but looked at, at both ends and for the field.
    """
    field = _FIELDS.get(path)
    if field is None:
        return body.lstrip()[:1] in _JSON_STARTS
    if body[:1] == b"{" and body.endswith((b"}", b"}\n")) and _USUAL[field].search(body):
        return True
    if len(body) > _SMALL_BYTES:
        found = _LIST.search(body)
        return found is not None and body.lstrip()[:1] == b"{" and body.rstrip()[-1:] == b"}"
    try:
        document = json.loads(body.decode("utf-8", "replace"))
    except (ValueError, RecursionError):
        return False
    if not isinstance(document, dict):
        return False
    return isinstance(document.get(field), list) or document.get("error") is not None


def _shape(path: str) -> str:
    field = _FIELDS.get(path)
    return "JSON" if field is None else f"object with {field}"


def find_request_fault(model: ServedModel, document: dict[str, Any], body: bytes) -> GatewayError | None:
    """What is wrong with a request that an engine answered 500 to with ``body``; None: the engine itself."""
    fault = find_tools_fault(document)
    if fault is not None:
        return GatewayError(fault, status=400, code="invalid_value", param="tools")
    if model.engine != "llama_cpp":
        return None
    found = _TOO_LONG.search(body)
    if found is not None:
        return GatewayError(
            f"one input has {int(found[1]):,} tokens and the model {model.name!r} reads at most "
            f"{int(found[2]):,} at once",
            status=400,
            code="context_length_exceeded",
            param="input",
            hint=f"send less, or in the stack file, models.{model.name}: engine_args: {{n_ubatch: N}}",
        )
    found = _MEDIUM.search(body)
    if found is None:
        return None
    medium = found[1].decode()
    return GatewayError(
        f"the model {model.name!r} reads no {medium}, and the request holds one",
        status=400,
        code="unsupported_content",
        param="messages",
        hint="send text only, or ask a model that can",
    )
