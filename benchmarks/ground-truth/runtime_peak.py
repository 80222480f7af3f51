"""What a card held after a long prompt against the run-time peak of the plan, as a table.

    python runtime_peak.py h200-vllm-0.25.1.json

The planner of today predicts each recorded start; no GPU is used. A start with a filled compile cache has the larger KV
cache of such a start.
"""

# ruff: noqa: T201
from __future__ import annotations

import json
import statistics
import sys
from pathlib import Path

from predict import make_request

from trimtab.planner.vllm_memory import estimate_vllm_memory

GIB = 1 << 30


def main() -> None:
    runs = json.loads(Path(sys.argv[1]).read_text())["runs"]
    misses = []
    print("| start | prompt, tokens | predicted GiB | held GiB | predicted less held |")
    print("|---|---|---|---|---|")
    for run in runs:
        prompt = run.get("long_prompt") or {}
        if "own_bytes" not in prompt:
            continue
        found = estimate_vllm_memory(make_request(run["row"]))
        said = found.runtime_peak_bytes
        if "after" in run["row"]:
            said += found.warm_kv_cache_bytes - found.per_gpu[0].kv_cache_bytes
        miss = (said - prompt["own_bytes"]) / GIB
        misses.append(miss)
        print(
            f"| {run['id']} | {prompt['tokens']:,} | {said / GIB:.2f} | {prompt['own_bytes'] / GIB:.2f} "
            f"| {miss:+.2f} |"
        )
    below = sum(miss < 0 for miss in misses)
    print(f"{len(misses)} starts, median {statistics.median(misses):+.2f}, from {min(misses):+.2f} "
          f"to {max(misses):+.2f}, {below} held more than predicted")  # fmt: skip


if __name__ == "__main__":
    main()
