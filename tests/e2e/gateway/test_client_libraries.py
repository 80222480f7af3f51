"""Clients that people use, as they are: the openai SDK, and LangChain's ChatOpenAI on top of it."""

import httpx
import openai
import pytest
from langchain_core.messages import AIMessage, HumanMessage, ToolMessage
from langchain_core.tools import tool
from langchain_openai import ChatOpenAI
from scripted_engine import COMPLETION
from test_messages import TOOLED, chunk

EMBEDDED = {
    "object": "list", "model": "e", "usage": {"prompt_tokens": 2, "total_tokens": 2},
    "data": [{"object": "embedding", "index": 0, "embedding": [0.5, -0.25]}],
}  # fmt: skip


@tool
def weather(city: str) -> str:
    """Tells the weather."""
    return f"rain in {city}"


@pytest.fixture
async def langchain():
    """Makes LangChain's chat models; their connections are closed at the end, which it leaves to itself."""
    async with httpx.AsyncClient() as client:

        def make(front, **changes):
            given = {"base_url": f"{front.url}/v1", "api_key": "any", "model": "m", "max_retries": 0}
            return ChatOpenAI(**given | {"http_async_client": client} | changes)

        yield make


async def test_the_openai_sdk_chats_streams_and_embeds(front):
    """Its typed answers are filled from ours."""
    async with openai.AsyncOpenAI(base_url=f"{front.url}/v1", api_key="any") as client:
        ask = {"model": "m", "messages": [{"role": "user", "content": "Hi"}]}
        answer = await client.chat.completions.create(**ask)
        assert answer.choices[0].message.content == "hi"
        stream = await client.chat.completions.create(**ask, stream=True)
        text = "".join([event.choices[0].delta.content or "" async for event in stream])
        assert text == "w0w1w2"
        body = {"script": "told", "say": EMBEDDED}
        embedded = await client.embeddings.create(
            model="m", input="a", encoding_format="float", extra_body=body
        )
        assert embedded.data[0].embedding == [0.5, -0.25]
        assert [model.id async for model in client.models.list()] == ["m"]


async def test_langchain_chats_and_streams(front, langchain):
    """Whole and in pieces, with usage."""
    model = langchain(front)
    answer = await model.ainvoke([HumanMessage("Hi")])
    assert (answer.content, answer.usage_metadata["output_tokens"]) == ("hi", 1)
    pieces = [piece.content async for piece in model.astream([HumanMessage("Hi")])]
    assert "".join(pieces) == "w0w1w2"


@pytest.mark.parametrize("is_response", [False, True], ids=["chat", "responses"])
async def test_langchains_tools_go_round(front, langchain, is_response):
    """A streamed call is understood, and its result goes back to the engine as a chat's."""
    body = {"script": "chunks", "chunks": TOOLED}
    model = langchain(front, use_responses_api=is_response).bind_tools([weather])
    message = None
    async for piece in model.astream([HumanMessage("Weather?")], extra_body=body):
        message = piece if message is None else message + piece
    (call,) = message.tool_calls
    assert (call["name"], call["args"], call["id"]) == ("weather", {"city": "Paris"}, "call_1")
    history = [
        HumanMessage("Weather?"),
        message,
        ToolMessage(weather.invoke(call["args"]), tool_call_id=call["id"]),
    ]
    answer = await model.ainvoke(history)
    assert isinstance(answer, AIMessage)
    assert answer.text == "hi"
    sent = front.engine.requests[-1].document["messages"]
    assert [item["role"] for item in sent] == ["user", "assistant", "tool"]
    assert sent[1]["tool_calls"][0]["id"] == sent[2]["tool_call_id"] == "call_1"
    assert sent[2]["content"] == "rain in Paris"


async def test_langchain_gets_structured_output_by_a_schema(front, langchain):
    """Its JSON schema arrives at the engine, and the answer is parsed."""
    message = {"role": "assistant", "content": '{"n": 4}'}
    say = COMPLETION | {"choices": [{"index": 0, "message": message, "finish_reason": "stop"}]}
    bound = langchain(front, extra_body={"script": "told", "say": say}).with_structured_output(
        {"title": "Answer", "type": "object", "properties": {"n": {"type": "integer"}}}, method="json_schema"
    )
    assert await bound.ainvoke([HumanMessage("four?")]) == {"n": 4}
    assert front.engine.requests[0].document["response_format"]["json_schema"]["name"] == "Answer"


async def test_a_langchain_chat_thinks_as_it_is_told(make_front, langchain):
    """``reasoning_effort`` switches, and the thought does not spoil the answer."""
    front = await make_front(family="qwen3.5", thinking="off")
    chunks = [chunk({"content": "Hm.</think>\n\nFour."}), chunk({}, finish="stop")]
    model = langchain(front, reasoning_effort="low")
    text = ""
    async for piece in model.astream([HumanMessage("?")], extra_body={"script": "chunks", "chunks": chunks}):
        text += piece.text
    assert text == "Four."
    assert front.engine.requests[0].document["chat_template_kwargs"]["enable_thinking"] is True
