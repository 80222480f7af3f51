"""Print predicted against measured resident memory for a raw file of measure.py.

python benchmarks/llama_cpp_memory/compare.py OUT.json
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

from trimtab.core.checkpoint import GgufCheckpoint
from trimtab.core.hardware import Host
from trimtab.core.stack import ModelRequest
from trimtab.planner.llama_cpp import plan_llama_cpp


def as_tuples(value):
    return tuple(as_tuples(item) for item in value) if isinstance(value, list) else value


def budget_of(row: dict, host: Host):
    request = ModelRequest(**{name: as_tuples(value) for name, value in row["request"].items()})
    checkpoint = GgufCheckpoint(**{name: as_tuples(value) for name, value in row["checkpoint"].items()})
    outcome = plan_llama_cpp(
        request, checkpoint, host, ram_bytes=None, python="python", engine_version="2026.10.11549"
    )
    return outcome.model.replicas[0].host


def main() -> None:
    document = json.loads(Path(sys.argv[1]).read_text())
    host = Host(**document["about"]["host"])
    worst = 0.0
    print("  error   predicted    measured  KV log/plan       compute log/plan   model and request")
    for row in document["rows"]:
        budget = budget_of(row, host)
        measured = row["long_prompt"]["VmRSS"]
        # Without what comes on top later: old prompts (off in these rows) and states of sliding windows.
        predicted = budget.requested_bytes
        error = predicted / measured - 1
        worst = max(worst, abs(error))
        logged = {}
        for kind, mib in row["buffers_mib"]:
            logged[kind] = logged.get(kind, 0) + mib
        pins = {name: value for name, value in row["request"]["engine_args"] if name != "cache_ram_mib"}
        asked = {name: row["request"][name] for name in ("context", "concurrency") if row["request"][name]}
        print(
            f"{error:+7.1%} {predicted / 2**20:8.1f} MiB {measured / 2**20:7.1f} MiB"
            f"  {logged.get('KV', 0):7.1f}/{budget.kv_cache_bytes / 2**20:7.1f}"
            f"  {logged.get('compute', 0):7.2f}/{budget.compute_bytes / 2**20:7.2f}"
            f"  {row['request']['checkpoint']} {asked | pins}"
        )
    print(f"worst {worst:.1%}")


if __name__ == "__main__":
    main()
