"""I/O. The key that an endpoint gets by itself when other machines can reach it and nobody made one."""

from __future__ import annotations

import ipaddress
import os
import sys
from typing import Final

import click

from trimtab.cli.folders import Folders, keys_path
from trimtab.core.stack import GatewaySettings
from trimtab.errors import EnvironmentMissingError

__all__ = ["key_to_show", "make_first_key"]

_NAME: Final = "first"
_PLACEHOLDER: Final = "YOUR_KEY"


def make_first_key(gateway: GatewaySettings, folders: Folders) -> str | None:
    """Make and print a key if the gateway would be open to other machines, None where it would not.

    EnvironmentMissingError where nobody but a log would read it.
    """
    path = keys_path(folders)
    if gateway.keys or path.exists() or _is_loopback(gateway.host):
        return None
    if _is_logged():
        raise EnvironmentMissingError(
            f"the gateway would be open to other machines at {gateway.host} without a key, and a new one"
            " would be printed into a log",
            hint="make one first: trimtab keys add NAME",
        )
    from trimtab.gateway.key_ring import add_key  # noqa: PLC0415 - keeps --help quick
    from trimtab.gateway.keys import KeyLimits  # noqa: PLC0415

    def show(key: str) -> None:
        click.echo(
            f"other machines can reach {gateway.host}, so that requests need a key from now on; this one,"
            f" named {_NAME!r}, is shown only now (see trimtab keys):\n\n  {key}\n",
            err=True,
        )

    return add_key(path, _NAME, KeyLimits(), show=show)


def key_to_show(gateway: GatewaySettings, folders: Folders, made: str | None) -> str | None:
    """What stands for the key in examples: the one just made, a placeholder, None where none is asked for."""
    if made is not None:
        return made
    return _PLACEHOLDER if gateway.keys or keys_path(folders).exists() else None


def _is_loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host.partition("%")[0]).is_loopback
    except ValueError:
        return host == "localhost"


def _is_logged() -> bool:
    """Whether what is printed goes to systemd's journal, as its documentation says to tell."""
    try:
        status = os.fstat(sys.stderr.fileno())
    except (OSError, ValueError, AttributeError):
        return False
    return os.environ.get("JOURNAL_STREAM") == f"{status.st_dev}:{status.st_ino}"
