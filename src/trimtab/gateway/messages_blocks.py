"""Pure. The messages of Anthropic's protocol, block by block, as those of a chat."""

from __future__ import annotations

import json
from typing import Any, Final

from trimtab.errors import GatewayError

__all__ = ["bad_field", "read_system", "to_chat_messages"]

_ROLES: Final = ("user", "assistant", "system")
# Claude Code begins its system prompt with a line that differs with every request, and so would every
# engine's prefix cache; it says nothing to the model.
_BILLING: Final = "x-anthropic-billing-header"
# Blocks that only their maker can read, or that name what is not there.
_SKIPPED: Final = frozenset({"redacted_thinking"})


def bad_field(path: str, what: str, hint: str = "") -> GatewayError:
    """The refusal (400) of one field, named by its path."""
    return GatewayError(f"{path} {what}", status=400, code="invalid_value", param=path, hint=hint)


def read_system(system: Any) -> str:
    """The text of ``system``, a string or blocks of text."""
    if isinstance(system, str):
        return system
    if not isinstance(system, list):
        raise bad_field("system", "is neither text nor a list of blocks")
    texts = []
    for index, block in enumerate(system):
        path = f"system[{index}]"
        if not isinstance(block, dict) or block.get("type") != "text":
            raise bad_field(path, "is no block of text")
        text = _text_of(block, "text", path)
        if not text.startswith(_BILLING):
            texts.append(text)
    return "\n\n".join(texts)


def to_chat_messages(messages: Any) -> list[dict[str, Any]]:
    """The conversation as a chat's; GatewayError (400) names what has no meaning there."""
    if not isinstance(messages, list):
        raise bad_field("messages", "is no list")
    chat: list[dict[str, Any]] = []
    for index, message in enumerate(messages):
        path = f"messages[{index}]"
        role = message.get("role") if isinstance(message, dict) else None
        if role not in _ROLES:
            raise bad_field(f"{path}.role", f"is none of {', '.join(_ROLES)}")
        content = message.get("content")
        if isinstance(content, str):
            chat.append({"role": role, "content": content})
        elif not isinstance(content, list):
            raise bad_field(f"{path}.content", "is neither text nor a list of blocks")
        elif role == "assistant":
            chat.append(_from_assistant(content, f"{path}.content"))
        else:
            chat += _from_user(role, content, f"{path}.content")
    return chat


def _from_user(role: str, blocks: list[Any], path: str) -> list[dict[str, Any]]:
    """Results of tools become messages of their own, the rest one message behind them."""
    results: list[dict[str, Any]] = []
    parts: list[dict[str, Any]] = []
    for index, block in enumerate(blocks):
        where = f"{path}[{index}]"
        kind = _kind_of(block, where)
        if kind == "tool_result":
            text, pictures = _result_of(block, where)
            results.append(
                {"role": "tool", "tool_call_id": _text_of(block, "tool_use_id", where), "content": text}
            )
            parts += pictures
        else:
            parts.append(_part_of(block, kind, where))
    return [*results, {"role": role, "content": _joined(parts)}] if parts else results


def _from_assistant(blocks: list[Any], path: str) -> dict[str, Any]:
    texts: list[dict[str, Any]] = []
    thoughts: list[str] = []
    calls: list[dict[str, Any]] = []
    for index, block in enumerate(blocks):
        where = f"{path}[{index}]"
        kind = _kind_of(block, where)
        if kind == "thinking":
            thoughts.append(_text_of(block, "thinking", where))
        elif kind == "tool_use":
            calls.append(_call_of(block, where))
        elif kind not in _SKIPPED:
            texts.append(_part_of(block, kind, where))
    message: dict[str, Any] = {"role": "assistant", "content": _joined(texts) if texts else None}
    if thoughts:
        message["reasoning_content"] = "\n".join(thoughts)
    if calls:
        message["tool_calls"] = calls
    elif message["content"] is None:
        message["content"] = ""
    return message


def _call_of(block: dict[str, Any], path: str) -> dict[str, Any]:
    given = block.get("input")
    if given is not None and not isinstance(given, dict):
        raise bad_field(f"{path}.input", "is no object")
    function = {"name": _text_of(block, "name", path), "arguments": json.dumps(given or {})}
    return {"id": _text_of(block, "id", path), "type": "function", "function": function}


def _result_of(block: dict[str, Any], path: str) -> tuple[str, list[dict[str, Any]]]:
    """(text, pictures) of a tool's result: a message of role tool holds no picture."""
    content = block.get("content")
    if content is None or isinstance(content, str):
        return content or "", []
    if not isinstance(content, list):
        raise bad_field(f"{path}.content", "is neither text nor a list of blocks")
    texts, pictures = [], []
    for index, inner in enumerate(content):
        where = f"{path}.content[{index}]"
        part = _part_of(inner, _kind_of(inner, where), where)
        if part["type"] == "text":
            texts.append(part["text"])
        else:
            pictures.append(part)
    return "\n".join(texts), pictures


def _part_of(block: dict[str, Any], kind: str, path: str) -> dict[str, Any]:
    if kind == "text":
        return {"type": "text", "text": _text_of(block, "text", path)}
    source = block.get("source")
    source = source if isinstance(source, dict) else {}
    if kind == "image":
        return {"type": "image_url", "image_url": {"url": _url_of(source, f"{path}.source")}}
    if kind == "document" and source.get("type") == "text":
        return {"type": "text", "text": _text_of(source, "data", f"{path}.source")}
    raise bad_field(
        path,
        f"is a block of type {kind[:40]!r}, which no engine here can read",
        "send text, images, tool_use and tool_result, or documents of plain text",
    )


def _url_of(source: dict[str, Any], path: str) -> str:
    if source.get("type") == "url":
        return _text_of(source, "url", path)
    if source.get("type") == "base64":
        media = _text_of(source, "media_type", path)
        return f"data:{media};base64,{_text_of(source, 'data', path)}"
    raise bad_field(f"{path}.type", "is neither base64 nor url")


def _joined(parts: list[dict[str, Any]]) -> str | list[dict[str, Any]]:
    """One text as text: the templates of small models read no parts."""
    return parts[0]["text"] if len(parts) == 1 and parts[0]["type"] == "text" else parts


def _kind_of(block: Any, path: str) -> str:
    kind = block.get("type") if isinstance(block, dict) else None
    if not isinstance(kind, str):
        raise bad_field(path, "is no block with a type")
    return kind


def _text_of(block: dict[str, Any], field: str, path: str) -> str:
    value = block.get(field)
    if not isinstance(value, str):
        raise bad_field(f"{path}.{field}", "is missing" if value is None else "is no text")
    return value
