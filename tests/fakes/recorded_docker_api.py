"""A Docker daemon's socket that creates nothing and keeps what it was asked to create."""

from __future__ import annotations

import json
import shutil
import socketserver
import tempfile
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler
from pathlib import Path
from typing import Any


class _Socket(socketserver.ThreadingUnixStreamServer):
    """``created`` holds (path of the request, body) of every creation, in order."""

    daemon_threads = True

    def __init__(self, path: str) -> None:
        super().__init__(path, _Answers)
        self.created: list[tuple[str, dict[str, Any]]] = []

    def get_request(self):
        request, _ = super().get_request()
        return request, ("unix", 0)


class _Answers(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002
        """Silence."""

    def _answer(self, status: int, body: bytes = b"{}") -> None:
        self.send_response(status)
        self.send_header("Api-Version", "1.44")
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)

    def do_HEAD(self) -> None:
        self._answer(200)

    def do_GET(self) -> None:
        self._answer(200)

    def do_DELETE(self) -> None:
        self._answer(404, b'{"message": "no such container"}')

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        if "/containers/create" in self.path:
            self.server.created.append((self.path, json.loads(body)))
            self._answer(201, b'{"Id": "c0ffee", "Warnings": []}')
        else:
            self._answer(204, b"")


@contextmanager
def recorded_docker_api() -> Iterator[tuple[str, list[tuple[str, dict[str, Any]]]]]:
    """DOCKER_HOST and the growing list of what was created."""
    # A Unix socket's path may have 107 characters; a test's own folder is often deeper.
    folder = Path(tempfile.mkdtemp(prefix="tt"))
    server = _Socket(str(folder / "s"))
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    try:
        yield f"unix://{folder}/s", server.created
    finally:
        server.shutdown()
        thread.join()
        server.server_close()
        shutil.rmtree(folder)
