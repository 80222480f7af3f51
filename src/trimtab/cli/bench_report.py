"""Pure. A benchmark's result as text: a table over its loads, then what to know about it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from trimtab.bench.compare import Difference
from trimtab.bench.result import name_load

__all__ = ["describe_runs", "render_differences", "render_document"]

_COLUMNS = (
    ("load", None),
    ("ok", "completed"),
    ("failed", "failed"),
    ("req/s", "request_throughput"),
    ("tok/s", "output_throughput"),
    ("tok/s/user", "output_throughput_per_user"),
    ("TTFT p50", "median_ttft_ms"),
    ("p99 ms", "p99_ttft_ms"),
    ("TPOT p50", "median_tpot_ms"),
    ("p99 ms", "p99_tpot_ms"),
    ("E2E p50", "median_e2el_ms"),
    ("p99 ms", "p99_e2el_ms"),
)


def render_document(document: dict[str, Any]) -> str:
    """What a terminal shows."""
    runs = document["runs"]
    lines = [f"bench of {document['endpoint']}", ""]
    rows = [[title for title, _ in _COLUMNS]]
    rows += [[name_load(run), *(_cell(run.get(key)) for _, key in _COLUMNS[1:] if key)] for run in runs]
    lines += _table(rows)
    found = document.get("find_max")
    if found is not None:
        best = found["largest_load"]
        held = f"largest {found['of']} that meets the objectives: {best:g}" if best is not None else (
            f"no {found['of']} that was tried meets the objectives"
        )  # fmt: skip
        lines += ["", held]
    lines += [f"  {remark}" for remark in describe_runs(document)[1]]
    if not runs:
        lines.append("  nothing was measured: stopped before the first load")
    if not document["is_valid"]:
        lines += ["", "INVALID: the client was the bottleneck; the figures say little about the server"]
    return "\n".join(lines)


def describe_runs(document: dict[str, Any]) -> tuple[list[str], list[str]]:
    """(name of each load, sentences on them in order, the result's own notes last)."""
    runs = document["runs"]
    remarks = [f"{name_load(run)}: {text}" for run in runs for text in _remarks(run)]
    return [name_load(run) for run in runs], [*remarks, *document.get("notes", ())]


def _remarks(run: dict[str, Any]) -> list[str]:
    found = [f"invalid: {reason}" for reason in run["self_check"]["reasons"]]
    if not run["completed"]:
        found.append(f"nothing was measured: {_why_nothing(run)}")
    elif run["is_interrupted"]:
        found.append(f"stopped early, {run['num_stopped']} requests given up")
    if run["errors_by_kind"]:
        kinds = ", ".join(f"{count} x {kind}" for kind, count in run["errors_by_kind"].items())
        found.append(f"failed: {kinds}; for one: {run['error_example']}")
    found += _token_remarks(run["tokens"])
    if run["goodput"] is not None:
        share, rate = run["goodput"]["share"], run["goodput"]["requests_per_s"]
        found.append(f"{100 * share:.1f} % of requests met the objectives ({rate:.2f} requests/s)")
    if run.get("predicted") is not None:
        found.append(_beside(run))
    if run["server_queue_ms"] is not None:
        found.append(f"the engine reports a mean queue time of {run['server_queue_ms']:.1f} ms")
    return found


def _why_nothing(run: dict[str, Any]) -> str:
    if run["failed"]:
        return "no request was answered"
    if not run["is_interrupted"]:
        return "no request was sent"
    if not run["num_prompts"]:
        return "stopped before the first request that counts (the warm-up comes before it)"
    return f"stopped before a request was answered, {run['num_stopped']} given up"


def _token_remarks(tokens: dict[str, Any]) -> list[str]:
    told = (
        ("counted_by_client", "{:,} answers without the server's token count"),
        ("miscounted", "{:,} answers with more pieces of text than tokens counted"),
        ("shorter_than_asked", "{:,} answers shorter than asked for"),
        ("cached_input_tokens", "{:,} prompt tokens came from the server's prefix cache"),
        ("itl_is_per_chunk", "pieces of text hold several tokens: ITL is per piece"),
    )
    return [words.format(tokens[name]) for name, words in told if tokens[name]]


def _beside(run: dict[str, Any]) -> str:
    """Predicted and measured means in one sentence."""
    predicted = run["predicted"]
    parts = []
    for name, words in (("ttft", "TTFT"), ("tpot", "TPOT")):
        got, said = run[f"mean_{name}_ms"], predicted[f"mean_{name}_ms"]
        if got:
            band = 100 * predicted[f"{name}_error_ratio"]
            parts.append(
                f"{words} {said:.1f} ms +-{band:.0f} % (measured {got:.1f}, {100 * (said / got - 1):+.0f} %)"
            )
    return f"predicted {', '.join(parts)}; {predicted['source']}"


def _cell(value: float | None) -> str:
    if value is None:
        return "-"
    if isinstance(value, int):
        return f"{value:,}"
    return f"{value:,.0f}" if value >= 1000 else f"{value:.1f}" if value >= 10 else f"{value:.2f}"


def _table(rows: Sequence[Sequence[str]]) -> list[str]:
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    return ["  ".join(cell.rjust(width) for cell, width in zip(row, widths, strict=True)) for row in rows]


def render_differences(groups: Sequence[tuple[str, Sequence[Difference]]]) -> str:
    """Differences by load, each in a sentence."""
    lines = []
    for load, differences in groups:
        lines.append(f"{load}:")
        lines += [f"  {each.figure:18s} {each.a:12.2f} {each.b:12.2f}   {each.words}" for each in differences]
    return "\n".join(lines)
