"""Pure. Builds the answer of an unstreamed request out of a stream's chunks.

llama.cpp goes on generating when the client of an unstreamed request leaves (measured with
xllamacpp 2026.10.11549: 700 tokens to the end), and stops at once when it is a stream. So the
gateway always asks it for a stream, and puts the pieces together here.
"""

from __future__ import annotations

from typing import Any, Final

from trimtab.errors import TrimtabError
from trimtab.gateway.event_cut import split_whole_events
from trimtab.gateway.json_text import load_json

__all__ = [
    "ENGINES_TO_ASSEMBLE",
    "MAX_CHOICES",
    "Assembly",
    "StreamedError",
    "ask_for_stream",
    "decode_events",
]

ENGINES_TO_ASSEMBLE: Final = frozenset({"llama_cpp"})
# Chunk fields that belong to the whole answer; the last one seen wins.
_SHARED: Final = ("id", "created", "model", "system_fingerprint", "usage", "timings", "service_tier")
_OBJECTS: Final = {"chat.completion.chunk": "chat.completion", "text_completion": "text_completion"}
# Parts of a message whose pieces are joined.
_JOINED: Final = ("content", "reasoning_content", "reasoning", "refusal")
# OpenAI allows 128 choices (``n``), and as many tools; an engine that counts further does so without end.
MAX_CHOICES: Final = 128
# One event of an answer that is put together here; it is held whole in any case.
_MAX_EVENT_BYTES: Final = 8 * 1024 * 1024
# All events of one: over a million tokens at 200 bytes an event.
_MAX_STREAM_BYTES: Final = 256 * 1024 * 1024


class StreamedError(TrimtabError):
    """The engine reported an error inside its stream; ``error`` is its error object."""

    def __init__(self, error: dict[str, Any]) -> None:
        super().__init__(str(error.get("message", "the engine reported an error")))
        self.error = error


def ask_for_stream(document: dict[str, Any]) -> dict[str, Any]:
    """The request as a streamed one that reports its usage."""
    options = document.get("stream_options")
    options = dict(options) if isinstance(options, dict) else {}
    return document | {"stream": True, "stream_options": options | {"include_usage": True}}


def decode_events(data: bytes) -> list[dict[str, Any]]:
    """The JSON documents of whole server-sent events, in order; comments and [DONE] are left out."""
    documents = []
    for event in (data.replace(b"\r\n", b"\n") if b"\r" in data else data).split(b"\n\n"):
        if b"\n" not in event and event.startswith(b"data: "):
            payload = event[6:]
        else:
            lines = [line[5:].removeprefix(b" ") for line in event.split(b"\n") if line.startswith(b"data:")]
            payload = b"\n".join(lines)
        if payload and payload != b"[DONE]":
            document = load_json(payload)
            if isinstance(document, dict):
                documents.append(document)
    return documents


class Assembly:
    """Takes chunks in order and gives the whole answer."""

    def __init__(self) -> None:
        self._answer: dict[str, Any] = {}
        self._choices: dict[int, dict[str, Any]] = {}
        self._held = b""
        self._num_bytes = 0

    def take(self, piece: bytes) -> None:
        """Take the next bytes of the stream, however they are cut; errors as of ``add``."""
        self._num_bytes += len(piece)
        if self._num_bytes > _MAX_STREAM_BYTES:
            raise ValueError(f"it is longer than {_MAX_STREAM_BYTES:,} bytes")
        whole, self._held = split_whole_events(self._held + piece, max_held_bytes=_MAX_EVENT_BYTES)
        for document in decode_events(whole):
            self.add(document)

    def add(self, chunk: dict[str, Any]) -> None:
        """Take one chunk; StreamedError when it carries an error, ValueError when it is no chunk at all."""
        if isinstance(chunk.get("error"), dict):
            raise StreamedError(chunk["error"])
        try:
            self._add(chunk)
        except (TypeError, AttributeError, KeyError) as error:
            raise ValueError(f"a chunk has no known shape: {error}") from error

    def _add(self, chunk: dict[str, Any]) -> None:
        self._answer |= {name: chunk[name] for name in _SHARED if chunk.get(name) is not None}
        self._answer["object"] = _OBJECTS.get(chunk.get("object", ""), chunk.get("object"))
        for piece in chunk.get("choices") or ():
            self._add_piece(piece)

    def _add_piece(self, piece: dict[str, Any]) -> None:
        index = _check_index(piece.get("index", 0))
        choice = self._choices.setdefault(index, {"index": index, "finish_reason": None})
        if piece.get("finish_reason") is not None:
            choice["finish_reason"] = piece["finish_reason"]
        if isinstance(piece.get("delta"), dict):
            _add_delta(choice.setdefault("message", {"role": "assistant", "content": None}), piece["delta"])
        if "text" in piece:
            choice["text"] = choice.get("text", "") + (piece["text"] or "")
        if "logprobs" in piece:
            choice["logprobs"] = _join_logprobs(choice.get("logprobs"), piece["logprobs"])

    @property
    def is_whole(self) -> bool:
        """Whether every choice that began has come to its end."""
        return bool(self._choices) and all(
            choice["finish_reason"] is not None for choice in self._choices.values()
        )

    def finish(self) -> dict[str, Any]:
        """The body an unstreamed request would have got."""
        return {"choices": [self._choices[index] for index in sorted(self._choices)]} | self._answer


def _check_index(index: Any) -> int:
    if not isinstance(index, int) or not 0 <= index < MAX_CHOICES:
        raise ValueError(f"an index is {str(index)[:40]}, legal is 0 to {MAX_CHOICES - 1}")
    return index


def _add_delta(message: dict[str, Any], delta: dict[str, Any]) -> None:
    for name, value in delta.items():
        if value is None:
            continue
        if name in _JOINED:
            message[name] = (message.get(name) or "") + value
        elif name == "tool_calls":
            _add_tool_calls(message.setdefault("tool_calls", []), value)
        else:
            message[name] = value


def _add_tool_calls(calls: list[dict[str, Any]], pieces: list[dict[str, Any]]) -> None:
    for piece in pieces:
        index = _check_index(piece.get("index", 0))
        while len(calls) <= index:
            calls.append({"id": "", "type": "function", "function": {"name": "", "arguments": ""}})
        call = calls[index]
        call |= {name: piece[name] for name in ("id", "type") if piece.get(name)}
        function = piece.get("function") or {}
        for name in ("name", "arguments"):
            call["function"][name] += function.get(name) or ""


def _join_logprobs(so_far: Any, more: Any) -> Any:
    """Lists inside are joined, whatever they are called; None adds nothing."""
    if not isinstance(more, dict):
        return so_far
    if not isinstance(so_far, dict):
        return more
    joined = dict(so_far)
    for name, value in more.items():
        before = joined.get(name)
        joined[name] = before + value if isinstance(before, list) and isinstance(value, list) else value
    return joined
