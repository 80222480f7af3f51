"""Other protocols on the real llama.cpp: the SDKs as they are, and the README's own curl."""

import json
import re
import subprocess
from pathlib import Path

import anthropic
import httpx
import openai
import pytest
from gguf_files import embedded_gguf
from langchain_core.messages import HumanMessage
from langchain_openai import ChatOpenAI
from trimtab_program import Program

pytestmark = [pytest.mark.engine, pytest.mark.timeout(240)]

README = (Path(__file__).parents[3] / "README.md").read_text()
ASK = {"model": "smollm2-135m", "max_tokens": 12, "messages": [{"role": "user", "content": "Say hello."}]}
GREEDY = {"temperature": 0}
TOOL = {
    "name": "greet",
    "description": "Greets somebody.",
    "input_schema": {
        "type": "object", "properties": {"name": {"type": "string"}}, "required": ["name"],
        "additionalProperties": False,
    },
}  # fmt: skip


@pytest.fixture(scope="module")
def root(tmp_path_factory):
    """The root URL of one stack: a model that chats, one that embeds, one that ranks."""
    program = Program(tmp_path_factory.mktemp("up"))
    (program.root / "stack.yaml").write_text(f"""\
models:
  smollm2-135m: {{checkpoint: smollm2-135m, context: 1024}}
  embeds: {{checkpoint: "{embedded_gguf()}", context: 512, engine_args: {{embeddings: true}}}}
  ranks: {{checkpoint: "{embedded_gguf()}", context: 512, engine_args: {{embeddings: true, pooling: rank}}}}
""")
    yield program.run_json("up", "stack.yaml", "-d", "--port", "0")["endpoint"].removesuffix("/v1")
    program.close()


@pytest.fixture
def claude(root):
    with anthropic.Anthropic(base_url=root, api_key="any", max_retries=0) as client:
        yield client


@pytest.fixture
def sdk(root):
    with openai.OpenAI(base_url=f"{root}/v1", api_key="any", max_retries=0) as client:
        yield client


def chat_text(sdk):
    answer = sdk.chat.completions.create(**ASK, **GREEDY)
    return answer.choices[0].message.content, answer.usage


def test_a_message_is_the_chats_own_text(claude, sdk):
    """Greedy decoding: the same words and tokens by either protocol, streamed or not."""
    text, usage = chat_text(sdk)
    message = claude.messages.create(**ASK, extra_body=GREEDY)
    with claude.messages.stream(**ASK, extra_body=GREEDY) as stream:
        pieces = "".join(stream.text_stream)
        last = stream.get_final_message()

    assert message.content[0].text == pieces == last.content[0].text == text
    assert message.stop_reason == last.stop_reason == "max_tokens"
    for told in (message.usage, last.usage):
        assert told.input_tokens + told.cache_read_input_tokens == usage.prompt_tokens
        assert told.output_tokens == usage.completion_tokens == 12
    counted = claude.messages.count_tokens(model=ASK["model"], messages=ASK["messages"])
    assert counted.input_tokens == usage.prompt_tokens


def test_tools_calls_and_results_are_taken(claude):
    """The real engine reads every shape of them; only a demand makes this model call."""
    call = {"type": "tool_use", "id": "call_1", "name": "greet", "input": {"name": "Bob"}}
    history = [
        *ASK["messages"],
        {"role": "assistant", "content": [{"type": "text", "text": "Greeting."}, call]},
        {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "call_1", "content": "done"}]},
    ]
    for choice in ({"type": "auto"}, {"type": "any"}, {"type": "tool", "name": "greet"}, {"type": "none"}):
        answer = claude.messages.create(**ASK | {"messages": history}, tools=[TOOL], tool_choice=choice)
        assert answer.usage.output_tokens > 0


def test_a_response_is_the_chats_own_text(sdk):
    """The same for OpenAI's newer protocol."""
    text, usage = chat_text(sdk)
    ask = {"model": ASK["model"], "input": "Say hello.", "max_output_tokens": 12, "temperature": 0}
    response = sdk.responses.create(**ask)
    with sdk.responses.stream(**ask) as stream:
        events = list(stream)
    pieces = "".join(event.delta for event in events if event.type == "response.output_text.delta")
    last = events[-1].response

    assert response.output_text == pieces == last.output_text == text
    assert response.status == last.status == "incomplete"
    assert response.usage.input_tokens == last.usage.input_tokens == usage.prompt_tokens
    assert response.usage.output_tokens == last.usage.output_tokens == 12


def test_a_response_takes_functions_and_their_outputs(sdk):
    """The same in OpenAI's words, and an answer by a schema keeps to it."""
    tool = {"type": "function", "name": "greet", "parameters": TOOL["input_schema"], "strict": True}
    items = [
        {"role": "user", "content": "Say hello."},
        {"type": "function_call", "call_id": "call_1", "name": "greet", "arguments": '{"name": "Bob"}'},
        {"type": "function_call_output", "call_id": "call_1", "output": "done"},
    ]
    ask = {"model": ASK["model"], "max_output_tokens": 40, "temperature": 0}
    assert sdk.responses.create(**ask, input=items, tools=[tool]).usage.output_tokens > 0
    shape = {"type": "json_schema", "name": "n", "schema": TOOL["input_schema"], "strict": True}
    answer = sdk.responses.create(**ask, input="Name somebody.", text={"format": shape})
    assert answer.output_text.startswith("{")
    assert '"name"' in answer.output_text


def test_langchain_chats_and_streams(root, sdk):
    """ChatOpenAI as it is, by both of OpenAI's protocols."""
    text, _ = chat_text(sdk)
    with httpx.Client() as client:
        for is_response in (False, True):
            model = ChatOpenAI(
                base_url=f"{root}/v1", api_key="any", model=ASK["model"], temperature=0, max_tokens=12,
                http_client=client, use_responses_api=is_response,
            )  # fmt: skip
            assert model.invoke([HumanMessage("Say hello.")]).text == text
            assert "".join(piece.text for piece in model.stream([HumanMessage("Say hello.")])) == text


def test_embeddings_come_from_the_model_that_embeds(sdk):
    """Like texts lie nearer than unlike ones; a model that chats says which setting embeds."""
    answer = sdk.embeddings.create(
        model="embeds", input=["a cat", "a kitten", "stock market"], encoding_format="float"
    )
    cat, kitten, market = (item.embedding for item in answer.data)
    assert near(cat, kitten) > near(cat, market)
    assert answer.usage.prompt_tokens > 0
    with pytest.raises(openai.InternalServerError, match="embeddings: true") as raised:
        sdk.embeddings.create(model=ASK["model"], input="a")
    assert raised.value.status_code == 501


def near(one, other):
    dot = sum(a * b for a, b in zip(one, other, strict=True))
    return dot / (sum(a * a for a in one) * sum(b * b for b in other)) ** 0.5


def test_documents_are_ranked(root):
    """By both paths, for a model that was started for it."""
    body = {"model": "ranks", "query": "cats", "documents": ["a cat", "a stock"]}
    for path in ("/rerank", "/v1/rerank"):
        answer = httpx.post(root + path, json=body, timeout=60)
        assert answer.status_code == 200, answer.text
        assert sorted(item["index"] for item in answer.json()["results"]) == [0, 1]


def test_tokens_go_there_and_back(root):
    """In vLLM's words and in llama.cpp's."""
    with httpx.Client(base_url=root) as client:
        ask = {"model": ASK["model"], "prompt": "Hello world", "add_special_tokens": False}
        theirs = client.post("/tokenize", json=ask).json()
        ours = client.post("/tokenize", json={"model": ASK["model"], "content": "Hello world"}).json()
        assert theirs["tokens"] == ours["tokens"]
        assert (theirs["count"], theirs["max_model_len"]) == (len(theirs["tokens"]), 1024)
        back = client.post("/detokenize", json={"model": ASK["model"], "tokens": ours["tokens"]}).json()
        assert back["prompt"] == back["content"] == "Hello world"


def test_the_readmes_curl_works_as_it_stands(root):
    """Pasted, with only the port of this test in it."""
    found = re.search(
        r"^curl http://127\.0\.0\.1:8000/v1/chat/completions .*?\}'$", README, re.MULTILINE | re.DOTALL
    )
    assert found is not None
    command = found[0].replace("http://127.0.0.1:8000", root)
    done = subprocess.run(["bash", "-c", command], check=False, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["choices"][0]["message"]["content"]


def test_what_does_not_fit_is_the_requests_fault(sdk):
    """A text too long to embed and an image for a model of text: a 400 in one sentence."""
    with pytest.raises(openai.BadRequestError, match="tokens and the model 'embeds' reads at most") as raised:
        sdk.embeddings.create(model="embeds", input="word " * 6000)
    assert raised.value.code == "context_length_exceeded"
    image = {"type": "image_url", "image_url": {"url": "data:image/png;base64,iVBORw0KGgo="}}
    with pytest.raises(openai.BadRequestError, match="'smollm2-135m' reads no image"):
        sdk.chat.completions.create(**ASK | {"messages": [{"role": "user", "content": [image]}]})
