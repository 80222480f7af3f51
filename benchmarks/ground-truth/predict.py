"""What the planner says about every row of the matrix, before any of them is measured.

    python predict.py OUT.json [--open RECORD.json]

--open: only rows that the raw record doesn't hold yet.
No GPU is used; the card is the catalogue's H200. The file is committed before the runs are made.
"""

import datetime
import json
import subprocess
import sys
from pathlib import Path

from configurations import PAIRS, ROWS
from model_folders import read_config

from trimtab.planner.gpu_spec import decode_gpu_spec
from trimtab.planner.model_config import decode_model_config
from trimtab.planner.model_parts import decode_parts
from trimtab.planner.vllm_budget import MemoryRequest
from trimtab.planner.vllm_memory import estimate_vllm_memory
from trimtab.planner.vllm_settings import resolve_vllm_settings
from trimtab.planner.vllm_versions import find_version

ENGINE_VERSION = "0.25.1"


def make_request(row: dict, **pinned: object) -> MemoryRequest:
    args = {
        name: json.dumps(value) if isinstance(value, dict) else value for name, value in row["args"].items()
    }
    facts = decode_model_config(read_config(row))
    cards = decode_gpu_spec(f"{args.get('tensor_parallel_size', 1)}xh200")
    version = find_version(ENGINE_VERSION)
    settings = resolve_vllm_settings((args | pinned).items(), facts=facts, gpu=cards[0], line=version.line)
    return MemoryRequest(
        facts=facts, parts=decode_parts(facts), settings=settings, gpus=cards, version=version
    )


def predict(row: dict) -> dict:
    found = estimate_vllm_memory(make_request(row))
    card = found.per_gpu[0]
    is_warm = "after" in row
    return {
        "id": row["id"],
        "requested_bytes": card.requested_bytes,
        "weights_bytes": card.weights_bytes,
        "activation_bytes": found.activation.warm_peak_bytes if is_warm else card.activation_bytes,
        "moment": found.activation.moment,
        "non_torch_bytes": card.non_torch_bytes,
        "cuda_graph_bytes": card.cuda_graph_bytes,
        "graphs_captured_bytes": found.graphs.captured_bytes,
        "kv_cache_bytes": found.warm_kv_cache_bytes if is_warm else card.kv_cache_bytes,
        "error_bytes": card.error_bytes,
        "outside_budget_bytes": card.outside_budget_bytes,
        "runtime_peak_bytes": found.runtime_peak_bytes,
        "blocks": found.capacity.blocks,
        "tokens": found.capacity.tokens,
        "max_concurrency": round(found.capacity.max_concurrency, 3),
        "verdict": found.verdict,
    }


def main() -> None:
    commit = subprocess.run(
        ["git", "rev-parse", "--short", "HEAD"], capture_output=True, text=True, check=True
    ).stdout.strip()
    held = set()
    if "--open" in sys.argv:
        held = {run["id"] for run in json.loads(Path(sys.argv[3]).read_text())["runs"]}
    document = {
        "made": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        "planner_commit": commit,
        "engine_version": ENGINE_VERSION,
        "predictions": [predict(row) for row in [*ROWS, *PAIRS] if row["id"] not in held],
    }
    Path(sys.argv[1]).write_text(json.dumps(document, indent=1) + "\n")
    for one in document["predictions"]:
        gib = {
            name: round(value / 2**30, 2) for name, value in one.items() if name.endswith("_bytes") and value
        }
        print(one["id"], one["moment"], gib["kv_cache_bytes"], one["blocks"], one["verdict"], gib)


if __name__ == "__main__":
    main()
