"""Thinking from socket to socket: what the engine gets, what the client reads, whatever the engine does."""

import json

import openai
import pytest
from reasoning_cases import CASES, Case, content, reasoning
from replayed_answers import replayed
from scripted_engine import eventually

from trimtab.gateway.assemble import Assembly, decode_events
from trimtab.gateway.reasoning_stream import CUT_THOUGHT_NOTE

CHAT = "/v1/chat/completions"
KWARGS = "chat_template_kwargs"
ENGINES = ["vllm", "llama_cpp", "external"]


def ask(front, *, messages=None, **fields):
    return front.post(messages=messages or [{"role": "user", "content": "hi"}], **fields)


def sent(front, at=-1):
    return front.engine.seen(CHAT)[at].document


def message_of(stream):
    assembly = Assembly()
    for document in decode_events(stream):
        assembly.add(document)
    assert assembly.is_whole
    return assembly.finish()["choices"][0]["message"]


def texts(message):
    assert message.get("reasoning") == message.get("reasoning_content")
    return message.get("reasoning_content") or "", message.get("content") or ""


def wishes(case):
    return {"enable_thinking": case.is_on}


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
async def test_every_reported_answer_is_read_right(make_front, case, engine):
    """Streamed a byte at a time or unstreamed, thought and answer are where they belong."""
    front = await make_front(engine=engine, family=case.family)
    fields = replayed(case.stream(), cuts="all", stream=True, **wishes(case))
    async with ask(front, **fields) as answer:
        streamed = await answer.read()
        assert answer.status == 200

    assert texts(message_of(streamed)) == (case.thought, case.answer)
    body = case.stream() if engine == "llama_cpp" else json.dumps(case.whole()).encode()
    async with ask(front, **replayed(body, **wishes(case))) as answer:
        whole = (await answer.json())["choices"][0]
    assert texts(whole["message"]) == (case.thought, case.answer)
    assert whole["finish_reason"] == case.finish


async def test_every_cut_gives_the_same(make_front):
    """Wherever the network cuts a stream with multi-byte text, the client gets the same bytes."""
    front = await make_front(family="qwen3.5")
    case = next(case for case in CASES if case.name == "multi-byte")
    data = case.stream()

    async def get(cuts):
        async with ask(front, **replayed(data, cuts=cuts, stream=True)) as answer:
            return await answer.read()

    expected = await get([])
    for at in range(1, len(data)):
        assert await get([at]) == expected


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize(
    ("fields", "is_on"),
    [
        pytest.param({}, True, id="default"),
        pytest.param({KWARGS: {"enable_thinking": False}}, False, id="template"),
        pytest.param({"extra_body": {KWARGS: {"enable_thinking": False}}}, False, id="extra-body"),
        pytest.param({"enable_thinking": False}, False, id="bare"),
        pytest.param({"reasoning_effort": "none"}, False, id="effort"),
        pytest.param({"thinking": {"type": "disabled"}}, False, id="anthropic"),
        pytest.param({"model": "m:instant"}, False, id="name-off"),
        pytest.param({"model": "m:thinking"}, True, id="name-on"),
        pytest.param({"messages": [{"role": "user", "content": "hi /no_think"}]}, False, id="word"),
    ],
)
async def test_every_switch_reaches_the_engine_and_is_told(make_front, fields, is_on, engine):
    """One flag for the engine, one line for the client, whichever way it was said."""
    front = await make_front(family="qwen3.5", engine=engine)
    async with ask(front, **{"stream": True} | fields) as answer:
        assert answer.headers["x-trimtab-thinking"].startswith("on;" if is_on else "off;")

    assert sent(front)[KWARGS] == {"enable_thinking": is_on}
    assert sent(front).get("model", "m") == "m"


async def test_the_models_default_rules(make_front):
    """``thinking: off`` in the stack file holds for requests that do not say."""
    front = await make_front(family="qwen3.5", thinking="off")
    async with ask(front) as answer:
        assert answer.headers["x-trimtab-thinking"] == "off; by=default"


async def test_a_contradiction_is_a_400_and_costs_the_engine_nothing(make_front):
    """Two fields that say the opposite are both named."""
    front = await make_front(family="qwen3")
    async with ask(front, enable_thinking=True, reasoning_effort="none") as answer:
        error = (await answer.json())["error"]

    assert (answer.status, error["code"]) == (400, "thinking_contradiction")
    assert "enable_thinking" in error["message"]
    assert "reasoning_effort" in error["message"]
    assert front.engine.seen(CHAT) == []


@pytest.mark.parametrize("engine", ENGINES)
async def test_a_plain_models_bytes_pass_as_they_are(make_front, engine):
    """A model without thinking is neither asked nor answered differently."""
    front = await make_front(engine=engine)
    data = Case("", content("<think>a</think>", "b /no_think"), "stop", "", "").stream()
    body = json.dumps(
        {"messages": [{"role": "user", "content": "hi /no_think"}], "enable_thinking": False}
        | replayed(data, stream=True)
    ).encode()
    async with front.post(data=body) as answer:
        assert await answer.read() == data
        assert answer.headers["x-trimtab-thinking"].startswith("not switched; family=plain")

    assert front.engine.seen(CHAT)[0].body == body


@pytest.mark.parametrize("stream", [True, False])
async def test_a_switch_that_a_plain_model_lacks_is_told_and_passed_on(make_front, stream):
    """The client reads in the header that nothing was switched; the engine gets what was sent."""
    front = await make_front(engine="vllm", family="plain")
    async with ask(front, enable_thinking=False, stream=stream) as answer:
        await answer.read()
        told = answer.headers["x-trimtab-thinking"]
    async with ask(front, stream=stream) as answer:
        await answer.read()
        assert "x-trimtab-thinking" not in answer.headers

    assert told == "not switched; family=plain; passed on=enable_thinking"
    assert sent(front, 0)["enable_thinking"] is False


async def test_a_plain_models_reasoning_field_gets_its_second_name(make_front):
    """A client that only knows the older name finds the thought of an engine that only knows the newer."""
    front = await make_front(engine="vllm")
    case = Case("", (*reasoning("Hm"), *content("Hi")), "stop", "Hm", "Hi")
    async with ask(front, **replayed(case.stream(), stream=True)) as answer:
        assert texts(message_of(await answer.read())) == ("Hm", "Hi")


async def test_virtual_names_are_listed(make_front):
    """A page that can only choose among models can choose thinking."""
    front = await make_front(family="qwen3")
    async with front.session.get(front.url + "/v1/models") as answer:
        assert [model["id"] for model in (await answer.json())["data"]] == ["m", "m:thinking", "m:instant"]


async def test_virtual_names_need_not_be_listed(make_front):
    """A page with many models shows each once; who knows the other names may use them."""
    front = await make_front(family="qwen3", settings={"list_thinking_names": False})
    async with front.session.get(front.url + "/v1/models") as answer:
        assert [model["id"] for model in (await answer.json())["data"]] == ["m"]
    async with ask(front, model="m:instant", stream=True) as answer:
        assert answer.headers["x-trimtab-thinking"].startswith("off;")


async def test_an_unknown_virtual_name_is_a_404(make_front):
    """A plain model has no virtual names."""
    front = await make_front()
    async with ask(front, model="m:instant") as answer:
        assert answer.status == 404


@pytest.mark.parametrize(
    ("settings", "headers", "fields"),
    [
        pytest.param({}, {}, {"reasoning", "reasoning_content", "content"}, id="default"),
        pytest.param({}, {"x-trimtab-reasoning": "none"}, {"content"}, id="header"),
        pytest.param({"reasoning_fields": "reasoning"}, {}, {"reasoning", "content"}, id="stack"),
        pytest.param({"reasoning_fields": "reasoning"}, {"x-trimtab-reasoning": "reasoning_content"},
                     {"reasoning_content", "content"}, id="header-before-stack"),
        pytest.param({"keys": ("a", "b"), "reasoning_fields_by_key": (("b", "none"),)},
                     {"Authorization": "Bearer b"}, {"content"}, id="key"),
        pytest.param({"keys": ("a", "b"), "reasoning_fields_by_key": (("b", "none"),)},
                     {"Authorization": "Bearer a"}, {"reasoning", "reasoning_content", "content"},
                     id="other-key"),
    ],
)  # fmt: skip
@pytest.mark.parametrize("stream", [True, False], ids=["stream", "whole"])
async def test_clients_get_the_form_they_need(make_front, settings, headers, fields, stream):
    """By stack file, key or header."""
    front = await make_front(family="qwen3", settings=settings)
    case = Case("", (*reasoning("Hm"), *content("Hi")), "stop", "", "")
    data = case.stream() if stream else json.dumps(case.whole()).encode()
    async with ask(front, headers=headers, **replayed(data, stream=stream)) as answer:
        body = await answer.read()

    message = message_of(body) if stream else json.loads(body)["choices"][0]["message"]
    assert {name for name, value in message.items() if value and name != "role"} == fields


async def test_repairs_are_told_and_can_be_switched_off(make_front):
    """A late system message is moved, and the answer says so; a header leaves it where it was."""
    front = await make_front(family="qwen3.5")
    messages = [{"role": "user", "content": "hello"}, {"role": "system", "content": "you are"}]
    async with ask(front, messages=messages) as answer:
        assert answer.headers["x-trimtab-repairs"] == "system-messages"
    assert [message["role"] for message in sent(front)["messages"]] == ["system", "user"]
    async with ask(front, messages=messages, headers={"x-trimtab-repairs": "none"}) as answer:
        assert "x-trimtab-repairs" not in answer.headers
    assert [message["role"] for message in sent(front)["messages"]] == ["user", "system"]


@pytest.mark.parametrize("stream", [True, False])
async def test_a_named_tool_is_one_that_llama_cpp_understands(make_front, stream):
    """Whoever demands one tool is told how the demand was put, also where bytes pass otherwise."""
    front = await make_front(engine="llama_cpp")
    tools = [{"type": "function", "function": {"name": name}} for name in "ab"]
    wish = {"tools": tools, "tool_choice": {"type": "function", "function": {"name": "b"}}}
    data = Case("", content("b"), "stop", "", "").stream()
    async with ask(front, **replayed(data, stream=stream), **wish) as answer:
        assert answer.headers["x-trimtab-repairs"] == "tool-choice"
    schema = sent(front)["response_format"]["json_schema"]["schema"]
    assert (sent(front)["tools"], schema["properties"]["name"]) == (tools[1:], {"const": "b"})
    assert "tool_choice" not in sent(front)
    async with ask(front, headers={"x-trimtab-repairs": "none"}, **replayed(data, stream=stream), **wish):
        assert sent(front)["tool_choice"] == wish["tool_choice"]


async def test_repairs_can_be_switched_off_for_all(make_front):
    """The stack file names the repairs that are made."""
    front = await make_front(family="qwen3.5", settings={"repairs": ("extra-body",)})
    messages = [{"role": "user", "content": "hello"}, {"role": "developer", "content": "you are"}]
    async with ask(front, messages=messages, extra_body={"top_k": 3}) as answer:
        assert answer.headers["x-trimtab-repairs"] == "extra-body"
    assert sent(front)["messages"] == messages
    assert sent(front)["top_k"] == 3


@pytest.mark.parametrize("engine", ENGINES)
async def test_a_title_is_answered_without_thought_and_in_the_answer(make_front, engine):
    """Open WebUI finds its JSON in the content, even where the engine put it into the thought's field."""
    front = await make_front(family="qwen3.5", engine=engine)
    title = '{ "title": "Four" }'
    case = Case("", reasoning(title), "stop", "", title)
    body = case.stream() if engine == "llama_cpp" else json.dumps(case.whole()).encode()
    async with ask(front, headers={"X-OpenWebUI-Task": "title_generation"}, **replayed(body)) as answer:
        assert (await answer.json())["choices"][0]["message"]["content"] == title
        assert answer.headers["x-trimtab-repairs"] == "background-call=title_generation"

    assert sent(front)["max_tokens"] == 256
    assert sent(front)[KWARGS] == {"enable_thinking": False}


async def test_an_engines_refusal_of_a_template_reaches_the_client(make_front):
    """The reason of a 400 is passed on, not a generic failure."""
    front = await make_front(family="qwen3.5")
    words = '{"error": {"message": "System message must be at the beginning.", "code": 400}}'
    async with ask(front, script="refuse", status=400, answer=words) as answer:
        error = (await answer.json())["error"]
        assert (answer.status, error["message"]) == (400, "System message must be at the beginning.")


@pytest.mark.parametrize(
    ("tools", "status", "words"),
    [
        pytest.param("x", 400, "tools is a string", id="text"),
        pytest.param([{"type": "function"}], 400, "tools[0]", id="no-function"),
        pytest.param([3], 400, "tools[0] has no type", id="number"),
        pytest.param([{"function": {"name": "f"}}], 400, "tools[0] has no type", id="no-type"),
        pytest.param([{"type": "function", "function": {"name": 3}}], 400, "name", id="name"),
        pytest.param(
            [{"type": "function", "function": {"name": "f", "parameters": []}}],
            400,
            "parameters",
            id="parameters",
        ),
        pytest.param([{"type": "function", "function": {"name": "f"}}], 500, "type must be", id="right"),
    ],
)
async def test_malformed_tools_are_the_requests_fault(front, tools, status, words):
    """An engine's 500 for tools it cannot read becomes a 400 that says what is wrong."""
    async with ask(front, script="broken_tools", tools=tools) as answer:
        assert (answer.status, words in (await answer.json())["error"]["message"]) == (status, True)


# A thought of ten words; an engine without a bound of its own goes on for as long as it likes.
LONG = Case("", content("<think>\n", *[f"t{n} " for n in range(10)], "</think>\n\n", "late"), "stop", "", "")
AFTER = Case("", content("The ", "answer"), "stop", "", "")


def limited(*, refuses=(), **fields):
    return replayed(LONG.stream(), then=AFTER.stream(), refuses=refuses, **fields)


@pytest.mark.parametrize("stream", [True, False], ids=["stream", "whole"])
@pytest.mark.parametrize(
    ("engine", "refuses"),
    [
        pytest.param("external", (), id="no-field"),
        pytest.param("vllm", ("thinking_token_budget",), id="field-refused"),
    ],
)
async def test_a_thought_is_ended_for_an_engine_that_cannot(make_front, engine, refuses, stream):
    """The thought stops at its bound, the answer follows, and the client sees one answer."""
    front = await make_front(family="qwen3", engine=engine)
    fields = limited(refuses=refuses, endless="first", stream=stream, model="m:thinking", thinking_budget=4,
                     max_tokens=100)  # fmt: skip
    async with ask(front, **fields) as answer:
        body = await answer.read()
        assert answer.status == 200, body

    document = decode_events(body)[-1] if stream else json.loads(body)
    message = message_of(body) if stream else document["choices"][0]["message"]
    assert texts(message) == ("t0 t1 t2 t3 ", "The answer")
    assert document["usage"] == {"prompt_tokens": 0, "completion_tokens": 5, "total_tokens": 3}
    first, second = front.engine.seen(CHAT)[-2:]
    await eventually(lambda: first.ended == "abandoned")
    asked = second.document
    assert asked["messages"][-1] == {
        "role": "assistant",
        "content": "<think>\nt0 t1 t2 t3 \n</think>\n\n",
    }
    assert (asked["model"], asked["stream"]) == ("m", True)
    assert (asked["continue_final_message"], asked["add_generation_prompt"]) == (True, False)
    assert (asked["max_tokens"], asked[KWARGS]["enable_thinking"]) == (96, False)


async def test_an_answer_is_never_empty_for_want_of_tokens(make_front):
    """Without any budget, the limit alone keeps room for the answer."""
    front = await make_front(family="qwen3", engine="external")
    async with ask(front, **limited(stream=True, max_tokens=8)) as answer:
        assert texts(message_of(await answer.read())) == ("t0 t1 t2 t3 t4 t5 ", "The answer")


async def test_an_engine_that_continues_nothing_answers_without_the_thought(make_front):
    """Where the thought cannot be handed on, there still is an answer."""
    front = await make_front(family="qwen3", engine="external")
    fields = limited(refuses=("continue_final_message",), stream=True, thinking_budget=2)
    async with ask(front, **fields) as answer:
        assert texts(message_of(await answer.read())) == ("t0 t1 ", "The answer")

    assert "continue_final_message" not in sent(front)
    assert sent(front)["messages"][-1]["role"] == "user"


async def test_a_short_thought_is_left_alone(make_front):
    """Within the bound one request is enough."""
    front = await make_front(family="qwen3", engine="external")
    async with ask(front, **limited(stream=True, thinking_budget=50)) as answer:
        assert texts(message_of(await answer.read()))[1] == "late"
    assert len(front.engine.seen(CHAT)) == 1


async def test_an_inline_thought_that_is_ended_is_closed(make_front):
    """The tags stay balanced across the two requests."""
    front = await make_front(family="qwen3", engine="external")
    headers = {"x-trimtab-reasoning": "inline"}
    async with ask(front, headers=headers, **limited(stream=True, thinking_budget=2)) as answer:
        message = message_of(await answer.read())
    assert message["content"] == "<think>t0 t1 </think>The answer"


async def test_an_engine_that_dies_behind_the_thought_is_told(make_front):
    """The client reads what happened instead of an empty answer."""
    front = await make_front(family="qwen3", engine="external")
    fields = replayed(LONG.stream(), then=b'data: {"choices":[]}\n\n', stream=True, thinking_budget=2)
    async with ask(front, **fields) as answer:
        *_, last = decode_events(await answer.read())
    assert last["error"]["code"] == "engine_died"


async def test_a_refusal_for_another_reason_is_passed_on(make_front):
    """A 400 that has nothing to do with the bound is not tried again."""
    front = await make_front(family="qwen3", engine="vllm")
    async with ask(front, **limited(refuses=("min_p",), thinking_budget=2)) as answer:
        assert (answer.status, "min_p" in await answer.text()) == (400, True)
    assert len(front.engine.seen(CHAT)) == 1


async def test_several_choices_think_unbounded(make_front):
    """With n > 1 all is left to the engine: its choices end their thoughts at different times."""
    front = await make_front(family="qwen3", engine="external")
    async with ask(front, **limited(stream=True, thinking_budget=2, n=2)) as answer:
        assert texts(message_of(await answer.read()))[1] == "late"


async def test_a_client_that_leaves_inside_the_second_answer_frees_the_engine(make_front):
    """Nobody waits any more, so no engine works any more."""
    front = await make_front(family="qwen3", engine="external")
    then = AFTER.stream().partition(b"data: [DONE]")[0]
    fields = replayed(LONG.stream(), then=then, endless="second", stream=True, thinking_budget=2)
    answer = await ask(front, **fields)
    await answer.content.readany()
    await eventually(lambda: len(front.engine.seen(CHAT)) == 2)
    answer.close()

    await eventually(lambda: front.engine.seen(CHAT)[1].ended == "abandoned", within_s=3)
    await eventually(lambda: front.gateway.num_in_flight == 0, within_s=3)


@pytest.mark.parametrize("stream", [True, False], ids=["stream", "whole"])
async def test_a_thought_cut_by_the_limit_is_told(make_front, stream):
    """An empty answer comes with its reason."""
    front = await make_front(family="qwen3.5", engine="vllm")
    case = Case("", reasoning("The user ", "is asking"), "length", "", "")
    data = case.stream() if stream else json.dumps(case.whole()).encode()
    async with ask(front, **replayed(data, stream=stream, max_tokens=5)) as answer:
        body = await answer.text()
        told = body if stream else answer.headers["x-trimtab-note"]
    assert CUT_THOUGHT_NOTE in told


@pytest.mark.parametrize("stream", [True, False], ids=["stream", "whole"])
async def test_the_openai_client_reads_thought_and_answer(make_front, stream):
    """The most used client finds both where it looks for them."""
    front = await make_front(family="qwen3.5")
    case = next(case for case in CASES if case.name == "static-opener")
    data = case.stream() if stream else json.dumps(case.whole()).encode()
    async with openai.AsyncOpenAI(base_url=front.url + "/v1", api_key="x") as client:
        answer = await client.chat.completions.create(
            model="m:thinking", messages=[{"role": "user", "content": "hi"}], stream=stream,
            extra_body=replayed(data, stream=stream),
        )  # fmt: skip
        if not stream:
            message = answer.choices[0].message
            assert (message.reasoning_content, message.content) == (case.thought, case.answer)
            return
        thought = answered = ""
        async for event in answer:
            for choice in event.choices:
                thought += getattr(choice.delta, "reasoning_content", None) or ""
                answered += choice.delta.content or ""
        assert (thought, answered) == (case.thought, case.answer)
