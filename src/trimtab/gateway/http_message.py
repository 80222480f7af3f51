"""Pure. One request and one answer of HTTP/1.1, and how the head of an answer is written."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import lru_cache
from http import HTTPStatus
from typing import Final

from trimtab.errors import GatewayError
from trimtab.gateway.keys import ApiKey

__all__ = ["Request", "Response", "render_chunk", "render_head"]

_STATUS_LINES: Final = {one.value: f"HTTP/1.1 {one.value} {one.phrase}\r\n".encode() for one in HTTPStatus}
# What a header's value may not hold; it would end the header, or the head.
_LINE_ENDS: Final = {ord("\r"): " ", ord("\n"): " ", 0: " "}
LAST_CHUNK: Final = b"0\r\n\r\n"


@lru_cache(maxsize=256)
def _field_name(name: str) -> bytes:
    """A header's name as it stands in ``fields``; the gateway asks for the same few in every request."""
    return name.lower().encode()


@dataclass(slots=True)
class Request:
    """One request as it came; filled in as its bytes arrive.

    ``path`` is without its query. ``fields`` are the headers by their names in lower case; of one that
    came twice, the first. ``refusal`` is set where it must not be answered otherwise: the rest of its
    body is then dropped, and the connection ends with the answer. ``key`` is the known key it came with.
    ``asked_path`` is what the client asked for, where this stands for a request of another protocol.
    ``asked_model`` is the model it names, None where it names none, empty as long as it is not read.
    ``is_countable``: it came in, and its answer is still to be counted as use.
    """

    method: str = ""
    path: str = ""
    fields: dict[bytes, bytes] = field(default_factory=dict)
    body_parts: list[bytes] = field(default_factory=list)
    num_body_bytes: int = 0
    is_http_1_0: bool = False
    keeps_alive: bool = True
    is_whole: bool = False
    refusal: GatewayError | None = None
    request_id: str = ""
    key: ApiKey | None = None
    asked_path: str = ""
    asked_model: str | None = ""
    is_countable: bool = False

    def header(self, name: str) -> str | None:
        """The value of a header, None where it was not sent; odd bytes survive as surrogates."""
        value = self.fields.get(_field_name(name))
        return None if value is None else value.decode("utf-8", "surrogateescape")

    @property
    def content_length(self) -> int:
        """The length the head announces, 0 where it announces none."""
        return int(self.fields.get(b"content-length", 0))

    @property
    def body(self) -> bytes:
        """The body as far as it has come."""
        parts = self.body_parts
        return parts[0] if len(parts) == 1 else b"".join(parts)


@dataclass(slots=True)
class Response:
    """One whole answer; ``is_sent`` says that it was a stream, and is already with the client."""

    status: int = 200
    headers: dict[str, str] = field(default_factory=dict)
    body: bytes = b""
    closes: bool = False
    is_sent: bool = False


def render_head(status: int, headers: dict[str, str], *, framing: bytes, date: bytes) -> bytes:
    """The head of an answer, with its empty line; ``framing`` are whole lines that tell how it ends.

    A value's line ends become spaces, so that what comes from elsewhere cannot add a header.
    """
    lines = "".join([f"{name}: {value}\r\n" for name, value in headers.items()])
    if lines.count("\n") != len(headers) or "\0" in lines:
        lines = "".join([f"{name}: {value.translate(_LINE_ENDS)}\r\n" for name, value in headers.items()])
    return b"%b%bDate: %b\r\n%b\r\n" % (
        _STATUS_LINES.get(status) or b"HTTP/1.1 %d Unknown\r\n" % status,
        lines.encode("utf-8", "surrogateescape"),
        date,
        framing,
    )


def render_chunk(data: bytes) -> bytes:
    """One chunk of a body whose length is not known; ``data`` must not be empty."""
    return b"%x\r\n%b\r\n" % (len(data), data)
