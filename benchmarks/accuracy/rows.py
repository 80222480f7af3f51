"""Every prediction of ours beside what was measured, from the committed raw files: memory, speed, users' tries."""

import csv
import json
import sys
from dataclasses import replace
from functools import lru_cache
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
TRUTH = ROOT / "benchmarks" / "ground-truth"
TRIES = ROOT / "benchmarks" / "accuracy" / "tries"
MEMORY_RAW = TRUTH / "h200-vllm-0.25.1.json"
# Committed before the starts they are of. The first planner was mended on what those starts showed; the mended one said
# the second file, of starts that nobody had seen.
BEFORE = tuple(TRUTH / f"predictions-2026-11-30{name}.json" for name in ("", "-open"))
SPEED_RAW = ROOT / "benchmarks" / "speed" / "tables" / "h200-offline.csv"
for folder in (TRUTH, ROOT / "benchmarks" / "speed"):
    sys.path.append(str(folder))

from export_rows import read_rows
from predict import make_request
from table_rows import ALL_BUT_LINEAR_ATTN
from trimtab.core.hardware import Gpu
from trimtab.planner.calibration import CalibrationRecord, MeasuredTerms, find_corrections, key_of
from trimtab.planner.gpu_spec import decode_gpu_spec
from trimtab.planner.latency import SpeedCalibration, SpeedWorkload, estimate_speed
from trimtab.planner.latency_profile import SpeedSettings
from trimtab.planner.model_config import decode_model_config
from trimtab.planner.model_parts import decode_parts
from trimtab.planner.speed_calibration import MeasuredPoint, find_speed_calibration, summarise_points
from trimtab.planner.vllm_memory import VllmMemory, estimate_vllm_memory

VERSION = "0.25.1"
CARD = "h200"


def read_memory_rows() -> list[dict]:
    """A row per measured start: KV bytes as predicted before, by today's planner, and after one other start."""
    record = json.loads(MEMORY_RAW.read_text())
    first, second = (
        {one["id"]: one for one in json.loads(path.read_text())["predictions"]} for path in BEFORE
    )
    before = first | second
    runs = {run["id"]: run for run in record["runs"]}
    starts = read_rows(record)
    found = []
    for start in starts:
        row = _as_planned(start)
        now, got, is_warm = estimate_vllm_memory(make_request(row)), start["measured"], start.get("is_warm")
        after = _after_one_start(start, starts)
        said = before.get(start["id"])
        found.append(
            {
                "id": start["id"],
                "date": runs[start["id"]]["date"],
                "prompt": runs[start["id"]].get("long_prompt", {}).get("tokens", 0),
                "model": start["config"],
                "is_unseen": start["id"] in second,
                "num_cards": start["args"].get("tensor_parallel_size", 1),
                "kv_measured": got["kv_cache_bytes"],
                "kv_before": said["kv_cache_bytes"] if said else None,
                "kv_now": now.warm_kv_cache_bytes if is_warm else now.per_gpu[0].kv_cache_bytes,
                "kv_after": after,
                "weights_measured": got["weights_bytes"],
                "weights_now": now.per_gpu[0].weights_bytes,
                "tokens_measured": got["kv_cache_tokens"],
                "tokens_before": said["tokens"] if said else None,
                # Of a start with a filled compile cache the planner says the bytes only.
                "tokens_now": None if is_warm else now.capacity.tokens,
            }
        )
    return found


def _as_planned(start: dict) -> dict:
    row = {"id": start["id"], "model": start["config"], "args": start["args"]}
    return row | ({"mask": start["mask"]} if "mask" in start else {})


def _after_one_start(start: dict, starts: list[dict]) -> int | None:
    """KV bytes as planned once one other start of the same model on as many cards was measured: the first."""
    others = [
        other for other in starts if other["id"] != start["id"] and _model_of(other) == _model_of(start)
    ]
    if not others:
        return None
    key = _key_of(start)
    memory = estimate_vllm_memory(make_request(_as_planned(start)))
    corrections = find_corrections([_record_of(others[0])], key, memory.terms[0])
    if not corrections:
        return memory.per_gpu[0].kv_cache_bytes
    request = replace(make_request(_as_planned(start)), calibration_bytes=corrections)
    found: VllmMemory = estimate_vllm_memory(request)
    return found.warm_kv_cache_bytes if start.get("is_warm") else found.per_gpu[0].kv_cache_bytes


def _model_of(start: dict) -> tuple:
    return start["config"], start.get("mask"), start["args"].get("tensor_parallel_size", 1)


@lru_cache(maxsize=1)
def _card() -> Gpu:
    return decode_gpu_spec(f"1x{CARD}")[0]


def _key_of(start: dict):
    values = {
        name: json.dumps(value) if isinstance(value, dict) else value for name, value in start["args"].items()
    }
    return key_of(_card(), VERSION, f"{start['config']} {start.get('mask', '')}".strip(), values)


def _record_of(start: dict) -> CalibrationRecord:
    got = start["measured"]
    measured = MeasuredTerms(
        weights_bytes=got["weights_bytes"],
        activation_bytes=got["activation_bytes"] + got["non_torch_bytes"],
        cuda_graph_bytes=got["cuda_graph_bytes"],
        kv_cache_bytes=got["kv_cache_bytes"],
        kv_cache_tokens=got["kv_cache_tokens"],
    )
    return CalibrationRecord(
        key=_key_of(start), replica_id=start["id"], at_s=0.0, predicted=measured, measured=measured
    )


def read_speed_rows() -> list[dict]:
    """A row per measured batch: one user's first token and the time per token, with and without its pair's fit."""
    configs = {}
    for name in ("other_configs.json", "qwen_configs.json"):
        configs |= json.loads((ROOT / "tests" / "checkpoints" / name).read_text())
    with SPEED_RAW.open(newline="") as file:
        rows = list(csv.DictReader(file))
    parts = {}
    for row in rows:
        config = configs[row["model"]]
        if row["quant"]:
            config = config | {"quantization_config": ALL_BUT_LINEAR_ATTN}
        key = row["model"], row["quant"]
        if key not in parts:
            facts = decode_model_config(config)
            parts[key] = facts, decode_parts(facts)
    return [_speed_row(row, *parts[row["model"], row["quant"]]) for row in rows]


def _speed_row(row: dict, facts, parts) -> dict:
    users, isl = int(row["batch_size"]), int(row["isl"])
    settings = SpeedSettings(
        tensor_parallel_size=int(row["tp"]),
        kv_cache_dtype=row["kv_dtype"],
        max_num_batched_tokens=int(row["max_num_batched_tokens"]),
        kv_cache_tokens=10**9,
    )
    cards = decode_gpu_spec(f"{row['tp']}x{CARD}")

    def ask(cached: int, calibration: SpeedCalibration | None):
        load = SpeedWorkload(
            input_tokens=isl, output_tokens=int(row["osl"]), concurrency=users, cached_tokens=cached,
            has_server=False,
        )  # fmt: skip
        return estimate_speed(facts, parts, settings, cards, load, calibration=calibration)

    # Decoding apart from prefill, as it was measured: the batch's prompts were over before.
    return {
        "id": row["id"],
        "model": row["model"] + (" int4" if row["quant"] else ""),
        "users": users,
        "isl": isl,
        "tpot_measured": float(row["tpot_ms"]),
        "tpot_now": ask(isl, None).tpot_ms,
        "tpot_plain": ask(isl, SpeedCalibration()).tpot_ms,
        "ttft_measured": float(row["ttft_batch_ms"]) if users == 1 else None,
        "ttft_now": ask(0, None).ttft_ms if users == 1 else None,
        "ttft_plain": ask(0, SpeedCalibration()).ttft_ms if users == 1 else None,
    }


def add_calibrated_speed(rows: list[dict]) -> None:
    """``*_after``: as predicted once the other loads of that model were measured, which is what one try does."""
    for row in rows:
        others = [one for one in rows if one["model"] == row["model"] and one is not row]
        key = key_of(_card(), VERSION, row["model"], {})
        record = summarise_points((_point(one) for one in others), key, at_s=0.0)
        row["tpot_after"] = row["ttft_after"] = None
        if record is None:
            continue
        load = SpeedWorkload(input_tokens=row["isl"], concurrency=row["users"])
        ttft, tpot = find_speed_calibration([record], key).factors_of(load)
        row["tpot_after"] = row["tpot_plain"] * tpot
        row["ttft_after"] = row["ttft_plain"] * ttft if row["ttft_plain"] is not None else None


def _point(row: dict) -> MeasuredPoint:
    return MeasuredPoint(
        concurrency=row["users"],
        input_tokens=row["isl"],
        predicted_ttft_ms=row["ttft_plain"] or 0.0,
        predicted_tpot_ms=row["tpot_plain"],
        ttft_ms=row["ttft_measured"],
        tpot_ms=row["tpot_measured"],
    )


def read_try_rows() -> list[dict]:
    """Results of ``trimtab try`` that people contributed, one document each, by date."""
    found = [json.loads(path.read_text()) | {"file": path.name} for path in sorted(TRIES.glob("*.json"))]
    return sorted(found, key=lambda document: document["date"])
