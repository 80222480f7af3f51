"""A Hugging Face hub on 127.0.0.1: listing and files over real HTTP, with faults on order."""

from __future__ import annotations

import hashlib
import json
import threading
import time
from collections import defaultdict
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import unquote, urlsplit

COMMIT = "c0ffee" * 6 + "c0ff"


@dataclass
class Fault:
    """What one request meets instead of an answer.

    ``status`` with ``headers`` answers so; ``cut_after`` closes the connection after so many bytes
    of the body; ``hang_s`` says nothing for so long; ``body`` replaces what the file holds.
    """

    status: int | None = None
    headers: dict[str, str] = field(default_factory=dict)
    cut_after: int | None = None
    hang_s: float = 0
    body: bytes | None = None
    ignores_range: bool = False


@dataclass
class FakeHub:
    """Repos by id, each a mapping of file names to bytes; faults are used up in order, per path."""

    repos: dict[str, dict[str, bytes]] = field(default_factory=dict)
    listing_faults: list[Fault] = field(default_factory=list)
    file_faults: list[Fault] = field(default_factory=list)
    lying_sizes: dict[str, int] = field(default_factory=dict)
    lying_digests: dict[str, str] = field(default_factory=dict)
    says_digests: bool = True
    says_sizes: bool = True
    commit: str = COMMIT
    # Ranges asked for, per file name; None for a whole file.
    asked: dict[str, list[str | None]] = field(default_factory=lambda: defaultdict(list))
    # Paths that no download needs.
    strays: list[str] = field(default_factory=list)
    tokens: list[str | None] = field(default_factory=list)
    listings: int = 0
    url: str = ""
    stopping: threading.Event = field(default_factory=threading.Event)

    def start(self) -> None:
        self.server = QuietServer(("127.0.0.1", 0), type("Handler", (HubHandler,), {"hub": self}))
        self.server.daemon_threads = True
        self.url = f"http://127.0.0.1:{self.server.server_address[1]}"
        self.thread = threading.Thread(target=self.server.serve_forever, args=(0.02,), daemon=True)
        self.thread.start()

    def stop(self) -> None:
        self.stopping.set()
        self.server.shutdown()
        self.server.server_close()
        self.thread.join()

    def listing_of(self, repo: str) -> dict[str, object]:
        return {
            "id": repo,
            "sha": self.commit,
            "siblings": [self.sibling(name, data) for name, data in self.repos[repo].items()],
        }

    def sibling(self, name: str, data: bytes) -> dict[str, object]:
        entry: dict[str, object] = {"rfilename": name, "blobId": "b" * 40}
        size = self.lying_sizes.get(name, len(data))
        if self.says_sizes:
            entry["size"] = size
        if self.says_digests:
            digest = self.lying_digests.get(name, hashlib.sha256(data).hexdigest())
            entry["lfs"] = {"sha256": digest, "size": size, "pointerSize": 130}
        return entry


class QuietServer(ThreadingHTTPServer):
    def handle_error(self, request: object, client_address: object) -> None:
        """A client that leaves in the middle is what some tests are about."""


class HubHandler(BaseHTTPRequestHandler):
    hub: FakeHub
    protocol_version = "HTTP/1.1"

    def do_GET(self) -> None:
        self.hub.tokens.append(self.headers.get("Authorization"))
        path = unquote(urlsplit(self.path).path)
        if path.startswith("/api/models/"):
            self.answer_listing(path.removeprefix("/api/models/"))
            return
        repo, found, rest = path.lstrip("/").partition("/resolve/")
        if not found:
            self.hub.strays.append(path)
            self.send_whole(404, b"", {})
            return
        self.answer_file(repo, rest.partition("/")[2])

    def answer_listing(self, repo: str) -> None:
        self.hub.listings += 1
        fault = self.hub.listing_faults.pop(0) if self.hub.listing_faults else Fault()
        if self.meets(fault):
            return
        if repo not in self.hub.repos:
            self.send_whole(401, b'{"error":"Invalid username or password."}', {})
            return
        self.send_whole(200, fault.body or json.dumps(self.hub.listing_of(repo)).encode(), {})

    def answer_file(self, repo: str, name: str) -> None:
        self.hub.asked[name].append(self.headers.get("Range"))
        fault = self.hub.file_faults.pop(0) if self.hub.file_faults else Fault()
        if self.meets(fault):
            return
        data = self.hub.repos.get(repo, {}).get(name) if fault.body is None else fault.body
        if data is None:
            self.send_whole(404, b"", {"X-Error-Code": "EntryNotFound"})
            return
        self.send_data(data, fault)

    def meets(self, fault: Fault) -> bool:
        self.hub.stopping.wait(fault.hang_s)
        if fault.hang_s:
            self.close_connection = True
            return True
        if fault.status is not None:
            self.send_whole(fault.status, fault.body or b"", fault.headers)
            return True
        return False

    def send_data(self, data: bytes, fault: Fault) -> None:
        asked = self.headers.get("Range")
        start = int(asked.removeprefix("bytes=").rstrip("-")) if asked and not fault.ignores_range else 0
        if start >= len(data) and start:
            self.send_whole(416, b"", {"Content-Range": f"bytes */{len(data)}"})
            return
        self.send_response(206 if start else 200)
        self.send_header("Content-Length", str(len(data) - start))
        if start:
            self.send_header("Content-Range", f"bytes {start}-{len(data) - 1}/{len(data)}")
        self.end_headers()
        end = len(data) if fault.cut_after is None else start + fault.cut_after
        self.wfile.write(data[start:end])
        self.close_connection = fault.cut_after is not None

    def send_whole(self, status: int, body: bytes, headers: dict[str, str]) -> None:
        self.send_response(status)
        for name, value in headers.items():
            self.send_header(name, value)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002
        """Quiet."""


def wait_for(condition, *, timeout_s: float = 10.0) -> None:
    """Return once ``condition()`` holds; AssertionError after ``timeout_s``."""
    deadline = time.monotonic() + timeout_s
    while not condition():
        assert time.monotonic() < deadline, "never came"
        time.sleep(0.01)
