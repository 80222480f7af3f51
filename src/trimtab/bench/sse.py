"""Pure. A server-sent event stream cut into the data of its events, however the bytes arrive."""

from __future__ import annotations

__all__ = ["EventCutter", "EventTooLongError"]

_MOST_BYTES = 16 * 1024**2
"""More than any chunk of a chat answer; beyond it the stream has no events at all."""


class EventTooLongError(ValueError):
    """A stream that goes on without the end of an event."""


class EventCutter:
    """Feed it pieces; it gives the data of every event that is complete.

    Line ends may be LF or CRLF, data may span lines, comments and other fields are skipped.
    """

    __slots__ = ("_rest",)

    def __init__(self) -> None:
        self._rest = b""

    def feed(self, piece: bytes) -> list[bytes]:
        """Data of the events that this piece completes, in order; EventTooLongError past 16 MiB."""
        data = self._rest + piece if self._rest else piece
        if b"\r" in data:
            data = data.replace(b"\r\n", b"\n")
        end = data.rfind(b"\n\n")
        if end < 0:
            if len(data) > _MOST_BYTES:
                raise EventTooLongError(f"{len(data)} bytes came without the end of an event")
            self._rest = data
            return []
        self._rest = data[end + 2 :]
        if end < len(data) and b"\n" not in data[:end]:
            return [data[5:end].strip()] if data.startswith(b"data:") else []
        return [found for block in data[:end].split(b"\n\n") if (found := _data_of(block)) is not None]


def _data_of(block: bytes) -> bytes | None:
    """The data of one event; None when it has none."""
    if block.startswith(b"data:") and b"\n" not in block:
        return block[5:].strip()
    lines = [line[5:].removeprefix(b" ") for line in block.split(b"\n") if line.startswith(b"data:")]
    return b"\n".join(lines).strip() if lines else None
