"""Predicted against measured: python compare.py RECORD.json PREDICTIONS.json [--markdown]

PREDICTIONS may be ``now``: the planner as it stands. Figures in MiB, predicted less measured. A row with
``after`` is held against the prediction for a filled compile cache.
"""

import json
import statistics
import sys
from pathlib import Path

MIB = 1 << 20
PAIRS = (
    ("weights", "weights_bytes", "weights_bytes"),
    ("activation", "activation_bytes", "torch_peak_increase_bytes"),
    ("non_torch", "non_torch_bytes", "non_torch_increase_bytes"),
    ("graphs", "cuda_graph_bytes", "cudagraph_estimate_bytes"),
    ("kv_cache", "kv_cache_bytes", "available_kv_bytes"),
)


def predictions_of(name: str, rows: list[dict]) -> dict[str, dict]:
    if name == "now":
        from predict import predict

        return {row["id"]: predict(row) for row in rows}
    return {one["id"]: one for one in json.loads(Path(name).read_text())["predictions"]}


def measure(run: dict) -> dict:
    """The poorest rank, which is the one that counts."""
    return min(run["ranks"], key=lambda rank: rank["available_kv_bytes"])


def blocks_of(run: dict) -> int | None:
    return run.get("num_gpu_blocks")


def main() -> None:
    record = json.loads(Path(sys.argv[1]).read_text())
    predictions = predictions_of(sys.argv[2], [run["row"] for run in record["runs"]])
    misses: dict[str, list[float]] = {name: [] for name, _, _ in PAIRS}
    weight_shares = []
    is_markdown = "--markdown" in sys.argv
    if is_markdown:
        print(
            "| start | weights | activation | non-torch | graphs | KV predicted GiB | KV measured GiB | KV error GiB |"
        )
        print("|---|---|---|---|---|---|---|---|")
    for run in record["runs"]:
        said = predictions.get(run["id"])
        if said is None:
            continue
        rank = measure(run)
        errors = {name: (said[ours] - rank[theirs]) / MIB for name, ours, theirs in PAIRS}
        for name, error in errors.items():
            misses[name].append(error)
        weight_shares.append(abs(errors["weights"] * MIB / rank["weights_bytes"]))
        cells = [f"{errors[name]:+.0f}" for name, _, _ in PAIRS[:4]]
        kv = (said["kv_cache_bytes"] / 2**30, rank["available_kv_bytes"] / 2**30, errors["kv_cache"] / 1024)
        if is_markdown:
            print(f"| {run['id']} | {' | '.join(cells)} | {kv[0]:.2f} | {kv[1]:.2f} | {kv[2]:+.2f} |")
        else:
            print(
                f"{run['id']:28s}",
                *(f"{cell:>7s}" for cell in cells),
                f"KV {kv[0]:6.2f} {kv[1]:6.2f} {kv[2]:+.3f}",
            )
    for name, values in misses.items():
        sizes = sorted(abs(value) for value in values)
        high = sizes[min(len(sizes) - 1, round(0.95 * len(sizes) + 0.5) - 1)]
        line = f"{name}: median {statistics.median(sizes):.0f} MiB, 95 % within {high:.0f}, worst {sizes[-1]:.0f} MiB ({len(sizes)} starts)"
        print(f"\n{line}" if is_markdown else line)
    print(f"weights: worst {max(weight_shares):.3%}")


if __name__ == "__main__":
    main()
