"""Pure. What a client's connection and whoever answers it expect of each other."""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

from trimtab.errors import GatewayError
from trimtab.gateway.http_message import Request, Response

if TYPE_CHECKING:
    from trimtab.gateway.http_connection import ClientConnection
    from trimtab.gateway.http_presence import PresenceWatch

__all__ = ["AnswerTo", "Flow", "ServerState", "Service", "failed", "no_room", "too_slow"]


class Flow(Protocol):
    """Where an answer's bytes come from, and can be held back."""

    def pause(self) -> None:
        """Let nothing more come for now."""

    def resume(self) -> None:
        """Go on."""


class AnswerTo(Protocol):
    """A client that an answer goes to: whole, or as a stream."""

    @property
    def peer(self) -> object:
        """Who it is, as far as the network tells."""

    def begin_stream(self, headers: dict[str, str], flow: Flow | None = None) -> None:
        """Send the head of a stream."""

    def send(self, data: bytes) -> None:
        """Send a piece of it."""

    async def drained(self) -> None:
        """Until the client has caught up."""

    def end_stream(self) -> None:
        """End it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Service:
    """What answers requests.

    ``check_head`` raises GatewayError for a request whose body need not come; ``answer`` gives the
    answer or a coroutine that will; ``refuse`` words a refusal. ``too_large`` refuses a body above
    ``max_body_bytes``.
    """

    check_head: Callable[[Request], None]
    answer: Callable[[Request, ClientConnection], Response | Coroutine[Any, Any, Response]]
    refuse: Callable[[Request, GatewayError], Response]
    too_large: Callable[[int], GatewayError]
    max_body_bytes: int


class ServerState(Protocol):
    """What the connections of one server share."""

    service: Service
    presence: PresenceWatch
    is_closing: bool

    def on_made(self, connection: ClientConnection) -> bool:
        """Whether there is room for a connection that came."""

    def on_idle(self, connection: ClientConnection) -> None:
        """A connection can be spared."""

    def on_busy(self, connection: ClientConnection) -> None:
        """A connection has a request."""

    def on_lost(self, connection: ClientConnection) -> None:
        """A connection is closed."""


def no_room() -> GatewayError:
    """A connection that is one too many."""
    return GatewayError(
        "trimtab has no descriptor left for another connection",
        status=503,
        code="too_many_connections",
        hint="try again later, or raise the limit of open files (ulimit -n)",
    )


def too_slow() -> GatewayError:
    """A request that stopped coming."""
    return GatewayError("the request did not come in time", status=408, code="request_timeout")


def failed() -> GatewayError:
    """A bug of ours."""
    return GatewayError("the gateway failed; its log says why", status=500, code="internal_error")
