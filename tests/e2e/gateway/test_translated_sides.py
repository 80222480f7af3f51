"""What is translated and goes wrong on a side: Messages and Responses, in the client's own words."""

import asyncio
import gzip
import json

import pytest
from scripted_engine import SCRIPTS, STREAM_HEAD, chunked, event, eventually

from trimtab.gateway import chat_events

MESSAGE = {"max_tokens": 5, "messages": [{"role": "user", "content": "x"}]}
ASK = {"/v1/messages": MESSAGE, "/v1/responses": {"input": "x"}}
TOOL = {"name": "f", "input_schema": {"type": "object"}}
FUNCTION = {"type": "function", "name": "f", "parameters": {"type": "object"}}
DEEP = b'{"error": ' + b"[" * 975 + b"]" * 975 + b"}"


async def error_of(answer):
    return json.loads(await answer.read())["error"]


@pytest.mark.parametrize("path", list(ASK))
@pytest.mark.parametrize("said", [[], 5, None, "x", {}, {"choices": []}, {"choices": 5}, {"choices": [5]}])
@pytest.mark.parametrize("engine", ["external", "vllm"])
async def test_rubbish_is_a_502_that_says_so(make_front, path, said, engine):
    """A 200 that is no answer of a chat cannot be told as one."""
    front = await make_front(engine=engine)
    async with front.post(path, model="m", script="told", say=said, **ASK[path]) as answer:
        error = await error_of(answer)
    assert (answer.status, error["code"]) == (502, "engine_answer")
    assert "'m'" in error["message"]
    assert "it is no object with choices" in error["message"]


@pytest.mark.parametrize("path", [*ASK, "/v1/chat/completions"])
@pytest.mark.parametrize("status", [400, 500])
async def test_an_error_nested_too_deeply_is_told_as_text(make_front, path, status):
    """Its status stays the endpoint's."""
    front = await make_front(engine="external")
    fields = {"script": "refuse", "answer": DEEP.decode(), "status": status}
    async with front.post(path, model="m", **fields, **ASK.get(path, {})) as answer:
        error = await error_of(answer)
    assert answer.status == status
    assert "[[[" in error["message"]


@pytest.mark.parametrize(
    ("path", "first"), [("/v1/messages", "message_start"), ("/v1/responses", "response.created")]
)
@pytest.mark.parametrize("as_text", [False, True])
async def test_a_stream_wished_in_extra_body_is_translated(front, path, first, as_text):
    """The client gets its own protocol's events, the usage too, and is told of the repair."""
    extra = {"stream": True, "min_p": 0.1}
    extra = json.dumps(extra) if as_text else extra
    async with front.post(path, model="m", extra_body=extra, **ASK[path]) as answer:
        data = (await answer.read()).decode()
    assert answer.headers["X-Trimtab-Repairs"] == "extra-body"
    assert data.startswith(f"event: {first}\n")
    assert "chat.completion.chunk" not in data
    (seen,) = front.engine.requests
    assert (seen.document["stream_options"], seen.document["min_p"]) == ({"include_usage": True}, 0.1)
    assert "extra_body" not in seen.document


@pytest.mark.parametrize("path", list(ASK))
async def test_extra_body_stays_where_the_repair_is_off(front, path):
    """Then it is a field like any other, and no stream begins."""
    headers = {"X-Trimtab-Repairs": "none"}
    fields = {"model": "m", "extra_body": {"stream": True}, **ASK[path]}
    async with front.post(path, headers=headers, **fields) as answer:
        assert (answer.status, answer.content_type) == (200, "application/json")
    assert front.engine.requests[0].document["extra_body"] == {"stream": True}


@pytest.mark.parametrize(
    ("path", "fields", "words"),
    [
        ("/v1/messages", {"tool_choice": {"type": "any"}}, "demands a tool, and there are no tools"),
        ("/v1/messages", {"tool_choice": {"type": "tool", "name": "f"}}, "the tool 'f', and there are no"),
        (
            "/v1/messages", {"tools": [TOOL], "tool_choice": {"type": "tool", "name": "g"}},
            "the tool 'g', and it is none of tools; tools has f",
        ),
        ("/v1/messages", {"tools": [], "tool_choice": {"type": "any"}}, "there are no tools"),
        ("/v1/responses", {"tool_choice": "required"}, "demands a tool, and there are no tools"),
        (
            "/v1/responses", {"tools": [FUNCTION], "tool_choice": {"type": "function", "name": "g"}},
            "the tool 'g', and it is none of tools; tools has f",
        ),
    ],
)  # fmt: skip
async def test_a_tool_that_is_not_there_cannot_be_demanded(front, path, fields, words):
    """What would be ignored by one engine and a fault of another is one sentence."""
    async with front.post(path, model="m", **ASK[path], **fields) as answer:
        error = await error_of(answer)
    assert (answer.status, error["param"]) == (400, "tool_choice")
    assert words in error["message"]
    assert front.engine.requests == []


NAMED_G = {"type": "function", "function": {"name": "g"}}
CHAT_TOOL = {"type": "function", "function": {"name": "f"}}
CHAT = {"model": "m", "messages": [{"role": "user", "content": "x"}]}


@pytest.mark.parametrize("engine", ["llama_cpp", "vllm", "external"])
@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"tool_choice": "required"}, "tool_choice demands a tool, and there are no tools; send tools"),
        ({"tool_choice": "required", "tools": []}, "demands a tool, and there are no tools"),
        ({"tool_choice": "required", "tools": None}, "demands a tool, and there are no tools"),
        ({"tool_choice": NAMED_G}, "the tool 'g', and there are no tools"),
        (
            {
                "tool_choice": {
                    "type": "allowed_tools",
                    "allowed_tools": {"mode": "required", "tools": [NAMED_G]},
                },
                "tools": [CHAT_TOOL],
            },
            "the tool 'g', and it is none of tools",
        ),
        ({"tool_choice": NAMED_G, "tools": []}, "the tool 'g', and there are no tools"),
        (
            {"tool_choice": NAMED_G, "tools": [CHAT_TOOL]},
            "the tool 'g', and it is none of tools; tools has f",
        ),
        ({"extra_body": {"tool_choice": NAMED_G, "tools": [CHAT_TOOL]}}, "the tool 'g', and it is none of"),
    ],
)
@pytest.mark.parametrize("is_stream", [False, True])
async def test_nor_by_a_chat(make_front, engine, fields, words, is_stream):
    """Whatever the engine would make of it, repairs or not."""
    front = await make_front(engine=engine)
    headers = {} if "extra_body" in fields else {"X-Trimtab-Repairs": "none"}
    async with front.post(headers=headers, stream=is_stream, **CHAT, **fields) as answer:
        error = await error_of(answer)
    assert (answer.status, error["param"], error["origin"]) == (400, "tool_choice", "gateway")
    assert words in error["message"]
    assert front.engine.requests == []


async def test_nor_by_a_chat_that_comes_compressed(front):
    """The gateway has to open such a body to see it."""
    body = gzip.compress(json.dumps({**CHAT, "tool_choice": "required"}).encode())
    async with front.post(data=body, headers={"Content-Encoding": "gzip"}) as answer:
        assert (answer.status, (await error_of(answer))["param"]) == (400, "tool_choice")
    assert front.engine.requests == []


@pytest.mark.parametrize(
    "fields",
    [
        {"tool_choice": "auto"}, {"tool_choice": "none"}, {"tool_choice": None},
        {"tool_choice": "none", "tools": []},
        {"tool_choice": {"type": "allowed_tools", "allowed_tools": {"mode": "auto", "tools": [NAMED_G]}}},
        {"tool_choice": "required", "tools": [CHAT_TOOL]},
        {"tool_choice": {"type": "function", "function": {"name": "f"}}, "tools": [CHAT_TOOL]},
        # Kinds of tools that only somebody else's endpoint knows.
        {"tool_choice": NAMED_G, "tools": [{"type": "custom", "custom": {"name": "g"}}]},
    ],
)  # fmt: skip
async def test_what_can_be_chosen_passes(make_front, fields):
    """Nothing else is refused, and nothing is changed."""
    front = await make_front(engine="external")
    async with front.post(**CHAT, **fields) as answer:
        assert answer.status == 200
    sent = front.engine.requests[0].document
    assert {name: sent.get(name) for name in fields} == fields


@pytest.mark.parametrize("choice", [{"type": "auto"}, {"type": "none"}])
async def test_a_choice_that_demands_nothing_needs_no_tools(front, choice):
    """As Anthropic's own service has it."""
    async with front.post("/v1/messages", model="m", tool_choice=choice, **MESSAGE) as answer:
        assert answer.status == 200


@pytest.mark.parametrize(
    ("path", "fields", "param", "words"),
    [
        ("/v1/responses", {"max_output_tokens": 0}, "max_output_tokens", "max_output_tokens is 0"),
        ("/v1/responses", {"max_output_tokens": "x"}, "max_output_tokens", 'max_output_tokens is "x"'),
        ("/v1/responses", {"reasoning": {"effort": "huge"}}, "reasoning.effort", "reasoning.effort is 'huge"),
        (
            "/v1/messages", {"thinking": {"type": "enabled"}, "output_config": {"effort": "huge"}},
            "output_config.effort", "output_config.effort is 'huge'",
        ),
        # A client that writes the chat's own word reads it again.
        ("/v1/responses", {"reasoning_effort": "huge"}, "reasoning_effort", "reasoning_effort is 'huge'"),
    ],
)  # fmt: skip
async def test_errors_name_the_clients_own_field(make_front, path, fields, param, words):
    """Nobody has to know that a chat is asked."""
    front = await make_front(family="qwen3.5")
    async with front.post(path, model="m", **ASK[path], **fields) as answer:
        error = await error_of(answer)
    assert (answer.status, error["param"]) == (400, param)
    assert error["message"].startswith(words)


@pytest.mark.parametrize("path", list(ASK))
@pytest.mark.parametrize("number", ["NaN", "Infinity", "1e999"])
async def test_a_number_that_is_none_comes_back_to_nobody(make_front, path, number):
    """The answer repeats the request's fields, and must stay JSON."""
    front = await make_front(engine="external")
    body = json.dumps({"model": "m", **ASK[path]})[:-1] + f', "temperature": {number}}}'
    async with front.post(path, data=body.encode()) as answer:
        error = await error_of(answer)
    assert answer.status == 400
    assert number in error["message"]


@pytest.mark.parametrize(("path", "last"), [("/v1/messages", "error"), ("/v1/responses", "response.failed")])
async def test_an_event_without_end_ends_the_stream_and_the_engines_work(front, path, last, monkeypatch):
    """The client reads the error as the last event, and the engine is let go, though it would go on."""
    monkeypatch.setattr(chat_events, "_MAX_EVENT_BYTES", 2_000_000)

    async def endless(run):
        await run.send(STREAM_HEAD + chunked(event("w0")) + chunked(b'data: {"x": "'))
        await run.send(chunked(b"y" * 2_500_000))
        await asyncio.sleep(60)

    monkeypatch.setitem(SCRIPTS, "endless_event", endless)
    async with front.post(path, model="m", stream=True, script="endless_event", **ASK[path]) as answer:
        data = await asyncio.wait_for(answer.read(), 10)
    events = [part for part in data.decode().split("\n\n") if part]
    assert events[-1].startswith(f"event: {last}\n")
    assert "longer than 2,000,000 bytes" in events[-1]
    await eventually(lambda: front.engine.requests[0].ended == "abandoned")
