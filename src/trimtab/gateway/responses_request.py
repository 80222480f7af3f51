"""Pure. A request of OpenAI's Responses protocol as a chat request.

Nothing is stored: a client sends the whole conversation as ``input``, and what would need a memory or a
tool of OpenAI's is refused by name.
"""

from __future__ import annotations

from typing import Any, Final

from trimtab.errors import GatewayError
from trimtab.gateway.messages_blocks import bad_field
from trimtab.gateway.responses_items import to_chat_messages
from trimtab.gateway.tool_choice import check_choice

__all__ = ["responses_to_chat"]

# Read below, echoed in the answer, or without a meaning for an engine of one's own.
_TRANSLATED: Final = frozenset(
    {
        "access_programs",
        "background",
        "background_options",
        "context_management",
        "conversation",
        "include",
        "input",
        "instructions",
        "max_output_tokens",
        "max_tool_calls",
        "moderation",
        "previous_response_id",
        "prompt",
        "prompt_cache_options",
        "prompt_cache_retention",
        "reasoning",
        "safety_identifier",
        "service_tier",
        "store",
        "stream_options",
        "text",
        "tool_choice",
        "tools",
        "top_logprobs",
        "truncation",
    }
)
_MEMORY: Final = "nothing is stored here"
_WHOLE: Final = "send the whole conversation as input, with store: false"
# Field → what stands in its way, and what would work.
_REFUSED: Final[dict[str, tuple[str, str]]] = {
    "previous_response_id": (_MEMORY, _WHOLE),
    "conversation": (_MEMORY, _WHOLE),
    "store": (_MEMORY, _WHOLE),
    "background": (_MEMORY, "wait for the answer, or stream it"),
    "prompt": ("no prompts are kept here", "send input and instructions"),
    "top_logprobs": ("log probabilities have no place here", "ask /v1/chat/completions"),
}
_LOGPROBS: Final = "message.output_text.logprobs"
_CHOICES: Final = ("auto", "none", "required")


def responses_to_chat(document: dict[str, Any]) -> dict[str, Any]:
    """The chat request; GatewayError (400) names the field that cannot be."""
    _check_memory(document)
    chat = {name: value for name, value in document.items() if name not in _TRANSLATED}
    messages = to_chat_messages(document.get("input"))
    instructions = document.get("instructions")
    if instructions is not None and not isinstance(instructions, str):
        raise bad_field("instructions", "is no text")
    if instructions:
        messages = [{"role": "system", "content": instructions}, *messages]
    chat["messages"] = messages
    if document.get("max_output_tokens") is not None:
        chat["max_tokens"] = document["max_output_tokens"]
    chat |= _tools(document) | _reasoning(document) | _format(document)
    if document.get("stream"):
        chat["stream_options"] = {"include_usage": True}
    return chat


def _check_memory(document: dict[str, Any]) -> None:
    for field, (what, hint) in _REFUSED.items():
        if document.get(field):
            raise GatewayError(
                f"{field} is not supported: {what}", status=400, code="unsupported", param=field, hint=hint
            )
    include = document.get("include")
    if isinstance(include, list) and _LOGPROBS in include:
        raise bad_field("include", f"asks for {_LOGPROBS}", "ask /v1/chat/completions")


def _tools(document: dict[str, Any]) -> dict[str, Any]:
    tools, choice = document.get("tools"), document.get("tool_choice")
    if not isinstance(tools, list | None):
        raise bad_field("tools", "is no list")
    made = [_tool(tool, f"tools[{index}]") for index, tool in enumerate(tools or ())]
    chosen = {} if choice is None else {"tool_choice": _choice(choice)}
    if chosen:
        check_choice(chosen["tool_choice"], made)
    return {"tools": made} | chosen if made else {}


def _tool(tool: Any, path: str) -> dict[str, Any]:
    kind = tool.get("type") if isinstance(tool, dict) else None
    if kind != "function":
        raise bad_field(
            f"{path}.type", f"is {str(kind)[:40]!r}, which OpenAI runs", "send tools of type function"
        )
    if not isinstance(tool.get("name"), str):
        raise bad_field(f"{path}.name", "is missing")
    told = ("name", "description", "parameters", "strict")
    function = {name: tool[name] for name in told if tool.get(name) is not None}
    return {"type": "function", "function": function}


def _choice(choice: Any) -> Any:
    if choice in _CHOICES:
        return choice
    if isinstance(choice, dict) and choice.get("type") == "function" and isinstance(choice.get("name"), str):
        return {"type": "function", "function": {"name": choice["name"]}}
    raise bad_field("tool_choice", f"is none of {', '.join(_CHOICES)}, or a function by its name")


def _reasoning(document: dict[str, Any]) -> dict[str, Any]:
    reasoning = document.get("reasoning")
    if reasoning is None:
        return {}
    if not isinstance(reasoning, dict):
        raise bad_field("reasoning", "is no object")
    return {} if reasoning.get("effort") is None else {"reasoning_effort": reasoning["effort"]}


def _format(document: dict[str, Any]) -> dict[str, Any]:
    text = document.get("text")
    shape = text.get("format") if isinstance(text, dict) else None
    kind = shape.get("type") if isinstance(shape, dict) else "text"
    if kind == "text":
        return {}
    if kind == "json_object":
        return {"response_format": {"type": "json_object"}}
    if kind != "json_schema" or not isinstance(shape, dict) or not isinstance(shape.get("schema"), dict):
        raise bad_field("text.format", "is none of text, json_object, or json_schema with a schema")
    named = {name: value for name, value in shape.items() if name != "type"}
    return {"response_format": {"type": "json_schema", "json_schema": {"name": "output"} | named}}
