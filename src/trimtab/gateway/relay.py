"""I/O. Passes a stream on to the client as it comes, and never lets it end without saying how."""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable
from typing import Final, TypeAlias

import aiohttp
from aiohttp import web

from trimtab.gateway.error_body import render_error_event
from trimtab.gateway.event_cut import split_whole_events
from trimtab.gateway.metrics import ModelMetrics
from trimtab.gateway.stream_end import DONE_EVENT, judge_end
from trimtab.gateway.upstream import UpstreamError

__all__ = ["ReadPiece", "Relay", "read_piece"]

# Gives the next bytes of an answer, empty at its end; UpstreamError when the engine broke off.
ReadPiece: TypeAlias = Callable[[], Awaitable[bytes]]
_NO_BUFFERING: Final = {"Cache-Control": "no-cache", "X-Accel-Buffering": "no"}


async def read_piece(answer: aiohttp.ClientResponse) -> bytes:
    """The next bytes of an answer, empty at its end; UpstreamError when the engine broke off."""
    try:
        return await answer.content.readany()
    except (aiohttp.ClientError, aiohttp.http.HttpProcessingError, OSError) as error:
        raise UpstreamError(str(error) or type(error).__name__) from error


class Relay:
    """One stream on its way. Whole events only are passed on, so that an error can follow any of them."""

    def __init__(self, request: web.BaseRequest, headers: dict[str, str], metrics: ModelMetrics) -> None:
        self._request = request
        self._metrics = metrics
        self._response = web.StreamResponse(status=200, headers=headers | _NO_BUFFERING)
        self._last_events = b""

    async def run(self, read: ReadPiece, *, started_s: float) -> web.StreamResponse:
        """Send the head and every event; ends with [DONE], or with an error event and [DONE].

        A client that left raises ConnectionError, or cancels.
        """
        await self._response.prepare(self._request)
        try:
            await self._pass_events(read, started_s)
        except UpstreamError as error:
            await self._end(f"the engine broke off inside its answer ({error})")
        else:
            await self._end("the engine ended inside its answer")
        return self._response

    async def _pass_events(self, read: ReadPiece, started_s: float) -> None:
        write: Callable[[bytes], Awaitable[None]] = self._response.write
        held = piece = await read()
        self._metrics.ttft_s.observe(time.monotonic() - started_s)
        num_bytes = 0
        try:
            while piece:
                whole, held = split_whole_events(held)
                if whole:
                    num_bytes += len(whole)
                    if b"data:" in whole:
                        self._last_events = whole
                    await write(whole)
                piece = await read()
                held = held + piece if held else piece
        finally:
            self._metrics.response_bytes.inc(num_bytes)

    async def _end(self, reason: str) -> None:
        """Close the stream; ``reason`` is told where the events so far are no whole answer."""
        end = judge_end(self._last_events)
        if end == "cut":
            self._metrics.upstream_errors.inc()
            await self._response.write(render_error_event(reason, code="engine_died", origin="gateway"))
        if end != "done":
            await self._response.write(DONE_EVENT)
        await self._response.write_eof()

    async def interrupt(self) -> web.StreamResponse:
        """End the stream early because trimtab stops."""
        await self._response.write(
            render_error_event("trimtab was stopped inside this answer", code="stopping", origin="gateway")
        )
        await self._response.write(DONE_EVENT)
        await self._response.write_eof()
        return self._response
