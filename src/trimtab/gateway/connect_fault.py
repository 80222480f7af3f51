"""Pure. Why no connection, or no answer, came from an engine: in our words, without a library's."""

from __future__ import annotations

import errno
from typing import Final

__all__ = ["explain_connect_fault"]

_BY_NUMBER: Final = {
    errno.ECONNREFUSED: "nothing listens there",
    errno.EHOSTUNREACH: "its host cannot be reached",
    errno.ENETUNREACH: "its network cannot be reached",
    errno.ETIMEDOUT: "its host does not answer",
    errno.ECONNRESET: "it closed the connection",
    errno.EPIPE: "it closed the connection",
    errno.ENOENT: "nothing listens there",
}
# Class of the error, or of one it derives from → words; the first that fits counts.
_BY_CLASS: Final = (
    ("ClientConnectorCertificateError", "its certificate is not accepted"),
    ("SSLCertVerificationError", "its certificate is not accepted"),
    ("ClientConnectorSSLError", "it does not speak TLS"),
    ("SSLError", "it does not speak TLS"),
    ("ClientConnectorDNSError", "its host name is not known"),
    ("gaierror", "its host name is not known"),
    ("TimeoutError", "its host does not answer"),
    ("ServerDisconnectedError", "it closed the connection"),
    ("ClientPayloadError", "it ended inside its answer"),
    ("ClientResponseError", "its answer is not what HTTP allows"),
    ("InvalidURL", "its url cannot be asked"),
    ("TooManyRedirects", "it sends from one address to the next"),
)


def explain_connect_fault(error: BaseException) -> str:
    """One clause about ``error``, which an HTTP client or a socket raised."""
    cause = getattr(error, "os_error", None) or error
    names = {kind.__name__ for one in (error, cause) for kind in type(one).__mro__}
    for name, words in _BY_CLASS:
        if name in names:
            return words
    if isinstance(cause, OSError):
        # Where several addresses were tried, their errors are in one text without a number.
        text = str(cause)
        known = next((number for number in _BY_NUMBER if f"[Errno {number}]" in text), cause.errno)
        return _BY_NUMBER.get(known or 0, "no connection to it can be made")
    return "its answer cannot be read"
