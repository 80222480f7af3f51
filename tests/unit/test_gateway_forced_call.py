"""A tool that must be called, asked for as JSON: what llama.cpp is asked, and what becomes of its answer."""

import json
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from trimtab.errors import GatewayError
from trimtab.gateway.assemble import Assembly, decode_events
from trimtab.gateway.forced_call import CallStream, may_force_call, must_call, open_forced_call

CALL = json.dumps({"name": "greet", "arguments": {"name": 'B\u00f6b "x"'}})


def tool(name, parameters=None):
    return {"type": "function", "function": {"name": name, "parameters": parameters or {"type": "object"}}}


def ask(**fields):
    document = {"model": "m", "messages": [{"role": "user", "content": "Hi"}], "tools": [tool("greet")]}
    return document | {"tool_choice": "required"} | fields


def named(name):
    return {"type": "function", "function": {"name": name}}


def body_of(document, *, is_told=False):
    narrowed = must_call(document)
    assert narrowed is not None
    return json.loads(open_forced_call(narrowed, is_told=is_told).body)


@pytest.mark.parametrize(
    "fields",
    [
        {"tool_choice": "auto"}, {"tool_choice": "none"}, {"tool_choice": None}, {"tools": []},
        {"tools": None},
        {"tools": [3]}, {"tools": [{"type": "function"}]}, {"tool_choice": named("unknown")},
        {"tools": [tool("a") | {"function": {"name": "a", "parameters": 3}}]},
        {"response_format": {"type": "json_object"}}, {"grammar": "root ::= x"},
    ],
)  # fmt: skip
def test_nothing_is_forced_that_nobody_asked_for(fields):
    """What demands no call, or cannot be one, goes to the engine as it came."""
    assert must_call(ask(**fields)) is None


def test_only_requests_that_name_the_field_are_looked_at():
    """The usual chat costs one search for a word."""
    assert may_force_call(json.dumps(ask()).encode())
    assert may_force_call(json.dumps(ask(tool_choice=named("greet")), separators=(",", ":")).encode())
    assert not may_force_call(json.dumps(ask(tool_choice="auto")).encode())
    assert not may_force_call(b'{"messages": [{"content": "tool_choice"}]}')


def test_the_schema_holds_every_tool_and_their_shared_definitions():
    """One of several calls, each with its own arguments; references still lead somewhere."""
    refers = {
        "type": "object",
        "properties": {"x": {"$ref": "#/$defs/X"}},
        "$defs": {"X": {"type": "string"}},
    }
    body = body_of(ask(tools=[tool("a", refers), tool("b", refers)]))
    schema = body["response_format"]["json_schema"]["schema"]

    assert schema["$defs"] == {"X": {"type": "string"}}
    assert [one["properties"]["name"]["const"] for one in schema["anyOf"]] == ["a", "b"]
    assert schema["anyOf"][0]["properties"]["arguments"]["properties"] == {"x": {"$ref": "#/$defs/X"}}
    assert "tool_choice" not in body
    only = body_of(ask(tools=[tool("a", refers), tool("b")], tool_choice=named("b")))
    assert only["response_format"]["json_schema"]["schema"]["properties"]["name"] == {"const": "b"}

    other = {"$defs": {"X": {"type": "integer"}}, "type": "object"}
    with pytest.raises(GatewayError) as refused:
        body_of(ask(tools=[tool("a", refers), tool("b", other)]))
    assert refused.value.status == 501


def test_the_model_is_told_of_its_tools_once():
    """A template that writes them is left alone; else one system message does, the client's own first."""
    assert body_of(ask(), is_told=True)["messages"] == ask()["messages"]
    (system, user) = body_of(ask())["messages"]
    assert (system["role"], "greet" in system["content"], user) == ("system", True, ask()["messages"][0])
    mine = [{"role": "system", "content": "Be kind."}, *ask()["messages"]]
    (system, user) = body_of(ask(messages=mine))["messages"]
    assert system["content"].startswith("Be kind.")


def test_a_whole_answer_becomes_a_call():
    """The client sees what it would of any engine."""
    passage = open_forced_call(must_call(ask()), is_told=False)
    answer = {"id": "chatcmpl-7", "choices": [
        {"index": 0, "message": {"role": "assistant", "content": CALL}, "finish_reason": "stop"},
        {"index": 1, "message": {"role": "assistant", "content": CALL[:9]}, "finish_reason": "length"},
    ]}  # fmt: skip
    called, cut = json.loads(passage.translate(json.dumps(answer).encode()))["choices"]

    (call,) = called["message"]["tool_calls"]
    assert (call["id"], call["type"], call["function"]["name"]) == ("call_7_0", "function", "greet")
    assert json.loads(call["function"]["arguments"]) == {"name": 'B\u00f6b "x"'}
    assert (called["message"]["content"], called["finish_reason"]) == (None, "tool_calls")
    assert cut == answer["choices"][1]


def event(delta, finish_reason=None, **fields):
    choice = {"index": 0, "delta": delta, "finish_reason": finish_reason}
    return b"data: " + json.dumps({"id": "chatcmpl-7", "object": "chat.completion.chunk",
                                   "choices": [choice]} | fields).encode() + b"\n\n"  # fmt: skip


@given(st.lists(st.integers(1, len(CALL) - 1), max_size=6), st.integers(1, 200), st.booleans())
def test_a_stream_becomes_a_call_however_it_is_cut(cuts, step, is_whole):
    """Streamed or not, the same call; one that was cut short is told as the text that came."""
    text = CALL if is_whole else CALL[:-3]
    edges = [0, *sorted(set(cuts)), len(text)]
    pieces = [text[low:high] for low, high in pairwise(edges)]
    sent = event({"role": "assistant", "content": None}) + event({"reasoning_content": "hm"})
    sent += b"".join(event({"content": piece}) for piece in pieces)
    sent += event({}, "stop" if is_whole else "length")
    sent += b'data: {"choices": [], "usage": {"completion_tokens": 5}}\n\n' + b"data: [DONE]\n\n"
    stream = CallStream()
    told = b"".join(stream.feed(sent[at : at + step]) for at in range(0, len(sent), step)) + stream.end()

    assembly = Assembly()
    for document in decode_events(told):
        assembly.add(document)
    whole = assembly.finish()
    (choice,) = whole["choices"]
    assert told.endswith(b"data: [DONE]\n\n")
    assert whole["usage"] == {"completion_tokens": 5}
    assert choice["message"]["reasoning_content"] == "hm"
    if is_whole:
        (call,) = choice["message"]["tool_calls"]
        assert (call["id"], call["function"]["name"]) == ("call_7_0", "greet")
        assert json.loads(call["function"]["arguments"]) == json.loads(CALL)["arguments"]
        assert (choice["message"]["content"], choice["finish_reason"]) == (None, "tool_calls")
    else:
        assert (choice["message"]["content"], choice["finish_reason"]) == (text, "length")


def test_an_error_inside_the_stream_is_told():
    """An engine that fails meanwhile says so; what cannot be read ends the stream."""
    stream = CallStream()
    assert b"boom" in stream.feed(b'data: {"error": {"message": "boom"}}\n\n')
    assert not stream.is_broken
    assert b"engine_answer" in stream.feed(b"data: {oops\n\n")
    assert stream.is_broken
