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
--card-file P        it can sleep (/sleep, /wake_up, /is_sleeping), and what it holds of a card stands in this
                     file: its pid and MiB; 20,000 awake and 1,000 asleep
--sleep-fault P      how sleeping goes wrong, where this file names it: sleep-500, sleep-hang,
                     keeps-memory, wake-500, wake-hang, wake-slow (0.3 s), awake-silent, mute
                     (no word on whether it sleeps); a generation asked of it asleep is written to its log

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
    handler = type("Handler", (FakeEngineHandler,), {"knobs": knobs, "bed": Bed(knobs)})
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
    parser.add_argument("--card-file", type=Path)
    parser.add_argument("--sleep-fault", type=Path)
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


class Bed:
    """Whether the engine sleeps, and what it holds of a card."""

    def __init__(self, knobs: argparse.Namespace) -> None:
        self.card_file, self.fault_file = knobs.card_file, knobs.sleep_fault
        self.is_asleep = False
        self.hold(20_000)

    def hold(self, mib: int) -> None:
        if self.card_file is not None:
            made = self.card_file.with_name(f".{os.getpid()}")
            made.write_text(f"{os.getpid()} {mib}")
            made.replace(self.card_file)

    def fault(self) -> str:
        has_fault = self.fault_file is not None and self.fault_file.exists()
        return self.fault_file.read_text() if has_fault else ""

    def check_awake(self, path: str) -> None:
        if self.is_asleep:
            print("ASKED ASLEEP", path, flush=True)
        if self.is_asleep or self.fault() == "awake-silent":
            time.sleep(3600)

    def sleep(self) -> int:
        fault = self.fault()
        if fault == "sleep-hang":
            time.sleep(3600)
        if fault == "sleep-500":
            return 500
        self.is_asleep = True
        self.hold(20_000 if fault == "keeps-memory" else 1_000)
        print("sleeps", flush=True)
        return 200

    def wake(self) -> int:
        fault = self.fault()
        if fault == "wake-hang":
            time.sleep(3600)
        if fault == "wake-500":
            return 500
        time.sleep(0.3 if fault == "wake-slow" else 0.0)
        self.is_asleep = False
        self.hold(20_000)
        print("wakes", flush=True)
        return 200


class FakeEngineHandler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    knobs: argparse.Namespace
    bed: Bed

    def do_GET(self) -> None:
        if self.knobs.mute:
            time.sleep(3600)
        unhealthy = self.knobs.unhealthy_file is not None and self.knobs.unhealthy_file.exists()
        if self.path == "/health":
            self.answer(503 if unhealthy or self.is_loading() else 200, {"status": "ok"})
        elif self.path == "/v1/models":
            self.answer(200, {"object": "list", "data": [{"id": "fake", "object": "model"}]})
        elif self.path == "/is_sleeping" and self.knobs.card_file is not None:
            if self.bed.fault() == "mute":
                time.sleep(3600)
            self.answer(200, {"is_sleeping": self.bed.is_asleep})
        else:
            self.answer(404, {"error": {"message": "no such path"}})

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers.get("Content-Length", "0"))) or b"{}")
        if self.knobs.mute:
            time.sleep(3600)
        if self.knobs.hang_file is not None and self.knobs.hang_file.exists():
            time.sleep(3600)
        if self.knobs.card_file is not None and self.path in {"/sleep?level=1", "/wake_up"}:
            self.answer(self.bed.wake() if self.path == "/wake_up" else self.bed.sleep(), {})
        else:
            self.bed.check_awake(self.path)
            self.generate(body)

    def generate(self, body: dict[str, object]) -> None:
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
