"""Pure. Errors as clients of the OpenAI protocol expect them, with a mark of who spoke."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import Final, Literal, TypeAlias

from trimtab.errors import GatewayError
from trimtab.gateway.json_text import load_json

__all__ = [
    "ORIGIN_HEADER",
    "Origin",
    "name_fields",
    "render_error",
    "render_error_event",
    "render_gateway_error",
    "shape_engine_error",
]

Origin: TypeAlias = Literal["gateway", "engine"]

ORIGIN_HEADER: Final = "x-trimtab-origin"
# Status → the word OpenAI's API uses for it in ``error.type``.
_TYPES: Final[dict[int, str]] = {
    400: "invalid_request_error",
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    405: "invalid_request_error",
    408: "timeout_error",
    413: "invalid_request_error",
    415: "invalid_request_error",
    429: "rate_limit_error",
    503: "service_unavailable_error",
}
# An engine's own error text longer than this is cut: it may be a page of HTML.
_MAX_FOREIGN_CHARS: Final = 2000


def render_error(
    message: str, *, status: int, code: str | None, param: str | None = None, origin: Origin
) -> bytes:
    """The JSON body of one error."""
    error = {
        "message": message,
        "type": _TYPES.get(status, "server_error" if status >= 500 else "invalid_request_error"),
        "param": param,
        "code": code,
        "origin": origin,
    }
    return json.dumps({"error": error}).encode()


def render_gateway_error(error: GatewayError) -> bytes:
    """The body for a request the gateway refuses; the hint becomes part of the message."""
    message = f"{error.message}; {error.hint}" if error.hint else error.message
    return render_error(message, status=error.status, code=error.code, param=error.param, origin="gateway")


def render_error_event(message: str, *, code: str, origin: Origin) -> bytes:
    """One server-sent event that carries an error inside a stream whose status is already 200."""
    body = render_error(message, status=502, code=code, origin=origin)
    return b"data: " + body + b"\n\n"


def shape_engine_error(body: bytes, *, status: int) -> bytes:
    """An engine's error body in the one shape: its own fields and text kept, the mark added."""
    try:
        document = load_json(body)
    except ValueError:
        document = None
    error = document.get("error") if isinstance(document, dict) else None
    if isinstance(error, dict) and isinstance(error.get("message"), str):
        shaped = {"type": _TYPES.get(status, "server_error"), "param": None, "code": None} | error
        return json.dumps({"error": shaped | {"origin": "engine"}}).encode()
    text = body.decode("utf-8", "replace").strip()[:_MAX_FOREIGN_CHARS]
    if isinstance(error, str):
        text = error
    elif isinstance(document, dict) and isinstance(document.get("detail"), str):
        text = document["detail"]
    return render_error(text or f"the engine answered {status}", status=status, code=None, origin="engine")


def name_fields(body: bytes, names: Mapping[str, str]) -> bytes:
    """An error with the fields by the client's own ``names``; the same bytes where it names none of them.

    In its text only names that are no words of a sentence are looked for.
    """
    try:
        document = load_json(body)
    except ValueError:
        return body
    error = document.get("error") if isinstance(document, dict) else None
    if not isinstance(error, dict):
        return body
    named = dict(error)
    message, param = error.get("message"), error.get("param")
    for name, own in names.items():
        if isinstance(param, str) and re.match(rf"{name}(?!\w)", param):
            named["param"] = own + param[len(name) :]
        if isinstance(message, str) and "_" in name:
            message = named["message"] = re.sub(rf"(?<![\w.]){name}(?!\w)", own, message)
    return body if named == error else json.dumps(document | {"error": named}).encode()
