"""Pure. A result's plots, as Plotly figures: latency by load, the Pareto of throughput, time, spread.

Plotly comes with the ``report`` extra and is imported here only.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import plotly.graph_objects as go

from trimtab.bench.result import name_load

__all__ = ["draw_figures"]

_COLOURS = ("#3b7dd8", "#d8703b", "#2f9e6e", "#a05fc4", "#c9a227", "#c4446c")
_HEIGHT = 360
Run = dict[str, Any]


def draw_figures(document: dict[str, Any]) -> list[tuple[str, str, go.Figure]]:
    """(title, one line of explanation, figure) for whatever the result can show."""
    runs = [run for run in document["runs"] if run["completed"]]
    found = []
    if len(runs) > 1:
        found.append(
            ("Latency by load", "Median (line) and 99th percentile (dots) of requests.", _latency(runs))
        )
        found.append(
            (
                "Throughput: each user against all",
                "Up and to the right is better; each point is a load.",
                _pareto(runs),
            )
        )
    detailed = [run for run in runs if run.get("details")]
    if detailed:
        found.append(
            (
                "First token: share of requests within",
                "Steep is steady; a long tail is felt.",
                _shares(detailed),
            )
        )
        found.append(
            ("Gaps between tokens: share within", "Pauses in a stream show at the right.", _gaps(detailed))
        )
    for run in runs:
        if len(run["timeline"]) > 1:
            title = f"Over time: {name_load(run)}"
            found.append(
                (title, "Tokens that arrived in each second, and requests in flight.", _timeline(run))
            )
    return found


def _figure(x_title: str, y_title: str, **layout: Any) -> go.Figure:
    """An empty figure; ink and grid are set by the page, which knows light from dark."""
    figure = go.Figure()
    figure.update_layout(
        height=_HEIGHT,
        margin={"l": 64, "r": 64, "t": 16, "b": 56},
        paper_bgcolor="rgba(0,0,0,0)",
        plot_bgcolor="rgba(0,0,0,0)",
        font={"family": "system-ui, sans-serif", "size": 13},
        xaxis={"title": {"text": x_title}, "zeroline": False},
        yaxis={"title": {"text": y_title}, "zeroline": False},
        legend={"orientation": "h", "y": 1.02, "yanchor": "bottom", "x": 0},
        colorway=_COLOURS,
        hovermode="x unified",
        **layout,
    )
    return figure


def _latency(runs: Sequence[Run]) -> go.Figure:
    figure = _figure("load", "ms")
    loads = [name_load(run) for run in runs]
    for colour, (name, words) in zip(
        _COLOURS, (("ttft", "TTFT"), ("tpot", "TPOT"), ("e2el", "E2E")), strict=False
    ):
        for kind, mode, label in (("median", "lines+markers", words), ("p99", "markers", f"{words} p99")):
            figure.add_trace(
                go.Scatter(
                    x=loads,
                    y=[run.get(f"{kind}_{name}_ms") for run in runs],
                    mode=mode,
                    name=label,
                    line={"color": colour},
                    marker={
                        "color": colour,
                        "symbol": "circle" if kind == "median" else "diamond-open",
                        "size": 8 if kind == "median" else 9,
                        "line": {"width": 0 if kind == "median" else 2},
                    },
                )
            )
    _add_predicted(figure, runs)
    figure.update_yaxes(type="log", dtick="D2")
    return figure


def _add_predicted(figure: go.Figure, runs: Sequence[Run]) -> None:
    """The speed model's means as dotted lines with their bands."""
    told = [run for run in runs if run.get("predicted")]
    for colour, (name, words) in zip(_COLOURS, (("ttft", "TTFT"), ("tpot", "TPOT")), strict=False):
        if told:
            values = [run["predicted"][f"mean_{name}_ms"] for run in told]
            bands = [
                value * run["predicted"][f"{name}_error_ratio"]
                for value, run in zip(values, told, strict=True)
            ]
            figure.add_trace(
                go.Scatter(
                    x=[name_load(run) for run in told],
                    y=values,
                    error_y={"type": "data", "array": bands, "thickness": 1},
                    mode="lines",
                    name=f"{words} predicted",
                    line={"color": colour, "dash": "dot"},
                )
            )


def _pareto(runs: Sequence[Run]) -> go.Figure:
    figure = _figure("tokens/s for each user", "tokens/s for all", hoverlabel={"namelength": -1})
    figure.add_trace(
        go.Scatter(
            x=[run["output_throughput_per_user"] for run in runs],
            y=[run["output_throughput"] for run in runs],
            text=[name_load(run) for run in runs],
            mode="lines+markers+text",
            textposition="top center",
            name="measured",
            marker={"size": 9},
            cliponaxis=False,
        )
    )
    figure.update_layout(hovermode="closest", showlegend=False)
    figure.update_xaxes(rangemode="tozero")
    figure.update_yaxes(rangemode="tozero")
    return figure


def _steps(values: Sequence[float]) -> tuple[list[float], list[float]]:
    """Sorted values in ms with the share of values up to each."""
    ordered = sorted(values)
    return [value * 1e3 for value in ordered], [100.0 * (n + 1) / len(ordered) for n in range(len(ordered))]


def _shares(runs: Sequence[Run]) -> go.Figure:
    figure = _figure("ms from sending to the first token", "% of requests")
    for run in runs:
        x, y = _steps([value for value in run["details"]["ttfts"] if value > 0])
        figure.add_trace(go.Scatter(x=x, y=y, mode="lines", line={"shape": "hv"}, name=name_load(run)))
    return figure


def _gaps(runs: Sequence[Run]) -> go.Figure:
    figure = _figure("ms between two pieces of text", "% of gaps")
    for run in runs:
        gaps = [gap for gaps in run["details"]["itls"] for gap in gaps]
        if gaps:
            x, y = _steps(_thin(gaps))
            figure.add_trace(go.Scatter(x=x, y=y, mode="lines", line={"shape": "hv"}, name=name_load(run)))
    figure.update_xaxes(type="log", dtick="D2")
    return figure


def _thin(values: list[float]) -> list[float]:
    """At most some thousand points of the sorted values, both ends kept: more would not be seen."""
    ordered, most = sorted(values), 2000
    if len(ordered) <= most:
        return ordered
    return [ordered[round(at * (len(ordered) - 1) / (most - 1))] for at in range(most)]


def _timeline(run: Run) -> go.Figure:
    figure = _figure("seconds", "tokens/s")
    seconds = [point["second"] for point in run["timeline"]]
    figure.add_trace(
        go.Scatter(
            x=seconds,
            y=[point["output_tokens"] for point in run["timeline"]],
            mode="lines",
            fill="tozeroy",
            name="tokens/s",
        )
    )
    figure.add_trace(
        go.Scatter(
            x=seconds,
            y=[point["in_flight"] for point in run["timeline"]],
            mode="lines",
            name="in flight",
            yaxis="y2",
            line={"dash": "dot"},
        )
    )
    figure.update_layout(
        yaxis2={
            "title": {"text": "in flight"},
            "overlaying": "y",
            "side": "right",
            "showgrid": False,
            "rangemode": "tozero",
            # Whole requests; left to itself the axis takes its steps from the other one.
            "tickmode": "linear",
            "tick0": 0,
            "dtick": max(1, math.ceil(max(point["in_flight"] for point in run["timeline"]) / 5)),
        }
    )
    figure.update_yaxes(rangemode="tozero")
    return figure
