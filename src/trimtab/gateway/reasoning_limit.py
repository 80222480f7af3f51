"""Pure. Ends a thought for an engine that cannot: what is asked next, and how both answers become one.

The engine is asked again with the thought, closed, as the beginning of its answer, and goes on behind
it. The two streams come to the client as one.
"""

from __future__ import annotations

import json
from typing import Any, Final

from trimtab.gateway.json_text import load_json
from trimtab.gateway.reasoning_split import CLOSER, OPENER
from trimtab.gateway.reasoning_stream import find_payload, replace_payload

__all__ = ["ask_for_answer", "ask_without_thought", "join_event"]

_LIMIT_FIELDS: Final = ("max_tokens", "max_completion_tokens")
_KWARGS: Final = "chat_template_kwargs"


def ask_for_answer(document: dict[str, Any], *, thought: str, num_tokens: int) -> dict[str, Any]:
    """The request for what follows a thought of ``num_tokens``: the engine continues its last message.

    The text is exactly what the templates of the Qwen families print for such a message, so that
    ``continue_final_message`` (vLLM, SGLang, llama.cpp) finds it again.
    """
    text = thought.strip("\r\n")
    answer = {"role": "assistant", "content": f"{OPENER}\n{text}\n{CLOSER}\n\n"}
    asked = ask_without_thought(document, num_tokens=num_tokens)
    return asked | {
        "messages": [*document["messages"], answer],
        "continue_final_message": True,
        "add_generation_prompt": False,
    }


def ask_without_thought(document: dict[str, Any], *, num_tokens: int) -> dict[str, Any]:
    """The same request with thinking off and ``num_tokens`` less to say, for engines without continuation."""
    kwargs = dict(document.get(_KWARGS) or {})
    limits = {
        name: max(1, document[name] - num_tokens) for name in _LIMIT_FIELDS if document.get(name) is not None
    }
    return document | limits | {_KWARGS: kwargs | {"enable_thinking": False}}


def join_event(event: bytes, *, first: dict[str, Any], num_tokens: int) -> bytes:
    """An event of the second answer as one of the first: its id, its time, and a usage for both.

    The thought was prompt of the second request and is counted as what it is, an answer's part.
    """
    payload = find_payload(event)
    if payload is None:
        return event
    try:
        document = load_json(payload)
    except ValueError:
        return event
    if not isinstance(document, dict) or "choices" not in document:
        return event
    joined = document | {name: first[name] for name in ("id", "created", "model") if name in first}
    if isinstance(document.get("usage"), dict):
        joined["usage"] = _join_usage(document["usage"], num_tokens)
    return replace_payload(event, payload, json.dumps(joined, separators=(",", ":")).encode())


def _join_usage(usage: dict[str, Any], num_tokens: int) -> dict[str, Any]:
    joined = dict(usage)
    prompt, completion = usage.get("prompt_tokens"), usage.get("completion_tokens")
    if isinstance(prompt, int) and isinstance(completion, int):
        moved = min(num_tokens, prompt)
        joined |= {"prompt_tokens": prompt - moved, "completion_tokens": completion + moved}
    details = usage.get("completion_tokens_details")
    if isinstance(details, dict) and isinstance(details.get("reasoning_tokens"), int):
        total = details["reasoning_tokens"] + num_tokens
        joined["completion_tokens_details"] = details | {"reasoning_tokens": total}
    return joined
