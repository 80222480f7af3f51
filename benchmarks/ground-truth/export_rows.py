"""The record's figures without logs and traces, as the tests read them: python export_rows.py RECORD.json OUT.json"""

import json
import re
import sys
from pathlib import Path

PICKED = {
    "weights_bytes": "weights_bytes",
    "activation_bytes": "torch_peak_increase_bytes",
    "non_torch_bytes": "non_torch_increase_bytes",
    "cuda_graph_bytes": "cudagraph_estimate_bytes",
    "requested_bytes": "requested_bytes",
    "kv_cache_bytes": "available_kv_bytes",
}


def _number(text: str) -> float:
    return float(text.replace(",", ""))


def read_rows(record: dict) -> list[dict]:
    """One row per start of the raw record, in its order; of several cards the poorest, which counts."""
    rows = []
    for run in record["runs"]:
        rank = min(run["ranks"], key=lambda one: one["available_kv_bytes"])
        log = " ".join(run["log"])
        graphs = dict(re.findall(r"(PIECEWISE|FULL)=(\d+) \(largest", log))
        measured = {name: rank[theirs] for name, theirs in PICKED.items()}
        tokens = re.search(r"GPU KV cache size: ([\d,]+) tokens", log)
        concurrency = re.search(r"per request: ([\d.]+)x", log)
        measured["kv_cache_tokens"] = int(_number(tokens[1])) if tokens else None
        measured["max_concurrency"] = float(concurrency[1]) if concurrency else None
        measured["num_gpu_blocks"] = run.get("num_gpu_blocks")
        measured["piecewise_graphs"] = int(graphs["PIECEWISE"]) if graphs else None
        measured["full_graphs"] = int(graphs["FULL"]) if graphs else None
        if "long_prompt" in run:
            measured["used_after_long_prompt_bytes"] = run["long_prompt"]["own_bytes"]
        row = {
            "id": run["id"],
            "config": run["row"]["model"],
            "args": run["row"]["args"],
            "measured": measured,
        }
        row |= {"mask": run["row"]["mask"]} if "mask" in run["row"] else {}
        row |= {"is_warm": True} if "after" in run["row"] else {}
        rows.append(row)
    return rows


def main() -> None:
    rows = read_rows(json.loads(Path(sys.argv[1]).read_text()))
    text = ",\n".join(f"  {json.dumps(row)}" for row in rows)
    note = "vLLM 0.25.1, torch 2.11, dummy weights, H200, 2026-11-30; made by benchmarks/ground-truth/export_rows.py"
    Path(sys.argv[2]).write_text(f'{{\n "about": "{note}",\n "starts": [\n{text}\n ]\n}}\n')


if __name__ == "__main__":
    main()
