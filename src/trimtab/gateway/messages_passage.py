"""Pure. Anthropic's Messages protocol: what is asked of the engine, and how its answer is told."""

from __future__ import annotations

import json
from functools import partial
from typing import Any, Final

from trimtab.core.state import ServedModel
from trimtab.gateway.endpoints import CHAT, COUNT_CHAT, COUNT_TOKENS, TOKENIZE
from trimtab.gateway.external_listing import EXTERNAL_ENGINE
from trimtab.gateway.json_text import load_json
from trimtab.gateway.messages_answer import MessageStream, chat_to_message
from trimtab.gateway.messages_request import messages_to_chat
from trimtab.gateway.passage import Passage
from trimtab.gateway.repair import ALL_REPAIRS
from trimtab.gateway.thinking import VirtualMode
from trimtab.gateway.thinking_families import PLAIN, find_thinking_family
from trimtab.gateway.thinking_request import ChatSettings, prepare_chat

__all__ = ["open_count", "open_messages"]

_COUNTED: Final = ("model", "messages", "tools", "chat_template_kwargs")


def open_messages(document: dict[str, Any], model: ServedModel) -> Passage:
    """A message is asked as a chat, so that everything that holds for chats holds for it."""
    chat = messages_to_chat(document)
    if model.engine == EXTERNAL_ENGINE and model.family == PLAIN.name:
        chat.pop("thinking", None)  # OpenAI's own endpoint refuses what it does not know
    name = document.get("model") or model.name
    return Passage(
        path=CHAT,
        body=json.dumps(chat).encode(),
        translate=partial(chat_to_message, model=name),
        stream=MessageStream(model=name) if document.get("stream") else None,
        thoughts="none" if _hides_thoughts(document.get("thinking")) else "reasoning_content",
        names=_names(document),
    )


def open_count(
    document: dict[str, Any], body: bytes, model: ServedModel, mode: VirtualMode | None
) -> Passage:
    """The tokens of the prompt as the template writes it, thinking switched as a request would be."""
    if model.engine == EXTERNAL_ENGINE:
        return Passage(path=COUNT_TOKENS, body=body)
    chat = messages_to_chat(document)
    settings = ChatSettings(
        family=find_thinking_family(model.family),
        engine=model.engine,
        default_is_on=None if model.thinking is None else model.thinking == "on",
        mode=mode,
        repairs=frozenset(ALL_REPAIRS) - {"background-call"},
    )
    prepared = prepare_chat(chat, settings).document
    ask = {name: prepared[name] for name in _COUNTED if prepared.get(name) is not None}
    if model.engine == "llama_cpp":
        return Passage(path=COUNT_CHAT, body=json.dumps(ask).encode())
    return Passage(path=TOKENIZE, body=json.dumps(ask).encode(), translate=_name_count)


def _names(document: dict[str, Any]) -> dict[str, str]:
    """Fields of the chat by what they were made of; what the client wrote itself is named as it did."""
    made = {
        "reasoning_effort": "output_config.effort",
        "response_format": "output_config.format",
        "stop": "stop_sequences",
    }
    return {name: own for name, own in made.items() if name not in document}


def _hides_thoughts(thinking: Any) -> bool:
    return isinstance(thinking, dict) and thinking.get("display") == "omitted"


def _name_count(body: bytes) -> bytes:
    return json.dumps({"input_tokens": load_json(body)["count"]}).encode()
