"""Clients ask two models that do not fit together for short answers in an order by chance; writes what came of it.

    python benchmarks/swap/mixed_requests.py STACK --models A,B --requests 200 --clients 8 --out raw.json [--up='--gpus ...']

STACK has the two models and room for one. Each client asks again
when it has its answer. ``num_loads`` are loads on demand as the gateway counts them, ``best_num_loads`` those of the
best fixed order: what the client that changes most often needs alone. ``most_at_once`` is the largest number
of models with living processes at one look, twice a second. Exit code 1 where a bar is broken: an answer
that is none, more than 1.5 times the best order's loads, a wait beyond the deadline, two models at once.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import shlex
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import psutil

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "tests" / "fakes"))

from engine_witness import EngineWitness  # noqa: E402
from mixed_clients import MixedClients, count_loads, fewest_loads, mixed_orders  # noqa: E402
from trimtab_program import Program  # noqa: E402


def run(arguments: argparse.Namespace) -> dict:
    models = arguments.models.split(",")
    orders = mixed_orders(
        models, num_clients=arguments.clients, num_requests=arguments.requests, seed=arguments.seed
    )
    with tempfile.TemporaryDirectory() as folder:
        program = Program(Path(folder))
        try:
            done = program.run("up", str(arguments.stack.resolve()), "-d", "--port", "0", "--json",
                               *arguments.up, cwd=arguments.stack.resolve().parent, timeout_s=900)  # fmt: skip
            if done.returncode:
                sys.exit(done.stderr)
            endpoint = json.loads(done.stdout)["endpoint"]
            first = next(item["model"] for item in program.run_json("status")["replicas"] if item["running"])
            witness = EngineWitness(program, models)
            witness.start()
            clients = MixedClients(endpoint, orders)
            began_s = time.monotonic()
            clients.run()
            took_s = time.monotonic() - began_s
            witness.finish()
            num_loads = count_loads(endpoint)
            load_s = json.loads((program.state / "boot-times.json").read_text())
        finally:
            program.close()
    seconds = sorted(one.seconds for one in clients.asked)
    return {
        "num_requests": len(seconds),
        "num_answered": sum(one.status == 200 for one in clients.asked),
        "num_loads": num_loads,
        "best_num_loads": fewest_loads(orders, first=first),
        "most_at_once": witness.most,
        "num_looks": witness.num_looks,
        "took_s": round(took_s, 1),
        "wait_s": {
            "median": round(statistics.median(seconds), 2),
            "p95": round(seconds[int(0.95 * (len(seconds) - 1))], 2),
            "max": round(seconds[-1], 2),
        },
        "load_s_learnt": sorted(load_s.values()),
        "errors": [one.text[:300] for one in clients.asked if one.status != 200],
    }


def read_processor() -> str:
    lines = Path("/proc/cpuinfo").read_text().splitlines()
    return next(
        (line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")), platform.machine()
    )


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("stack", type=Path)
    parser.add_argument("--models", required=True)
    parser.add_argument("--requests", type=int, default=200)
    parser.add_argument("--clients", type=int, default=8)
    parser.add_argument("--seed", type=int, default=9)
    parser.add_argument("--deadline-s", type=float, default=600.0, help="max_wait_s of the stack")
    parser.add_argument("--engine", default="", help="what served, for the record: name and version")
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument(
        "--up", type=shlex.split, default=[], help="more options of `trimtab up`, in one word"
    )
    arguments = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # what was started is stopped on the way out
    load_before = os.getloadavg()[0]
    result = run(arguments)
    commit = subprocess.run(
        ["git", "rev-parse", "--short", "HEAD"], capture_output=True, text=True, cwd=ROOT
    ).stdout
    document = {
        "date": time.strftime("%Y-%m-%d"),
        "host": {
            "cpus": os.cpu_count(),
            "processor": read_processor(),
            "ram_gib": round(psutil.virtual_memory().total / 2**30, 1),
            "load_average_before": round(load_before, 2),
        },
        "python": platform.python_version(),
        "engine": arguments.engine,
        "commit": commit.strip(),
        "seed": arguments.seed,
        "clients": arguments.clients,
        "stack": arguments.stack.read_text().splitlines(),
        **result,
    }
    arguments.out.write_text(json.dumps(document, indent=1) + "\n")
    print(json.dumps(result, indent=1))
    is_good = (
        result["num_answered"]
        == result["num_requests"]
        == sum([arguments.requests // arguments.clients] * arguments.clients)
        and result["num_loads"] <= 1.5 * result["best_num_loads"]
        and result["wait_s"]["max"] < arguments.deadline_s
        and result["most_at_once"] == 1
    )
    return 0 if is_good else 1


if __name__ == "__main__":
    sys.exit(main())
