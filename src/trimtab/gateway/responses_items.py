"""Pure. The input of OpenAI's Responses protocol, item by item, as the messages of a chat."""

from __future__ import annotations

from typing import Any, Final

from trimtab.gateway.messages_blocks import bad_field

__all__ = ["to_chat_messages"]

# A developer's word is a system message to the templates of open models.
_ROLES: Final = {"user": "user", "assistant": "assistant", "system": "system", "developer": "system"}
_TEXTS: Final = ("input_text", "output_text", "text")


def to_chat_messages(given: Any) -> list[dict[str, Any]]:
    """The conversation as a chat's; GatewayError (400) names what has no meaning there.

    A thought, a text and the tool calls of one turn are items of their own here, and one message there.
    """
    if isinstance(given, str):
        return [{"role": "user", "content": given}]
    if not isinstance(given, list):
        raise bad_field("input", "is neither text nor a list of items")
    messages: list[dict[str, Any]] = []
    turn: dict[str, Any] | None = None
    for index, item in enumerate(given):
        path = f"input[{index}]"
        if not isinstance(item, dict):
            raise bad_field(path, "is no item")
        kind = item.get("type", "message")
        if kind == "function_call_output":
            messages.append(_from_output(item, path))
            turn = None
            continue
        if kind == "message" and item.get("role") != "assistant":
            messages.append(_from_message(item, path))
            turn = None
            continue
        turn = _add_to_turn(messages, turn, item, path)
    for message in messages:
        if message["role"] == "assistant" and "content" not in message:
            message["content"] = None if "tool_calls" in message else ""
    return messages


def _add_to_turn(
    messages: list[dict[str, Any]], turn: dict[str, Any] | None, item: dict[str, Any], path: str
) -> dict[str, Any]:
    """The assistant's message that the item belongs to, with it."""
    kind = item.get("type", "message")
    begins = kind == "reasoning" or (
        kind == "message" and turn is not None and turn.keys() != {"role", _THOUGHT}
    )
    if turn is None or begins:
        turn = {"role": "assistant"}
        messages.append(turn)
    if kind == "reasoning":
        turn[_THOUGHT] = _thought_of(item)
    elif kind == "message":
        turn["content"] = _content_of(item.get("content"), f"{path}.content")
    elif kind == "function_call":
        turn.setdefault("tool_calls", []).append(_call_of(item, path))
    else:
        raise bad_field(
            f"{path}.type",
            f"is {str(kind)[:40]!r}, which has no meaning here",
            "send message, reasoning, function_call and function_call_output",
        )
    return turn


_THOUGHT: Final = "reasoning_content"


def _from_message(item: dict[str, Any], path: str) -> dict[str, Any]:
    role = item.get("role")
    if not isinstance(role, str) or role not in _ROLES:
        raise bad_field(f"{path}.role", f"is none of {', '.join(_ROLES)}")
    return {"role": _ROLES[role], "content": _content_of(item.get("content"), f"{path}.content")}


def _content_of(content: Any, path: str) -> str | list[dict[str, Any]]:
    if isinstance(content, str):
        return content
    if not isinstance(content, list):
        raise bad_field(path, "is neither text nor a list of parts")
    parts = [_part_of(part, f"{path}[{index}]") for index, part in enumerate(content)]
    # One text as text: the templates of small models read no parts.
    return parts[0]["text"] if len(parts) == 1 and parts[0]["type"] == "text" else parts


def _part_of(part: Any, path: str) -> dict[str, Any]:
    kind = part.get("type") if isinstance(part, dict) else None
    if kind in _TEXTS and isinstance(part.get("text"), str):
        return {"type": "text", "text": part["text"]}
    if kind == "refusal" and isinstance(part.get("refusal"), str):
        return {"type": "text", "text": part["refusal"]}
    if kind == "input_image" and isinstance(part.get("image_url"), str):
        detail = {"detail": part["detail"]} if isinstance(part.get("detail"), str) else {}
        return {"type": "image_url", "image_url": {"url": part["image_url"]} | detail}
    raise bad_field(
        path,
        f"is a part of type {str(kind)[:40]!r}, which no engine here can read",
        "send input_text, and input_image with an image_url",
    )


def _thought_of(item: dict[str, Any]) -> str:
    """The whole thought, else its summary; what is encrypted only its maker can read."""
    for field in ("content", "summary"):
        parts = item.get(field)
        texts = (
            [part.get("text") for part in parts if isinstance(part, dict)] if isinstance(parts, list) else []
        )
        found = "\n".join(text for text in texts if isinstance(text, str))
        if found:
            return found
    return ""


def _call_of(item: dict[str, Any], path: str) -> dict[str, Any]:
    for field in ("call_id", "name", "arguments"):
        if not isinstance(item.get(field), str):
            raise bad_field(f"{path}.{field}", "is no text")
    function = {"name": item["name"], "arguments": item["arguments"]}
    return {"id": item["call_id"], "type": "function", "function": function}


def _from_output(item: dict[str, Any], path: str) -> dict[str, Any]:
    if not isinstance(item.get("call_id"), str):
        raise bad_field(f"{path}.call_id", "is no text")
    content = _content_of(item.get("output"), f"{path}.output")
    if not isinstance(content, str) and any(part["type"] != "text" for part in content):
        raise bad_field(f"{path}.output", "holds an image", "send it in a message behind the output")
    text = content if isinstance(content, str) else "\n".join(part["text"] for part in content)
    return {"role": "tool", "tool_call_id": item["call_id"], "content": text}
