"""I/O. ``trimtab bench score``: a table of measurements in, the same rows with predictions and errors out."""

from __future__ import annotations

import csv
import json
from collections import Counter
from collections.abc import Callable
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from trimtab.cli.options import json_option
from trimtab.errors import StackFileError

if TYPE_CHECKING:
    from trimtab.bench.score import ScoredRow, TableFormat
    from trimtab.core.model_facts import ModelFacts

__all__ = ["score"]

_MOST_CONFIG_BYTES = 16 * 1024**2
_REASONS_SHOWN = 20
_NEEDED = {"serving": ("model_path", "system", "isl", "osl", "batch_size"), "consumer": ("model", "gpu")}


@click.command(
    epilog="""\b
Examples:
  trimtab bench score measured.csv --configs configs/
  trimtab bench score measured.csv --configs configs/ --out predicted.csv --json
  trimtab bench score cards.csv --format consumer
"""
)
@click.argument("table", metavar="TABLE.csv")
@click.option(
    "--configs",
    metavar="DIR",
    help="Where config.json files lie, as NAME.json or NAME/config.json, at any depth.",
)
@click.option(
    "--format",
    "form",
    type=click.Choice(("serving", "consumer")),
    default="serving",
    show_default=True,
    help="serving: model_path, system, isl, osl, batch_size …; consumer: model, gpu, quant, concurrency …",
)
@click.option("--out", metavar="OUT.csv", help="Write the same rows with predictions and reasons.")
@json_option
def score(*, table: str, configs: str | None, form: TableFormat, out: str | None, as_json: bool) -> None:
    """Score the speed model against TABLE.csv; a row it cannot predict is listed with the reason."""
    from trimtab.bench.score import ModelShelf, score_rows  # noqa: PLC0415 - keeps --help quick

    rows, columns = _read_table(table, form)
    shelf = ModelShelf(_find_configs(configs) if configs is not None else {})
    scored = score_rows(rows, shelf, form)
    if out is not None:
        _write_table(out, columns, scored, form)
    document = _make_document(scored, form)
    click.echo(json.dumps(document, indent=2) if as_json else _render(document))


def _read_table(path: str, form: str) -> tuple[list[dict[str, str]], list[str]]:
    try:
        with Path(path).open(newline="", encoding="utf-8-sig") as file:
            reader = csv.DictReader(file)
            columns = list(reader.fieldnames or [])
            missing = [name for name in _NEEDED[form] if name not in columns]
            if missing:
                raise StackFileError(
                    f"{path}: column {missing[0]!r} is missing",
                    hint=f"a {form} table needs {', '.join(_NEEDED[form])}",
                )
            rows = [{key: value or "" for key, value in row.items() if key is not None} for row in reader]
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        raise StackFileError(f"{path}: cannot be read as a table: {error}") from None
    return rows, columns


def _find_configs(folder: str) -> dict[str, Callable[[], ModelFacts]]:
    """Readers by lower-case base name; the shallowest file of a name wins."""
    root = Path(folder)
    if not root.is_dir():
        raise StackFileError(f"--configs {folder}: isn't a folder")
    found: dict[str, Callable[[], ModelFacts]] = {}
    for path in sorted(root.rglob("*.json"), key=lambda each: (len(each.parts), str(each))):
        name = path.parent.name if path.name == "config.json" else path.stem
        if _is_config(path):
            found.setdefault(name.lower(), partial(_read_config, path))
    return found


def _is_config(path: Path) -> bool:
    """Inventories, indexes and other JSON lie in such folders too."""
    if not path.is_file() or path.stat().st_size > _MOST_CONFIG_BYTES:
        return False
    try:
        document = json.loads(path.read_bytes())
    except (OSError, ValueError):
        return False
    return isinstance(document, dict) and ("architectures" in document or "model_type" in document)


def _read_config(path: Path) -> ModelFacts:
    from trimtab.planner.model_config import decode_model_config  # noqa: PLC0415

    return decode_model_config(json.loads(path.read_bytes()), where=str(path))


_PREDICTED = ("predicted_ttft_ms", "predicted_tpot_ms")


def _write_table(path: str, columns: list[str], scored: tuple[ScoredRow, ...], form: str) -> None:
    extra = [*_PREDICTED, "reason"]
    if form == "consumer":
        extra[2:2] = ["predicted_decode_tok_s_per_user", "predicted_kv_cache_tokens"]
    try:
        with Path(path).open("w", newline="", encoding="utf-8") as file:
            writer = csv.DictWriter(file, [*columns, *(name for name in extra if name not in columns)])
            writer.writeheader()
            writer.writerows({**row.row, **_predicted(row, form)} for row in scored)
    except OSError as error:
        raise StackFileError(f"--out {path}: cannot be written: {error.strerror}") from None


def _predicted(row: ScoredRow, form: str) -> dict[str, str]:
    found = {"predicted_ttft_ms": row.predicted_ttft_ms, "predicted_tpot_ms": row.predicted_tpot_ms}
    cells = {name: "" if value is None else f"{value:.4f}" for name, value in found.items()}
    if form == "consumer":
        pace = row.predicted_tpot_ms
        cells["predicted_decode_tok_s_per_user"] = "" if pace is None else f"{1000.0 / pace:.3f}"
        cells["predicted_kv_cache_tokens"] = str(row.predicted_cache_tokens or "")
    return {**cells, "reason": row.reason}


def _make_document(scored: tuple[ScoredRow, ...], form: str) -> dict[str, Any]:
    from trimtab.bench.score import summarize_errors  # noqa: PLC0415

    groups: dict[str, list[ScoredRow]] = {}
    for row in scored:
        if not row.reason:
            groups.setdefault(row.group, []).append(row)
    return {
        "schema_version": 1,
        "format": form,
        "num_rows": len(scored),
        "num_predicted": sum(1 for row in scored if not row.reason),
        "errors": [asdict(each) for each in summarize_errors(scored)],
        "groups": {
            name: [asdict(each) for each in summarize_errors(rows)] for name, rows in sorted(groups.items())
        },
        "rows": [{"row": number, **_row_figures(row)} for number, row in enumerate(scored, start=1)],
    }


def _row_figures(row: ScoredRow) -> dict[str, Any]:
    if row.reason:
        return {"id": row.row.get("id", ""), "reason": row.reason}
    return {
        "id": row.row.get("id", ""),
        "predicted_ttft_ms": row.predicted_ttft_ms,
        "predicted_tpot_ms": row.predicted_tpot_ms,
        "measured_ttft_ms": row.measured_ttft_ms,
        "measured_tpot_ms": row.measured_tpot_ms,
        "source": row.source,
    }


def _render(document: dict[str, Any]) -> str:
    lines = [f"{document['num_predicted']} of {document['num_rows']} rows predicted"]
    lines += [f"  {_line(each)}" for each in document["errors"]]
    for name, errors in document["groups"].items():
        lines += [f"  {name}: {_line(each)}" for each in errors]
    reasons = Counter(row["reason"] for row in document["rows"] if "reason" in row)
    if reasons:
        lines.append(f"not predicted ({sum(reasons.values())} rows; --out lists them row by row):")
        lines += [f"  {count:5d}  {reason}" for reason, count in reasons.most_common(_REASONS_SHOWN)]
        if len(reasons) > _REASONS_SHOWN:
            lines.append(f"  and {len(reasons) - _REASONS_SHOWN} more reasons")
    return "\n".join(lines)


def _line(each: dict[str, Any]) -> str:
    return (
        f"{each['figure']:15s} {each['num_rows']:5d} rows   median error {100 * each['median_ratio']:5.1f} %"
        f"   mean {100 * each['mean_ratio']:5.1f} %   within 20 %: {100 * each['close_share']:3.0f} % of rows"
        f"   bias {each['bias_ratio']:.2f}"
    )
