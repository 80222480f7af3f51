"""A stand-in for `vllm serve` on a card: writes a recorded start's log, and answers in stated times.

FAKE_VLLM_LOG names the file with the log, FAKE_VLLM_MS is "TTFT per 1,024 tokens,TPOT" in milliseconds,
FAKE_VLLM_DIE "N": it ends by itself at the Nth streamed request. Standard library only.
"""

from __future__ import annotations

import json
import os
import sys
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

FIRST_MS, EACH_MS = (float(part) for part in os.environ["FAKE_VLLM_MS"].split(","))
DIES_AT = int(os.environ.get("FAKE_VLLM_DIE", "0"))
streams = iter(range(1, 1_000_000))
lock = threading.Lock()


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def do_GET(self) -> None:
        self.answer(200 if self.path == "/health" else 404, {})

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        if self.path != "/v1/completions" or not isinstance(body["prompt"], list):
            self.answer(500, {"error": {"message": ""}})
        elif body["stream"]:
            self.stream(body)
        else:
            usage = {"prompt_tokens": 1, "completion_tokens": 1}
            self.answer(200, {"choices": [{"index": 0, "text": ""}], "usage": usage})

    def stream(self, body: dict[str, object]) -> None:
        with lock:
            number = next(streams)
        if number == DIES_AT:
            os._exit(0)
        length, wanted = len(body["prompt"]), int(str(body["max_tokens"]))  # type: ignore[arg-type]
        self.send_response(200)
        self.send_header("Content-Type", "text/event-stream")
        self.send_header("Transfer-Encoding", "chunked")
        self.end_headers()
        time.sleep(FIRST_MS * length / 1024 / 1e3)
        for index in range(wanted):
            finish = "length" if index == wanted - 1 else None
            choice = {"index": 0, "text": "", "token_ids": [5], "finish_reason": finish}
            self.event({"choices": [choice]})
            time.sleep(EACH_MS / 1e3)
        self.event({"choices": [], "usage": {"prompt_tokens": length, "completion_tokens": wanted}})
        self.chunk(b"data: [DONE]\n\n")
        self.chunk(b"")

    def event(self, document: dict[str, object]) -> None:
        self.chunk(b"data: " + json.dumps(document).encode() + b"\n\n")

    def chunk(self, data: bytes) -> None:
        self.wfile.write(f"{len(data):x}\r\n".encode() + data + b"\r\n")
        self.wfile.flush()

    def answer(self, status: int, document: dict[str, object]) -> None:
        data = json.dumps(document).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002 - the base class names it so
        pass


def main() -> None:
    print(Path(os.environ["FAKE_VLLM_LOG"]).read_text(), flush=True)
    print("argv:", *sys.argv[1:], flush=True)
    print("sampler:", os.environ.get("VLLM_USE_FLASHINFER_SAMPLER", "unset"), flush=True)
    port = int(sys.argv[sys.argv.index("--port") + 1])
    server = ThreadingHTTPServer(("127.0.0.1", port), Handler)
    server.daemon_threads = True
    server.serve_forever()


if __name__ == "__main__":
    main()
