"""Pure. A result as one HTML page that needs nothing else: table and plots, light, dark and on paper."""

from __future__ import annotations

from html import escape
from typing import Any

import plotly.io
from plotly.offline import get_plotlyjs

from trimtab.bench.report_plots import draw_figures

__all__ = ["render_page"]

_STYLE = """
:root { color-scheme: light dark; --ink: #1d2733; --soft: #5b6876; --line: #dfe4ea; --ground: #ffffff;
  --card: #f7f9fb; --bad: #b3261e; --good: #1b7f4d; }
@media (prefers-color-scheme: dark) { :root { --ink: #e6eaf0; --soft: #9aa7b5; --line: #2c3642;
  --ground: #12171d; --card: #1a2129; --bad: #ff8a80; --good: #6fd8a1; } }
* { box-sizing: border-box; }
body { margin: 0; background: var(--ground); color: var(--ink);
  font: 15px/1.5 system-ui, -apple-system, "Segoe UI", sans-serif; }
main { max-width: 1080px; margin: 0 auto; padding: 32px 20px 64px; }
h1 { font-size: 26px; margin: 0 0 4px; } h2 { font-size: 18px; margin: 36px 0 2px; }
p.soft, caption, th { color: var(--soft); } p { margin: 2px 0 10px; }
.state { display: inline-block; padding: 2px 10px; border-radius: 999px; border: 1px solid currentColor;
  font-weight: 600; } .bad { color: var(--bad); } .good { color: var(--good); }
.scroll { overflow-x: auto; }
table { border-collapse: collapse; width: 100%; font-variant-numeric: tabular-nums; }
th, td { padding: 6px 10px; text-align: right; border-bottom: 1px solid var(--line); white-space: nowrap; }
th:first-child, td:first-child { text-align: left; }
section.plot { background: var(--card); border: 1px solid var(--line); border-radius: 10px;
  padding: 14px 16px; margin: 14px 0; break-inside: avoid; }
section.plot h2 { margin: 0; } ul { padding-left: 20px; }
@page { margin: 12mm; }
@media print { main { max-width: none; padding: 0; } body { background: #fff; color: #000; font-size: 12px; }
  section.plot { border-color: #ccc; background: #fff; margin: 8px 0; padding: 8px 12px; }
  .scroll { overflow: visible; } table { font-size: 10px; } th, td { padding: 3px 4px; } }
"""

_SCRIPT = """
const dark = matchMedia("(prefers-color-scheme: dark)"), paper = matchMedia("print");
function paint() {
  const night = dark.matches && !paper.matches;
  const ink = night ? "#e6eaf0" : "#1d2733", grid = night ? "#2c3642" : "#dfe4ea";
  for (const plot of document.querySelectorAll(".js-plotly-plot")) {
    const change = {"font.color": ink};
    for (const axis of ["xaxis", "yaxis", "yaxis2"]) if (plot.layout[axis]) {
      change[axis + ".gridcolor"] = grid; change[axis + ".linecolor"] = grid; }
    Plotly.relayout(plot, change);
  }
}
dark.addEventListener("change", paint); paper.addEventListener("change", paint);
addEventListener("beforeprint", paint); addEventListener("load", paint);
"""

_COLUMNS = (
    ("completed", "ok"),
    ("failed", "failed"),
    ("request_throughput", "req/s"),
    ("output_throughput", "tokens/s"),
    ("output_throughput_per_user", "tokens/s/user"),
    ("median_ttft_ms", "TTFT p50"),
    ("p99_ttft_ms", "p99"),
    ("median_tpot_ms", "TPOT p50"),
    ("p99_tpot_ms", "p99"),
    ("median_e2el_ms", "E2E p50"),
    ("p99_e2el_ms", "p99"),
)


def render_page(document: dict[str, Any], table: list[str], remarks: list[str]) -> str:
    """The page. ``table`` names the loads, parallel to the runs; ``remarks`` are sentences on them."""
    state = ("good", "valid") if document["is_valid"] else ("bad", "invalid: the client was the bottleneck")
    plots = [
        f'<section class="plot"><h2>{escape(title)}</h2><p class="soft">{escape(words)}</p>'
        + plotly.io.to_html(
            figure,
            include_plotlyjs=False,
            full_html=False,
            config={"displayModeBar": False, "responsive": True},
        )
        + "</section>"
        for title, words, figure in draw_figures(document)
    ]
    said = "".join(f"<li>{escape(remark)}</li>" for remark in remarks)
    return "\n".join(
        (
            '<!doctype html><html lang="en"><head><meta charset="utf-8">',
            '<meta name="viewport" content="width=device-width, initial-scale=1">',
            f"<title>bench of {escape(str(document['endpoint']))}</title><style>{_STYLE}</style>",
            f"<script>{get_plotlyjs()}</script></head><body><main>",
            f"<h1>bench of {escape(str(document['endpoint']))}</h1>",
            f'<p class="soft">{escape(_describe(document))}</p>',
            f'<p><span class="state {state[0]}">{escape(state[1])}</span></p>',
            _render_table(document, table),
            f"<ul>{said}</ul>" if said else "",
            *plots,
            f"</main><script>{_SCRIPT}</script></body></html>",
        )
    )


def _describe(document: dict[str, Any]) -> str:
    workload = document["workload"]
    low, high = workload["input_tokens"]
    prompt = f"{low:,}" if low == high else f"{low:,} to {high:,}"
    low, high = workload["output_tokens"]
    answer = f"{low:,}" if low == high else f"{low:,} to {high:,}"
    models = ", ".join(name for name in workload["models"] if name) or "the model each request names"
    lengths = f"from {workload['file']}" if workload["file"] else f"{prompt} tokens in, {answer} out"
    seed, version = f"seed {workload['seed']}", f"trimtab {document['trimtab_version']}"
    return " · ".join((str(document["date"]), models, lengths, seed, version))


def _render_table(document: dict[str, Any], loads: list[str]) -> str:
    head = "".join(f"<th>{escape(title)}</th>" for title in ("load", *(title for _, title in _COLUMNS)))
    rows = []
    for load, run in zip(loads, document["runs"], strict=True):
        cells = "".join(f"<td>{_cell(run.get(key))}</td>" for key, _ in _COLUMNS)
        rows.append(f"<tr><td>{escape(load)}</td>{cells}</tr>")
    return (
        f'<div class="scroll"><table><caption>latencies in ms</caption><thead><tr>{head}</tr></thead>'
        f"<tbody>{''.join(rows)}</tbody></table></div>"
    )


def _cell(value: float | None) -> str:
    if value is None:
        return "-"
    if isinstance(value, int):
        return f"{value:,}"
    return f"{value:,.0f}" if value >= 1000 else f"{value:.1f}" if value >= 10 else f"{value:.2f}"
