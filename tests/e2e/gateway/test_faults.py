"""Whatever goes wrong on either side: a readable end for the client, no work left at the engine."""

import asyncio
import json
import socket
import struct
import time
from dataclasses import replace

import aiohttp
import pytest
from scripted_engine import ScriptedEngine, event, eventually

from trimtab.gateway.key_ring import KeyRing, add_key
from trimtab.gateway.keys import KeyLimits
from trimtab.gateway.parts import GatewayMore
from trimtab.gateway.usage_log import UsageLog, read_usage_totals

CHAT = "/v1/chat/completions"


def documents(text):
    """The JSON documents of a stream; asserts that it ends in [DONE]."""
    lines = [line.removeprefix("data: ") for line in text.split("\n\n") if line]
    assert lines[-1] == "[DONE]", text
    return [json.loads(line) for line in lines[:-1]]


def raw_request(document, *, more=""):
    body = json.dumps({"messages": [], **document}).encode()
    head = f"POST {CHAT} HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\n"
    return head.encode() + b"Content-Length: %d\r\n" % len(body) + more.encode() + b"\r\n" + body


async def is_serving(front):
    async with front.post() as answer:
        return answer.status == 200


@pytest.mark.parametrize(
    "script",
    [
        "die_inside_stream",
        "reset_inside_stream",
        "die_inside_event",
        "die_after_head",
        "broken_chunk",
        "end_without_done",
        "close_delimited_cut",
    ],
)
async def test_a_stream_that_breaks_ends_with_an_error_inside(front, script):
    """The client keeps every whole event it got, then reads what happened; nothing is cut in silence."""
    async with asyncio.timeout(4), front.post(stream=True, script=script) as answer:
        text = await answer.text()

    *events, last = documents(text)
    assert (last["error"]["origin"], last["error"]["code"]) == ("gateway", "engine_died")
    assert [one["choices"][0]["delta"]["content"] for one in events] == ["w0", "w1"][: len(events)]
    assert "half" not in text
    assert await front.metric('trimtab_upstream_errors_total{model="m"}') == 1
    assert await is_serving(front)


async def test_an_engines_own_error_inside_a_stream_is_kept(front):
    """What the engine said of its failure arrives once, and nothing is invented behind it."""
    async with front.post(stream=True, script="error_inside_stream") as answer:
        *_, last = documents(await answer.text())

    assert last == {"error": {"code": 500, "message": "kaputt", "type": "server_error"}}


async def test_an_answer_that_is_whole_gets_its_missing_done(front):
    """An engine that forgets the end mark does not look like a broken one."""
    async with front.post(stream=True, script="finish_without_done") as answer:
        assert not any("error" in one for one in documents(await answer.text()))


@pytest.mark.parametrize("stream", [False, True], ids=["whole", "stream"])
@pytest.mark.parametrize("script", ["reset_before_head", "close_before_head", "garbage", "huge_head"])
async def test_an_engine_that_breaks_before_its_answer_is_a_502(front, script, stream):
    """The client reads that the engine failed, and a request that may have begun is not repeated."""
    async with front.post(stream=stream, script=script) as answer:
        error = (await answer.json())["error"]
        assert (answer.status, error["code"], error["origin"]) == (502, "engine_unreachable", "gateway")

    assert len(front.engine.seen(CHAT)) == 1
    assert await is_serving(front)


@pytest.mark.parametrize("engine", ["vllm", "llama_cpp"])
async def test_an_unstreamed_answer_that_breaks_off_is_a_502(make_front, engine):
    """Half an answer is never taken for a whole one."""
    front = await make_front(engine=engine)
    script = "die_inside_json" if engine == "vllm" else "end_without_done"
    async with front.post(script=script) as answer:
        assert answer.status == 502
        assert "inside its answer" in (await answer.json())["error"]["message"] or engine == "vllm"


async def test_an_engine_that_is_gone_is_a_502(front):
    """Nothing listens any more: the client is told at once."""
    await front.engine.stop()

    async with asyncio.timeout(3), front.post() as answer:
        assert (answer.status, (await answer.json())["error"]["code"]) == (502, "engine_unreachable")


async def test_a_restarted_engine_is_reached_on_its_new_port(front):
    """After a restart the next request goes where the engine now listens."""
    assert await is_serving(front)
    await front.engine.stop()
    other = await ScriptedEngine().start()
    try:
        front.models[0] = replace(front.models[0], base_url=other.url)
        assert await is_serving(front)
        assert len(other.requests) == 1
    finally:
        await other.stop()


@pytest.mark.parametrize("stream", [False, True], ids=["whole", "stream"])
async def test_a_stale_connection_costs_the_client_nothing(front, stream):
    """A kept connection that the engine closes just then is replaced by a fresh one, once."""
    assert await is_serving(front)
    async with front.post(stream=stream, script="close_if_reused") as answer:
        assert answer.status == 200
        await answer.read()

    stale, fresh = front.engine.seen(CHAT)[1:]
    assert (stale.ended, stale.nth_on_connection) == ("broken", 2)
    assert (fresh.ended, fresh.nth_on_connection) == ("answered", 1)


async def test_an_engine_that_dies_at_work_is_not_asked_again(front):
    """A request that kills the engine does not kill the next one too."""
    assert await is_serving(front)
    async with front.post(script="die_slowly_if_reused") as answer:
        assert answer.status == 502

    assert len(front.engine.seen(CHAT)) == 2


def close_softly(writer):
    writer.close()


def reset(writer):
    linger = struct.pack("ii", 1, 0)
    writer.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, linger)
    writer.close()


@pytest.mark.parametrize("leave", [close_softly, reset])
@pytest.mark.parametrize("document", [{"script": "hang"}, {"script": "hang", "stream": True},
                                      {"script": "hang_inside_stream", "stream": True}],
                         ids=["whole", "before-first-event", "inside-stream"])  # fmt: skip
async def test_a_client_that_leaves_ends_the_engines_work(front, leave, document):
    """Nobody waits any more, so the engine is free again at once, however the client left."""
    reader, writer = await front.raw()
    writer.write(raw_request(document))
    await eventually(lambda: front.engine.requests)
    if document["script"] == "hang_inside_stream":
        await reader.readuntil(b"w1")
    leave(writer)

    await eventually(lambda: front.engine.requests[0].ended == "abandoned")
    assert await front.metric("trimtab_requests_in_flight") == 0
    assert await front.metric('trimtab_client_disconnects_total{model="m"}') == 1
    writer.close()


@pytest.mark.parametrize(
    ("document", "end"),
    [
        pytest.param({"script": "think_first"}, b'"content": "hi"', id="whole"),
        pytest.param(
            {"stream": True, "events": 5, "gap_s": 0.15}, b"data: [DONE]\n\n\r\n0\r\n\r\n", id="stream"
        ),
    ],
)
async def test_a_client_that_has_finished_sending_still_gets_its_answer(front, document, end):
    """Who closes only the sending half, as `nc -N` does, reads the whole answer, however long it takes."""
    reader, writer = await front.raw()
    writer.write(raw_request(document))
    writer.write_eof()
    async with asyncio.timeout(5):
        answer = await reader.read()
    writer.close()

    assert answer.startswith(b"HTTP/1.1 200")
    assert end in answer
    assert b"Connection: close" in answer
    assert front.engine.requests[0].ended == "answered"


async def test_a_client_that_leaves_inside_its_body_leaves_no_trace(front):
    """Half a request never reaches an engine."""
    _, writer = await front.raw()
    writer.write(raw_request({"x": "y" * 1000})[:-500])
    await writer.drain()
    await asyncio.sleep(0.05)
    writer.close()
    await writer.wait_closed()

    assert await is_serving(front)
    assert len(front.engine.requests) == 1


async def test_a_slow_reader_holds_the_engine_back_and_nobody_else(front):
    """What a client does not read stays with the engine, not in our memory; others go on."""
    pieces = 4000  # of 66 kB: more than any buffer between the two may hold
    reader, writer = await front.raw()
    writer.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 65536)
    writer.write(raw_request({"stream": True, "script": "flood", "pieces": pieces}))
    writer.transport.pause_reading()
    last, still = -1, 0
    async with asyncio.timeout(10):
        while still < 20:
            await asyncio.sleep(0.02)
            still = still + 1 if front.engine.num_written_bytes == last else 0
            last = front.engine.num_written_bytes

    assert last < 20_000_000
    assert await is_serving(front)
    writer.transport.resume_reading()
    async with asyncio.timeout(60):
        total = 0
        while data := await reader.read(1 << 20):
            total += len(data)
            if data.endswith(b"0\r\n\r\n"):
                break
    assert total > pieces * 8 * len(event("z" * 8000))
    writer.close()


async def test_pipelined_requests_are_answered_in_order(front):
    """A client that sends the next request early gets both answers, the first one first."""
    reader, writer = await front.raw()
    first = raw_request({"stream": True, "events": 2, "gap_s": 0.05}, more="X-Request-Id: one\r\n")
    writer.write(first + raw_request({}, more="X-Request-Id: two\r\n"))
    answers = b""
    async with asyncio.timeout(5):
        while b'"content": "hi"' not in answers:
            answers += await reader.read(65536)
    writer.close()

    assert answers.index(b"one") < answers.index(b"[DONE]") < answers.index(b"two")


@pytest.mark.parametrize("stream", [False, True], ids=["whole", "stream"])
async def test_an_engine_that_dies_while_others_wait_is_told_to_each(make_front, stream):
    """Whoever waited for a slot of an engine that is gone reads so at once; nobody waits for ever."""
    front = await make_front(concurrency=1)

    async def ask(**fields):
        async with front.post(model="m", stream=stream, **fields) as answer:
            return answer.status, await answer.text()

    running = asyncio.ensure_future(ask(script="hang_inside_stream" if stream else "hang"))
    await eventually(lambda: front.engine.requests)
    waiting = [asyncio.ensure_future(ask()) for _ in range(5)]
    await eventually(lambda: sum(gate.queue.num_waiting for gate in front.gateway._parts.gates) == 5)
    await front.engine.stop()
    async with asyncio.timeout(5):
        cut, *refused = await asyncio.gather(running, *waiting)

    error = documents(cut[1])[-1]["error"] if stream else json.loads(cut[1])["error"]
    assert (cut[0], error["code"]) == ((200, "engine_died") if stream else (502, "engine_unreachable"))
    for status, text in refused:
        assert (status, json.loads(text)["error"]["code"]) == (502, "engine_unreachable")
    assert await front.metric("trimtab_requests_in_flight") == 0


@pytest.mark.parametrize("jump_s", [86_400.0, -86_400.0], ids=["forward", "back"])
async def test_a_clock_that_jumps_ends_no_wait_and_frees_no_limit(make_front, monkeypatch, tmp_path, jump_s):
    """The day's clock may be set while requests run: nothing times out, no key gets more than its share."""
    key = add_key(tmp_path / "keys.json", "me", KeyLimits(requests_per_minute=3))
    log = UsageLog(tmp_path / "usage.sqlite3")
    front = await make_front(concurrency=1, more=GatewayMore(keys=KeyRing(tmp_path / "keys.json"), usage=log))

    async def ask(**fields):
        async with front.post(model="m", headers={"Authorization": f"Bearer {key}"}, **fields) as answer:
            await answer.read()
            return answer.status

    running = asyncio.ensure_future(ask(script="think_first"))
    await eventually(lambda: front.engine.requests)
    waiting = asyncio.ensure_future(ask())
    await asyncio.sleep(0.05)
    now, real = time.time, time.gmtime
    monkeypatch.setattr(time, "time", lambda: now() + jump_s)
    monkeypatch.setattr(time, "gmtime", lambda at=None: real(now() + jump_s if at is None else at))
    async with asyncio.timeout(5):
        assert (await running, await waiting, await ask(), await ask()) == (200, 200, 200, 429)
    log.close()
    totals = read_usage_totals(tmp_path / "usage.sqlite3")

    assert sum(one.num_requests - one.num_errors for one in totals) == 3


@pytest.mark.parametrize(
    ("data", "status"),
    [
        pytest.param(b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03", b"400", id="tls-hello"),
        pytest.param(b"hello\r\n\r\n", b"400", id="no-http"),
        pytest.param(b"GET /health HTTP/1.1\r\nX: " + b"y" * 100_000, b"431", id="huge-header"),
        pytest.param(b"GET /" + b"y" * 100_000 + b" HTTP/1.1\r\n\r\n", b"431", id="huge-path"),
        pytest.param(
            b"GET /health HTTP/1.1\r\n" + b"".join(b"X-%d: y\r\n" % n for n in range(5000)) + b"\r\n",
            b"431",
            id="header-flood",
        ),
        pytest.param(
            b"POST /v1/chat/completions HTTP/1.1\r\nHost: x\r\nContent-Length: -5\r\n\r\n",
            b"400",
            id="length",
        ),
        pytest.param(
            b"POST /v1/chat/completions HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n",
            b"400",
            id="broken-chunk",
        ),
        pytest.param(
            b"POST /v1/chat/completions HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n"
            b"Content-Length: 3\r\n\r\n",
            b"400",
            id="two-lengths",
        ),
    ],
)
async def test_what_is_no_request_is_refused_in_the_one_shape(front, data, status):
    """Broken HTTP gets an error that any client can read, the connection ends, the gateway lives on."""
    reader, writer = await front.raw()
    writer.write(data)
    async with asyncio.timeout(5):
        answer = await reader.read()
    writer.close()

    assert answer.split(b" ", 2)[1] == status, answer[:200]
    assert json.loads(answer.partition(b"\r\n\r\n")[2])["error"]["origin"] == "gateway"
    assert await is_serving(front)
    assert len(front.engine.requests) == 1


async def test_a_refused_upload_does_not_become_the_next_request(front):
    """What is left of a refused body is thrown away, and its connection with it."""
    reader, writer = await front.raw()
    inner = b"GET /v1/models HTTP/1.1\r\nHost: x\r\n\r\n"
    head = (
        f"POST {CHAT} HTTP/1.1\r\nHost: x\r\nContent-Type: text/plain\r\nContent-Length: {len(inner)}\r\n\r\n"
    )
    writer.write(head.encode())
    await asyncio.sleep(0.05)
    writer.write(inner)
    async with asyncio.timeout(5):
        answer = await reader.read()
    writer.close()

    assert answer.count(b"HTTP/1.1") == 1
    assert b"415" in answer


async def test_expect_continue_gets_its_go_ahead(front):
    """The way curl sends larger bodies works."""
    reader, writer = await front.raw()
    request = raw_request({}, more="Expect: 100-continue\r\n")
    head, _, body = request.partition(b"\r\n\r\n")
    writer.write(head + b"\r\n\r\n")
    async with asyncio.timeout(5):
        assert (await reader.readuntil(b"\r\n\r\n")).startswith(b"HTTP/1.1 100")
        writer.write(body)
        assert (await reader.readuntil(b"\r\n\r\n")).startswith(b"HTTP/1.1 200")
    writer.close()


async def test_many_streams_at_once_all_end(front):
    """Two hundred clients at once: none waits for another, every stream is whole."""

    async def one():
        async with front.post(stream=True, events=5, gap_s=0.02) as answer:
            return len(documents(await answer.text()))

    async with asyncio.timeout(20):
        assert await asyncio.gather(*(one() for _ in range(200))) == [6] * 200


async def test_random_deaths_lose_no_accepted_request(front):
    """Among many streams some engines die: each client still gets a whole answer or an error."""
    scripts = [
        "ordinary",
        "die_inside_stream",
        "reset_inside_stream",
        "reset_before_head",
        "end_without_done",
    ]

    async def one(script):
        async with front.post(stream=True, script=script) as answer:
            if answer.status == 502:
                return "refused"
            return "error" if "error" in documents(await answer.text())[-1] else "done"

    ends = await asyncio.gather(*(one(scripts[n % 5]) for n in range(100)))
    assert (ends.count("done"), ends.count("error"), ends.count("refused")) == (20, 60, 20)


async def test_connections_that_say_nothing_do_not_hinder(front):
    """Hundreds of idle connections are held while requests go on."""
    idle = [await front.raw() for _ in range(300)]
    assert await is_serving(front)
    for _, writer in idle:
        writer.close()


async def test_the_next_request_on_a_kept_connection_is_refused_while_draining(front):
    """Who still has a connection when trimtab stops is told so instead of being cut off."""
    async with front.post(stream=True, script="hang_inside_stream") as held:
        await held.content.readany()
        async with aiohttp.ClientSession() as kept:
            async with kept.get(front.url + "/health") as answer:
                await answer.read()
            draining = asyncio.ensure_future(front.gateway.drain(5))
            await asyncio.sleep(0.02)
            headers = {"Content-Type": "application/json"}
            async with kept.post(front.url + CHAT, data=b"{}", headers=headers) as answer:
                assert (answer.status, (await answer.json())["error"]["code"]) == (503, "stopping")
        held.close()
        await asyncio.wait_for(draining, 2)
