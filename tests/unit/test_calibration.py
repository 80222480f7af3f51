"""What a start measured becomes the next plan's figure; what is damaged or another's does not."""

# ruff: noqa: E501  # log lines stand as they are written

from __future__ import annotations

import json
import logging
from dataclasses import replace

import pytest
from vllm_plans import plan_of
from wishes import DENSE_FP8, plan, wish

from trimtab.cli.status_memory import read_card_memory, render_card_memory
from trimtab.core.plan import Plan
from trimtab.core.stack import GatewaySettings
from trimtab.core.state import ObservedReplica
from trimtab.engines.vllm_phases import read_boot
from trimtab.launcher.calibration import Calibration
from trimtab.launcher.calibration_store import CalibrationStore
from trimtab.launcher.specs import SpecOptions, specs_of
from trimtab.planner.calibration import find_corrections, key_of, record_start
from trimtab.planner.gpu_spec import decode_gpu_spec

GIB, MIB = 1 << 30, 1 << 20
CARDS = decode_gpu_spec("1xh200")
# benchmarks/ground-truth/h200-vllm-0.25.1.json, start 27b-fp8-vision-8k, with the line that names the version.
PINS = {
    "gpu_memory_utilization": 0.3,
    "max_model_len": 32768,
    "max_num_seqs": 64,
    "max_num_batched_tokens": 8192,
    "enable_prefix_caching": True,
    "gdn_prefill_backend": "triton",
}
LOG = (
    "INFO [core.py:1] Initializing a V1 LLM engine (v0.25.1) with config: model='Qwen/Qwen3.5-27B-FP8'",
    "Model loading took 28.51 GiB memory and 2.162851 seconds",
    "Setting attention block size to 784 tokens to ensure that attention page size is >= mamba page size.",
    "Estimated CUDA graph memory: 0.30 GiB total",
    "Available KV cache memory: 10.97 GiB",
    "GPU KV cache size: 156,330 tokens",
    "Maximum concurrency for 32,768 tokens per request: 4.77x",
    "Graph capturing finished in 7 secs, took 0.33 GiB",
)


def recorded_wish(**changes):
    return wish(DENSE_FP8, engine_args={**PINS, **changes})


def planned(calibration=(), **changes):
    (model,) = plan("1xh200", replace(recorded_wish(**changes), calibration=calibration)).models
    return model


def record(log=LOG, model=None, **changes):
    model = model or planned(**changes)
    return record_start(model, model.replicas[0], CARDS, read_boot(log).facts, at_s=1.0)


def cache_of(model) -> int:
    return model.replicas[0].per_gpu[0].kv_cache_bytes


def test_a_recorded_start_of_h200_is_told_term_by_term():
    """The log's own figures, with what is neither weights nor graphs nor cache as activation."""
    found = record()
    measured = found.measured
    assert measured.weights_bytes == int(28.51 * GIB)
    assert measured.kv_cache_bytes == int(10.97 * GIB)
    assert measured.kv_cache_tokens == 156_330
    # vLLM's own sum in that log: 30.68 GiB, of which 28.51 weights.
    assert measured.activation_bytes == pytest.approx((1.92 + 0.25) * GIB, abs=30 * MIB)
    assert (found.key.card, found.key.engine_version, found.key.num_seqs) == ("h200", "0.25.1", 64)


def test_the_next_plan_has_the_measured_cache_and_says_so():
    """After one start the plan of the same settings is right to within what the log rounds away."""
    model = planned(calibration=(record(),))
    assert cache_of(model) == pytest.approx(10.97 * GIB, abs=32 * MIB)
    (warning,) = [item for item in model.warnings if item.code == "calibrated"]
    assert warning.source == "calibrated"
    assert "weights and activation" in warning.text
    assert not [item for item in planned().warnings if item.code == "calibrated"]


def test_a_start_that_needed_more_leaves_less_for_the_cache():
    """Half a GiB more than estimated is half a GiB less of cache the next time."""
    base = planned()
    needed_more = [line.replace("10.97", f"{cache_of(base) / GIB - 0.5:.2f}") for line in LOG]
    weights = base.replicas[0].per_gpu[0].weights_bytes
    needed_more[1] = f"Model loading took {weights / GIB:.2f} GiB memory and 2.1 seconds"
    model = planned(calibration=(record(tuple(needed_more)),))
    assert cache_of(base) - cache_of(model) == pytest.approx(0.5 * GIB, abs=64 * MIB)


def test_calibrating_twice_changes_nothing_more():
    """A plan that was calibrated measures the same again: no drift."""
    once = planned(calibration=(record(),))
    again = planned(calibration=(record(), record(model=once)))
    assert cache_of(again) == cache_of(once)


@pytest.mark.parametrize(
    ("changes", "terms"),
    [
        pytest.param({"max_num_seqs": 32}, {"weights", "activation"}, id="fewer-sequences"),
        pytest.param({"max_num_seqs": 128}, {"weights"}, id="more-sequences"),
        pytest.param({"max_num_batched_tokens": 4096}, {"weights"}, id="another-batch"),
        pytest.param({"language_model_only": True}, set(), id="without-its-tower"),
    ],
)
def test_a_measurement_holds_for_what_it_is_true_of(changes, terms):
    """Weights hold under another batch; activations don't; neither holds without the vision tower."""
    other = record(**changes)
    corrections = dict(find_corrections((record(),), other.key, ()))
    assert set(corrections) == terms


def test_another_version_card_or_model_is_not_calibrated():
    """Nothing is carried over to where it was not measured."""
    found = record()
    assert found.key.has_same_weights(found.key)
    for changes in ({"card": "h100"}, {"engine_version": "0.32.0"}, {"checkpoint": "other"}):
        assert find_corrections((found,), replace(found.key, **changes), ()) == ()


def test_a_folder_of_the_hub_cache_is_the_repository_it_holds():
    """The plan names the repository, what runs is a folder: the measurement is of one model."""
    folder = "/c/hub/models--Qwen--Qwen3.5-27B-FP8/snapshots/0123abc"
    assert key_of(CARDS[0], "0.25.1", folder, PINS) == key_of(CARDS[0], "0.25.1", DENSE_FP8, PINS)


@pytest.mark.parametrize(
    "log",
    [
        pytest.param(LOG[1:], id="no-version"),
        pytest.param((LOG[0].replace("0.25.1", "0.17.0"), *LOG[1:]), id="another-version"),
        pytest.param(LOG[:3], id="no-cache-yet"),
        pytest.param((*LOG[:4], "Available KV cache memory: 900 GiB"), id="beyond-the-card"),
        pytest.param(
            (LOG[0], "Model loading took 0.02 GiB memory and 1 seconds", *LOG[2:]), id="tiny-weights"
        ),
    ],
)
def test_a_log_that_cannot_be_this_start_is_no_measurement(log):
    """A foreign or half-read log leaves the planner's own figures alone."""
    assert record(log) is None


def test_the_store_gives_back_what_it_was_given(tmp_path):
    """Records survive a restart of trimtab."""
    store = CalibrationStore(tmp_path / "state")
    assert store.read() == ()
    store.add(record())
    store.add(record(max_num_seqs=32))
    assert store.read() == (record(), record(max_num_seqs=32))


@pytest.mark.parametrize(
    "line",
    [
        "garbage",
        "[1, 2]",
        '{"schema": 2}',
        '{"schema": 1, "key": null}',
        "\x00\xff",
        "[" * 100_000,
        json.dumps({"schema": 1, "key": {"card": 5}}),
    ],
    ids=["text", "list", "newer", "null", "bytes", "deep", "kinds"],
)
def test_damaged_lines_are_ignored_with_one_warning(tmp_path, caplog, line):
    """A half-written or foreign line costs itself, not the rest."""
    store = CalibrationStore(tmp_path)
    store.add(record())
    with (tmp_path / "calibration.jsonl").open("a", encoding="utf-8", errors="surrogateescape") as file:
        file.write(f"{line}\n")
    store.add(record())
    with caplog.at_level(logging.WARNING):
        assert store.read() == (record(), record())
    assert [item.message for item in caplog.records if "1 of 3 lines" in item.message]


@pytest.mark.parametrize(
    "change",
    [{"weights_bytes": -1}, {"weights_bytes": 1 << 60}, {"weights_bytes": True}, {"kv_cache_bytes": "9"}],
    ids=["negative", "petabytes", "truth", "text"],
)
def test_amounts_without_sense_are_no_records(tmp_path, change):
    """A figure that no card can have does not reach a plan."""
    store = CalibrationStore(tmp_path)
    store.add(record())
    path = tmp_path / "calibration.jsonl"
    document = json.loads(path.read_text())
    document["measured"] |= change
    path.write_text(json.dumps(document) + "\n")
    assert store.read() == ()


def test_the_store_stays_small(tmp_path):
    """Years of starts do not make a file that takes long to read."""
    store, found = CalibrationStore(tmp_path), record()
    for _ in range(520):
        store.add(found)
    assert 200 < len(store.read()) <= 500


def test_a_folder_that_cannot_be_written_disturbs_nothing(tmp_path, caplog):
    """Serving goes on where measurements cannot be kept."""
    (tmp_path / "file").write_text("")
    store = CalibrationStore(tmp_path / "file")
    store.add(record())
    assert store.read() == ()
    assert "is not kept" in caplog.text


def test_a_ready_engine_is_noted_once_by_its_replica(tmp_path):
    """What a served plan's engine logged lands in the store; a CPU build's start does not."""
    served = Plan(
        stack="s",
        fits=True,
        models=(planned(),),
        gateway=GatewaySettings(),
        hardware=plan_of("1xh200").hardware,
    )
    (spec,) = specs_of(served, SpecOptions(trimtab_version="0", dies_with_supervisor=True))
    calibration = Calibration(CalibrationStore(tmp_path), lambda: served)
    on_cpu = tuple(line.replace("GPU KV", "CPU KV") for line in LOG)
    assert calibration.note_start(spec, on_cpu) is None
    assert calibration.note_start(replace(spec, replica_id="other"), LOG) is None
    assert calibration.note_start(spec, LOG).measured == record().measured
    assert len(CalibrationStore(tmp_path).read()) == 1


def test_status_shows_predicted_and_measured_of_the_start_that_runs(tmp_path):
    """Whoever asks for the status sees each part of a card beside its prediction; an older start's is not shown."""
    store = CalibrationStore(tmp_path)
    store.add(replace(record(), at_s=1000.0))
    replica = ObservedReplica(
        replica_id=record().replica_id,
        stack="s",
        model="m",
        engine="vllm",
        config_hash="",
        pid=1,
        port=1,
        base_url="",
        log_path="",
        dies_with_supervisor=True,
        started_at_s=990.0,
    )
    memory = read_card_memory(tmp_path, replica)
    (line,) = render_card_memory(replica.replica_id, memory)
    assert "KV cache 11.0 GiB (predicted" in line
    assert "156,330 tokens (predicted" in line
    assert read_card_memory(tmp_path, replace(replica, started_at_s=2000.0)) is None
    assert render_card_memory("x", None) == ()
