"""What neither a client nor an engine should send: refused in one sentence, and counted as what it was."""

import json

import pytest

from trimtab.gateway.exchange import Exchange
from trimtab.gateway.parts import GatewayMore
from trimtab.gateway.request_log import RequestLog

DEEP = "[" * 973 + "]" * 973
MESSAGE = '"model": "m", "max_tokens": 5, "messages": [{"role": "user", "content": "x"}]'
TOOL = f'{{"name": "f", "input_schema": {{"a": {DEEP}}}}}'
ASK = {"/v1/messages": {"max_tokens": 5, "messages": [{"role": "user", "content": "x"}]}}
ASK["/v1/responses"] = {"input": "x"}
ASK["/v1/chat/completions"] = {"messages": []}


async def error_of(answer):
    document = json.loads(await answer.read())
    return document["error"]


@pytest.mark.parametrize(
    ("path", "body"),
    [
        pytest.param("/v1/messages", f'{{{MESSAGE}, "tools": [{TOOL}]}}', id="input-schema"),
        pytest.param("/v1/responses", f'{{"input": "x", "metadata": {DEEP}}}', id="metadata"),
        pytest.param("/v1/responses", f'{{"input": "x", "text": {{"format": {DEEP}}}}}', id="format"),
        pytest.param("/tokenize", f'{{"prompt": "x", "add_special_tokens": {DEEP}}}', id="tokenize"),
        pytest.param("/v1/chat/completions", f'{{{MESSAGE}, "chat_template_kwargs": {DEEP}}}', id="chat"),
    ],
)
@pytest.mark.parametrize("engine", ["vllm", "llama_cpp"])
async def test_what_is_nested_too_deeply_is_refused_everywhere(make_front, engine, path, body):
    """One limit, far below what reading or writing could fail at, and one sentence."""
    front = await make_front(engine=engine, family="qwen3.5")
    async with front.post(path, data=body.encode()) as answer:
        error = await error_of(answer)
    assert answer.status == 400
    assert error["message"] == "the body is nested deeper than 200 levels"
    assert await front.metric('trimtab_requests_total{endpoint="' + path + '",model="",status="400"}') == 1


@pytest.mark.parametrize("path", list(ASK))
@pytest.mark.parametrize("status", ["302 Found", "204 No Content", "999 What", "201 Created"])
@pytest.mark.parametrize("engine", ["external", "vllm"])
async def test_an_answer_that_is_none_is_a_502(make_front, path, status, engine):
    """Neither an empty answer nor a redirect reaches a client of this endpoint."""
    front = await make_front(engine=engine)
    async with front.post(path, model="m", script="told", say="", status=status, **ASK[path]) as answer:
        error = await error_of(answer)
    assert (answer.status, error["code"], error["origin"]) == (502, "engine_answer", "gateway")
    assert f"of the model 'm' answered {status[:3]}, which" in error["message"]
    counted = 'trimtab_requests_total{endpoint="' + path + '",model="m",status="502"}'
    assert await front.metric(counted) == 1


@pytest.mark.parametrize(
    ("path", "said", "code", "words"),
    [
        pytest.param(
            "/v1/embeddings",
            "input (6001 tokens) is too large to process. increase the physical batch size "
            "(current batch size: 512)",
            "context_length_exceeded", "6,001 tokens and the model 'm' reads at most 512", id="long",
        ),
        pytest.param(
            "/v1/chat/completions",
            "image input is not supported - hint: if this is unexpected, you may need to provide the mmproj",
            "unsupported_content", "the model 'm' reads no image", id="image",
        ),
        pytest.param(
            "/v1/messages",
            "image input is not supported - hint: if this is unexpected, you may need to provide the mmproj",
            "unsupported_content", "the model 'm' reads no image", id="image-in-a-message",
        ),
    ],
)  # fmt: skip
async def test_what_llama_cpp_calls_its_own_fault_is_the_requests(make_front, path, said, code, words):
    """A 400 in words of ours for what it answers 500 to (words of xllamacpp 2026.10.11549)."""
    front = await make_front(engine="llama_cpp", has_embeddings=True)
    fields = {"script": "told", "status": "500 X", "say": {"error": {"code": 500, "message": said}}}
    async with front.post(path, model="m", **fields, **ASK.get(path, {"input": "x"})) as answer:
        error = await error_of(answer)
    assert (answer.status, error["code"]) == (400, code)
    assert words in error["message"]


@pytest.mark.parametrize("wait", ["0", "-1", "soon", "nan"])
async def test_an_illegal_wait_is_refused_whether_one_must_wait_or_not(front, wait):
    """The same header is never legal today and illegal under load."""
    async with front.post(model="m", headers={"X-Trimtab-Max-Wait": wait}) as answer:
        error = await error_of(answer)
    assert (answer.status, error["param"]) == (400, "x-trimtab-max-wait")


async def test_a_refusal_of_broken_http_has_its_id_in_the_log(make_front, tmp_path):
    """The id that the client is told is the line's."""
    log = RequestLog(tmp_path / "requests.log")
    front = await make_front(more=GatewayMore(request_log=log))
    reader, writer = await front.raw()
    writer.write(b"POST /v1/chat/completions HTTP/1.1\r\nHost x\r\n\r\n")
    head = (await reader.readuntil(b"\r\n\r\n")).decode()
    writer.close()
    log.close()
    line = json.loads((tmp_path / "requests.log").read_text().splitlines()[0])
    assert (line["status"], len(line["request_id"])) == (400, 32)
    assert f"X-Request-Id: {line['request_id']}" in head


async def test_a_fault_of_ours_is_one_500_and_no_499(front, monkeypatch):
    """What nobody foresaw is counted as what the client got, once."""

    async def fail(*_, **__):
        raise RuntimeError("nobody foresaw this")

    monkeypatch.setattr(Exchange, "_serve", fail)
    async with front.post(model="m") as answer:
        error = await error_of(answer)
    assert (answer.status, error["code"]) == (500, "internal_error")
    name = 'trimtab_requests_total{endpoint="/v1/chat/completions",model='
    assert await front.metric(name + '"m",status="500"}') == 1
    assert await front.metric(name + '"m",status="499"}') == 0
    assert await front.metric(name + '"",status="500"}') == 0


LISTS = '{"choices": [{"index": 0}], "data": []}'
NONE = ["[]", "null", "{}", '"text"', " [1]", "<html>ok</html>", '{"choices": "x", "data": "x"}', "\ufeff{}"]
NONE += ['{"choices": oops, "data": oops', LISTS[:-1]]


@pytest.mark.parametrize("said", NONE)
@pytest.mark.parametrize("num_more_bytes", [0, 20_000], ids=["small", "large"])
@pytest.mark.parametrize("path", ["/v1/chat/completions", "/v1/completions", "/v1/embeddings"])
async def test_a_200_with_what_is_no_answer_is_a_502(make_front, path, said, num_more_bytes):
    """A client gets a sentence, where its SDK would fail at the first field that it looks for."""
    front = await make_front(engine="external")
    fields = {"script": "told_as_it_is", "say": said + " " * num_more_bytes, "prompt": "x"}
    async with front.post(path, model="m", **fields) as answer:
        error = await error_of(answer)
    assert (answer.status, error["code"], error["origin"]) == (502, "engine_answer", "gateway")
    assert "answered 200 with what is no answer" in error["message"]


@pytest.mark.parametrize("said", ["", "<html>ok</html>", "data: [DONE]\n\n"])
@pytest.mark.parametrize("kind", ["text/event-stream", "text/html"])
@pytest.mark.parametrize("path", ["/v1/chat/completions", "/v1/embeddings", "/rerank", "/v1/messages"])
async def test_a_stream_or_a_page_is_no_whole_answer(make_front, path, kind, said):
    """Who did not ask for a stream gets none, an empty one neither."""
    front = await make_front(engine="external")
    fields = ASK.get(path, {}) | {"script": "told_as_it_is", "say": said, "kind": kind}
    async with front.post(path, model="m", **fields) as answer:
        error = await error_of(answer)
    assert answer.status == 502
    assert error.get("code", "engine_answer") in ("engine_answer", "api_error")


@pytest.mark.parametrize("mark", ["", "\ufeff"], ids=["plain", "marked"])
@pytest.mark.parametrize("said", [LISTS, f" {LISTS}\n", '{"error": {"message": "x"}}'])
@pytest.mark.parametrize("path", ["/v1/chat/completions", "/v1/completions", "/v1/embeddings", "/rerank"])
async def test_an_answer_behind_a_mark_is_one(make_front, path, said, mark):
    """Some write a byte order mark before their JSON; the client gets the JSON alone."""
    front = await make_front(engine="external")
    for more in ("", " " * 20_000):
        fields = {"script": "told_as_it_is", "say": mark + said + more, "prompt": "x"}
        async with front.post(path, model="m", **fields) as answer:
            body = await answer.text(encoding="utf-8")
        assert (answer.status, body) == (200, said + more)


async def test_embeddings_as_bytes_are_an_answer(make_front):
    """A vLLM that is asked for `encoding_format: bytes` writes no JSON; each byte is passed on."""
    front = await make_front()
    fields = {"script": "told_as_it_is", "say": "\ufeff?\x00", "kind": "application/octet-stream"}
    async with front.post("/v1/embeddings", model="m", **fields) as answer:
        assert (answer.status, await answer.read()) == (200, "\ufeff?\x00".encode())
