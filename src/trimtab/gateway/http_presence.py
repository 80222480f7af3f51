"""I/O. Tells a client that left from one that has only finished sending.

Both look the same on the wire until something is sent: the client's half of the connection has ended.
A client on this machine is looked up in the kernel's table of sockets, which knows whether a program
still holds the other end. To others something is sent that clients drop unread, 100 Continue: the
other end of a closed connection answers it with a reset.
"""

from __future__ import annotations

import asyncio
import contextlib
import ipaddress
import socket
import sys
from pathlib import Path
from typing import Any, Final, Protocol, TypeAlias

__all__ = ["HalfClosed", "PresenceWatch"]

_EVERY_S: Final = 0.1
_TCP_CLOSE: Final = 7  # of linux/tcp_states.h; the first byte of TCP_INFO
_TCP_CLOSE_WAIT: Final = 8
_TABLES: Final = (Path("/proc/net/tcp"), Path("/proc/net/tcp6"))
# (address, port) of the holder, then of the other end.
_Ends: TypeAlias = tuple[str, int, str, int]


class HalfClosed(Protocol):
    """A connection whose client has ended its half while an answer is due."""

    def extra_info(self, name: str) -> Any:
        """What the transport tells under that name."""

    def leave(self) -> None:
        """The client is gone."""

    def probe(self) -> None:
        """Send what a client drops unread, where that is possible just now."""


class PresenceWatch:
    """Looks after connections, some times a second and only while there are any."""

    def __init__(self) -> None:
        self._watched: dict[HalfClosed, _Ends | None] = {}
        self._timer: asyncio.TimerHandle | None = None

    def add(self, connection: HalfClosed) -> None:
        """Watch a connection until it leaves or is taken out."""
        ends = _ends_on_this_machine(connection)
        if ends is None:
            connection.probe()
        self._watched[connection] = ends
        if self._timer is None:
            self._timer = asyncio.get_running_loop().call_later(_EVERY_S, self._look)

    def discard(self, connection: HalfClosed) -> None:
        """No longer watch a connection."""
        self._watched.pop(connection, None)

    def close(self) -> None:
        """Look no more."""
        self._watched.clear()
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _look(self) -> None:
        self._timer = None
        ports = {ends[1] for ends in self._watched.values() if ends is not None}
        held = _read_held_ends(ports) if ports else set()
        for connection, ends in tuple(self._watched.items()):
            if _is_reset(connection) or (ends is not None and held is not None and ends not in held):
                self.discard(connection)
                connection.leave()
        if self._watched:
            self._timer = asyncio.get_running_loop().call_later(_EVERY_S, self._look)


def _is_reset(connection: HalfClosed) -> bool:
    sock = connection.extra_info("socket")
    try:
        if sys.platform == "linux":
            state = sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, 1)[0]
            return bool(state == _TCP_CLOSE)
        return bool(sock.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR))
    except (OSError, AttributeError):
        return True


def _ends_on_this_machine(connection: HalfClosed) -> _Ends | None:
    """The two ends as the client's own socket has them, None for a client elsewhere."""
    peer, own = connection.extra_info("peername"), connection.extra_info("sockname")
    if sys.platform != "linux" or not isinstance(peer, tuple) or not isinstance(own, tuple):
        return None
    peer_ip, own_ip = _ip(peer[0]), _ip(own[0])
    if peer_ip is None or own_ip is None or not (peer_ip.is_loopback or peer_ip == own_ip):
        return None
    return str(peer_ip), peer[1], str(own_ip), own[1]


def _ip(text: str) -> ipaddress.IPv4Address | ipaddress.IPv6Address | None:
    with contextlib.suppress(ValueError):
        address = ipaddress.ip_address(text.partition("%")[0])
        return getattr(address, "ipv4_mapped", None) or address
    return None


def _read_held_ends(ports: set[int]) -> set[_Ends] | None:
    """Sockets with these own ports that some program holds; None where the table cannot be read."""
    held: set[_Ends] = set()
    suffixes = tuple(f":{port:04X}" for port in ports)
    for table in _TABLES:
        try:
            lines = table.read_text(encoding="ascii").splitlines()[1:]
        except FileNotFoundError:
            continue
        except OSError:
            return None
        for line in lines:
            fields = line.split()
            # The inode of a socket that no program holds any more is 0.
            if fields[1].endswith(suffixes) and fields[9] != "0":
                held.add((*_decode_end(fields[1]), *_decode_end(fields[2])))
    return held


def _decode_end(text: str) -> tuple[str, int]:
    """``0100007F:1F90`` → ("127.0.0.1", 8080): 32-bit words in the machine's own order."""
    words, _, port = text.partition(":")
    packed = b"".join(
        int(words[at : at + 8], 16).to_bytes(4, sys.byteorder) for at in range(0, len(words), 8)
    )
    address = ipaddress.ip_address(packed)
    return str(getattr(address, "ipv4_mapped", None) or address), int(port, 16)
