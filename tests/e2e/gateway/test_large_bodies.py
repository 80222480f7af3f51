"""One client's huge request keeps nobody else waiting."""

import asyncio
import io
import json
import time
from contextlib import suppress

import aiohttp
import pytest

from trimtab.core.stack import GatewaySettings
from trimtab.core.state import ReplicaState, ServedModel
from trimtab.gateway.app import Gateway

EVENT = {"choices": [{"index": 0, "delta": {"content": "hi"}, "finish_reason": "stop"}]}
ANSWER = b"data: " + json.dumps(EVENT).encode() + b"\n\ndata: [DONE]\n\n"
# Processor time that the loop may spend in one piece. 0.15 to 0.3 s were measured without a thread.
MAX_PIECE_S = 0.1


class BlindEngine:
    """An engine that reads no JSON, so that only the gateway's own work is measured."""

    def __init__(self):
        self._talks = set()

    async def start(self):
        self._server = await asyncio.start_server(self._talk, "127.0.0.1", 0, limit=1 << 24)
        return f"http://127.0.0.1:{self._server.sockets[0].getsockname()[1]}"

    async def stop(self):
        """Once the gateway has hung up."""
        self._server.close()
        await asyncio.wait_for(asyncio.gather(*self._talks), 10)

    async def _talk(self, reader, writer):
        self._talks.add(asyncio.current_task())
        with suppress(asyncio.IncompleteReadError, ConnectionError):
            while True:
                await self._answer(reader, writer)
        writer.close()
        with suppress(ConnectionError):
            await writer.wait_closed()

    async def _answer(self, reader, writer):
        head = await reader.readuntil(b"\r\n\r\n")
        length = next(line for line in head.lower().split(b"\r\n") if line.startswith(b"content-length"))
        await reader.readexactly(int(length.split(b":")[1]))
        is_count = b"input_tokens" in head
        body = b'{"input_tokens": 500}' if is_count else ANSWER
        kind = b"application/json" if is_count else b"text/event-stream"
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Type: %b\r\nContent-Length: %d\r\n\r\n" % (kind, len(body)))
        writer.write(body)


async def _longest_piece(pieces):
    last_s = time.thread_time()
    while True:
        await asyncio.sleep(0)
        now_s = time.thread_time()
        pieces.append(now_s - last_s)
        last_s = now_s


@pytest.mark.parametrize(
    ("family", "engine"), [("plain", "llama_cpp"), ("qwen3", "vllm"), ("qwen3.5", "llama_cpp")]
)
async def test_two_hundred_thousand_messages_hold_up_nobody(family, engine):
    """While one request of 8 MB is read, changed and counted, the loop goes on."""
    roles = ("user", "assistant")
    messages = [
        {"role": roles[index % 2] if index else "system", "content": "hi"} for index in range(200_000)
    ]
    fields = {"model": "m", "max_tokens": 60_000, "messages": messages, "stream": True}
    body = json.dumps(fields).encode()
    engine_server = BlindEngine()
    base_url = await engine_server.start()
    model = ServedModel(
        name="m",
        engine=engine,
        state=ReplicaState.READY,
        base_url=base_url,
        max_model_len=100_000,
        family=family,
    )
    gateway = Gateway(GatewaySettings(port=0), lambda: (model,), version="0")
    await gateway.start()
    pieces = []
    watching = asyncio.create_task(_longest_piece(pieces))
    try:
        headers = {"Content-Type": "application/json"}
        url = gateway.url + "/v1/chat/completions"
        async with (
            aiohttp.ClientSession() as session,
            session.post(url, data=io.BytesIO(body), headers=headers) as answer,
        ):
            assert answer.status == 200, await answer.text()
    finally:
        watching.cancel()
        await gateway.stop()
        await engine_server.stop()
    assert max(pieces) < MAX_PIECE_S
