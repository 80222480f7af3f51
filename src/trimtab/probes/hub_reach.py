"""I/O. Whether a hub can be reached at all, found out within a given time.

Looking a name up has no time limit of its own (a broken resolver takes 5 to 30 s), so the attempt runs
in a thread that is left behind.
"""

from __future__ import annotations

import socket
import threading
import urllib.request
from typing import Final
from urllib.parse import urlsplit

__all__ = ["is_reachable"]

_PORTS: Final = {"https": 443, "http": 80, "socks5": 1080, "socks5h": 1080}


def is_reachable(endpoint: str, timeout_s: float) -> bool:
    """Whether a connection to ``endpoint``, or to the proxy in front of it, is made in ``timeout_s``."""
    host, port = _door(endpoint)
    if not host:
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
