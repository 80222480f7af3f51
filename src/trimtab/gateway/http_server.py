"""I/O. Listens, holds the connections of clients, and closes those that take too long or too many."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import time
from collections import OrderedDict
from typing import Final

from trimtab.gateway.descriptors import DescriptorBudget
from trimtab.gateway.http_connection import ClientConnection
from trimtab.gateway.http_presence import PresenceWatch
from trimtab.gateway.http_service import Service

__all__ = ["HttpServer"]

_SWEEP_EVERY_S: Final = 1.0
_MAX_BACKLOG: Final = 1024


class HttpServer:
    """One listener and its connections; ``budget`` bounds how many of them there are.

    Where the budget is spent, the connection that has waited longest for a request makes room; where
    all have one, a new connection gets 503.
    """

    def __init__(self, service: Service, budget: DescriptorBudget) -> None:
        self.service = service
        self.presence = PresenceWatch()
        self.is_closing = False
        self._budget = budget
        self._connections: set[ClientConnection] = set()
        # Those that can be spared, the one that has been idle longest first.
        self._idle: OrderedDict[ClientConnection, None] = OrderedDict()
        self._surplus: set[ClientConnection] = set()
        self._server: asyncio.Server | None = None
        self._sweep_timer: asyncio.TimerHandle | None = None
        self._is_empty = asyncio.Event()

    async def start(self, host: str, port: int) -> int:
        """Listen; returns the port, which is a free one where 0 was asked for. Raises what bind does."""
        loop = asyncio.get_running_loop()
        # The system accepts as many at once before any can be refused: they must fit the reserve.
        backlog = max(8, min(_MAX_BACKLOG, self._budget.num_reserved // 2))
        self._server = await loop.create_server(lambda: ClientConnection(self), host, port, backlog=backlog)
        for sock in self._server.sockets:
            # Inherited by every connection: a client whose machine is gone is found out in the end.
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        self._sweep_timer = loop.call_later(_SWEEP_EVERY_S, self._sweep)
        bound_port: int = self._server.sockets[0].getsockname()[1]
        return bound_port

    def stop_listening(self) -> None:
        """Take no more connections; those there are live on, and end with their next answer."""
        self.is_closing = True
        if self._server is not None:
            self._server.close()
            self._server = None

    async def close(self, flush_s: float) -> None:
        """Close every connection; what is still to be sent gets ``flush_s`` for that."""
        self.stop_listening()
        if self._sweep_timer is not None:
            self._sweep_timer.cancel()
        self.presence.close()
        for connection in tuple(self._connections | self._surplus):
            connection.close_when_sent()
        if self._connections or self._surplus:
            self._is_empty.clear()
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._is_empty.wait(), flush_s)
        for connection in tuple(self._connections | self._surplus):
            connection.leave()
        # One turn of the loop, in which transports report their end.
        await asyncio.sleep(0)

    def spare_one(self) -> bool:
        """Close the connection that has waited longest for a request; False where none waits."""
        if not self._idle:
            return False
        connection, _ = self._idle.popitem(last=False)
        connection.spare()
        return True

    def on_made(self, connection: ClientConnection) -> bool:
        """Whether there is room for a connection that came."""
        if self._budget.take():
            self._connections.add(connection)
            return True
        self._surplus.add(connection)
        if len(self._surplus) > self._budget.num_reserved // 2:
            connection.leave()
        return False

    def on_idle(self, connection: ClientConnection) -> None:
        """A connection can be spared."""
        self._idle[connection] = None

    def on_busy(self, connection: ClientConnection) -> None:
        """A connection has a request."""
        self._idle.pop(connection, None)

    def on_lost(self, connection: ClientConnection) -> None:
        """A connection is closed."""
        if connection in self._connections:
            self._connections.discard(connection)
            self._idle.pop(connection, None)
            self._budget.give()
        self._surplus.discard(connection)
        if not self._connections and not self._surplus:
            self._is_empty.set()

    def _sweep(self) -> None:
        now_s = time.monotonic()
        for connection in tuple(self._connections | self._surplus):
            if connection.deadline_s < now_s:
                connection.expire(now_s)
        self._sweep_timer = asyncio.get_running_loop().call_later(_SWEEP_EVERY_S, self._sweep)
