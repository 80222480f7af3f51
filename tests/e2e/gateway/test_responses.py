"""OpenAI's Responses protocol with its own SDK, in front of engines that speak chats."""

import json

import openai
import pytest
from test_messages import TOOLED, USAGE, chunk

TOOL = {
    "type": "function",
    "name": "weather",
    "description": "Tells it",
    "parameters": {"type": "object", "properties": {"city": {"type": "string"}}},
    "strict": False,
}


def client_of(front, **changes):
    return openai.AsyncOpenAI(**{"base_url": f"{front.url}/v1", "api_key": "any", "max_retries": 0} | changes)


async def test_a_response_is_answered(front):
    """The SDK's first example works, and the engine is asked for a chat."""
    async with client_of(front) as client:
        response = await client.responses.create(
            model="m", instructions="Be brief.", input="Hi", max_output_tokens=50, temperature=0.5
        )
    assert (response.output_text, response.status, response.model) == ("hi", "completed", "m")
    assert (response.usage.input_tokens, response.usage.output_tokens) == (1, 1)
    assert (response.instructions, response.temperature) == ("Be brief.", 0.5)
    (seen,) = front.engine.requests
    assert seen.path == "/v1/chat/completions"
    assert seen.document == {
        "model": "m", "max_tokens": 50, "temperature": 0.5,
        "messages": [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "Hi"}],
    }  # fmt: skip


async def test_a_stream_has_thought_text_and_call_as_items(front):
    """Event by event as the SDK expects them, and the response it builds is whole."""
    async with client_of(front) as client:
        body = {"script": "chunks", "chunks": TOOLED}
        async with client.responses.stream(model="m", input="Hi", tools=[TOOL], extra_body=body) as stream:
            kinds = [event.type async for event in stream]
            response = await stream.get_final_response()
    thought, message, call = response.output
    assert (thought.content[0].text, message.content[0].text) == ("I must look.", "Looking it up.")
    assert (call.call_id, call.name, json.loads(call.arguments)) == ("call_1", "weather", {"city": "Paris"})
    assert (response.usage.input_tokens, response.usage.input_tokens_details.cached_tokens) == (12, 8)
    assert kinds == [
        "response.created", "response.in_progress",
        "response.output_item.added", "response.content_part.added", "response.reasoning_text.delta",
        "response.reasoning_text.done", "response.content_part.done", "response.output_item.done",
        "response.output_item.added", "response.content_part.added", "response.output_text.delta",
        "response.output_text.delta", "response.output_text.done", "response.content_part.done",
        "response.output_item.done",
        "response.output_item.added", "response.function_call_arguments.delta",
        "response.function_call_arguments.delta", "response.function_call_arguments.done",
        "response.output_item.done",
        "response.completed",
    ]  # fmt: skip


async def test_the_turn_after_a_call_is_a_chats(front):
    """Items of one turn become one message; outputs and images find their place."""
    items = [
        {"role": "user", "content": [
            {"type": "input_text", "text": "Where?"},
            {"type": "input_image", "image_url": "data:image/png;base64,AAAA", "detail": "auto"},
        ]},
        {"type": "reasoning", "id": "rs_1", "summary": [],
         "content": [{"type": "reasoning_text", "text": "Look."}]},
        {"type": "message", "id": "msg_1", "role": "assistant", "status": "completed",
         "content": [{"type": "output_text", "text": "Looking.", "annotations": []}]},
        {"type": "function_call", "call_id": "c1", "name": "weather", "arguments": "{}"},
        {"type": "function_call", "call_id": "c2", "name": "weather", "arguments": "{}"},
        {"type": "function_call_output", "call_id": "c1", "output": "rain"},
        {"type": "function_call_output", "call_id": "c2", "output": [{"type": "input_text", "text": "sun"}]},
    ]  # fmt: skip
    async with client_of(front) as client:
        await client.responses.create(
            model="m",
            input=items,
            tools=[TOOL],
            tool_choice={"type": "function", "name": "weather"},
            parallel_tool_calls=False,
            text={
                "format": {"type": "json_schema", "name": "n", "schema": {"type": "object"}, "strict": True}
            },
        )
    sent = front.engine.seen("/v1/chat/completions")[0].document
    call = {"type": "function", "function": {"name": "weather", "arguments": "{}"}}
    assert sent["messages"] == [
        {"role": "user", "content": [
            {"type": "text", "text": "Where?"},
            {"type": "image_url", "image_url": {"url": "data:image/png;base64,AAAA", "detail": "auto"}},
        ]},
        {"role": "assistant", "reasoning_content": "Look.", "content": "Looking.",
         "tool_calls": [{"id": "c1"} | call, {"id": "c2"} | call]},
        {"role": "tool", "tool_call_id": "c1", "content": "rain"},
        {"role": "tool", "tool_call_id": "c2", "content": "sun"},
    ]  # fmt: skip
    function = {name: TOOL[name] for name in ("name", "description", "parameters", "strict")}
    assert sent["tools"] == [{"type": "function", "function": function}]
    assert sent["tool_choice"] == {"type": "function", "function": {"name": "weather"}}
    assert sent["parallel_tool_calls"] is False
    assert sent["response_format"]["json_schema"] == {
        "name": "n", "schema": {"type": "object"}, "strict": True,
    }  # fmt: skip


@pytest.mark.parametrize(
    ("name", "fields", "is_on"),
    [
        ("m", {"reasoning": {"effort": "low"}}, True),
        ("m", {"reasoning": {"effort": "none"}}, False),
        ("m:thinking", {}, True),
        ("m", {}, False),
    ],
)
async def test_thinking_is_switched_as_for_a_chat(make_front, name, fields, is_on):
    """OpenAI's effort, our names and the model's default mean what they mean elsewhere."""
    front = await make_front(family="qwen3", thinking="off")
    async with client_of(front) as client:
        await client.responses.create(model=name, input="Hi", **fields)
    sent = front.engine.seen("/v1/chat/completions")[0].document
    assert sent["chat_template_kwargs"]["enable_thinking"] is is_on
    assert "reasoning" not in sent


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"previous_response_id": "resp_1"}, "previous_response_id"),
        ({"store": True}, "store"),
        ({"background": True}, "background"),
        ({"conversation": "conv_1"}, "conversation"),
        ({"tools": [{"type": "web_search"}]}, "tools[0].type"),
        ({"input": [{"type": "item_reference", "id": "x"}]}, "input[0].type"),
    ],
)
async def test_what_needs_a_memory_or_openai_is_one_clear_400(front, fields, param):
    """Named, with what would work."""
    async with client_of(front) as client:
        with pytest.raises(openai.BadRequestError) as raised:
            await client.responses.create(**{"model": "m", "input": "Hi"} | fields)
    assert raised.value.param == param
    assert front.engine.requests == []


async def test_an_answer_cut_by_its_limit_is_incomplete(front):
    """Status and reason say so, streamed or not."""
    chunks = [chunk({"content": "a"}), chunk({}, finish="length"), USAGE]
    async with client_of(front) as client:
        body = {"script": "chunks", "chunks": chunks}
        events = [
            event
            async for event in await client.responses.create(
                model="m", input="Hi", stream=True, extra_body=body
            )
        ]
    assert events[-1].type == "response.incomplete"
    assert events[-1].response.incomplete_details.reason == "max_output_tokens"
    assert events[-1].response.output[0].status == "incomplete"


@pytest.mark.parametrize("script", ["die_inside_stream", "error_inside_stream"])
async def test_an_engine_that_dies_inside_fails_the_response(front, script):
    """An error event and a failed response: no half answer looks whole."""
    async with client_of(front) as client:
        body = {"script": script}
        stream = await client.responses.create(model="m", input="Hi", stream=True, extra_body=body)
        events = [event async for event in stream]
    assert [event.type for event in events[-2:]] == ["error", "response.failed"]
    assert events[-2].message
    assert events[-1].response.status == "failed"


async def test_an_unknown_model_is_the_sdks_own_error(front):
    """The body is OpenAI's, as for a chat."""
    async with client_of(front) as client:
        with pytest.raises(openai.NotFoundError, match="does not exist"):
            await client.responses.create(model="x", input="Hi")
