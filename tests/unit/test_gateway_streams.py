"""Streams: cut between events only, errors in the one shape, unstreamed answers put together."""

import json

import pytest

from trimtab.gateway.assemble import Assembly, StreamedError, ask_for_stream, decode_events
from trimtab.gateway.error_body import render_error_event, shape_engine_error
from trimtab.gateway.event_cut import MAX_HELD_BYTES, split_whole_events


@pytest.mark.parametrize(
    ("data", "whole", "rest"),
    [
        pytest.param(b"data: a\n\n", b"data: a\n\n", b"", id="one"),
        pytest.param(b"data: a\n\ndata: b", b"data: a\n\n", b"data: b", id="one-and-a-half"),
        pytest.param(b"data: a\r\n\r\nda", b"data: a\r\n\r\n", b"da", id="crlf"),
        pytest.param(b"data: a\n", b"", b"data: a\n", id="line-only"),
        pytest.param(b"", b"", b"", id="nothing"),
    ],
)
def test_streams_are_cut_between_events(data, whole, rest):
    """A client never gets half an event."""
    assert split_whole_events(data) == (whole, rest)


def test_an_endless_event_is_not_held_back():
    """A stream that is no event stream is passed on instead of filling the memory."""
    data = b"x" * (MAX_HELD_BYTES + 1)

    assert split_whole_events(data) == (data, b"")


def chunk(choices, **rest):
    return {"id": "c1", "object": "chat.completion.chunk", "model": "m", "choices": choices} | rest


def test_chat_chunks_become_one_completion():
    """An unstreamed answer is the same text, tool calls, reason and usage that the stream carried."""
    assembly = Assembly()
    for piece in (
        chunk([{"index": 0, "delta": {"role": "assistant", "content": None}, "finish_reason": None}]),
        chunk([{"index": 1, "delta": {"content": "B"}}]),
        chunk([{"index": 0, "delta": {"content": "Hé"}, "logprobs": {"content": [1]}}]),
        chunk([{"index": 0, "delta": {"content": "llo"}, "logprobs": {"content": [2]}}]),
        chunk([{"index": 0, "delta": {"tool_calls": [
            {"index": 0, "id": "t", "type": "function", "function": {"name": "f", "arguments": "{"}}]}}]),
        chunk([{"index": 0, "delta": {"tool_calls": [{"index": 0, "function": {"arguments": "}"}}]}}]),
        chunk([{"index": 0, "delta": {}, "finish_reason": "tool_calls"}]),
        chunk([], usage={"total_tokens": 3}),
    ):  # fmt: skip
        assembly.add(piece)

    answer = assembly.finish()

    assert answer["object"] == "chat.completion"
    assert answer["usage"] == {"total_tokens": 3}
    assert [choice["index"] for choice in answer["choices"]] == [0, 1]
    first = answer["choices"][0]
    assert first["finish_reason"] == "tool_calls"
    assert first["logprobs"] == {"content": [1, 2]}
    assert first["message"]["content"] == "Héllo"
    assert first["message"]["tool_calls"] == [
        {"id": "t", "type": "function", "function": {"name": "f", "arguments": "{}"}}
    ]


def test_an_error_inside_the_stream_is_raised():
    """An engine that fails midway does not become half an answer."""
    with pytest.raises(StreamedError, match="kaputt"):
        Assembly().add({"error": {"message": "kaputt"}})


def test_asking_for_a_stream_keeps_the_clients_options():
    """The usage is asked for, whatever else the client set."""
    asked = ask_for_stream({"model": "m", "stream_options": {"x": 1}})

    assert asked == {"model": "m", "stream": True, "stream_options": {"x": 1, "include_usage": True}}


def test_events_are_decoded_without_comments_and_end_marks():
    """Keep-alive comments and [DONE] are no data."""
    data = b': ping\n\ndata: {"a": 1}\n\ndata: [DONE]\n\n'

    assert decode_events(data) == [{"a": 1}]


@pytest.mark.parametrize(
    ("body", "message"),
    [
        pytest.param(b'{"error": {"message": "m", "code": 400}}', "m", id="openai"),
        pytest.param(b'{"error": "plain"}', "plain", id="text"),
        pytest.param(b'{"detail": "Not Found"}', "Not Found", id="fastapi"),
        pytest.param(b"<html>oops", "<html>oops", id="html"),
        pytest.param(b"", "the engine answered 500", id="empty"),
        pytest.param(b"\xff\xfe", "\ufffd\ufffd", id="bytes"),
    ],
)
def test_every_engine_error_gets_the_one_shape_and_the_mark(body, message):
    """Clients parse one kind of error, and see that the engine spoke."""
    error = json.loads(shape_engine_error(body, status=500))["error"]

    assert error["message"] == message
    assert error["origin"] == "engine"
    assert {"type", "param", "code"} <= error.keys()


def test_an_error_event_is_one_whole_event():
    """A client inside a stream can read the error with the parser it already uses."""
    event = render_error_event("gone", code="engine_died", origin="gateway")

    assert decode_events(event)[0]["error"]["code"] == "engine_died"
    assert split_whole_events(event) == (event, b"")
