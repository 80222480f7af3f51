"""The matrix of real starts is resumable: what the committed raw file holds is never run or counted again."""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path

import pytest

FOLDER = Path(__file__).parents[2] / "benchmarks" / "ground-truth"
RECORD = FOLDER / "h200-vllm-0.25.1.json"


@pytest.fixture
def harness(monkeypatch):
    """The recipes of that folder as modules."""
    monkeypatch.syspath_prepend(str(FOLDER))
    import configurations
    import record_runs
    import run_matrix

    return argparse.Namespace(rows=configurations, record=record_runs, matrix=run_matrix)


def waiting(harness, tmp_path, *, record=RECORD, pairs=False, only=None) -> list[str]:
    options = argparse.Namespace(
        out=str(tmp_path), record=str(record) if record else None, pairs=pairs, only=only
    )
    return [row["id"] for row in harness.matrix.Matrix(options, True, {}).waiting]


def recorded() -> set[str]:
    return {run["id"] for run in json.loads(RECORD.read_text())["runs"]}


@pytest.mark.parametrize("pairs", [False, True], ids=["one-card", "two-cards"])
def test_a_trip_begins_where_the_record_ends(harness, tmp_path, pairs):
    """Rows of the raw file are skipped; the rest keeps its order; without a record all are run."""
    rows = [row["id"] for row in (harness.rows.PAIRS if pairs else harness.rows.ROWS)]

    left = waiting(harness, tmp_path, pairs=pairs)

    assert left == [name for name in rows if name not in recorded()]
    assert 0 < len(left) < len(rows)
    assert waiting(harness, tmp_path, pairs=pairs, record=None) == rows


def test_a_row_that_is_recorded_is_not_run_even_by_name(harness, tmp_path):
    """Naming rows picks among those that are left."""
    assert waiting(harness, tmp_path, only="32b-fp8-8k-256,32b-bf16-8k") == ["32b-bf16-8k"]


def test_a_result_is_added_once(harness, tmp_path, monkeypatch):
    """The same results brought home twice leave the record as it was; a start that was cut off is no row."""
    whole = json.loads(RECORD.read_text())
    first, second = whole["runs"][0], whole["runs"][1]
    cut = dict(second, id="cut", ranks=[{"own_bytes_ready_missing": 1}])
    host = whole["hosts"][0]
    record, brought = tmp_path / "record.json", tmp_path / "runs.json"
    brought.write_text(json.dumps({"host": host, "runs": [first, second, cut]}))

    texts = []
    for _ in range(2):
        monkeypatch.setattr(sys, "argv", ["record_runs.py", str(record), str(brought)])
        harness.record.main()
        texts.append(record.read_text())

    assert texts[0] == texts[1]
    assert [run["id"] for run in json.loads(texts[0])["runs"]] == [first["id"], second["id"]]


def test_results_are_written_after_every_start(harness, tmp_path):
    """An interrupted trip keeps what it has."""
    options = argparse.Namespace(out=str(tmp_path), record=None, pairs=False, only=None)
    matrix = harness.matrix.Matrix(options, True, {"gpus": ["x"]})
    matrix.done.append({"id": "a"})

    matrix.write()

    assert json.loads((tmp_path / "runs.json").read_text())["runs"] == [{"id": "a"}]
