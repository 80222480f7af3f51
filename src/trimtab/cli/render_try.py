"""Pure. A try's result as text: predicted beside measured, what was left out, what dummy weights hide."""

from __future__ import annotations

from collections.abc import Iterable

from trimtab.bench.try_result import CANNOT_TELL, Comparison, TriedModel, compare_points
from trimtab.cli.render import render_table
from trimtab.units import format_bytes, format_duration_s

__all__ = ["render_tried"]

_HEADER = ("", "predicted", "measured", "ratio")


def render_tried(models: Iterable[TriedModel]) -> str:
    """One block per model, then what random weights cannot tell."""
    blocks = [_render_model(model) for model in models]
    return "\n\n".join([*blocks, CANNOT_TELL])


def _render_model(model: TriedModel) -> str:
    cards = f"{model.num_cards}x {model.card}" if model.card else "no card"
    where = "the CPU" if model.is_cpu_build else cards
    lines = [f"try: {model.name} with vllm {model.engine_version} and dummy weights on {where}"]
    if model.start_s is not None:
        lines.append(f"  started in {format_duration_s(model.start_s)}")
    rows = [_row(item) for item in (*model.memory, *compare_points(model.points))]
    if rows:
        lines.append(render_table(_HEADER, rows, indent="  "))
    lines += [f"  {result.point}: {remark}" for result in model.points for remark in result.remarks]
    lines += [f"  full length: {_full(model)}"] if _full(model) else []
    lines += [f"  not measured: {cut.point} ({cut.reason})" for cut in model.cuts]
    lines += [f"  calibrated: {_calibrated(model)}"] if _calibrated(model) else []
    lines += [f"  note: {note}" for note in model.notes]
    lines += [f"  FAILED: {model.failure}"] if model.failure else []
    return "\n".join(lines)


def _full(model: TriedModel) -> str:
    found = next((result for result in model.points if result.point.is_full), None)
    if found is None:
        return ""
    took = "ran" if found.completed and not found.failed else "did NOT run"
    return f"a prompt of {found.point.input_tokens:,} tokens {took}"


def _calibrated(model: TriedModel) -> str:
    parts = ["memory"] if model.is_memory_calibrated else []
    speed = model.corrections
    if speed is not None:
        parts.append(f"speed (first token x {_between(speed.ttft)}, token x {_between(speed.tpot)}, by load)")
    return " and ".join(parts)


def _between(ends: tuple[float, float]) -> str:
    low, high = (f"{end:.2f}" for end in ends)
    return low if low == high else f"{low} to {high}"


def _row(item: Comparison) -> tuple[str, str, str, str]:
    ratio = "-" if item.ratio is None else f"{item.ratio:.3f}"
    return item.name, _shown(item.predicted, item.unit), _shown(item.measured, item.unit), ratio


def _shown(value: float | None, unit: str) -> str:
    if value is None:
        return "-"
    if unit == "bytes":
        return format_bytes(round(value))
    if unit == "ms":
        return f"{value:,.1f} ms" if value >= 10 else f"{value:.2f} ms"
    return f"{value:,.0f} tokens" if unit == "tokens" else f"{value:.2f}"
