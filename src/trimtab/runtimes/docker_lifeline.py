"""I/O. The lifeline: a tiny process that stops a foreground supervisor's containers when it vanishes.

A daemon owns its containers, so that they would outlive a supervisor that is killed. Run as
``python -m trimtab.runtimes.docker_lifeline ADDRESS TOKEN`` with a pipe as stdin. A byte on the pipe
means that everything was stopped in order; its end without one means that the supervisor is gone, and
every running container with the label ``trimtab.lifeline=TOKEN`` is stopped. Stopped ones stay, so that
the next command can tell how they ended. The SDK is imported only then.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from contextlib import suppress
from typing import Any

from trimtab.runtimes.docker_connection import open_api
from trimtab.runtimes.docker_labels import LIFELINE_LABEL

__all__ = ["Lifeline", "main"]

# What a vanished supervisor's engines are granted, as under a guard.
_GRACE_S = 10.0
_POLL_S = 0.1


class Lifeline:
    """The supervisor's end of it; ``token`` is the label's value of what is tied to it."""

    def __init__(self, *, python: str, address: str, token: str) -> None:
        self.token = token
        self._process = subprocess.Popen(
            [python, "-m", "trimtab.runtimes.docker_lifeline", address, token],
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,  # Ctrl-C in the terminal is for the supervisor
        )

    def release(self) -> None:
        """End it; to be called when nothing is tied to it any more."""
        with suppress(BrokenPipeError):
            self._process.communicate(b"q")


def main() -> int:
    """Wait for the word or the end of the pipe."""
    for number in (signal.SIGINT, signal.SIGHUP, signal.SIGTERM):
        signal.signal(number, signal.SIG_IGN)
    if os.read(0, 1):
        return 0
    stop_tied(open_api(sys.argv[1]), sys.argv[2])
    return 0


def stop_tied(api: Any, token: str) -> None:
    """SIGTERM for every container with the token, then SIGKILL for what is left after the grace."""
    deadline_s = time.monotonic() + _GRACE_S
    tied = {"label": f"{LIFELINE_LABEL}={token}"}
    _signal_all(api, tied, "SIGTERM")
    while api.containers(filters=tied) and time.monotonic() < deadline_s:
        time.sleep(_POLL_S)
    _signal_all(api, tied, "SIGKILL")


def _signal_all(api: Any, filters: dict[str, str], name: str) -> None:
    for entry in api.containers(filters=filters):
        with suppress(OSError):  # it may have ended in between
            api.kill(entry["Id"], signal=name)


if __name__ == "__main__":
    sys.exit(main())
