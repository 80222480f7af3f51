"""Measurement tables as arrays the speed model's own functions can run over.

Needs numpy (an environment of its own, see README.md). The functions of
``trimtab.planner.latency_steps`` are plain arithmetic, so they take a column of a table wherever
they take a number; only ``least`` and ``most`` are swapped for numpy's.
"""

import csv
import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace

import numpy as np

from trimtab.bench.known_models import decode_known_model, known_models
from trimtab.bench.score import find_shape_name
from trimtab.bench.score_rows import (
    Measured,
    SpeedCase,
    base_name,
    decode_consumer_row,
    decode_serving_row,
    quantize_parts,
)
from trimtab.core.model_facts import ModelFacts
from trimtab.core.model_parts import ModelParts
from trimtab.errors import TrimtabError
from trimtab.planner import latency_request, latency_steps
from trimtab.planner.accelerator_specs import find_card
from trimtab.planner.gpu_spec import make_gpu
from trimtab.planner.latency import SpeedSettings, SpeedWorkload, estimate_cache_bytes, pair_key
from trimtab.planner.latency_cards import card_class, choose_interconnect, make_rates
from trimtab.planner.latency_profile import SpeedProfile, estimate_speed_profile
from trimtab.planner.model_config import decode_model_config
from trimtab.planner.model_parts import decode_parts

HERE = Path(__file__).parent
CHECKPOINTS = HERE.parents[1] / "tests" / "checkpoints"

latency_steps.least = latency_request.least = np.minimum
latency_steps.most = latency_request.most = np.maximum


@dataclass(frozen=True)
class Entry:
    """One row that can be asked: the case, its profile and what it is grouped by."""

    table: str
    case: SpeedCase
    profile: SpeedProfile
    shape: str
    pair: str
    key: tuple
    row: dict


def read_configs() -> dict[str, ModelFacts]:
    """Facts by lower-case base name, from the configs the tests keep."""
    found = {}
    for name in ("other_configs.json", "qwen_configs.json"):
        for model, config in json.loads((CHECKPOINTS / name).read_text()).items():
            found[model.lower()] = decode_model_config(config)
    for name in known_models():
        found.setdefault(name.lower(), decode_known_model(name))
    return found


def read_entries() -> tuple[list[Entry], dict[str, int]]:
    """Every usable row of both tables, duplicates kept once; and why the others are not used."""
    known = read_configs()
    parts: dict[tuple, ModelParts] = {}
    entries, reasons, seen = [], {}, set()
    tables = (
        ("serving", "vllm-serving-speed.csv", decode_serving_row),
        ("consumer", "consumer-cards.csv", decode_consumer_row),
    )
    for table, filename, decode in tables:
        with (HERE / "tables" / filename).open(newline="") as file:
            for row in csv.DictReader(file):
                try:
                    entry = _entry(table, row, decode(row), known, parts)
                except TrimtabError as error:
                    reasons[f"{table}: {error}"] = reasons.get(f"{table}: {error}", 0) + 1
                    continue
                same = (entry.shape, entry.case.card.name, entry.case.settings, entry.case.workload)
                measured = tuple(round(v or 0, 1) for v in vars_of(entry.case.measured))
                if (same, measured) not in seen:
                    seen.add((same, measured))
                    entries.append(entry)
    return entries + read_offline_entries(), reasons


ALL_BUT_LINEAR_ATTN = {
    "quant_method": "compressed-tensors",
    "format": "pack-quantized",
    "config_groups": {
        "group_0": {
            "targets": ["Linear"],
            "weights": {
                "num_bits": 4,
                "group_size": 32,
                "strategy": "group",
                "symmetric": True,
                "type": "int",
            },
        }
    },
    "ignore": [
        "lm_head",
        "re:.*linear_attn.*",
        "re:.*mlp[.]gate$",
        "re:.*shared_expert_gate$",
        "re:.*visual.*",
    ],
}


def read_offline_entries() -> list[Entry]:
    """Runs of vLLM's offline engine, decoding and prefill apart: nobody's prompt disturbs a stream.

    A row gives its time per token; with one sequence its first token too.
    """
    documents = {}
    for name in ("other_configs.json", "qwen_configs.json"):
        documents.update(json.loads((CHECKPOINTS / name).read_text()))
    found = []
    with (HERE / "tables" / "h200-offline.csv").open(newline="") as file:
        for row in csv.DictReader(file):
            config = documents[row["model"]]
            if row["quant"]:
                config = {**config, "quantization_config": ALL_BUT_LINEAR_ATTN}
            facts = decode_model_config(config)
            found += _offline_pair(row, facts)
    return found


def _offline_pair(row: dict, facts: ModelFacts) -> list[Entry]:
    settings = SpeedSettings(
        tensor_parallel_size=int(row["tp"]),
        kv_cache_dtype=row["kv_dtype"],
        max_num_batched_tokens=int(row["max_num_batched_tokens"]),
        kv_cache_tokens=10**9,
    )
    card = find_card("h200")
    profile = estimate_speed_profile(facts, decode_parts(facts), settings)
    users, isl = int(row["batch_size"]), int(row["isl"])
    measured = [(isl, Measured(tpot_ms=float(row["tpot_ms"])))]
    if users == 1:
        measured.append((0, Measured(ttft_ms=float(row["ttft_batch_ms"]))))
    found = []
    for cached, figures in measured:
        load = SpeedWorkload(
            input_tokens=isl, output_tokens=int(row["osl"]), concurrency=users, cached_tokens=cached,
            has_server=False,
        )  # fmt: skip
        case = SpeedCase(
            model=row["model"], card=card, num_gpus=settings.tensor_parallel_size, settings=settings,
            workload=load, measured=figures,
        )  # fmt: skip
        key = pair_key(facts, profile, card.name)
        pair = f"offline {row['model']}{row['quant']}|h200"
        found.append(
            Entry(table="offline", case=case, profile=profile, shape=pair, pair=pair, key=key, row=row)
        )
    return found


def vars_of(measured: object) -> tuple:
    """The measured figures in order."""
    return (measured.ttft_ms, measured.tpot_ms, measured.prefill_tokens_per_s, measured.output_tokens_per_s)


def _entry(table: str, row: dict, case: SpeedCase, known: dict, parts: dict) -> Entry:
    shape = find_shape_name(case.model, known)
    if shape is None:
        raise TrimtabError(f"no config of {case.model}")
    facts = known[shape]
    key = (shape, case.scheme, case.moe_scheme, case.head_scheme)
    if key not in parts:
        parts[key] = quantize_parts(facts, decode_parts(facts), case)
    profile = estimate_speed_profile(facts, parts[key], case.settings)
    return Entry(
        table=table,
        case=case,
        profile=profile,
        shape=shape,
        pair=f"{base_name(case.model)}|{case.card.name}",
        key=pair_key(facts, profile, case.card.name),
        row=row,
    )


def stack(entries: list[Entry]) -> SimpleNamespace:
    """Columns of profiles, demands, rates and measurements."""

    def column(read: Callable[[Entry], float]) -> np.ndarray:
        return np.array([read(entry) for entry in entries], float)

    def part(read: Callable[[Entry], object], names: tuple[str, ...]) -> SimpleNamespace:
        return SimpleNamespace(**{n: column(lambda e, n=n: getattr(read(e), n)) for n in names})

    profile_fields = [n for n in SpeedProfile.__slots__ if n not in _NESTED]
    profile = part(lambda e: e.profile, tuple(profile_fields))
    for name in ("linear_16", "linear_8", "linear_4", "head"):
        setattr(
            profile, name, part(lambda e, n=name: getattr(e.profile, n), ("weight_bytes", "flops_per_token"))
        )
    fields = ("bits", "bytes_each", "flops_each", "num_local", "num_experts", "top_k", "width")
    profile.experts = part(lambda e: e.profile.experts, fields)
    gpus = [make_gpu(entry.case.card, index=0) for entry in entries]
    rates = [make_rates(gpu, entry.profile.four_bit) for gpu, entry in zip(gpus, entries, strict=True)]
    table = SimpleNamespace(profile=profile)
    table.rates = SimpleNamespace(
        **{
            n: np.array([getattr(r, n) for r in rates])
            for n in ("bandwidth", "flops_16", "flops_8", "flops_4")
        }
    )
    table.kind = np.array([card_class(gpu) for gpu in gpus])
    links = [
        e.case.settings.interconnect or choose_interconnect(g) for e, g in zip(entries, gpus, strict=True)
    ]
    table.link = np.array([f"{kind}/{link}" for kind, link in zip(table.kind, links, strict=True)])
    table.cache_bytes = np.array(
        [estimate_cache_bytes(e.profile, g) for e, g in zip(entries, gpus, strict=True)], float
    )
    table.demand = _demands(entries, column)
    table.kv_tokens = column(lambda e: e.case.settings.kv_cache_tokens or 0)
    table.seqs = column(lambda e: e.case.settings.max_num_seqs or 1e9)
    table.ttft = column(lambda e: e.case.measured.ttft_ms or np.nan)
    table.tpot = column(lambda e: e.case.measured.tpot_ms or np.nan)
    total = column(lambda e: e.case.measured.output_tokens_per_s or np.nan)
    table.total = np.where(np.isnan(table.tpot) & np.isnan(table.ttft), total, np.nan)
    table.prefill = column(lambda e: e.case.measured.prefill_tokens_per_s or np.nan)
    table.shape = np.array([f"{e.shape}|{e.case.card.name}" for e in entries])
    table.trust = np.array([_trust(e) for e in entries])
    table.is_solid = np.array([e.row.get("confidence", "high") != "low" for e in entries])
    table.pair = np.array([e.pair for e in entries])
    table.table = np.array([e.table for e in entries])
    return table


def _trust(entry: Entry) -> float:
    """A row's weight in the fit: kernels the model doesn't have are out, throttled cards count half."""
    if "int8 activations" in (entry.row.get("notes") or ""):
        return 0.0
    cap = entry.row.get("power_cap_w") or ""
    return 0.5 if cap and float(cap) <= 250 else 1.0


_NESTED = {"linear_16", "linear_8", "linear_4", "head", "experts", "four_bit"}


def _demands(entries: list[Entry], column: Callable) -> SimpleNamespace:
    settings = [e.case.settings for e in entries]
    return SimpleNamespace(
        input_tokens=column(lambda e: e.case.workload.input_tokens),
        output_tokens=column(lambda e: e.case.workload.output_tokens),
        concurrency=column(lambda e: e.case.workload.concurrency),
        cached_tokens=column(lambda e: min(e.case.workload.cached_tokens, e.case.workload.input_tokens - 1)),
        shared_tokens=column(lambda e: min(e.case.workload.shared_tokens, e.case.workload.input_tokens - 1)),
        chunk_tokens=column(lambda e: e.case.settings.max_num_batched_tokens),
        ranks=column(lambda e: e.case.settings.tensor_parallel_size),
        groups=np.array([s.tensor_parallel_size / s.attention_ranks for s in settings]),
        stages=column(lambda e: e.case.settings.pipeline_parallel_size),
        rounds=column(lambda e: e.case.workload.requests_per_user),
        has_server=column(lambda e: e.case.workload.has_server),
    )


def take(table: SimpleNamespace, mask: np.ndarray) -> SimpleNamespace:
    """The rows of a mask."""
    return SimpleNamespace(
        **{
            name: take(value, mask) if isinstance(value, SimpleNamespace) else value[mask]
            for name, value in vars(table).items()
        }
    )
