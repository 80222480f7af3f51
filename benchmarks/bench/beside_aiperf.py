"""How many requests and chunks per second one client drives: `trimtab bench` and AIPerf in turn, as a ratio.

    python -m venv OTHER && OTHER/bin/pip install aiperf==0.13.0
    python benchmarks/bench/beside_aiperf.py --aiperf OTHER/bin/aiperf --tokenizer FOLDER --out raw.json

The server only answers (tests/fakes/timed_server.py); 32 users; short answers of one chunk, then answers of 128. The two take
turns, so that a busy machine slows both; each figure is the tool's own count of what was completed over its own
duration. FOLDER holds any tokenizer (AIPerf needs one), such as what scripts/vllm_cpu_models.py made.
"""

# ruff: noqa: T201
from __future__ import annotations

import argparse
import json
import os
import platform
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

SERVER = Path(__file__).parents[2] / "tests" / "fakes" / "timed_server.py"
LOADS = {"short requests": 1, "128 chunks each": 128}
USERS = 32


def main() -> int:
    options = parse()
    rows: list[dict[str, Any]] = []
    with subprocess.Popen([sys.executable, SERVER], stdout=subprocess.PIPE, text=True) as server:
        assert server.stdout is not None
        url = f"http://127.0.0.1:{int(server.stdout.readline())}"
        try:
            for number in range(options.rounds):
                for load, chunks in LOADS.items():
                    count = options.requests if chunks == 1 else options.requests // 10
                    row: dict[str, Any] = {"round": number, "load": load, "load_average": os.getloadavg()[0]}
                    runs = {"trimtab": run_trimtab, "aiperf": run_aiperf}
                    for tool in list(runs) if number % 2 else list(runs)[::-1]:
                        row[tool] = round(runs[tool](options, url, chunks, count), 1)
                    row["ratio"] = round(row["trimtab"] / row["aiperf"], 2)
                    print(json.dumps(row), file=sys.stderr, flush=True)
                    rows.append(row)
                    write(options, rows)
        finally:
            server.send_signal(signal.SIGTERM)
    return 0


def write(options: argparse.Namespace, rows: list[dict[str, Any]]) -> None:
    version = subprocess.run([str(options.aiperf), "--version"], capture_output=True, text=True, check=True)
    document: dict[str, Any] = {
        "host": {
            "cores": os.cpu_count(),
            "system": platform.platform(),
            "python": platform.python_version(),
            "aiperf": version.stdout.split()[-1],
            "date": time.strftime("%Y-%m-%d"),
            "note": options.note,
        },
        "users": USERS,
        "unit": "completed requests per second",
        "median": {},
        "rounds": rows,
    }
    for load in LOADS:
        of_load = [row for row in rows if row["load"] == load]
        if of_load:
            names = ("trimtab", "aiperf", "ratio")
            found = {name: statistics.median(row[name] for row in of_load) for name in names}
            found |= {f"{name}_chunks_per_s": round(found[name] * LOADS[load]) for name in names[:2]}
            document["median"][load] = found
    options.out.write_text(json.dumps(document, indent=1) + "\n")


def run_trimtab(options: argparse.Namespace, url: str, chunks: int, count: int) -> float:
    argv = [
        *(sys.executable, "-m", "trimtab", "bench", url, "--model", "clock", "--input-tokens", "16"),
        *(
            "--output-tokens",
            str(chunks),
            "--concurrency",
            str(USERS),
            "--requests",
            str(count * 5),
            "--json",
        ),
    ]
    done = subprocess.run(argv, check=False, capture_output=True, text=True, timeout=300)
    return float(json.loads(done.stdout)["runs"][0]["request_throughput"])


def run_aiperf(options: argparse.Namespace, url: str, chunks: int, count: int) -> float:
    with tempfile.TemporaryDirectory() as folder:
        argv = [
            *(str(options.aiperf), "profile", "--model", "clock", "--url", url, "--endpoint-type", "chat"),
            *("--streaming", "--concurrency", str(USERS), "--request-count", str(count)),
            *("--tokenizer", str(options.tokenizer), "--synthetic-input-tokens-mean", "16"),
            *("--output-tokens-mean", str(chunks), "--output-tokens-stddev", "0"),
            *("--artifact-dir", folder, "--ui-type", "none"),
        ]
        done = subprocess.run(argv, check=False, capture_output=True, text=True, timeout=500)
        found = list(Path(folder).rglob("profile_export_aiperf.json"))
        if not found:
            raise SystemExit(f"aiperf ended with {done.returncode}: {(done.stderr + done.stdout)[-2000:]}")
        document = json.loads(found[0].read_text())
    return float(document["request_throughput"]["avg"])


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--aiperf", type=Path, required=True, help="the aiperf program")
    parser.add_argument("--tokenizer", type=Path, required=True, help="a folder with a tokenizer")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--requests", type=int, default=3000, help="AIPerf's; ours are five times as many")
    parser.add_argument("--note", default="")
    parser.add_argument("--out", type=Path, required=True)
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
