"""An independent eye on the machine: finds processes by a word in their command line, not by our marks."""

from __future__ import annotations

import socket
import time
from pathlib import Path


def pids_with(token: str) -> list[int]:
    """Living processes whose command line holds ``token``; zombies have none."""
    found = []
    for folder in Path("/proc").iterdir():
        if folder.name.isdigit():
            try:
                command = (folder / "cmdline").read_bytes()
            except OSError:
                continue
            if token.encode() in command:
                found.append(int(folder.name))
    return sorted(found)


def environment_holds(pid: int, text: str) -> bool:
    try:
        return text.encode(errors="surrogateescape") in Path(f"/proc/{pid}/environ").read_bytes()
    except OSError:
        return False


def pids_in_environment(text: str) -> list[int]:
    """Living processes that carry ``text`` in their environment."""
    pids = (int(folder.name) for folder in Path("/proc").iterdir() if folder.name.isdigit())
    return sorted(pid for pid in pids if environment_holds(pid, text))


def is_port_open(port: int) -> bool:
    """Whether somebody accepts connections there."""
    with socket.socket() as client:
        client.settimeout(1)
        return client.connect_ex(("127.0.0.1", port)) == 0


def wait_until(condition, *, within_s: float, what: str) -> None:
    """Return when ``condition()`` holds; fail with ``what`` when it does not in time."""
    deadline = time.monotonic() + within_s
    while not condition():
        assert time.monotonic() < deadline, f"{what}: not within {within_s} s"
        time.sleep(0.01)
