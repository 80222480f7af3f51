"""A Docker daemon's socket that answers what is asked of it with what a test says, or not at all."""

from __future__ import annotations

import json
import shutil
import socketserver
import tempfile
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler
from pathlib import Path
from typing import Any


class _Socket(socketserver.ThreadingUnixStreamServer):
    daemon_threads = True

    def __init__(self, path: str, answers: dict[str, Any] | None) -> None:
        super().__init__(path, _Answers)
        self.answers = answers
        self.stopping = threading.Event()

    def get_request(self):
        request, _ = super().get_request()
        return request, ("unix", 0)


class _Answers(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002
        """Silence."""

    def do_GET(self) -> None:
        if self.server.answers is None:
            self.server.stopping.wait()
            self.close_connection = True
            return
        last = self.path.partition("?")[0].rpartition("/")[2]
        body = json.dumps(self.server.answers[last]).encode()
        self.send_response(200)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)


@contextmanager
def docker_daemon(
    info: dict[str, Any] | None, *, name: str = "Engine", containers: Sequence[dict[str, Any]] = ()
) -> Iterator[str]:
    """DOCKER_HOST of a daemon with this /info; None: one that never answers."""
    version = {"Version": "27.3.1", "ApiVersion": "1.47", "Components": [{"Name": name}]}
    answers = None if info is None else {"info": info, "version": version, "json": list(containers)}
    # A Unix socket's path may have 107 characters; a test's own folder is often deeper.
    folder = Path(tempfile.mkdtemp(prefix="tt"))
    server = _Socket(str(folder / "s"), answers)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    try:
        yield f"unix://{folder}/s"
    finally:
        server.stopping.set()
        server.shutdown()
        thread.join()
        server.server_close()
        shutil.rmtree(folder)
