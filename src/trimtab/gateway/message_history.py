"""Pure. Earlier answers as a template wants them: the thought in a field of its own, by one name.

Clients send back what they got: ``reasoning_content``, ``reasoning``, both, tags in the text, or only
the closing tag. The templates of the families here read ``reasoning_content`` and drop or keep a
thought by their own rules; vLLM takes that name as well as its own.
"""

from __future__ import annotations

from typing import Any, Final

from trimtab.gateway.reasoning_form import REASONING_FIELDS, read_thought
from trimtab.gateway.reasoning_split import CLOSER, OPENER

__all__ = ["normalise_history"]

_FIELD: Final = "reasoning_content"
_WHITE: Final = "\r\n "


def normalise_history(messages: list[Any]) -> list[Any]:
    """The messages with every assistant's thought in ``reasoning_content``; the rest is the same object."""
    return [
        _normalise(message) if isinstance(message, dict) and message.get("role") == "assistant" else message
        for message in messages
    ]


def _normalise(message: dict[str, Any]) -> dict[str, Any]:
    thought = read_thought(message)
    content = message.get("content")
    if isinstance(content, str):
        inline, content = _cut_thought(content)
        thought = thought or inline
    elif isinstance(content, list):
        inline, content = _cut_parts(content)
        thought = thought or inline
    wanted = {name: value for name, value in message.items() if name not in REASONING_FIELDS}
    if "content" in message:
        wanted["content"] = content
    if thought:
        wanted[_FIELD] = thought
    return message if wanted == message else wanted


def _cut_thought(text: str) -> tuple[str, str]:
    """(thought, answer) of a text that begins with a thought, with or without its opening tag."""
    start = text.lstrip(_WHITE)
    if start.startswith(OPENER):
        thought, closer, answer = start[len(OPENER) :].partition(CLOSER)
        # A thought that was cut off has no end: all of it is thought.
        return thought.strip(_WHITE), answer.lstrip(_WHITE) if closer else ""
    thought, closer, answer = text.partition(CLOSER)
    # A lone closing tag at a line's end or its start; in the middle of a line, or behind a quote, it is text.
    is_tag = bool(closer) and not thought.endswith(("`", '"', "'")) and answer[:1] in ("", "\n", "\r")
    return (thought.strip(_WHITE), answer.lstrip(_WHITE)) if is_tag else ("", text)


def _cut_parts(parts: list[Any]) -> tuple[str, list[Any]]:
    """The same for a list of parts, of which the first text is looked at."""
    for index, part in enumerate(parts):
        if isinstance(part, dict) and isinstance(part.get("text"), str):
            thought, answer = _cut_thought(part["text"])
            if not thought:
                break
            return thought, [*parts[:index], part | {"text": answer}, *parts[index + 1 :]]
    return "", parts
