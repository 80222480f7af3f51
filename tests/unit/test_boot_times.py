"""How long a start took before: remembered per settings, forgotten where the file is no such file."""

from __future__ import annotations

import json

import pytest
from supervising_program import fake_spec

from trimtab.launcher.boot_times import BootTimes


def test_the_latest_start_with_these_settings_counts(tmp_path):
    """Whoever waits is told what the same start took."""
    times = BootTimes(tmp_path)
    times.note(fake_spec(), 12.34)
    times.note(fake_spec(), 20.0)

    assert BootTimes(tmp_path).expect_s(fake_spec()) == 20.0


def test_wakes_are_remembered_apart_from_starts(tmp_path):
    """A wake of a second says nothing about a start, nor the other way round, nor for other settings."""
    times = BootTimes(tmp_path)
    times.note_wake(fake_spec(), 0.384)
    assert times.expect_s(fake_spec()) is None
    times.note(fake_spec(), 92.6)

    again = BootTimes(tmp_path)
    assert (again.expect_s(fake_spec()), again.expect_wake_s(fake_spec())) == (92.6, 0.38)
    assert again.expect_wake_s(fake_spec(config_hash="new")) is None


def test_other_settings_of_the_model_stand_in(tmp_path):
    """A first start after a change is told about the one before it; another model's is not."""
    times = BootTimes(tmp_path)
    times.note(fake_spec(config_hash="old"), 50.0)

    assert times.expect_s(fake_spec(config_hash="new")) == 50.0
    assert times.expect_s(fake_spec(replica_id="other-0")) is None


@pytest.mark.parametrize(
    "content",
    ["", "[]", "{", '{"fake/fake/aaaa": "long"}', '{"fake/fake/aaaa": -1}', "[" * 100_000],
    ids=range(6),
)
def test_a_damaged_file_is_no_memory(tmp_path, content):
    """Foreign or broken content neither crashes a start nor is believed."""
    (tmp_path / "boot-times.json").write_text(content)
    times = BootTimes(tmp_path)

    assert times.expect_s(fake_spec(config_hash="aaaa")) is None
    times.note(fake_spec(config_hash="aaaa"), 3.0)
    assert times.expect_s(fake_spec(config_hash="aaaa")) == 3.0


def test_the_file_stays_small_and_a_missing_folder_is_no_fault(tmp_path):
    """Two hundred settings are kept; what cannot be written is not remembered."""
    times = BootTimes(tmp_path)
    for number in range(250):
        times.note(fake_spec(config_hash=f"h{number}"), 1.0)

    assert len(json.loads((tmp_path / "boot-times.json").read_text())) == 200
    BootTimes(tmp_path / "absent").note(fake_spec(), 1.0)
    BootTimes().note(fake_spec(), 1.0)
    assert BootTimes().expect_s(fake_spec()) is None
