"""How fast a start was becomes the next plan's speed; what cannot be right, or is another's, does not."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest
from wishes import DENSE_FP8, plan, wish

from trimtab.launcher.calibration_store import SpeedStore
from trimtab.planner.calibration import key_of
from trimtab.planner.gpu_spec import decode_gpu_spec
from trimtab.planner.speed_calibration import MeasuredPoint, find_speed_calibration, summarise_points

CARD = decode_gpu_spec("1xh200")[0]
KEY = key_of(CARD, "0.25.1", DENSE_FP8, {"max_num_seqs": 16})


def point(said_ttft: float, ttft: float | None, *, tpot: float | None = 11.0, is_idle: bool = True):
    return MeasuredPoint(
        predicted_ttft_ms=said_ttft,
        predicted_tpot_ms=10.0,
        ttft_ms=ttft,
        tpot_ms=tpot,
        is_idle=is_idle,
    )


def test_a_fixed_cost_and_a_factor_are_told_apart():
    """80 ms on top of 1.5 times the prediction: short and long prompts are both right afterwards."""
    points = [point(said, 80 + 1.5 * said) for said in (20.0, 200.0, 1500.0)]

    record = summarise_points(points, KEY, at_s=1.0)

    assert record.ttft_extra_ms == pytest.approx(80.0, abs=0.01)
    assert record.ttft_factor == pytest.approx(1.5, abs=0.001)
    assert (record.tpot_factor, record.num_points) == (pytest.approx(1.1), 3)


def test_nothing_is_taken_off_a_short_prompt():
    """A line through the points that would make short prompts free is no physics: a factor alone is kept."""
    record = summarise_points([point(50.0, 30.0), point(500.0, 450.0)], KEY, at_s=1.0)

    assert record.ttft_extra_ms == 0.0
    assert record.ttft_factor == pytest.approx((0.6 + 0.9) / 2)


def test_loads_of_many_users_say_nothing_of_an_idle_first_token():
    """Their first token is a queue; their tokens count."""
    points = [point(100.0, 120.0, tpot=None), point(100.0, 9000.0, tpot=13.0, is_idle=False)]

    record = summarise_points(points, KEY, at_s=1.0)

    assert (record.ttft_factor, record.tpot_factor) == (pytest.approx(1.2), pytest.approx(1.3))


@pytest.mark.parametrize(
    "points",
    [
        [],
        [point(100.0, None)],
        [point(100.0, 120.0, tpot=None)],
        [point(100.0, 900.0)],
        [point(100.0, 120.0, tpot=80.0)],
    ],
    ids=["nothing", "no-first-token", "no-token", "impossible-first-token", "impossible-token"],
)
def test_too_little_or_impossible_figures_are_not_kept(points):
    """A model that is off by more than five was not measured: the card was shared, or is another."""
    assert summarise_points(points, KEY, at_s=1.0) is None


def test_the_next_plan_has_the_measured_speed_and_says_so():
    """Time per token and first token move by what was measured; the source is named."""
    (model,) = plan("1xh200", wish(DENSE_FP8, concurrency=16)).models
    before = model.speed
    key = key_of(CARD, "0.25.1", DENSE_FP8, {item.name: item.value for item in model.settings})
    record = summarise_points([point(100.0, 200.0), point(1000.0, 1100.0)], key, at_s=1.0)

    after = plan("1xh200", replace(wish(DENSE_FP8, concurrency=16), speeds=(record,))).models[0].speed

    assert before.source == "roofline"
    assert (after.source, "trimtab try" in after.basis) == ("calibrated", True)
    assert after.tpot_ms.mean != before.tpot_ms.mean
    assert after.ttft_ms.mean > record.ttft_extra_ms


@pytest.mark.parametrize(
    "key",
    [
        key_of(decode_gpu_spec("1xrtx4090")[0], "0.25.1", DENSE_FP8, {}),
        key_of(CARD, "0.33.0", DENSE_FP8, {}),
        key_of(CARD, "0.25.1", "org/other", {}),
        key_of(CARD, "0.25.1", DENSE_FP8, {"tensor_parallel_size": 2}),
        key_of(CARD, "0.25.1", DENSE_FP8, {"enforce_eager": True}),
        key_of(CARD, "0.25.1", DENSE_FP8, {"kv_cache_dtype": "fp8"}),
    ],
    ids=["card", "version", "model", "cards", "eager", "cache"],
)
def test_another_card_version_model_or_kernel_is_not_calibrated(key):
    """Figures are never carried to where they were not measured."""
    record = summarise_points([point(100.0, 200.0)], KEY, at_s=1.0)

    assert find_speed_calibration([record], key) is None
    assert find_speed_calibration([record], replace(KEY, num_seqs=64)) is not None


def test_the_newest_measurement_counts():
    """Whoever tries again after a new driver gets the new figure."""
    old = summarise_points([point(100.0, 200.0)], KEY, at_s=1.0)
    new = replace(old, at_s=2.0, tpot_factor=1.4)

    assert find_speed_calibration([new, old], KEY).tpot_factor == 1.4


def test_a_store_gives_back_what_was_kept_and_ignores_what_is_damaged(tmp_path, caplog):
    """A half-written line, or a file of something else, costs a warning and nothing more."""
    store, record = SpeedStore(tmp_path), summarise_points([point(100.0, 200.0)], KEY, at_s=1.0)
    store.add(record)
    path = tmp_path / "speed.jsonl"
    wrong = json.loads(path.read_text()) | {"tpot_factor": 1e9}
    path.write_text(path.read_text() + json.dumps(wrong) + "\n{half")

    assert store.read() == (record,)
    assert "2 of 3 lines" in caplog.text
