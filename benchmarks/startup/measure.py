"""Time a start as a user sees it: from the command to the first token through the endpoint.

    python benchmarks/startup/measure.py OUT.json [ROUNDS]

Each round brings up the embedded default in a folder of its own, streams one chat and stops it.
`trimtab --help` is timed beside it. Everything stays on 127.0.0.1.
"""

from __future__ import annotations

import json
import os
import platform
import signal
import statistics
import subprocess
import sys
import tempfile
import time
import urllib.request
from pathlib import Path

import xllamacpp

TRIMTAB = [sys.executable, "-m", "trimtab"]


def first_token_s(endpoint: str) -> None:
    body = {"messages": [{"role": "user", "content": "Say hello."}], "max_tokens": 4, "stream": True}
    request = urllib.request.Request(
        f"{endpoint}/chat/completions", json.dumps(body).encode(), {"Content-Type": "application/json"}
    )
    with urllib.request.urlopen(request, timeout=60) as answer:
        for line in answer:
            if line.startswith(b"data: {") and json.loads(line[6:])["choices"][0]["delta"].get("content"):
                return
    raise SystemExit("the stream held no token")


def one_round() -> dict[str, float]:
    with tempfile.TemporaryDirectory() as folder:
        environment = os.environ | {"XDG_STATE_HOME": folder, "XDG_CACHE_HOME": folder}
        started_s = time.perf_counter()
        up = subprocess.Popen(
            [*TRIMTAB, "up", "--port", "0", "--json"], env=environment, stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL, text=True,
        )  # fmt: skip
        endpoint = json.loads(up.stdout.readline())["endpoint"]
        ready_s = time.perf_counter() - started_s
        first_token_s(endpoint)
        token_s = time.perf_counter() - started_s
        up.send_signal(signal.SIGTERM)
        stopping_s = time.perf_counter()
        up.wait(timeout=60)
        return {"ready_s": ready_s, "first_token_s": token_s, "stop_s": time.perf_counter() - stopping_s}


def help_s() -> float:
    started_s = time.perf_counter()
    subprocess.run([*TRIMTAB, "--help"], stdout=subprocess.DEVNULL, check=True)
    return time.perf_counter() - started_s


def main() -> None:
    out, rounds = Path(sys.argv[1]), int(sys.argv[2]) if len(sys.argv) > 2 else 10
    help_times = [help_s() for _ in range(rounds)]
    starts = [one_round() for _ in range(rounds)]
    summary = {"help_s": statistics.median(help_times)} | {
        name: statistics.median(row[name] for row in starts) for name in starts[0]
    }
    cpu = next(
        (line.split(":")[1].strip() for line in Path("/proc/cpuinfo").read_text().splitlines()
         if line.startswith("model name")), "",
    )  # fmt: skip
    document = {
        "date": time.strftime("%Y-%m-%d"), "system": platform.platform(), "python": platform.python_version(),
        "xllamacpp": xllamacpp.__version__, "cpu": cpu, "cores": os.cpu_count(), "rounds": rounds,
        "median": summary, "help_s": help_times, "starts": starts,
    }  # fmt: skip
    out.write_text(json.dumps(document, indent=1) + "\n")
    print(json.dumps(summary, indent=1))


if __name__ == "__main__":
    main()
