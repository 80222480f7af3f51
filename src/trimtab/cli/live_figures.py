"""Pure. What happens now, out of counters read twice: rates, and percentiles of what came in between."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, TypeAlias

from prometheus_client.parser import text_string_to_metric_families

__all__ = [
    "Counts",
    "Figures",
    "LiveReading",
    "add_up",
    "figures_between",
    "read_engine",
    "read_gateway",
    "read_slots",
]

# (upper bound in seconds, values up to it), ascending; the last bound is infinite.
Buckets: TypeAlias = tuple[tuple[float, float], ...]

_VLLM_ITL: Final = ("vllm:inter_token_latency_seconds", "vllm:time_per_output_token_seconds")


@dataclass(frozen=True, slots=True, kw_only=True)
class Counts:
    """Counters of a model or a replica at one moment; None is what its source does not tell.

    ``may_dip``: fewer ``tokens`` than before are no new beginning, since events that were counted on the way
    give place to the tokens that an answer's end tells.
    """

    tokens: float | None = None
    ttft: Buckets = ()
    itl: Buckets = ()
    may_dip: bool = False
    num_running: int | None = None
    num_waiting: int | None = None
    kv_use_ratio: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class LiveReading:
    """Counters of everything at ``at_s``, a clock that never goes back: models by name, replicas by id."""

    at_s: float
    models: Mapping[str, Counts] = field(default_factory=dict)
    replicas: Mapping[str, Counts] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class Figures:
    """One row of figures; percentiles are (50, 95), in seconds, None where nothing came in the time."""

    tokens_per_s: float | None = None
    ttft_s: tuple[float, float] | None = None
    itl_s: tuple[float, float] | None = None
    num_running: int | None = None
    num_waiting: int | None = None
    kv_use_ratio: float | None = None


def figures_between(old: Counts | None, new: Counts, *, seconds: float) -> Figures:
    """What came between two readings; a source that began anew in between counts from its beginning."""
    is_new = old is None or seconds <= 0
    before = Counts() if old is None else old
    rate = None
    if not is_new and new.tokens is not None and before.tokens is not None:
        since = 0.0 if new.tokens < before.tokens and not new.may_dip else before.tokens
        rate = max(0.0, new.tokens - since) / seconds
    return Figures(
        tokens_per_s=rate,
        ttft_s=None if is_new else _percentiles(before.ttft, new.ttft),
        itl_s=None if is_new else _percentiles(before.itl, new.itl),
        num_running=new.num_running,
        num_waiting=new.num_waiting,
        kv_use_ratio=new.kv_use_ratio,
    )


def _percentiles(old: Buckets, new: Buckets) -> tuple[float, float] | None:
    counted = dict(old)
    grown = [(bound, count - counted.get(bound, 0.0)) for bound, count in new]
    if not grown or any(count < 0 for _, count in grown):
        grown = list(new)
    if not grown or grown[-1][1] <= 0:
        return None
    return _quantile(grown, 0.5), _quantile(grown, 0.95)


def _quantile(buckets: Sequence[tuple[float, float]], share: float) -> float:
    """As Prometheus' histogram_quantile: evenly spread inside a bucket; of the last, its lower bound."""
    rank = share * buckets[-1][1]
    low_s, below = 0.0, 0.0
    for bound, count in buckets:
        if count >= rank:
            if math.isinf(bound):
                return low_s
            inside = count - below
            return low_s + (bound - low_s) * ((rank - below) / inside if inside else 1.0)
        low_s, below = bound, count
    return low_s


def read_gateway(text: str) -> dict[str, Counts]:
    """The models in a gateway's /metrics."""
    samples = _Samples(text)
    finished = samples.by_label("trimtab_generation_tokens_total", "model")
    streaming = samples.by_label("trimtab_stream_events_in_flight", "model")
    running = samples.by_label("trimtab_requests_running", "model")
    waiting = samples.by_label("trimtab_requests_waiting", "model")
    names = {*samples.by_label("trimtab_model_ready", "model"), *finished, *running}
    return {
        name: Counts(
            tokens=finished.get(name, 0.0) + streaming.get(name, 0.0),
            ttft=samples.buckets("trimtab_time_to_first_token_seconds", model=name),
            itl=samples.buckets("trimtab_inter_token_latency_seconds", model=name),
            may_dip=True,
            num_running=int(running.get(name, 0)),
            num_waiting=int(waiting.get(name, 0)),
        )
        for name in names
    }


def read_engine(text: str) -> Counts | None:
    """What one engine's /metrics tell: vLLM's or llama.cpp's; None where it is neither."""
    samples = _Samples(text)
    if samples.has("vllm:num_requests_running"):
        itl = next((found for name in _VLLM_ITL if (found := samples.buckets(name))), ())
        return Counts(
            tokens=samples.total("vllm:generation_tokens_total"),
            ttft=samples.buckets("vllm:time_to_first_token_seconds"),
            itl=itl,
            num_running=int(samples.total("vllm:num_requests_running") or 0),
            num_waiting=int(samples.total("vllm:num_requests_waiting") or 0),
            kv_use_ratio=samples.mean("vllm:kv_cache_usage_perc"),
        )
    if samples.has("llamacpp:requests_processing"):
        return Counts(
            num_running=int(samples.total("llamacpp:requests_processing") or 0),
            num_waiting=int(samples.total("llamacpp:requests_deferred") or 0),
        )
    return None


def read_slots(document: Any) -> float | None:
    """The share of its cells that llama.cpp's slots with a request inside fill, from its /slots."""
    if not isinstance(document, list) or not document:
        return None
    held = total = 0
    for slot in document:
        if not isinstance(slot, dict) or not isinstance(slot.get("n_ctx"), int):
            return None
        total += slot["n_ctx"]
        if slot.get("is_processing"):
            held += _int_of(slot, "n_prompt_tokens")
            held += sum(_int_of(step, "n_decoded") for step in _steps_of(slot))
    return min(1.0, held / total) if total else None


def _steps_of(slot: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    steps = slot.get("next_token")
    found = steps if isinstance(steps, list) else [steps]
    return [step for step in found if isinstance(step, dict)]


def _int_of(holder: Mapping[str, Any], key: str) -> int:
    value = holder.get(key)
    return value if isinstance(value, int) else 0


class _Samples:
    """The samples of one text by their names; a text that is none has no samples."""

    def __init__(self, text: str) -> None:
        self._found: dict[str, list[tuple[Mapping[str, str], float]]] = defaultdict(list)
        try:
            for family in text_string_to_metric_families(text):
                for sample in family.samples:
                    if math.isfinite(sample.value):
                        self._found[sample.name].append((sample.labels, sample.value))
        except (ValueError, KeyError, IndexError):
            self._found.clear()

    def has(self, name: str) -> bool:
        return bool(self._found.get(name))

    def by_label(self, name: str, label: str) -> dict[str, float]:
        totals: dict[str, float] = defaultdict(float)
        for labels, value in self._found.get(name, ()):
            totals[labels.get(label, "")] += value
        return dict(totals)

    def total(self, name: str) -> float | None:
        values = [value for _, value in self._found.get(name, ())]
        return sum(values) if values else None

    def mean(self, name: str) -> float | None:
        values = [value for _, value in self._found.get(name, ())]
        return sum(values) / len(values) if values else None

    def buckets(self, name: str, **wanted: str) -> Buckets:
        totals: dict[float, float] = defaultdict(float)
        for labels, value in self._found.get(f"{name}_bucket", ()):
            if all(labels.get(key) == label for key, label in wanted.items()):
                totals[float(labels["le"])] += value
        return tuple(sorted(totals.items()))


def add_up(parts: Iterable[Counts]) -> Counts | None:
    """Several replicas' counters as those of their model; None where no one tells."""
    found = tuple(parts)
    if not found:
        return None
    ratios = [one.kv_use_ratio for one in found if one.kv_use_ratio is not None]
    tokens = [one.tokens for one in found if one.tokens is not None]
    return Counts(
        tokens=sum(tokens) if len(tokens) == len(found) else None,
        itl=_merge([one.itl for one in found]),
        num_running=sum(one.num_running or 0 for one in found),
        num_waiting=sum(one.num_waiting or 0 for one in found),
        kv_use_ratio=sum(ratios) / len(ratios) if ratios else None,
    )


def _merge(parts: Sequence[Buckets]) -> Buckets:
    totals: dict[float, float] = defaultdict(float)
    for part in parts:
        for bound, count in part:
            totals[bound] += count
    return tuple(sorted(totals.items()))
