"""Pure. Predicted against measured: what one start's log says about the terms of its plan, and its use.

A record holds absolute figures of one start: of one card of the replica, for one checkpoint, engine version
and set of memory-moving settings. A later plan for the same takes the largest that was measured in place of
its own estimate, so that a first start, which compiles and therefore needs more, is not forgotten after a
later one. Weights depend on fewer settings than the rest and are taken over between more plans.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Final

from trimtab.core.hardware import Gpu
from trimtab.core.plan import GpuBudget, ModelPlan, ReplicaPlan
from trimtab.core.stack import SettingValue
from trimtab.engines.vllm_phases import BootFacts
from trimtab.planner.vllm_budget import MemoryTerm
from trimtab.units import GIB

__all__ = [
    "CalibrationKey",
    "CalibrationRecord",
    "MeasuredTerms",
    "find_corrections",
    "key_of",
    "record_start",
]

# Settings that move activations, graphs or weights → their value where a plan does not name them.
_DEFAULTS: Final[Mapping[str, SettingValue]] = {
    "tensor_parallel_size": 1,
    "pipeline_parallel_size": 1,
    "enable_expert_parallel": False,
    "max_num_batched_tokens": "",
    "kv_cache_dtype": "auto",
    "language_model_only": False,
    "limit_mm_per_prompt": "",
    "enforce_eager": False,
    "speculative_config": "",
    "compilation_config": "",
    "cudagraph_capture_sizes": "",
    "quantization": "",
    "dtype": "auto",
}
_OF_WEIGHTS: Final = frozenset(
    {
        "tensor_parallel_size",
        "pipeline_parallel_size",
        "enable_expert_parallel",
        "language_model_only",
        "limit_mm_per_prompt",
        "speculative_config",
        "quantization",
        "dtype",
    }
)
_HUB_FOLDER: Final = re.compile(r"(?:^|/)models--([^/]+?)--([^/]+)/snapshots/[^/]+/?$")
# A start that differs from the estimate by more than this and a share of it was not this model's. The largest
# misses of 35 starts on H200 were 0.7 GiB of activations and 0.1 % of weights (benchmarks/ground-truth).
_MOST_BYTES_OFF: Final = GIB
_MOST_OFF: Final = 0.5
_MOST_WEIGHTS_OFF: Final = 0.15


@dataclass(frozen=True, slots=True, kw_only=True)
class CalibrationKey:
    """What a measurement holds for; ``settings`` are the memory-moving ones but max_num_seqs, by name."""

    card: str
    engine_version: str
    checkpoint: str
    settings: tuple[tuple[str, SettingValue], ...]
    num_seqs: int

    def has_same_weights(self, other: CalibrationKey) -> bool:
        """Whether the same bytes of weights lie on a card under both."""
        return (self.card, self.engine_version, self.checkpoint, _weight_part(self)) == (
            other.card,
            other.engine_version,
            other.checkpoint,
            _weight_part(other),
        )

    def covers(self, other: CalibrationKey) -> bool:
        """Whether what was measured under this is enough for the other: the same, or with fewer sequences."""
        return replace(self, num_seqs=0) == replace(other, num_seqs=0) and self.num_seqs >= other.num_seqs


@dataclass(frozen=True, slots=True, kw_only=True)
class MeasuredTerms:
    """One card's memory in bytes. ``activation_bytes`` includes what lies outside torch."""

    weights_bytes: int
    activation_bytes: int
    cuda_graph_bytes: int
    kv_cache_bytes: int
    kv_cache_tokens: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class CalibrationRecord:
    """One start, as it was planned and as it was. ``at_s`` is seconds since the epoch."""

    key: CalibrationKey
    replica_id: str
    at_s: float
    predicted: MeasuredTerms
    measured: MeasuredTerms


def key_of(
    card: Gpu, engine_version: str, checkpoint: str, values: Mapping[str, SettingValue]
) -> CalibrationKey:
    """The key of an engine on such a card with these arguments, by vLLM's names."""
    return CalibrationKey(
        card=card.spec or card.name,
        engine_version=engine_version,
        checkpoint=_model_of(checkpoint),
        settings=tuple((name, values.get(name, default)) for name, default in sorted(_DEFAULTS.items())),
        num_seqs=int(str(values.get("max_num_seqs", 0))),
    )


def _model_of(checkpoint: str) -> str:
    """A repository's name where a folder of the hub's cache is named: the same model before and after."""
    found = _HUB_FOLDER.search(checkpoint)
    return checkpoint if found is None else f"{found[1]}/{found[2]}"


def record_start(
    model: ModelPlan, replica: ReplicaPlan, gpus: Iterable[Gpu], facts: BootFacts, *, at_s: float
) -> CalibrationRecord | None:
    """The record of a start whose log gave ``facts``; None where the log or the plan has too few figures.

    None as well where another version ran than was planned, or figures contradict the card.
    """
    budget = min(replica.per_gpu, key=lambda item: item.kv_cache_bytes, default=None)
    card = next((gpu for gpu in gpus if replica.gpus and gpu.index == replica.gpus[0]), None)
    if budget is None or budget.requested_bytes is None or card is None or model.engine != "vllm":
        return None
    if (facts.engine_version or "").partition("+")[0] != model.engine_version:
        return None
    measured = _measure(budget, facts)
    predicted = MeasuredTerms(
        weights_bytes=budget.weights_bytes,
        activation_bytes=budget.activation_bytes + budget.non_torch_bytes,
        cuda_graph_bytes=budget.cuda_graph_bytes,
        kv_cache_bytes=budget.kv_cache_bytes,
        kv_cache_tokens=replica.kv_cache_tokens,
    )
    if measured is None or not _is_plausible(predicted, measured):
        return None
    values = {item.name: item.value for item in model.settings}
    return CalibrationRecord(
        key=key_of(card, model.engine_version, model.checkpoint, values),
        replica_id=replica.replica_id,
        at_s=at_s,
        predicted=predicted,
        measured=measured,
    )


def _measure(budget: GpuBudget, facts: BootFacts) -> MeasuredTerms | None:
    """What is neither weights nor graphs nor cache is activation, for the engine counts it so."""
    if facts.weights_gib is None or facts.available_kv_gib is None or budget.requested_bytes is None:
        return None
    weights, cache = int(facts.weights_gib * GIB), int(facts.available_kv_gib * GIB)
    graphs = int((facts.estimated_graph_gib or 0.0) * GIB)
    return MeasuredTerms(
        weights_bytes=weights,
        activation_bytes=budget.requested_bytes - weights - cache - graphs,
        cuda_graph_bytes=graphs,
        kv_cache_bytes=cache,
        kv_cache_tokens=facts.kv_cache_tokens,
    )


def _is_plausible(predicted: MeasuredTerms, measured: MeasuredTerms) -> bool:
    pairs = (
        (predicted.weights_bytes, measured.weights_bytes, _MOST_WEIGHTS_OFF),
        (predicted.activation_bytes, measured.activation_bytes, _MOST_OFF),
        (predicted.cuda_graph_bytes, measured.cuda_graph_bytes, _MOST_OFF),
    )
    return all(
        found >= 0 and abs(found - said) <= _MOST_BYTES_OFF + most * said for said, found, most in pairs
    )


def find_corrections(
    records: Iterable[CalibrationRecord], key: CalibrationKey, terms: tuple[MemoryTerm, ...]
) -> tuple[tuple[str, int], ...]:
    """Bytes to add to each estimated term so that it becomes what was measured; empty without records."""
    estimated: dict[str, int] = {}
    for term in terms:
        estimated[term.name] = estimated.get(term.name, 0) + term.nbytes
    same = [record for record in records if record.key.covers(key)]
    alike = [record for record in records if record.key.has_same_weights(key)]
    found: dict[str, int] = {}
    if alike:
        found["weights"] = max(item.measured.weights_bytes for item in alike) - estimated.get("weights", 0)
    if same:
        held = max(item.measured.activation_bytes for item in same)
        found["activation"] = held - estimated.get("activation", 0) - estimated.get("non_torch", 0)
        graphs = max(item.measured.cuda_graph_bytes for item in same)
        if graphs and estimated.get("cuda_graph"):
            found["cuda_graph"] = graphs - estimated["cuda_graph"]
    return tuple(found.items())


def _weight_part(key: CalibrationKey) -> tuple[tuple[str, SettingValue], ...]:
    return tuple((name, value) for name, value in key.settings if name in _OF_WEIGHTS)
