"""docs/accuracy.md: what the raw files say, misses included, and which results may become rows of it."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
GOOD = {
    "schema_version": 1,
    "tool": "trimtab try",
    "date": "2026-11-30T10:00:00+00:00",
    "models": [
        {
            "name": "m",
            "checkpoint": "org/m",
            "card": "rtx4090",
            "num_cards": 2,
            "engine_version": "0.25.1",
            "is_cpu_build": False,
            "settings": {"max_model_len": 4096},
            "memory": [{"name": "weights", "unit": "bytes", "predicted": 1, "measured": 1, "ratio": 1.0}],
            "speed": [],
            "failure": "",
        }
    ],
    "plan": {"hardware": {"gpus": [{"uuid": "GPU-secret"}]}},
}


@pytest.fixture
def record():
    sys.path.insert(0, str(ROOT / "benchmarks" / "accuracy"))
    try:
        import record

        yield record
    finally:
        sys.path.remove(str(ROOT / "benchmarks" / "accuracy"))


def changed(**changes):
    return GOOD | {"models": [GOOD["models"][0] | changes]}


def test_every_start_of_the_raw_file_is_a_row(record):
    """No miss is left out: all starts, and what was predicted before they were run."""
    page = record.render()
    raw = json.loads(record.MEMORY_RAW.read_text())

    for run in raw["runs"]:
        assert f"| {run['id']} |" in page or f"| {run['id']} * |" in page
    assert "**does not hold**" in page
    assert page == (ROOT / "docs" / "accuracy.md").read_text()


def test_the_bars_are_computed_from_the_rows(record):
    """A worse prediction would show: figures follow the raw data, not the text."""
    memory, speed = record.read_memory_rows(), record.read_speed_rows()
    record.add_calibrated_speed(speed)
    honest = record.bar_rows(memory, speed)
    worse = [row | {"kv_now": row["kv_now"] + (1 << 30)} for row in memory]

    spoilt = record.bar_rows(worse, speed)

    assert honest[:2] == spoilt[:2]
    assert (honest[2][2], spoilt[2][2]) == ("holds", "**does not hold**")


def test_a_result_is_taken_without_the_machine_it_is_of(record, tmp_path):
    """The plan holds what the machine is; the row holds card, versions and figures."""
    file = tmp_path / "result.json"
    file.write_text(json.dumps(GOOD))

    added = record.add(str(file), tmp_path)

    assert added.name == "2026-11-30-2xrtx4090-vllm-0.25.1-org-m.json"
    assert "GPU-secret" not in added.read_text()
    assert json.loads(added.read_text())["models"] == GOOD["models"]


@pytest.mark.parametrize(
    ("document", "words"),
    [
        ({"tool": "trimtab bench"}, "is no result of trimtab try"),
        ([], "is no result of trimtab try"),
        (changed(is_cpu_build=True), "measured no card"),
        (changed(card=""), "measured no card"),
        (changed(failure="the engine ended"), "start that failed"),
        (changed(memory=[]), "start that failed"),
        (changed(settings={"tokenizer": "/home/me/model"}), "holds a path"),
    ],
    ids=["bench", "list", "cpu", "no-card", "failed", "no-memory", "path"],
)
def test_what_is_no_row_is_refused_in_a_sentence(record, tmp_path, document, words):
    """Whoever contributes reads what is wrong with the file, and nothing is written."""
    file = tmp_path / "result.json"
    file.write_text(json.dumps(document))

    with pytest.raises(SystemExit, match=words):
        record.add(str(file), tmp_path)

    assert list(tmp_path.iterdir()) == [file]
