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

from trimtab.errors import GatewayError
from trimtab.gateway.assemble import decode_events
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
_DEFINITIONS: Final = ("$defs", "definitions")
_TAKEN_OUT: Final = ("tool_choice", "parallel_tool_calls")
_ASK: Final = (
    "Call one of these functions now, whatever was said. Answer with one JSON object and nothing else,"
    " its name and its arguments: "
)
# Sent where nothing can be told yet, so that nobody takes the stream for dead.
_HELD: Final = b": call\n\n"
_MAX_EVENT_BYTES: Final = 8 * 1024 * 1024


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
    if narrowed.get("response_format") is not None or narrowed.get("grammar") is not None:
        return None
    return narrowed if all(_function_of(tool) is not None for tool in tools) else None


def probe_tools(model: str) -> dict[str, Any]:
    """What to have llama.cpp write as a prompt, to see whether the template writes tools."""
    tool = {"type": "function", "function": {"name": TOOL_MARK, "parameters": {"type": "object"}}}
    return {"model": model, "messages": [{"role": "user", "content": "Hi"}], "tools": [tool]}


def open_forced_call(narrowed: dict[str, Any], *, is_told: bool) -> Passage:
    """The request as one for JSON; ``is_told``: the template itself writes the tools.

    GatewayError (501) for parameters that one schema cannot hold.
    """
    functions = [function for tool in narrowed["tools"] if (function := _function_of(tool)) is not None]
    schema = _schema_of(functions)
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
    return function if isinstance(function.get("parameters", {}), dict) else None


def _schema_of(functions: list[dict[str, Any]]) -> dict[str, Any]:
    shared: dict[str, dict[str, Any]] = {}
    calls = []
    for function in functions:
        parameters = dict(function.get("parameters") or {"type": "object"})
        for word in _DEFINITIONS:
            # References are read from the whole schema's top.
            for name, value in (parameters.pop(word, None) or {}).items():
                if shared.setdefault(word, {}).setdefault(name, value) != value:
                    raise GatewayError(
                        f"two tools define {name[:60]!r} differently, which one schema cannot hold",
                        status=501,
                        code="not_supported",
                        param="tools",
                        hint="name one tool in tool_choice, or give the definitions names of their own",
                    )
        named = {"name": {"const": function["name"]}, "arguments": parameters}
        calls.append({"type": "object", "properties": named, "required": ["name", "arguments"]})
    return shared | (calls[0] if len(calls) == 1 else {"anyOf": calls})


def _read_call(text: str, answer_id: Any, index: int) -> dict[str, Any] | None:
    """The call that a whole answer's text is; None where it was cut short."""
    try:
        found = load_json(text.encode())
    except ValueError:
        return None
    if not isinstance(found, dict) or not isinstance(found.get("name"), str):
        return None
    function = {"name": found["name"], "arguments": json.dumps(found.get("arguments", {}))}
    name = f"call_{str(answer_id).removeprefix('chatcmpl-')}_{index}"
    return {"id": name, "type": "function", "function": function}


def _translate(body: bytes) -> bytes:
    """The answer with its text as a call; as it is where it was cut short."""
    answer = load_json(body)
    for index, choice in enumerate(answer["choices"]):
        message = choice["message"]
        call = _read_call(message.get("content") or "", answer.get("id"), index)
        if call is not None:
            message |= {"content": None, "tool_calls": [call]}
            choice["finish_reason"] = "tool_calls"
    return json.dumps(answer).encode()


class CallStream:
    """The same for a stream: a call is told when it is whole."""

    def __init__(self) -> None:
        self._held = b""
        self._texts: dict[int, str] = {}
        self.is_broken = False

    def feed(self, data: bytes) -> bytes:
        """What can be told by now."""
        whole, self._held = split_whole_events(self._held + data, max_held_bytes=_MAX_EVENT_BYTES)
        if not whole:
            return b""
        try:
            told = b"".join(self._tell(document) for document in decode_events(whole))
        except ValueError:
            self.is_broken = True
            return render_error_event("an event of the engine cannot be read", code="engine_answer",
                                      origin="gateway") + DONE_EVENT  # fmt: skip
        told += DONE_EVENT if b"data: [DONE]" in whole else b""
        return told or _HELD

    def end(self) -> bytes:
        """Nothing is left: what was cut short ends as an error that was told."""
        return b""

    def _tell(self, chunk: dict[str, Any]) -> bytes:
        choices = chunk.get("choices")
        if isinstance(choices, list) and choices:
            kept = [choice for choice in choices if self._keep(choice, chunk.get("id"))]
            if not kept:
                return b""
            chunk = chunk | {"choices": kept}
        return b"data: " + json.dumps(chunk).encode() + b"\n\n"

    def _keep(self, choice: Any, answer_id: Any) -> bool:
        """Whether the choice has something to tell, changed in place."""
        delta = choice.get("delta") if isinstance(choice, dict) else None
        if not isinstance(delta, dict):
            return True
        index = choice.get("index", 0)
        if isinstance(delta.get("content"), str):
            self._texts[index] = self._texts.get(index, "") + delta.pop("content")
        if choice.get("finish_reason") is not None:
            text = self._texts.pop(index, "")
            call = _read_call(text, answer_id, index)
            if call is not None:
                delta["tool_calls"] = [{"index": 0} | call]
                choice["finish_reason"] = "tool_calls"
            elif text:
                delta["content"] = text
        return bool(delta) or choice.get("finish_reason") is not None
