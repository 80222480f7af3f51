"""Pure. Records of one load → its figures, under the names that ``vllm bench serve`` gives them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from trimtab.bench.record import RequestRecord
from trimtab.bench.slo import Slo, share_meeting
from trimtab.bench.stats import Spread, describe_spread

__all__ = ["PERCENTILES", "LoadFigures", "TimelinePoint", "measure_load"]

PERCENTILES = (50.0, 90.0, 95.0, 99.0)
_NOT_FAILURES = frozenset({"stopped"})


@dataclass(frozen=True, slots=True, kw_only=True)
class TimelinePoint:
    """One second of the run: tokens that arrived, requests in flight at its end."""

    second: int
    output_tokens: int
    in_flight: int


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadFigures:
    """Everything a run says about the server. Throughputs are per second of ``duration_s``.

    ``errors`` counts by kind; ``num_stopped`` were given up by the user and count nowhere.
    ``num_client_counts`` are answers whose tokens the client had to count; ``num_miscounted`` those
    with more text pieces than the server counted tokens; ``num_short`` ended before the length asked
    for. ``itl_is_per_chunk`` says that gaps are between pieces that hold several tokens.
    """

    completed: int
    failed: int
    num_stopped: int
    duration_s: float
    total_input_tokens: int
    total_output_tokens: int
    total_cached_tokens: int
    request_throughput: float
    output_throughput: float
    total_token_throughput: float
    output_throughput_per_user: float | None
    max_output_tokens_per_s: float
    max_concurrent_requests: int
    goodput_share: float | None
    request_goodput: float | None
    ttft_ms: Spread | None
    ttfo_ms: Spread | None
    tpot_ms: Spread | None
    itl_ms: Spread | None
    e2el_ms: Spread | None
    itl_is_per_chunk: bool
    num_client_counts: int
    num_miscounted: int
    num_short: int
    errors: tuple[tuple[str, int], ...]
    error_example: str
    timeline: tuple[TimelinePoint, ...]


def measure_load(records: Sequence[RequestRecord], slos: Sequence[Slo] = ()) -> LoadFigures:
    """The figures of one load; without a successful request the spreads are None."""
    good = [record for record in records if record.is_success]
    counted = [record for record in records if record.error not in _NOT_FAILURES]
    failed = [record for record in counted if not record.is_success]
    duration_s = _span_s(counted)
    share = share_meeting(counted, slos) if slos else None
    tokens = sum(record.output_tokens for record in good)
    prompts = sum(record.input_tokens for record in good)
    tpot = _spread([r.tpot_ms for r in good])
    timeline = _timeline(counted)
    return LoadFigures(
        completed=len(good),
        failed=len(failed),
        num_stopped=len(records) - len(counted),
        duration_s=duration_s,
        total_input_tokens=prompts,
        total_output_tokens=tokens,
        total_cached_tokens=sum(max(0, record.cached_tokens) for record in good),
        request_throughput=_per_s(len(good), duration_s),
        output_throughput=_per_s(tokens, duration_s),
        total_token_throughput=_per_s(tokens + prompts, duration_s),
        output_throughput_per_user=1000.0 / tpot.mean if tpot is not None and tpot.mean > 0 else None,
        max_output_tokens_per_s=float(max((point.output_tokens for point in timeline), default=0)),
        max_concurrent_requests=_most_at_once(counted),
        goodput_share=share,
        request_goodput=None if share is None else _per_s(share * len(counted), duration_s),
        ttft_ms=_spread([r.ttft_ms for r in good]),
        ttfo_ms=_spread([r.ttfo_ms for r in good]),
        tpot_ms=tpot,
        itl_ms=_spread([gap for r in good for gap in r.itls_ms]),
        e2el_ms=_spread([r.e2el_ms for r in good]),
        itl_is_per_chunk=any(r.output_tokens > len(r.token_times_s) + 1 for r in good),
        num_client_counts=sum(1 for r in good if r.count_source == "client"),
        num_miscounted=sum(
            1 for r in good if r.count_source == "server" and len(r.token_times_s) > r.output_tokens
        ),
        num_short=sum(1 for r in good if 0 < r.output_tokens < r.asked_output_tokens),
        errors=tuple(Counter(record.error for record in failed).most_common()),
        error_example=next((f"{r.error}: {r.detail}" for r in failed), ""),
        timeline=timeline,
    )


def _spread(values: Sequence[float | None]) -> Spread | None:
    return describe_spread([value for value in values if value is not None], PERCENTILES)


def _per_s(amount: float, duration_s: float) -> float:
    return amount / duration_s if duration_s > 0 else 0.0


def _span_s(records: Sequence[RequestRecord]) -> float:
    """From the first request's send to the last one's end."""
    if not records:
        return 0.0
    return max(r.ended_s for r in records) - min(r.sent_s for r in records)


def _most_at_once(records: Sequence[RequestRecord]) -> int:
    edges = [(r.sent_s, 1) for r in records] + [(r.ended_s, -1) for r in records]
    running = most = 0
    for _, step in sorted(edges):
        running += step
        most = max(most, running)
    return most


def _timeline(records: Sequence[RequestRecord]) -> tuple[TimelinePoint, ...]:
    """Per second from the first send on. A piece counts as the tokens it holds on average."""
    if not records:
        return ()
    start = min(r.sent_s for r in records)
    last = int(max(r.ended_s for r in records) - start)
    tokens, moves = [0.0] * (last + 1), [0] * (last + 1)
    for record in records:
        each = record.output_tokens / len(record.token_times_s) if record.token_times_s else 0.0
        for at in record.token_times_s:
            tokens[min(last, int(at - start))] += each
        moves[int(record.sent_s - start)] += 1
        moves[int(record.ended_s - start)] -= 1
    running, points = 0, []
    for second in range(last + 1):
        running += moves[second]
        points.append(TimelinePoint(second=second, output_tokens=round(tokens[second]), in_flight=running))
    return tuple(points)
