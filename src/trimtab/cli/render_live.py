"""Pure. The table of ``trimtab status --watch``: a row per model, and per replica where it has several."""

from __future__ import annotations

import textwrap
from collections.abc import Mapping, Sequence
from typing import Any, Final

from trimtab.cli.live_figures import Counts, Figures, LiveReading, add_up, figures_between
from trimtab.cli.render import render_table
from trimtab.gateway.external_listing import EXTERNAL_ENGINE
from trimtab.units import format_bytes, format_duration_s

__all__ = ["render_live"]

_HEADER: Final = (
    "model", "state", "tokens/s", "TTFT p50/p95", "ITL p50/p95", "in flight", "queued", "KV use",
    "memory predicted", "used",
)  # fmt: skip
# What goes first where a terminal has no room for all; a model and its state always stay.
_LEAST_FIRST: Final = (
    "memory predicted", "ITL p50/p95", "used", "KV use", "TTFT p50/p95", "queued", "in flight", "tokens/s",
)  # fmt: skip
# The end of a name that is cut stays: it tells replicas apart.
_NAME_END: Final = 4


def render_live(
    document: Mapping[str, Any],
    old: LiveReading | None,
    new: LiveReading,
    *,
    now_s: float,
    width: int | None = None,
) -> list[str]:
    """The lines; ``document`` is that of ``trimtab status``, ``now_s`` seconds since the epoch.

    Rates and percentiles are of what came between the two readings. No line is longer than ``width``:
    columns that have no room are left out, and told.
    """
    by_model: dict[str, list[dict[str, Any]]] = {name: [] for name in document["models"]}
    for item in document["replicas"]:
        by_model.setdefault(item["model"], []).append(item)
    seconds = 0.0 if old is None else new.at_s - old.at_s
    rows = []
    for name, replicas in by_model.items():
        model = document["models"].get(name, {})
        figures = _of_model(name, replicas, old, new, seconds)
        state = _state_of(model, replicas, figures.num_waiting or 0, now_s)
        rows.append((name, state, *_cells(figures), *_memory(replicas)))
        if len(replicas) > 1:
            rows.extend(_replica_row(item, model, old, new, seconds) for item in replicas)
    if not rows:
        return []
    span = "from the next look on" if old is None else f"of the last {format_duration_s(seconds)}"
    told = (
        f"rates and percentiles {span}; models' TTFT and ITL as clients see them, replicas' as engines tell"
    )
    if width is None:
        return [render_table(_HEADER, rows), told]
    table, hidden = _fit(rows, max(1, width))
    if hidden:
        told += f"; no room for {', '.join(hidden)}"
    return [table, *textwrap.wrap(told, max(1, width))]


def _fit(rows: Sequence[tuple[str, ...]], width: int) -> tuple[str, list[str]]:
    """The table without what has no room, and the names of the columns that are left out."""
    cells = [_HEADER, *rows]
    if _width_of(cells) > width:
        cells = [(_cut_name(row[0], width // 4), _cut(row[1], width // 3), *row[2:]) for row in cells]
    hidden: list[str] = []
    for name in _LEAST_FIRST:
        if _width_of(cells) <= width:
            break
        at = cells[0].index(name)
        cells = [(*row[:at], *row[at + 1 :]) for row in cells]
        hidden.append(name)
    lines = render_table(cells[0], cells[1:]).splitlines()
    return "\n".join(_cut(line, width) for line in lines), hidden


def _width_of(cells: Sequence[tuple[str, ...]]) -> int:
    return max(len(line) for line in render_table(cells[0], cells[1:]).splitlines())


def _cut(text: str, num_chars: int) -> str:
    return text if len(text) <= num_chars else text[: max(0, num_chars - 1)] + "…"[:num_chars]


def _cut_name(name: str, num_chars: int) -> str:
    if len(name) <= num_chars or num_chars <= 2 * _NAME_END:
        return _cut(name, num_chars)
    return f"{name[: num_chars - _NAME_END - 1]}…{name[-_NAME_END:]}"


def _of_model(
    name: str,
    replicas: Sequence[Mapping[str, Any]],
    old: LiveReading | None,
    new: LiveReading,
    seconds: float,
) -> Figures:
    """The gateway's own figures, with what only engines know."""
    ids = [item["replica_id"] for item in replicas]
    front = new.models.get(name)
    engines = add_up([new.replicas[one] for one in ids if one in new.replicas])
    past = None if old is None else add_up([old.replicas[one] for one in ids if one in old.replicas])
    seen = figures_between(_past(old, name), front or Counts(), seconds=seconds)
    inside = figures_between(past, engines or Counts(), seconds=seconds)
    return Figures(
        tokens_per_s=seen.tokens_per_s if inside.tokens_per_s is None else inside.tokens_per_s,
        ttft_s=seen.ttft_s,
        itl_s=seen.itl_s,
        num_running=inside.num_running if front is None else seen.num_running,
        num_waiting=inside.num_waiting if front is None else seen.num_waiting,
        kv_use_ratio=inside.kv_use_ratio,
    )


def _past(old: LiveReading | None, name: str) -> Counts | None:
    return None if old is None else old.models.get(name)


def _replica_row(
    item: Mapping[str, Any],
    model: Mapping[str, Any],
    old: LiveReading | None,
    new: LiveReading,
    seconds: float,
) -> tuple[str, ...]:
    replica_id = item["replica_id"]
    counts = new.replicas.get(replica_id, Counts())
    past = None if old is None else old.replicas.get(replica_id)
    figures = figures_between(past, counts, seconds=seconds)
    told = (model.get("replicas") or {}).get(replica_id, {})
    state = str(told.get("state", "running")) if item["running"] else f"ended ({item['exit']})"
    return (f"  {replica_id}", state.replace("_", " "), *_cells(figures), *_memory([item]))


def _state_of(
    model: Mapping[str, Any], replicas: Sequence[Mapping[str, Any]], num_waiting: int, now_s: float
) -> str:
    """In words: what is loaded on demand says where it is in that, and how long a load takes."""
    state = str(model.get("state", "running"))
    load_s = model.get("load_s")
    expected = "" if load_s is None else f"about {format_duration_s(load_s)}"
    if any(told.get("detail") == "wakes" for told in (model.get("replicas") or {}).values()):
        return f"wakes, {expected}" if expected else "wakes"
    if state == "starting" and model.get("engine") != EXTERNAL_ENGINE:
        return _loading(replicas, expected, now_s)
    if state == "ready" and not model.get("admits", True):
        return "finishing, then unloaded"
    if state == "sleeping":
        takes = f", a wake takes {expected}" if expected else ""
        return f"asleep{', waited for' if num_waiting else ''}{takes}"
    if model.get("on_demand") and state == "stopped":
        takes = f"a load takes {expected}" if expected else "its load was never timed"
        return f"{'waited for' if num_waiting else 'not loaded'}, {takes}"
    return state.replace("_", " ")


def _loading(replicas: Sequence[Mapping[str, Any]], expected: str, now_s: float) -> str:
    began_s = [item["started_at_s"] for item in replicas if item["running"] and item["started_at_s"]]
    so_far = format_duration_s(max(0.0, now_s - min(began_s))) if began_s else ""
    parts = [part for part in (so_far, expected) if part]
    return "loading" + (f", {' of '.join(parts)}" if parts else "")


def _cells(figures: Figures) -> tuple[str, ...]:
    return (
        "-" if figures.tokens_per_s is None else f"{figures.tokens_per_s:,.1f}",
        _pair(figures.ttft_s),
        _pair(figures.itl_s),
        "-" if figures.num_running is None else str(figures.num_running),
        "-" if figures.num_waiting is None else str(figures.num_waiting),
        "-" if figures.kv_use_ratio is None else f"{100 * figures.kv_use_ratio:.0f} %",
    )


def _pair(seconds: tuple[float, float] | None) -> str:
    return "-" if seconds is None else " / ".join(_milliseconds(value) for value in seconds)


def _milliseconds(seconds: float) -> str:
    return f"{1000 * seconds:.1f} ms" if seconds < 0.1 else f"{1000 * seconds:,.0f} ms"


def _memory(replicas: Sequence[Mapping[str, Any]]) -> tuple[str, str]:
    """Predicted and used; on cards both per card, as the latest start measured."""
    running = [item for item in replicas if item["running"]]
    measured = [item["card_memory"] for item in running if item.get("card_memory")]
    if measured:
        return tuple(_card_total(measured[-1][side]) for side in ("predicted", "measured"))  # type: ignore[return-value]
    predicted = [item["predicted_bytes"] for item in running if item["predicted_bytes"]]
    used = [item["rss_bytes"] for item in running if item["rss_bytes"]]
    return format_bytes(sum(predicted)) if predicted else "-", format_bytes(sum(used)) if used else "-"


def _card_total(parts: Mapping[str, Any]) -> str:
    keys = ("weights_bytes", "activation_bytes", "non_torch_bytes", "cuda_graph_bytes", "kv_cache_bytes")
    return f"{format_bytes(sum(parts.get(key) or 0 for key in keys))} per card"
