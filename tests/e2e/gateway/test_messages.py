"""Anthropic's Messages protocol with its own SDK, in front of engines that speak chats."""

import json

import anthropic
import pytest

USER = {"role": "user", "content": "What is the weather in Paris?"}
TOOL = {
    "name": "weather",
    "description": "Tells it",
    "input_schema": {"type": "object", "properties": {"city": {"type": "string"}}},
}


def chunk(delta, *, finish=None, **more):
    choice = {"index": 0, "delta": delta, "finish_reason": finish} | more
    return {
        "id": "chatcmpl-7",
        "object": "chat.completion.chunk",
        "created": 1,
        "model": "e",
        "choices": [choice],
    }


USAGE = {
    "id": "chatcmpl-7", "object": "chat.completion.chunk", "created": 1, "model": "e", "choices": [],
    "usage": {"prompt_tokens": 12, "completion_tokens": 6, "prompt_tokens_details": {"cached_tokens": 8}},
}  # fmt: skip
CALL = {"index": 0, "id": "call_1", "type": "function", "function": {"name": "weather", "arguments": ""}}
TOOLED = [
    chunk({"role": "assistant", "content": ""}),
    chunk({"reasoning": "I must look."}),
    chunk({"content": "Looking"}),
    chunk({"content": " it up."}),
    chunk({"tool_calls": [CALL]}),
    chunk({"tool_calls": [{"index": 0, "function": {"arguments": '{"city": '}}]}),
    chunk({"tool_calls": [{"index": 0, "function": {"arguments": '"Paris"}'}}]}),
    chunk({}, finish="tool_calls"),
    USAGE,
]


def client_of(front, **changes):
    return anthropic.AsyncAnthropic(**{"base_url": front.url, "api_key": "any", "max_retries": 0} | changes)


def ask(**changes):
    return {"model": "m", "max_tokens": 50, "messages": [USER]} | changes


async def test_a_message_is_answered(front):
    """The SDK's first example works, and the engine is asked for a chat."""
    async with client_of(front) as client:
        message = await client.messages.create(
            **ask(system="Be brief.", stop_sequences=["END"]), extra_body={"temperature": 0.5, "top_k": 5}
        )
    assert (message.content[0].text, message.stop_reason, message.model) == ("hi", "end_turn", "m")
    assert (message.usage.input_tokens, message.usage.output_tokens) == (1, 1)
    (seen,) = front.engine.requests
    assert seen.path == "/v1/chat/completions"
    assert seen.document == {
        "model": "m", "max_tokens": 50, "stop": ["END"], "temperature": 0.5, "top_k": 5,
        "messages": [{"role": "system", "content": "Be brief."}, USER],
    }  # fmt: skip
    counted = 'trimtab_requests_total{endpoint="/v1/messages",model="m",status="200"}'
    assert await front.metric(counted) == 1


async def test_a_stream_has_thought_text_and_tool_in_blocks_of_their_own(front):
    """Event by event as the SDK expects them, and the message it builds is whole."""
    async with client_of(front) as client:
        body = {"script": "chunks", "chunks": TOOLED}
        async with client.messages.stream(**ask(tools=[TOOL]), extra_body=body) as stream:
            kinds = [event.type async for event in stream if event.type.startswith(("message", "content"))]
            message = await stream.get_final_message()
    thinking, text, tool = message.content
    assert (thinking.thinking, text.text) == ("I must look.", "Looking it up.")
    assert (tool.id, tool.name, tool.input) == ("call_1", "weather", {"city": "Paris"})
    assert message.stop_reason == "tool_use"
    usage = message.usage
    assert (usage.input_tokens, usage.cache_read_input_tokens, usage.output_tokens) == (4, 8, 6)
    block = ["content_block_start", "content_block_delta", "content_block_delta", "content_block_stop"]
    assert kinds == ["message_start", *block * 3, "message_delta", "message_stop"]


async def test_tools_and_their_results_go_to_the_engine(front):
    """The second turn of a tool call is the one that a chat would send."""
    turns = [
        USER,
        {
            "role": "assistant",
            "content": [
                {"type": "thinking", "thinking": "Look.", "signature": ""},
                {"type": "text", "text": "Looking."},
                {"type": "tool_use", "id": "call_1", "name": "weather", "input": {"city": "Paris"}},
            ],
        },
        {
            "role": "user",
            "content": [
                {
                    "type": "tool_result",
                    "tool_use_id": "call_1",
                    "content": [{"type": "text", "text": "rain"}],
                },
                {"type": "text", "text": "And now?"},
                {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": "AAAA"}},
            ],
        },
    ]
    async with client_of(front) as client:
        await client.messages.create(
            **ask(
                messages=turns, tools=[TOOL], tool_choice={"type": "any", "disable_parallel_tool_use": True}
            )
        )
    sent = front.engine.seen("/v1/chat/completions")[0].document
    assert sent["messages"][1:] == [
        {
            "role": "assistant",
            "content": "Looking.",
            "reasoning_content": "Look.",
            "tool_calls": [
                {"id": "call_1", "type": "function",
                 "function": {"name": "weather", "arguments": '{"city": "Paris"}'}},
            ],
        },
        {"role": "tool", "tool_call_id": "call_1", "content": "rain"},
        {
            "role": "user",
            "content": [
                {"type": "text", "text": "And now?"},
                {"type": "image_url", "image_url": {"url": "data:image/png;base64,AAAA"}},
            ],
        },
    ]  # fmt: skip
    function = {"name": "weather", "description": "Tells it", "parameters": TOOL["input_schema"]}
    assert sent["tools"] == [{"type": "function", "function": function}]
    assert (sent["tool_choice"], sent["parallel_tool_calls"]) == ("required", False)


@pytest.mark.parametrize(
    ("name", "fields", "is_on", "budget"),
    [
        ("m", {"thinking": {"type": "enabled", "budget_tokens": 1024}}, True, 1024),
        ("m", {"thinking": {"type": "disabled"}}, False, None),
        ("m", {"thinking": {"type": "adaptive"}, "output_config": {"effort": "low"}}, True, 1024),
        ("m", {"thinking": {"type": "between_tools"}}, True, 1536),
        ("m:thinking", {}, True, 1536),
        ("m:instant", {}, False, None),
        ("m", {}, False, None),
    ],
)
async def test_thinking_is_switched_as_for_a_chat(make_front, name, fields, is_on, budget):
    """Anthropic's field, its effort, our names and the model's default mean what they mean elsewhere."""
    front = await make_front(family="qwen3.5", thinking="off")
    async with client_of(front) as client:
        await client.messages.create(**ask(model=name, max_tokens=2048, **fields))
    sent = front.engine.seen("/v1/chat/completions")[0].document
    assert sent["chat_template_kwargs"]["enable_thinking"] is is_on
    assert sent.get("thinking_token_budget") == budget
    assert "thinking" not in sent


async def test_a_thought_inside_the_text_becomes_a_block(make_front):
    """What an engine left in the text is split as for a chat."""
    front = await make_front(family="qwen3.5", thinking="on", settings={"reasoning_fields": "inline"})
    chunks = [
        chunk({"content": "Let me see.</thi"}),
        chunk({"content": "nk>\n\nSunny."}),
        chunk({}, finish="stop"),
    ]
    async with client_of(front) as client:
        body = {"script": "chunks", "chunks": chunks}
        async with client.messages.stream(**ask(), extra_body=body) as stream:
            message = await stream.get_final_message()
    assert [block.type for block in message.content] == ["thinking", "text"]
    assert (message.content[0].thinking, message.content[1].text) == ("Let me see.", "Sunny.")


@pytest.mark.parametrize(
    ("headers", "fields"),
    [
        ({"x-trimtab-reasoning": "none"}, {}),
        ({}, {"thinking": {"type": "enabled", "budget_tokens": 1024, "display": "omitted"}}),
    ],
)
async def test_a_client_that_wants_no_thoughts_gets_none(make_front, headers, fields):
    """Our header and Anthropic's own word hide the block."""
    front = await make_front(family="qwen3.5", thinking="on")
    async with client_of(front, default_headers=headers) as client:
        body = {"script": "chunks", "chunks": TOOLED}
        async with client.messages.stream(**ask(tools=[TOOL], **fields), extra_body=body) as stream:
            message = await stream.get_final_message()
    assert [block.type for block in message.content] == ["text", "tool_use"]


@pytest.mark.parametrize(
    ("changes", "error", "words"),
    [
        pytest.param({"model": "x"}, anthropic.NotFoundError, "does not exist", id="model"),
        pytest.param({"max_tokens": 9999}, anthropic.BadRequestError, "above the 4,096", id="too-long"),
        pytest.param({"messages": [{"role": "x", "content": ""}]}, anthropic.BadRequestError,
                     "messages[0].role", id="role"),
        pytest.param({"tools": [{"type": "web_search_20250305", "name": "web_search"}]},
                     anthropic.BadRequestError, "tools[0].type", id="server-tool"),
    ],
)  # fmt: skip
async def test_errors_are_anthropics(front, changes, error, words):
    """The SDK raises its own exceptions, with our sentence in them."""
    async with client_of(front) as client:
        with pytest.raises(error) as raised:
            await client.messages.create(**ask(**changes))
    body = raised.value.body
    assert (body["type"], words in body["error"]["message"]) == ("error", True)
    assert body["request_id"]


async def test_an_engines_error_is_anthropics_too(front):
    """Whoever spoke is told beside it."""
    async with client_of(front) as client:
        body = {"script": "told", "status": "400 Bad Request", "say": {"error": {"message": "no"}}}
        with pytest.raises(anthropic.BadRequestError) as raised:
            await client.messages.create(**ask(), extra_body=body)
    assert raised.value.body["error"] == {
        "type": "invalid_request_error", "message": "no", "origin": "engine",
    }  # fmt: skip


@pytest.mark.parametrize("script", ["die_inside_stream", "error_inside_stream"])
async def test_an_engine_that_dies_inside_is_an_error_event(front, script):
    """The SDK raises instead of taking half an answer for a whole one."""
    async with (
        client_of(front) as client,
        client.messages.stream(**ask(), extra_body={"script": script}) as stream,
    ):
        with pytest.raises(anthropic.APIStatusError):
            await stream.get_final_message()


async def test_the_key_comes_as_x_api_key_or_as_a_token(make_front):
    """Both of the SDK's ways in; a wrong key is Anthropic's 401, and no key goes upstream."""
    front = await make_front(settings={"keys": ("sk-ours",)})
    for way in ({"api_key": "sk-ours"}, {"api_key": None, "auth_token": "sk-ours"}):
        async with client_of(front, **way) as client:
            assert (await client.messages.create(**ask())).content[0].text == "hi"
    async with client_of(front, api_key="sk-wrong") as client:
        with pytest.raises(anthropic.AuthenticationError) as raised:
            await client.messages.create(**ask())
    assert raised.value.body["error"]["type"] == "authentication_error"
    assert not any({"x-api-key", "authorization"} & set(seen.headers) for seen in front.engine.requests)


async def test_a_silent_stream_is_kept_alive_with_pings(make_front):
    """Before the message comments, inside it Anthropic's own event."""
    front = await make_front(settings={"keep_alive_s": 0.2})
    chunks = [chunk({"content": "a"}), chunk({"content": "b"}), chunk({}, finish="stop")]
    body = ask(stream=True, script="chunks", chunks=chunks, gap_s=0.5)
    async with front.post("/v1/messages", data=json.dumps(body).encode()) as answer:
        text = await answer.text()
    assert 'event: ping\ndata: {"type": "ping"}\n\n' in text
    assert text.endswith('event: message_stop\ndata: {"type": "message_stop"}\n\n')


@pytest.mark.parametrize(
    ("engine", "path"), [("llama_cpp", "/v1/chat/completions/input_tokens"), ("vllm", "/tokenize")]
)
async def test_tokens_are_counted(make_front, engine, path):
    """By the engine's own way, the thinking switched as for the request itself."""
    front = await make_front(engine=engine, family="qwen3.5", thinking="off")
    front.engine.prompt_tokens = 17
    async with client_of(front) as client:
        counted = await client.messages.count_tokens(
            model="m:thinking", messages=[USER], system="Be brief.", tools=[TOOL]
        )
    assert counted.input_tokens == 17
    (seen,) = front.engine.requests
    assert seen.path == path
    assert seen.document["chat_template_kwargs"] == {"enable_thinking": True}
    assert [message["role"] for message in seen.document["messages"]] == ["system", "user"]
