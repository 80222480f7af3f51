"""Pure. A chat's answer as a message of Anthropic's protocol: whole, and event by event."""

from __future__ import annotations

import json
from typing import Any, Final

from trimtab.gateway.answer_blocks import BlockKind, BlockStep
from trimtab.gateway.chat_events import ChatEvent, ToolPiece, read_answer, read_choice
from trimtab.gateway.chat_translation import ChatTranslation
from trimtab.gateway.json_text import load_json

__all__ = ["MessageStream", "chat_to_message", "render_message_error", "shape_message_error"]

_STOPS: Final = {"length": "max_tokens", "tool_calls": "tool_use", "content_filter": "refusal"}
_ERROR_TYPES: Final[dict[int, str]] = {
    400: "invalid_request_error",
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    413: "request_too_large",
    429: "rate_limit_error",
    503: "overloaded_error",
    504: "timeout_error",
}


_DELTAS: Final[dict[BlockKind, tuple[str, str]]] = {
    "thought": ("thinking_delta", "thinking"),
    "text": ("text_delta", "text"),
    "tool": ("input_json_delta", "partial_json"),
}
# What an error inside a stream says of itself.
_STATUSES: Final = {
    "invalid_request_error": 400,
    "rate_limit_error": 429,
    "service_unavailable_error": 503,
}


def chat_to_message(body: bytes, *, model: str) -> bytes:
    """The whole answer; ``model`` is the name it was asked by."""
    document = read_answer(body)
    choice = ChatEvent(kind="piece", **read_choice(document, holder="message"))
    message_id = _message_id(str(document.get("id") or ""))
    content: list[dict[str, Any]] = []
    if choice.thought:
        content.append({"type": "thinking", "thinking": choice.thought, "signature": ""})
    if choice.text:
        content.append({"type": "text", "text": choice.text})
    content += [_tool_block(piece, message_id) | {"input": _read_input(piece)} for piece in choice.tools]
    message = _message(message_id, model) | _stop(choice, has_tools=bool(choice.tools))
    return json.dumps(message | {"content": content, "usage": _usage(document.get("usage"))}).encode()


def shape_message_error(body: bytes, *, status: int, request_id: str) -> bytes:
    """An error body of the gateway as Anthropic's clients read it."""
    try:
        error = load_json(body)["error"]
    except (ValueError, KeyError, TypeError, RecursionError):
        error = {}
    return render_message_error(error, status=status, request_id=request_id)


def render_message_error(error: dict[str, Any], *, status: int, request_id: str = "") -> bytes:
    """The error as a document; what the gateway told besides stays beside it."""
    kind = _ERROR_TYPES.get(status, "api_error" if status >= 500 else "invalid_request_error")
    more = {name: error[name] for name in ("code", "param", "origin") if error.get(name) is not None}
    told = {"type": kind, "message": str(error.get("message") or f"status {status}")} | more
    document: dict[str, Any] = {"type": "error", "error": told}
    return json.dumps(document | ({"request_id": request_id} if request_id else {})).encode()


class MessageStream(ChatTranslation):
    """Translates a chat's stream; any cut of it gives the same events."""

    def __init__(self, *, model: str) -> None:
        super().__init__()
        self._model = model
        self._has_begun = False
        self._num_blocks = 0
        self._has_tools = False
        self._message_id = ""

    def _comment(self, event: ChatEvent) -> bytes:
        # Anthropic's own keep-alive is an event, but none may come before the message.
        return _event("ping", {}) if self._has_begun else event.comment

    def _fail(self, event: ChatEvent) -> bytes:
        told = render_message_error(event.error, status=_STATUSES.get(str(event.error.get("type")), 500))
        return b"event: error\ndata: " + told + b"\n\n"

    def _begin(self, event: ChatEvent) -> bytes:
        if self._has_begun:
            return b""
        self._has_begun = True
        self._message_id = _message_id(event.chat_id)
        usage = {"input_tokens": 0, "output_tokens": 0}
        message = _message(self._message_id, self._model) | {"content": [], "usage": usage}
        return _event("message_start", {"message": message})

    def _open(self, step: BlockStep) -> bytes:
        block: dict[str, Any] = {"type": "text", "text": ""}
        if step.block == "thought":
            block = {"type": "thinking", "thinking": "", "signature": ""}
        elif step.call is not None:
            self._has_tools = True
            block = _tool_block(step.call, self._message_id)
        return _event("content_block_start", {"index": self._num_blocks, "content_block": block})

    def _grow(self, step: BlockStep) -> bytes:
        kind, field = _DELTAS[step.block]
        return self._delta({"type": kind, field: step.text})

    def _delta(self, delta: dict[str, Any]) -> bytes:
        return _event("content_block_delta", {"index": self._num_blocks, "delta": delta})

    def _close(self, step: BlockStep) -> bytes:
        signed = b""
        if step.block == "thought":
            signed = self._delta({"type": "signature_delta", "signature": ""})
        told = signed + _event("content_block_stop", {"index": self._num_blocks})
        self._num_blocks += 1
        return told

    def _finish(self) -> bytes:
        stop = _stop(self._last, has_tools=self._has_tools)
        ended = _event("message_delta", {"delta": stop, "usage": _usage(self._usage)})
        return ended + _event("message_stop", {})


def _event(kind: str, fields: dict[str, Any]) -> bytes:
    return f"event: {kind}\ndata: {json.dumps({'type': kind} | fields)}\n\n".encode()


def _message(message_id: str, model: str) -> dict[str, Any]:
    return {
        "id": message_id,
        "type": "message",
        "role": "assistant",
        "model": model,
        "content": [],
        "stop_reason": None,
        "stop_sequence": None,
    }


def _message_id(chat_id: str) -> str:
    return f"msg_{chat_id.removeprefix('chatcmpl-') or '0'}"


def _tool_block(piece: ToolPiece, message_id: str) -> dict[str, Any]:
    # An engine that names no call would make all results answer the same one.
    call_id = piece.call_id or f"toolu_{message_id.removeprefix('msg_')}_{piece.index}"
    return {"type": "tool_use", "id": call_id, "name": piece.name, "input": {}}


def _read_input(piece: ToolPiece) -> dict[str, Any]:
    """The arguments as the object they are; what an engine left unfinished is kept as its text."""
    try:
        found = load_json(piece.arguments or "{}")
    except ValueError:
        found = None
    return found if isinstance(found, dict) else {"unreadable_arguments": piece.arguments}


def _stop(last: ChatEvent, *, has_tools: bool) -> dict[str, Any]:
    if last.finish == "stop" and has_tools:
        return {"stop_reason": "tool_use", "stop_sequence": None}
    if last.finish == "stop" and last.stop is not None:
        return {"stop_reason": "stop_sequence", "stop_sequence": last.stop}
    return {"stop_reason": _STOPS.get(last.finish or "", "end_turn"), "stop_sequence": None}


def _usage(usage: Any) -> dict[str, Any]:
    """Anthropic's count leaves out of ``input_tokens`` what came from the cache."""
    found = usage if isinstance(usage, dict) else {}
    details = found.get("prompt_tokens_details")
    cached = _count(details.get("cached_tokens")) if isinstance(details, dict) else 0
    return {
        "input_tokens": max(0, _count(found.get("prompt_tokens")) - cached),
        "cache_creation_input_tokens": 0,
        "cache_read_input_tokens": cached,
        "output_tokens": _count(found.get("completion_tokens")),
    }


def _count(value: Any) -> int:
    return value if isinstance(value, int) else 0
