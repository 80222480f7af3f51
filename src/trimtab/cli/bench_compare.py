"""I/O. ``trimtab bench compare A B``: two results, their differences, and whether they are real."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path
from typing import Any

import click

from trimtab.cli.options import json_option
from trimtab.errors import StackFileError

__all__ = ["compare", "read_result"]


@click.command(
    epilog="""\b
Examples:
  trimtab bench compare before.json after.json
  trimtab bench compare before.json after.json --json
"""
)
@click.argument("a", metavar="A.json")
@click.argument("b", metavar="B.json")
@json_option
def compare(*, a: str, b: str, as_json: bool) -> None:
    """Compare two results of trimtab bench, load by load."""
    from trimtab.bench.compare import compare_runs, match_runs, worst_check  # noqa: PLC0415
    from trimtab.cli.bench_report import render_differences  # noqa: PLC0415

    one, other = read_result(a), read_result(b)
    groups = [(load, compare_runs(first, second)) for load, first, second in match_runs(one, other)]
    doubts = [
        f"{path} is invalid: {reason}"
        for path, result in ((a, one), (b, other))
        if (reason := worst_check(result["runs"]))
    ]
    if one["workload"] != other["workload"]:
        doubts.append("the two results had different workloads")
    if as_json:
        found = {load: [asdict(each) for each in differences] for load, differences in groups}
        click.echo(json.dumps({"schema_version": 1, "loads": found, "doubts": doubts}, indent=2))
        return
    click.echo(render_differences(groups))
    for doubt in doubts:
        click.echo(f"doubt: {doubt}")


def read_result(path: str) -> dict[str, Any]:
    """A saved result; StackFileError says what the file is instead."""
    try:
        document = json.loads(Path(path).read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise StackFileError(
            f"{path} does not exist", hint="trimtab bench … --out FILE.json saves a result"
        ) from None
    except OSError as error:
        raise StackFileError(f"{path} cannot be read: {(error.strerror or str(error)).lower()}") from None
    except (ValueError, RecursionError) as error:
        raise StackFileError(f"{path} is not JSON: {error}") from None
    if not isinstance(document, dict) or document.get("tool") != "trimtab bench":
        raise StackFileError(f"{path}: isn't a result of trimtab bench", hint="save one with --out")
    if document.get("schema_version") != 1:
        raise StackFileError(f"{path}: schema_version is {document.get('schema_version')!r}, expected 1")
    return document
