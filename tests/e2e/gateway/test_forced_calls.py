"""A tool that llama.cpp must call, at the gateway's door: what is forced, what is not, and what is told."""

import json

import pytest

CALL = '{"name": "f", "arguments": {"city": "Rome"}}'
ASK = {"model": "m", "messages": [{"role": "user", "content": "x"}], "tool_choice": "required"}


def tool(parameters):
    return {"type": "function", "function": {"name": "f", "parameters": parameters}}


def chunk(delta, finish_reason=None, index=0):
    choice = {"index": index, "delta": delta, "finish_reason": finish_reason}
    return {"id": "chatcmpl-1", "object": "chat.completion.chunk", "created": 1, "model": "m",
            "choices": [choice]}  # fmt: skip


def sent(front):
    return next(one.document for one in reversed(front.engine.requests) if one.path.endswith("completions"))


@pytest.mark.parametrize(
    ("parameters", "is_forced"),
    [
        ({"type": "object", "$defs": [1]}, True),
        ({"type": "object", "definitions": 5}, True),
        (None, True),
        ({"type": "object", "properties": {"a": {"$ref": "#/$defs/A"}}, "$defs": "x"}, False),
        ({"type": "object", "properties": {"a": {"$ref": "https://example.com/schema"}}}, False),
    ],
)
@pytest.mark.parametrize("stream", [False, True])
async def test_odd_tools_are_forced_or_reach_the_engine_as_they_are(
    make_front, parameters, is_forced, stream
):
    """No request of a client fails within the gateway; what has no schema is the engine's to judge."""
    front = await make_front(engine="llama_cpp")
    told = [chunk({"content": CALL}), chunk({}, "stop")]
    fields = ASK | {"tools": [tool(parameters)], "stream": stream, "script": "chunks", "chunks": told}
    async with front.post("/v1/chat/completions", **fields) as answer:
        data = (await answer.read()).decode()
    assert answer.status == 200
    assert ("tool_calls" in data, "response_format" in sent(front)) == (is_forced, is_forced)
    if not is_forced:
        assert (sent(front)["tools"], sent(front)["tool_choice"]) == (fields["tools"], "required")
        assert "x-trimtab-repairs" not in answer.headers


@pytest.mark.parametrize(
    ("chunks", "end"),
    [
        ([chunk({"content": CALL})], '"tool_calls"'),
        ([chunk({"content": CALL}), chunk(None, "stop")], '"tool_calls"'),
        ([chunk({"content": CALL[:9]})], "inside the call of a tool"),
        ([chunk({"content": CALL}, index=[1])], "cannot be read"),
    ],
)
async def test_a_stream_that_ends_oddly_is_told_to_its_end(make_front, chunks, end):
    """The call where it is whole, else an error; and the end of the stream, once."""
    front = await make_front(engine="llama_cpp")
    fields = ASK | {"tools": [tool({})], "stream": True, "script": "chunks", "chunks": chunks}
    async with front.post("/v1/chat/completions", **fields) as answer:
        data = (await answer.read()).decode()
    assert end in data
    assert data.endswith("data: [DONE]\n\n")
    assert data.count("data: [DONE]") == 1
    assert data.count('"error"') == ('"tool_calls"' not in data)


@pytest.mark.parametrize("stream", [False, True])
async def test_a_call_cut_short_is_one_of_every_protocol(make_front, stream):
    """Arguments as far as they came, and the word for an answer that was too long."""
    front = await make_front(engine="llama_cpp")
    told = [chunk({"content": CALL[:-5]}), chunk({}, "length")]
    more = {"model": "m", "stream": stream, "script": "chunks", "chunks": told}
    asks = {
        "/v1/chat/completions": (ASK | {"tools": [tool({})]}, '"finish_reason": "length"'),
        "/v1/messages": (
            {"messages": ASK["messages"], "max_tokens": 9, "tool_choice": {"type": "any"},
             "tools": [{"name": "f", "input_schema": {"type": "object"}}]},
            '"stop_reason": "max_tokens"',
        ),
        "/v1/responses": (
            {"input": "x", "tool_choice": "required",
             "tools": [{"type": "function", "name": "f", "parameters": {"type": "object"}}]},
            '"status": "incomplete"',
        ),
    }  # fmt: skip
    for path, (fields, word) in asks.items():
        async with front.post(path, **fields | more) as answer:
            data = (await answer.read()).decode()
        assert answer.status == 200, data
        assert json.dumps(json.dumps({"city": "Rome"})[:-4])[1:-1] in data, path
        assert word in data, path
