"""I/O. Passes a stream on to the client as it comes, and never lets it end without saying how."""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable
from typing import Final, TypeAlias

from trimtab.gateway.error_body import render_error_event
from trimtab.gateway.event_cut import split_whole_events
from trimtab.gateway.http_client import Answer, UpstreamError
from trimtab.gateway.http_message import Response
from trimtab.gateway.http_service import AnswerTo
from trimtab.gateway.metrics import ModelMetrics
from trimtab.gateway.reasoning_stream import ReasoningStream
from trimtab.gateway.stream_end import DONE_EVENT, judge_end
from trimtab.gateway.usage import TokenCount, read_usage

__all__ = ["KEEP_ALIVE", "NO_BUFFERING", "ReadPiece", "Relay"]

# Gives the next bytes of an answer, empty at its end; UpstreamError when the engine broke off.
ReadPiece: TypeAlias = Callable[[], Awaitable[bytes]]
# A comment: clients of server-sent events drop it, what lies between sees that the line is used.
KEEP_ALIVE: Final = b": keep-alive\n\n"
NO_BUFFERING: Final = {"Cache-Control": "no-cache", "X-Accel-Buffering": "no"}


class Relay:
    """One stream on its way. Whole events only are passed on, so that an error can follow any of them.

    A client that left cancels whatever runs here. With ``reshaped`` the events pass through it.
    """

    def __init__(
        self,
        client: AnswerTo,
        headers: dict[str, str],
        metrics: ModelMetrics,
        reshaped: ReasoningStream | None = None,
    ) -> None:
        self._client = client
        self._reshaped = reshaped
        self._metrics = metrics
        self._headers = headers | NO_BUFFERING
        self._started_s = 0.0
        self._has_first = False
        self._held = b""
        self._last_events = b""
        self._num_bytes = 0
        self._num_bytes_at_beat = -1
        self._num_events = 0
        self._first_s = 0.0
        self._latest_s = 0.0
        # The code of what the client was told at the end, None where the engine's own end came.
        self.error: str | None = None

    @property
    def ttft_s(self) -> float | None:
        """Seconds from the request's arrival to the first bytes of its answer, None where none came."""
        return self._first_s - self._started_s if self._has_first else None

    @property
    def num_events(self) -> int:
        """Events of the engine so far."""
        return self._num_events

    def tokens(self) -> TokenCount:
        """What the stream so far tells about its tokens."""
        return read_usage(self._last_events, num_events=self._num_events)

    def beat(self) -> None:
        """Called again and again: a stream that was silent since the last time gets a comment."""
        if self._num_bytes == self._num_bytes_at_beat:
            self._client.send(KEEP_ALIVE)
        self._num_bytes_at_beat = self._num_bytes

    async def pass_on(self, answer: Answer, *, started_s: float) -> Response:
        """Send the head and every event as they are, without a turn of the loop between the two sides.

        Ends with [DONE], or with an error event and [DONE].
        """
        self._started_s = started_s
        self._client.begin_stream(self._headers, answer)
        self._metrics.streams.add(self)
        try:
            await answer.pass_to(self._take)
        except UpstreamError as error:
            return self._end(f"the engine broke off inside its answer ({error})")
        finally:
            self._count()
        return self._end("the engine ended inside its answer")

    async def run(self, read: ReadPiece, *, started_s: float) -> Response:
        """The same for a stream that ``read`` gives piece by piece, and may reshape."""
        self._started_s = started_s
        self._client.begin_stream(self._headers)
        self._metrics.streams.add(self)
        try:
            while piece := await read():
                self._take(piece)
                await self._client.drained()
        except UpstreamError as error:
            return self._end(f"the engine broke off inside its answer ({error})")
        finally:
            self._count()
        return self._end("the engine ended inside its answer")

    def _take(self, piece: bytes) -> None:
        now_s = time.monotonic()
        if not self._has_first:
            self._has_first = True
            self._first_s = self._latest_s = now_s
            self._metrics.ttft_s.observe(now_s - self._started_s)
        held = self._held
        whole, self._held = split_whole_events(held + piece if held else piece)
        if whole:
            self._num_bytes += len(whole)
            num_events = whole.count(b"data:")
            if num_events:
                if self._num_events:
                    # Events that came together share the time since the one before.
                    self._metrics.itl_s.observe((now_s - self._latest_s) / num_events, num_events)
                self._latest_s = now_s
                self._num_events += num_events
                self._last_events = whole
            self._client.send(whole if self._reshaped is None else self._reshaped.feed(whole))

    def _count(self) -> None:
        self._metrics.streams.discard(self)
        self._metrics.response_bytes.inc(self._num_bytes)
        if self._num_events > 1:
            self._metrics.tpot_s.observe((time.monotonic() - self._first_s) / (self._num_events - 1))

    def _end(self, reason: str) -> Response:
        """Close the stream; ``reason`` is told where the events so far are no whole answer."""
        end = judge_end(self._last_events)
        if self._reshaped is not None and (left := self._reshaped.end()):
            self._client.send(left)
        if end == "cut":
            self._metrics.upstream_errors.inc()
            self.error = "engine_died"
            self._client.send(render_error_event(reason, code=self.error, origin="gateway"))
        if end != "done":
            self._client.send(DONE_EVENT)
        return self._close()

    def interrupt(self) -> Response:
        """End the stream early because trimtab stops."""
        self.error = "stopping"
        self._client.send(
            render_error_event("trimtab was stopped inside this answer", code=self.error, origin="gateway")
        )
        self._client.send(DONE_EVENT)
        return self._close()

    def _close(self) -> Response:
        self._client.end_stream()
        return Response(is_sent=True)
