"""Half an hour of one serving stack under load with random kills: what was lost, and does trimtab stay as it is?

    python benchmarks/reliability/soak.py --vllm FOLDER/bin/vllm --checkpoint MODEL --minutes 30 --out raw.json

The stack: one model on two real vLLM engines (CPU build, model ``tiny``) and one on the embedded default's llama.cpp
(``small``), all behind `trimtab up`. Clients stream chats all the time. Again and again, once all engines serve and have
done so for a while, a victim is chosen by chance: a vLLM's engine core, worker, API process or whole group, or the
llama.cpp engine, with SIGKILL; or a vLLM's engine core or the llama.cpp engine with SIGSTOP.

Each request that did not end complete is put down to a kill or counted as lost:

- ``in flight``: it had begun before an engine of its model was killed, and ended after it. No more of these than the
  gateway's metrics gave that engine just before the signal, besides those that began after the reading
- ``before detection``: it began within the ten seconds in which a stopped or dying engine may go unnoticed
- ``told``: its model has one engine (``small``), which was down; it was answered 503 at once with the reason, and is
  tried again
- ``lost``: anything else. The bar is none.

trimtab's resident memory and descriptors are read every ten seconds. They are flat when the medians of the last third and
of the second sixth of the run (the first sixth fills caches) differ by less than 5 % and 3 descriptors.
"""

# ruff: noqa: T201, S311
from __future__ import annotations

import argparse
import json
import os
import random
import re
import signal
import statistics
import subprocess
import sys
import tempfile
import threading
import time
import urllib.error
import urllib.request
from collections import Counter
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import psutil
import rounds

STACK = """\
models:
  tiny:
    checkpoint: {checkpoint}
    engine_version: "0.32.0"
    context: 2048
    concurrency: 4
    replicas: 2
    thinking: off
    engine_args: {{dtype: bfloat16, enforce_eager: true, max_num_batched_tokens: 1024}}
  small:
    checkpoint: smollm2-135m
    context: 1024
    concurrency: 2
    engine_args: {{n_threads: 1, n_threads_batch: 1}}
"""
# One card for each engine, planned only: the engines compute on the processor.
GPUS = "3xrtx4090"
KINDS = ("core", "worker", "api", "group", "stop-core", "small", "stop-small")
CLIENTS = ("tiny", "tiny", "tiny", "small")
NUM_ENGINES = {"tiny": 2, "small": 1}
UNNOTICED_S = 10.0
HUNG_S = 90.0
SAMPLE_EVERY_S = 10.0
RECOVER_S = 300.0
# A request that ended this long before the signal was cut by something else.
CLOCK_S = 0.2


@dataclass
class Strike:
    kind: str
    model: str
    at_s: float
    detected_s: float | None = None
    said: str = ""
    # Requests at each engine of the model, and when they were counted.
    counted_s: float = 0.0
    in_flight: dict[str, int] = field(default_factory=dict)
    recovered_s: float | None = None
    orphans: list[int] = field(default_factory=list)


@dataclass
class Ended:
    """One request; times from the beginning of the run."""

    model: str
    began_s: float
    ended_s: float
    outcome: str


class Client(threading.Thread):
    """Streams chats of one model with short pauses; keeps every one that did not end complete."""

    def __init__(self, endpoint: str, model: str, clock_s: Any, seed: int) -> None:
        super().__init__(daemon=True)
        self._endpoint, self._model, self._clock_s = endpoint, model, clock_s
        self._chance = random.Random(seed)
        self.is_over = threading.Event()
        self.num_complete = 0
        self.failed: list[Ended] = []
        self.is_flowing = False

    def run(self) -> None:
        while not self.is_over.is_set():
            began_s = self._clock_s()
            outcome = self._ask()
            self.is_flowing = False
            if outcome == "complete":
                self.num_complete += 1
            else:
                self.failed.append(Ended(self._model, round(began_s, 2), round(self._clock_s(), 2), outcome))
            self.is_over.wait(self._chance.uniform(0.2, 1.0) if outcome == "complete" else 1.0)

    def _ask(self) -> str:
        try:
            return self._stream()
        except urllib.error.HTTPError as error:
            with error:
                return f"HTTP {error.code} {_code_of(error.read())}"
        except (OSError, ValueError) as error:
            reason = getattr(error, "reason", error)
            return "hung" if isinstance(reason, TimeoutError) else f"broken: {type(reason).__name__}"

    def _stream(self) -> str:
        num_tokens = self._chance.randint(20, 200 if self._model == "tiny" else 60)
        body = {
            "model": self._model,
            "messages": [{"role": "user", "content": f"Count to {num_tokens}, please."}],
            "max_tokens": num_tokens,
            "ignore_eos": True,
            "stream": True,
        }
        return rounds.stream_chat(self._endpoint, body, self._on_chunk)

    def _on_chunk(self) -> None:
        self.is_flowing = True


def _code_of(body: bytes) -> str:
    try:
        return str(json.loads(body)["error"]["code"])
    except (ValueError, KeyError, TypeError):
        return "?"


def victims(stack: rounds.Stack, kind: str, chance: random.Random) -> psutil.Process:
    """The process to signal."""
    if kind.endswith("small"):
        hosts = [item for item in stack.family() if rounds._has(item, "llama_cpp_host")]
        return next(item for item in hosts if not rounds._has(item, "guard.py"))
    parts = rounds.parts_of(chance.choice(sorted(stack.apis(), key=lambda item: item.pid)))
    return parts["api"] if kind in ("api", "group") else parts.get(kind.removeprefix("stop-"), parts["core"])


def strike(stack: rounds.Stack, kind: str, chance: random.Random) -> None:
    victim = victims(stack, kind, chance)
    if kind == "group":
        os.killpg(victim.pid, signal.SIGKILL)
    elif kind.startswith("stop"):
        victim.send_signal(signal.SIGSTOP)
    else:
        victim.kill()


def read_metric(stack: rounds.Stack, name: str, model: str) -> dict[str, int]:
    """A gateway's gauge of each of a model's engines (or of the model itself, under its name)."""
    try:
        with urllib.request.urlopen(stack.endpoint.removesuffix("/v1") + "/metrics", timeout=5) as answer:
            text = answer.read().decode()
    except OSError:
        return {}
    found = re.findall(rf'^trimtab_{name}{{model="{model}"(?:,replica="([^"]+)")?}} ([0-9.]+)', text, re.M)
    return {replica or model: int(float(value)) for replica, value in found}


def all_serve(stack: rounds.Stack) -> bool:
    """Whether every engine of every model is served."""
    return all(
        sum(read_metric(stack, "replica_ready" if count > 1 else "model_ready", model).values()) == count
        for model, count in NUM_ENGINES.items()
    )


class Watcher(threading.Thread):
    """Reads trimtab's own memory and descriptors."""

    def __init__(self, pid: int, clock_s: Any) -> None:
        super().__init__(daemon=True)
        self._own, self._clock_s = psutil.Process(pid), clock_s
        self.is_over = threading.Event()
        self.rows: list[tuple[float, int, int]] = []

    def run(self) -> None:
        while not self.is_over.is_set():
            self.rows.append((round(self._clock_s(), 1), self._own.memory_info().rss, self._own.num_fds()))
            self.is_over.wait(SAMPLE_EVERY_S)


def soak(options: argparse.Namespace, stack: rounds.Stack) -> dict[str, Any]:
    """The run itself; gives the document."""
    assert stack.process is not None
    zero_s = time.monotonic()
    chance = random.Random(options.seed)

    def clock_s() -> float:
        return time.monotonic() - zero_s

    watcher = Watcher(stack.process.pid, clock_s)
    clients = [Client(stack.endpoint, model, clock_s, seed) for seed, model in enumerate(CLIENTS)]
    strikes: list[Strike] = []
    if not rounds.wait_until(lambda: all_serve(stack), RECOVER_S):
        raise SystemExit("\n".join(["not all engines serve:", *(line for _, line in stack.lines[-20:])]))
    for thread in (watcher, *clients):
        thread.start()
    while clock_s() < options.minutes * 60:
        time.sleep(chance.uniform(*options.quiet_s))
        strikes.append(one_strike(stack, chance, clients, clock_s))
        print(json.dumps(asdict(strikes[-1])), file=sys.stderr, flush=True)
        if strikes[-1].recovered_s is None:
            break
        write(options, document_of(options, clients, strikes, watcher, clock_s()))
    for thread in (*clients, watcher):
        thread.is_over.set()
    for thread in (*clients, watcher):
        thread.join(HUNG_S + 10)
    return document_of(options, clients, strikes, watcher, clock_s())


def one_strike(stack: rounds.Stack, chance: random.Random, clients: list[Client], clock_s: Any) -> Strike:
    kind = chance.choice(KINDS)
    model = "small" if kind.endswith("small") else "tiny"
    rounds.wait_until(lambda: any(item.is_flowing for item in clients if item._model == model), 30)
    before, num_lines = stack.family(), len(stack.lines)
    counted_s = round(clock_s(), 3)
    name = "replica_requests_in_flight" if NUM_ENGINES[model] > 1 else "requests_running"
    counts = read_metric(stack, name, model)
    struck_s, at_s = time.monotonic(), round(clock_s(), 3)
    strike(stack, kind, chance)
    done = Strike(kind=kind, model=model, at_s=at_s, counted_s=counted_s, in_flight=counts)
    done.detected_s, done.said = rounds.await_word(stack, num_lines, struck_s)
    if rounds.wait_until(lambda: all_serve(stack), RECOVER_S):
        done.recovered_s = round(time.monotonic() - struck_s, 1)
    known = {item.pid for item in stack.family()}
    left = rounds._living(before)
    # The other engines of before live on; what is no child of trimtab any more, or stopped, is an orphan.
    done.orphans = [pid for pid in left if pid not in known or _is_stopped(pid)]
    return done


def _is_stopped(pid: int) -> bool:
    try:
        return psutil.Process(pid).status() == psutil.STATUS_STOPPED
    except psutil.Error:
        return False


def judge(ended: Ended, strikes: list[Strike]) -> str:
    """What a request that failed is put down to."""
    for hit in strikes:
        if hit.model != ended.model:
            continue
        if ended.began_s <= hit.at_s <= ended.ended_s + CLOCK_S:
            return "in flight"
        noticed_s = hit.at_s + min(UNNOTICED_S, hit.detected_s or UNNOTICED_S) + CLOCK_S
        if hit.at_s < ended.began_s <= noticed_s and ended.outcome != "hung":
            return "before detection"
        back_s = hit.at_s + (hit.recovered_s or RECOVER_S)
        is_told = NUM_ENGINES[ended.model] == 1 and ended.outcome == "HTTP 503 model_not_ready"
        if is_told and hit.at_s < ended.began_s <= back_s + 1:
            return "told"
    return "lost"


def document_of(
    options: argparse.Namespace, clients: list[Client], strikes: list[Strike], watcher: Watcher, took_s: float
) -> dict[str, Any]:
    failed = sorted((item for client in clients for item in client.failed), key=lambda item: item.began_s)
    judged = [(item, judge(item, strikes)) for item in failed]
    counts = {
        model: dict(Counter(why for item, why in judged if item.model == model)) for model in set(CLIENTS)
    }
    served = Counter({model: 0 for model in CLIENTS})
    for client in clients:
        served[client._model] += client.num_complete
    return {
        "machine": {"cores": os.cpu_count(), "python": sys.version.split()[0], "note": options.note},
        "took_s": round(took_s),
        "complete": dict(served),
        "not_complete": counts,
        "outcomes": dict(Counter(f"{item.model} {why}: {item.outcome}" for item, why in judged)),
        "flat": flatness(watcher.rows),
        "faults": faults_of(judged, strikes, watcher.rows),
        "strikes": [asdict(item) for item in strikes],
        "failed": [{**asdict(item), "why": why} for item, why in judged if why != "told"],
        "rss_and_descriptors": watcher.rows,
    }


def flatness(rows: list[tuple[float, int, int]]) -> dict[str, Any]:
    if len(rows) < 12:
        return {}
    early, late = rows[len(rows) // 6 : len(rows) // 3], rows[-(len(rows) // 3) :]
    found: dict[str, Any] = {}
    for name, place in (("rss_bytes", 1), ("descriptors", 2)):
        values = [statistics.median(row[place] for row in part) for part in (early, late)]
        found[name] = {"early": values[0], "late": values[1], "most": max(row[place] for row in rows)}
    return found


def is_cut_by(ended: Ended, hit: Strike) -> bool:
    """Whether it had been counted at an engine of the model when the signal came."""
    return ended.model == hit.model and ended.began_s <= hit.counted_s and hit.at_s <= ended.ended_s + CLOCK_S


def at_victim(hit: Strike) -> int:
    """Requests at the engine that the signal hit, which trimtab's own words name."""
    return hit.in_flight.get(hit.said.partition(":")[0].strip(), sum(hit.in_flight.values()))


def faults_of(
    judged: list[tuple[Ended, str]], strikes: list[Strike], rows: list[tuple[float, int, int]]
) -> list[str]:
    found = [f"lost: {asdict(item)}" for item, why in judged if why == "lost"]
    for number, hit in enumerate(strikes, start=1):
        if hit.detected_s is None or hit.detected_s > UNNOTICED_S:
            found.append(f"strike {number} ({hit.kind}): detected after {hit.detected_s} s")
        if hit.recovered_s is None:
            found.append(f"strike {number} ({hit.kind}): never recovered")
        if hit.orphans:
            found.append(f"strike {number} ({hit.kind}): orphans {hit.orphans}")
        cut = [item for item, why in judged if why == "in flight" and is_cut_by(item, hit)]
        if len(cut) > at_victim(hit):
            found.append(
                f"strike {number} ({hit.kind}): {len(cut)} requests were cut, {at_victim(hit)} were there"
            )
    flat = flatness(rows)
    if flat and flat["rss_bytes"]["late"] > flat["rss_bytes"]["early"] * 1.05:
        found.append(f"memory grows: {flat['rss_bytes']}")
    if flat and flat["descriptors"]["late"] >= flat["descriptors"]["early"] + 3:
        found.append(f"descriptors grow: {flat['descriptors']}")
    return found


def main() -> int:
    options = parse()
    rounds.STACK, rounds.GPUS = STACK, GPUS
    with tempfile.TemporaryDirectory(prefix="trimtab-soak-") as name:
        stack = rounds.Stack(Path(name), options)
        # Threads that wait for each other at every step stand still when cores are shared.
        stack.env |= {"OMP_NUM_THREADS": "1", "VLLM_CPU_OMP_THREADS_BIND": "nobind"}
        stack.up()
        try:
            document = soak(options, stack)
        finally:
            last = stack.family()
            stack.down()
    left = rounds._living(last)
    if left:
        document["faults"].append(f"processes {left} are left after the end")
    write(options, document)
    for fault in document["faults"]:
        print(fault, file=sys.stderr)
    return 1 if document["faults"] else 0


def write(options: argparse.Namespace, document: dict[str, Any]) -> None:
    options.out.write_text(json.dumps(document, indent=1) + "\n")


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--vllm", type=Path, required=True, help="the vllm program")
    parser.add_argument("--checkpoint", type=Path, required=True, help="a tiny checkpoint's folder")
    parser.add_argument("--minutes", type=float, default=30.0)
    parser.add_argument("--quiet-s", type=float, nargs=2, default=(31.0, 50.0), help="between two strikes")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--note", default="")
    parser.add_argument("--out", type=Path, required=True)
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
