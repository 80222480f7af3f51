"""HTTP itself, over real sockets: what any client, proxy or attacker may do with a connection."""

import asyncio
import gc
import json
import socket
import ssl
import subprocess
import time

import pytest
from scripted_engine import COMPLETION, ScriptedEngine, eventually, plain
from test_faults import is_serving, raw_request

from trimtab.gateway import http_connection, http_presence, http_server
from trimtab.gateway.http_client import EngineConnection
from trimtab.gateway.http_message import Request
from trimtab.gateway.http_request_reader import RequestReader
from trimtab.gateway.http_response_reader import ResponseReader

CHAT = "/v1/chat/completions"
GET = b"GET /health HTTP/1.1\r\nHost: x\r\n\r\n"


async def read_answer(reader):
    """(status line, headers in lower case, body) of one answer with a length or in chunks."""
    head = (await reader.readuntil(b"\r\n\r\n")).decode("latin1").lower()
    line, *lines = head.strip().split("\r\n")
    headers = dict(one.split(": ", 1) for one in lines)
    if headers.get("transfer-encoding") == "chunked":
        body = b""
        while size := int((await reader.readuntil(b"\r\n"))[:-2], 16):
            body += (await reader.readexactly(size + 2))[:-2]
        await reader.readexactly(2)
    else:
        body = await reader.readexactly(int(headers.get("content-length", 0)))
    return line, headers, body


async def answer_to(front, data):
    """Everything that comes back for these bytes until the connection ends."""
    reader, writer = await front.raw()
    writer.write(data)
    async with asyncio.timeout(5):
        answer = await reader.read()
    writer.close()
    return answer


async def test_a_connection_carries_many_requests(front):
    """Whole answers, streams, errors and probes follow each other on one connection."""
    reader, writer = await front.raw()
    async with asyncio.timeout(5):
        for data, status in (
            (raw_request({}), "200 ok"),
            (raw_request({"stream": True}), "200 ok"),
            (GET, "200 ok"),
            (raw_request({"model": "none"}), "404 not found"),
            (b"DELETE /health HTTP/1.1\r\nHost: x\r\n\r\n", "405 method not allowed"),
            (raw_request({"max_tokens": 0}), "400 bad request"),
            (raw_request({}), "200 ok"),
        ):
            writer.write(data)
            line, headers, _ = await read_answer(reader)
            assert line == "http/1.1 " + status
            assert "date" in headers
            assert "connection" not in headers
    writer.close()


async def test_a_request_byte_by_byte_is_the_same_request(front):
    """A client behind the slowest of networks is served as any other."""
    reader, writer = await front.raw()
    for byte in raw_request({"model": "m", "x": "ä€😀"}):
        writer.write(bytes([byte]))
        await asyncio.sleep(0)
    async with asyncio.timeout(5):
        _, _, body = await read_answer(reader)
    writer.close()

    assert json.loads(body) == COMPLETION
    assert front.engine.requests[0].document["x"] == "ä€😀"


async def test_a_chunked_request_arrives_whole(front):
    """A client that does not know its length beforehand is understood, extensions and trailers too."""
    body = b'{"messages": [], "x": 1}'
    chunks = b"5;a=b\r\n%b\r\n13\r\n%b\r\n0\r\nX-Sum: 1\r\n\r\n" % (body[:5], body[5:])
    head = f"POST {CHAT} HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n"
    reader, writer = await front.raw()
    writer.write(head.encode() + chunks + GET)
    async with asyncio.timeout(5):
        assert (await read_answer(reader))[0] == "http/1.1 200 ok"
        assert (await read_answer(reader))[0] == "http/1.1 200 ok"
    writer.close()

    assert front.engine.requests[0].body == body


async def test_old_clients_get_what_they_understand(front):
    """HTTP/1.0 knows no chunks: a stream ends with its connection; keep-alive is an option there."""
    request = raw_request({"stream": True}).replace(b"HTTP/1.1", b"HTTP/1.0")
    answer = await answer_to(front, request)
    assert b"ransfer-Encoding" not in answer
    assert answer.endswith(b"data: [DONE]\n\n")

    assert b"Connection: close" in await answer_to(front, GET.replace(b"1.1", b"1.0"))
    kept = GET.replace(b"1.1", b"1.0").replace(b"Host", b"Connection: keep-alive\r\nHost")
    answer = await answer_to(front, kept + GET.replace(b"Host", b"Connection: close\r\nHost"))
    assert answer.count(b"HTTP/1.1 200") == 2


async def test_head_has_the_length_and_no_body(front):
    """A HEAD probe learns the length of what GET would give, and the connection is in step behind it."""
    reader, writer = await front.raw()
    writer.write(GET.replace(b"GET", b"HEAD") + GET)
    async with asyncio.timeout(5):
        head = (await reader.readuntil(b"\r\n\r\n")).decode().lower()
        _, headers, body = await read_answer(reader)
    writer.close()

    assert f"content-length: {headers['content-length']}\r\n" in head
    assert json.loads(body)["status"] == "ok"


async def test_a_client_that_offers_another_protocol_is_answered_in_this_one(front):
    """Java's client offers h2c with every request; its body must not be lost."""
    reader, writer = await front.raw()
    more = "Connection: Upgrade, HTTP2-Settings\r\nUpgrade: h2c\r\nHTTP2-Settings: AAMAAABk\r\n"
    writer.write(raw_request({"x": 1}, more=more) + GET)
    async with asyncio.timeout(5):
        assert json.loads((await read_answer(reader))[2]) == COMPLETION
        assert json.loads((await read_answer(reader))[2])["status"] == "ok"
    writer.close()

    assert front.engine.requests[0].document["x"] == 1


SMUGGLED = b"GET /v1/models HTTP/1.1\r\nHost: x\r\n\r\n"


@pytest.mark.parametrize(
    "framing",
    [
        pytest.param(
            b"Content-Length: 5\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n", id="length-and-chunks"
        ),
        pytest.param(
            b"Transfer-Encoding: chunked\r\nContent-Length: 5\r\n\r\n0\r\n\r\n", id="chunks-and-length"
        ),
        pytest.param(b"Content-Length: 2\r\nContent-Length: 2\r\n\r\n{}", id="same-length-twice"),
        pytest.param(b"Content-Length: 2\r\nContent-Length: 40\r\n\r\n{}", id="two-lengths"),
        pytest.param(b"Content-Length: 2, 2\r\n\r\n{}", id="length-list"),
        pytest.param(b"Content-Length: +2\r\n\r\n{}", id="signed-length"),
        pytest.param(b"Content-Length: 0x2\r\n\r\n{}", id="hexadecimal-length"),
        pytest.param(b"Content-Length: 99999999999999999999\r\n\r\n{}", id="overflowing-length"),
        pytest.param(b"Content-Length : 2\r\n\r\n{}", id="space-before-colon"),
        pytest.param(b"Transfer-Encoding: gzip, chunked\r\n\r\n0\r\n\r\n", id="other-coding"),
        pytest.param(b"Transfer-Encoding: identity\r\nContent-Length: 2\r\n\r\n{}", id="identity"),
        pytest.param(b"Transfer-Encoding: xchunked\r\n\r\n{}", id="unknown-coding"),
        pytest.param(
            b"Transfer-Encoding: chunked\r\nTransfer-Encoding: x\r\n\r\n0\r\n\r\n", id="two-codings"
        ),
        pytest.param(b"Transfer-Encoding: chunked\r\n\r\n2 \r\n{}\r\n0\r\n\r\n", id="space-behind-size"),
        pytest.param(b"Transfer-Encoding: chunked\r\n\r\n0x2\r\n{}\r\n0\r\n\r\n", id="prefixed-size"),
        pytest.param(b"Transfer-Encoding: chunked\r\n\r\n-2\r\n{}\r\n0\r\n\r\n", id="negative-size"),
        pytest.param(b"Transfer-Encoding: chunked\r\n\r\n2\n{}\n0\n\n", id="bare-line-feeds"),
        pytest.param(b"Transfer-Encoding: chunked\r\n\r\n1\r\n{}\r\n0\r\n\r\n", id="size-too-small"),
        pytest.param(b"Transfer-Encoding: chunked\r\n\r\nfffffffffffffffff\r\n", id="overflowing-size"),
        pytest.param(b"X: a\r\n Content-Length: 40\r\nContent-Length: 2\r\n\r\n{}", id="folded-line"),
        pytest.param(b"X: a\nContent-Length: 2\r\n\r\n{}", id="bare-line-feed-in-head"),
        pytest.param(b"X: a\rContent-Length: 2\r\n\r\n{}", id="bare-return-in-head"),
        pytest.param(b"X: a\x00b\r\nContent-Length: 2\r\n\r\n{}", id="null-in-head"),
        pytest.param(b"Host: y\r\nContent-Length: 2\r\n\r\n{}", id="two-hosts"),
    ],
)
async def test_a_request_that_could_be_read_in_two_ways_is_refused(front, framing):
    """Nobody hides a request from a proxy in front: the connection ends with the first doubt."""
    head = f"POST {CHAT} HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\n".encode()
    answer = await answer_to(front, head + framing + SMUGGLED)

    assert answer.startswith(b"HTTP/1.1 400 ")
    assert answer.count(b"HTTP/1.1") == 1
    assert b"Connection: close" in answer
    assert front.engine.requests == []


async def test_what_came_before_the_garbage_is_still_answered(front):
    """One connection's last good request gets its answer; then the refusal, then the end."""
    answer = await answer_to(front, raw_request({}) + b"\x00garbage\r\n\r\n")

    assert answer.index(b"HTTP/1.1 200") < answer.index(b"HTTP/1.1 400")


async def test_a_body_that_is_refused_by_its_head_is_not_asked_for(front):
    """A client that waits for its go-ahead reads the refusal instead, and sends nothing."""
    head = f"POST {CHAT} HTTP/1.1\r\nHost: x\r\nContent-Length: 100000000\r\nExpect: 100-continue\r\n"
    reader, writer = await front.raw()
    writer.write(head.encode() + b"Content-Type: application/json\r\n\r\n")
    async with asyncio.timeout(5):
        line, headers, _ = await read_answer(reader)
    writer.close()

    assert " 413 " in line
    assert headers["connection"] == "close"


async def test_a_hundred_megabytes_are_refused_readably(front):
    """A client that writes everything before it reads still reads why it was refused."""
    size = 100_000_000
    reader, writer = await front.raw()
    writer.write(f"POST {CHAT} HTTP/1.1\r\nHost: x\r\nContent-Length: {size}\r\n\r\n".encode())
    async with asyncio.timeout(30):
        for _ in range(size // 1_000_000):
            writer.write(b" " * 1_000_000)
            await writer.drain()
        assert b" 413 " in await reader.readuntil(b"\r\n")
    writer.close()

    assert await is_serving(front)


async def test_pipelined_requests_wait_their_turn(front):
    """Fifty requests in one go: all answered, in order, one after the other at the engine."""
    reader, writer = await front.raw()
    writer.write(b"".join(raw_request({}, more=f"X-Request-Id: n{n}\r\n") for n in range(50)))
    async with asyncio.timeout(10):
        names = [(await read_answer(reader))[1]["x-request-id"] for _ in range(50)]
    writer.close()

    assert names == [f"n{n}" for n in range(50)]
    assert [one.headers["x-request-id"] for one in front.engine.requests] == names


async def test_a_pipelining_client_that_leaves_ends_the_engines_work(front):
    """Bytes that wait their turn do not hide that nobody is there any more."""
    _, writer = await front.raw()
    writer.write(raw_request({"script": "hang"}) + raw_request({}))
    await eventually(lambda: front.engine.requests)
    await asyncio.sleep(0.05)
    writer.close()

    await eventually(lambda: front.engine.requests[0].ended == "abandoned", within_s=2)
    assert len(front.engine.requests) == 1


async def test_a_half_closed_client_that_leaves_then_ends_the_engines_work(front):
    """Having finished sending is not leaving, but leaving afterwards is."""
    _, writer = await front.raw()
    writer.write(raw_request({"script": "hang"}))
    writer.write_eof()
    await eventually(lambda: front.engine.requests)
    await asyncio.sleep(0.3)
    assert front.engine.requests[0].ended == ""
    writer.close()

    await eventually(lambda: front.engine.requests[0].ended == "abandoned", within_s=2)


async def test_a_client_elsewhere_is_asked_whether_it_is_still_there(front, monkeypatch):
    """Where the kernel's table cannot tell, a provisional answer does: a closed end resets it."""
    monkeypatch.setattr(http_presence, "_ends_on_this_machine", lambda _: None)
    reader, writer = await front.raw()
    writer.write(raw_request({"script": "think_first"}))
    writer.write_eof()
    async with asyncio.timeout(5):
        answer = await reader.read()
    writer.close()
    assert answer.startswith(b"HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 200 OK")

    _, writer = await front.raw()
    writer.write(raw_request({"script": "hang"}))
    await eventually(lambda: len(front.engine.requests) == 2)
    writer.close()
    await eventually(lambda: front.engine.requests[1].ended == "abandoned", within_s=2)


@pytest.fixture
def short_times(monkeypatch):
    for name in ("_HEAD_TIMEOUT_S", "_BODY_TIMEOUT_S", "_IDLE_TIMEOUT_S", "_SURPLUS_S"):
        monkeypatch.setattr(http_connection, name, 0.2)
    monkeypatch.setattr(http_server, "_SWEEP_EVERY_S", 0.05)


@pytest.mark.parametrize(
    ("sent", "status"),
    [
        pytest.param(b"", b"", id="nothing"),
        pytest.param(GET, b"HTTP/1.1 200 OK", id="idle-behind-an-answer"),
        pytest.param(b"GET /health HT", b"HTTP/1.1 408 Request Timeout", id="half-a-head"),
        pytest.param(raw_request({"x": 1})[:-3], b"HTTP/1.1 408 Request Timeout", id="half-a-body"),
    ],
)
async def test_a_connection_that_goes_on_with_nothing_is_closed(short_times, make_front, sent, status):
    """Who connects and waits holds a connection for a while, not for ever."""
    front = await make_front()
    assert (await answer_to(front, sent)).partition(b"\r\n")[0] == status
    assert await is_serving(front)


async def test_a_head_that_trickles_is_closed_in_time(short_times, make_front):
    """One byte now and then does not keep a head open."""
    front = await make_front()
    reader, writer = await front.raw()
    closed = asyncio.ensure_future(reader.read())
    async with asyncio.timeout(5):
        for byte in b"GET /health HTTP/1.1\r\nX: " + b"y" * 200:
            if closed.done():
                break
            writer.write(bytes([byte]))
            await asyncio.sleep(0.02)
        assert b" 408 " in await closed
    writer.close()


async def test_an_answer_that_takes_long_is_no_idle_connection(short_times, make_front):
    """Time limits are for clients; an engine may think as long as it likes."""
    front = await make_front()
    async with front.post(stream=True, events=3, gap_s=0.3) as answer:
        assert (await answer.text()).endswith("[DONE]\n\n")


async def test_idle_connections_make_room_for_new_ones(make_front):
    """However many connections say nothing, the next client is served; the oldest idle one makes room."""
    front = await make_front(num_descriptors=40)
    idle = [await front.raw() for _ in range(100)]
    assert await is_serving(front)
    reader, writer = idle[0]
    async with asyncio.timeout(5):
        assert await reader.read() == b""
    assert front.gateway._budget.num_taken <= front.gateway._budget.limit

    for _, writer in idle:
        writer.close()
    await eventually(lambda: front.gateway._budget.num_taken <= 3)


async def test_one_connection_too_many_is_told_so(make_front):
    """When every connection is at work a new one reads a 503; when one ends there is room again."""
    front = await make_front(num_descriptors=16)  # 12 connections: 6 requests at work
    busy = []
    for _ in range(6):
        _, writer = await front.raw()
        writer.write(raw_request({"script": "hang_inside_stream", "stream": True}))
        busy.append(writer)
    await eventually(lambda: len(front.engine.requests) == 6)

    answer = await answer_to(front, GET)
    assert answer.startswith(b"HTTP/1.1 503 ")
    assert json.loads(answer.partition(b"\r\n\r\n")[2])["error"]["code"] == "too_many_connections"

    for writer in busy:
        writer.close()
    await eventually(lambda: all(one.ended == "abandoned" for one in front.engine.requests))
    assert (await answer_to(front, GET.replace(b"Host", b"Connection: close\r\nHost"))).startswith(
        b"HTTP/1.1 200"
    )


async def test_no_descriptor_for_the_engine_is_a_503(make_front):
    """A request that came in but cannot get through is refused readably, and may come again."""
    front = await make_front(num_descriptors=16)  # 12 connections
    clients = [await front.raw() for _ in range(7)]
    for number, (_, writer) in enumerate(clients[:5]):
        writer.write(raw_request({"script": "hang"}))
        await eventually(lambda number=number: len(front.engine.requests) == number + 1)
    # Idle clients would make room for the engine's connection: none is idle.
    for _, writer in clients[5:]:
        writer.write(raw_request({"script": "hang"})[:-1])
    await asyncio.sleep(0.05)
    reader, writer = clients[5]
    writer.write(b"}")
    async with asyncio.timeout(5):
        line, _, body = await read_answer(reader)

    assert " 503 " in line
    assert json.loads(body)["error"]["code"] == "too_many_connections"
    for _, writer in clients:
        writer.close()
    await eventually(lambda: front.gateway._budget.num_taken == 0)
    assert await is_serving(front)


async def test_an_engine_behind_a_socket_file_is_reached(make_front, tmp_path):
    """An engine need not listen on a port."""
    path = tmp_path / "e.sock"

    async def serve(reader, writer):
        await reader.readuntil(b"\r\n\r\n")
        writer.write(plain(json.dumps(COMPLETION).encode()))
        await reader.read()
        writer.close()

    server = await asyncio.start_unix_server(serve, path)
    front = await make_front(base_url=f"http+unix://{str(path).replace('/', '%2F')}")
    async with front.post() as answer:
        assert await answer.json() == COMPLETION
    await front.gateway.stop()
    server.close()
    await server.wait_closed()


async def test_an_engine_behind_tls_is_reached_and_checked(make_front, tmp_path, monkeypatch):
    """An external endpoint is spoken to in TLS, and one with the wrong name is not spoken to at all."""
    key, cert = tmp_path / "key.pem", tmp_path / "cert.pem"
    subprocess.run(
        ["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes",
         "-keyout", key, "-out", cert, "-days", "2", "-subj", "/CN=localhost",
         "-addext", "subjectAltName=DNS:localhost"],
        check=True, capture_output=True,
    )  # fmt: skip
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(cert, key)
    engine = ScriptedEngine()
    engine._tasks = set()
    engine._server = await asyncio.start_server(engine._serve, "127.0.0.1", 0, ssl=context)
    port = engine._server.sockets[0].getsockname()[1]
    monkeypatch.setenv("SSL_CERT_FILE", str(cert))
    front = await make_front(base_url=f"https://localhost:{port}/prefix")
    for stream in (False, True):
        async with front.post(stream=stream) as answer:
            assert answer.status == 200
            await answer.read()
    assert {one.path for one in engine.requests} == {"/prefix" + CHAT}

    other = await make_front(base_url=f"https://127.0.0.1:{port}")
    async with other.post() as answer:
        assert answer.status == 502
        assert "certificate" in (await answer.json())["error"]["message"].lower()
    await engine.stop()


async def test_an_engines_odd_head_cannot_add_a_header(front):
    """Nothing that a client or an engine writes becomes a header of its own in the answer."""
    async with front.post(headers={"X-Request-Id": "a\tb"}) as answer:
        assert answer.headers["X-Request-Id"] == "a\tb"
    answer = await answer_to(
        front, raw_request({}, more="X-Request-Id: \xe9\r\nConnection: close\r\n").decode().encode("latin1")
    )
    assert b"X-Request-Id: \xe9\r\n" in answer


async def test_a_slow_reader_of_whole_answers_keeps_its_turn(front):
    """Answers and requests that wait pile up with the client, not in the gateway; all arrive in the end."""
    reader, writer = await front.raw()
    writer.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 65536)
    writer.transport.pause_reading()
    script = {"script": "refuse", "status": 200, "answer": json.dumps(COMPLETION | {"pad": "x" * 100_000})}
    for _ in range(300):
        writer.write(raw_request(script))
    last = -1
    while last != len(front.engine.requests):
        last = len(front.engine.requests)
        await asyncio.sleep(0.2)
    assert last < 200
    (connection,) = (one for one in front.gateway._server._connections if one._queue)
    assert len(connection._queue) < 20
    assert await is_serving(front)
    writer.transport.resume_reading()
    async with asyncio.timeout(20):
        for _ in range(300):
            assert json.loads((await read_answer(reader))[2])["id"] == "c"
    writer.close()


async def test_connections_leave_nothing_for_the_garbage_collector(front):
    """Memory is free as soon as a connection ends: refusals and floods cannot pile up until a collection."""
    flood = b"GET /health HTTP/1.1\r\n" + b"X-A: b\r\n" * 20_000
    close = GET.replace(b"Host", b"Connection: close\r\nHost")
    smuggled = b"POST / HTTP/1.1\r\nContent-Length: 5\r\nTransfer-Encoding: chunked\r\n\r\n"
    good = raw_request({}, more="Connection: close\r\n")
    broken = raw_request({"script": "close_before_head"}, more="Connection: close\r\n")
    cut = raw_request({"stream": True, "script": "die_inside_stream"}, more="Connection: close\r\n")
    deep = raw_request({"max_tokens": 0}, more="Connection: close\r\n")
    kinds = (http_connection.ClientConnection, EngineConnection, Request, RequestReader, ResponseReader)
    assert await is_serving(front)
    gc.collect()
    gc.disable()
    try:
        before = sum(isinstance(one, kinds) for one in gc.get_objects())
        for data in (flood, close, smuggled, good, broken, cut, deep, b"\x00", raw_request({})[:-1]):
            for _ in range(5):
                reader, writer = await front.raw()
                writer.write(data)
                if data in (b"\x00", flood, smuggled) or b"close" in data:
                    await reader.read()
                writer.close()
        await eventually(lambda: front.gateway._budget.num_taken <= 4)
        await asyncio.sleep(0.05)
        assert sum(isinstance(one, kinds) for one in gc.get_objects()) <= before + 4
    finally:
        gc.enable()


async def test_a_slow_reader_of_a_last_answer_gets_all_of_it(make_front, monkeypatch):
    """A connection that is to be closed stays until everything is read, as long as something is."""
    monkeypatch.setattr(http_connection, "_FLUSH_S", 0.6)
    monkeypatch.setattr(http_server, "_SWEEP_EVERY_S", 0.05)
    front = await make_front()
    reader, writer = await front.raw()
    writer.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 65536)
    writer.write(
        raw_request({"stream": True, "script": "flood", "pieces": 200}, more="Connection: close\r\n")
    )
    total, started_s = 0, time.monotonic()
    async with asyncio.timeout(60):
        while data := await reader.read(200_000):
            total += len(data)
            await asyncio.sleep(0.005)
    writer.close()

    assert total > 200 * 8 * 8000
    assert time.monotonic() - started_s > 0.3
    assert await is_serving(front)


async def test_a_reader_that_stopped_reading_its_last_answer_is_cut_off(make_front, monkeypatch):
    """A connection that is to be closed does not stay for ever when nothing is read."""
    monkeypatch.setattr(http_connection, "_FLUSH_S", 0.2)
    monkeypatch.setattr(http_server, "_SWEEP_EVERY_S", 0.05)
    front = await make_front()
    _, writer = await front.raw()
    writer.transport.pause_reading()
    document = {"script": "refuse", "status": 200, "answer": "x" * 20_000_000}
    writer.write(raw_request(document, more="Connection: close\r\n"))
    await eventually(
        lambda: front.engine.requests and front.engine.requests[0].ended == "answered", within_s=20
    )
    assert front.gateway._server._connections
    await eventually(lambda: not front.gateway._server._connections, within_s=10)
    writer.close()
