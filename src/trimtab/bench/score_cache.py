"""Pure. KV-cache tokens that vLLM would print for the memory a row logged, by the planner's own layout."""

from __future__ import annotations

import re
from collections.abc import Mapping

from trimtab.bench.other_cards import find_table_card
from trimtab.core.model_facts import ModelFacts
from trimtab.core.stack import SettingValue
from trimtab.errors import MissingFactError
from trimtab.planner.gpu_spec import make_gpu
from trimtab.planner.vllm_attention import choose_attention_backend
from trimtab.planner.vllm_kv_cache import KvCacheRequest, estimate_kv_cache_layout
from trimtab.planner.vllm_kv_capacity import estimate_kv_cache_capacity
from trimtab.planner.vllm_settings import resolve_vllm_settings
from trimtab.planner.vllm_versions import find_version
from trimtab.units import GIB

__all__ = ["estimate_row_cache_tokens", "logged_cache_tokens"]

Row = Mapping[str, str]
_CACHE_DTYPES = {
    "fp8": "fp8",
    "fp8_e4m3": "fp8",
    "fp8_e5m2": "fp8",
    "bf16": "auto",
    "fp16": "auto",
    "": "auto",
}


def logged_cache_tokens(row: Row) -> int | None:
    """What the engine printed; None where the row has no such figure or not what it depends on."""
    needed = ("kv_cache_tokens_logged", "available_kv_gib_logged", "max_model_len", "engine_version")
    if (row.get("engine") or "vllm") != "vllm" or not all((row.get(name) or "").strip() for name in needed):
        return None
    try:
        return int(float(row["kv_cache_tokens_logged"]))
    except ValueError:
        return None


def estimate_row_cache_tokens(row: Row, facts: ModelFacts) -> int:
    """The figure for the row's version, length, dtype and memory; MissingFactError where one isn't known."""
    version = re.match(r"\d+\.\d+\.\d+", row.get("engine_version") or "")
    if version is None:
        raise MissingFactError(f"engine_version {row.get('engine_version')!r} isn't a release")
    dtype = _CACHE_DTYPES.get((row.get("kv_dtype") or "").strip())
    card = find_table_card(row.get("gpu") or "")
    if dtype is None or card is None:
        raise MissingFactError(f"kv_dtype {row.get('kv_dtype')!r} or card {row.get('gpu')!r} isn't known")
    line = find_version(version.group(0)).line
    gpu = make_gpu(card, index=0)
    settings = resolve_vllm_settings(_pairs(row, dtype), facts=facts, gpu=gpu, line=line)
    capability = card.compute_capability
    attention = choose_attention_backend(facts, settings, capability, line)
    layout = estimate_kv_cache_layout(
        facts, KvCacheRequest(settings=settings, capability=capability, line=line, attention=attention)
    )
    available = (int(float(row["available_kv_gib_logged"]) * GIB),) * settings.pipeline_parallel_size
    return estimate_kv_cache_capacity(layout, available, facts=facts, settings=settings, line=line).tokens


def _pairs(row: Row, dtype: str) -> list[tuple[str, SettingValue]]:
    """Prefix caching counts as on: the hybrids' printed figures of the table fit that to the token."""
    pairs: list[tuple[str, SettingValue]] = [
        ("tensor_parallel_size", int(row.get("tp") or 1)),
        ("max_model_len", int(row["max_model_len"])),
        ("kv_cache_dtype", dtype),
        ("enable_prefix_caching", True),
    ]
    pairs += [(name, int(row[name])) for name in ("max_num_seqs", "max_num_batched_tokens") if row.get(name)]
    drafts = re.match(r"mtp-(\d+)", row.get("spec_decode") or "")
    if drafts is not None:
        pairs.append(
            ("speculative_config", f'{{"method": "mtp", "num_speculative_tokens": {drafts.group(1)}}}')
        )
    return pairs
