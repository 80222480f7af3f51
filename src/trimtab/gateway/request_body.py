"""Pure. What the body of a request may be, and its bytes without compression."""

from __future__ import annotations

import zlib
from typing import Final

from trimtab.errors import GatewayError
from trimtab.gateway.http_message import Request

__all__ = ["check_content_type", "decode_body", "too_large"]

_JSON: Final = b"application/json"
# zlib's window argument that takes both of its own formats, gzip and zlib, by their first bytes.
_GZIP_OR_ZLIB: Final = 47


def check_content_type(request: Request) -> None:
    """GatewayError (415) for a body that says it is no JSON.

    A browser lets any web page post forms and plain text to this machine without asking; JSON it
    does not. A client that names no type is let in.
    """
    content_type = request.fields.get(b"content-type")
    if content_type is None or content_type == _JSON:
        return
    kind = content_type.partition(b";")[0].strip().lower()
    if kind != _JSON and not (kind.startswith(b"application/") and kind.endswith(b"+json")):
        raise GatewayError(
            f"the content type is {kind[:100].decode('latin1')!r}",
            status=415,
            code="content_type",
            hint="send JSON with the header Content-Type: application/json",
        )


def decode_body(request: Request, max_body_bytes: int) -> bytes:
    """The body as JSON text. GatewayError: 415 unknown coding, 413 above the limit, 400 broken."""
    coding = request.fields.get(b"content-encoding")
    if coding is None:
        return request.body
    coding = coding.strip().lower()
    if coding in {b"", b"identity"}:
        return request.body
    if coding not in {b"gzip", b"x-gzip", b"deflate"}:
        raise GatewayError(
            f"the content encoding is {coding[:100].decode('latin1')!r}",
            status=415,
            code="content_encoding",
            hint="send the body as it is, or with gzip or deflate",
        )
    return _inflate(request.body, coding, max_body_bytes)


def _inflate(body: bytes, coding: bytes, max_body_bytes: int) -> bytes:
    # Deflate is zlib's format, but some clients send its bare content: its first byte tells.
    is_bare = coding == b"deflate" and body[:1] and body[0] & 0xF != 8
    inflater = zlib.decompressobj(-zlib.MAX_WBITS if is_bare else _GZIP_OR_ZLIB)
    try:
        data = inflater.decompress(body, max_body_bytes + 1)
    except zlib.error as error:
        raise _broken(str(error)) from None
    if len(data) > max_body_bytes:
        raise too_large(max_body_bytes)
    if not inflater.eof:
        raise _broken("it ends early")
    return data


def too_large(max_body_bytes: int) -> GatewayError:
    """The refusal of a body above the limit."""
    return GatewayError(
        f"the body is larger than {max_body_bytes:,} bytes, the limit of one request",
        status=413,
        code="body_too_large",
        hint="raise gateway.limits.max_body_bytes in the stack file, or send less",
    )


def _broken(why: str) -> GatewayError:
    return GatewayError(f"the compressed body is broken: {why}", status=400, code="broken_body")
