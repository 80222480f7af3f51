"""I/O. The client's own HTTP connection: one request at a time, every piece stamped as it arrives.

Small on purpose: the meter must be faster than what it measures. Stamps are taken before anything
is parsed, and one stamp serves all sockets that were found readable together: the last of sixty-four
answers that come at once is not late for waiting its turn. Requests go to the socket directly,
because uvloop keeps what a transport is given until the end of its round.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import socket
import ssl
import time
from dataclasses import dataclass
from typing import cast
from urllib.parse import urlsplit

import httptools

from trimtab.bench.chunk import DONE, decode_chunk
from trimtab.bench.record import RequestRecord
from trimtab.bench.sse import EventCutter
from trimtab.errors import StackFileError

__all__ = ["Connection", "Target", "decode_target", "now_s"]

now_s = time.perf_counter
_DETAIL_BYTES = 300


@dataclass(frozen=True, slots=True, kw_only=True)
class Target:
    """Where requests go. ``head`` is the request up to the length; ``base_path`` comes before /v1."""

    host: str
    port: int
    base_path: str
    is_tls: bool
    authority: str

    def make_head(self, path: str, api_key: str) -> bytes:
        """Request line and headers of a POST, up to the value of content-length."""
        key = f"authorization: Bearer {api_key}\r\n" if api_key else ""
        return (
            f"POST {self.base_path}{path} HTTP/1.1\r\nhost: {self.authority}\r\n"
            f"content-type: application/json\r\naccept: text/event-stream\r\n{key}content-length: "
        ).encode("latin-1")


def decode_target(url: str) -> Target:
    """``http://host:port`` with or without /v1 and deeper; StackFileError says what it isn't."""
    text = url if "://" in url else f"http://{url}"
    try:
        parts = urlsplit(text)
        port = parts.port
    except ValueError as error:
        raise StackFileError(f"endpoint {url!r} isn't a URL: {error}") from None
    if parts.scheme not in {"http", "https"} or not parts.hostname or parts.query or parts.fragment:
        raise StackFileError(f"endpoint {url!r} isn't a URL", hint="write it like http://127.0.0.1:8080")
    path = parts.path.rstrip("/")
    for end in ("/chat/completions", "/completions"):
        path = path.removesuffix(end)
    is_tls = parts.scheme == "https"
    return Target(
        host=parts.hostname,
        port=port or (443 if is_tls else 80),
        base_path=path.removesuffix("/v1"),
        is_tls=is_tls,
        authority=parts.netloc.rpartition("@")[2],
    )


_round_s: list[float] = []


def _stamp_round() -> float:
    """The moment at which this round of the event loop found its first readable socket."""
    if not _round_s:
        _round_s.append(now_s())
        asyncio.get_running_loop().call_soon(_round_s.clear)
    return _round_s[0]


class Connection(asyncio.Protocol):
    """One kept-alive connection. ``send`` gives a future that is done when the answer is over.

    It fills the record it was given; what goes wrong becomes the record's error, never an exception.
    """

    def __init__(self) -> None:
        self._transport: asyncio.Transport | None = None
        self._socket: socket.socket | None = None
        self._parser: httptools.HttpResponseParser | None = None
        self._record: RequestRecord | None = None
        self._over: asyncio.Future[None] | None = None
        self._cutter: EventCutter | None = None
        self._stamp_s = 0.0
        self._body: list[bytes] = []
        self._texts: list[str] | None = None
        self._is_whole = self._is_done = False
        self._num_sent = 0
        self._has_heard = False
        self.is_open = False

    @classmethod
    async def connect(cls, target: Target, timeout_s: float) -> Connection:
        """A new connection; OSError or TimeoutError when there is none."""
        loop = asyncio.get_running_loop()
        context = ssl.create_default_context() if target.is_tls else None
        _, made = await asyncio.wait_for(
            loop.create_connection(cls, target.host, target.port, ssl=context), timeout_s
        )
        return made

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Ready to send."""
        self._transport = cast("asyncio.Transport", transport)  # uvloop's is no subclass
        if transport.get_extra_info("sslcontext") is None:
            number = os.dup(transport.get_extra_info("socket").fileno())
            self._socket = socket.socket(fileno=number)
            self._socket.setblocking(False)
        self.is_open = True

    def send(
        self, pieces: tuple[bytes, ...], record: RequestRecord, texts: list[str] | None = None
    ) -> asyncio.Future[None]:
        """Hand one request to the socket; ``texts`` collects the answer's words when given."""
        assert self._transport is not None  # noqa: S101 - only made connections are handed out
        self._parser = httptools.HttpResponseParser(self)
        self._record, self._texts = record, texts
        self._cutter, self._body = None, []
        self._is_whole = self._is_done = False
        self._num_sent += 1
        self._has_heard = False
        self._over = asyncio.get_running_loop().create_future()
        data = b"".join(pieces)
        record.sent_s = now_s()
        sent = 0
        if self._socket is not None:
            with contextlib.suppress(OSError):  # full or broken: the transport tells which
                sent = self._socket.send(data)
        if sent < len(data):
            self._transport.write(data[sent:] if sent else data)
        return self._over

    @property
    def was_stale(self) -> bool:
        """Whether the server hung up on a kept connection before it said a word to the last request.

        llama.cpp does after a stream, just when the next request is on its way; nothing was worked on.
        """
        return self._num_sent > 1 and not self._has_heard and not self.is_open

    def close(self) -> None:
        """Hang up; a request in flight ends with whatever error it has."""
        self.is_open = False
        if self._socket is not None:
            self._socket.close()
            self._socket = None
        if self._transport is not None:
            self._transport.abort()

    def data_received(self, data: bytes) -> None:
        """Stamp first, then read."""
        self._stamp_s = _stamp_round()
        self._has_heard = True
        if self._parser is None or self._record is None:
            self.close()  # nobody asked
            return
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserCallbackError as error:
            self._fail("bad_chunk", str(error.__context__ or error))
        except httptools.HttpParserError as error:
            self._fail("bad_http", str(error))

    def on_header(self, name: bytes, value: bytes) -> None:
        """A streamed answer is cut into events; any other is kept whole."""
        if name.lower() == b"content-type" and value.startswith(b"text/event-stream"):
            self._cutter = EventCutter()

    def on_body(self, piece: bytes) -> None:
        """Stamp and count what carries text."""
        cutter, record = self._cutter, self._record
        if cutter is None or record is None:
            self._body.append(piece)
            return
        for data in cutter.feed(piece):
            if data == DONE:
                self._is_whole = self._is_done = True
            elif not self._is_done:
                self._take_chunk(data, record)

    def _take_chunk(self, data: bytes, record: RequestRecord) -> None:
        chunk = decode_chunk(data)
        if chunk.has_answer or chunk.has_reasoning:
            record.token_times_s.append(self._stamp_s)
            if chunk.has_answer and record.first_answer_s is None:
                record.first_answer_s = self._stamp_s
            if self._texts is not None:
                self._texts.append(chunk.text)
        if chunk.has_choice:
            record.generated_s = self._stamp_s
        if chunk.finish_reason:
            record.finish_reason = chunk.finish_reason
            self._is_whole = True
        if chunk.usage is not None:
            record.input_tokens = max(0, chunk.usage.input_tokens)
            record.cached_tokens = chunk.usage.cached_tokens
            if chunk.usage.output_tokens >= 0:
                record.output_tokens, record.count_source = chunk.usage.output_tokens, "server"
        if chunk.error:
            record.error, record.detail = "stream_error", chunk.error

    def on_message_complete(self) -> None:
        """The answer is over, one way or the other."""
        record, parser = self._record, self._parser
        if record is None or parser is None:
            return
        status = parser.get_status_code()
        if status != 200:
            record.error = f"http_{status}"
            record.detail = b"".join(self._body)[:_DETAIL_BYTES].decode("utf-8", "replace")
        elif self._cutter is None:
            record.error, record.detail = "not_streamed", "the answer isn't an event stream"
        elif not self._is_whole and not record.error:
            record.error, record.detail = "cut_off", "neither an end nor a finish reason came"
        if not parser.should_keep_alive():
            self.close()
        self._finish()

    def connection_lost(self, exc: Exception | None) -> None:
        """A request in flight ends with it."""
        self.is_open = False
        if self._socket is not None:
            self._socket.close()
            self._socket = None
        self.fail("disconnected", str(exc or "the server hung up inside its answer"))

    def fail(self, kind: str, detail: str) -> None:
        """End the request in flight with an error, from outside (a time limit, a stop)."""
        if self._record is not None:
            self._fail(kind, detail)

    def _fail(self, kind: str, detail: str) -> None:
        record = self._record
        if record is not None and not record.error:
            record.error, record.detail = kind, detail[:_DETAIL_BYTES]
        self.close()
        self._finish()

    def _finish(self) -> None:
        record, over = self._record, self._over
        self._record = None
        if record is not None:
            record.ended_s = now_s()
            if record.count_source == "client":
                record.output_tokens = len(record.token_times_s)
        if over is not None and not over.done():
            over.set_result(None)
