"""Pure. A request of Anthropic's Messages protocol as a chat request.

What has the same meaning is renamed; fields that Anthropic does not know (``chat_template_kwargs``,
``min_p``) pass as for a chat; what would be silently lost is refused.
"""

from __future__ import annotations

from typing import Any, Final

from trimtab.gateway.messages_blocks import bad_field, read_system, to_chat_messages
from trimtab.gateway.tool_choice import check_choice

__all__ = ["messages_to_chat"]

# Read below, or without a meaning for an engine of one's own.
_TRANSLATED: Final = frozenset(
    {
        "cache_control",
        "context_management",
        "diagnostics",
        "inference_geo",
        "max_tokens",
        "messages",
        "metadata",
        "output_config",
        "service_tier",
        "speed",
        "stop_sequences",
        "system",
        "tool_choice",
        "tools",
        "user_profile_id",
        "workspace_id",
    }
)
# What needs a service behind it.
_REFUSED: Final = ("mcp_servers", "container")
_THINKING_ON: Final = ("enabled", "adaptive")
_EFFORTS: Final = {"max": "xhigh"}
# A tuple: whatever JSON stands there can be looked for in it.
_OWN_TOOLS: Final = (None, "custom")
_CHOICES: Final = {"auto": "auto", "any": "required", "none": "none"}


def messages_to_chat(document: dict[str, Any]) -> dict[str, Any]:
    """The chat request; GatewayError (400) names the field that cannot be."""
    for field in _REFUSED:
        if document.get(field):
            raise bad_field(field, "needs a service that is not here", "leave it out")
    chat = {name: value for name, value in document.items() if name not in _TRANSLATED}
    messages = to_chat_messages(document.get("messages"))
    if document.get("system"):
        messages = [{"role": "system", "content": read_system(document["system"])}, *messages]
    chat["messages"] = messages
    chat |= _limits(document)
    chat |= _tools(document)
    chat |= _output(document)
    thinking = document.get("thinking")
    if isinstance(thinking, dict) and thinking.get("type") == "between_tools":
        chat["thinking"] = {"type": "adaptive"}  # the model chooses when: engines know no other way
    if document.get("stream"):
        chat["stream_options"] = {"include_usage": True}
    return chat


def _limits(document: dict[str, Any]) -> dict[str, Any]:
    found: dict[str, Any] = {}
    if document.get("max_tokens") is not None:
        found["max_tokens"] = document["max_tokens"]
    if document.get("stop_sequences"):
        found["stop"] = document["stop_sequences"]
    metadata = document.get("metadata")
    user = metadata.get("user_id") if isinstance(metadata, dict) else None
    if isinstance(user, str):
        found["user"] = user
    return found


def _tools(document: dict[str, Any]) -> dict[str, Any]:
    tools, choice = document.get("tools"), document.get("tool_choice")
    if not isinstance(tools, list | None):
        raise bad_field("tools", "is no list")
    made = [_tool(tool, f"tools[{index}]") for index, tool in enumerate(tools or ())]
    chosen = {} if choice is None else _choice(choice)
    if "tool_choice" in chosen:
        check_choice(chosen["tool_choice"], made)
    return {"tools": made} | chosen if made else {}


def _tool(tool: Any, path: str) -> dict[str, Any]:
    if not isinstance(tool, dict) or not isinstance(tool.get("name"), str):
        raise bad_field(f"{path}.name", "is missing")
    if tool.get("type") not in _OWN_TOOLS:
        raise bad_field(
            f"{path}.type", "names a tool that Anthropic runs", "send a tool with an input_schema"
        )
    schema = tool.get("input_schema")
    if not isinstance(schema, dict):
        raise bad_field(f"{path}.input_schema", "is no object")
    function: dict[str, Any] = {"name": tool["name"], "parameters": schema}
    if isinstance(tool.get("description"), str):
        function["description"] = tool["description"]
    if isinstance(tool.get("strict"), bool):
        function["strict"] = tool["strict"]
    return {"type": "function", "function": function}


def _choice(choice: Any) -> dict[str, Any]:
    kind = choice.get("type") if isinstance(choice, dict) else None
    found: dict[str, Any] = {}
    if kind == "tool" and isinstance(choice.get("name"), str):
        found["tool_choice"] = {"type": "function", "function": {"name": choice["name"]}}
    elif isinstance(kind, str) and kind in _CHOICES:
        found["tool_choice"] = _CHOICES[kind]
    else:
        raise bad_field("tool_choice", "is none of auto, any, none, or tool with a name")
    if choice.get("disable_parallel_tool_use"):
        found["parallel_tool_calls"] = False
    return found


def _output(document: dict[str, Any]) -> dict[str, Any]:
    """``output_config``: a schema for the answer, and how much effort a thought may take."""
    config = document.get("output_config")
    if not isinstance(config, dict):
        return {}
    found: dict[str, Any] = {}
    shape = config.get("format")
    if isinstance(shape, dict) and shape.get("type") == "json_schema":
        named = {"name": "output", "schema": shape.get("schema"), "strict": True}
        found["response_format"] = {"type": "json_schema", "json_schema": named}
    effort, thinking = config.get("effort"), document.get("thinking")
    # An effort asks for no thought by itself, as ``reasoning_effort`` does, but bounds one.
    if not isinstance(thinking, dict) or thinking.get("type") not in _THINKING_ON:
        return found
    if isinstance(effort, str) and "budget_tokens" not in thinking:
        found["reasoning_effort"] = _EFFORTS.get(effort, effort)
    return found
