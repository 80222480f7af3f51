"""I/O. Whether a hub can be reached at all, found out within a given time.

Looking a name up has no time limit of its own (a broken resolver takes 5 to 30 s), so the attempt runs
in a thread that is left behind.
"""

from __future__ import annotations

import socket
import threading
import time
import urllib.request
from typing import Final
from urllib.parse import urlsplit

__all__ = ["is_reachable"]

# A hub that was not there a moment ago is not waited for again by the next model of the same stack.
_REMEMBERED_S: Final = 30.0
_failed_at_s: dict[tuple[str, int], float] = {}
_PORTS: Final = {"https": 443, "http": 80, "socks5": 1080, "socks5h": 1080}


def is_reachable(endpoint: str, timeout_s: float) -> bool:
    """Whether a connection to ``endpoint``, or to the proxy in front of it, is made in ``timeout_s``.

    A failure is remembered for half a minute.
    """
    host, port = door = _door(endpoint)
    if not host or time.monotonic() - _failed_at_s.get(door, -_REMEMBERED_S) < _REMEMBERED_S:
        return False
    made = threading.Event()
    done = threading.Event()

    def connect() -> None:
        try:
            with socket.create_connection((host, port), timeout=timeout_s):
                made.set()
        except (OSError, UnicodeError, OverflowError):
            pass
        finally:
            done.set()

    threading.Thread(target=connect, daemon=True).start()
    done.wait(timeout_s)
    if not made.is_set():
        _failed_at_s[door] = time.monotonic()
    return made.is_set()


def _door(endpoint: str) -> tuple[str, int]:
    """The address that a request to ``endpoint`` goes to first; host empty when there is none."""
    try:
        parts = urlsplit(endpoint)
        proxies = urllib.request.getproxies()
        proxy = proxies.get(parts.scheme) or proxies.get("all")
        if proxy and not urllib.request.proxy_bypass(parts.hostname or ""):
            parts = urlsplit(proxy if "://" in proxy else f"http://{proxy}")
        return parts.hostname or "", parts.port or _PORTS.get(parts.scheme, 443)
    except ValueError:
        return "", 0
