"""A load client on raw sockets: N keep-alive connections, each one request after the other.

Time points are taken when bytes arrive. Every answer is checked: status 200, whole body, the number
of events, [DONE]; what fails counts as an error, never as a fast answer.
"""

import asyncio
import json
import time
from dataclasses import dataclass, field
from urllib.parse import urlsplit

__all__ = ["LoadResult", "measure"]


@dataclass
class LoadResult:
    """What one run saw; times in ms, sorted by ``summary``."""

    clients: int
    seconds: float = 0.0
    requests: int = 0
    chunks: int = 0
    errors: int = 0
    first_error: str = ""
    total_ms: list[float] = field(default_factory=list)
    ttfb_ms: list[float] = field(default_factory=list)

    def summary(self) -> dict:
        total, ttfb = sorted(self.total_ms), sorted(self.ttfb_ms)
        return {
            "clients": self.clients, "seconds": round(self.seconds, 3), "requests": self.requests,
            "errors": self.errors, "first_error": self.first_error,
            "requests_per_s": round(self.requests / self.seconds, 1),
            "chunks_per_s": round(self.chunks / self.seconds, 1),
            "total_p50_ms": _at(total, 0.5), "total_p99_ms": _at(total, 0.99),
            "ttfb_p50_ms": _at(ttfb, 0.5), "ttfb_p99_ms": _at(ttfb, 0.99),
        }  # fmt: skip


def _at(values: list[float], share: float) -> float | None:
    return round(values[min(len(values) - 1, int(len(values) * share))], 4) if values else None


class _Client(asyncio.Protocol):
    def __init__(self, request: bytes, num_events: int, result: LoadResult, until: float) -> None:
        self._request, self._num_events, self._result, self._until = request, num_events, result, until
        self.done = asyncio.get_running_loop().create_future()

    def connection_made(self, transport: asyncio.Transport) -> None:
        self._transport = transport
        self._send()

    def _send(self) -> None:
        self._parts: list[bytes] = []
        self._size = 0
        self._need = -1
        self._ttfb = 0.0
        self._sent = time.perf_counter()
        self._transport.write(self._request)

    def data_received(self, data: bytes) -> None:
        now = time.perf_counter()
        if not self._parts:
            self._ttfb = now
        self._parts.append(data)
        self._size += len(data)
        if self._num_events:
            tail = data if len(data) >= 5 else b"".join(self._parts[-5:])
            if tail.endswith(b"0\r\n\r\n"):
                self._finish(now)
            return
        if self._need < 0:
            answer = b"".join(self._parts)
            end = answer.find(b"\r\n\r\n")
            if end < 0:
                return
            head = answer[:end].lower()
            at = head.find(b"\r\ncontent-length:")
            if at < 0:
                self._fail("no content-length: " + head[:80].decode("latin1"))
                return
            stop = head.find(b"\r\n", at + 2)
            self._need = end + 4 + int(head[at + 17 : stop if stop >= 0 else None])
        if self._size >= self._need:
            self._finish(now)

    def _finish(self, now: float) -> None:
        answer = b"".join(self._parts)
        result = self._result
        if not answer.startswith(b"HTTP/1.1 200"):
            self._fail(answer[:200].decode("latin1"))
            return
        if self._num_events:
            if answer.count(b"data: {") != self._num_events or b"[DONE]" not in answer[-64:]:
                body = _dechunk(answer)
                # LiteLLM adds an event of its own at the end; none may be missing.
                if body.count(b"data: {") < self._num_events or not body.endswith(b"data: [DONE]\n\n"):
                    self._fail(f"{body.count(b'data: {')} of {self._num_events} events")
                    return
            result.chunks += self._num_events
        result.requests += 1
        result.total_ms.append((now - self._sent) * 1000)
        result.ttfb_ms.append((self._ttfb - self._sent) * 1000)
        self._next()

    def _next(self) -> None:
        if time.perf_counter() < self._until:
            self._send()
        else:
            self._transport.close()
            if not self.done.done():
                self.done.set_result(None)

    def _fail(self, why: str) -> None:
        self._result.errors += 1
        self._result.first_error = self._result.first_error or why
        self._transport.close()
        if not self.done.done():
            self.done.set_result(None)

    def connection_lost(self, error: Exception | None) -> None:
        if not self.done.done():
            self._fail(f"connection lost: {error}")


def _dechunk(answer: bytes) -> bytes:
    body, rest = b"", answer.partition(b"\r\n\r\n")[2]
    while rest:
        size, _, rest = rest.partition(b"\r\n")
        length = int(size, 16)
        body, rest = body + rest[:length], rest[length + 2 :]
    return body


def render_request(
    url: str, *, stream: bool, model: str = "m", prompt_bytes: int = 60, key: str = "any"
) -> bytes:
    """A whole chat request with a prompt of about that many bytes."""
    parts = urlsplit(url)
    body = json.dumps({
        "model": model, "stream": stream, "max_tokens": 64, "temperature": 0.7,
        "messages": [{"role": "user", "content": "x " * (prompt_bytes // 2)}]}).encode()  # fmt: skip
    return (
        b"POST /v1/chat/completions HTTP/1.1\r\nHost: %b\r\nContent-Type: application/json\r\n"
        b"User-Agent: load\r\nAuthorization: Bearer %b\r\nContent-Length: %d\r\n\r\n%b"
    ) % (parts.netloc.encode(), key.encode(), len(body), body)


async def measure(
    url: str, *, clients: int, seconds: float, num_events: int = 0, prompt_bytes: int = 60, key: str = "any"
) -> LoadResult:
    """Load ``url`` for that long; ``num_events`` 0 asks unstreamed, else expects that many events."""
    parts = urlsplit(url)
    request = render_request(url, stream=bool(num_events), prompt_bytes=prompt_bytes, key=key)
    result = LoadResult(clients=clients)
    started = time.perf_counter()
    loop = asyncio.get_running_loop()
    open_ones = [
        (await loop.create_connection(
            lambda: _Client(request, num_events, result, started + seconds), parts.hostname, parts.port))[1]
        for _ in range(clients)
    ]  # fmt: skip
    await asyncio.gather(*(client.done for client in open_ones))
    result.seconds = time.perf_counter() - started
    return result
