"""What holding requests back by tokens brings on a simulated engine: the table of decision 0006.

.venv/bin/python benchmarks/gateway/token_room.py        (half a minute; the same figures on every machine)
"""

# ruff: noqa: T201
from __future__ import annotations

import random
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[2] / "tests" / "fakes"))

from kv_engine import Job, KvEngine, simulate

# Requests, arrivals per second, mean tokens in and out, tokens in common, spread of lengths; tokens of cache.
LOADS = {
    "chats": (1200, 20, 500, 400, 0, 0.8, 20_000),
    "documents": (600, 10, 6000, 200, 0, 0.8, 60_000),
    "long answers": (900, 20, 200, 1500, 0, 0.8, 30_000),
    "6,000 in common": (2400, 30, 200, 200, 6000, 0.8, 30_000),
    "spread widely": (1200, 20, 500, 400, 0, 1.5, 20_000),
}
GAP_S = 0.5


def make_jobs(count: int, rate: float, prompt: int, output: int, shared: int, spread: float) -> list[Job]:
    chance, at_s, jobs = random.Random(1), 0.0, []
    for _ in range(count):
        at_s += chance.expovariate(rate)
        own = int(chance.lognormvariate(0, 0.5) * prompt) + 1
        length = max(2, int(chance.lognormvariate(-spread * spread / 2, spread) * output))
        jobs.append(Job(at_s=at_s, prompt=shared + own, output=length, shared=shared))
    return jobs


if __name__ == "__main__":
    for name, (*shape, capacity) in LOADS.items():
        for is_bounded in (False, True):
            found = simulate(make_jobs(*shape), KvEngine(capacity), is_bounded=is_bounded)
            print(
                f"{name:16} {'with' if is_bounded else 'without':8}"
                f" {found.output_tokens_per_s:7.0f} tokens/s  {found.goodput(gap_s=GAP_S):5.2f} good/s"
                f"  {found.num_preemptions:5} evictions  correction {found.correction:.2f}"
            )
