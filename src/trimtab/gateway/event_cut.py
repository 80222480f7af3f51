"""Pure. Cuts a stream of server-sent events only between events.

A stream may break off at any byte. Passing on whole events only means that what a client got is
always readable, and that an error event can be put behind it.
"""

from __future__ import annotations

from typing import Final

__all__ = ["MAX_HELD_BYTES", "split_whole_events"]

# An unfinished event longer than this is passed on as it is: holding more would be buffering.
MAX_HELD_BYTES: Final = 1024 * 1024


def split_whole_events(data: bytes, *, max_held_bytes: int = MAX_HELD_BYTES) -> tuple[bytes, bytes]:
    r"""(whole events, the unfinished rest); their concatenation is ``data``.

    An event ends with an empty line: two line ends of either kind, ``\\n`` or ``\\r\\n``.
    """
    if data.endswith((b"\n\n", b"\r\n\r\n")):
        return data, b""
    end = max(data.rfind(b"\n\n") + 2 if b"\n\n" in data else 0, _crlf_end(data))
    if len(data) - end > max_held_bytes:
        return data, b""
    return data[:end], data[end:]


def _crlf_end(data: bytes) -> int:
    at = data.rfind(b"\r\n\r\n")
    return at + 4 if at >= 0 else 0
