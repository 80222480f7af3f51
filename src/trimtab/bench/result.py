"""Pure. The result file of a benchmark: one JSON document, its schema versioned.

The top level of each run uses ``vllm bench serve``'s field names, so scripts that read those read
these; what that tool doesn't know sits in blocks of its own.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from trimtab.bench.metrics import LoadFigures
from trimtab.bench.record import RequestRecord
from trimtab.bench.self_check import SelfCheck
from trimtab.bench.slo import Slo
from trimtab.bench.stats import Interval, Spread

__all__ = ["SCHEMA_VERSION", "RunFacts", "make_details", "make_document", "make_run", "name_load"]

SCHEMA_VERSION = 1
_FIGURES = ("ttft_ms", "ttfo_ms", "tpot_ms", "itl_ms", "e2el_ms")


@dataclass(frozen=True, slots=True, kw_only=True)
class RunFacts:
    """What one load was, beside its figures: ``concurrency`` or ``rate``, never both.

    ``server_queue_ms`` is the mean queue time the engine itself reported over the run.
    """

    concurrency: int | None
    rate: float | None
    num_prompts: int
    slos: tuple[Slo, ...] = ()
    is_interrupted: bool = False
    server_queue_ms: float | None = None


def make_document(
    *, date: str, version: str, endpoint: str, workload: dict[str, Any], runs: Sequence[dict[str, Any]]
) -> dict[str, Any]:
    """The whole file; ``runs`` are ``make_run``'s, in the order they ran."""
    return {
        "schema_version": SCHEMA_VERSION,
        "tool": "trimtab bench",
        "trimtab_version": version,
        "date": date,
        "endpoint": endpoint,
        "workload": workload,
        "is_valid": all(run["self_check"]["is_valid"] for run in runs),
        "runs": list(runs),
    }


def make_run(facts: RunFacts, figures: LoadFigures, check: SelfCheck) -> dict[str, Any]:
    """One load: vLLM's summary names first."""
    found: dict[str, Any] = {
        "num_prompts": facts.num_prompts,
        "request_rate": facts.rate if facts.rate is not None else "inf",
        "max_concurrency": facts.concurrency,
        "duration": figures.duration_s,
        "completed": figures.completed,
        "failed": figures.failed,
        "total_input_tokens": figures.total_input_tokens,
        "total_output_tokens": figures.total_output_tokens,
        "request_throughput": figures.request_throughput,
        "request_goodput": figures.request_goodput,
        "output_throughput": figures.output_throughput,
        "total_token_throughput": figures.total_token_throughput,
        "max_output_tokens_per_s": figures.max_output_tokens_per_s,
        "max_concurrent_requests": figures.max_concurrent_requests,
    }
    for name in _FIGURES:
        found.update(_flatten(name, getattr(figures, name)))
    found.update(
        {
            "output_throughput_per_user": figures.output_throughput_per_user,
            "goodput": _goodput(facts, figures),
            "intervals": {name: _intervals(getattr(figures, name)) for name in _FIGURES},
            "errors_by_kind": dict(figures.errors),
            "error_example": figures.error_example,
            "num_stopped": figures.num_stopped,
            "is_interrupted": facts.is_interrupted,
            "tokens": {
                "counted_by_client": figures.num_client_counts,
                "miscounted": figures.num_miscounted,
                "shorter_than_asked": figures.num_short,
                "cached_input_tokens": figures.total_cached_tokens,
                "itl_is_per_chunk": figures.itl_is_per_chunk,
            },
            "server_queue_ms": facts.server_queue_ms,
            "self_check": asdict(check),
            "timeline": [asdict(point) for point in figures.timeline],
        }
    )
    return found


def name_load(run: Mapping[str, Any]) -> str:
    """What one entry of ``runs`` was, in words."""
    users = run["max_concurrency"]
    if users is not None:
        return "1 user" if users == 1 else f"{users} users"
    return f"{run['request_rate']:g} requests/s" if run["request_rate"] != "inf" else "trace"


def _flatten(name: str, spread: Spread | None) -> dict[str, float | None]:
    """``mean_ttft_ms``, ``median_…``, ``std_…``, ``p99_…``; null where nothing was measured."""
    if spread is None:
        return {f"{kind}_{name}": None for kind in ("mean", "median", "std", "p90", "p95", "p99")}
    found: dict[str, float | None] = {
        f"mean_{name}": spread.mean,
        f"median_{name}": spread.at(50.0),
        f"std_{name}": spread.std,
    }
    return found | {f"p{at:g}_{name}": value for at, value in spread.percentiles if at != 50.0}


def _intervals(spread: Spread | None) -> dict[str, Any] | None:
    if spread is None:
        return None
    found = {"count": spread.count, "mean": _pair(spread.mean_interval)}
    return found | {f"p{at:g}": _pair(interval) for at, interval in spread.intervals}


def _pair(interval: Interval) -> list[float | None]:
    return [interval.low, interval.high]


def _goodput(facts: RunFacts, figures: LoadFigures) -> dict[str, Any] | None:
    if not facts.slos:
        return None
    return {
        "slo": {slo.name: slo.limit_ms for slo in facts.slos},
        "share": figures.goodput_share,
        "requests_per_s": figures.request_goodput,
    }


def make_details(records: Sequence[RequestRecord]) -> dict[str, Any]:
    """Per request, in order of sending, under vLLM's names; ``ttfts`` and ``itls`` in seconds as there."""
    ordered = sorted(records, key=lambda record: record.sent_s)
    start = ordered[0].sent_s if ordered else 0.0
    return {
        "input_lens": [record.input_tokens for record in ordered],
        "output_lens": [record.output_tokens for record in ordered],
        "ttfts": [(record.ttft_ms or 0.0) / 1e3 for record in ordered],
        "itls": [[gap / 1e3 for gap in record.itls_ms] for record in ordered],
        "start_times": [record.sent_s - start for record in ordered],
        "end_times": [record.ended_s - start for record in ordered],
        "errors": [f"{record.error}: {record.detail}" if record.error else "" for record in ordered],
        "models": [record.model for record in ordered],
        "finish_reasons": [record.finish_reason for record in ordered],
    }
