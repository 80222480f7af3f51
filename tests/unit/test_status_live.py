"""The live table: figures out of real engines' counters, read twice."""

from __future__ import annotations

import pytest

from trimtab.cli.live_figures import (
    Counts,
    LiveReading,
    add_up,
    figures_between,
    read_engine,
    read_gateway,
    read_slots,
)
from trimtab.cli.render_live import render_live
from trimtab.core.state import ReplicaState, ServedModel
from trimtab.gateway.metrics import GatewayMetrics, Occupancy
from trimtab.gateway.usage import TokenCount

# As vLLM 0.32 writes them (labels shortened), with two engines behind one port.
VLLM = """\
# TYPE vllm:num_requests_running gauge
vllm:num_requests_running{engine="0",model_name="m"} 2.0
vllm:num_requests_running{engine="1",model_name="m"} 1.0
# TYPE vllm:num_requests_waiting gauge
vllm:num_requests_waiting{engine="0",model_name="m"} 4.0
# TYPE vllm:kv_cache_usage_perc gauge
vllm:kv_cache_usage_perc{engine="0",model_name="m"} 0.5
vllm:kv_cache_usage_perc{engine="1",model_name="m"} 0.25
# TYPE vllm:generation_tokens counter
vllm:generation_tokens_total{engine="0",model_name="m"} 100.0
vllm:generation_tokens_total{engine="1",model_name="m"} 60.0
# TYPE vllm:inter_token_latency_seconds histogram
vllm:inter_token_latency_seconds_bucket{engine="0",le="0.01",model_name="m"} 10.0
vllm:inter_token_latency_seconds_bucket{engine="0",le="0.1",model_name="m"} 90.0
vllm:inter_token_latency_seconds_bucket{engine="0",le="+Inf",model_name="m"} 100.0
vllm:inter_token_latency_seconds_count{engine="0",model_name="m"} 100.0
"""
LLAMA_CPP = """\
# TYPE llamacpp:tokens_predicted_total counter
llamacpp:tokens_predicted_total 1
# TYPE llamacpp:requests_processing gauge
llamacpp:requests_processing 2
# TYPE llamacpp:requests_deferred gauge
llamacpp:requests_deferred 1
"""
# As llama.cpp's /slots writes them, shortened.
SLOTS = [
    {
        "id": 0,
        "n_ctx": 1000,
        "is_processing": True,
        "n_prompt_tokens": 300,
        "next_token": [{"n_decoded": 50}],
    },
    {
        "id": 1,
        "n_ctx": 1000,
        "is_processing": False,
        "n_prompt_tokens": 900,
        "next_token": [{"n_decoded": 5}],
    },
]


class Stream:
    """A stream that has brought so many events."""

    num_events = 7


def gateway_text(*, tokens: int, ttft_s: tuple[float, ...] = (), num_streams: int = 0) -> str:
    metrics = GatewayMetrics()
    series = metrics.of_model("m")
    series.count_tokens(TokenCount(prompt=1, completion=tokens))
    for value_s in ttft_s:
        series.ttft_s.observe(value_s)
    series.streams.update(Stream() for _ in range(num_streams))
    served = (ServedModel(name="m", engine="fake", state=ReplicaState.READY),)
    occupied = (Occupancy(model="m", num_running=2, num_waiting=3),)
    return metrics.render(served, num_in_flight=5, occupied=occupied).decode()


def test_tokens_of_unfinished_streams_are_in_the_rate_of_now():
    """An answer of a minute is seen while it comes, not at its end."""
    old = read_gateway(gateway_text(tokens=10))["m"]
    new = read_gateway(gateway_text(tokens=10, num_streams=2))["m"]

    figures = figures_between(old, new, seconds=2.0)

    assert figures.tokens_per_s == pytest.approx(7.0)
    assert (figures.num_running, figures.num_waiting) == (2, 3)


def test_percentiles_are_of_what_came_in_between():
    """Yesterday's slow requests are not in them."""
    old = read_gateway(gateway_text(tokens=0, ttft_s=(50.0,) * 100))["m"]
    new = read_gateway(gateway_text(tokens=0, ttft_s=(50.0,) * 100 + (0.3,) * 10))["m"]

    figures = figures_between(old, new, seconds=2.0)

    assert figures.ttft_s is not None
    assert 0.25 < figures.ttft_s[0] < figures.ttft_s[1] <= 0.5
    assert figures_between(new, new, seconds=2.0).ttft_s is None
    assert figures_between(None, new, seconds=0.0).ttft_s is None


def test_vllm_tells_gaps_tokens_and_its_cache():
    """Engines behind one port are added up; the cache's use is their mean."""
    new = read_engine(VLLM)
    assert new is not None
    figures = figures_between(Counts(tokens=60.0), new, seconds=10.0)

    assert figures.tokens_per_s == pytest.approx(10.0)
    assert (figures.num_running, figures.num_waiting, figures.kv_use_ratio) == (3, 4, 0.375)
    assert figures.itl_s == pytest.approx((0.01 + 0.09 * 40 / 80, 0.1))


def test_an_engine_that_began_anew_counts_from_its_beginning():
    """A restart between two looks makes no negative rate."""
    new = read_engine(VLLM)
    assert new is not None
    old = Counts(tokens=10_000.0, itl=((0.01, 900.0), (0.1, 900.0), (float("inf"), 900.0)))
    figures = figures_between(old, new, seconds=16.0)
    assert figures.tokens_per_s == pytest.approx(10.0)
    assert figures.itl_s is not None


def test_llama_cpp_tells_requests_and_its_slots():
    """Only what a request holds counts as use of the cache."""
    counts = read_engine(LLAMA_CPP)
    assert counts is not None
    assert (counts.num_running, counts.num_waiting, counts.tokens) == (2, 1, None)
    assert read_slots(SLOTS) == pytest.approx(0.175)


@pytest.mark.parametrize("text", ["", "<html>", "vllm:num_requests_running{", "a 1\nb{c=} 2"])
def test_what_is_no_engines_page_has_no_figures(text):
    """Whatever answers on the port."""
    assert read_engine(text) is None


@pytest.mark.parametrize("document", [None, [], {}, [1], [{"n_ctx": "x"}], [{"n_ctx": 0}]])
def test_slots_that_are_none_have_no_figures(document):
    """An error's body, or an older server's."""
    assert read_slots(document) is None


def test_replicas_are_added_up():
    """Their rates and gaps are their model's."""
    one = read_engine(VLLM)
    assert one is not None
    both = add_up([one, one])
    assert both is not None
    assert (both.tokens, both.num_running, both.kv_use_ratio) == (320.0, 6, 0.375)
    assert both.itl[-1][1] == 200.0
    assert add_up([]) is None


def replica(model: str, number: int = 0, **changes):
    entry = {
        "replica_id": f"{model}/{number}", "model": model, "running": True, "exit": None,
        "predicted_bytes": 210 * 2**20, "rss_bytes": 200 * 2**20, "card_memory": None, "started_at_s": 96.0,
    }  # fmt: skip
    return entry | changes


def model(state: str, **changes):
    told = {"state": state, "engine": "llama_cpp", "on_demand": True, "admits": True, "load_s": 12.0}
    return told | {"replicas": {}} | changes


@pytest.mark.parametrize(
    ("told", "num_waiting", "shown"),
    [
        (model("ready"), 0, "ready"),
        (model("ready", admits=False), 2, "finishing, then unloaded"),
        (model("starting"), 2, "loading, 4.0 s of about 12.0 s"),
        (model("starting", load_s=None), 2, "loading, 4.0 s"),
        (model("starting", load_s=1.0, replicas={"a/0": {"detail": "wakes"}}), 2, "wakes, about 1.0 s"),
        (model("sleeping", load_s=1.0), 0, "asleep, a wake takes about 1.0 s"),
        (model("sleeping", load_s=None), 3, "asleep, waited for"),
        (model("stopping"), 0, "stopping"),
        (model("backing_off", on_demand=False), 0, "backing off"),
    ],
    ids=[
        "ready",
        "closed",
        "loading",
        "first-load",
        "waking",
        "asleep",
        "asleep-wanted",
        "leaving",
        "restarting",
    ],
)
def test_a_model_that_runs_says_where_it_is(told, num_waiting, shown):
    """And how long a load takes, as learnt from those before."""
    reading = LiveReading(at_s=2.0, models={"m": Counts(num_running=0, num_waiting=num_waiting)})
    document = {"models": {"m": told}, "replicas": [replica("m")]}

    lines = render_live(document, None, reading, now_s=100.0)

    row = lines[0].splitlines()[1]
    assert [cell.strip() for cell in row.split("  ") if cell.strip()][1] == shown
    assert "210.0 MiB" in row
    assert "200.0 MiB" in row


@pytest.mark.parametrize(
    ("load_s", "num_waiting", "shown"),
    [
        (12.0, 0, "not loaded, a load takes about 12.0 s"),
        (12.0, 3, "waited for, a load takes about 12.0 s"),
        (None, 3, "waited for, its load was never timed"),
    ],
)
def test_a_model_that_is_away_says_whether_somebody_waits(load_s, num_waiting, shown):
    """And what the wait will be about."""
    reading = LiveReading(at_s=2.0, models={"m": Counts(num_running=0, num_waiting=num_waiting)})
    document = {"models": {"m": model("stopped", load_s=load_s)}, "replicas": []}

    row = render_live(document, None, reading, now_s=100.0)[0].splitlines()[1]

    assert shown in row
    assert row.split()[-4:] == [str(num_waiting), "-", "-", "-"]


def test_several_replicas_have_a_row_each():
    """The model's own row has what they do together."""
    vllm = read_engine(VLLM)
    assert vllm is not None
    old = LiveReading(at_s=0.0, models={"m": Counts()}, replicas={"m/0": Counts(tokens=60.0), "m/1": vllm})
    new = LiveReading(at_s=10.0, models={"m": Counts()}, replicas={"m/0": vllm, "m/1": vllm})
    told = model("ready", engine="vllm", replicas={"m/1": {"state": "backing_off"}})
    document = {"models": {"m": told}, "replicas": [replica("m"), replica("m", 1)]}

    rows = render_live(document, old, new, now_s=100.0)[0].splitlines()

    assert [row.split()[0] for row in rows] == ["model", "m", "m/0", "m/1"]
    assert rows[1].split()[2] == "10.0"
    assert "backing off" in rows[3]
    assert "400.0 MiB" in rows[1]


@pytest.mark.parametrize("width", [1, 10, 40, 79, 80, 100, 120, 500])
def test_the_table_fits_the_terminal(width):
    """Columns that have no room are left out and named; a row that wraps cannot be read."""
    name = "qwen3.5-35b-a3b-instruct-of-somebody"
    told = model("stopped", replicas={f"{name}/1": {"state": "backing_off"}})
    document = {"models": {name: told, "m": told}, "replicas": [replica(name), replica(name, 1)]}
    reading = LiveReading(at_s=2.0, models={name: Counts(num_running=0, num_waiting=2)})

    table, *said = render_live(document, None, reading, now_s=100.0, width=width)
    whole = render_live(document, None, reading, now_s=100.0)[0]

    assert max(len(line) for line in [*table.splitlines(), *said]) <= width
    assert width < 10 or len(table.splitlines()) == len(whole.splitlines())
    hidden = " ".join(said).partition("no room for ")[2]
    if width >= 40:
        names = [line.split()[0] for line in table.splitlines()]
        assert len(set(names)) == len(names)
        for column in ("tokens/s", "queued", "memory predicted"):
            assert (column in table.splitlines()[0]) != (column in hidden)
    if width == 500:
        assert (table, hidden) == (whole, "")
