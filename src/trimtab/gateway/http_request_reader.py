"""Pure. Reads requests out of the bytes of one connection, however they are cut.

The grammar is llhttp's (strict: two lengths, a length beside chunks, broken chunk sizes, folded lines,
bare line feeds and unknown transfer codings are refused); what it does not bound is bounded here.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from typing import Final

import httptools

from trimtab.errors import GatewayError
from trimtab.gateway.http_message import Request

__all__ = ["MAX_FIELDS", "MAX_HEAD_BYTES", "RequestReader"]

_METHODS: Final = {b"POST": "POST", b"GET": "GET"}
# Of the request line and all headers. The largest heads known are browsers' with every cookie of
# a host, 16 KiB being what most servers take.
MAX_HEAD_BYTES: Final = 32 * 1024
MAX_FIELDS: Final = 128
# Bytes of a head that are neither names nor values: ": " and line ends of every field, the first line.
_HEAD_SLACK_BYTES: Final = 4 * MAX_FIELDS + 64
# What a chunked body may cost beside its content: one-byte chunks take 6 bytes each, and some more
# for extensions and trailers.
_MAX_CHUNK_OVERHEAD: Final = 8
_CHUNK_SLACK_BYTES: Final = 64 * 1024
_MAX_SHOWN_CHARS: Final = 200


class RequestReader:
    """Takes bytes; calls ``on_head`` with each request whose head is whole.

    The request is filled in further while its body comes, until ``is_whole``. ``on_head`` may set its
    ``refusal``, as a body above ``max_body_bytes`` does: the body is dropped then. ``feed`` raises
    GatewayError (400, 431) for what is no HTTP; nothing can be read after that.
    """

    def __init__(
        self,
        on_head: Callable[[Request], None],
        *,
        max_body_bytes: int,
        too_large: Callable[[int], GatewayError],
    ) -> None:
        self._on_head = on_head
        self._max_body_bytes = max_body_bytes
        self._too_large = too_large
        self._parser = httptools.HttpRequestParser(self)
        self._request: Request | None = None
        self._is_in_head = False
        self._url = b""
        self._headers: list[tuple[bytes, bytes]] = []
        # Bytes fed for the head, or the body, of the present request, without those of the present feed.
        self._num_fed = 0
        self._num_feeding = 0
        # The library takes the head of a request that offers another protocol for the whole of it.
        self._is_upgrade = False
        self._is_replaying = False
        # Requests that ended in the present feed: what is left of it then may be of any length.
        self._num_ended = 0

    @property
    def is_inside(self) -> bool:
        """Whether a request has begun that is not whole."""
        return self._request is not None

    @property
    def is_in_head(self) -> bool:
        """Whether bytes of a head have come that is not whole."""
        return self._is_in_head

    def feed(self, data: bytes) -> None:
        """Take the next bytes of the connection."""
        refusal: BaseException | None = None
        self._num_feeding = len(data)
        self._num_ended = 0
        try:
            self._feed(data)
        except httptools.HttpParserCallbackError as error:
            refusal = error.__context__
            if not isinstance(refusal, GatewayError):
                raise
        except httptools.HttpParserError as error:
            refusal = _bad_http(str(error))
        if refusal is not None:
            # Anew, without its history: that would hold every byte of the connection for as long.
            raise refusal.with_traceback(None) from None
        if self._request is not None and not self._num_ended:
            self._num_fed += len(data)
            self._check_overhead(self._request)

    def close(self) -> None:
        """Nothing more will be fed: let go of the parser, which holds on to this object."""
        self._on_head = _drop
        del self._parser

    def _feed(self, data: bytes) -> None:
        while True:
            try:
                self._parser.feed_data(data)
            except httptools.HttpParserUpgrade as upgrade:
                # Another protocol is offered, as Java's client does with h2c: it need not be taken up.
                data = data[upgrade.args[0] :]
                self._parser = httptools.HttpRequestParser(self)
                if self._request is not None:
                    self._expect_body(self._request)
            else:
                return

    def _expect_body(self, request: Request) -> None:
        """Make a new parser read the body of a request whose head the last one took for its end."""
        length, coding = request.fields.get(b"content-length"), request.fields.get(b"transfer-encoding")
        framing = (
            b"Content-Length: " + length if length is not None else b"Transfer-Encoding: " + (coding or b"")
        )
        self._is_replaying = True
        self._parser.feed_data(b"POST / HTTP/1.1\r\n" + framing + b"\r\n\r\n")
        self._is_replaying = False

    def _check_overhead(self, request: Request) -> None:
        """Bound what has come of a head that is not whole, and of a body beside its content."""
        if self._is_in_head:
            if self._num_fed > MAX_HEAD_BYTES + _HEAD_SLACK_BYTES or len(self._headers) > MAX_FIELDS:
                raise _head_too_large()
        elif self._num_fed > _MAX_CHUNK_OVERHEAD * request.num_body_bytes + _CHUNK_SLACK_BYTES:
            raise _bad_http("its chunks are mostly overhead")

    def on_message_begin(self) -> None:
        """A request's first byte has come."""
        if self._is_replaying:
            return
        self._request = Request()
        self._is_in_head = True
        self._url = b""
        self._headers = []

    def on_url(self, url: bytes) -> None:
        """A piece of the target."""
        self._url = self._url + url if self._url else url

    def on_header(self, name: bytes, value: bytes) -> None:
        """A header, or a trailer behind a chunked body: those are dropped."""
        self._headers.append((name, value))

    def on_headers_complete(self) -> None:
        """The head is whole."""
        request, headers, parser = self._request, self._headers, self._parser
        if request is None or self._is_replaying:
            return
        self._is_in_head = False
        fields = request.fields = {name.lower(): value for name, value in headers}
        if self._num_fed + self._num_feeding > MAX_HEAD_BYTES or len(headers) > MAX_FIELDS:
            self._check_size()
        if len(fields) != len(headers):
            _keep_first(fields, headers)
        if b"transfer-encoding" in fields and fields[b"transfer-encoding"].lower() != b"chunked":
            raise _bad_http("its transfer coding is not chunked")
        request.method = _METHODS.get(parser.get_method()) or parser.get_method().decode()
        request.path = _path_of(self._url)
        request.is_http_1_0 = parser.get_http_version() == "1.0"
        request.keeps_alive = parser.should_keep_alive()
        content_length = request.content_length
        if content_length > self._max_body_bytes:
            request.refusal = self._too_large(self._max_body_bytes)
        self._num_fed = 0
        if b"upgrade" in fields and parser.should_upgrade() and request.method != "CONNECT":
            self._is_upgrade = content_length > 0 or b"transfer-encoding" in fields
        self._on_head(request)

    def _check_size(self) -> None:
        num_bytes = len(self._url) + sum(len(name) + len(value) for name, value in self._headers)
        if num_bytes > MAX_HEAD_BYTES or len(self._headers) > MAX_FIELDS:
            raise _head_too_large()

    def on_body(self, body: bytes) -> None:
        """A piece of the body."""
        request = self._request
        if request is None:
            return
        request.num_body_bytes += len(body)
        if request.refusal is not None:
            return
        if request.num_body_bytes > self._max_body_bytes:
            request.refusal = self._too_large(self._max_body_bytes)
            request.body_parts.clear()
        else:
            request.body_parts.append(body)

    def on_message_complete(self) -> None:
        """The request is whole, unless it offered another protocol: its body is then still to come."""
        if self._is_upgrade:
            self._is_upgrade = False
            return
        request, self._request = self._request, None
        self._num_fed = 0
        self._num_ended += 1
        if request is not None:
            request.is_whole = True


def _keep_first(fields: dict[bytes, bytes], headers: list[tuple[bytes, bytes]]) -> None:
    """Of a header that came twice the first counts; GatewayError (400) for two hosts."""
    names = [name.lower() for name, _ in headers]
    if names.count(b"host") > 1:
        raise _bad_http("it names two hosts")
    for name, (_, value) in zip(reversed(names), reversed(headers), strict=True):
        fields[name] = value


def _drop(_: Request) -> None:
    """No longer tell anyone of a head."""


def _path_of(target: bytes) -> str:
    """The path of a request's target, which a proxy's client may write as a whole URL."""
    if not target.startswith(b"/"):
        with contextlib.suppress(httptools.HttpParserInvalidURLError):
            target = httptools.parse_url(target).path or b"/"
    return target.partition(b"?")[0].decode("utf-8", "backslashreplace")


def _bad_http(what: str) -> GatewayError:
    return GatewayError(f"not an HTTP request: {what[:_MAX_SHOWN_CHARS]}", status=400, code="bad_http")


def _head_too_large() -> GatewayError:
    return GatewayError(
        f"not an HTTP request: its head is larger than {MAX_HEAD_BYTES:,} bytes or {MAX_FIELDS} headers",
        status=431,
        code="bad_http",
    )
