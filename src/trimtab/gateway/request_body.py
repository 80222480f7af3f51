"""I/O. Reads the body of a request, never holding more of it than the limit."""

from __future__ import annotations

from typing import Final

import aiohttp
from aiohttp import web

from trimtab.errors import GatewayError

__all__ = ["read_body"]

_JSON: Final = "application/json"


async def read_body(request: web.BaseRequest, max_body_bytes: int) -> bytes:
    """The whole body. GatewayError: 415 no JSON, 413 above ``max_body_bytes``, 400 it broke off."""
    _check_content_type(request.headers.get("Content-Type"))
    length = request.content_length
    if length is not None and length > max_body_bytes:
        raise _too_large(max_body_bytes)
    if request.headers.get("Expect", "").lower() == "100-continue" and request.transport is not None:
        request.transport.write(b"HTTP/1.1 100 Continue\r\n\r\n")
    parts: list[bytes] = []
    num_bytes = 0
    try:
        while part := await request.content.readany():
            num_bytes += len(part)
            if num_bytes > max_body_bytes:
                raise _too_large(max_body_bytes)
            parts.append(part)
    except (aiohttp.ClientError, web.RequestPayloadError) as error:
        raise GatewayError(f"the body broke off: {error}", status=400, code="broken_body") from error
    return parts[0] if len(parts) == 1 else b"".join(parts)


def _check_content_type(content_type: str | None) -> None:
    """GatewayError (415) for a body that says it is no JSON.

    A browser lets any web page post forms and plain text to this machine without asking; JSON it
    does not. A client that names no type is let in.
    """
    if content_type is None or content_type == _JSON:
        return
    kind = content_type.partition(";")[0].strip().lower()
    if kind != _JSON and not (kind.startswith("application/") and kind.endswith("+json")):
        raise GatewayError(
            f"the content type is {kind[:100]!r}",
            status=415,
            code="content_type",
            hint="send JSON with the header Content-Type: application/json",
        )


def _too_large(max_body_bytes: int) -> GatewayError:
    return GatewayError(
        f"the body is larger than {max_body_bytes:,} bytes, the limit of one request",
        status=413,
        code="body_too_large",
        hint="raise gateway.limits.max_body_bytes in the stack file, or send less",
    )
