"""The meter's arithmetic: arrivals, text, chunks, figures, objectives, search, comparison."""

import itertools
import json
import random
from statistics import fmean
from types import SimpleNamespace

import pytest

from trimtab.bench.arrivals import iterate_arrivals_s
from trimtab.bench.chunk import Usage, decode_chunk
from trimtab.bench.compare import compare_runs, match_runs
from trimtab.bench.connection import decode_target
from trimtab.bench.corpus import Corpus, Ruler
from trimtab.bench.driver import LoadPlan
from trimtab.bench.metrics import measure_load
from trimtab.bench.record import RequestRecord
from trimtab.bench.result import RunFacts, make_run
from trimtab.bench.saturation import Trial, best_load, next_load
from trimtab.bench.self_check import ClientLoad, judge_client
from trimtab.bench.server_metrics import decode_queue_totals, mean_queue_ms
from trimtab.bench.slo import decode_slos, share_meeting
from trimtab.bench.sse import EventCutter, EventTooLongError
from trimtab.bench.stats import describe_spread, percentile, percentile_interval
from trimtab.bench.turns import Conversation
from trimtab.bench.workload import (
    Ask,
    LengthRange,
    Workload,
    decode_length_range,
    decode_models,
    render_body,
)
from trimtab.bench.workload_files import decode_prompt_lines, decode_trace_lines
from trimtab.cli.bench_wish import make_warmup
from trimtab.errors import StackFileError


def record(index=0, *, sent=0.0, times=(0.1, 0.2, 0.3), tokens=3, error="", first_answer=None):
    return RequestRecord(
        index=index,
        sent_s=sent,
        scheduled_s=sent,
        ended_s=(times[-1] if times else sent) + 0.01,
        token_times_s=list(times),
        first_answer_s=first_answer,
        output_tokens=tokens,
        input_tokens=10,
        asked_output_tokens=3,
        count_source="server",
        error=error,
    )


def test_constant_arrivals_do_not_drift():
    """The thousandth request of a steady load leaves when it should."""
    times = list(itertools.islice(iterate_arrivals_s(7.0, "constant", lambda: 0.5), 1000))

    assert times[999] == pytest.approx(999 / 7.0, abs=1e-12)


def test_poisson_arrivals_keep_their_rate_and_repeat_with_their_seed():
    """An open loop has the rate it was asked for, and the same seed is the same run."""

    def walk():
        return list(itertools.islice(iterate_arrivals_s(50.0, "poisson", random.Random(3).random), 20_000))

    first = walk()
    gaps = [b - a for a, b in itertools.pairwise(first)]

    assert first == walk()
    assert fmean(gaps) == pytest.approx(1 / 50, rel=0.03)
    assert fmean(gap > 2 / 50 for gap in gaps) == pytest.approx(0.135, abs=0.02)


@pytest.mark.parametrize("rate", [0, -1, float("inf"), float("nan")])
def test_a_rate_that_is_none_is_refused(rate):
    """No run starts that would never send, or send everything at once."""
    with pytest.raises(StackFileError, match="expected above 0"):
        iterate_arrivals_s(rate, "constant", lambda: 0.5)


STREAM = b': ping\r\n\r\ndata: {"a":1}\r\n\r\nevent: x\ndata: {"b":\ndata: 2}\n\ndata:[DONE]\n\n'


@pytest.mark.parametrize("size", [1, 2, 3, 7, 1000])
def test_events_are_cut_the_same_however_they_arrive(size):
    """Line ends, comments and split data lines don't depend on where the network cut."""
    cutter = EventCutter()

    found = [data for at in range(0, len(STREAM), size) for data in cutter.feed(STREAM[at : at + size])]

    assert found == [b'{"a":1}', b'{"b":\n2}', b"[DONE]"]


def test_a_stream_without_events_is_given_up():
    """A server that never ends an event doesn't fill the memory."""
    cutter = EventCutter()
    for _ in range(16):
        cutter.feed(b"x" * 1024**2)

    with pytest.raises(EventTooLongError):
        cutter.feed(b"x")


@pytest.mark.parametrize(
    ("delta", "reasoning", "answer"),
    [
        ({"role": "assistant", "content": ""}, False, False),
        ({"role": "assistant", "content": None}, False, False),
        ({"content": "x"}, False, True),
        ({"reasoning_content": "x"}, True, False),
        ({"reasoning": "x", "content": None}, True, False),
        ({"tool_calls": [{"index": 0}]}, False, True),
        ({}, False, False),
    ],
    ids=str,
)
def test_what_counts_as_a_token(delta, reasoning, answer):
    """A role or an empty string starts no clock; thought and tool calls do."""
    chunk = decode_chunk(json.dumps({"choices": [{"delta": delta}]}).encode())

    assert (chunk.has_reasoning, chunk.has_answer) == (reasoning, answer)


def test_usage_end_and_errors_are_read():
    """Counts, finish reason and an error inside a stream are not missed."""
    usage = decode_chunk(
        b'{"choices":[],"usage":{"prompt_tokens":5,"completion_tokens":7,"prompt_tokens_details":{"cached_tokens":4}}}'
    )

    assert usage.usage == Usage(5, 7, 4)
    assert decode_chunk(b'{"choices":[{"text":"a","finish_reason":"stop"}]}').finish_reason == "stop"
    assert decode_chunk(b'{"error":{"message":"no memory"}}').error == "no memory"
    with pytest.raises(ValueError, match="expected an object"):
        decode_chunk(b"[]")


def test_prompts_have_the_words_asked_for():
    """A prompt's length is what the flags say, across the end of the ring of words too."""
    corpus = Corpus(random.Random(0).random)

    for start, count in ((0, 1), (8190, 5), (12345, 20_000), (7, 262_144)):
        assert len(corpus.cut(start, count).split()) == count


def test_words_become_tokens_by_the_server_s_own_count():
    """Two probes are enough to hit a length in the server's tokens."""
    ruler = Ruler.from_probes((16, 16 * 1.25 + 9), (256, 256 * 1.25 + 9))

    assert ruler.words_for(1009) == 800
    assert Ruler.from_probes((16, 30), (256, 30)) is None


@pytest.mark.parametrize(
    "ask",
    [
        Ask(index=3, model="m", input_tokens=100, output_tokens=8, start_word=5),
        Ask(index=3, model='a"b\\c', input_tokens=1, output_tokens=8),
        Ask(index=3, model="m", input_tokens=100, output_tokens=8, prefix=2, prefix_tokens=60),
        Ask(index=3, model="m", input_tokens=50, output_tokens=8, prefix=2, prefix_tokens=50),
    ],
    ids=["plain", "odd-name-one-token", "prefix", "all-prefix"],
)
def test_bodies_are_json_with_the_words_asked_for(ask):
    """What is sent parses, has the length, and carries the extra fields."""
    body = json.loads(render_body(ask, Corpus(random.Random(1).random), Ruler(), b',"stream":true'))

    assert body["model"] == ask.model
    assert body["max_tokens"] == 8
    assert body["stream"] is True
    assert len(body["messages"][0]["content"].split()) == ask.input_tokens


def test_the_user_s_own_prompts_are_not_asked_twice_for_warming_up():
    """A prompt of the warm-up would come from the prefix cache when its first token is measured."""
    asks = decode_prompt_lines(['{"prompt": "the zebra is hungry today", "max_tokens": 9}'] * 4, where="x")
    length = LengthRange(low=9, high=9)
    workload = Workload(models=(("m", 1.0),), input_tokens=length, output_tokens=length, asks=asks)
    plan = LoadPlan(
        target=decode_target("http://h:1"),
        path="/",
        api_key="",
        workload=workload,
        num_requests=4,
        concurrency=4,
    )
    warmup = make_warmup(SimpleNamespace(values={"warmup": 4}), plan)
    draw, corpus = random.Random(1).random, Corpus(random.Random(2).random)
    made = [warmup.workload.make(index, draw) for index in range(warmup.num_requests)]
    bodies = [render_body(ask, corpus, Ruler(), b"") for ask in made]

    assert len(bodies) == 4
    assert not any(b"zebra" in body for body in bodies)
    assert all(b'"max_tokens":9' in body for body in bodies)


def test_prefixes_are_shared_and_the_rest_is_not():
    """Requests of one prefix begin alike and then part; others never share a beginning."""
    corpus = Corpus(random.Random(1).random)

    def words(index, prefix):
        ask = Ask(
            index=index, model="m", input_tokens=80, output_tokens=1, start_word=index * 977,
            prefix=prefix, prefix_tokens=40 if prefix >= 0 else 0,
        )  # fmt: skip
        return json.loads(render_body(ask, corpus, Ruler(), b""))["messages"][0]["content"].split()

    assert words(1, 0)[:40] == words(2, 0)[:40] != words(3, 1)[:40]
    assert words(1, 0)[40:] != words(2, 0)[40:]
    assert words(1, -1)[:16] != words(2, -1)[:16]


def test_a_workload_repeats_with_its_seed_and_mixes_models():
    """The same seed asks the same; shares hold over many requests."""
    load = Workload(
        models=decode_models(["big=3", "small=1"]),
        input_tokens=LengthRange(low=10, high=20),
        output_tokens=LengthRange(low=5, high=5),
    )

    def asks():
        draw = random.Random(9).random
        return [load.make(index, draw) for index in range(4000)]

    assert asks() == asks()
    assert fmean(ask.model == "big" for ask in asks()) == pytest.approx(0.75, abs=0.03)
    assert {ask.input_tokens for ask in asks()} == set(range(10, 21))


def test_conversations_carry_their_answers():
    """The second turn holds the first question and the answer to it."""
    talk = Conversation(
        Ask(index=0, model="m", input_tokens=5, output_tokens=4),
        Corpus(random.Random(1).random),
        Ruler(),
        b',"n":1',
    )
    first = json.loads(talk.render(0))
    talk.add_answer("well")
    second = json.loads(talk.render(1))

    assert second["messages"][:2] == [*first["messages"], {"role": "assistant", "content": "well"}]
    assert second["n"] == 1


@pytest.mark.parametrize("text", ["", "x", "0", "5-3", "1-2000000", "-5", "1.5"])
def test_lengths_that_are_none_are_refused(text):
    """A wrong length names its flag before anything is sent."""
    with pytest.raises(StackFileError, match="--input-tokens"):
        decode_length_range(text, flag="--input-tokens")


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("{", "f:1: isn't JSON"),
        ("[]", "f:1: is a list"),
        ("{}", "f:1: needs messages"),
        ('{"prompt": "x", "max_tokens": "many"}', "f:1: max_tokens is 'many'"),
        ("", "f: holds no requests"),
    ],
    ids=["json", "list", "empty", "count", "nothing"],
)
def test_prompt_files_are_refused_by_line(line, words):
    """A slip in the user's file is named with its line."""
    with pytest.raises(StackFileError, match=words):
        decode_prompt_lines([line], where="f")


def test_traces_keep_their_times_in_order():
    """A replay leaves when the trace says, whatever order its lines have."""
    lines = [
        '{"timestamp": 2000, "input_length": 30, "output_length": 2}',
        '{"timestamp": 0, "input_length": 10, "output_length": 1}',
    ]

    assert [(ask.at_s, ask.input_tokens) for ask in decode_trace_lines(lines, where="t")] == [
        (0.0, 10),
        (2.0, 30),
    ]
    with pytest.raises(StackFileError, match="t:1: input_length"):
        decode_trace_lines(['{"timestamp": 0, "output_length": 1}'], where="t")


def test_figures_of_one_request():
    """TTFT counts thought, TTFO waits for the answer, TPOT divides by the gaps."""
    one = record(sent=1.0, times=(1.05, 1.07, 1.13), tokens=5, first_answer=1.07)

    assert one.ttft_ms == pytest.approx(50)
    assert one.ttfo_ms == pytest.approx(70)
    assert one.e2el_ms == pytest.approx(130)
    assert one.tpot_ms == pytest.approx(20)
    assert one.itls_ms == pytest.approx([20, 60])
    assert record(tokens=1, times=(0.1,)).tpot_ms is None


def test_tokens_without_text_take_their_time_too():
    """An engine told to ignore the end goes on with tokens that show nothing, and counts them."""
    one = record(sent=1.0, times=(1.05, 1.07), tokens=5)
    one.generated_s = 1.13

    assert (one.e2el_ms, one.tpot_ms) == (pytest.approx(130), pytest.approx(20))
    assert one.itls_ms == pytest.approx([20])


def test_without_the_servers_count_the_last_text_ends_the_count():
    """Pieces with text are counted, so steps without are in neither the count nor its time."""
    one = record(sent=1.0, times=(1.05, 1.07), tokens=2)
    one.generated_s, one.count_source = 1.5, "client"

    assert (one.e2el_ms, one.tpot_ms) == (pytest.approx(500), pytest.approx(20))


def test_content_that_is_no_text_is_an_answer_but_no_history():
    """Lists of parts, as some servers send, end no run of several turns."""
    for content in (["a"], [{"type": "text", "text": "a"}], 7):
        chunk = decode_chunk(json.dumps({"choices": [{"delta": {"content": content}}]}).encode())
        assert (chunk.has_answer, chunk.text) == (True, "")


@pytest.mark.parametrize("count", [True, 10**400, -1, "3", 2.5])
def test_a_count_of_tokens_that_is_none_is_not_taken(count):
    """A server's nonsense ends no run."""
    usage = {"prompt_tokens": 4, "completion_tokens": count}
    chunk = decode_chunk(json.dumps({"choices": [], "usage": usage}).encode())
    assert chunk.usage == Usage(4, -1)


@pytest.mark.parametrize(
    ("data", "is_step"),
    [
        (b'{"choices": [{"delta": {"content": ""}}]}', True),
        (b'{"choices": [{"delta": {}, "finish_reason": "length"}]}', True),
        (b'{"choices": [{"text": ""}]}', True),
        (b'{"choices": [], "usage": {"prompt_tokens": 1, "completion_tokens": 2}}', False),
        (b'{"error": {"message": "out of memory"}}', False),
    ],
)
def test_a_chunk_with_a_choice_is_a_step_of_the_answer(data, is_step):
    """With text or without; the count of tokens at the end is none, however late it comes."""
    assert decode_chunk(data).has_choice is is_step


def test_figures_of_a_load():
    """Failures don't enter latencies, throughput runs over the whole span, the timeline adds up."""
    good = [record(index=i, sent=float(i), times=(i + 0.1, i + 0.2, i + 1.2)) for i in range(4)]
    bad = [record(index=9, sent=1.0, times=(), tokens=0, error="http_500"), record(index=8, error="stopped")]

    figures = measure_load([*good, *bad], decode_slos(["ttft=150"]))

    assert (figures.completed, figures.failed, figures.num_stopped) == (4, 1, 1)
    assert figures.duration_s == pytest.approx(4.21)
    assert figures.output_throughput == pytest.approx(12 / 4.21)
    assert figures.goodput_share == pytest.approx(4 / 5)
    assert figures.errors == (("http_500", 1),)
    assert sum(point.output_tokens for point in figures.timeline) == 12
    assert figures.max_concurrent_requests == 3
    assert [point.in_flight for point in figures.timeline] == [1, 1, 1, 1, 0]
    assert figures.ttft_ms.mean == pytest.approx(100)


def test_a_load_without_answers_has_no_figures():
    """A run in which everything failed is still a result."""
    figures = measure_load([record(times=(), tokens=0, error="connect")])
    run = make_run(
        RunFacts(concurrency=1, rate=None, num_prompts=1),
        figures,
        judge_client(ClientLoad(send_lags_ms=(), loop_lags_ms=(), cpu_s=0, wall_s=1)),
    )

    assert run["mean_ttft_ms"] is None
    assert run["errors_by_kind"] == {"connect": 1}
    assert json.loads(json.dumps(run))["completed"] == 0


def test_the_result_speaks_vllm_s_names():
    """Scripts that read vllm bench serve's summary read ours."""
    run = make_run(
        RunFacts(concurrency=2, rate=None, num_prompts=2),
        measure_load([record(), record(index=1)]),
        judge_client(ClientLoad(send_lags_ms=(), loop_lags_ms=(), cpu_s=0, wall_s=1)),
    )
    names = {
        "duration", "completed", "total_input_tokens", "total_output_tokens", "request_throughput",
        "output_throughput", "total_token_throughput", "max_concurrency", "request_rate",
    }  # fmt: skip
    names |= {
        f"{kind}_{what}_ms"
        for kind in ("mean", "median", "std", "p99")
        for what in ("ttft", "tpot", "itl", "e2el")
    }

    assert names <= set(run)


def test_miscounts_and_short_answers_are_told():
    """A server that counts fewer tokens than it sent, or stops early, is noticed."""
    figures = measure_load([record(tokens=2), record(index=1, tokens=2, times=(0.1, 0.2))])

    assert figures.num_miscounted == 1
    assert figures.num_short == 2


def test_percentiles_are_numpy_s():
    """The 90th of ten values lies where every other tool puts it."""
    values = [float(n) for n in range(1, 11)]

    assert percentile(values, 90.0) == pytest.approx(9.1)
    assert percentile(values, 50.0) == pytest.approx(5.5)
    assert describe_spread([], (50.0,)) is None


def test_intervals_cover_what_they_promise():
    """About 95 of 100 intervals hold the true 90th percentile."""
    draw = random.Random(5)
    hits = 0
    for _ in range(400):
        sample = sorted(draw.expovariate(1.0) for _ in range(200))
        interval = percentile_interval(sample, 90.0)
        hits += interval.low <= 2.302585 <= interval.high

    assert 0.90 <= hits / 400 <= 0.99
    assert percentile_interval([1.0, 2.0], 99.0).high is None


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"send_lags_ms": [50.0] * 10}, "requests left 50.0 ms late"),
        ({"loop_lags_ms": [30.0] * 10}, "the event loop ran 30.0 ms late"),
        ({"cpu_s": 9.9}, "the client used 99 % of its core"),
    ],
    ids=["send", "loop", "cpu"],
)
def test_a_client_at_its_limit_says_so(changes, words):
    """A run whose client was the bottleneck is invalid, with the figure."""
    calm = {"send_lags_ms": [0.1], "loop_lags_ms": [0.2], "cpu_s": 1.0, "wall_s": 10.0}

    assert judge_client(ClientLoad(**calm)).is_valid
    check = judge_client(ClientLoad(**calm | changes))
    assert not check.is_valid
    assert words in check.reasons[0]


def test_a_client_that_measured_nothing_is_not_judged():
    """Busy with what failed or was stopped, it has spoilt no figure."""
    busy = ClientLoad(send_lags_ms=[], loop_lags_ms=[500.0], cpu_s=10.0, wall_s=9.0)

    assert (judge_client(busy).is_valid, judge_client(busy).reasons) == (True, ())


@pytest.mark.parametrize("text", ["ttft", "ttft=0", "ttft=-5", "speed=5", "ttft=x", "=5"])
def test_objectives_that_are_none_are_refused(text):
    """A wrong objective is named with what would work."""
    with pytest.raises(StackFileError, match="--slo"):
        decode_slos([text])


def test_every_objective_must_be_met():
    """Goodput counts requests that met all limits at once."""
    slos = decode_slos(["ttft=150", "e2el=250"])

    assert share_meeting([record(), record(times=(0.1, 0.2))], slos) == 0.5
    assert share_meeting([], slos) == 0.0


@pytest.mark.parametrize("limit", [1, 3, 17, 64, 100, 1000])
def test_the_search_ends_near_the_true_limit(limit):
    """The largest load that holds is found within a tenth, in few tries, none of them twice."""
    trials = []
    while (load := next_load(trials, first=1, most=1024, is_whole=True)) is not None:
        trials.append(Trial(load=load, is_met=load <= limit))

    assert len(trials) <= 20
    assert len({trial.load for trial in trials}) == len(trials)
    assert limit / 1.11 - 1 <= best_load(trials) <= limit


def test_the_search_says_when_nothing_holds():
    """A server too slow for one user has no largest load."""
    trials = []
    while (load := next_load(trials, first=8, most=64, is_whole=True)) is not None:
        trials.append(Trial(load=load, is_met=False))

    assert best_load(trials) is None
    assert trials[-1].load == 1


def test_rates_are_searched_in_fractions():
    """Half a request per second can be the answer."""
    trials = []
    while (load := next_load(trials, first=4, most=64, is_whole=False)) is not None:
        trials.append(Trial(load=load, is_met=load <= 0.6))

    assert 0.5 < best_load(trials) <= 0.6


def make(mean, std=10.0, count=100, **more):
    run = {
        "max_concurrency": 4,
        "request_rate": "inf",
        "completed": count,
        "output_throughput": 100.0,
        "intervals": {"ttft_ms": {"count": count}},
        "mean_ttft_ms": mean,
        "std_ttft_ms": std,
    }
    return run | more


@pytest.mark.parametrize(
    ("b", "is_real", "words"),
    [
        (make(150.0), True, "the difference is real"),
        (make(101.0, std=80.0), False, "no difference can be told"),
        (make(102.0, std=1.0), False, "no more than two starts"),
        (make(50.0), True, "50.0 % lower"),
    ],
    ids=["slower", "noise", "tiny", "faster"],
)
def test_a_comparison_says_what_is_real(b, is_real, words):
    """Differences come with a plain sentence, and noise is called noise."""
    found = {
        each.figure: each
        for each in compare_runs(make(100.0, std=1.0 if b["std_ttft_ms"] == 1.0 else 10.0), b)
    }

    assert found["mean_ttft_ms"].is_real is is_real
    assert words in found["mean_ttft_ms"].words


def test_only_equal_loads_are_compared():
    """Four users are not held against eight."""
    with pytest.raises(StackFileError, match="no load is in both"):
        match_runs({"runs": [make(1.0)]}, {"runs": [make(1.0, max_concurrency=8)]})


METRICS = """# HELP vllm:request_queue_time_seconds Histogram
vllm:request_queue_time_seconds_bucket{le="0.3",model_name="a"} 3
vllm:request_queue_time_seconds_sum{model_name="a"} 1.5
vllm:request_queue_time_seconds_count{model_name="a"} 3
vllm:request_queue_time_seconds_sum{model_name="b"} 0.5
vllm:request_queue_time_seconds_count{model_name="b"} 1
"""


def test_the_engine_s_queue_is_read_where_it_is_told():
    """The wait inside the server is told apart, and a page that isn't Prometheus is no error."""
    assert decode_queue_totals(METRICS) == (2.0, 4.0)
    assert decode_queue_totals("<html>{") is None
    assert mean_queue_ms((2.0, 4.0), (3.0, 8.0)) == pytest.approx(250)
    assert mean_queue_ms(None, (3.0, 8.0)) is None
    assert mean_queue_ms((2.0, 4.0), (2.0, 4.0)) is None
