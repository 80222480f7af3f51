"""I/O. One client's connection: requests in the order they came, one answer after the other."""

from __future__ import annotations

import asyncio
import logging
import time
from collections import deque
from collections.abc import Coroutine
from typing import Any, Final, cast

from trimtab.errors import GatewayError
from trimtab.gateway.http_date import http_date
from trimtab.gateway.http_message import LAST_CHUNK, Request, Response, render_chunk, render_head
from trimtab.gateway.http_request_reader import RequestReader
from trimtab.gateway.http_service import Flow, ServerState, failed, no_room, too_slow

__all__ = ["ClientConnection"]

_LOG: Final = logging.getLogger(__name__)
_HEAD_TIMEOUT_S: Final = 30.0
_BODY_TIMEOUT_S: Final = 60.0
_IDLE_TIMEOUT_S: Final = 75.0
# How long the rest of a refused upload is taken in and dropped: a client that gets a reset while it
# writes may never read why it was refused.
_LINGER_S: Final = 10.0
# For each part of what is still to be sent when a connection is to be closed: slow readers may take
# long, those who read nothing at all are cut off.
_FLUSH_S: Final = 60.0
# How long a connection that is one too many may take to say what it wants, so that it reads the refusal.
_SURPLUS_S: Final = 1.0
_NEVER: Final = float("inf")
_CONTINUE: Final = b"HTTP/1.1 100 Continue\r\n\r\n"
# Head and body above this are not joined before they are written: copying costs more than one write.
_JOIN_BELOW_BYTES: Final = 64 * 1024


class ClientConnection(asyncio.Protocol):
    """One connection; ``begin_stream`` to ``end_stream`` are for whoever makes an answer."""

    def __init__(self, server: ServerState) -> None:
        self._server = server
        self._transport: asyncio.Transport | None = None
        # Requests that came behind the present one, of which the last may lack the rest of its body.
        self._queue: deque[Request] = deque()
        self._current: Request | None = None
        self._task: asyncio.Task[None] | None = None
        self._flow: Flow | None = None
        self._peer: object = None
        self._drained: asyncio.Future[None] | None = None
        self._has_begun = False
        self._is_chunked = False
        self._is_idle = False
        self._is_surplus = False
        # Whether what comes is dropped: nothing can be read any more, or the last answer is given.
        self._is_broken = False
        self._is_discarding = False
        self._is_half_closed = False
        self._is_write_paused = False
        self._is_read_paused = False
        self._was_in_head = False
        # Bytes that a connection being closed had still to send when that was last looked at.
        self._num_unsent = 0
        self.deadline_s = _NEVER
        service = server.service
        self._reader = RequestReader(
            self._on_head, max_body_bytes=service.max_body_bytes, too_large=service.too_large
        )

    # What the event loop calls.

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """A client has connected."""
        self._transport = cast("asyncio.Transport", transport)
        if self._server.on_made(self):
            self._rest()
        else:
            self._is_surplus = True
            self.deadline_s = time.monotonic() + _SURPLUS_S

    def data_received(self, data: bytes) -> None:
        """The next bytes came."""
        if self._is_broken or self._is_discarding:
            return
        if self._is_surplus:
            self._refuse(Request(), no_room())
            return
        try:
            self._reader.feed(data)
        except GatewayError as error:
            self._on_broken(error)
        self._advance()

    def eof_received(self) -> bool:
        """The client has sent all it will; whether the connection stays open for an answer."""
        if self._queue and not self._queue[-1].is_whole:
            self._queue.pop()
        if self._is_discarding or (self._current is None and not self._queue):
            return False
        self._is_half_closed = True
        self._server.presence.add(self)
        return True

    def connection_lost(self, exc: Exception | None) -> None:
        """The connection is closed: whoever works for it has to stop."""
        del exc
        self._transport = self._flow = None
        self._queue.clear()
        self._reader.close()
        self._server.presence.discard(self)
        self._server.on_lost(self)
        if self._task is not None:
            self._task.cancel()

    def pause_writing(self) -> None:
        """The client reads too slowly."""
        self._is_write_paused = True
        if self._flow is not None:
            self._flow.pause()

    def resume_writing(self) -> None:
        """The client has caught up."""
        self._is_write_paused = False
        if self._drained is not None and not self._drained.done():
            self._drained.set_result(None)
        if self._flow is not None:
            self._flow.resume()
        self._advance()

    @property
    def peer(self) -> object:
        """The host that the client speaks from; asked for once, it costs a call of the system."""
        if self._peer is None:
            name = self.extra_info("peername")
            self._peer = name[0] if isinstance(name, tuple) and name else ""
        return self._peer

    # What the server and the watch call.

    def extra_info(self, name: str) -> Any:
        """What the transport tells under that name, None after its end."""
        return None if self._transport is None else self._transport.get_extra_info(name)

    def leave(self) -> None:
        """The client is gone, or must go: end now."""
        if self._transport is not None:
            self._transport.abort()

    def probe(self) -> None:
        """Send a half-closed client what it drops unread, if the answer's head is not sent yet."""
        request = self._current
        if request is None or self._transport is None or self._has_begun or request.is_http_1_0:
            return
        if self._is_half_closed:
            self._transport.write(_CONTINUE)

    def spare(self) -> None:
        """End a connection that waits for nothing, in favour of another."""
        if self._transport is not None:
            if self._is_discarding or self._transport.get_write_buffer_size():
                self._transport.abort()
            else:
                self._transport.close()

    def close_when_sent(self) -> None:
        """Close once everything is sent."""
        if self._transport is not None:
            self._transport.close()

    def expire(self, now_s: float) -> None:
        """The deadline has passed."""
        transport = self._transport
        if transport is not None and transport.is_closing():
            before, self._num_unsent = self._num_unsent, transport.get_write_buffer_size()
            if self._num_unsent < before:
                self.deadline_s = now_s + _FLUSH_S
                return
        if transport is None or self._is_discarding or transport.is_closing():
            self.leave()
        elif self._reader.is_inside and not self._is_surplus:
            self._refuse(self._queue[0] if self._queue else Request(), too_slow())
        else:
            self._close()

    # What makes an answer calls.

    def begin_stream(self, headers: dict[str, str], flow: Flow | None = None) -> None:
        """Send the head of an answer of status 200 whose body follows; ``flow`` is held back at need.

        An answer whose head is out keeps it; only what feeds it changes.
        """
        request, transport = self._current, self._transport
        if request is None or transport is None:
            return
        if self._has_begun:
            self._flow = flow
            if self._is_write_paused and flow is not None:
                flow.pause()
            return
        self._has_begun = True
        self._is_chunked = not request.is_http_1_0
        framing = b"Connection: close\r\n"
        if self._is_chunked:
            framing = b"Transfer-Encoding: chunked\r\n" + (b"" if self._keeps_alive(request) else framing)
        self._flow = flow
        transport.write(render_head(200, headers, framing=framing, date=http_date()))
        if self._is_write_paused and flow is not None:
            flow.pause()

    def send(self, data: bytes) -> None:
        """Send a piece of the body; nothing happens when the client is gone."""
        if self._transport is not None and data:
            self._transport.write(render_chunk(data) if self._is_chunked else data)

    async def drained(self) -> None:
        """Until the client has caught up."""
        if self._is_write_paused:
            self._drained = asyncio.get_running_loop().create_future()
            await self._drained

    def end_stream(self) -> None:
        """End the body."""
        if self._transport is not None and self._is_chunked:
            self._transport.write(LAST_CHUNK)

    # Requests, in order.

    def _on_head(self, request: Request) -> None:
        if request.refusal is None:
            try:
                self._server.service.check_head(request)
            except GatewayError as error:
                request.refusal = error.with_traceback(None)
        self._queue.append(request)

    def _on_broken(self, error: GatewayError) -> None:
        """No request can be read any more; those before are still answered."""
        error = error.with_traceback(None)
        if self._queue and not self._queue[-1].is_whole:
            self._queue[-1].refusal = error
        else:
            self._queue.append(Request(refusal=error))
        self._is_broken = True

    def _advance(self) -> None:
        """Answer what is next, as far as that can be done now."""
        while self._queue and self._current is None and self._transport is not None:
            request = self._queue[0]
            if self._is_write_paused:
                break
            if request.refusal is not None:
                self._refuse(request, request.refusal)
            elif request.is_whole:
                self._queue.popleft()
                self._start(request)
            else:
                self._tell_to_continue(request)
                break
        self._rest()

    def _tell_to_continue(self, request: Request) -> None:
        if request.fields.pop(b"expect", b"").lower() == b"100-continue" and self._transport is not None:
            self._transport.write(_CONTINUE)

    def _rest(self) -> None:
        """Set what the connection waits for, and until when."""
        transport = self._transport
        if transport is None or self._is_discarding:
            return
        is_answering, has_more = self._current is not None, bool(self._queue)
        must_wait = has_more and (is_answering or self._is_write_paused)
        if must_wait != self._is_read_paused:
            self._pause_reading(must_wait)
        is_busy = is_answering or has_more
        if is_answering:
            self.deadline_s = _NEVER
        else:
            is_in_head = self._reader.is_in_head
            if has_more:
                self.deadline_s = time.monotonic() + _BODY_TIMEOUT_S
            elif not is_in_head:
                self.deadline_s = time.monotonic() + _IDLE_TIMEOUT_S
            elif not self._was_in_head:
                self.deadline_s = time.monotonic() + _HEAD_TIMEOUT_S
            self._was_in_head = is_in_head
        if is_busy == self._is_idle:
            self._is_idle = not is_busy
            (self._server.on_busy if is_busy else self._server.on_idle)(self)

    def _pause_reading(self, is_wanted: bool) -> None:  # noqa: FBT001 - a state, not a mode
        """Leave with the client what it sends ahead of its turn; one request ahead is enough."""
        transport = self._transport
        if transport is None or self._is_half_closed or transport.is_closing():
            return
        self._is_read_paused = is_wanted
        if is_wanted:
            transport.pause_reading()
            # While nothing is read, only the watch can tell that the client has left.
            self._server.presence.add(self)
        else:
            transport.resume_reading()
            self._server.presence.discard(self)

    def _start(self, request: Request) -> None:
        self._current = request
        self._has_begun = False
        answer = self._server.service.answer(request, self)
        if isinstance(answer, Response):
            self._finish(request, answer)
        else:
            self._task = asyncio.get_running_loop().create_task(self._work(request, answer))

    async def _work(self, request: Request, answer: Coroutine[Any, Any, Response]) -> None:
        try:
            response = await answer
        except Exception:  # noqa: BLE001 - a bug of ours ends one answer, and is logged whole
            _LOG.exception("error handling a request")
            if self._has_begun:
                self.leave()
                return
            response = self._server.service.refuse(request, failed())
        self._task = self._flow = None
        self._finish(request, response)
        self._advance()

    def _finish(self, request: Request, response: Response) -> None:
        """Send what is not sent yet, and make ready for the next request."""
        if self._transport is None:
            return
        keeps_alive = self._keeps_alive(request) and not response.closes
        if response.is_sent:
            keeps_alive = keeps_alive and self._is_chunked
        else:
            self._send_whole(request, response, keeps_alive=keeps_alive)
        self._current = None
        if not keeps_alive:
            self._end(lingers=not request.is_whole)

    def _keeps_alive(self, request: Request) -> bool:
        is_last = self._is_half_closed and not self._queue
        return request.keeps_alive and not is_last and not self._server.is_closing

    def _send_whole(self, request: Request, response: Response, *, keeps_alive: bool) -> None:
        transport, body = self._transport, response.body
        if transport is None:
            return
        framing = b"" if response.status == 204 else b"Content-Length: %d\r\n" % len(body)
        if not keeps_alive:
            framing += b"Connection: close\r\n"
        elif request.is_http_1_0:
            framing += b"Connection: keep-alive\r\n"
        head = render_head(response.status, response.headers, framing=framing, date=http_date())
        if request.method == "HEAD" or not body:
            transport.write(head)
        elif len(body) < _JOIN_BELOW_BYTES:
            transport.write(head + body)
        else:
            transport.write(head)
            transport.write(body)

    def _refuse(self, request: Request, error: GatewayError) -> None:
        """Answer with an error; the connection ends with it unless the whole request has come."""
        response = self._server.service.refuse(request, error)
        if request.is_whole:
            self._queue.popleft()
        else:
            self._queue.clear()
            response.closes = True
        self._finish(request, response)

    def _close(self) -> None:
        if self._transport is not None:
            self._transport.close()
            self._num_unsent = self._transport.get_write_buffer_size()
            self.deadline_s = time.monotonic() + _FLUSH_S

    def _end(self, *, lingers: bool) -> None:
        """Close once everything is sent; ``lingers`` where the client may still be sending."""
        transport = self._transport
        self._queue.clear()
        self._is_discarding = True
        if transport is None:
            return
        if not lingers or self._is_half_closed:
            self._close()
            return
        self.deadline_s = time.monotonic() + _LINGER_S
        transport.write_eof()
        if self._is_read_paused:
            self._is_read_paused = False
            transport.resume_reading()
        if not self._is_idle and not self._is_surplus:
            self._is_idle = True
            self._server.on_idle(self)
