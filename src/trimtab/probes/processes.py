"""I/O. Who holds a port of this machine, as far as the system tells this user."""

from __future__ import annotations

import socket
from contextlib import suppress
from dataclasses import dataclass

import psutil

__all__ = ["PortHolder", "probe_port_holder"]

_WILDCARDS = frozenset({"0.0.0.0", "::", "*"})  # noqa: S104 - compared with, not bound to


@dataclass(frozen=True, slots=True, kw_only=True)
class PortHolder:
    """The process that listens; ``pid`` and ``name`` are None where it belongs to another user."""

    port: int
    pid: int | None = None
    name: str | None = None

    def __str__(self) -> str:
        if self.pid is None:
            return "a process of another user"
        return f"process {self.pid}" if self.name is None else f"{self.name} (pid {self.pid})"


def probe_port_holder(host: str, port: int) -> PortHolder | None:
    """Who listens on ``port`` so that ``host`` cannot be bound; None when nobody does."""
    addresses = _resolve(host)
    for connection in psutil.net_connections(kind="tcp"):
        local = connection.laddr
        if connection.status != psutil.CONN_LISTEN or not local or local.port != port:
            continue
        if addresses & _WILDCARDS or local.ip in _WILDCARDS or local.ip in addresses:
            return PortHolder(port=port, pid=connection.pid, name=_read_name(connection.pid))
    return None


def _resolve(host: str) -> frozenset[str]:
    addresses = {host}
    with suppress(OSError, UnicodeError):
        addresses |= {str(entry[4][0]) for entry in socket.getaddrinfo(host, None)}
    return frozenset(addresses)


def _read_name(pid: int | None) -> str | None:
    if pid is None:
        return None
    try:
        return psutil.Process(pid).name()
    except psutil.Error:
        return None
