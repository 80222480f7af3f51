"""A Docker daemon's socket that answers /version and /info with what a test says, or not at all."""

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
    daemon_threads = True

    def __init__(self, path: str, info: dict[str, Any] | None, *, components: list[dict[str, str]]) -> None:
        super().__init__(path, _Answers)
        self.info = info
        self.components = components
        self.stopping = threading.Event()

    def get_request(self):
        request, _ = super().get_request()
        return request, ("unix", 0)


class _Answers(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002
        """Silence."""

    def do_GET(self) -> None:
        if self.server.info is None:
            self.server.stopping.wait()
            self.close_connection = True
            return
        is_info = self.path.endswith("/info")
        version = {"Version": "27.3.1", "ApiVersion": "1.47", "Components": self.server.components}
        body = json.dumps(self.server.info if is_info else version).encode()
        self.send_response(200)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)


@contextmanager
def docker_daemon(info: dict[str, Any] | None, *, name: str = "Engine") -> Iterator[str]:
    """DOCKER_HOST of a daemon with this /info; None: one that never answers."""
    # A Unix socket's path may have 107 characters; a test's own folder is often deeper.
    folder = Path(tempfile.mkdtemp(prefix="tt"))
    server = _Socket(str(folder / "s"), info, components=[{"Name": name}])
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
