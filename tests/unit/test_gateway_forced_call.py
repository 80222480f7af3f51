"""A tool that must be called, asked for as JSON: what llama.cpp is asked, and what becomes of its answer."""

import json
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from trimtab.gateway.assemble import Assembly, decode_events
from trimtab.gateway.forced_call import CallStream, may_force_call, must_call, open_forced_call
from trimtab.gateway.tool_choice import narrow_tools

TEXT = {"type": "string"}
CALL = json.dumps({"name": "greet", "arguments": {"name": 'B\u00f6b "x"'}})


def tool(name, parameters=None):
    return {"type": "function", "function": {"name": name, "parameters": parameters or {"type": "object"}}}


def ask(**fields):
    document = {"model": "m", "messages": [{"role": "user", "content": "Hi"}], "tools": [tool("greet")]}
    return document | {"tool_choice": "required"} | fields


def named(name):
    return {"type": "function", "function": {"name": name}}


def allowed(mode, *tools):
    return {"type": "allowed_tools", "allowed_tools": {"mode": mode, "tools": list(tools)}}


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
        {"json_schema": {"type": "object"}},
        {"tool_choice": allowed("auto", named("greet"))},
        {"tool_choice": allowed("required", [], named("x"))},
        {"tool_choice": {"type": "allowed_tools", "allowed_tools": 5}},
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


def schema_of(*tools, **fields):
    return body_of(ask(tools=list(tools), **fields))["response_format"]["json_schema"]["schema"]


def test_the_schema_holds_every_tool_and_what_its_references_lead_to():
    """One of several calls, each with its own arguments; what two tools define may differ."""
    refers = {
        "type": "object",
        "properties": {"x": {"$ref": "#/$defs/X"}},
        "$defs": {"X": {"type": "string"}},
    }
    other = refers | {"$defs": {"X": {"type": "integer"}}}
    schema = schema_of(tool("a", refers), tool("b", other))

    assert [one["properties"]["name"]["const"] for one in schema["anyOf"]] == ["a", "b"]
    found = [one["properties"]["arguments"]["properties"]["x"]["$ref"] for one in schema["anyOf"]]
    assert [schema["$defs"][ref.removeprefix("#/$defs/")]["type"] for ref in found] == ["string", "integer"]
    assert "tool_choice" not in body_of(ask())
    only = schema_of(tool("a", refers), tool("b"), tool_choice=named("b"))
    assert only["properties"]["name"] == {"const": "b"}
    assert "$defs" not in only


def arguments_of(parameters):
    """The schema of the arguments, and what follows a reference in it, knowing no escapes."""
    schema = schema_of(tool("a", parameters))

    def follow(node):
        (prefix, name) = node["$ref"].rsplit("/", 1)
        assert (prefix, name.isalnum()) == ("#/$defs", True)
        return schema["$defs"][name]

    return schema["properties"]["arguments"], follow


@pytest.mark.parametrize(
    ("parameters", "reference"),
    [
        pytest.param({"properties": {"a": TEXT}}, "#/properties/a", id="another-argument"),
        pytest.param({"definitions": {"a/b~c d%": TEXT}}, "#/definitions/a~1b~0c%20d%25", id="escaped"),
        pytest.param({"$defs": {"a%20b": TEXT}}, "#/$defs/a%20b", id="not-escaped"),
        pytest.param({"oneOf": [{"type": "null"}, TEXT]}, "#/oneOf/1", id="in-a-list"),
        pytest.param({"properties": {"a": {"$defs": {"Q": TEXT}}}}, "#/properties/a/$defs/Q", id="nested"),
        pytest.param({"$defs": {"A": {"$ref": "#/$defs/B"}, "B": TEXT}}, "#/$defs/A", id="chained"),
    ],
)
def test_a_reference_leads_to_what_the_client_meant(parameters, reference):
    """Wherever in a tool's parameters that is, and however it is escaped."""
    properties = parameters.get("properties", {}) | {"it": {"$ref": reference}}
    arguments, follow = arguments_of(parameters | {"type": "object", "properties": properties})
    assert follow(arguments["properties"]["it"]) == TEXT


def test_parameters_that_hold_themselves_still_do():
    """A tree is a tree, also where the top itself is nothing but a reference."""
    tree = {"type": "object", "properties": {"label": {"type": "string"}, "child": {"$ref": "#"}}}
    arguments, follow = arguments_of(tree)
    once = follow(arguments["properties"]["child"])
    assert once == arguments
    assert follow(once["properties"]["child"]) == once

    node = {"type": "object", "properties": {"next": {"$ref": "#/$defs/Node"}}}
    arguments, follow = arguments_of({"$ref": "#/$defs/Node", "$defs": {"Node": node}})
    assert follow(follow(arguments)["properties"]["next"]) == follow(arguments)


@pytest.mark.parametrize(
    "parameters",
    [
        {"$ref": "#/$defs/Gone"}, {"$ref": "#"}, {"$ref": "#anchor"}, {"$ref": "https://e.com/s"},
        {"$ref": 3},
        {"$ref": "#/$defs/A", "$defs": {"A": {"$ref": "#/$defs/B"}, "B": {"$ref": "#/$defs/A"}}},
        {"$ref": "#/$defs/A", "$defs": [1]}, {"$ref": "#/enum/" + "9" * 5000, "enum": [1]},
        {"$ref": "#/$defs/A", "$defs": {"A": {"anyOf": [TEXT, {"oneOf": [{"$ref": "#/$defs/A"}]}]}}},
        {"$ref": "#/$defs/A", "$defs": {"A": True}}, {"properties": {"$ref": {"type": "string"}}},
    ],
)  # fmt: skip
def test_references_that_lead_nowhere_are_left_to_the_engine(parameters):
    """The request stays as the client wrote it, so an error is about what it wrote."""
    assert open_forced_call(must_call(ask(tools=[tool("a", parameters)])), is_told=True) is None


def test_a_small_request_asks_for_no_large_schema():
    """Places inside each other, each of them referred to, are not written out without end."""
    inner, path, places = {"enum": [0]}, "#", []
    for _ in range(150):
        inner = {"properties": {"a": inner} | {f"x{at}": {"type": "null"} for at in range(50)}}
        path += "/properties/a"
        places.append({"$ref": path})
    inner["properties"]["refs"] = {"anyOf": places}
    assert open_forced_call(must_call(ask(tools=[tool("a", inner)])), is_told=True) is None


@pytest.mark.parametrize("odd", [[1], "x", 5, None, {"A": 3}])
def test_definitions_nobody_refers_to_may_be_anything(odd):
    """They are not needed; an argument that is called like them is."""
    inside = {"$defs": {"type": "string"}, "definitions": {"enum": [odd]}}
    arguments, _ = arguments_of({"type": "object", "$defs": odd, "definitions": odd, "properties": inside})
    assert arguments == {"type": "object", "properties": inside}


def test_an_argument_may_be_anything():
    """``true`` is a schema, which llama.cpp refuses; of objects it knows it."""
    lists = {"type": "array", "items": True}
    arguments, _ = arguments_of({"properties": {"a": True, "b": lists}, "additionalProperties": True})
    assert (arguments["properties"]["a"], arguments["additionalProperties"]) == ({"title": "anything"}, True)
    assert arguments["properties"]["b"]["items"] == {"title": "anything"}


def test_usual_spellings_of_nothing_change_nothing():
    """Plain text asked for by name, and tools without arguments, of which one says null."""
    nothing = [{"type": "function", "function": {"name": "a"}},
               {"type": "function", "function": {"name": "b", "parameters": None}}]  # fmt: skip
    schema = schema_of(*nothing, tool("c"), response_format={"type": "text"})
    arguments = [one["properties"]["arguments"] for one in schema["anyOf"]]
    assert arguments == [{"type": "object", "properties": {}}] * 2 + [{"type": "object"}]


def test_one_of_the_allowed_tools_is_called():
    """OpenAI's way to narrow the tools: one must be called, or may."""
    choice = allowed("required", named("a"), named("c"))
    asked = ask(tools=[tool("a"), tool("b"), tool("c")], tool_choice=choice)
    schema = body_of(asked)["response_format"]["json_schema"]["schema"]
    assert [one["properties"]["name"]["const"] for one in schema["anyOf"]] == ["a", "c"]

    choice["allowed_tools"]["mode"] = "auto"
    free = narrow_tools(asked, engine="llama_cpp")
    assert (free["tools"], free["tool_choice"]) == ([tool("a"), tool("c")], "auto")
    assert narrow_tools(asked, engine="vllm") is asked


WORDS = ["$ref", "$defs", "definitions", "properties", "a", "anyOf", "type", "enum"]
LEAVES = (
    st.none() | st.booleans() | st.integers() | st.sampled_from(["#", "#/$defs/a", "#/anyOf/0", "object"])
)
JSON = st.recursive(
    LEAVES,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(WORDS), inner, max_size=4),
    max_leaves=20,
)


@given(JSON, JSON, st.sampled_from(["whole", "function", "parameters", "choice", "messages"]))
def test_whatever_a_client_sends_is_a_request_or_left_alone(odd, other, place):
    """Nothing raises, and every reference that is sent on leads somewhere."""
    fields = {
        "whole": {"tools": odd},
        "function": {"tools": [{"type": "function", "function": odd}, other]},
        "parameters": {"tools": [tool("a", odd), tool("b", other)]},
        "choice": {"tool_choice": {"type": "allowed_tools", "allowed_tools": odd}},
        "messages": {"messages": odd, "response_format": other, "stream": odd},
    }[place]
    narrowed = must_call(ask(**fields))
    passage = None if narrowed is None else open_forced_call(narrowed, is_told=False)
    if passage is not None:
        schema = json.loads(passage.body)["response_format"]["json_schema"]["schema"]
        check_references(schema, schema.get("$defs", {}))


def check_references(node, definitions):
    for key, inner in (
        node.items() if isinstance(node, dict) else enumerate(node) if isinstance(node, list) else ()
    ):
        if key == "$ref":
            assert inner.removeprefix("#/$defs/") in definitions
        elif key != "enum":
            check_references(inner, definitions)


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
        {"index": 2, "message": {"role": "assistant", "content": CALL[:-4]}, "finish_reason": "length"},
        {"index": 3, "message": {"role": "assistant", "content": CALL[:9]}, "finish_reason": "stop"},
    ]}  # fmt: skip
    called, cut, begun, stopped = json.loads(passage.translate(json.dumps(answer).encode()))["choices"]

    (call,) = called["message"]["tool_calls"]
    assert (call["id"], call["type"], call["function"]["name"]) == ("call_7_0", "function", "greet")
    assert json.loads(call["function"]["arguments"]) == {"name": 'B\u00f6b "x"'}
    assert (called["message"]["content"], called["finish_reason"]) == (None, "tool_calls")
    assert cut == {"index": 1, "message": {"role": "assistant", "content": None}, "finish_reason": "length"}
    assert (begun["message"]["content"], begun["finish_reason"]) == (None, "length")
    (call,) = begun["message"]["tool_calls"]
    assert (call["id"], call["function"]["name"]) == ("call_7_2", "greet")
    assert json.dumps({"name": 'B\u00f6b "x"'}).startswith(call["function"]["arguments"])
    assert call["function"]["arguments"].startswith('{"name": "B')
    assert stopped == answer["choices"][3]


def event(delta, finish_reason=None, **fields):
    choice = {"index": 0, "delta": delta, "finish_reason": finish_reason}
    return b"data: " + json.dumps({"id": "chatcmpl-7", "object": "chat.completion.chunk",
                                   "choices": [choice]} | fields).encode() + b"\n\n"  # fmt: skip


@given(st.lists(st.integers(1, len(CALL) - 1), max_size=6), st.integers(1, 200), st.booleans())
def test_a_stream_becomes_a_call_however_it_is_cut(cuts, step, is_whole):
    """Streamed or not, the same call; one that was cut short is told as far as it came."""
    text = CALL if is_whole else CALL[:-4]
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
        (call,) = choice["message"]["tool_calls"]
        assert (call["function"]["name"], call["function"]["arguments"]) == (
            "greet",
            text[text.index('{"name": "B') :],
        )
        assert (choice["message"]["content"], choice["finish_reason"]) == (None, "length")


def test_an_error_inside_the_stream_is_told():
    """An engine that fails meanwhile says so; what cannot be read ends the stream."""
    stream = CallStream()
    assert b"boom" in stream.feed(b'data: {"error": {"message": "boom"}}\n\n')
    assert not stream.is_broken
    assert b"engine_answer" in stream.feed(b"data: {oops\n\n")
    assert stream.is_broken
    assert stream.feed(event({"content": "more"}) + b"data: [DONE]\n\n") == b""


DONE = b"data: [DONE]\n\n"


def tell(*events):
    stream = CallStream()
    return b"".join(stream.feed(one) for one in events) + stream.end()


@pytest.mark.parametrize(
    "ending",
    [
        pytest.param([DONE], id="no-finish"),
        pytest.param([b"data:[DONE]\r\n\r\n"], id="done-without-a-space"),
        pytest.param([event(None, "stop"), DONE], id="finish-without-a-delta"),
        pytest.param([], id="no-word-at-all"),
    ],
)
def test_a_whole_call_is_told_however_its_stream_ends(ending):
    """An engine that forgets to say why it ended has still made the call."""
    told = tell(event({"content": CALL[:20]}), event({"content": CALL[20:]}), *ending)
    assembly = Assembly()
    for document in decode_events(told):
        assembly.add(document)
    (choice,) = assembly.finish()["choices"]
    (call,) = choice["message"]["tool_calls"]
    assert (call["id"], call["function"]["name"], choice["finish_reason"]) == (
        "call_7_0",
        "greet",
        "tool_calls",
    )
    assert told.count(DONE) == len(ending[-1:])


def test_half_a_call_without_an_end_is_an_error():
    """Nobody takes it for an answer; an error that was told already is not told twice."""
    half = event({"content": CALL[:20]})
    (told,) = decode_events(tell(half, DONE))
    assert told["error"]["code"] == "engine_answer"
    boom = b'data: {"error": {"message": "boom"}}\n\n'
    assert [one["error"]["message"] for one in decode_events(tell(half, boom, DONE))] == ["boom"]


def test_a_text_about_the_end_is_no_end():
    """Only a line of its own ends a stream."""
    text = json.dumps({"name": "say", "arguments": {"it": "data: [DONE]"}})
    told = tell(event({"content": text[:-5]}), event({"content": text[-5:]}), event({}, "stop"), DONE)
    assert told.count(b"\n\ndata: [DONE]\n\n") == 1
    assert decode_events(told)[-1]["choices"][0]["finish_reason"] == "tool_calls"


@given(JSON, JSON, JSON)
def test_an_odd_stream_is_passed_on_or_an_error(index, delta, finish_reason):
    """Whatever an engine sends, the client is told, and the end comes once."""
    choice = {"index": index, "delta": delta, "finish_reason": finish_reason}
    for odd in (choice, delta, {"choices": [choice]}, {"choices": delta}, {"choices": [delta, choice]}):
        told = tell(event({"content": CALL[:5]}), b"data: " + json.dumps(odd).encode() + b"\n\n", DONE)
        assert told.endswith(DONE)
        assert told.count(DONE) == 1
        decode_events(told)


@pytest.mark.parametrize("index", [[1], "0", -1, 10**9, None])
def test_a_choice_without_a_place_ends_the_stream(index):
    """It cannot be told whose text it is."""
    odd = (
        b"data: " + json.dumps({"choices": [{"index": index, "delta": {"content": "{"}}]}).encode() + b"\n\n"
    )
    (told,) = decode_events(tell(odd, DONE))
    assert told["error"]["code"] == "engine_answer"
