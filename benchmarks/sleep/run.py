"""Two vLLM models that take one card in turn, asked by several clients: with sleep, then without.

    TRIMTAB_VLLM=.../vllm python benchmarks/sleep/run.py OUT.json MODEL_FOLDER MODEL_FOLDER [--seconds 300]

On a GPU host, with real vLLM and trimtab from this checkout (PYTHONPATH=src suffices). The folders need a
config.json each, weights are dummies. A real ``trimtab up`` serves both, each with ``--share`` of the card. Per
swap: its kind (sleep, wake, stop, start), seconds, and before and after it what the models' processes hold of
the card (NVML) and of RAM. It ends by itself within ``--seconds`` and leaves nothing running; requests that the
time cuts short are counted apart. Exit code 1 when a request was refused or one was not answered in time.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import random
import signal
import subprocess
import sys
import tempfile
import threading
import time
import urllib.error
import urllib.request
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import psutil

ROOT = Path(__file__).resolve().parents[2]
STACK = """\
gateway: {{port: 0, limits: {{max_wait_s: 280}}}}
swap: {{sleep: {sleep}, min_residence_s: {residence_s}}}
models:
"""
MODEL = """\
  {name}: {{checkpoint: {folder}, context: {context}, concurrency: 8, engine_args: {args}}}
"""
SPARE_S = 25.0
LOOK_S, MEMORY_S = 0.05, 0.5
TOLD = ("asleep", "sleep", "wake", "afresh", "cannot")


@dataclass
class Asked:
    """One request; ``status`` is 0 where no answer came."""

    model: str
    status: int
    seconds: float
    text: str = ""


@dataclass
class Watch:
    """Looks at the models' states and at memory until ``end``."""

    root: str
    names: list[str]
    states: list[tuple[float, dict[str, str]]] = field(default_factory=list)
    memory: list[dict[str, Any]] = field(default_factory=list)
    is_over: threading.Event = field(default_factory=threading.Event)

    def run(self) -> None:
        memory_at_s = 0.0
        while not self.is_over.wait(LOOK_S):
            with suppress(OSError, ValueError, KeyError):
                with urllib.request.urlopen(f"{self.root}/health", timeout=5) as answer:
                    models = json.loads(answer.read())["models"]
                states = {name: models[name]["state"] for name in self.names}
                if not self.states or self.states[-1][1] != states:
                    self.states.append((time.monotonic(), states))
                    memory_at_s = 0.0
            if time.monotonic() >= memory_at_s:
                self.memory.append(look_at_memory(self.names))
                memory_at_s = time.monotonic() + MEMORY_S

    def swaps(self) -> list[dict[str, Any]]:
        """Every change of a model between loaded and away, with what was held around it."""
        found = []
        for name in self.names:
            settled, left_s = None, 0.0
            for at_s, states in self.states:
                state = states[name]
                if settled is None or state == settled:
                    settled = state if state in {"ready", "sleeping", "stopped"} else settled
                    left_s = 0.0
                    continue
                left_s = left_s or at_s
                if state in {"ready", "sleeping", "stopped"}:
                    kind = {"sleeping": "sleep", "stopped": "stop"}.get(
                        state, "wake" if settled == "sleeping" else "start"
                    )
                    found.append({"model": name, "kind": kind, "at_s": left_s, "seconds": at_s - left_s})
                    settled, left_s = state, 0.0
        return [self.with_memory(swap) for swap in sorted(found, key=lambda swap: swap["at_s"])]

    def with_memory(self, swap: dict[str, Any]) -> dict[str, Any]:
        began_s, ended_s = swap["at_s"], swap["at_s"] + swap["seconds"]
        before = [look for look in self.memory if look["at_s"] <= began_s]
        after = [look for look in self.memory if look["at_s"] >= ended_s]
        start_s = self.states[0][0]
        return swap | {
            "at_s": round(began_s - start_s, 2),
            "seconds": round(swap["seconds"], 2),
            "before": held_in(before[-1:], start_s),
            "after": held_in(after[:1], start_s),
        }


def held_in(looks: list[dict[str, Any]], start_s: float) -> dict[str, Any] | None:
    return None if not looks else looks[0] | {"at_s": round(looks[0]["at_s"] - start_s, 2)}


def look_at_memory(names: list[str]) -> dict[str, Any]:
    """What the processes of each model hold, and what is free."""
    card = read_card()
    found: dict[str, Any] = {
        "at_s": time.monotonic(),
        "ram_available_bytes": psutil.virtual_memory().available,
    }
    found["card_used_bytes"] = card[0]
    for name in names:
        tree = tree_of(name)
        found[name] = {
            "card_bytes": sum(size or 0 for pid, size in card[1].items() if pid in tree),
            "rss_bytes": sum(tree.values()),
            "processes": len(tree),
        }
    return found


def read_card() -> tuple[int | None, dict[int, int | None]]:
    """(bytes used of the first card, by process); nothing where there is no NVML."""
    try:
        import pynvml  # noqa: PLC0415 - only GPU hosts have it

        pynvml.nvmlInit()
        handle = pynvml.nvmlDeviceGetHandleByIndex(0)
        processes = pynvml.nvmlDeviceGetComputeRunningProcesses(handle)
        return pynvml.nvmlDeviceGetMemoryInfo(handle).used, {one.pid: one.usedGpuMemory for one in processes}
    except Exception:  # noqa: BLE001 - a reading that fails is none
        return None, {}


def tree_of(name: str) -> dict[int, int]:
    """Pid → resident bytes of a model's engine and its descendants."""
    found: dict[int, int] = {}
    for process in own_processes():
        with suppress(psutil.Error):
            words = process.cmdline()
            if "--served-model-name" in words and words[words.index("--served-model-name") + 1] == name:
                for one in (process, *process.children(recursive=True)):
                    found[one.pid] = one.memory_info().rss
    return found


def own_processes() -> list[psutil.Process]:
    """What runs with this benchmark's own state folder."""
    found = []
    for process in psutil.process_iter():
        with suppress(psutil.Error, OSError):
            is_own = process.environ().get("XDG_STATE_HOME") == os.environ["XDG_STATE_HOME"]
            if is_own and process.pid != os.getpid() and process.status() != psutil.STATUS_ZOMBIE:
                found.append(process)
    return found


def trimtab(*words: str, cwd: Path, timeout_s: float) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "trimtab", *words], cwd=cwd, capture_output=True, text=True, check=False,
        timeout=max(1.0, timeout_s),
    )  # fmt: skip


class Clients:
    """Each asks for its models in turn, until all are answered or the time is up."""

    def __init__(self, endpoint: str, orders: list[list[str]], until_s: float) -> None:
        self.endpoint, self.orders, self.until_s = endpoint, orders, until_s
        self.asked: list[Asked] = []
        self.num_cut = 0

    def run(self) -> None:
        threads = [
            threading.Thread(target=self.go_through, args=(order,), daemon=True) for order in self.orders
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()

    def go_through(self, order: list[str]) -> None:
        for place, model in enumerate(order):
            left_s = self.until_s - time.monotonic()
            one = self.ask(model, left_s) if left_s > 0 else None
            if one is None or (one.status == 0 and time.monotonic() >= self.until_s):
                self.num_cut += len(order) - place
                return
            self.asked.append(one)

    def ask(self, model: str, timeout_s: float) -> Asked:
        body = {"model": model, "prompt": [(7 * at) % 30_000 + 5 for at in range(200)], "max_tokens": 16,
                "temperature": 0}  # fmt: skip
        request = urllib.request.Request(
            f"{self.endpoint}/completions", json.dumps(body).encode(), {"Content-Type": "application/json"}
        )
        began_s = time.monotonic()
        try:
            with urllib.request.urlopen(request, timeout=timeout_s) as answer:
                answer.read()
                return Asked(model, answer.status, time.monotonic() - began_s)
        except urllib.error.HTTPError as error:
            return Asked(model, error.code, time.monotonic() - began_s, error.read().decode()[:300])
        except OSError as error:
            return Asked(model, 0, time.monotonic() - began_s, str(error))


def run_phase(sleep: str, arguments: argparse.Namespace, folder: Path, until_s: float) -> dict[str, Any]:
    names = ["a", "b"]
    stack = STACK.format(sleep=sleep, residence_s=arguments.residence_s) + "".join(
        MODEL.format(
            name=name,
            folder=model.resolve(),
            context=arguments.context,
            args=json.dumps(engine_args(arguments)),
        )
        for name, model in zip(names, arguments.models, strict=True)
    )
    path = folder / "stack.yaml"
    path.write_text(stack)
    result: dict[str, Any] = {"sleep": sleep, "stack": stack.splitlines()}
    planned = trimtab("plan", str(path), "--json", *arguments.up, cwd=folder, timeout_s=60)
    result["swap_plan"] = (
        json.loads(planned.stdout or "{}").get("swap") if planned.stdout else planned.stderr[-600:]
    )
    began_s = time.monotonic()
    try:
        done = trimtab(
            "up", str(path), "-d", "--json", *arguments.up, cwd=folder, timeout_s=until_s - began_s
        )
        if done.returncode:
            return result | {"error": done.stderr[-3000:], "log": read_log(4000)}
        result["first_start_s"] = round(time.monotonic() - began_s, 1)
        result |= ask_both(json.loads(done.stdout)["endpoint"], names, arguments, until_s)
    except subprocess.TimeoutExpired:
        result["error"] = "the time was over before it served"
        result["log"] = read_log(4000)
    finally:
        stop_all(folder)
    return result


def ask_both(
    endpoint: str, names: list[str], arguments: argparse.Namespace, until_s: float
) -> dict[str, Any]:
    rng = random.Random(arguments.seed)
    each = arguments.requests // arguments.clients
    orders = [[rng.choice(names) for _ in range(each)] for _ in range(arguments.clients)]
    watch = Watch(endpoint.removesuffix("/v1"), names)
    watcher = threading.Thread(target=watch.run, daemon=True)
    watcher.start()
    began_s = time.monotonic()
    clients = Clients(endpoint, orders, until_s)
    clients.run()
    took_s = time.monotonic() - began_s
    time.sleep(1.5 * MEMORY_S)
    watch.is_over.set()
    watcher.join(10)
    swaps = watch.swaps()
    with suppress(OSError):
        metrics = urllib.request.urlopen(f"{endpoint.removesuffix('/v1')}/metrics", timeout=5).read().decode()
    lines = [
        line
        for line in metrics.splitlines()
        if line.startswith(("trimtab_model_loads", "trimtab_model_wakes"))
    ]
    return {
        "num_asked": sum(map(len, orders)),
        "num_answered": sum(one.status == 200 for one in clients.asked),
        "num_cut_by_time": clients.num_cut,
        "refused": [asdict(one) for one in clients.asked if one.status != 200],
        "took_s": round(took_s, 1),
        "wait_s": spread([one.seconds for one in clients.asked if one.status == 200]),
        "swap_s": {kind: spread([one["seconds"] for one in swaps if one["kind"] == kind]) for kind in
                   ("sleep", "wake", "stop", "start")},
        "swaps": swaps,
        "metrics": lines,
        "told": [line[-400:] for line in read_log(200_000).splitlines() if any(word in line for word in TOLD)][-80:],
    }  # fmt: skip


def spread(values: list[float]) -> dict[str, float] | None:
    if not values:
        return None
    ordered = sorted(values)
    return {"n": len(ordered), "min": round(ordered[0], 2), "median": round(ordered[len(ordered) // 2], 2),
            "max": round(ordered[-1], 2)}  # fmt: skip


def engine_args(arguments: argparse.Namespace) -> dict[str, Any]:
    args: dict[str, Any] = {"gpu_memory_utilization": arguments.share, "load_format": "dummy",
                            "skip_tokenizer_init": True}  # fmt: skip
    for pair in arguments.set:
        name, _, value = pair.partition("=")
        args[name] = json.loads(value) if value[:1] in '0123456789tf"{[' else value
    return args


def read_log(most: int) -> str:
    """What trimtab and its engines wrote last."""
    logs = sorted(Path(os.environ["XDG_STATE_HOME"]).rglob("*.log"))
    return "\n".join(f"== {log.name}\n{log.read_text(errors='replace')[-most:]}" for log in logs)


def stop_all(folder: Path) -> None:
    """Down, then the end of whatever is left with this benchmark's state folder."""
    with suppress(subprocess.TimeoutExpired):
        trimtab("down", "--timeout", "8", cwd=folder, timeout_s=20)
    for process in own_processes():
        with suppress(psutil.Error):
            process.kill()


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("out", type=Path)
    parser.add_argument("models", type=Path, nargs=2)
    parser.add_argument("--share", type=float, default=0.6, help="of the card, for each model")
    parser.add_argument("--context", type=int, default=8192)
    parser.add_argument("--requests", type=int, default=40)
    parser.add_argument("--clients", type=int, default=4)
    parser.add_argument("--residence-s", type=float, default=5.0)
    parser.add_argument("--seed", type=int, default=9)
    parser.add_argument("--seconds", type=float, default=300.0, help="for everything")
    parser.add_argument("--only", choices=["auto", "off"], help="one of the two phases, with all of the time")
    parser.add_argument(
        "--set", action="append", default=[], help="another engine argument: enforce_eager=true"
    )
    parser.add_argument(
        "--up", action="append", default=[], help="another word for plan and up: --up=--ram=100GiB"
    )
    arguments = parser.parse_args()
    began_s = time.monotonic()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    signal.signal(signal.SIGALRM, lambda *_: sys.exit(142))
    signal.alarm(max(1, int(arguments.seconds - SPARE_S + 3)))
    phases = [arguments.only] if arguments.only else ["auto", "off"]
    document: dict[str, Any] = {
        "date": time.strftime("%Y-%m-%d"),
        "host": {"cpus": os.cpu_count(), "ram_gib": round(psutil.virtual_memory().total / 2**30, 1)},
        "python": platform.python_version(),
        "vllm": os.environ.get("TRIMTAB_VLLM", ""),
        "models": [model.name for model in arguments.models],
        "settings": {"share": arguments.share, "context": arguments.context, "requests": arguments.requests,
                     "clients": arguments.clients, "seed": arguments.seed, "set": arguments.set},
        "phases": [],
    }  # fmt: skip
    with tempfile.TemporaryDirectory(prefix="trimtab-sleep-") as name:
        folder = Path(name)
        os.environ["PYTHONPATH"] = os.pathsep.join([str(ROOT / "src"), os.environ.get("PYTHONPATH", "")])
        os.environ["HF_HUB_OFFLINE"] = "1"
        # What vLLM compiles is kept: it would lie under XDG_CACHE_HOME, which is gone afterwards.
        os.environ.setdefault("VLLM_CACHE_ROOT", str(Path.home() / ".cache" / "vllm"))
        for place, phase in enumerate(phases):
            os.environ["XDG_STATE_HOME"] = str(folder / f"state-{phase}")
            os.environ["XDG_CACHE_HOME"] = str(folder / "cache")
            left_s = arguments.seconds - (time.monotonic() - began_s)
            share = 1.0 if place == len(phases) - 1 else 0.55
            try:
                result = run_phase(phase, arguments, folder, time.monotonic() + share * left_s - SPARE_S)
            except SystemExit:
                stop_all(folder)
                raise
            document["phases"].append(result)
            arguments.out.write_text(json.dumps(document, indent=1) + "\n")
    signal.alarm(0)
    for phase_result in document["phases"]:
        print(
            json.dumps(
                {key: value for key, value in phase_result.items() if key not in {"swaps", "told", "stack"}}
            )
        )
    is_good = all(
        not phase.get("error") and not phase["refused"] and phase["num_answered"]
        for phase in document["phases"]
    )
    return 0 if is_good else 1


if __name__ == "__main__":
    sys.exit(main())
