"""How fast and how exact the meter is, against a server that only keeps time (tests/fakes/timed_server.py).

    python benchmarks/bench/meter_speed.py > results.json

Three loads at full speed (short requests, SSE chunks, 50,000-token prompts) and 64 timed streams whose
stamps are compared with the server's own log on the same monotonic clock. The server and the client
take a core each; on a machine that does other work the figures are lower bounds.
"""

import asyncio
import json
import os
import signal
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

import uvloop

from trimtab.bench.connection import decode_target
from trimtab.bench.driver import LoadPlan, run_load
from trimtab.bench.metrics import measure_load
from trimtab.bench.self_check import judge_client
from trimtab.bench.workload import Ask

SERVER = Path(__file__).parents[2] / "tests" / "fakes" / "timed_server.py"


class Fixed:
    """Requests of one shape; ``step`` tells them apart by their length."""

    models = (("clock", 1.0),)

    def __init__(self, input_tokens, output_tokens, step=0):
        self.shape = (input_tokens, output_tokens, step)

    def make(self, index, draw):
        input_tokens, output_tokens, step = self.shape
        return Ask(
            index=index, model="clock", input_tokens=input_tokens, output_tokens=output_tokens + step * index,
            start_word=int(draw() * 8192),
        )  # fmt: skip


def drive(workload, users, requests, *server):
    """One load against a fresh server; gives the run and the server's log."""
    with tempfile.TemporaryDirectory() as folder:
        log = Path(folder) / "log.json"
        command = [sys.executable, SERVER, "--log", log, *server]
        with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
            target = decode_target(f"http://127.0.0.1:{int(process.stdout.readline())}")
            plan = LoadPlan(
                target=target, path="/v1/chat/completions", api_key="", workload=workload,
                num_requests=requests, concurrency=users, extra=b',"stream":true',
            )  # fmt: skip
            run = uvloop.run(run_load(plan, asyncio.Event()))
            process.send_signal(signal.SIGTERM)
            process.wait()
        return run, json.loads(log.read_text())


def full_speed(name, workload, requests):
    """Requests and chunks per second, and what the client says of itself."""
    run, _ = drive(workload, 32, requests)
    figures = measure_load(run.records)
    check = judge_client(run.client)
    return {
        "load": name,
        "requests_per_s": round(figures.request_throughput),
        "chunks_per_s": round(figures.output_throughput),
        "failed": figures.failed,
        "client_cpu_share": round(check.cpu_share, 2),
    }


def exactness():
    """Errors of 64 streams in ms: first tokens, gaps, and the counts."""
    run, log = drive(Fixed(64, 20, step=1), 64, 64, "--ttft", "30", "--itl", "8")
    written = {len(times) - 1: times[1:] for times in log}
    first, gaps, counted = [], [], True
    for record in run.records:
        truth = written[record.asked_output_tokens]
        first.append(abs(record.token_times_s[0] - truth[0]) * 1e3)
        gaps += [
            abs((b - a) - (d - c)) * 1e3
            for a, b, c, d in zip(record.token_times_s, record.token_times_s[1:], truth, truth[1:])
        ]
        counted &= record.output_tokens == record.asked_output_tokens
    return {
        "ttft_error_ms": {
            "mean": statistics.fmean(first),
            "median": statistics.median(first),
            "max": max(first),
        },
        "itl_error_ms": {"mean": statistics.fmean(gaps), "median": statistics.median(gaps), "max": max(gaps)},
        "counts_exact": counted,
    }


if __name__ == "__main__":
    loads = [
        full_speed("short requests", Fixed(16, 1), 30_000),
        full_speed("128 chunks each", Fixed(16, 128), 3_000),
        full_speed("50,000-token prompts", Fixed(50_000, 16), 1_000),
    ]
    found = {"load_average_before": os.getloadavg(), "full_speed": loads, "sixty_four_streams": exactness()}
    print(json.dumps(found, indent=1))
