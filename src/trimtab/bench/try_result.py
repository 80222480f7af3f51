"""Pure. What a try found, set beside what was predicted; as one JSON document with a schema version.

Ratios are measured over predicted: 1 is right, 2 is twice as much (or as slow) as was said.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any, Final

from trimtab.bench.try_points import Cut, TryPoint
from trimtab.core.plan import GpuBudget, ReplicaPlan
from trimtab.engines.vllm_phases import BootFacts
from trimtab.units import GIB

__all__ = [
    "CANNOT_TELL",
    "TRY_SCHEMA",
    "Comparison",
    "PointResult",
    "SpeedCorrections",
    "TriedModel",
    "TryRun",
    "compare_memory",
    "compare_points",
    "make_try_document",
]

TRY_SCHEMA: Final = 1
CANNOT_TELL: Final = (
    "Weights are random: speed with speculation (MTP), whose drafts are hardly ever accepted, and the quality"
    " of the text cannot be told; experts of a mixture are chosen by chance, more evenly than by real text."
)
"""What dummy weights do not show, in words for people."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Comparison:
    """One figure: ``unit`` is bytes, tokens, requests or ms. None where one side does not say it."""

    name: str
    unit: str
    predicted: float | None
    measured: float | None

    @property
    def ratio(self) -> float | None:
        """Measured over predicted."""
        if self.predicted is None or self.measured is None or self.predicted <= 0:
            return None
        return self.measured / self.predicted


@dataclass(frozen=True, slots=True, kw_only=True)
class PointResult:
    """One load as predicted and as measured, means in milliseconds; ``remarks`` qualify the figures.

    ``is_valid`` is False where the client was the bottleneck: shown, and never calibrated with.
    """

    point: TryPoint
    predicted_ttft_ms: float | None
    predicted_tpot_ms: float | None
    ttft_ms: float | None
    tpot_ms: float | None
    completed: int
    failed: int
    is_valid: bool = True
    remarks: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class SpeedCorrections:
    """Measured over predicted, smallest and largest of the loads: first tokens, and tokens."""

    ttft: tuple[float, float]
    tpot: tuple[float, float]


@dataclass(frozen=True, slots=True, kw_only=True)
class TriedModel:
    """All that was found about one model; ``failure`` is why it ended early, ``notes`` are for the reader.

    ``checkpoint`` is a repository's name or a folder's own name, never a path. ``settings`` are vLLM's by
    name. ``corrections`` are the speed calibration that was kept.
    """

    name: str
    checkpoint: str
    engine_version: str
    card: str
    num_cards: int
    is_cpu_build: bool
    has_tokenizer: bool
    settings: tuple[tuple[str, Any], ...]
    start_s: float | None = None
    memory: tuple[Comparison, ...] = ()
    points: tuple[PointResult, ...] = ()
    cuts: tuple[Cut, ...] = ()
    is_memory_calibrated: bool = False
    corrections: SpeedCorrections | None = None
    failure: str = ""
    notes: tuple[str, ...] = ()

    def with_point(self, result: PointResult) -> TriedModel:
        """The same with one more load."""
        return replace(self, points=(*self.points, result))


@dataclass(frozen=True, slots=True, kw_only=True)
class TryRun:
    """The command as a whole; ``is_interrupted`` also while it is not over yet."""

    date: str
    version: str
    budget_s: float
    elapsed_s: float
    is_interrupted: bool


def compare_memory(
    budget: GpuBudget | None, replica: ReplicaPlan, facts: BootFacts, *, is_cpu_build: bool
) -> tuple[Comparison, ...]:
    """The terms of one card's memory and what the engine prints, from its log.

    On a CPU there is no card to compare: what it measured stands alone.
    """
    weights, cache = _bytes(facts.weights_gib), _bytes(facts.available_kv_gib)
    graphs = _bytes(facts.estimated_graph_gib)
    rest = None
    if budget is not None and budget.requested_bytes is not None and None not in (weights, cache):
        rest = budget.requested_bytes - (weights or 0) - (cache or 0) - (graphs or 0)
    said = _no_budget() if budget is None or is_cpu_build else budget
    tokens, users = (None, None) if is_cpu_build else (replica.kv_cache_tokens, replica.max_concurrency)
    rows = (
        ("weights", "bytes", said.weights_bytes, weights),
        (
            "activations and kernels",
            "bytes",
            said.activation_bytes + said.non_torch_bytes,
            None if is_cpu_build else rest,
        ),
        ("graphs, as estimated", "bytes", said.cuda_graph_bytes, graphs),
        ("available KV cache", "bytes", said.kv_cache_bytes, cache),
        ("KV cache", "tokens", tokens, facts.kv_cache_tokens),
        ("requests of full length", "requests", users, facts.max_concurrency),
    )
    return tuple(
        Comparison(name=name, unit=unit, predicted=predicted or None, measured=measured)
        for name, unit, predicted, measured in rows
        if predicted or measured
    )


def _no_budget() -> GpuBudget:
    """Nothing predicted: zeros, which are shown as nothing."""
    return GpuBudget(
        total_bytes=0,
        requested_bytes=None,
        weights_bytes=0,
        activation_bytes=0,
        non_torch_bytes=0,
        cuda_graph_bytes=0,
        kv_cache_bytes=0,
        outside_budget_bytes=0,
        error_bytes=0,
    )


def _bytes(gib: float | None) -> int | None:
    return None if gib is None else round(gib * GIB)


def compare_points(results: Sequence[PointResult]) -> tuple[Comparison, ...]:
    """Each load's first token and time per token beside its prediction."""
    found = []
    for result in results:
        found.append(
            Comparison(
                name=f"TTFT, {result.point}",
                unit="ms",
                predicted=result.predicted_ttft_ms,
                measured=result.ttft_ms,
            )
        )
        if result.point.kind == "decode":
            found.append(
                Comparison(
                    name=f"TPOT, {result.point}",
                    unit="ms",
                    predicted=result.predicted_tpot_ms,
                    measured=result.tpot_ms,
                )
            )
    return tuple(found)


def make_try_document(
    run: TryRun, models: Sequence[TriedModel], plan: dict[str, Any] | None
) -> dict[str, Any]:
    """The whole result; ``plan`` is the one that follows, None while there is none yet."""
    documents = [_model_document(model) for model in models]
    return {
        "schema_version": TRY_SCHEMA,
        "tool": "trimtab try",
        "trimtab_version": run.version,
        "date": run.date,
        "budget_s": run.budget_s,
        "elapsed_s": round(run.elapsed_s, 1),
        "is_interrupted": run.is_interrupted,
        "cannot_tell": CANNOT_TELL,
        "models": documents,
        "plan": plan,
    }


def _model_document(model: TriedModel) -> dict[str, Any]:
    return {
        "name": model.name,
        "checkpoint": model.checkpoint,
        "engine": "vllm",
        "engine_version": model.engine_version,
        "card": model.card,
        "num_cards": model.num_cards,
        "is_cpu_build": model.is_cpu_build,
        "has_tokenizer": model.has_tokenizer,
        "load_format": "dummy",
        "settings": dict(model.settings),
        "start_s": None if model.start_s is None else round(model.start_s, 1),
        "memory": [_comparison_document(row) for row in model.memory],
        "speed": [_point_document(result) for result in model.points],
        "cut": [{**asdict(cut.point), "reason": cut.reason} for cut in model.cuts],
        "calibrated": {
            "memory": model.is_memory_calibrated,
            "speed": None if model.corrections is None else asdict(model.corrections),
        },
        "failure": model.failure,
        "notes": list(model.notes),
    }


def _comparison_document(row: Comparison) -> dict[str, Any]:
    return {
        "name": row.name,
        "unit": row.unit,
        "predicted": row.predicted,
        "measured": row.measured,
        "ratio": _short(row.ratio),
    }


def _point_document(result: PointResult) -> dict[str, Any]:
    found: dict[str, Any] = asdict(result.point)
    for name in ("ttft", "tpot"):
        said = getattr(result, f"predicted_{name}_ms")
        got = getattr(result, f"{name}_ms")
        found[f"predicted_mean_{name}_ms"] = _short(said)
        found[f"mean_{name}_ms"] = _short(got)
        found[f"{name}_ratio"] = _short(got / said) if got is not None and said else None
    return found | {
        "completed": result.completed,
        "failed": result.failed,
        "is_valid": result.is_valid,
        "remarks": list(result.remarks),
    }


def _short(value: float | None) -> float | None:
    return None if value is None else round(value, 4)
