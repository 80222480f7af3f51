"""Whatever an engine streams, the gateway remembers a bounded part of it, and fails only in known ways."""

import json

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from trimtab.gateway import assemble, reasoning_split
from trimtab.gateway.assemble import MAX_CHOICES, Assembly, StreamedError
from trimtab.gateway.reasoning_form import AnswerShape
from trimtab.gateway.reasoning_split import ReasoningSplitter
from trimtab.gateway.reasoning_stream import ReasoningStream
from trimtab.gateway.stream_end import judge_end

_JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-3, 10**12) | st.text(max_size=5) | st.just("<think>"),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(
            st.sampled_from(["index", "delta", "content", "function", "name", "id", "type"]),
            inner,
            max_size=3,
        )
    ),
    max_leaves=6,
)
_DELTA = st.fixed_dictionaries(
    {}, optional=dict.fromkeys(["content", "reasoning_content", "reasoning", "tool_calls", "role"], _JSON)
)
_CHOICE = st.fixed_dictionaries(
    {},
    optional={"delta": _JSON | _DELTA} | dict.fromkeys(["index", "finish_reason", "text", "logprobs"], _JSON),
)
_CHUNK = st.fixed_dictionaries(
    {}, optional={"choices": _JSON | st.lists(_JSON | _CHOICE, max_size=3), "object": _JSON, "error": _JSON}
)


def _render(*documents):
    return b"".join(b"data: " + json.dumps(document).encode() + b"\n\n" for document in documents)


@given(st.lists(_CHUNK, max_size=4), st.sampled_from(["both", "inline", "none"]), st.booleans())
@example([{"choices": [{"delta": {"tool_calls": [{"index": 10**9}]}}]}], "both", False)
@example([{"choices": [{"delta": {"tool_calls": [{"index": -1}]}}]}], "both", False)
@example([{"choices": [{"index": []}], "object": []}], "both", True)
def test_any_chunk_is_understood_or_named_as_broken(chunks, form, is_thinking):
    """An engine's odd answer is a 502 of its own, never a failure of ours."""
    data = _render(*chunks)
    assembly = Assembly()
    try:
        assembly.take(data)
        json.dumps(assembly.finish())
    except (ValueError, StreamedError):
        pass
    stream = ReasoningStream(AnswerShape(is_thinking=is_thinking, form=form))
    stream.feed(data)
    stream.end()
    judge_end(data)


def _choice(index):
    return {"choices": [{"index": index, "delta": {"content": "hi"}, "finish_reason": None}]}


def test_choices_that_count_up_without_end_are_not_remembered():
    """A stream that begins another choice with every event costs no more memory than 128 of them."""
    stream = ReasoningStream(AnswerShape(is_thinking=True))
    for index in range(10 * MAX_CHOICES):
        event = _render(_choice(index))
        out = stream.feed(event)
        if index >= MAX_CHOICES:
            assert out == event
    assert len(stream._choices) == MAX_CHOICES

    assembly = Assembly()
    assembly.take(_render(*(_choice(index) for index in range(MAX_CHOICES))))
    with pytest.raises(ValueError, match="an index is 128"):
        assembly.take(_render(_choice(MAX_CHOICES)))


def test_a_whole_answer_out_of_an_endless_stream_has_an_end(monkeypatch):
    """What is put together here is put together up to a bound, and then refused."""
    monkeypatch.setattr(assemble, "_MAX_STREAM_BYTES", 10_000)
    assembly = Assembly()
    event = _render(_choice(0))
    for _ in range(10_000 // len(event)):
        assembly.take(event)
    with pytest.raises(ValueError, match="longer than 10,000 bytes"):
        assembly.take(event)


def test_an_endless_thought_is_not_kept(monkeypatch):
    """A thought that never ends goes out, and is forgotten."""
    monkeypatch.setattr(reasoning_split, "_MAX_THOUGHT_CHARS", 10_000)
    splitter = ReasoningSplitter(is_thinking=True)
    for _ in range(1000):
        assert splitter.feed_reasoning("z" * 1000)[0].text == "z" * 1000
    assert len(splitter.thought) == 10_000
