"""The memory model of llama.cpp against what real engines held (benchmarks/llama_cpp_memory)."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from trimtab.core.checkpoint import GgufCheckpoint
from trimtab.core.hardware import Host
from trimtab.core.plan import HostBudget
from trimtab.core.stack import ModelRequest
from trimtab.engines.llama_cpp import REQUIRED_XLLAMACPP
from trimtab.planner.llama_cpp import plan_llama_cpp
from trimtab.planner.llama_cpp_memory import LlamaCppShape, estimate_memory, pad_tokens
from trimtab.units import MIB

_RESULTS = Path(__file__).parents[2] / "benchmarks" / "llama_cpp_memory" / "results-2026-11-30.json"
_DOCUMENT = json.loads(_RESULTS.read_text(encoding="utf-8"))
_ROWS: list[dict[str, Any]] = _DOCUMENT["rows"]


def _tuples(value: Any) -> Any:
    return tuple(_tuples(item) for item in value) if isinstance(value, list) else value


def _checkpoint(row: dict[str, Any]) -> GgufCheckpoint:
    return GgufCheckpoint(**{name: _tuples(value) for name, value in row["checkpoint"].items()})


def _budget(row: dict[str, Any]) -> HostBudget:
    request = ModelRequest(**{name: _tuples(value) for name, value in row["request"].items()})
    outcome = plan_llama_cpp(
        request,
        _checkpoint(row),
        Host(**_DOCUMENT["about"]["host"]),
        ram_bytes=None,
        python="python",
        engine_version=REQUIRED_XLLAMACPP,
    )
    budget = outcome.model.replicas[0].host
    assert budget is not None
    return budget


def _name(row: dict[str, Any]) -> str:
    request = row["request"]
    pins = (f"{name}={value}" for name, value in request["engine_args"] if name != "cache_ram_mib")
    return f"{request['checkpoint']} {request['context']}x{request['concurrency']} {' '.join(pins)}"


@pytest.mark.parametrize("row", [pytest.param(row, id=_name(row)) for row in _ROWS])
def test_predicted_memory_is_within_five_percent_of_the_measured(row: dict[str, Any]):
    """What a plan says an engine will take is what the kernel shows after real work."""
    budget, measured = _budget(row), row["long_prompt"]["VmRSS"]
    assert budget.requested_bytes == pytest.approx(measured, rel=0.05)
    assert abs(budget.requested_bytes - measured) <= budget.error_bytes + 4 * MIB


def test_default_plan_of_the_embedded_model_is_within_two_percent():
    """The first plan that anybody sees is right."""
    row = _ROWS[0]
    assert (row["request"]["context"], row["request"]["concurrency"]) == (None, None)
    assert _budget(row).requested_bytes == pytest.approx(row["long_prompt"]["VmRSS"], rel=0.02)


@pytest.mark.parametrize("row", [pytest.param(row, id=_name(row)) for row in _ROWS])
def test_kv_cache_is_what_the_engine_logs(row: dict[str, Any]):
    """The KV cache in a plan is the engine's own figure, to the precision of its log."""
    logged_mib = sum(mib for kind, mib in row["buffers_mib"] if kind == "KV")
    assert _budget(row).kv_cache_bytes / MIB == pytest.approx(logged_mib, abs=0.02)


@pytest.mark.parametrize("row", [pytest.param(row, id=_name(row)) for row in _ROWS])
def test_compute_buffers_are_what_the_engine_logs(row: dict[str, Any]):
    """The compute buffers in a plan are never below the engine's own figure, and close to it."""
    logged_mib = sum(mib for kind, mib in row["buffers_mib"] if kind == "compute")
    without_flash = ["flash_attn", "off"] in row["request"]["engine_args"]
    is_special = without_flash or ["kv_unified", True] in row["request"]["engine_args"]
    found_mib = _budget(row).compute_bytes / MIB
    assert found_mib >= logged_mib * (0.97 if is_special else 0.999)
    assert found_mib <= logged_mib * (1.45 if without_flash else 1.09)


def test_tokens_are_padded_to_whole_cells():
    """A context of 1,000 tokens is planned as the 1,024 that the engine really reserves."""
    assert [pad_tokens(tokens) for tokens in (1, 256, 257, 1000)] == [256, 256, 512, 1024]


def test_encoders_keep_no_cache():
    """A bert-like embedding model is not charged for a KV cache that it does not have."""
    encoder = GgufCheckpoint(**(_tuples_of(_ROWS[0]) | {"architecture": "bert", "is_embedding_only": True}))
    shape = LlamaCppShape(pool_tokens=2048, num_slots=1, embeddings=True)
    assert estimate_memory(encoder, shape).kv_cache_bytes == 0


@pytest.mark.parametrize(
    ("is_embedding_only", "context", "slots", "measured_kib"),
    [(False, 2048, 1, 1_012_964), (True, 2048, 1, 1_013_760), (False, 1024, 4, 645_792)],
    ids=["chat-model", "embedding-model", "four-slots"],
)
def test_embeddings_of_a_decoder_cost_logits_of_every_token(is_embedding_only, context, slots, measured_kib):
    """VmRSS of SmolLM2-135M Q4_1 after inputs of context - 7 and shorter, twice computed and copied out.

    xllamacpp 2026.10.11549, 2026-11-30, ``embeddings: true``; the embedding model is the same file with
    ``llama.pooling_type`` 1.
    """
    facts = _tuples_of(_ROWS[0]) | {"is_embedding_only": is_embedding_only}
    shape = LlamaCppShape(
        pool_tokens=context * slots, num_slots=slots, ubatch_tokens=context, embeddings=True
    )
    predicted = estimate_memory(GgufCheckpoint(**facts), shape).resident_bytes
    assert predicted == pytest.approx(measured_kib * 1024, rel=0.03)


def _tuples_of(row: dict[str, Any]) -> dict[str, Any]:
    return {name: _tuples(value) for name, value in row["checkpoint"].items()}
