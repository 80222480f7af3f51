"""Pure. Whether an engine's whole answer is one, and whose fault an error of it is."""

from __future__ import annotations

import re
from typing import Any, Final

from trimtab.core.state import ServedModel
from trimtab.errors import GatewayError
from trimtab.gateway.endpoints import GENERATING_PATHS
from trimtab.gateway.external_listing import EXTERNAL_ENGINE
from trimtab.gateway.request import find_tools_fault
from trimtab.gateway.upstream_key import check_upstream_refusal

__all__ = ["check_answer", "find_request_fault"]

# llama.cpp's words for what it answers 500 to (checked with xllamacpp 2026.10.11549).
_TOO_LONG: Final = re.compile(rb"input \((\d+) tokens\) is too large.*?\(current batch size: (\d+)\)")
_MEDIUM: Final = re.compile(rb"(image|audio|video) input is not supported")


def check_answer(model: ServedModel, status: int, body: bytes, *, path: str, has_key: bool) -> None:
    """GatewayError (502) where it is neither an answer nor an error that the client can use."""
    check_upstream_refusal(model, status, has_key=has_key)
    if 400 <= status <= 599 or (status == 200 and body and _may_be_one(body, path)):
        return
    if status == 200:
        what = (
            "200 with what is no answer: it is no object with choices" if body else "200 with an empty body"
        )
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
    """Whether a whole answer has what every client looks for first; an error inside a 200 is the client's."""
    if path not in GENERATING_PATHS:
        return True
    is_object = body[:1] == b"{" or body.lstrip()[:1] == b"{"
    return is_object and (b'"choices"' in body or b'"error"' in body)


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
