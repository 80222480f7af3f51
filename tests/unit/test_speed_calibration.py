"""How fast a start was becomes the next plan's speed; what cannot be right, or is another's, does not."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st
from wishes import DENSE_FP8, plan, wish

from trimtab.launcher.calibration_store import SpeedStore
from trimtab.planner.calibration import key_of
from trimtab.planner.gpu_spec import decode_gpu_spec
from trimtab.planner.latency import SpeedWorkload
from trimtab.planner.speed_calibration import MeasuredPoint, find_speed_calibration, summarise_points
from trimtab.planner.speed_ratios import SpeedRatio, blend_ratios

CARD = decode_gpu_spec("1xh200")[0]
KEY = key_of(CARD, "0.25.1", DENSE_FP8, {"max_num_seqs": 16})


def point(
    said_ttft: float,
    ttft: float | None,
    *,
    tpot: float | None = 11.0,
    users: int = 1,
    tokens: int = 1024,
):
    return MeasuredPoint(
        concurrency=users,
        input_tokens=tokens,
        predicted_ttft_ms=said_ttft,
        predicted_tpot_ms=10.0,
        ttft_ms=ttft,
        tpot_ms=tpot,
    )


def factors(record, *, users: int = 1, tokens: int = 1024):
    """(TTFT factor, TPOT factor) of a load as a later plan takes them."""
    load = SpeedWorkload(concurrency=users, input_tokens=tokens)
    return find_speed_calibration([record], KEY).factors_of(load)


def test_a_measured_load_gets_what_it_measured_and_one_between_something_between():
    """40 ms on top of 1.5 times the prediction: short and long prompts are both right afterwards."""
    lengths = {512: 20.0, 4096: 200.0, 32768: 1500.0}
    record = summarise_points(
        [point(said, 40 + 1.5 * said, tokens=length) for length, said in lengths.items()], KEY, at_s=1.0
    )

    for length, said in lengths.items():
        assert said * factors(record, tokens=length)[0] == pytest.approx(40 + 1.5 * said)
    assert factors(record, tokens=4096)[0] < factors(record, tokens=1500)[0] < factors(record, tokens=512)[0]


def test_a_load_measured_twice_counts_with_its_mean():
    """One user's first token is measured by a prompt and by an answer of the same length."""
    record = summarise_points([point(100.0, 110.0, tpot=None), point(100.0, 130.0)], KEY, at_s=1.0)

    assert factors(record) == (pytest.approx(1.2), pytest.approx(1.1))


def test_an_idle_first_token_is_told_by_idle_loads_only():
    """That of many users is a queue; their tokens and their queue are their own."""
    points = [point(100.0, 120.0), point(100.0, 300.0, tpot=20.0, users=16)]
    record = summarise_points(points, KEY, at_s=1.0)

    assert factors(record, tokens=2048)[0] == pytest.approx(1.2)
    assert factors(record, users=16) == (pytest.approx(3.0), pytest.approx(2.0))
    assert 1.2 < factors(record, users=4)[0] < 3.0


@given(
    ratios=st.dictionaries(
        st.tuples(st.integers(1, 512), st.integers(1, 1 << 20)), st.floats(0.2, 5.0), min_size=1, max_size=12
    ),
    users=st.integers(1, 1024),
    tokens=st.integers(0, 1 << 21),
)
def test_no_load_gets_a_ratio_outside_of_what_was_measured(ratios, users, tokens):
    """Nothing is carried on beyond the measurements: short of them and past them the nearest count most."""
    measured = [
        SpeedRatio(concurrency=count, input_tokens=length, ratio=ratio)
        for (count, length), ratio in ratios.items()
    ]

    found = blend_ratios(measured, users, tokens)

    assert min(ratios.values()) * (1 - 1e-9) <= found <= max(ratios.values()) * (1 + 1e-9)
    for each in measured:
        assert blend_ratios(measured, each.concurrency, each.input_tokens) == each.ratio


def test_one_impossible_load_is_left_out():
    """A load that was disturbed does not spoil the others."""
    points = [point(100.0, 120.0), point(100.0, 900.0, tokens=8192), point(100.0, 110.0, tokens=2048)]

    record = summarise_points(points, KEY, at_s=1.0)

    assert [item.input_tokens for item in record.ttft] == [1024, 2048]


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
    record = summarise_points([point(100.0, 200.0), point(1000.0, 1100.0, tokens=8192)], key, at_s=1.0)

    after = plan("1xh200", replace(wish(DENSE_FP8, concurrency=16), speeds=(record,))).models[0].speed

    assert before.source == "roofline"
    assert (after.source, "trimtab try" in after.basis) == ("calibrated", True)
    assert after.tpot_ms.mean != before.tpot_ms.mean
    assert after.ttft_ms.mean != before.ttft_ms.mean


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
    new = replace(old, at_s=2.0, tpot=(replace(old.tpot[0], ratio=1.4),))

    assert find_speed_calibration([new, old], KEY).tpot[0].ratio == 1.4


def test_a_store_gives_back_what_was_kept_and_ignores_what_is_damaged(tmp_path, caplog):
    """A half-written line, or a file of something else, costs a warning and nothing more."""
    store, record = SpeedStore(tmp_path), summarise_points([point(100.0, 200.0)], KEY, at_s=1.0)
    store.add(record)
    path = tmp_path / "speed.jsonl"
    whole = json.loads(path.read_text())
    wrong = whole | {"tpot": [{**whole["tpot"][0], "ratio": 1e9}]}
    older = whole | {"tpot": 1.1}
    endless = whole | {"at_s": 10**400}
    lines = "\n".join(json.dumps(line) for line in (wrong, older, endless))
    path.write_text(f"{path.read_text()}{lines}\n{{half")

    assert store.read() == (record,)
    assert "4 of 5 lines" in caplog.text
