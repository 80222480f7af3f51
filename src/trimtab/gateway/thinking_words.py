"""Pure. The soft switch: /think or /no_think as the standalone last word of a user's message."""

from __future__ import annotations

import re
from typing import Any, Final, Literal, TypeAlias, cast

__all__ = ["SoftSwitch", "find_soft_switch", "strip_soft_switches"]

SoftSwitch: TypeAlias = Literal["/think", "/no_think"]

# Alone: at the start of the text or behind white space, and nothing but white space behind it. A path
# such as /think/x, or a word such as x/think, is none.
_SWITCH: Final = re.compile(r"(?:\A|(?<=\s))(/think|/no_think)\s*\Z")


def find_soft_switch(messages: Any) -> SoftSwitch | None:
    """The switch of the last message of role user, None where it has none."""
    if not isinstance(messages, list):
        return None
    for message in reversed(messages):
        if isinstance(message, dict) and message.get("role") == "user":
            found = _SWITCH.search(_last_text(message.get("content")))
            return None if found is None else cast("SoftSwitch", found[1])
    return None


def strip_soft_switches(messages: list[Any]) -> list[Any]:
    """The messages without the switches that end users' messages, for models that would read them as text.

    Earlier turns lose theirs as well, so that the beginning of a conversation stays the same from turn
    to turn (the engine's prefix cache). The list and its messages are not changed; what needs no change
    is the same object.
    """
    return [
        _strip(message) if isinstance(message, dict) and message.get("role") == "user" else message
        for message in messages
    ]


def _last_text(content: Any) -> str:
    """The text that ends a message; content is a string or a list of parts."""
    if isinstance(content, str):
        return content
    index = _last_text_index(content)
    return "" if index is None else str(content[index]["text"])


def _last_text_index(content: Any) -> int | None:
    """Where the last text part stands; parts that are no text (an image) do not hide it."""
    if not isinstance(content, list):
        return None
    for index in range(len(content) - 1, -1, -1):
        part = content[index]
        if isinstance(part, dict) and isinstance(part.get("text"), str):
            return index
    return None


def _strip(message: dict[str, Any]) -> dict[str, Any]:
    content = message.get("content")
    found = _SWITCH.search(_last_text(content))
    if found is None:
        return message
    kept = found.string[: found.start()].rstrip()
    if isinstance(content, str):
        return message | {"content": kept}
    index = _last_text_index(content)
    parts = [
        part | {"text": kept} if at == index else part for at, part in enumerate(cast("list[Any]", content))
    ]
    return message | {"content": parts}
