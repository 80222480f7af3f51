"""Add a run's results to the committed raw record: python record_runs.py RECORD.json RUNS.json...

A row that the record holds is kept. A start that was cut off later counts when its own accounting was
complete (the capture of graphs is over); it is marked. Of the log, only lines with figures are kept.
"""

import json
import re
import sys
from pathlib import Path

FIGURES = re.compile(
    r"Model loading took|Available KV|GPU KV cache size|Maximum concurrency|Graph capturing|CUDA graph pool|Profiling CUDA"
    r"|Estimated .*CUDA graph|Memory profiling takes|attention block size|Padding mamba|Encoder cache|backend|padding layers"
    r"|torch.compile takes"
)


def shorten(line: str) -> str:
    return re.sub(r"^.*?\] ", "", line)[:240]


def main() -> None:
    path = Path(sys.argv[1])
    record = (
        json.loads(path.read_text()) if path.exists() else {"engine": "vLLM 0.25.1", "hosts": [], "runs": []}
    )
    held = {one["id"] for one in record["runs"]}
    for name in sys.argv[2:]:
        found = json.loads(Path(name).read_text())
        if "host" in found:
            host = found["host"]
            if host not in record["hosts"]:
                record["hosts"].append(host)
        for run in found["runs"] if "runs" in found else [found]:
            is_accounted = bool(run["ranks"]) and all("own_bytes_ready" in rank for rank in run["ranks"])
            if run["id"] in held or not is_accounted:
                continue
            if not run.pop("done", False):
                run["cut_off"] = "accounting complete, ended before its long prompt was served"
            run.pop("log_tail", None)
            run["log"] = [shorten(line) for line in dict.fromkeys(run["log"]) if FIGURES.search(line)]
            run["date"] = host["date"]
            record["runs"].append(run)
            held.add(run["id"])
    path.write_text(json.dumps(record, indent=1) + "\n")
    print(len(record["runs"]), "runs")


if __name__ == "__main__":
    main()
