"""Which loads a try runs: the most telling first, none that the engine would refuse, the rest named."""

from __future__ import annotations

import pytest

from trimtab.bench.try_points import TryLimits, choose_point, cut_rest, list_points

LARGE = TryLimits(max_model_len=262144, max_num_seqs=16, kv_cache_tokens=1_000_000)


def test_the_most_telling_loads_come_first():
    """One user, all users, a long prompt, the longest: whatever the budget cuts, these were asked first."""
    first = [(item.kind, item.concurrency, item.input_tokens) for item in list_points(LARGE)[:4]]

    assert first == [
        ("decode", 1, 1024),
        ("decode", 16, 1024),
        ("prefill", 1, 8192),
        ("prefill", 1, 262136),
    ]


def test_several_lengths_users_and_depths_are_measured():
    """Prefill at several lengths, decode at several concurrencies and depths."""
    points = list_points(LARGE)

    lengths = {item.input_tokens for item in points if item.kind == "prefill"}
    users = {item.concurrency for item in points if item.kind == "decode"}
    depths = {item.input_tokens for item in points if item.kind == "decode" and item.concurrency == 1}
    assert {512, 2048, 8192, 32768, 131072} <= lengths
    assert users == {1, 4, 16}
    assert depths == {1024, 8192, 32768, 131072}
    assert len(set(points)) == len(points)


@pytest.mark.parametrize(
    "limits",
    [
        TryLimits(max_model_len=16, max_num_seqs=1),
        TryLimits(max_model_len=512, max_num_seqs=3, kv_cache_tokens=600),
        TryLimits(max_model_len=32768, max_num_seqs=256, kv_cache_tokens=40_000),
        TryLimits(max_model_len=131072, max_num_seqs=7),
    ],
    ids=["tiny", "small-cache", "many-users", "odd"],
)
def test_no_load_exceeds_what_the_engine_takes(limits):
    """Within the context and the sequences; together within the cache, or it would measure a queue."""
    points = list_points(limits)

    assert points
    for point in points:
        each = point.input_tokens + point.output_tokens
        assert point.input_tokens >= 1
        assert each <= limits.max_model_len
        assert point.concurrency <= limits.max_num_seqs
        if limits.kv_cache_tokens is not None and not point.is_full:
            assert point.concurrency * each <= limits.kv_cache_tokens
    assert sum(point.is_full for point in points) == 1


def test_a_load_that_does_not_fit_the_time_left_gives_way_to_a_cheaper_one():
    """The budget is used up to its end, and what it cuts is named with what it would have taken."""
    one, two, three = list_points(LARGE)[:3]
    waiting = [(one, 90.0), (two, 20.0), (three, 200.0)]

    assert choose_point(waiting, 100.0) is one
    assert choose_point(waiting, 30.0) is two
    assert choose_point(waiting, 10.0) is None
    cuts = cut_rest([waiting[0], waiting[2]], 9.5)
    assert [cut.point for cut in cuts] == [one, three]
    assert cuts[0].reason == "the budget: it takes about 90 s, 9.5 s were left"
