"""I/O. Connections to engines: kept, lent to one request at a time, read as their bytes come."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Final, Literal, cast

from trimtab.gateway.http_response_reader import BrokenAnswerError, ResponseReader

__all__ = ["Answer", "EngineConnection", "UpstreamError"]

# More than this is not taken in ahead of a reader that takes piece by piece.
_MAX_AHEAD_BYTES: Final = 256 * 1024
# An answer that is read whole. 2,048 embeddings, the most one request may ask for, of 4,096 dimensions
# as text are about 100 MB; nothing that an engine means to say is longer.
_MAX_WHOLE_BYTES: Final = 256 * 1024 * 1024


class UpstreamError(Exception):
    """The engine refused the connection, closed it, or broke the protocol, before or inside an answer.

    ``is_unsent``: there was no connection, so that nothing of the request can have reached the engine.
    """

    def __init__(self, message: str, *, is_unsent: bool = False) -> None:
        super().__init__(message)
        self.is_unsent = is_unsent


class Answer:
    """One answer on its way in. Its readers are exclusive: ``read``, ``read_piece`` or ``pass_to``.

    They raise UpstreamError where the engine broke off, after every byte that came before. ``came`` is
    done once status and headers are known, or nothing will come.
    """

    __slots__ = (
        "_connection",
        "_error",
        "_failure",
        "_loop",
        "_num_ahead",
        "_pieces",
        "_take",
        "_waiter",
        "_wants",
        "came",
        "came_at_all",
        "content_type",
        "fields",
        "is_whole",
        "keeps_alive",
        "status",
    )

    def __init__(self, connection: EngineConnection, loop: asyncio.AbstractEventLoop) -> None:
        self._connection = connection
        self._loop = loop
        self._pieces: list[bytes] = []
        self._num_ahead = 0
        self._take: Callable[[bytes], None] | None = None
        self.came = self._waiter = loop.create_future()
        self._wants: Literal["head", "piece", "end"] = "head"
        # As text: an exception that is kept holds on to all that it went through.
        self._error: str | None = None
        self._failure: BaseException | None = None
        self.came_at_all = False
        self.status = 0
        # What an engine that names none is taken to send.
        self.content_type = "application/json"
        self.fields: dict[bytes, bytes] = {}
        self.is_whole = False
        self.keeps_alive = False

    def header(self, name: str) -> str | None:
        """The value of a header, None where the engine sent none."""
        value = self.fields.get(name.lower().encode())
        return None if value is None else value.decode("utf-8", "surrogateescape")

    def check_head(self) -> Answer:
        """The answer itself once ``came`` is done; UpstreamError where there is none, and it is closed."""
        if not self.status:
            self.close()
            raise UpstreamError(self._error or "the engine closed the connection before its answer")
        return self

    async def read_piece(self) -> bytes:
        """The next bytes of the body, empty at its end."""
        if not self._pieces:
            await self._wait("piece")
        if self._pieces:
            return self._take_pieces()
        self._check()
        return b""

    async def await_piece(self) -> bytes:
        """The first bytes of the body, which stay for its reader; empty where it ended without any."""
        if not self._pieces:
            await self._wait("piece")
        return self._pieces[0] if self._pieces else b""

    async def read(self) -> bytes:
        """The rest of the body; UpstreamError too where it is longer than an answer can be."""
        await self._wait("end")
        self._check()
        return self._take_pieces()

    async def pass_to(self, take: Callable[[bytes], None]) -> None:
        """Call ``take`` with every piece as it comes; returns at the end. What ``take`` raises comes out."""
        if self._pieces:
            take(self._take_pieces())
        self._take = take
        try:
            await self._wait("end")
        finally:
            self._take = None
        failure, self._failure = self._failure, None
        if failure is not None:
            raise failure
        self._check()

    def pause(self) -> None:
        """Leave what comes with the engine for now."""
        self._connection.pause(self)

    def resume(self) -> None:
        """Let it come again."""
        self._connection.resume(self)

    def close(self) -> None:
        """Give the connection back, or, where the answer is not whole, end it, and the engine's work."""
        self._connection.leave(self)

    # What the connection calls.

    def on_head(self, reader: ResponseReader) -> None:
        """Status and headers are known."""
        self.status = reader.status
        self.fields = reader.fields
        content_type = reader.fields.get(b"content-type")
        if content_type is not None:
            self.content_type = content_type.decode("utf-8", "surrogateescape")

    def on_data(self, body: bytes, *, is_whole: bool) -> None:
        """Bytes of the body came, or its end."""
        self.is_whole = is_whole
        if body:
            if self._take is not None:
                try:
                    self._take(body)
                except Exception as error:  # noqa: BLE001 - raised again where the answer is awaited
                    self._failure = error
                    self._take = None
                    self._wake()
                    return
            else:
                self._pieces.append(body)
                self._num_ahead += len(body)
                if self._num_ahead > _MAX_WHOLE_BYTES:
                    self._refuse_rest()
                    return
                if self._num_ahead > _MAX_AHEAD_BYTES and self._wants != "end":
                    self.pause()
        wants = self._wants
        if is_whole or wants == "head" or (wants == "piece" and self._pieces):
            self._wake()

    def _refuse_rest(self) -> None:
        self._pieces.clear()
        self.is_whole = False
        self.fail(f"its answer is longer than {_MAX_WHOLE_BYTES:,} bytes")
        self._connection.abort()

    def fail(self, why: str) -> None:
        """Nothing more will come."""
        if not self.is_whole and self._error is None:
            self._error = why
            self._wake()

    def _check(self) -> None:
        if self._error is not None:
            raise UpstreamError(self._error)

    def _wake(self) -> None:
        if not self._waiter.done():
            self._waiter.set_result(None)

    async def _wait(self, wants: Literal["head", "piece", "end"]) -> None:
        self._wants = wants
        if self.is_whole or self._error is not None:
            return
        if wants == "end" and self._num_ahead > _MAX_AHEAD_BYTES:
            self.resume()
        self._waiter = self._loop.create_future()
        await self._waiter

    def _take_pieces(self) -> bytes:
        pieces = self._pieces
        data = pieces[0] if len(pieces) == 1 else b"".join(pieces)
        pieces.clear()
        if self._num_ahead > _MAX_AHEAD_BYTES:
            self.resume()
        self._num_ahead = 0
        return data


class EngineConnection(asyncio.Protocol):
    """One connection; ``on_free`` is called when it can take another request, ``on_lost`` at its end."""

    def __init__(
        self, on_free: Callable[[EngineConnection], None], on_lost: Callable[[EngineConnection], None]
    ) -> None:
        self._on_free = on_free
        self._on_lost = on_lost
        self._transport: asyncio.Transport | None = None
        self._loop = asyncio.get_running_loop()
        self._reader = ResponseReader()
        self._answer: Answer | None = None
        self._is_paused = False
        self.free_since_s = 0.0

    @property
    def is_usable(self) -> bool:
        """Whether a request can still be sent."""
        return self._transport is not None and not self._transport.is_closing()

    def ask(self, head: bytes, body: bytes) -> Answer:
        """Send a request; its answer comes in from now on."""
        answer = self._answer = Answer(self, self._loop)
        self._reader.expect()
        transport = self._transport
        if transport is None:
            answer.fail("the engine closed the connection before its answer")
        elif len(body) < _MAX_AHEAD_BYTES:
            transport.write(head + body)
        else:
            transport.write(head)
            transport.write(body)
        return answer

    def pause(self, answer: Answer) -> None:
        """Read no more while ``answer`` is on its way."""
        if answer is self._answer and not self._is_paused and self.is_usable:
            self._is_paused = True
            cast("asyncio.Transport", self._transport).pause_reading()

    def resume(self, answer: Answer) -> None:
        """Read again."""
        if answer is self._answer:
            self._resume()

    def leave(self, answer: Answer) -> None:
        """Nobody wants more of ``answer``."""
        if answer is not self._answer:
            return
        self._answer = None
        if answer.is_whole and answer.keeps_alive and self.is_usable:
            self._resume()
            self._on_free(self)
        else:
            self.abort()

    def abort(self) -> None:
        """Close at once."""
        if self._transport is not None:
            self._transport.abort()

    def _resume(self) -> None:
        if self._is_paused:
            self._is_paused = False
            if self.is_usable:
                cast("asyncio.Transport", self._transport).resume_reading()

    # What the event loop calls.

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """The connection stands."""
        self._transport = cast("asyncio.Transport", transport)

    def data_received(self, data: bytes) -> None:
        """The next bytes came."""
        answer, reader = self._answer, self._reader
        if answer is None:
            # Nothing was asked: whatever it is, the next answer could not be told from it.
            self.abort()
            return
        answer.came_at_all = True
        error = None
        try:
            reader.feed(data)
        except BrokenAnswerError as broken:
            error = str(broken)
        self._pass_on(answer)
        if error is not None:
            answer.keeps_alive = False
            answer.fail(error)
            self.abort()

    def _pass_on(self, answer: Answer) -> None:
        reader = self._reader
        if not reader.has_head:
            return
        if not answer.status:
            answer.on_head(reader)
        answer.keeps_alive = reader.keeps_alive
        answer.on_data(reader.take_body(), is_whole=reader.is_whole)

    def eof_received(self) -> None:
        """The engine has sent all it will."""
        answer = self._answer
        if answer is None or answer.is_whole:
            return
        try:
            self._reader.feed_end()
        except BrokenAnswerError as broken:
            answer.fail(str(broken))
        else:
            self._pass_on(answer)

    def connection_lost(self, exc: Exception | None) -> None:
        """The connection is closed."""
        self._transport = None
        if self._answer is not None:
            why = str(exc) if exc is not None else "the engine closed the connection"
            self._answer.fail(why or type(exc).__name__)
        self._reader.close()
        self._on_lost(self)
