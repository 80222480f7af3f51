"""Pure. Reads the few fields of a request body that the gateway acts on; the rest stays bytes."""

from __future__ import annotations

import json
from typing import Any, Final, NamedTuple

from trimtab.errors import GatewayError
from trimtab.gateway.json_text import decode_object

__all__ = ["RequestFacts", "decode_request", "find_tools_fault", "read_facts", "replace_fields"]

_LIMIT_FIELDS: Final = ("max_completion_tokens", "max_tokens")


class RequestFacts(NamedTuple):
    """What routing needs to know of one request. A tuple: one is made per request.

    ``model`` is None when the client named none. ``max_tokens`` is the smallest limit the client
    set, None when it set none; ``has_uncounted_input`` says that the prompt's tokens cannot be
    bounded by the size of the body (tools are rendered by the template, images are no text).
    ``document`` is the whole decoded body, for the rare request that must be changed or counted.
    """

    model: str | None
    is_stream: bool
    max_tokens: int | None
    has_uncounted_input: bool
    document: dict[str, Any]


def decode_request(body: bytes) -> RequestFacts:
    """The facts of a JSON body; GatewayError (400) says what is wrong with it and where."""
    return read_facts(decode_object(body))


def read_facts(document: dict[str, Any]) -> RequestFacts:
    """The facts of a decoded body; GatewayError (400) for a field with no legal value."""
    model = document.get("model")
    if model is not None and not isinstance(model, str):
        raise _bad_field("model", model, "a string")
    stream = document.get("stream")
    if stream is not None and not isinstance(stream, bool):
        raise _bad_field("stream", stream, "true or false")
    max_tokens = None
    for field in _LIMIT_FIELDS:
        if document.get(field) is not None:
            limit = _limit(document, field)
            max_tokens = limit if max_tokens is None else min(limit, max_tokens)
    return RequestFacts(
        model=model or None,
        is_stream=bool(stream),
        max_tokens=max_tokens,
        has_uncounted_input=bool(document.get("tools")) or _has_parts(document.get("messages")),
        document=document,
    )


def replace_fields(document: dict[str, Any], *, model: str | None, max_tokens: int | None) -> bytes:
    """The body again with another model name and, where set, a lower token limit."""
    changed = dict(document)
    if model is not None:
        changed["model"] = model
    if max_tokens is not None:
        for field in _LIMIT_FIELDS:
            if changed.get(field) is not None:
                changed[field] = max_tokens
    # Escaped to ASCII: a lone surrogate, legal in JSON, has no UTF-8.
    return json.dumps(changed).encode()


def find_tools_fault(document: dict[str, Any]) -> str | None:
    """What is wrong with ``tools``, where it is, in one sentence; None when their shape is right.

    For engines that answer 500 to it, as llama.cpp does (checked with xllamacpp 2026.10.11549).
    """
    tools = document.get("tools")
    if tools is None:
        return None
    if not isinstance(tools, list):
        return f"tools is {_kind(tools)}, not a list"
    faults = (_tool_fault(index, tool) for index, tool in enumerate(tools))
    return next((fault for fault in faults if fault is not None), None)


def _tool_fault(index: int, tool: Any) -> str | None:
    if not isinstance(tool, dict) or not isinstance(tool.get("type"), str):
        return f'tools[{index}] has no type such as "function"'
    function = tool.get("function")
    if not isinstance(function, dict):
        return f"tools[{index}] has no object named function"
    if not isinstance(function.get("name"), str):
        return f"tools[{index}].function.name is no string"
    if not isinstance(function.get("parameters", {}), dict):
        return f"tools[{index}].function.parameters is no object"
    return None


def _limit(document: dict[str, Any], field: str) -> int:
    value = document[field]
    if isinstance(value, bool) or not isinstance(value, int) or value < 1:
        raise _bad_field(field, value, "a whole number from 1")
    return value


def _has_parts(messages: Any) -> bool:
    """Whether any message holds something else than text (images, audio)."""
    if not isinstance(messages, list):
        return False
    for message in messages:
        content = message.get("content") if isinstance(message, dict) else None
        if isinstance(content, list) and any(
            not isinstance(part, dict) or part.get("type") != "text" for part in content
        ):
            return True
    return False


def _bad_field(field: str, value: Any, legal: str) -> GatewayError:
    try:
        shown = json.dumps(value, default=str)
    except (RecursionError, ValueError):
        shown = "nested deeply"
    if len(shown) > 60:
        shown = shown[:57] + "..."
    return GatewayError(
        f"{field} is {shown}; legal is {legal}", status=400, code="invalid_value", param=field
    )


def _kind(value: Any) -> str:
    kinds = {list: "a list", str: "a string", bool: "a boolean", type(None): "null", dict: "an object"}
    return kinds.get(type(value), "a number")
