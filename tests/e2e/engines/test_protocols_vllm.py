"""Other protocols on the real vLLM, which has its own: the SDKs get the models' fixed words through ours."""

from __future__ import annotations

import sys

import anthropic
import httpx
import openai
import pytest
from asked_gateway import QUESTION, gateway_before
from vllm_cpu import ANSWER, THOUGHT

from trimtab.runtimes.local_process import LocalProcessRuntime

pytestmark = [pytest.mark.engine, pytest.mark.slow, pytest.mark.timeout(900)]

GREEDY = {"temperature": 0}
ASK = {"model": "tiny", "max_tokens": 60, "messages": QUESTION, "extra_body": GREEDY}
RESPOND = {"model": "tiny", "max_output_tokens": 60, "input": QUESTION[0]["content"], "temperature": 0}
NAMES = {"type": "object", "properties": {"name": {"enum": ["Bob"]}}, "required": ["name"],
         "additionalProperties": False}  # fmt: skip


@pytest.fixture
async def runtime(tmp_path):
    chosen = LocalProcessRuntime(tmp_path, python=sys.executable)
    yield chosen
    for replica in await chosen.list_replicas():
        await chosen.stop_replica(replica.replica_id, grace_s=5)


def blocks_of(message):
    """(thought, answer) of a message; its blocks stand in this order."""
    kinds = [block.type for block in message.content]
    assert kinds in (["text"], ["thinking", "text"])
    thought = message.content[0].thinking if len(kinds) == 2 else ""
    return thought.strip(), message.content[-1].text.strip()


async def check_messages(url):
    """Thinking by each of Anthropic's words and by name, streamed or not, one meaning and one count."""
    async with anthropic.AsyncAnthropic(base_url=url, api_key="any", max_retries=0) as client:
        for fields, is_on in (
            ({"thinking": {"type": "enabled", "budget_tokens": 1024}}, True),
            ({"thinking": {"type": "adaptive"}}, True),
            ({"thinking": {"type": "disabled"}}, False),
            ({"model": "tiny:instant"}, False),
            ({"model": "tiny:thinking"}, True),
            ({}, True),
        ):
            wanted = (THOUGHT if is_on else "", ANSWER)
            message = await client.messages.create(**ASK | fields)
            async with client.messages.stream(**ASK | fields) as stream:
                last = await stream.get_final_message()
            assert blocks_of(message) == blocks_of(last) == wanted, fields
            assert message.stop_reason == last.stop_reason == "end_turn"
            assert message.usage.output_tokens == last.usage.output_tokens > 0
            asked = {
                name: value
                for name, value in (ASK | fields).items()
                if name not in ("max_tokens", "extra_body")
            }
            counted = await client.messages.count_tokens(**asked)
            told = message.usage
            assert counted.input_tokens == told.input_tokens + (told.cache_read_input_tokens or 0), fields
        # A bound that the engine's own endpoint would not keep.
        short = await client.messages.create(**ASK | {"extra_body": GREEDY | {"thinking_budget": 2}})
        thought, answer = blocks_of(short)
        assert answer == ANSWER
        assert THOUGHT.startswith(thought)
        assert len(thought) < len(THOUGHT) / 2
        stopped = await client.messages.create(**ASK, stop_sequences=[" set"], thinking={"type": "disabled"})
        assert (stopped.stop_reason, stopped.stop_sequence) == ("stop_sequence", " set")
        # Every shape of tools is taken; which word comes after their results, this model's weights say.
        call = {"type": "tool_use", "id": "call_1", "name": "greet", "input": {"name": "Bob"}}
        result = {"type": "tool_result", "tool_use_id": "call_1", "content": "done"}
        history = [
            *QUESTION,
            {"role": "assistant", "content": [{"type": "text", "text": "Greeting."}, call]},
            {"role": "user", "content": [result]},
        ]
        tool = {"name": "greet", "input_schema": NAMES}
        for choice in ({"type": "auto"}, {"type": "none"}):
            after = await client.messages.create(
                **ASK | {"messages": history}, tools=[tool], tool_choice=choice, thinking={"type": "disabled"}
            )
            assert blocks_of(after) == ("", ANSWER)


async def check_responses(url):
    """The same in OpenAI's newer protocol."""
    async with openai.AsyncOpenAI(base_url=f"{url}/v1", api_key="any", max_retries=0) as client:
        for fields, is_on in (({}, True), ({"reasoning": {"effort": "none"}}, False),
                              ({"reasoning": {"effort": "low"}}, True)):  # fmt: skip
            response = await client.responses.create(**RESPOND | fields)
            async with client.responses.stream(**RESPOND | fields) as stream:
                events = [event async for event in stream]
            last = events[-1].response
            for one in (response, last):
                thoughts = [item.content[0].text.strip() for item in one.output if item.type == "reasoning"]
                assert thoughts == ([THOUGHT] if is_on else []), fields
                assert one.output_text.strip() == ANSWER
                assert one.status == "completed"
            assert response.usage == last.usage
            assert [event.sequence_number for event in events] == list(range(len(events)))
        shape = {"type": "json_schema", "name": "n", "schema": NAMES, "strict": True}
        shaped = await client.responses.create(
            **RESPOND | {"reasoning": {"effort": "none"}, "text": {"format": shape}}
        )
        # As far as the limit let it: the grammar allows spaces, of which these weights know no end.
        assert shaped.output_text.lstrip().startswith('{"name"')


async def check_tokens(url):
    """In vLLM's words and in llama.cpp's."""
    async with httpx.AsyncClient(base_url=url, timeout=60) as client:
        theirs = (await client.post("/tokenize", json={"model": "tiny", "prompt": ANSWER})).json()
        ours = (await client.post("/tokenize", json={"model": "tiny", "content": ANSWER})).json()
        assert theirs["tokens"] == ours["tokens"] != []
        ask = {"model": "tiny", "tokens": ours["tokens"]}
        assert (await client.post("/detokenize", json=ask)).json()["content"] == ANSWER


async def check_room(url):
    """A ``max_tokens`` beyond the room, which vLLM refuses, is lowered; a prompt too long is told."""
    async with openai.AsyncOpenAI(base_url=f"{url}/v1", api_key="any", max_retries=0) as client:
        ask = {"model": "tiny", "messages": QUESTION, **GREEDY}
        raw = await client.chat.completions.with_raw_response.create(**ask | {"max_tokens": 2048})
        usage = raw.parse().usage
        assert int(raw.headers["x-trimtab-max-tokens-capped"]) == 2048 - usage.prompt_tokens
        long = [{"role": "user", "content": "What is the value? " * 2000}]
        with pytest.raises(openai.BadRequestError, match="leaves no room") as raised:
            await client.chat.completions.create(**ask | {"messages": long})
        assert raised.value.code == "context_length_exceeded"


async def test_the_sdks_get_one_meaning_from_vllm(vllm, runtime):
    """What vLLM's own /v1/messages and /v1/responses would leave to chance holds by either protocol."""
    observed = await runtime.start_replica(
        vllm.spec("qwen3_5", tool_call_parser="hermes", enable_auto_tool_choice=True)
    )
    async with gateway_before(observed, engine="vllm", family="qwen3.5") as url:
        await check_room(url)
        await check_responses(url)
        await check_tokens(url)
        await check_messages(url)
        async with openai.AsyncOpenAI(base_url=f"{url}/v1", api_key="any", max_retries=0) as client:
            with pytest.raises(openai.InternalServerError, match="runner: pooling") as raised:
                await client.embeddings.create(model="tiny", input="a")
            assert raised.value.status_code == 501


async def test_vllm_embeds_and_ranks(vllm, runtime):
    """A pooling engine serves embeddings, ranks by them, and scores."""
    spec = vllm.spec("qwen3", runner="pooling", reasoning_parser=None, default_chat_template_kwargs=None)
    observed = await runtime.start_replica(spec)
    async with gateway_before(observed, engine="vllm", family="plain", has_embeddings=True) as url:
        async with openai.AsyncOpenAI(base_url=f"{url}/v1", api_key="any", max_retries=0) as client:
            answer = await client.embeddings.create(model="tiny", input=["a cat", "a cat", "to set"])
        same, other = answer.data[0].embedding, answer.data[2].embedding
        assert same == pytest.approx(answer.data[1].embedding, abs=1e-2)
        assert same != pytest.approx(other, abs=1e-2)
        async with httpx.AsyncClient(base_url=url, timeout=60) as client:
            for path in ("/rerank", "/v1/rerank"):
                body = {"model": "tiny", "query": "a cat", "documents": ["to set", "a cat"]}
                ranked = await client.post(path, json=body)
                assert ranked.status_code == 200, ranked.text
                assert [item["index"] for item in ranked.json()["results"]] == [1, 0]
            body = {"model": "tiny", "text_1": "a cat", "text_2": ["a cat", "to set"]}
            scored = (await client.post("/score", json=body)).json()["data"]
            assert scored[0]["score"] > scored[1]["score"]
