"""I/O. aiohttp's low-level server, with its own failures in the one error shape."""

from __future__ import annotations

import asyncio
from typing import Any

from aiohttp import web
from aiohttp.http_exceptions import LineTooLong

from trimtab.gateway.error_body import ORIGIN_HEADER, render_error

__all__ = ["HttpServer"]


class _Protocol(web.RequestHandler):
    """One connection; what HTTP itself refuses is answered as any other error."""

    def handle_error(
        self,
        request: web.BaseRequest,
        status: int = 500,
        exc: BaseException | None = None,
        message: str | None = None,
    ) -> web.StreamResponse:
        """The answer to a request that is no HTTP, or that our own code failed on (a bug: logged)."""
        if status == 400 and exc is not None:
            status = _status_of(exc)
        if status >= 500:
            self.log_exception("error handling a request", exc_info=exc)
        if request.writer.output_size > 0:
            raise ConnectionError("an answer has begun, no other can be sent")
        text = "the gateway failed; its log says why" if status >= 500 else f"not an HTTP request: {message}"
        response = web.Response(
            status=status,
            body=render_error(text, status=status, code="bad_http", origin="gateway"),
            headers={"Content-Type": "application/json", ORIGIN_HEADER: "gateway"},
        )
        response.force_close()
        return response


class HttpServer(web.Server):
    """Makes one ``_Protocol`` per connection."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._protocol_options = {
            name: value for name, value in kwargs.items() if name != "handler_cancellation"
        }

    def __call__(self) -> Any:
        """A protocol for a new connection."""
        return _Protocol(self, loop=asyncio.get_running_loop(), **self._protocol_options)


def _status_of(refusal: BaseException) -> int:
    """431 for a request line or headers that are too long or too many, else 400."""
    is_too_much = isinstance(refusal, LineTooLong) or "Too many headers" in str(refusal)
    return 431 if is_too_much else 400
