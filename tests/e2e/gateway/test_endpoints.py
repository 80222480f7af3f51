"""What every endpoint of the gateway answers, over real sockets."""

import asyncio
import gzip
import io
import json
import os
from dataclasses import replace

import aiohttp
import pytest
from scripted_engine import COMPLETION, eventually

from trimtab.core.stack import GatewaySettings
from trimtab.core.state import ReplicaState
from trimtab.errors import EnvironmentMissingError
from trimtab.gateway.app import Gateway

CHAT = "/v1/chat/completions"


async def error_of(answer):
    error = (await answer.json())["error"]
    assert answer.headers["x-trimtab-origin"] == error["origin"]
    assert {"message", "type", "param", "code"} <= error.keys()
    return error


async def test_chat_passes_the_clients_bytes_and_the_engines_answer(front):
    """What the client wrote reaches the engine byte by byte, and the engine's answer the client."""
    body = b'{ "model":"m",\n "messages": [], "x_unknown": {"\xc3\xa9": [1.50, null]} }'

    async with front.post(data=body, headers={"X-Request-Id": "abc"}) as answer:
        assert await answer.json() == COMPLETION
        assert answer.status == 200
        assert answer.headers["x-trimtab-origin"] == "engine"
        assert answer.headers["X-Request-Id"] == "abc"

    (seen,) = front.engine.requests
    assert (seen.path, seen.body, seen.headers["x-request-id"]) == (CHAT, body, "abc")
    assert "authorization" not in seen.headers


@pytest.mark.parametrize("path", [CHAT, "/v1/completions", "/v1/embeddings"])
async def test_every_generation_path_reaches_the_engine(front, path):
    """Chat, completions and embeddings all have their way through."""
    async with front.post(path, model="m") as answer:
        assert answer.status == 200
        assert answer.headers["X-Request-Id"]

    assert front.engine.requests[0].path == path


async def test_stream_events_arrive_while_the_engine_still_writes(front):
    """The first word is on the client's screen before the last one is made, and no byte is changed."""
    async with front.post(stream=True, events=4, gap_s=0.15) as answer:
        assert answer.headers["Content-Type"] == "text/event-stream"
        first = await answer.content.readany()
        assert front.engine.requests[0].ended == ""
        rest = await answer.content.read()

    text = (first + rest).decode()
    assert [f'"w{index}"' in text for index in range(4)] == [True] * 4
    assert text.endswith("data: [DONE]\n\n")


async def test_a_stream_cut_anywhere_arrives_whole(front):
    """Characters that the engine's chunks cut in two are right again at the client."""
    async with front.post(stream=True, script="odd_cuts") as answer:
        lines = [line[6:] for line in (await answer.text()).split("\n\n") if line]

    assert [json.loads(line)["choices"][0]["delta"]["content"] for line in lines[:-1]] == ["ä€😀"] * 3
    assert lines[-1] == "[DONE]"


async def test_models_lists_what_is_served(front):
    """A client finds the served name and the context that one request may use."""
    async with front.session.get(front.url + "/v1/models") as answer:
        (model,) = (await answer.json())["data"]

    assert (model["id"], model["object"], model["max_model_len"]) == ("m", "model", 4096)


async def test_health_turns_with_the_models_state(front):
    """/health says 503 and why while the only model is not ready, 200 when it is."""
    async with front.session.get(front.url + "/health") as answer:
        assert (answer.status, (await answer.json())["status"]) == (200, "ok")

    front.models[0] = replace(
        front.models[0], state=ReplicaState.BACKING_OFF, base_url=None, detail="exit code 3", restarts=2
    )
    async with front.session.get(front.url + "/health") as answer:
        document = await answer.json()
        assert answer.status == 503
        assert document["models"]["m"]["detail"] == "exit code 3"
        assert document["models"]["m"]["restarts"] == 2


async def test_a_model_that_is_not_ready_is_a_503_to_come_again(front):
    """A request that comes too early learns the reason and when to try again."""
    front.models[0] = replace(front.models[0], state=ReplicaState.STARTING, base_url=None, detail="loading")

    async with front.post() as answer:
        assert (answer.status, (await error_of(answer))["code"]) == (503, "model_not_ready")
        assert int(answer.headers["Retry-After"]) > 0


@pytest.mark.parametrize(
    ("method", "path", "status", "code"),
    [
        pytest.param("GET", "/nope", 404, "unknown_path", id="unknown-path"),
        pytest.param("GET", CHAT, 405, "method", id="get-chat"),
        pytest.param("POST", "/v1/models", 405, "method", id="post-models"),
        pytest.param("DELETE", "/health", 405, "method", id="delete-health"),
        pytest.param("PROPFIND", CHAT, 405, "method", id="odd-method"),
    ],
)
async def test_wrong_paths_and_methods_are_told(front, method, path, status, code):
    """A client that asks for what is not there reads what is."""
    async with front.session.request(method, front.url + path) as answer:
        assert (answer.status, (await error_of(answer))["code"]) == (status, code)
        assert ("Allow" in answer.headers) == (status == 405)


async def test_head_and_options_are_answered(front):
    """Probes and browsers that ask without a body get an answer without one."""
    async with front.session.head(front.url + "/health") as answer:
        assert (answer.status, await answer.read()) == (200, b"")
    async with front.session.options(front.url + CHAT) as answer:
        assert (answer.status, answer.headers["Allow"]) == (204, "POST, OPTIONS")
    async with front.session.options(front.url + "/v1/models") as answer:
        assert (answer.status, answer.headers["Allow"]) == (204, "GET, HEAD, OPTIONS")


@pytest.mark.parametrize(
    ("data", "code", "words"),
    [
        pytest.param(b'{"model": "m"', "invalid_json", "line 1, column 14", id="cut-off"),
        pytest.param(b'{"a": "\xff"}', "invalid_utf8", "byte 7 is 0xff", id="not-utf8"),
        pytest.param(b"[]", "invalid_json", "a list", id="list"),
        pytest.param(b"", "invalid_json", "column 1", id="empty"),
        pytest.param(b'{"model": "x"}', "model_not_found", "known: m", id="unknown-model"),
        pytest.param(b'{"max_tokens": 0}', "invalid_value", "max_tokens is 0", id="zero-tokens"),
        pytest.param(b'{"max_tokens": 4097}', "max_tokens_exceeded", "4,096", id="too-many-tokens"),
        pytest.param(b'{"model": "\\ud800"}', "model_not_found", "known: m", id="lone-surrogate"),
    ],
)
async def test_bad_bodies_are_refused_with_their_place(front, data, code, words):
    """One clear sentence says what is wrong, and no engine is bothered."""
    async with front.post(data=data) as answer:
        error = await error_of(answer)

    assert (error["code"], error["origin"]) == (code, "gateway")
    assert words in error["message"]
    assert front.engine.requests == []


async def test_a_body_that_claims_to_be_no_json_is_a_415(front):
    """A web page of someone else cannot spend this machine's time by a plain form post."""
    async with front.post(headers={"Content-Type": "text/plain"}) as answer:
        assert (answer.status, (await error_of(answer))["code"]) == (415, "content_type")
    async with front.post(headers={"Content-Type": "Application/JSON; charset=utf-8"}) as answer:
        assert answer.status == 200


async def test_a_50_mb_body_is_refused_unread(front):
    """The answer is a 413 that names the limit, and the gateway goes on serving."""
    async with front.post(data=io.BytesIO(b" " * 50_000_000)) as answer:
        assert answer.status == 413
        assert "33,554,432" in (await error_of(answer))["message"]
    async with front.post() as answer:
        assert answer.status == 200


async def test_a_large_body_without_a_length_is_refused_too(make_front):
    """A chunked body cannot walk around the limit, nor can a compressed one."""
    front = await make_front(settings={"max_body_bytes": 100_000})

    async def pieces():
        for _ in range(100):
            yield b" " * 10_000

    headers = {"Content-Type": "application/json"}
    async with front.session.post(front.url + CHAT, data=pieces(), headers=headers) as answer:
        assert answer.status == 413
    bomb = gzip.compress(b" " * 10_000_000)
    async with front.post(data=bomb, headers={"Content-Encoding": "gzip"}) as answer:
        assert answer.status == 413
    assert front.engine.requests == []


async def test_a_compressed_body_is_understood(front):
    """A client that compresses its request is served as any other."""
    data = gzip.compress(json.dumps({"model": "m"}).encode())
    async with front.post(data=data, headers={"Content-Encoding": "gzip"}) as answer:
        assert answer.status == 200

    assert front.engine.requests[0].document == {"model": "m"}
    assert "content-encoding" not in front.engine.requests[0].headers


async def test_keys_guard_everything_but_health(make_front):
    """Without a key nothing is told but whether it lives; with one everything works."""
    front = await make_front(settings={"keys": ("s3cret",)})

    for path in ("/v1/models", "/metrics"):
        async with front.session.get(front.url + path) as answer:
            assert (answer.status, (await error_of(answer))["code"]) == (401, "invalid_api_key")
    async with front.post() as answer:
        assert answer.status == 401
    async with front.session.get(front.url + "/health") as answer:
        assert answer.status == 200
    async with front.post(headers={"Authorization": "Bearer s3cret"}) as answer:
        assert answer.status == 200
    assert "authorization" not in front.engine.requests[0].headers


@pytest.mark.parametrize(
    ("engine", "asked"),
    [("vllm", "/tokenize"), ("llama_cpp", "/v1/chat/completions/input_tokens")],
    ids=["vllm", "llama.cpp"],
)
async def test_max_tokens_beyond_the_room_is_capped_and_told(make_front, engine, asked):
    """A request that asks for too much gets what fits, told in a header; engines count in their own ways."""
    front = await make_front(engine=engine)
    front.engine.prompt_tokens = 100
    async with front.post(max_tokens=4096, temperature=0.5) as answer:
        assert answer.status == 200
        assert answer.headers["x-trimtab-max-tokens-capped"] == "3996"

    assert [request.path for request in front.engine.requests] == [asked, CHAT]
    (chat,) = front.engine.seen(CHAT)
    assert (chat.document["max_tokens"], chat.document["temperature"]) == (3996, 0.5)


async def test_a_prompt_without_room_for_an_answer_is_a_400(front):
    """A prompt as long as the context is refused with both lengths."""
    front.engine.prompt_tokens = 4096
    async with front.post(max_tokens=4000) as answer:
        error = await error_of(answer)

    assert (answer.status, error["code"]) == (400, "context_length_exceeded")
    assert front.engine.seen(CHAT) == []


async def test_small_requests_are_not_counted(front):
    """The usual request costs the engine one request, not two."""
    async with front.post(max_tokens=64) as answer:
        assert "x-trimtab-max-tokens-capped" not in answer.headers

    assert [request.path for request in front.engine.requests] == [CHAT]


async def test_the_engines_own_name_is_used_towards_it(make_front):
    """The engine is asked for the model under the name it knows."""
    front = await make_front(upstream_model="org/real")
    async with front.post(model="m") as answer:
        assert answer.status == 200

    assert front.engine.requests[0].document["model"] == "org/real"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        pytest.param('{"error":{"message":"no slot","code":9}}', "no slot", id="its-own-shape"),
        pytest.param("<html>busy", "<html>busy", id="html"),
    ],
)
async def test_an_engines_refusal_keeps_its_status_and_words(front, text, message):
    """The client reads the engine's reason in the one shape, and sees that the engine spoke."""
    async with front.post(script="refuse", status=429, answer=text) as answer:
        error = await error_of(answer)

    assert (answer.status, error["origin"], error["message"]) == (429, "engine", message)
    assert answer.headers["Retry-After"] == "7"


async def test_an_unstreamed_answer_of_llama_cpp_is_put_together(make_front):
    """llama.cpp is asked for a stream, so that leaving ends its work; the client gets one document."""
    front = await make_front(engine="llama_cpp")
    async with front.post(events=3) as answer:
        document = await answer.json()

    assert front.engine.requests[0].document["stream"] is True
    assert document["object"] == "chat.completion"
    assert document["choices"][0]["message"]["content"] == "w0w1w2"


async def test_metrics_tell_what_happened(front):
    """An operator sees requests, errors, times and bytes by model, in few series."""
    async with front.post(stream=True) as answer:
        await answer.read()
    for name in ("made-up-1", "made-up-2"):
        async with front.post(model=name) as answer:
            await answer.read()
    async with front.session.get(front.url + "/metrics") as answer:
        text = await answer.text()
        assert answer.headers["Content-Type"].startswith("text/plain; version=")

    assert f'trimtab_requests_total{{endpoint="{CHAT}",model="m",status="200"}} 1.0' in text
    assert f'trimtab_requests_total{{endpoint="{CHAT}",model="",status="404"}} 2.0' in text
    assert 'trimtab_time_to_first_token_seconds_count{model="m"} 1.0' in text
    assert 'trimtab_model_ready{model="m"} 1.0' in text
    assert "made-up" not in text
    assert f'trimtab_requests_total{{endpoint="{CHAT}",model="m",status="404"}}' not in text
    assert "trimtab_requests_in_flight 0.0" in text
    assert await front.metric('trimtab_response_bytes_total{model="m"}') > 100


async def test_a_taken_port_names_its_holder(front):
    """Whoever starts a second gateway reads which process has the port and what would work."""
    second = Gateway(GatewaySettings(port=front.port), lambda: (), version="1")

    with pytest.raises(EnvironmentMissingError, match=rf"port {front.port} .*{os.getpid()}") as caught:
        await second.start()

    assert "--port" in caught.value.hint


async def test_drain_lets_those_inside_finish_and_takes_no_more(front):
    """Stopping cuts nobody off in mid-answer, and nobody new gets in."""
    async with front.post(stream=True, events=5, gap_s=0.1) as answer:
        await answer.content.readany()
        draining = asyncio.ensure_future(front.gateway.drain(5))
        await asyncio.sleep(0.05)
        with pytest.raises(aiohttp.ClientConnectorError):
            async with aiohttp.ClientSession() as other, other.get(front.url + "/health"):
                pass
        assert not draining.done()
        assert (await answer.text()).endswith("[DONE]\n\n")

    await asyncio.wait_for(draining, 2)


async def test_drain_ends_at_its_time_limit_and_stop_at_once(front):
    """An endless answer does not keep the program from ending."""
    async with front.post(stream=True, script="hang_inside_stream") as answer:
        await answer.content.readany()
        async with asyncio.timeout(2):
            await front.gateway.drain(0.2)
            await front.gateway.stop()
            await front.gateway.stop()
        rest = await answer.content.read()

    assert b'"error"' in rest
    await eventually(lambda: front.engine.requests[0].ended == "abandoned")
