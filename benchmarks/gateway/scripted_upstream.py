"""An engine that does no work: fixed OpenAI answers as fast as one Python process can give them.

    python benchmarks/gateway/scripted_upstream.py --port 18001 [--chunks 32] [--gap-ms 0]

Plain asyncio protocol under uvloop, so that it is not what a side-by-side run measures. A streamed
request gets ``--chunks`` server-sent events and [DONE], each its own HTTP chunk and its own write,
with a turn of the event loop (or ``--gap-ms``) between two: streams interleave as an engine's do.
"""

import argparse
import asyncio
import json

_CHAT = json.dumps({
    "id": "chatcmpl-1", "object": "chat.completion", "created": 1, "model": "m",
    "choices": [{"index": 0, "finish_reason": "stop",
                 "message": {"role": "assistant", "content": "The quick brown fox jumps over the lazy dog."}}],
    "usage": {"prompt_tokens": 9, "completion_tokens": 10, "total_tokens": 19}}).encode()  # fmt: skip
_EVENT = b"data: " + json.dumps({
    "id": "chatcmpl-1", "object": "chat.completion.chunk", "created": 1, "model": "m",
    "choices": [{"index": 0, "delta": {"content": " fox"}, "finish_reason": None}]}).encode() + b"\n\n"  # fmt: skip
_STREAM_HEAD = (
    b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nCache-Control: no-cache\r\n"
    b"Transfer-Encoding: chunked\r\n\r\n"
)


def _chunked(data: bytes) -> bytes:
    return b"%x\r\n%b\r\n" % (len(data), data)


def _answer(body: bytes, status: bytes = b"200 OK") -> bytes:
    return b"HTTP/1.1 %b\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n%b" % (
        status, len(body), body)  # fmt: skip


_GETS = {
    b"/health": _answer(b'{"status":"ok"}'),
    b"/v1/models": _answer(
        b'{"object":"list","data":[{"id":"m","object":"model","created":1,"owned_by":"x"}]}'
    ),
}
_EVENT_CHUNK = _chunked(_EVENT)
_LAST_CHUNK = _chunked(_EVENT.replace(b'"finish_reason": null', b'"finish_reason": "stop"'))
_END = _chunked(b"data: [DONE]\n\n") + b"0\r\n\r\n"
_CHAT_ANSWER = _answer(_CHAT)


class Connection(asyncio.Protocol):
    """One keep-alive connection; requests must carry Content-Length or be chunked."""

    num_chunks = 32
    gap_s = 0.0

    def connection_made(self, transport: asyncio.Transport) -> None:
        self._transport = transport
        self._loop = asyncio.get_running_loop()
        self._data = b""

    def connection_lost(self, error: Exception | None) -> None:
        self._transport = None

    def data_received(self, data: bytes) -> None:
        self._data = data = self._data + data if self._data else data
        end = data.find(b"\r\n\r\n")
        if end < 0:
            return
        head = data[:end]
        lowered = head.lower()
        at = lowered.find(b"\r\ncontent-length:")
        if at >= 0:
            stop = lowered.find(b"\r\n", at + 2)
            length = int(head[at + 17 : stop if stop >= 0 else None])
            if len(data) < end + 4 + length:
                return
            body, self._data = data[end + 4 : end + 4 + length], data[end + 4 + length :]
        elif b"transfer-encoding: chunked" in lowered:
            if not data.endswith(b"0\r\n\r\n"):
                return
            body, self._data = data[end + 4 :], b""
        else:
            body, self._data = b"", b""
        self._reply(head, body)

    def _reply(self, head: bytes, body: bytes) -> None:
        path = head.split(b" ", 2)[1]
        if head.startswith(b"GET"):
            self._transport.write(_GETS.get(path, _answer(b"{}", b"404 Not Found")))
        elif b'"stream": true' in body or b'"stream":true' in body:
            self._transport.write(_STREAM_HEAD)
            self._loop.call_soon(self._stream, self.num_chunks)
        else:
            self._transport.write(_CHAT_ANSWER)

    def _stream(self, left: int) -> None:
        if self._transport is None:
            return
        if not left:
            self._transport.write(_END)
            return
        self._transport.write(_EVENT_CHUNK if left > 1 else _LAST_CHUNK)
        if self.gap_s:
            self._loop.call_later(self.gap_s, self._stream, left - 1)
        else:
            self._loop.call_soon(self._stream, left - 1)


async def _main(port: int) -> None:
    server = await asyncio.get_running_loop().create_server(Connection, "127.0.0.1", port, backlog=1024)
    print(f"ready {server.sockets[0].getsockname()[1]}", flush=True)
    await server.serve_forever()


if __name__ == "__main__":
    import uvloop

    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--port", type=int, default=0)
    parser.add_argument("--chunks", type=int, default=32)
    parser.add_argument("--gap-ms", type=float, default=0.0)
    args = parser.parse_args()
    Connection.num_chunks, Connection.gap_s = args.chunks, args.gap_ms / 1000
    uvloop.run(_main(args.port))
