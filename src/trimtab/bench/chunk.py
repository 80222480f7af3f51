"""Pure. What one chunk of a streamed answer carries: thought, answer, usage, an end, an error."""

from __future__ import annotations

import json
from typing import NamedTuple

__all__ = ["DONE", "EMPTY", "Chunk", "Usage", "decode_chunk", "decode_usage"]

DONE = b"[DONE]"
# More tokens than any answer has: a number beyond it is a server's nonsense.
_MAX_COUNT = 2**40


class Usage(NamedTuple):
    """Token counts as the server states them; -1 where it doesn't."""

    input_tokens: int
    output_tokens: int
    cached_tokens: int = -1


class Chunk(NamedTuple):
    """``has_reasoning`` and ``has_answer``: text that isn't empty, tool calls counting as answer.

    ``text`` is the answer's part. A role alone, or an empty string, is no token; in completions the ids
    of new tokens are, also where their text is empty or not decoded. ``has_choice``: it is a step of the
    answer, whatever it carries.
    """

    has_reasoning: bool = False
    has_answer: bool = False
    text: str = ""
    finish_reason: str = ""
    usage: Usage | None = None
    error: str = ""
    has_choice: bool = False


EMPTY = Chunk()


def decode_chunk(data: bytes) -> Chunk:
    """A chunk of chat completions or completions; ValueError for what is no JSON object."""
    document = json.loads(data)
    if not isinstance(document, dict):
        raise ValueError(f"a chunk is a {type(document).__name__}, expected an object")  # noqa: TRY004
    if document.get("error"):
        return Chunk(error=_words_of(document["error"]))
    usage = decode_usage(document)
    choices = document.get("choices")
    if not isinstance(choices, list) or not choices or not isinstance(choices[0], dict):
        return Chunk(usage=usage)
    choice = choices[0]
    finish = choice.get("finish_reason") or ""
    delta = choice.get("delta")
    if not isinstance(delta, dict):
        text = choice.get("text")
        has_answer = bool(text or choice.get("token_ids"))
        return Chunk(False, has_answer, _text_of(text), finish, usage, has_choice=True)
    text = delta.get("content")
    thought = delta.get("reasoning_content") or delta.get("reasoning")
    has_answer = bool(text or delta.get("tool_calls"))
    return Chunk(bool(thought), has_answer, _text_of(text), finish, usage, has_choice=True)


def decode_usage(document: dict[str, object]) -> Usage | None:
    """The usage block of a chunk or a whole answer; None without one."""
    block = document.get("usage")
    if not isinstance(block, dict):
        return None
    details = block.get("prompt_tokens_details")
    cached = _count(details, "cached_tokens") if isinstance(details, dict) else -1
    return Usage(_count(block, "prompt_tokens"), _count(block, "completion_tokens"), cached)


def _text_of(content: object) -> str:
    """The text itself; lists of parts and other oddities are an answer, but none to go on from."""
    return content if isinstance(content, str) else ""


def _count(block: dict[str, object], name: str) -> int:
    value = block.get(name)
    if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value <= _MAX_COUNT:
        return -1
    return value


def _words_of(error: object) -> str:
    message = error.get("message") if isinstance(error, dict) else error
    return str(message)[:200]
