"""I/O. The time as HTTP writes it."""

from __future__ import annotations

import time
from email.utils import formatdate

__all__ = ["http_date"]


class _Clock:
    """Words a second once, however many answers it has."""

    def __init__(self) -> None:
        self._second = 0
        self._text = b""

    def read(self) -> bytes:
        now_s = int(time.time())
        if now_s != self._second:
            self._second = now_s
            self._text = formatdate(now_s, usegmt=True).encode()
        return self._text


http_date = _Clock().read
