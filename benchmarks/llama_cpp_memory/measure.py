"""Measure what a llama.cpp engine really holds in RAM, over a matrix of settings.

    python benchmarks/llama_cpp_memory/measure.py MODEL.gguf OUT.json

Starts the engine host once per row, generates one token, then feeds a prompt that nearly fills one
slot, and records resident memory (RssAnon, RssFile of /proc/PID/status) after each step. Everything
stays on 127.0.0.1 and one engine runs at a time.
"""

from __future__ import annotations

import json
import platform
import socket
import subprocess
import sys
import time
import urllib.request
from pathlib import Path

import xllamacpp

BASE = {"ctx": 8192, "slots": 1, "batch": 2048, "ubatch": 512, "k": "f16", "v": "f16", "fa": "auto", "threads": 2}
ROWS = [
    BASE,
    BASE | {"ctx": 512},
    BASE | {"ctx": 2048},
    BASE | {"ctx": 4096, "slots": 4},
    BASE | {"ctx": 16384, "slots": 4},
    BASE | {"ctx": 32768, "slots": 4},
    BASE | {"ctx": 65536, "slots": 8},
    BASE | {"ctx": 32768, "slots": 32},
    BASE | {"ctx": 16384, "slots": 2, "ubatch": 256},
    BASE | {"ctx": 16384, "slots": 2, "ubatch": 128, "batch": 512},
    BASE | {"ctx": 16384, "slots": 2, "ubatch": 1024},
    BASE | {"ctx": 16384, "slots": 2, "ubatch": 2048},
    BASE | {"ctx": 16384, "slots": 2, "k": "q8_0", "v": "q8_0"},
    BASE | {"ctx": 16384, "slots": 2, "k": "q4_0", "v": "q4_0"},
    BASE | {"ctx": 16384, "slots": 2, "fa": "off"},
    BASE | {"ctx": 16384, "slots": 2, "fa": "on"},
    BASE | {"ctx": 8192, "fa": "off"},
    BASE | {"ctx": 16384, "slots": 2, "threads": 1},
]


def resident(pid: int) -> dict[str, int]:
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    fields = dict(line.split(":", 1) for line in lines if ":" in line)
    return {name: int(fields[name].split()[0]) * 1024 for name in ("VmRSS", "RssAnon", "RssFile")}


def post(port: int, path: str, body: dict) -> dict:
    request = urllib.request.Request(
        f"http://127.0.0.1:{port}{path}", json.dumps(body).encode(), {"Content-Type": "application/json"}
    )
    with urllib.request.urlopen(request, timeout=300) as answer:
        return json.load(answer)


def wait_ready(port: int, process: subprocess.Popen) -> None:
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline and process.poll() is None:
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{port}/health", timeout=5):
                return
        except OSError:
            time.sleep(0.05)
    raise SystemExit("the engine did not become ready")


def measure(model: str, row: dict) -> dict:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    flags = {
        "model": model, "alias": "m", "port": port, "ctx-size": row["ctx"], "parallel": row["slots"],
        "threads": row["threads"], "threads-batch": row["threads"], "threads-http": row["slots"] + 4,
        "batch-size": row["batch"], "ubatch-size": row["ubatch"], "cache-type-k": row["k"],
        "cache-type-v": row["v"], "flash-attn": row["fa"], "cache-ram": 0, "ctx-checkpoints": 0,
    }  # fmt: skip
    argv = [sys.executable, "-m", "trimtab.runtimes.llama_cpp_host"]
    argv += [part for name, value in flags.items() for part in (f"--{name}", str(value))]
    started_s = time.monotonic()
    process = subprocess.Popen(argv, stderr=subprocess.PIPE, text=True)
    try:
        wait_ready(port, process)
        result = {"row": row, "ready_s": round(time.monotonic() - started_s, 2), "loaded": resident(process.pid)}
        post(port, "/v1/completions", {"prompt": "Hello", "max_tokens": 1})
        result["one_token"] = resident(process.pid)
        words = min(row["ctx"] // row["slots"] - 64, 4000)
        answer = post(port, "/v1/completions", {"prompt": "word " * words, "max_tokens": 8})
        result["long_prompt_tokens"] = answer["usage"]["prompt_tokens"]
        result["long_prompt"] = resident(process.pid)
        return result
    finally:
        process.terminate()
        process.communicate(timeout=30)


def main() -> None:
    model, out = sys.argv[1], Path(sys.argv[2])
    rows = []
    for row in ROWS:
        rows.append(measure(model, row))
        print(json.dumps(rows[-1]), flush=True)
    host = {
        "date": time.strftime("%Y-%m-%d"),
        "system": platform.platform(),
        "python": platform.python_version(),
        "xllamacpp": xllamacpp.__version__,
        "cpu": next((line.split(":")[1].strip() for line in Path("/proc/cpuinfo").read_text().splitlines()
                     if line.startswith("model name")), ""),
    }  # fmt: skip
    document = {"host": host, "model": Path(model).name, "rows": rows}
    out.write_text(json.dumps(document, indent=1) + "\n")


if __name__ == "__main__":
    main()
