"""Direct, trimtab and, where their programs are given, vllm-router and LiteLLM: one upstream, one run.

    python benchmarks/gateway/side_by_side.py [--vllm-router PATH] [--litellm PATH]
        [--seconds 6] [--rounds 3] [--out benchmarks/gateway/results-DATE.json]

Each target is started alone in front of the same scripted upstream, asked in turn (round by round, so
that a slow minute of the machine hits all; the order turns from round to round) with 1 and 32 clients, unstreamed and as a stream of 32
events, and judged by its median round. Client, target and upstream share the machine's cores: only the
ratios within one run mean anything. ``cpu_us`` is processor time of the target's processes per request.
"""

import argparse
import asyncio
import contextlib
import datetime
import importlib.metadata
import json
import os
import platform
import socket
import statistics
import subprocess
import sys
import tempfile
import time
import urllib.request
from pathlib import Path

import psutil
import trimtab
from load_client import measure
from trimtab.gateway.key_ring import add_key
from trimtab.gateway.keys import KeyLimits

_HERE = Path(__file__).parent
_EVENTS = 32
_CASES = {"json-1": (1, 0), "json-32": (32, 0), "sse-1": (1, _EVENTS), "sse-32": (32, _EVENTS)}


def _free_port() -> int:
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        return sock.getsockname()[1]


def _start(stack: contextlib.ExitStack, argv: list[str], log: Path, **env: str) -> subprocess.Popen:
    out = stack.enter_context(log.open("wb"))
    process = subprocess.Popen(argv, stdout=out, stderr=out, env=os.environ | env, start_new_session=True)

    def stop() -> None:
        if process.poll() is None:
            for part in [*psutil.Process(process.pid).children(recursive=True), process]:
                part.terminate()
            process.wait(20)

    stack.callback(stop)
    return process


def _wait_ready(url: str, process: subprocess.Popen, log: Path, key: str = "any") -> None:
    body = json.dumps({"model": "m", "messages": [{"role": "user", "content": "x"}]}).encode()
    deadline = time.monotonic() + 90
    while time.monotonic() < deadline and process.poll() is None:
        request = urllib.request.Request(
            url + "/v1/chat/completions",
            body,
            {"Content-Type": "application/json", "Authorization": f"Bearer {key}"},
        )
        with contextlib.suppress(OSError):
            if urllib.request.urlopen(request, timeout=5).status == 200:
                return
        time.sleep(0.1)
    raise SystemExit(f"{process.args[0]} never answered:\n{log.read_text(errors='replace')[-2000:]}")


def _targets(
    args: argparse.Namespace, upstream: str, folder: Path, more: Path
) -> dict[str, tuple[list[str], int, dict]]:
    python, port = sys.executable, _free_port()
    targets = {
        "trimtab": (
            [python, str(_HERE / "serve_gateway.py"), "--upstream", upstream, "--port", str(port)],
            port,
            {},
        )
    }
    port = _free_port()
    targets["trimtab-whole"] = (
        [python, str(_HERE / "serve_gateway.py"), "--upstream", upstream, "--port", str(port),
         "--more", str(more)], port, {})  # fmt: skip
    if args.changing:
        port = _free_port()
        targets["trimtab-llama_cpp"] = (
            [python, str(_HERE / "serve_gateway.py"), "--upstream", upstream, "--port", str(port),
             "--engine", "llama_cpp"], port, {})  # fmt: skip
        port = _free_port()
        targets["trimtab-qwen3.5"] = (
            [python, str(_HERE / "serve_gateway.py"), "--upstream", upstream, "--port", str(port),
             "--family", "qwen3.5"], port, {})  # fmt: skip
    if args.vllm_router:
        port = _free_port()
        targets["vllm-router"] = (
            [args.vllm_router, "--host", "127.0.0.1", "--port", str(port), "--worker-urls", upstream, "--policy",
             "round_robin", "--prometheus-host", "127.0.0.1", "--prometheus-port", str(_free_port())], port, {})  # fmt: skip
    if args.litellm:
        port = _free_port()
        config = folder / "litellm.yaml"
        config.write_text(json.dumps({
            "model_list": [{"model_name": "m", "litellm_params": {
                "model": "openai/m", "api_base": upstream + "/v1", "api_key": "x"}}],
            "litellm_settings": {"callbacks": [], "num_retries": 0}}))  # fmt: skip
        targets["litellm"] = (
            [args.litellm, "--config", str(config), "--host", "127.0.0.1", "--port", str(port), "--num_workers", "1"],
            port, {"LITELLM_LOCAL_MODEL_COST_MAP": "True", "LITELLM_DANGEROUSLY_PERMIT_WEAK_OR_UNSET_MASTER_KEY": "true"})  # fmt: skip
    return targets


def _tree(pid: int | None) -> list[psutil.Process]:
    return [] if pid is None else [psutil.Process(pid), *psutil.Process(pid).children(recursive=True)]


def _cpu_s(pid: int | None) -> float:
    return sum(sum(process.cpu_times()[:2]) for process in _tree(pid))


async def _one(url: str, pid: int | None, case: str, seconds: float, key: str) -> dict:
    clients, events = _CASES[case]
    await measure(url, clients=clients, seconds=0.5, num_events=events, key=key)  # warm-up
    before, own = _cpu_s(pid), time.process_time()
    result = (await measure(url, clients=clients, seconds=seconds, num_events=events, key=key)).summary()
    result["cpu_us"] = round((_cpu_s(pid) - before) / max(1, result["requests"]) * 1e6, 1)
    result["client_cpu_share"] = round((time.process_time() - own) / result["seconds"], 2)
    result["rss_mib"] = round(sum(process.memory_info().rss for process in _tree(pid)) / 2**20, 1)
    return result


def _median_round(rounds: list[dict]) -> dict:
    key = "requests_per_s"
    middle = statistics.median_low([one[key] for one in rounds])
    return next(one for one in rounds if one[key] == middle) | {
        "errors": sum(one["errors"] for one in rounds), "rounds": [one[key] for one in rounds]}  # fmt: skip


def _version(argv0: str | None, package: str) -> str | None:
    if argv0 is None:
        return None
    python = Path(argv0).parent / "python"
    code = f"import importlib.metadata as m; print(m.version({package!r}))"
    return subprocess.run([python, "-c", code], capture_output=True, text=True, check=False).stdout.strip()


def _host(args: argparse.Namespace) -> dict:
    names = [line.split(":", 1)[1].strip() for line in Path("/proc/cpuinfo").read_text().splitlines()
             if line.startswith("model name")]  # fmt: skip
    return {
        "date": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        "cpu": names[0] if names else platform.processor(), "cores": os.cpu_count(),
        "kernel": platform.release(), "python": platform.python_version(),
        "load_before": os.getloadavg()[0],
        "trimtab": trimtab.__version__,
        **{name: importlib.metadata.version(name) for name in ("httptools", "uvloop")},
        "vllm-router": _version(args.vllm_router, "vllm-router"), "litellm": _version(args.litellm, "litellm"),
    }  # fmt: skip


def _print(results: dict[str, dict[str, dict]]) -> None:
    print(f"{'case':8} {'target':18} {'req/s':>8} {'chunks/s':>9} {'p50 ms':>8} {'p99 ms':>8} {'ttfb':>7} "
          f"{'added':>7} {'of direct':>9} {'cpu us':>8} {'RSS MiB':>8} {'errors':>6}")  # fmt: skip
    for case in _CASES:
        direct = results["direct"][case]
        for target, cases in results.items():
            one = cases[case]
            print(f"{case:8} {target:18} {one['requests_per_s']:8,.0f} {one['chunks_per_s']:9,.0f} "
                  f"{one['total_p50_ms'] or 0:8.3f} {one['total_p99_ms'] or 0:8.3f} {one['ttfb_p50_ms'] or 0:7.3f} "
                  f"{(one['total_p50_ms'] or 0) - direct['total_p50_ms']:7.3f} "
                  f"{one['requests_per_s'] / direct['requests_per_s']:9.2f} {one['cpu_us']:8.0f} "
                  f"{one['rss_mib']:8.1f} {one['errors']:6d}")  # fmt: skip
            if one["errors"]:
                print("         first error:", one["first_error"])


def _run(args: argparse.Namespace) -> dict:
    with contextlib.ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        upstream_port = _free_port()
        upstream = f"http://127.0.0.1:{upstream_port}"
        argv = [sys.executable, str(_HERE / "scripted_upstream.py"), "--port", str(upstream_port),
                "--chunks", str(_EVENTS)]  # fmt: skip
        _wait_ready(upstream, _start(stack, argv, folder / "upstream.log"), folder / "upstream.log")
        served: dict[str, tuple[str, int | None]] = {"direct": (upstream, None)}
        # As an operator has it: slots, a key, usage counted, requests logged. Everybody sends the key.
        more = folder / "more"
        more.mkdir()
        key = add_key(more / "keys.json", "bench", KeyLimits())
        for name, (argv, port, env) in _targets(args, upstream, folder, more).items():
            log = folder / f"{name}.log"
            process = _start(stack, argv, log, **env)
            served[name] = (f"http://127.0.0.1:{port}", process.pid)
            _wait_ready(served[name][0], process, log, key)
        rounds: dict[str, dict[str, list[dict]]] = {name: {case: [] for case in _CASES} for name in served}
        for number in range(args.rounds):
            for case in _CASES:
                for name, (url, pid) in _turned(served, number):
                    rounds[name][case].append(args.run(_one(url, pid, case, args.seconds, key)))
    return rounds


def _pair(rounds: dict[str, dict[str, list[dict]]]) -> dict[str, dict[str, dict]]:
    """Each round of a target against the same round of direct and of the others: medians of those.

    On a machine that does other work at times, this is steadier than the ratio of two medians.
    """
    paired: dict[str, dict[str, dict]] = {}
    for name, cases in rounds.items():
        for case, some in cases.items():
            one = paired.setdefault(name, {})[case] = {"added_p50_ms": _median_of(
                (a["total_p50_ms"] or 0) - b["total_p50_ms"] for a, b in zip(some, rounds["direct"][case]))}  # fmt: skip
            for other in ("vllm-router", "litellm"):
                if other in rounds and other != name:
                    shares = [a["requests_per_s"] / b["requests_per_s"]
                              for a, b in zip(some, rounds[other][case]) if b["requests"]]  # fmt: skip
                    one[f"of_{other}"] = _median_of(shares) if shares else 0.0
    return paired


def _turned(served: dict, number: int) -> list:
    """The targets, each time beginning with another."""
    items = list(served.items())
    return items[number % len(items) :] + items[: number % len(items)]


def _median_of(values) -> float:
    return round(statistics.median(values), 4)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--vllm-router", help="path of its executable")
    parser.add_argument("--litellm", help="path of its executable")
    parser.add_argument(
        "--changing",
        action="store_true",
        help="also trimtab where it must do more: put answers of llama.cpp together, normalise thinking",
    )
    parser.add_argument("--seconds", type=float, default=6.0)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--out", type=Path)
    args = parser.parse_args()
    try:
        import uvloop

        args.run = uvloop.run
    except ImportError:
        args.run = asyncio.run
    document = {"host": _host(args), "seconds": args.seconds, "rounds": args.rounds}
    rounds = _run(args)
    document["paired"] = _pair(rounds)
    document["results"] = {name: {case: _median_round(some) for case, some in cases.items()}
                           for name, cases in rounds.items()}  # fmt: skip
    document["all_rounds"] = rounds
    document["host"]["load_after"] = os.getloadavg()[0]
    _print(document["results"])
    for name, cases in document["paired"].items():
        for case, one in cases.items():
            print(f"paired {case:8} {name:18}", *(f"{key} {value:.3f}" for key, value in one.items()))
    if args.out:
        args.out.write_text(json.dumps(document, indent=1) + "\n")
