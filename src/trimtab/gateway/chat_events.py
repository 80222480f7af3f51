"""Pure. A chat's stream, however it is cut, as the few things that a translation tells apart."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Final, Literal

from trimtab.gateway.json_text import load_json
from trimtab.gateway.reasoning_form import read_thought
from trimtab.gateway.reasoning_stream import split_events

__all__ = ["ChatEvent", "ChatEvents", "ToolPiece", "read_answer", "read_choice"]

# One event of a chat; a longer one ends the translation.
_MAX_EVENT_BYTES: Final = 8 * 1024 * 1024
_DONE: Final = b"[DONE]"


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolPiece:
    """A piece of one tool call, which ``index`` tells from the others."""

    index: int
    call_id: str = ""
    name: str = ""
    arguments: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class ChatEvent:
    """One event: a ``piece`` of the answer, an ``error`` of whoever spoke, a ``comment``, or the end.

    Of several choices the first counts. ``finish`` is its finish reason, ``stop`` the word that ended it,
    where the engine tells.
    """

    kind: Literal["piece", "error", "comment", "done"]
    thought: str = ""
    text: str = ""
    tools: tuple[ToolPiece, ...] = ()
    finish: str | None = None
    stop: str | None = None
    usage: dict[str, Any] | None = None
    chat_id: str = ""
    created_s: int = 0
    error: dict[str, Any] = field(default_factory=dict)
    comment: bytes = b""


class ChatEvents:
    """Takes the bytes of a stream in order, gives its events as they become whole."""

    def __init__(self) -> None:
        self._held = b""
        self._is_over = False
        # Whether an event was too long to be read.
        self.is_broken = False

    def feed(self, data: bytes) -> list[ChatEvent]:
        """The events that are whole by now; none after an error or the end."""
        if self._is_over:
            return []
        held = self._held + data
        parts = split_events(held)
        self._held = b""
        if parts and not parts[-1].endswith((b"\n\n", b"\r\n\r\n")):
            self._held = parts.pop()
        events = []
        for part in parts:
            event = _read_event(part)
            if event is None or self._is_over:
                continue
            events.append(event)
            self._is_over = event.kind in {"done", "error"}
        if len(self._held) > _MAX_EVENT_BYTES:
            self._held, self._is_over, self.is_broken = b"", True, True
            text = f"one event of the engine's answer is longer than {_MAX_EVENT_BYTES:,} bytes"
            events.append(ChatEvent(kind="error", error={"message": text, "type": "server_error"}))
        return events


def _read_event(part: bytes) -> ChatEvent | None:
    lines = [line[5:].strip() for line in part.splitlines() if line.startswith(b"data:")]
    if not lines:
        return ChatEvent(kind="comment", comment=part) if part.startswith(b":") else None
    payload = b"\n".join(lines)
    if payload == _DONE:
        return ChatEvent(kind="done")
    try:
        document = load_json(payload)
    except ValueError:
        return None
    return _read_chunk(document) if isinstance(document, dict) else None


def _read_chunk(document: dict[str, Any]) -> ChatEvent:
    error = document.get("error")
    if error is not None:
        shaped = error if isinstance(error, dict) else {"message": str(error)}
        return ChatEvent(kind="error", error=shaped)
    usage, created_s = document.get("usage"), document.get("created")
    return ChatEvent(
        kind="piece",
        usage=usage if isinstance(usage, dict) else None,
        chat_id=str(document.get("id") or ""),
        created_s=created_s if isinstance(created_s, int) else 0,
        **read_choice(document, holder="delta"),
    )


def read_answer(body: bytes) -> dict[str, Any]:
    """A whole answer of a chat; ValueError where it is none."""
    document = load_json(body)
    choices = document.get("choices") if isinstance(document, dict) else None
    if not isinstance(choices, list) or not any(isinstance(choice, dict) for choice in choices):
        raise ValueError("it is no object with choices")
    answer: dict[str, Any] = document
    return answer


def read_choice(document: dict[str, Any], *, holder: str) -> dict[str, Any]:
    """The first choice of a chunk (``holder`` "delta") or a whole answer ("message") as an event's fields."""
    choices = document.get("choices")
    entries = [entry for entry in choices if isinstance(entry, dict)] if isinstance(choices, list) else []
    entry = next((entry for entry in entries if entry.get("index", 0) == 0), None)
    if entry is None:
        return {}
    held = entry.get(holder)
    delta = held if isinstance(held, dict) else {}
    content, finish, stop = delta.get("content"), entry.get("finish_reason"), entry.get("stop_reason")
    return {
        "thought": read_thought(delta),
        "text": content if isinstance(content, str) else "",
        "tools": _read_tools(delta.get("tool_calls")),
        "finish": finish if isinstance(finish, str) else None,
        "stop": stop if isinstance(stop, str) else None,
    }


def _read_tools(calls: Any) -> tuple[ToolPiece, ...]:
    if not isinstance(calls, list):
        return ()
    pieces = []
    for place, call in enumerate(calls):
        if not isinstance(call, dict):
            continue
        index, function = call.get("index"), call.get("function")
        inner = function if isinstance(function, dict) else {}
        pieces.append(
            ToolPiece(
                index=index if isinstance(index, int) else place,
                call_id=_text(call.get("id")),
                name=_text(inner.get("name")),
                arguments=_text(inner.get("arguments")),
            )
        )
    return tuple(pieces)


def _text(value: Any) -> str:
    return value if isinstance(value, str) else ""
