"""Pure. Reads an engine's answers out of the bytes of one connection, however they are cut."""

from __future__ import annotations

from typing import Final

import httptools

__all__ = ["BrokenAnswerError", "ResponseReader"]

# An engine's head is some hundred bytes; what is longer is no head.
_MAX_HEAD_BYTES: Final = 64 * 1024
_NO_BODY: Final = frozenset({204, 304})


class BrokenAnswerError(Exception):
    """The bytes are no HTTP, or end inside an answer."""


class ResponseReader:
    """Takes the bytes of answers to requests that were sent one after the other.

    After ``expect``: ``has_head`` and ``is_whole`` tell how far the answer came, ``status`` and
    ``fields`` (names in lower case) what its head said, ``take_body`` gives what is there of its body.
    """

    __slots__ = (
        "_is_delimited",
        "_is_expected",
        "_num_head_bytes",
        "_parser",
        "_pieces",
        "fields",
        "has_head",
        "is_whole",
        "keeps_alive",
        "status",
    )

    def __init__(self) -> None:
        self._parser = httptools.HttpResponseParser(self)
        self._pieces: list[bytes] = []
        self._is_expected = False
        self._is_delimited = False
        self._num_head_bytes = 0
        self.fields: dict[bytes, bytes] = {}
        self.status = 0
        self.has_head = False
        self.is_whole = False
        self.keeps_alive = False

    def expect(self) -> None:
        """A request was sent: the next bytes are its answer."""
        self._is_expected = True
        self._num_head_bytes = 0
        self.fields = {}
        self.status = 0
        self.has_head = self.is_whole = self.keeps_alive = False

    def close(self) -> None:
        """Nothing more will be fed: let go of the parser, which holds on to this object."""
        del self._parser

    def feed(self, data: bytes) -> None:
        """Take the next bytes of the connection; BrokenAnswerError for what is no HTTP."""
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserCallbackError as error:
            raise BrokenAnswerError(str(error.__context__ or error)) from None
        except (httptools.HttpParserError, httptools.HttpParserUpgrade) as error:
            raise BrokenAnswerError(f"its answer is no HTTP ({str(error)[:200]})") from None
        if not self.has_head:
            self._num_head_bytes += len(data)
            self._check_head()

    def take_body(self) -> bytes:
        """The bytes of the body that came since the last call."""
        pieces = self._pieces
        if not pieces:
            return b""
        body = pieces[0] if len(pieces) == 1 else b"".join(pieces)
        pieces.clear()
        return body

    def feed_end(self) -> None:
        """The connection has ended: an answer without any length ends with it, others are broken."""
        if not self.is_whole and self._is_expected and self.has_head and not self._is_delimited:
            self.is_whole = True
        elif not self.is_whole:
            where = "inside its answer" if self.has_head else "before its answer"
            raise BrokenAnswerError(f"the engine closed the connection {where}")

    def _check_head(self) -> None:
        if self._num_head_bytes > _MAX_HEAD_BYTES:
            raise BrokenAnswerError(f"the head of its answer is larger than {_MAX_HEAD_BYTES:,} bytes")

    def on_message_begin(self) -> None:
        """An answer's first byte has come; one that nobody asked for makes the rest worthless."""
        if not self._is_expected or self.is_whole:
            raise BrokenAnswerError("the engine sent an answer that nobody asked for")

    def on_header(self, name: bytes, value: bytes) -> None:
        """A header of the head; trailers are dropped."""
        if not self.has_head:
            self._num_head_bytes += len(name) + len(value)
            self._check_head()
            self.fields.setdefault(name.lower(), value)

    def on_headers_complete(self) -> None:
        """The head is whole; that of an interim answer (1xx) is forgotten."""
        status = self._parser.get_status_code()
        if status < 200:
            self.fields = {}
            return
        self.status = status
        self.has_head = True
        fields = self.fields
        self._is_delimited = (
            b"content-length" in fields or b"transfer-encoding" in fields or status in _NO_BODY
        )

    def on_body(self, body: bytes) -> None:
        """A piece of the body."""
        self._pieces.append(body)

    def on_message_complete(self) -> None:
        """The answer is whole, unless it was an interim one."""
        if self.has_head:
            self.is_whole = True
            self.keeps_alive = self._parser.should_keep_alive()
