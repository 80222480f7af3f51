"""Measure what a llama.cpp engine really holds in RAM, over a matrix of models and settings.

    python benchmarks/llama_cpp_memory/synthetic_models.py SMOLLM2.gguf FOLDER
    python benchmarks/llama_cpp_memory/measure.py SMOLLM2.gguf FOLDER OUT.json
    python benchmarks/llama_cpp_memory/compare.py OUT.json

Each row is planned by trimtab and started with the planned command. Resident memory is read from
/proc/PID/status after loading, after one token on every slot at once, and after a prompt that nearly
fills one slot. The buffer sizes that the engine logs are kept beside it. Everything stays on 127.0.0.1
and one engine runs at a time.
"""

from __future__ import annotations

import dataclasses
import json
import os
import platform
import re
import socket
import subprocess
import sys
import tempfile
import time
import urllib.request
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import xllamacpp

from trimtab.core.hardware import Host
from trimtab.core.stack import ModelRequest
from trimtab.planner.llama_cpp import plan_llama_cpp
from trimtab.probes.gguf_header import read_gguf_header
from trimtab.probes.host import probe_host

SMOL = "smollm2"
# Old prompts are measured in rows of their own: they come on top of what is resident at start.
NO_CACHE = {"cache_ram_mib": 0}
ROWS: list[tuple[str, dict]] = [
    (SMOL, {}),
    (SMOL, {"context": 512, "concurrency": 1}),
    (SMOL, {"context": 1000, "concurrency": 3}),
    (SMOL, {"context": 2048, "concurrency": 1}),
    (SMOL, {"context": 2048, "concurrency": 2}),
    (SMOL, {"context": 4096, "concurrency": 4}),
    (SMOL, {"context": 8192, "concurrency": 1}),
    (SMOL, {"context": 8192, "concurrency": 8}),
    (SMOL, {"context": 1024, "concurrency": 32}),
    (SMOL, {"context": 4096, "concurrency": 2, "n_ubatch": 64}),
    (SMOL, {"context": 4096, "concurrency": 2, "n_ubatch": 128}),
    (SMOL, {"context": 4096, "concurrency": 2, "n_ubatch": 256}),
    (SMOL, {"context": 4096, "concurrency": 2, "n_ubatch": 1024}),
    (SMOL, {"context": 4096, "concurrency": 2, "n_ubatch": 2048}),
    (SMOL, {"context": 4096, "concurrency": 2, "n_batch": 2048, "n_ubatch": 512}),
    (SMOL, {"context": 4096, "concurrency": 2, "cache_type_k": "q8_0", "cache_type_v": "q8_0"}),
    (SMOL, {"context": 4096, "concurrency": 2, "cache_type_k": "q4_0", "cache_type_v": "q4_0"}),
    (SMOL, {"context": 4096, "concurrency": 2, "cache_type_k": "f32", "cache_type_v": "f32"}),
    (SMOL, {"context": 4096, "concurrency": 2, "cache_type_k": "q8_0"}),
    (SMOL, {"context": 2048, "concurrency": 2, "flash_attn": "off"}),
    (SMOL, {"context": 4096, "concurrency": 1, "flash_attn": "off"}),
    (SMOL, {"context": 2048, "concurrency": 4, "kv_unified": True}),
    (SMOL, {"context": 4096, "concurrency": 2, "load_mode": "none"}),
    (SMOL, {"context": 4096, "concurrency": 2, "n_threads": 1, "n_threads_batch": 1}),
    *(
        (name, {"context": 2048, "concurrency": 2})
        for name in (
            "q4_0 q8_0 q4_k q6_k q2_k q3_k q5_k q5_0 iq4_nl mxfp4 f16 bf16 f32 wide-ff narrow-ff mha big-head"
            " untied vocab-150k vocab-250k gemma2 gemma3 moe"
        ).split()
    ),
    ("q4_0", {"context": 2048, "concurrency": 2, "load_mode": "mmap"}),
    ("q4_0", {"context": 2048, "concurrency": 2, "repack": False}),
    ("gemma3", {"context": 4096, "concurrency": 4}),
    ("gemma3", {"context": 4096, "concurrency": 4, "kv_unified": True}),
    ("gemma3", {"context": 4096, "concurrency": 4, "swa_full": True}),
    ("gemma3", {"context": 4096, "concurrency": 4, "n_ubatch": 128}),
    ("moe", {"context": 8192, "concurrency": 4}),
]
BUFFER = re.compile(
    r"(CPU_Mapped model|CPU_REPACK model|CPU model|output|KV|compute) +buffer size += +([\d.]+) MiB"
)


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


def plan_row(path: Path, row: dict, host: Host):
    pins = {name: value for name, value in row.items() if name not in ("context", "concurrency")}
    request = ModelRequest(
        name="m",
        checkpoint=path.name,
        context=row.get("context"),
        concurrency=row.get("concurrency"),
        engine_args=tuple((NO_CACHE | pins).items()),
    )
    checkpoint = read_gguf_header(path)
    outcome = plan_llama_cpp(
        request, checkpoint, host, ram_bytes=None, python=sys.executable, engine_version=xllamacpp.__version__
    )
    return request, checkpoint, outcome.model


def measure(path: Path, row: dict, host: Host) -> dict:
    request, checkpoint, plan = plan_row(path, row, host)
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    argv = [part.replace("{port}", str(port)) for part in plan.argv] + ["--verbosity", "5"]
    slots = int(plan.replicas[0].max_concurrency)
    long_tokens = min(plan.max_model_len - 64, 4000 if path.stat().st_size < 200e6 else 1500)
    with tempfile.TemporaryFile("w+") as log:
        process = subprocess.Popen(argv, stderr=log, env=os.environ | dict(plan.env))
        try:
            wait_ready(port, process)
            steps = {"loaded": resident(process.pid)}
            with ThreadPoolExecutor(slots) as pool:
                list(
                    pool.map(
                        lambda n: post(port, "/completion", {"prompt": [n + 100] * 8, "n_predict": 8}),
                        range(slots),
                    )
                )
            steps["every_slot"] = resident(process.pid)
            post(port, "/completion", {"prompt": [500 + n % 999 for n in range(long_tokens)], "n_predict": 4})
            steps["long_prompt"] = resident(process.pid)
        finally:
            process.terminate()
            process.wait(timeout=30)
        log.seek(0)
        buffers = [(kind, float(mib)) for kind, mib in BUFFER.findall(log.read())]
    facts = dataclasses.asdict(checkpoint) | {"path": path.name}
    asked = dataclasses.asdict(request)
    return {
        "request": asked,
        "checkpoint": facts,
        "buffers_mib": buffers,
        "long_tokens": long_tokens,
        **steps,
    }


def main() -> None:
    smol, folder, out = Path(sys.argv[1]), Path(sys.argv[2]), Path(sys.argv[3])
    host = probe_host()
    rows = []
    for name, row in ROWS:
        rows.append(measure(smol if name == SMOL else folder / f"{name}.gguf", row, host))
        print(name, row, rows[-1]["long_prompt"], flush=True)
    about = {
        "date": time.strftime("%Y-%m-%d"),
        "system": platform.platform(),
        "python": platform.python_version(),
        "xllamacpp": xllamacpp.__version__,
        "host": dataclasses.asdict(host),
    }
    lines = ",\n  ".join(json.dumps(row) for row in rows)
    out.write_text(f'{{"about": {json.dumps(about)},\n "rows": [\n  {lines}\n ]}}\n')


if __name__ == "__main__":
    main()
