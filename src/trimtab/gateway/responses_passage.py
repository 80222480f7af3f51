"""Pure. OpenAI's Responses protocol: what is asked of the engine, and how its answer is told."""

from __future__ import annotations

import json
from functools import partial
from typing import Any, Final

from trimtab.core.state import ServedModel
from trimtab.gateway.endpoints import CHAT
from trimtab.gateway.passage import Passage
from trimtab.gateway.responses_answer import ResponseStream, chat_to_response
from trimtab.gateway.responses_request import responses_to_chat

__all__ = ["open_response"]

# Field of the chat → what it is made of.
_MADE_OF: Final = {
    "max_tokens": "max_output_tokens",
    "messages": "input",
    "reasoning_effort": "reasoning.effort",
    "response_format": "text.format",
}


def open_response(document: dict[str, Any], model: ServedModel) -> Passage:
    """A response is asked as a chat, so that everything that holds for chats holds for it."""
    chat = responses_to_chat(document)
    name = document.get("model") or model.name
    return Passage(
        path=CHAT,
        body=json.dumps(chat).encode(),
        translate=partial(chat_to_response, asked=document, model=name),
        stream=ResponseStream(asked=document, model=name) if document.get("stream") else None,
        thoughts="reasoning_content",
        names={name: own for name, own in _MADE_OF.items() if name not in document},
    )
