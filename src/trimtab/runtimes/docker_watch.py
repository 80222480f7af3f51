"""I/O. What must be waited for at a Docker daemon: the end of a container, and its next line of output.

The SDK blocks, so each wait is a thread of its own. They are daemon threads: a supervisor that leaves
does not wait for its engines, and a cancelled wait leaves the container alone.
"""

from __future__ import annotations

import asyncio
import logging
import os
import threading
import time
from collections.abc import Iterator
from concurrent.futures import Future
from pathlib import Path
from typing import Any

from urllib3.exceptions import HTTPError

from trimtab.core.state import ExitStatus
from trimtab.runtimes.docker_connection import DockerConnection, knock
from trimtab.runtimes.docker_errors import is_missing
from trimtab.runtimes.docker_labels import decode_exit_status, is_live

__all__ = ["ContainerWatch"]

_LOG = logging.getLogger(__name__)
# How long a watch stands still when the daemon does not answer, as while it is restarted.
_RETRY_S = 1.0
_LAST_LINES_S = 0.4


class ContainerWatch:
    """Waits for one container's end, for as many as ask; ``copy_log`` also copies what it prints."""

    def __init__(self, connection: DockerConnection, container_id: str) -> None:
        self._address = connection.address
        self._api = connection.api
        self._id = container_id
        self._ended: Future[ExitStatus] = Future()
        self._copy: threading.Thread | None = None
        threading.Thread(target=self._watch_exit, name="trimtab-container-exit", daemon=True).start()

    async def wait(self) -> ExitStatus:
        """How it ended, once it has; unknown when it was removed before anybody could ask."""
        return await asyncio.shield(asyncio.wrap_future(self._ended))

    def copy_log(self, log_path: Path, *, since_s: int) -> None:
        """Append to the file what the container prints from that second on; one process at a time should."""
        self._copy = threading.Thread(
            target=self._copy_output, args=(log_path, since_s), name="trimtab-container-log", daemon=True
        )
        self._copy.start()

    def join_copy(self) -> None:
        """Wait until the last lines of an ended container are in the file; blocks, bounded.

        Docker ends the stream with the container. Podman 4 looks for lines every 250 ms and may not
        end it at all.
        """
        if self._copy is not None:
            self._copy.join(_LAST_LINES_S)

    def _watch_exit(self) -> None:
        while True:
            try:
                knock(self._address)
                self._api.wait(self._id, timeout=None)
                inspection = self._api.inspect_container(self._id)
            except OSError as error:
                if is_missing(error):
                    self._ended.set_result(ExitStatus(code=None))
                    return
                time.sleep(_RETRY_S)
                continue
            if not is_live(inspection):
                self._ended.set_result(decode_exit_status(inspection))
                return

    def _copy_output(self, log_path: Path, since_s: int) -> None:
        """Append the output until it ends; a daemon that goes away costs the lines of that time at most."""
        while True:
            try:
                knock(self._address)
                for piece in _follow_output(self._api, self._id, since_s=since_s):
                    _append(log_path, piece)
            except OSError as error:
                if is_missing(error):
                    return
                _LOG.warning("log of container %s: %s", self._id[:12], error)
            if self._ended.done() or not self._is_running():
                return
            since_s = int(time.time())
            time.sleep(_RETRY_S)

    def _is_running(self) -> bool:
        try:
            knock(self._address)
            return is_live(self._api.inspect_container(self._id))
        except OSError as error:
            return not is_missing(error)


def _follow_output(api: Any, container_id: str, *, since_s: int) -> Iterator[bytes]:
    """What the container prints from ``since_s`` on, until it ends or is removed.

    As the SDK's ``logs(stream=True)``, which never closes its connection.
    """
    url = api._url("/containers/{0}/logs", container_id)  # noqa: SLF001
    wish = {"stdout": 1, "stderr": 1, "follow": 1, "since": since_s}
    response = api._get(url, params=wish, stream=True)  # noqa: SLF001
    try:
        api._raise_for_status(response)  # noqa: SLF001
        yield from api._multiplexed_response_stream_helper(response)  # noqa: SLF001
    except HTTPError as error:  # cut off in the middle; the SDK passes it on raw
        raise ConnectionError(str(error)) from error
    finally:
        response.close()


def _append(path: Path, piece: bytes) -> None:
    """Open for each piece: the file may be rotated under us, and engines write a few lines a second."""
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    try:
        os.write(descriptor, piece)
    finally:
        os.close(descriptor)
