"""Pure. A tool that must be called, of llama.cpp.

Its ``tool_choice: required`` is no guarantee: its grammar lets any text come before the call (its
``common/chat-auto-parser-generator.cpp``), and a template that never mentions tools loses them without a
word. A JSON schema it does enforce, of every model. So the call is asked for as JSON, and made a call of
in the answer.
"""

from __future__ import annotations

import json
import re
from typing import Any, Final

from trimtab.gateway.assemble import MAX_CHOICES, decode_events
from trimtab.gateway.call_schema import build_call_schema
from trimtab.gateway.endpoints import CHAT
from trimtab.gateway.error_body import render_error_event
from trimtab.gateway.event_cut import split_whole_events
from trimtab.gateway.json_text import load_json
from trimtab.gateway.passage import Passage
from trimtab.gateway.stream_end import DONE_EVENT
from trimtab.gateway.tool_choice import narrow_tools

__all__ = ["TOOL_MARK", "CallStream", "may_force_call", "must_call", "open_forced_call", "probe_tools"]

# A tool of this name is in a prompt only where the template writes tools at all.
TOOL_MARK: Final = "trimtab_marks_tools"
_DEMAND: Final = re.compile(rb'"tool_choice"\s*:\s*(?:"required"|\{)')
# Ways to say of what shape the text must be, which come before the call.
_OWN_SHAPES: Final = ("response_format", "grammar", "json_schema")
_FREE: Final = {"type": "text"}  # the default, said aloud
_TAKEN_OUT: Final = ("tool_choice", "parallel_tool_calls")
_ASK: Final = (
    "Call one of these functions now, whatever was said. Answer with one JSON object and nothing else,"
    " its name and its arguments: "
)
# Sent where nothing can be told yet, so that nobody takes the stream for dead.
_HELD: Final = b": call\n\n"
_MAX_EVENT_BYTES: Final = 8 * 1024 * 1024
_DONE_LINES: Final = (b"data: [DONE]", b"data:[DONE]")
# Of a chunk, what belongs to the whole answer.
_SHARED: Final = ("id", "object", "created", "model", "system_fingerprint")
# The beginning of a call, once its name is whole; what follows are the arguments.
_CUT_CALL: Final = re.compile(
    r'\s*\{\s*"name"\s*:\s*("(?:[^"\\]|\\.)*")\s*(?:,\s*(?:"arguments"\s*:\s*(.*))?)?', re.DOTALL
)


def may_force_call(body: bytes) -> bool:
    """Whether a request is worth a closer look; hardly any is."""
    # The word first: looking for it alone takes a tenth, and hardly any body has it.
    return b'"tool_choice"' in body and _DEMAND.search(body) is not None


def must_call(document: dict[str, Any]) -> dict[str, Any] | None:
    """The request with the tools of which one must be called; None where none must."""
    narrowed = narrow_tools(document, engine="llama_cpp")
    tools = narrowed.get("tools")
    if narrowed.get("tool_choice") != "required" or not isinstance(tools, list) or not tools:
        return None
    if any(narrowed.get(name) is not None and narrowed[name] != _FREE for name in _OWN_SHAPES):
        return None
    return narrowed if all(_function_of(tool) is not None for tool in tools) else None


def probe_tools(model: str) -> dict[str, Any]:
    """What to have llama.cpp write as a prompt, to see whether the template writes tools."""
    tool = {"type": "function", "function": {"name": TOOL_MARK, "parameters": {"type": "object"}}}
    return {"model": model, "messages": [{"role": "user", "content": "Hi"}], "tools": [tool]}


def open_forced_call(narrowed: dict[str, Any], *, is_told: bool) -> Passage | None:
    """The request as one for JSON; ``is_told``: the template itself writes the tools.

    None for tools of which no schema can be made: what becomes of them is the engine's to say.
    """
    functions = [function for tool in narrowed["tools"] if (function := _function_of(tool)) is not None]
    schema = build_call_schema(functions)
    if schema is None:
        return None
    rest = {name: value for name, value in narrowed.items() if name not in _TAKEN_OUT}
    form = {"type": "json_schema", "json_schema": {"name": "call", "schema": schema}}
    ask = {"role": "system", "content": _ASK + json.dumps(functions)}
    messages = narrowed.get("messages")
    told = messages if is_told or not isinstance(messages, list) else _with_system(messages, ask)
    return Passage(
        path=CHAT,
        body=json.dumps(rest | {"messages": told, "response_format": form}).encode(),
        translate=_translate,
        repair="tool-choice",
        stream=CallStream() if narrowed.get("stream") else None,
    )


def _with_system(messages: list[Any], ask: dict[str, Any]) -> list[Any]:
    """One system message at the beginning: templates know of no second one."""
    first = messages[0] if messages else None
    if isinstance(first, dict) and first.get("role") == "system" and isinstance(first.get("content"), str):
        return [first | {"content": f"{first['content']}\n\n{ask['content']}"}, *messages[1:]]
    return [ask, *messages]


def _function_of(tool: Any) -> dict[str, Any] | None:
    function = tool.get("function") if isinstance(tool, dict) else None
    if not isinstance(function, dict) or not isinstance(function.get("name"), str):
        return None
    return function if isinstance(function.get("parameters"), dict | None) else None


def _read_call(text: str, answer_id: Any, index: int) -> dict[str, Any] | None:
    """The call that a whole answer's text is; None where it was cut short."""
    try:
        found = load_json(text.encode("utf-8", "surrogatepass"))
    except ValueError:
        return None
    if not isinstance(found, dict) or not isinstance(found.get("name"), str):
        return None
    return _write_call(found["name"], json.dumps(found.get("arguments", {})), answer_id, index)


def _read_cut_call(text: str, answer_id: Any, index: int) -> dict[str, Any] | None:
    """The call that a text begins, its arguments as far as they came; None without a whole name."""
    found = _CUT_CALL.match(text)
    try:
        name = load_json(found[1].encode("utf-8", "surrogatepass")) if found else None
    except ValueError:
        return None
    return _write_call(name, (found[2] or "").rstrip(), answer_id, index) if found and name else None


def _write_call(name: str, arguments: str, answer_id: Any, index: int) -> dict[str, Any]:
    call_id = f"call_{str(answer_id).removeprefix('chatcmpl-')}_{index}"
    return {"id": call_id, "type": "function", "function": {"name": name, "arguments": arguments}}


def _translate(body: bytes) -> bytes:
    """The answer with its text as a call, cut short where the text was."""
    answer = load_json(body)
    for index, choice in enumerate(answer["choices"]):
        message = choice["message"]
        text = message.get("content") or ""
        call = _read_call(text, answer.get("id"), index)
        if call is not None:
            choice["finish_reason"] = "tool_calls"
        elif text and choice.get("finish_reason") == "length":
            call = _read_cut_call(text, answer.get("id"), index)
            message["content"] = None
        if call is not None:
            message |= {"content": None, "tool_calls": [call]}
    return json.dumps(answer).encode()


class CallStream:
    """The same for a stream: a call is told when it is whole, or will not become so."""

    def __init__(self) -> None:
        self._held = b""
        self._texts: dict[int, list[str]] = {}
        self._shared: dict[str, Any] = {}
        self._is_over = False
        self.is_broken = False

    def feed(self, data: bytes) -> bytes:
        """What can be told by now; nothing after the end."""
        if self._is_over:
            return b""
        whole, self._held = split_whole_events(self._held + data, max_held_bytes=_MAX_EVENT_BYTES)
        if not whole:
            return b""
        try:
            told = b"".join(self._tell(document) for document in decode_events(whole))
        except ValueError:
            self.is_broken = self._is_over = True
            return _render_error("an event of the engine cannot be read") + DONE_EVENT
        if any(line.rstrip() in _DONE_LINES for line in whole.split(b"\n")):
            self._is_over = True
            return told + self._tell_left() + DONE_EVENT
        return told or _HELD

    def end(self) -> bytes:
        """What an engine left that ended without a word."""
        return b"" if self._is_over else self._tell_left()

    def _tell_left(self) -> bytes:
        """The calls of which nobody said that they are over; an error where one is not whole."""
        texts, self._texts = self._texts, {}
        told = b""
        for index, parts in texts.items():
            call = _read_call("".join(parts), self._shared.get("id"), index)
            if call is None:
                return told + _render_error("the engine ended inside the call of a tool")
            delta = {"tool_calls": [{"index": 0} | call]}
            choice = {"index": index, "delta": delta, "finish_reason": "tool_calls"}
            told += _render_chunk(self._shared | {"choices": [choice]})
        return told

    def _tell(self, chunk: dict[str, Any]) -> bytes:
        if chunk.get("error") is not None:
            self._texts.clear()
        self._shared |= {name: chunk[name] for name in _SHARED if name in chunk}
        choices = chunk.get("choices")
        if isinstance(choices, list) and choices:
            kept = [choice for choice in choices if self._keep(choice, chunk.get("id"))]
            if not kept:
                return b""
            chunk = chunk | {"choices": kept}
        return _render_chunk(chunk)

    def _keep(self, choice: Any, answer_id: Any) -> bool:
        """Whether the choice has something to tell, changed in place."""
        if not isinstance(choice, dict):
            return True
        index, delta = choice.get("index", 0), choice.get("delta")
        if not isinstance(index, int) or not 0 <= index < MAX_CHOICES:
            raise ValueError(f"an index is {str(index)[:40]}")
        if not isinstance(delta, dict):
            delta = choice["delta"] = {}
        if isinstance(delta.get("content"), str):
            self._texts.setdefault(index, []).append(delta.pop("content"))
        finish_reason = choice.get("finish_reason")
        if finish_reason is None:
            return bool(delta)
        text = "".join(self._texts.pop(index, []))
        call = _read_call(text, answer_id, index)
        if call is not None:
            choice["finish_reason"] = "tool_calls"
        elif finish_reason == "length":
            call = _read_cut_call(text, answer_id, index)
        elif text:
            delta["content"] = text
        if call is not None:
            delta["tool_calls"] = [{"index": 0} | call]
        return True


def _render_chunk(chunk: dict[str, Any]) -> bytes:
    return b"data: " + json.dumps(chunk).encode() + b"\n\n"


def _render_error(message: str) -> bytes:
    return render_error_event(message, code="engine_answer", origin="gateway")
