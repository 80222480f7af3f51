"""Run records: names as file names, and whatever else a file may hold."""

from __future__ import annotations

import json

from hypothesis import given
from hypothesis import strategies as st
from supervising_program import fake_spec

from trimtab.core.state import ExitStatus
from trimtab.runtimes.guard import EXIT_FILE, RECORD_FILE
from trimtab.runtimes.run_record import (
    encode_file_name,
    read_exit_status,
    read_record,
    remove_record,
    render_record,
    replica_id_of,
)

json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=8,
)


def full_record() -> dict[str, object]:
    return {
        **render_record(fake_spec()),
        "boot_id": "b",
        "engine_pid": 2,
        "engine_start_ticks": 20,
        "guard_pid": 1,
        "guard_start_ticks": 10,
        "port": 40000,
        "log_path": "/logs/fake.log",
        "log_offset": 0,
        "started_at_s": 1.5,
    }


@given(st.text(alphabet=st.characters(codec="utf-8"), min_size=1, max_size=60))
def test_every_name_is_one_path_component_and_comes_back(name):
    """Any model name is a file of its own inside its folder."""
    encoded = encode_file_name(name)
    assert "/" not in encoded
    assert not encoded.startswith(".")
    assert len(encoded.encode()) <= 200
    if "~" not in encoded or len(encoded) < 200:
        assert replica_id_of(encoded) == name


@given(st.text(min_size=250, max_size=300), st.text(min_size=1, max_size=5))
def test_long_names_that_differ_stay_apart(name, suffix):
    """Two models whose long names differ only at the end never share a log."""
    safe = name.encode("utf-8", "replace").decode()
    other = safe + suffix.encode("utf-8", "replace").decode()
    assert encode_file_name(safe) != encode_file_name(other)
    assert len(encode_file_name(other)) <= 200


@given(st.sampled_from(sorted(full_record())), json_values)
def test_no_value_of_any_field_crashes_the_reader(tmp_path_factory, field, value):
    """A record with a foreign value is either understood or ignored, never a crash."""
    folder = tmp_path_factory.mktemp("state") / "fake-0"
    folder.mkdir()
    (folder / RECORD_FILE).write_text(json.dumps({**full_record(), field: value}))
    record = read_record(folder)
    if record is not None:
        assert record.replica_id == "fake-0"
        assert isinstance(record.port, int)


def test_record_carries_no_secret(tmp_path):
    """Tokens in an engine's environment or command never land on disk."""
    spec = fake_spec("--say", "hf_secret", env=(("HF_TOKEN", "hf_secret"),))
    assert "hf_secret" not in json.dumps(render_record(spec))


def test_record_of_another_replica_is_ignored(tmp_path, caplog):
    """A folder that was copied or renamed is not mistaken for a running replica."""
    folder = tmp_path / "renamed-0"
    folder.mkdir()
    (folder / RECORD_FILE).write_text(json.dumps(full_record()))
    assert read_record(folder) is None
    assert "speaks of replica 'fake-0'" in caplog.text


def test_exit_status_is_read_or_unknown(tmp_path):
    """A damaged exit file gives an unknown exit, not a crash and not a success."""
    assert read_exit_status(tmp_path) == ExitStatus(code=None)
    for text in ("", "{}", "[]", '{"code": "x", "signal": null}'):
        (tmp_path / EXIT_FILE).write_text(text)
        assert read_exit_status(tmp_path) == ExitStatus(code=None)
    (tmp_path / EXIT_FILE).write_text('{"code": 3, "signal": null}')
    assert read_exit_status(tmp_path) == ExitStatus(code=3)


def test_removing_a_record_twice_is_no_error(tmp_path):
    """Clean-up may meet what somebody else has cleaned up already."""
    folder = tmp_path / "fake-0"
    folder.mkdir()
    (folder / RECORD_FILE).write_text("{}")
    (folder / f"{RECORD_FILE}.123").write_text("{}")
    remove_record(folder)
    remove_record(folder)
    assert not folder.exists()
