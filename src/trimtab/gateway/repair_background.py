"""Pure. Open WebUI's own calls beside a chat: titles, tags, follow-up questions, search queries.

They go to the model of the chat, before or right after the user's own message, and with thinking on
one title can cost thousands of tokens. Recognised by a header that Open WebUI can be told to send
(certain), or by the shape of its default prompts (42 of 42 such calls of Open WebUI 0.12.4 had it, none
of 21 requests of users).
"""

from __future__ import annotations

from typing import Any, Final

__all__ = ["TASK_HEADER", "cap_background", "recognise_background"]

# Set in Open WebUI's connection as {"headers": {"X-OpenWebUI-Task": "{{TASK}}"}}; empty for a user's message.
TASK_HEADER: Final = "x-openwebui-task"
# A title, a few tags or five questions in JSON are under 150 tokens.
_SHORT_TOKENS: Final = 256
# Kind → the most tokens its answer needs; None: long by nature (a summary), thinking off is all.
_CAPS: Final[dict[str, int | None]] = {
    "title_generation": _SHORT_TOKENS,
    "tags_generation": _SHORT_TOKENS,
    "follow_up_generation": _SHORT_TOKENS,
    "autocomplete_generation": _SHORT_TOKENS,
    "query_generation": _SHORT_TOKENS,
    "image_prompt_generation": _SHORT_TOKENS,
    "emoji_generation": _SHORT_TOKENS,
    "function_calling": None,
    "context_compaction": None,
    "memory_review": None,
}
# The key of the JSON that a default prompt asks for → the kind. The first that is asked for decides.
_KEYS: Final = (
    ('"follow_ups"', "follow_up_generation"),
    ('"title"', "title_generation"),
    ('"tags"', "tags_generation"),
    ('"queries"', "query_generation"),
    ('"prompt"', "image_prompt_generation"),
    ('"text"', "autocomplete_generation"),
)
_HEADING: Final = "### Task:"
_HISTORY: Final = "<chat_history>"
_LIMIT_FIELDS: Final = ("max_tokens", "max_completion_tokens")


def recognise_background(document: dict[str, Any], *, header: str | None) -> str | None:
    """The kind of background call, None for everything else.

    A header, empty or not, decides alone: with it a person's message is never taken for one.
    """
    if header is not None:
        kind = header.strip()
        return kind if kind in _CAPS else None
    messages = document.get("messages")
    if document.get("stream") or document.get("tools") or not isinstance(messages, list):
        return None
    if len(messages) != 1 or not isinstance(messages[0], dict) or messages[0].get("role") != "user":
        return None
    text = messages[0].get("content")
    if not isinstance(text, str) or not text.startswith(_HEADING) or _HISTORY not in text:
        return None
    # The history itself may hold anything: only the instructions before it are read.
    asked = text[: text.rindex(_HISTORY)]
    return next((kind for key, kind in _KEYS if key in asked), None)


def cap_background(document: dict[str, Any], kind: str) -> dict[str, Any]:
    """The request with its answer's length bounded; the same object where it is bounded already."""
    cap = _CAPS[kind]
    if cap is None:
        return document
    limits = {name: document[name] for name in _LIMIT_FIELDS if document.get(name) is not None}
    lowered = {name: cap for name, value in limits.items() if isinstance(value, int | float) and value > cap}
    if limits and not lowered:
        return document
    return document | (lowered or {_LIMIT_FIELDS[0]: cap})
