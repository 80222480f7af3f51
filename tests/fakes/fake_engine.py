"""A stand-in engine as a program: speaks the OpenAI protocol, and fails in the ways that are asked of it.

Standard library only, so that it starts fast. Every knob is a flag:

--port N             where it listens
--host H             on which address, 127.0.0.1 unless told
--load-s S           answers 503 for this long, as an engine that loads its model does
--late-listen-s S    does not even listen for this long
--exit-code N        leaves with this code ...
--exit-after-s S     ... this long after its start (default 0: at once)
--say TEXT           a line it prints first
--ignore-sigterm     only SIGKILL ends it
--children N         forks N children that sleep for an hour, in its own process group
--setsid-child       one more child, in a session of its own
--mute               accepts connections and never answers
--unhealthy-file P   answers 503 on /health while this file exists
--hang-file P        never answers a generation while this file exists; /health stays 200
--refuse-generation  answers 500 to every generation, while /health stays 200
--no-chat            has no chat template: 400 on chat, completions work
--empty-answer       answers 200 with zero tokens
--embeddings         answers /v1/embeddings instead of generating
--ballast-mib N      resident memory it holds on top

SIGUSR1 lets it end with exit code 3.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import sys
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

STARTED_S = time.monotonic()


def main() -> int:
    knobs = parse_knobs()
    signal.signal(signal.SIGTERM, signal.SIG_IGN if knobs.ignore_sigterm else lambda *_: os._exit(0))
    signal.signal(signal.SIGUSR1, lambda *_: os._exit(3))
    print(f"fake engine {os.getpid()} starts", flush=True)
    for line in knobs.say:
        print(line, flush=True)
    for _ in range(knobs.children):
        fork_sleeper(own_session=False)
    if knobs.setsid_child:
        fork_sleeper(own_session=True)
    ballast = bytearray(b"\1" * (knobs.ballast_mib * 1024 * 1024))
    if knobs.exit_code is not None:
        threading.Thread(target=leave, args=(knobs.exit_after_s, knobs.exit_code), daemon=True).start()
    time.sleep(knobs.late_listen_s)
    handler = type("Handler", (FakeEngineHandler,), {"knobs": knobs})
    server = ThreadingHTTPServer((knobs.host, knobs.port), handler)
    server.daemon_threads = True
    print(f"listening on {knobs.port}", flush=True)
    server.serve_forever()
    return len(ballast) * 0


def parse_knobs() -> argparse.Namespace:
    parser = argparse.ArgumentParser()
    parser.add_argument("--port", type=int, required=True)
    parser.add_argument("--host", default="127.0.0.1")
    parser.add_argument("--load-s", type=float, default=0.0)
    parser.add_argument("--late-listen-s", type=float, default=0.0)
    parser.add_argument("--exit-code", type=int)
    parser.add_argument("--exit-after-s", type=float, default=0.0)
    parser.add_argument("--say", action="append", default=[])
    parser.add_argument("--ignore-sigterm", action="store_true")
    parser.add_argument("--children", type=int, default=0)
    parser.add_argument("--setsid-child", action="store_true")
    parser.add_argument("--mute", action="store_true")
    parser.add_argument("--unhealthy-file", type=Path)
    parser.add_argument("--hang-file", type=Path)
    parser.add_argument("--refuse-generation", action="store_true")
    parser.add_argument("--no-chat", action="store_true")
    parser.add_argument("--empty-answer", action="store_true")
    parser.add_argument("--embeddings", action="store_true")
    parser.add_argument("--ballast-mib", type=int, default=0)
    return parser.parse_args()


def leave(after_s: float, code: int) -> None:
    time.sleep(after_s)
    sys.stdout.flush()
    os._exit(code)


def fork_sleeper(*, own_session: bool) -> None:
    if os.fork() != 0:
        return
    if own_session:
        os.setsid()
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    time.sleep(3600)
    os._exit(0)


class FakeEngineHandler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    knobs: argparse.Namespace

    def do_GET(self) -> None:
        if self.knobs.mute:
            time.sleep(3600)
        unhealthy = self.knobs.unhealthy_file is not None and self.knobs.unhealthy_file.exists()
        if self.path == "/health":
            self.answer(503 if unhealthy or self.is_loading() else 200, {"status": "ok"})
        elif self.path == "/v1/models":
            self.answer(200, {"object": "list", "data": [{"id": "fake", "object": "model"}]})
        else:
            self.answer(404, {"error": {"message": "no such path"}})

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers.get("Content-Length", "0"))) or b"{}")
        if self.knobs.mute:
            time.sleep(3600)
        if self.knobs.hang_file is not None and self.knobs.hang_file.exists():
            time.sleep(3600)
        if self.is_loading():
            self.answer(503, {"error": {"message": "Loading model", "type": "unavailable_error"}})
        elif self.knobs.refuse_generation:
            self.answer(500, {"error": {"message": "the engine core is dead"}})
        elif self.knobs.no_chat and self.path == "/v1/chat/completions":
            self.answer(400, {"error": {"message": "no chat template"}})
        elif self.path == "/v1/embeddings" and self.knobs.embeddings:
            self.answer(200, {"object": "list", "data": [{"index": 0, "embedding": [0.5, 0.25]}]})
        elif self.path == "/v1/chat/completions" and not self.knobs.embeddings:
            message = {"role": "assistant", "content": "Hello"}
            self.answer(200, completion(body, {"message": message}, 0 if self.knobs.empty_answer else 1))
        elif self.path == "/v1/completions" and not self.knobs.embeddings:
            self.answer(200, completion(body, {"text": "Hello"}))
        else:
            self.answer(404, {"error": {"message": "no such path"}})

    def is_loading(self) -> bool:
        return time.monotonic() - STARTED_S < self.knobs.load_s

    def answer(self, status: int, document: dict[str, object]) -> None:
        body = json.dumps(document).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002 - the base class names it so
        pass


def completion(body: dict[str, object], choice: dict[str, object], num_tokens: int = 1) -> dict[str, object]:
    return {
        "id": "fake-1",
        "model": body.get("model", ""),
        "choices": [{"index": 0, "finish_reason": "length", **choice}],
        "usage": {"prompt_tokens": 1, "completion_tokens": num_tokens, "total_tokens": 1 + num_tokens},
    }


if __name__ == "__main__":
    sys.exit(main())
