"""Pure. Reshapes a stream of chat events: thought and answer in the form the client needs.

Only what must change is rewritten: an event in which nothing changes passes as the same bytes, and in
one that is rewritten every field but the two texts is what the engine sent.
"""

from __future__ import annotations

import json
import re
from typing import Any, Final

from trimtab.gateway.assemble import MAX_CHOICES
from trimtab.gateway.json_text import load_json
from trimtab.gateway.reasoning_form import (
    FIELDS_OF,
    AnswerShape,
    ReasoningWriter,
    place_texts,
    read_thought,
)
from trimtab.gateway.reasoning_split import Piece, ReasoningSplitter, TextKind

__all__ = ["CUT_THOUGHT_NOTE", "ReasoningStream", "find_payload", "replace_payload", "split_events"]

# Told as a comment, which every client's parser skips: the answer's fields stay the protocol's own.
CUT_THOUGHT_NOTE: Final = "max_tokens ended inside the thought: raise it, or send thinking_budget"
_CUT_THOUGHT_COMMENT: Final = b": trimtab: " + CUT_THOUGHT_NOTE.encode() + b"\n\n"
# An engine that sends many tokens at once is watched by length as well. No text of a model's has more
# characters to a token on average (English has about four), so that no thought is taken for too long.
MAX_CHARS_PER_TOKEN: Final = 8
_NAMES: Final = (b'"reasoning"', b'"reasoning_content"')
# A choice that begins with its index, 0, and whose delta is one text without "<" or escaped characters
# beyond the short escapes: what nearly every event of vLLM and llama.cpp is.
_ONE_TEXT: Final = re.compile(
    rb'"index": ?0, ?"delta": ?\{"(content|reasoning|reasoning_content)": ?'
    rb'"([^"\\<]*(?:\\[^u][^"\\<]*)*)"\}'
)
# Fields of an event that one put before it shares.
_SHARED: Final = ("id", "object", "created", "model", "system_fingerprint")


class _Choice:
    """One choice of the answer on its way."""

    __slots__ = ("is_over", "num_thought_chars", "num_thought_deltas", "splitter", "writer")

    def __init__(self, shape: AnswerShape) -> None:
        self.splitter: ReasoningSplitter = shape.make_splitter()
        self.writer = ReasoningWriter(shape.form)
        self.is_over = False
        self.num_thought_deltas = 0
        self.num_thought_chars = 0

    def count(self, pieces: list[Piece]) -> None:
        """Take note of how much was thought."""
        num_chars = sum(len(piece.text) for piece in pieces if piece.kind == "reasoning")
        self.num_thought_chars += num_chars
        self.num_thought_deltas += num_chars > 0


class ReasoningStream:
    """Takes whole events in order, gives whole events back."""

    def __init__(self, shape: AnswerShape) -> None:
        self._shape = shape
        self._choices: dict[int, _Choice] = {}
        self._shared: dict[str, Any] = {}
        # Without tags to look for, and none to close, only a thought's field matters.
        self._skips = shape.is_plain and shape.form != "inline"
        # How each field begins that a thought is written to.
        self._thought_fields = [f'"{field}":"'.encode() for field in FIELDS_OF[shape.form]]

    def feed(self, data: bytes) -> bytes:
        """The same events, reshaped."""
        if self._skips and not any(name in data for name in _NAMES):
            return data
        if data.find(b"\n\n") == len(data) - 2:
            return self.feed_event(data)
        return b"".join([self.feed_event(event) for event in split_events(data)])

    def feed_event(self, event: bytes) -> bytes:
        """One event, reshaped; another may have been put before it, a comment behind it."""
        found = _ONE_TEXT.search(event)
        if found is not None and (passed := self._pass_text(event, found)) is not None:
            return passed
        return self._feed_document(event)

    def _pass_text(self, event: bytes, found: re.Match[bytes]) -> bytes | None:
        """An event of one choice with nothing but text in its delta, read without its JSON.

        None where that is not certain, or where the text may begin, end or cut a thought.
        """
        choice = self._choices.get(0)
        if choice is None or choice.is_over or not _is_simple(event):
            return None
        name, raw = found.groups()
        try:
            text = load_json(b'"' + raw + b'"') if b"\\" in raw else raw.decode()
        except ValueError:
            return None
        is_from_field = name != b"content"
        is_thought = is_from_field if self._shape.is_plain else choice.splitter.is_inside
        kind: TextKind = "reasoning" if is_thought else "content"
        if not text or not choice.writer.passes(kind):
            return None
        if choice.splitter.pass_text(text, is_from_field=is_from_field) is None:
            return None
        if kind == "content":
            return event
        choice.num_thought_deltas += 1
        choice.num_thought_chars += len(text)
        fields = b",".join([field + raw + b'"' for field in self._thought_fields])
        return event[: found.start(1) - 1] + fields + event[found.end(2) + 1 :]

    def _feed_document(self, event: bytes) -> bytes:
        payload = find_payload(event)
        if payload is None:
            return event
        try:
            document = load_json(payload)
        except ValueError:
            return event
        choices = document.get("choices") if isinstance(document, dict) else None
        if not isinstance(choices, list) or not choices:
            return event
        return self._reshape(event, payload, document)

    def end(self) -> bytes:
        """What is held back when a stream breaks off: nothing that came is lost."""
        events = []
        for index, choice in self._choices.items():
            if not choice.is_over:
                pieces = choice.writer.write(choice.splitter.finish(None), is_last=True)
                events += [self._make_event(index, piece) for piece in pieces]
        return b"".join(events)

    @property
    def shared(self) -> dict[str, Any]:
        """The fields that every event of this answer has: id, time, model."""
        return self._shared

    @property
    def open_thought(self) -> str:
        """The thought of the first choice while it goes on, with no answer yet; else empty."""
        choice = self._choices.get(0)
        is_open = choice is not None and choice.splitter.is_inside and not choice.is_over
        return choice.splitter.thought if choice is not None and is_open else ""

    @property
    def open_thought_tokens(self) -> int:
        """How long that thought is, in tokens, from below."""
        choice = self._choices.get(0)
        if choice is None or choice.is_over or not choice.splitter.is_inside or choice.splitter.has_answer:
            return 0
        return max(choice.num_thought_deltas, choice.num_thought_chars // MAX_CHARS_PER_TOKEN)

    def _reshape(self, event: bytes, payload: bytes, document: dict[str, Any]) -> bytes:
        self._shared = {name: document[name] for name in _SHARED if name in document}
        before: list[bytes] = []
        after = b""
        changed = []
        for entry in document["choices"]:
            if not isinstance(entry, dict) or not isinstance(entry.get("delta"), dict):
                changed.append(entry)
                continue
            if len(self._choices) >= MAX_CHOICES and _index(entry) not in self._choices:
                changed.append(entry)  # beyond what anybody can ask for: nothing is remembered of it
                continue
            early, last = self._read_delta(entry)
            before += [self._make_event(_index(entry), one, entry["delta"]) for one in early]
            after = after or self._note_cut(entry)
            changed.append(self._rewrite(entry, last))
        if changed == document["choices"] and not before:
            return event + after
        rewritten = json.dumps(document | {"choices": changed}, separators=(",", ":")).encode()
        return b"".join(before) + replace_payload(event, payload, rewritten) + after

    def _read_delta(self, entry: dict[str, Any]) -> tuple[list[Piece], Piece | None]:
        """The pieces of one choice's delta: those for events before, and the one for the event itself."""
        choice = self._choice(entry)
        delta, reason = entry["delta"], entry.get("finish_reason")
        content = delta.get("content")
        splitter = choice.splitter
        pieces = splitter.feed_reasoning(read_thought(delta))
        pieces += splitter.feed_content(content if isinstance(content, str) else "")
        choice.count(pieces)
        has_calls = bool(delta.get("tool_calls"))
        if has_calls:
            splitter.feed_tool_calls()
        if reason is not None:
            choice.is_over = True
            pieces += splitter.finish(self._judge(reason))
        shown = choice.writer.write(pieces, is_last=has_calls or reason is not None)
        return shown[:-1], shown[-1] if shown else None

    def _judge(self, reason: Any) -> str:
        """A stop that the client's own words may have caused inside a thought makes no answer of it."""
        return "stop_word" if reason == "stop" and self._shape.has_stop_words else str(reason)

    def _note_cut(self, entry: dict[str, Any]) -> bytes:
        splitter = self._choice(entry).splitter
        is_cut = entry.get("finish_reason") == "length" and splitter.is_inside and not splitter.has_answer
        return _CUT_THOUGHT_COMMENT if is_cut else b""

    def _rewrite(self, entry: dict[str, Any], piece: Piece | None) -> dict[str, Any]:
        thought = piece.text if piece is not None and piece.kind == "reasoning" else ""
        answer = piece.text if piece is not None and piece.kind == "content" else ""
        delta = place_texts(entry["delta"], thought=thought, answer=answer, form=self._shape.form)
        if thought and not delta.get("content"):
            delta.pop("content", None)
        return entry if delta == entry["delta"] else entry | {"delta": delta}

    def _choice(self, entry: dict[str, Any]) -> _Choice:
        index = _index(entry)
        choice = self._choices.get(index)
        if choice is None:
            choice = self._choices[index] = _Choice(self._shape)
        return choice

    def _make_event(self, index: int, piece: Piece, source: dict[str, Any] | None = None) -> bytes:
        """An event of our own for one piece; a role that came with its delta is told first."""
        role = None if source is None else source.get("role")
        is_thought = piece.kind == "reasoning"
        delta = place_texts(
            {} if role is None else {"role": role},
            thought=piece.text if is_thought else "",
            answer="" if is_thought else piece.text,
            form=self._shape.form,
        )
        choice = {"index": index, "delta": delta, "finish_reason": None}
        document = self._shared | {"choices": [choice]}
        return b"data: " + json.dumps(document, separators=(",", ":")).encode() + b"\n\n"


def _is_simple(event: bytes) -> bool:
    """Whether an event is one line of data, with one choice that is not over.

    Inside a JSON text a quote is escaped, so that these names are always fields.
    """
    return (
        event.startswith(b"data:")
        and event.endswith(b"}\n\n")
        and event.count(b"\n") == 2
        and event.count(b'"delta":') == 1
        and (b'"finish_reason":null' in event or b'"finish_reason": null' in event)
    )


def _index(entry: dict[str, Any]) -> int:
    index = entry.get("index")
    return index if isinstance(index, int) else 0


def split_events(data: bytes) -> list[bytes]:
    """Whole events one by one, each with the empty line that ends it; what follows the last is one more."""
    if b"\r" not in data:
        parts = data.split(b"\n\n")
        events = [part + b"\n\n" for part in parts[:-1]]
        return [*events, parts[-1]] if parts[-1] else events
    events, start = [], 0
    while start < len(data):
        ends = [at + len(mark) for mark in (b"\n\n", b"\r\n\r\n") if (at := data.find(mark, start)) >= 0]
        end = min(ends, default=len(data))
        events.append(data[start:end])
        start = end
    return events


def find_payload(event: bytes) -> bytes | None:
    """The data of an event, None for a comment, for [DONE] and for data on several lines."""
    if event.startswith(b"data:") and event.count(b"\n") <= 2:
        payload = event[5:].strip()
    else:
        lines = [line for line in event.splitlines() if line.startswith(b"data:")]
        if len(lines) != 1:
            return None
        payload = lines[0][5:].strip()
    return payload if payload.startswith(b"{") else None


def replace_payload(event: bytes, payload: bytes, other: bytes) -> bytes:
    """The event with other data, its other lines and its line ends as they were."""
    at = event.index(payload)
    return event[:at] + other + event[at + len(payload) :]
