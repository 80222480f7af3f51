"""Pure. Reshapes a whole chat answer by the same rules as a stream, so that both give the same texts."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any, Final

from trimtab.gateway.json_text import load_json
from trimtab.gateway.reasoning_form import (
    AnswerShape,
    ReasoningWriter,
    place_texts,
    read_thought,
)

__all__ = ["ReshapedAnswer", "reshape_answer", "reshape_body"]

# How every field of a thought begins.
_NAME_START: Final = b'"reasoning'


@dataclass(frozen=True, slots=True, kw_only=True)
class ReshapedAnswer:
    """The document, the same object when nothing changed; ``is_cut_in_thought`` where no answer came."""

    document: dict[str, Any]
    is_cut_in_thought: bool = False


def reshape_body(body: bytes, shape: AnswerShape) -> tuple[bytes, bool]:
    """The body of an answer and whether it was cut in its thought; the same bytes when nothing changes."""
    if shape.is_plain and _NAME_START not in body:
        return body, False
    try:
        document = load_json(body)
    except ValueError:
        return body, False
    if not isinstance(document, dict):
        return body, False
    reshaped = reshape_answer(document, shape)
    if reshaped.document is document:
        return body, reshaped.is_cut_in_thought
    return json.dumps(reshaped.document, separators=(",", ":")).encode(), reshaped.is_cut_in_thought


def reshape_answer(document: dict[str, Any], shape: AnswerShape) -> ReshapedAnswer:
    """Every choice of a chat completion."""
    choices = document.get("choices")
    if not isinstance(choices, list):
        return ReshapedAnswer(document=document)
    done = [_reshape_choice(choice, shape) for choice in choices]
    changed = [choice for choice, _ in done]
    is_cut = any(cut for _, cut in done)
    if changed == choices:
        return ReshapedAnswer(document=document, is_cut_in_thought=is_cut)
    return ReshapedAnswer(document=document | {"choices": changed}, is_cut_in_thought=is_cut)


def _reshape_choice(choice: Any, shape: AnswerShape) -> tuple[Any, bool]:
    message = choice.get("message") if isinstance(choice, dict) else None
    if not isinstance(message, dict):
        return choice, False
    splitter = shape.make_splitter()
    content, reason = message.get("content"), choice.get("finish_reason")
    pieces = splitter.feed_reasoning(read_thought(message))
    pieces += splitter.feed_content(content if isinstance(content, str) else "")
    if message.get("tool_calls"):
        splitter.feed_tool_calls()
    pieces += splitter.finish("stop_word" if reason == "stop" and shape.has_stop_words else str(reason))
    shown = ReasoningWriter(shape.form).write(pieces, is_last=True)
    texts = {
        kind: "".join(piece.text for piece in shown if piece.kind == kind)
        for kind in ("reasoning", "content")
    }
    placed = place_texts(message, thought=texts["reasoning"], answer=texts["content"], form=shape.form)
    is_cut = reason == "length" and splitter.is_inside and not splitter.has_answer
    return (choice if placed == message else choice | {"message": placed}), is_cut
