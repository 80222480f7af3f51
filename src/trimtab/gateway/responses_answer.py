"""Pure. A chat's answer as a response of OpenAI's Responses protocol: whole, and event by event."""

from __future__ import annotations

import json
from typing import Any, Final

from trimtab.gateway.answer_blocks import BlockKind, BlockOrder, BlockStep
from trimtab.gateway.chat_events import ChatEvent, ToolPiece, read_answer, read_choice
from trimtab.gateway.chat_translation import ChatTranslation

__all__ = ["ResponseStream", "chat_to_response"]

# Fields of the request that the answer repeats, and what they are where it does not say.
_ECHOED: Final[dict[str, Any]] = {
    "instructions": None,
    "max_output_tokens": None,
    "metadata": {},
    "parallel_tool_calls": True,
    "temperature": None,
    "text": {"format": {"type": "text"}},
    "tool_choice": "auto",
    "tools": [],
    "top_p": None,
    "truncation": "disabled",
    "user": None,
}
_UNFINISHED: Final = {"length": "max_output_tokens", "content_filter": "content_filter"}
_PREFIXES: Final[dict[BlockKind, str]] = {"thought": "rs", "text": "msg", "tool": "fc"}


def chat_to_response(body: bytes, *, asked: dict[str, Any], model: str) -> bytes:
    """The whole answer to the request ``asked``; ``model`` is the name it was asked by."""
    document = read_answer(body)
    event = ChatEvent(kind="piece", **read_choice(document, holder="message"))
    suffix = _suffix(str(document.get("id") or ""))
    order = BlockOrder()
    items: list[dict[str, Any]] = []
    texts: list[str] = []
    for step in (*order.add(event), *order.close()):
        if step.step == "open":
            items.append(_new_item(step, suffix, len(items)))
            texts.append("")
        elif step.step == "grow":
            texts[-1] += step.text
        else:
            items[-1] = _fill(items[-1], texts[-1], "completed")
    response = _new_response(asked, model, suffix, created_s=document.get("created"))
    return json.dumps(_end_response(response, items, event.finish, document.get("usage"))).encode()


class ResponseStream(ChatTranslation):
    """Translates a chat's stream; any cut of it gives the same events, numbered from 0."""

    def __init__(self, *, asked: dict[str, Any], model: str) -> None:
        super().__init__()
        self._asked = asked
        self._model = model
        self._number = 0
        self._response: dict[str, Any] | None = None
        self._suffix = ""
        self._items: list[dict[str, Any]] = []
        self._text: list[str] = []

    def _begin(self, event: ChatEvent) -> bytes:
        if self._response is not None:
            return b""
        self._suffix = _suffix(event.chat_id)
        self._response = _new_response(self._asked, self._model, self._suffix, created_s=event.created_s)
        return self._event("response.created", response=self._response) + self._event(
            "response.in_progress", response=self._response
        )

    def _open(self, step: BlockStep) -> bytes:
        item = _new_item(step, self._suffix, len(self._items))
        self._items.append(item)
        self._text = []
        told = self._event("response.output_item.added", output_index=self._at, item=item)
        if step.block == "tool":
            return told
        return told + self._part("response.content_part.added", _part(step.block, ""))

    def _grow(self, step: BlockStep) -> bytes:
        self._text.append(step.text)
        return self._of_item(f"{_WORDS[step.block]}.delta", step.block, delta=step.text)

    def _close(self, step: BlockStep) -> bytes:
        text = "".join(self._text)
        item = self._items[-1] = _fill(self._items[-1], text, "completed")
        if step.block == "tool":
            told = self._of_item(f"{_WORDS['tool']}.done", "tool", arguments=text, name=item["name"])
        else:
            told = self._of_item(f"{_WORDS[step.block]}.done", step.block, text=text)
            told += self._part("response.content_part.done", _part(step.block, text))
        return told + self._event("response.output_item.done", output_index=self._at, item=item)

    def _finish(self) -> bytes:
        response = _end_response(self._response or {}, self._items, self._last.finish, self._usage)
        return self._event(f"response.{response['status']}", response=response)

    def _fail(self, event: ChatEvent) -> bytes:
        """The error as an event, and the response that failed with it."""
        message = str(event.error.get("message") or "the engine failed")
        code = str(event.error.get("code") or "server_error")
        told = self._begin(event) + self._event("error", code=code, message=message, param=None)
        error = {"code": "server_error", "message": message}
        failed = {"status": "failed", "error": error, "output": self._items}
        return told + self._event("response.failed", response=(self._response or {}) | failed)

    @property
    def _at(self) -> int:
        return len(self._items) - 1

    def _part(self, kind: str, part: dict[str, Any]) -> bytes:
        item_id = self._items[-1]["id"]
        return self._event(kind, item_id=item_id, output_index=self._at, content_index=0, part=part)

    def _of_item(self, kind: str, block: BlockKind, **fields: Any) -> bytes:
        place: dict[str, Any] = {"item_id": self._items[-1]["id"], "output_index": self._at}
        if block != "tool":
            place["content_index"] = 0
        if block == "text":
            place["logprobs"] = []
        return self._event(kind, **place, **fields)

    def _event(self, kind: str, **fields: Any) -> bytes:
        document = {"type": kind, "sequence_number": self._number} | fields
        self._number += 1
        return f"event: {kind}\ndata: {json.dumps(document)}\n\n".encode()


_WORDS: Final[dict[BlockKind, str]] = {
    "thought": "response.reasoning_text",
    "text": "response.output_text",
    "tool": "response.function_call_arguments",
}


def _new_response(asked: dict[str, Any], model: str, suffix: str, *, created_s: Any) -> dict[str, Any]:
    echoed = {name: default if asked.get(name) is None else asked[name] for name, default in _ECHOED.items()}
    reasoning = asked.get("reasoning")
    return echoed | {
        "id": f"resp_{suffix}",
        "object": "response",
        "created_at": created_s if isinstance(created_s, int) else 0,
        "status": "in_progress",
        "model": model,
        "output": [],
        "error": None,
        "incomplete_details": None,
        "background": False,
        "previous_response_id": None,
        "reasoning": {"effort": None, "summary": None} | (reasoning if isinstance(reasoning, dict) else {}),
        "store": False,
        "usage": None,
    }


def _end_response(
    response: dict[str, Any], items: list[dict[str, Any]], finish: str | None, usage: Any
) -> dict[str, Any]:
    reason = _UNFINISHED.get(finish or "")
    if reason is not None and items:
        items = [*items[:-1], items[-1] | {"status": "incomplete"}]
    return response | {
        "status": "completed" if reason is None else "incomplete",
        "incomplete_details": None if reason is None else {"reason": reason},
        "output": items,
        "usage": _usage(usage),
    }


def _new_item(step: BlockStep, suffix: str, index: int) -> dict[str, Any]:
    item: dict[str, Any] = {"id": f"{_PREFIXES[step.block]}_{suffix}_{index}", "status": "in_progress"}
    if step.block == "thought":
        return item | {"type": "reasoning", "summary": [], "content": []}
    if step.block == "text":
        return item | {"type": "message", "role": "assistant", "content": []}
    call = step.call or ToolPiece(index=0)
    # An engine that names no call would make all results answer the same one.
    call_id = call.call_id or f"call_{suffix}_{index}"
    return item | {"type": "function_call", "call_id": call_id, "name": call.name, "arguments": ""}


def _fill(item: dict[str, Any], text: str, status: str) -> dict[str, Any]:
    if item["type"] == "function_call":
        return item | {"arguments": text, "status": status}
    block: BlockKind = "thought" if item["type"] == "reasoning" else "text"
    return item | {"content": [_part(block, text)], "status": status}


def _part(block: BlockKind, text: str) -> dict[str, Any]:
    if block == "thought":
        return {"type": "reasoning_text", "text": text}
    return {"type": "output_text", "text": text, "annotations": [], "logprobs": []}


def _suffix(chat_id: str) -> str:
    return chat_id.removeprefix("chatcmpl-") or "0"


def _usage(usage: Any) -> dict[str, Any] | None:
    if not isinstance(usage, dict):
        return None
    prompt, completion = _count(usage, "prompt_tokens"), _count(usage, "completion_tokens")
    cached = _count(usage.get("prompt_tokens_details"), "cached_tokens")
    thought = _count(usage.get("completion_tokens_details"), "reasoning_tokens")
    return {
        "input_tokens": prompt,
        "input_tokens_details": {"cached_tokens": cached, "cache_write_tokens": 0},
        "output_tokens": completion,
        "output_tokens_details": {"reasoning_tokens": thought},
        "total_tokens": prompt + completion,
    }


def _count(holder: Any, name: str) -> int:
    value = holder.get(name) if isinstance(holder, dict) else None
    return value if isinstance(value, int) else 0
