"""I/O. ``trimtab bench html RESULT.json OUT.html``: a saved result as a page of its own."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from typing import Any

import click

from trimtab.errors import EnvironmentMissingError, StackFileError

__all__ = ["check_can_render", "html", "write_page"]


@click.command(
    epilog="""\b
Examples:
  trimtab bench http://127.0.0.1:8080 --concurrency 1,2,4,8 --out result.json
  trimtab bench html result.json report.html
"""
)
@click.argument("result", metavar="RESULT.json")
@click.argument("out", metavar="OUT.html")
def html(*, result: str, out: str) -> None:
    """Write a result as one HTML page with plots; it needs no network."""
    from trimtab.cli.bench_compare import read_result  # noqa: PLC0415 - keeps --help quick

    check_can_render()
    write_page(read_result(result), out)
    click.echo(f"wrote {out}")


def check_can_render() -> None:
    """Before a run rather than after it; EnvironmentMissingError names what to install."""
    if importlib.util.find_spec("plotly") is None:
        raise EnvironmentMissingError(
            "plots need plotly, which is not installed",
            hint=".venv/bin/pip install '.[report]' in the checkout",
        )


def write_page(document: dict[str, Any], path: str) -> None:
    """Render and write; StackFileError where it cannot be written."""
    from trimtab.bench.report_page import render_page  # noqa: PLC0415 - plotly takes a moment
    from trimtab.cli.bench_report import describe_runs  # noqa: PLC0415

    loads, remarks = describe_runs(document)
    try:
        Path(path).write_text(render_page(document, loads, remarks), encoding="utf-8")
    except OSError as error:
        raise StackFileError(f"{path}: cannot be written: {error.strerror}") from None
