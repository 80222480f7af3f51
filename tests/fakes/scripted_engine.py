"""A stand-in engine inside the test's own loop: every request says in its body how it shall be answered.

The field ``script`` of a JSON body (the gateway passes unknown fields on) names one of ``SCRIPTS``;
without one a request gets an ordinary answer: a chat completion, or ``events`` server-sent events with
``gap_s`` between them and [DONE]. What came in and what became of it is kept for the test to judge.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

STREAM_HEAD = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n"


def chunked(data: bytes) -> bytes:
    return b"%x\r\n%b\r\n" % (len(data), data)


def event(text: str, *, finish: str | None = None) -> bytes:
    choice = {"index": 0, "delta": {"content": text}, "finish_reason": finish}
    document = {"id": "c", "object": "chat.completion.chunk", "created": 1, "model": "m", "choices": [choice]}
    return b"data: " + json.dumps(document).encode() + b"\n\n"


def plain(
    body: bytes, *, status: str = "200 OK", content_type: str = "application/json", more: str = ""
) -> bytes:
    head = f"HTTP/1.1 {status}\r\nContent-Type: {content_type}\r\nContent-Length: {len(body)}\r\n{more}\r\n"
    return head.encode() + body


COMPLETION = {
    "id": "c",
    "object": "chat.completion",
    "created": 1,
    "model": "m",
    "choices": [{"index": 0, "message": {"role": "assistant", "content": "hi"}, "finish_reason": "stop"}],
    "usage": {"prompt_tokens": 1, "completion_tokens": 1, "total_tokens": 2},
}
EMBEDDED = {"object": "list", "model": "m", "data": [{"object": "embedding", "index": 0, "embedding": [0.5]}]}


@dataclass
class SeenRequest:
    """One request as it came in; ``ended`` is "answered", "broken" by script or "abandoned" by the client."""

    path: str
    headers: dict[str, str]
    body: bytes
    connection: int
    nth_on_connection: int
    ended: str = ""

    @property
    def document(self) -> dict[str, Any]:
        return json.loads(self.body)


@dataclass
class ScriptedEngine:
    """Listens on a free port of 127.0.0.1 between ``start`` and ``stop``."""

    port: int = 0
    requests: list[SeenRequest] = field(default_factory=list)
    num_connections: int = 0
    num_written_bytes: int = 0
    prompt_tokens: int = 1
    # A script for every request, whatever the request asks for.
    script: str = ""

    async def start(self) -> ScriptedEngine:
        self._tasks: set[asyncio.Task[None]] = set()
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", self.port)
        self.port = self._server.sockets[0].getsockname()[1]
        return self

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def seen(self, path: str) -> list[SeenRequest]:
        return [request for request in self.requests if request.path == path]

    async def stop(self) -> None:
        self._server.close()
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._tasks.add(task)
        self.num_connections += 1
        connection, nth = self.num_connections, 0
        try:
            while True:
                nth += 1
                request = await _read_request(reader, connection, nth)
                self.requests.append(request)
                if not await self._answer(request, reader, writer):
                    break
        except (asyncio.IncompleteReadError, ConnectionError, asyncio.CancelledError):
            pass
        finally:
            self._tasks.discard(task)
            writer.close()
            with suppress(ConnectionError, asyncio.CancelledError):
                await writer.wait_closed()

    async def _answer(
        self, request: SeenRequest, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> bool:
        """Whether the connection may take another request."""
        run = Run(self, request, writer)
        work = asyncio.ensure_future(run.run())
        gone = asyncio.ensure_future(_wait_gone(reader))
        try:
            await asyncio.wait({work, gone}, return_when=asyncio.FIRST_COMPLETED)
            if not work.done():
                request.ended = "abandoned"
                return False
            if isinstance(work.exception(), ConnectionError):
                request.ended = "abandoned"
                return False
            keep = work.result()
            request.ended = request.ended or "answered"
            return keep
        finally:
            for part in (work, gone):
                part.cancel()
            await asyncio.gather(work, gone, return_exceptions=True)


async def _wait_gone(reader: asyncio.StreamReader) -> None:
    """Until the client has closed; a stand-in needs no pipelining, so nothing else may come."""
    while not reader.at_eof() and reader.exception() is None:
        await asyncio.sleep(0.005)


async def _read_request(reader: asyncio.StreamReader, connection: int, nth: int) -> SeenRequest:
    head = (await reader.readuntil(b"\r\n\r\n")).decode("latin1").split("\r\n")
    headers = {
        name.lower(): value.strip() for name, _, value in (line.partition(":") for line in head[1:] if line)
    }
    body = await reader.readexactly(int(headers.get("content-length", 0)))
    return SeenRequest(head[0].split(" ")[1], headers, body, connection, nth)


class Run:
    """One answer being given; each script returns whether the connection lives on."""

    def __init__(self, engine: ScriptedEngine, request: SeenRequest, writer: asyncio.StreamWriter) -> None:
        self.engine, self.request, self.writer = engine, request, writer
        self.document: dict[str, Any] = request.document if request.body else {}

    async def send(self, data: bytes) -> None:
        self.writer.write(data)
        await self.writer.drain()
        self.engine.num_written_bytes += len(data)

    async def run(self) -> bool:
        name = self.engine.script or self.document.get("script", "ordinary")
        if self.request.path.endswith("/input_tokens"):
            return await self.say({"input_tokens": self.engine.prompt_tokens})
        if self.request.path == "/v1/models":
            return await self.say({"object": "list", "data": [{"id": "m", "object": "model"}]})
        if self.request.path == "/tokenize":
            tokens = [1] * self.engine.prompt_tokens
            return await self.say({"tokens": tokens, "count": len(tokens)})
        return await SCRIPTS[name](self)

    async def say(self, document: object) -> bool:
        await self.send(plain(json.dumps(document).encode()))
        return True

    def reset(self) -> bool:
        self.request.ended = "broken"
        self.writer.transport.abort()
        return False

    def close(self) -> bool:
        self.request.ended = "broken"
        return False


async def ordinary(run: Run) -> bool:
    if not run.document.get("stream"):
        return await run.say(EMBEDDED if run.request.path == "/v1/embeddings" else COMPLETION)
    await run.send(STREAM_HEAD)
    for index in range(run.document.get("events", 3)):
        await run.send(chunked(event(f"w{index}")))
        await asyncio.sleep(run.document.get("gap_s", 0))
    await run.send(chunked(event("", finish="stop")) + chunked(b"data: [DONE]\n\n") + b"0\r\n\r\n")
    return True


async def reset_before_head(run: Run) -> bool:
    return run.reset()


async def close_before_head(run: Run) -> bool:
    return run.close()


async def close_if_reused(run: Run) -> bool:
    """What a keep-alive connection does that times out just while a request is on its way."""
    return run.close() if run.request.nth_on_connection > 1 else await ordinary(run)


async def die_slowly_if_reused(run: Run) -> bool:
    """An engine that crashes while it works on the request: no stale connection."""
    if run.request.nth_on_connection == 1:
        return await ordinary(run)
    await asyncio.sleep(1.2)
    return run.close()


async def _begin(run: Run, more: bytes = b"") -> None:
    await run.send(STREAM_HEAD + chunked(event("w0")) + chunked(event("w1")) + more)
    await asyncio.sleep(0.05)


async def die_inside_stream(run: Run) -> bool:
    await _begin(run)
    return run.close()


async def reset_inside_stream(run: Run) -> bool:
    await _begin(run)
    return run.reset()


async def die_inside_event(run: Run) -> bool:
    await _begin(run, chunked(b'data: {"half": "'))
    return run.close()


async def die_after_head(run: Run) -> bool:
    await run.send(STREAM_HEAD)
    return run.close()


async def head_and_hang(run: Run) -> bool:
    """A long prompt, or an engine that was stopped: the head comes at once, nothing after it."""
    await run.send(STREAM_HEAD)
    await asyncio.sleep(60)
    return run.close()


async def broken_chunk(run: Run) -> bool:
    await _begin(run)
    await run.send(b"zz\r\nnot a chunk\r\n")
    await asyncio.sleep(5)
    return run.close()


async def end_without_done(run: Run) -> bool:
    await _begin(run, b"0\r\n\r\n")
    return True


async def finish_without_done(run: Run) -> bool:
    await _begin(run, chunked(event("", finish="stop")) + b"0\r\n\r\n")
    return True


async def error_inside_stream(run: Run) -> bool:
    error = b'data: {"error":{"code":500,"message":"kaputt","type":"server_error"}}\n\n'
    await _begin(run, chunked(error) + b"0\r\n\r\n")
    return True


async def fail_dead(run: Run) -> bool:
    """The API of a vLLM whose engine core has just died: 500, or a stream of one error."""
    error = {
        "error": {"message": "EngineCore encountered an issue.", "type": "InternalServerError", "code": 500}
    }
    if not run.document.get("stream"):
        await run.send(plain(json.dumps(error).encode(), status="500 Internal Server Error"))
        return True
    await run.send(STREAM_HEAD)
    await asyncio.sleep(0.05)
    events = b"data: " + json.dumps(error).encode() + b"\n\ndata: [DONE]\n\n"
    await run.send(chunked(events) + b"0\r\n\r\n")
    return True


async def close_delimited_cut(run: Run) -> bool:
    """An HTTP/1.0 style stream: its end and its death look the same to HTTP."""
    await run.send(
        b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nConnection: close\r\n\r\n" + event("w0")
    )
    return run.close()


async def die_inside_json(run: Run) -> bool:
    await run.send(plain(json.dumps(COMPLETION).encode())[:-10])
    return run.close()


async def garbage(run: Run) -> bool:
    await run.send(b"\x00\x01 this is no HTTP\r\n\r\n")
    return run.close()


async def huge_head(run: Run) -> bool:
    await run.send(plain(b"{}", more=f"X-Huge: {'y' * 100_000}\r\n"))
    return run.close()


async def think_first(run: Run) -> bool:
    """An answer that takes a while before its first byte."""
    await asyncio.sleep(0.5)
    return await run.say(COMPLETION)


async def hang(run: Run) -> bool:
    await asyncio.sleep(60)
    return run.close()


async def hang_inside_stream(run: Run) -> bool:
    await _begin(run)
    await asyncio.sleep(60)
    return run.close()


async def flood(run: Run) -> bool:
    """More than any buffer may hold."""
    await run.send(STREAM_HEAD)
    piece = chunked(event("z" * 8000) * 8)
    for _ in range(run.document["pieces"]):
        await run.send(piece)
    await run.send(chunked(b"data: [DONE]\n\n") + b"0\r\n\r\n")
    return True


async def endless_body(run: Run) -> bool:
    """An answer that is no stream, and never ends."""
    head = b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nTransfer-Encoding: chunked\r\n\r\n"
    await run.send(head)
    while True:
        await run.send(chunked(b"[" * 65536))


async def told(run: Run) -> bool:
    """The answer that the request carries: ``say`` is the body, ``status`` its status."""
    body = json.dumps(run.document["say"]).encode()
    await run.send(plain(body, status=run.document.get("status", "200 OK")))
    return True


async def told_as_it_is(run: Run) -> bool:
    """The text that the request carries: ``say`` is the body, ``kind`` its content type."""
    kind = run.document.get("kind", "application/json")
    await run.send(plain(run.document["say"].encode(), content_type=kind))
    return True


async def chunks(run: Run) -> bool:
    """The stream that the request carries: ``chunks`` are its events."""
    await run.send(STREAM_HEAD)
    for document in run.document["chunks"]:
        await run.send(chunked(b"data: " + json.dumps(document).encode() + b"\n\n"))
        await asyncio.sleep(run.document.get("gap_s", 0))
    await run.send(chunked(b"data: [DONE]\n\n") + b"0\r\n\r\n")
    return True


async def odd_cuts(run: Run) -> bool:
    """Chunks that end anywhere, inside a character too."""
    data = event("ä€😀") * 3 + b"data: [DONE]\n\n"
    await run.send(STREAM_HEAD)
    for byte in data:
        await run.send(chunked(bytes([byte])))
        await asyncio.sleep(0)
    await run.send(b"0\r\n\r\n")
    return True


async def refuse(run: Run) -> bool:
    status = run.document["status"]
    body = run.document["answer"].encode()
    await run.send(plain(body, status=f"{status} X", content_type="text/plain", more="Retry-After: 7\r\n"))
    return True


SCRIPTS: dict[str, Callable[[Run], Awaitable[bool]]] = {
    script.__name__: script
    for script in (
        ordinary, reset_before_head, close_before_head, close_if_reused, die_slowly_if_reused,
        die_inside_stream, reset_inside_stream, die_inside_event, die_after_head, broken_chunk, endless_body,
        end_without_done, finish_without_done, error_inside_stream, fail_dead, head_and_hang,
        close_delimited_cut,
        die_inside_json, garbage, huge_head,
        think_first, hang, hang_inside_stream, flood, odd_cuts, refuse, told, told_as_it_is, chunks,
    )
}  # fmt: skip


async def eventually(check, *, within_s=5.0):
    """Wait until ``check()`` is true; AssertionError after the deadline."""
    async with asyncio.timeout(within_s):
        while not check():
            await asyncio.sleep(0.005)
