"""A Hugging Face hub on 127.0.0.1: listing and files over real HTTP, with faults on order."""

from __future__ import annotations

import hashlib
import json
import threading
import time
from collections import defaultdict
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import parse_qs, unquote, urlsplit

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
    # Zeros after what a file holds, which exist only on the wire: large files without large memory.
    padding: dict[str, int] = field(default_factory=dict)
    bytes_sent: dict[str, int] = field(default_factory=lambda: defaultdict(int))
    revisions: list[str] = field(default_factory=list)
    cookies: list[str | None] = field(default_factory=list)
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
        blob = hashlib.sha1(b"blob %d\0" % len(data) + data, usedforsecurity=False).hexdigest()
        entry: dict[str, object] = {"rfilename": name, "blobId": blob}
        size = self.lying_sizes.get(name, len(data) + self.padding.get(name, 0))
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
        self.hub.cookies.append(self.headers.get("Cookie"))
        path = unquote(urlsplit(self.path).path)
        if path.startswith("/api/models/"):
            repo, _, revision = path.removeprefix("/api/models/").partition("/revision/")
            self.hub.revisions.append(revision)
            self.answer_listing(repo)
            return
        if path.startswith("/api/v1/models/"):
            self.answer_modelscope(path.removeprefix("/api/v1/models/"))
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

    def answer_modelscope(self, path: str) -> None:
        """ModelScope's list of files, and a file by its path."""
        repo, _, rest = path.partition("/repo")
        query = parse_qs(urlsplit(self.path).query)
        if rest != "/files":
            self.answer_file(repo, query["FilePath"][0])
            return
        self.hub.listings += 1
        fault = self.hub.listing_faults.pop(0) if self.hub.listing_faults else Fault()
        if self.meets(fault):
            return
        if repo not in self.hub.repos:
            self.send_whole(404, b'{"Code":10010205001,"Message":"no such model"}', {})
            return
        files = [
            {"Type": "blob", "Path": name, "Name": name.rsplit("/", 1)[-1], "Size": len(data),
             "Sha256": hashlib.sha256(data).hexdigest(), "Revision": self.hub.commit, "CommittedDate": 1}
            for name, data in self.hub.repos[repo].items()
        ]  # fmt: skip
        folder = {"Type": "tree", "Path": "figures", "Size": 0}
        answer = {"Code": 200, "Success": True, "Data": {"Files": [folder, *files]}}
        self.send_whole(200, fault.body or json.dumps(answer).encode(), {})

    def answer_file(self, repo: str, name: str) -> None:
        self.hub.asked[name].append(self.headers.get("Range"))
        fault = self.hub.file_faults.pop(0) if self.hub.file_faults else Fault()
        if self.meets(fault):
            return
        data = self.hub.repos.get(repo, {}).get(name) if fault.body is None else fault.body
        if data is None:
            self.send_whole(404, b"", {"X-Error-Code": "EntryNotFound"})
            return
        self.send_data(name, data, fault)

    def meets(self, fault: Fault) -> bool:
        self.hub.stopping.wait(fault.hang_s)
        if fault.hang_s:
            self.close_connection = True
            return True
        if fault.status is not None:
            self.send_whole(fault.status, fault.body or b"", fault.headers)
            return True
        return False

    def send_data(self, name: str, data: bytes, fault: Fault) -> None:
        total = len(data) + self.hub.padding.get(name, 0)
        start, last = self.asked_range(total, fault)
        if start >= total and start:
            self.send_whole(416, b"", {"Content-Range": f"bytes */{total}"})
            return
        is_part = bool(self.headers.get("Range")) and not fault.ignores_range
        self.send_response(206 if is_part else 200)
        self.send_header("Content-Length", str(last + 1 - start))
        if is_part:
            self.send_header("Content-Range", f"bytes {start}-{last}/{total}")
        self.end_headers()
        end = last + 1 if fault.cut_after is None else min(last + 1, start + fault.cut_after)
        self.close_connection = fault.cut_after is not None
        for at in range(start, end, 65536):
            block = data[at : min(end, at + 65536)]
            block += bytes(min(end, at + 65536) - at - len(block))
            self.wfile.write(block)
            self.hub.bytes_sent[name] += len(block)

    def asked_range(self, total: int, fault: Fault) -> tuple[int, int]:
        """First and last byte to send."""
        asked = self.headers.get("Range")
        if not asked or fault.ignores_range:
            return 0, total - 1
        first, _, last = asked.removeprefix("bytes=").partition("-")
        return int(first), min(total - 1, int(last)) if last else total - 1

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
