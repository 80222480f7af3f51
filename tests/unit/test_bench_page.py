"""The HTML page of a benchmark: it stands alone, says what the result says, and nothing breaks out of it."""

import json
import random
import re
from html.parser import HTMLParser

import pytest

from trimtab.bench.metrics import measure_load
from trimtab.bench.record import RequestRecord
from trimtab.bench.result import RunFacts, make_details, make_document, make_run
from trimtab.bench.self_check import ClientLoad, judge_client
from trimtab.cli.bench_report import describe_runs

pytest.importorskip("plotly", reason="plots come with the report extra")

from trimtab.bench.report_page import render_page


def make_result(endpoint="http://127.0.0.1:8080", *, loop_lag_ms=0.1, error=""):
    draw = random.Random(4)
    runs = []
    for users in (1, 4):
        records = []
        for index in range(12):
            start = index * 0.1
            times = [start + 0.05 + 0.01 * n + draw.random() * 1e-3 for n in range(6)]
            records.append(
                RequestRecord(
                    index=index, sent_s=start, scheduled_s=start, ended_s=times[-1], token_times_s=times,
                    output_tokens=6, count_source="server", error=error,
                )
            )  # fmt: skip
        check = judge_client(ClientLoad(send_lags_ms=[0.1], loop_lags_ms=[loop_lag_ms], cpu_s=0.1, wall_s=1))
        run = make_run(RunFacts(concurrency=users, rate=None, num_prompts=12), measure_load(records), check)
        runs.append(run | {"details": make_details(records)})
    workload = {
        "models": {"clock": 1.0}, "input_tokens": [8, 8], "output_tokens": [6, 6], "file": None, "seed": 0,
    }  # fmt: skip
    return make_document(date="2026-11-30", version="0", endpoint=endpoint, workload=workload, runs=runs)


def render(document):
    return render_page(document, *describe_runs(document))


class Outline(HTMLParser):
    """Titles, cells and what the page would load from elsewhere."""

    def __init__(self, page):
        super().__init__()
        self.titles, self.cells, self.loads, self._into = [], [], [], None
        self.feed(page)

    def handle_starttag(self, tag, attrs):
        self._into = self.titles if tag in ("h1", "h2") else self.cells if tag == "td" else None
        self.loads += [value for name, value in attrs if name in ("src", "href")]

    def handle_endtag(self, tag):
        self._into = None

    def handle_data(self, data):
        if self._into is not None:
            self._into.append(data)


def test_the_page_stands_alone_and_shows_every_load():
    """The page opens without a network and holds the figures of the result."""
    page = Outline(render(make_result()))

    assert page.loads == []
    assert page.titles[0] == "bench of http://127.0.0.1:8080"
    assert {"Latency by load", "Throughput: each user against all"} <= set(page.titles)
    assert "1 user" in page.cells
    assert "4 users" in page.cells


def test_an_invalid_run_is_called_so():
    """A page of a run whose client was too slow says it at the top."""
    assert "invalid: the client was the bottleneck" in render(make_result(loop_lag_ms=99.0))
    assert "invalid" not in re.sub(r"<script>.*?</script>", "", render(make_result()), flags=re.DOTALL)


def test_nothing_in_a_result_becomes_markup():
    """An endpoint or an error text with tags in it stays text."""
    page = render(make_result("http://x/<script>alert(1)</script>"))

    assert "<script>alert(1)" not in page
    assert "&lt;script&gt;alert(1)" in page


def test_a_result_without_answers_has_a_page():
    """When everything failed the page says so, without plots."""
    document = make_result(error="http_500")
    page = Outline(render(document))

    assert page.titles == ["bench of http://127.0.0.1:8080"]
    assert json.dumps(document)


def test_requests_in_flight_are_counted_in_whole_steps():
    """Nobody has 0.33 requests under way."""
    page = render(make_result())

    assert '"dtick":1' in page.replace(" ", "")


def test_on_paper_no_column_is_cut_off():
    """What scrolls on a screen must be visible whole in print."""
    style = render(make_result()).partition("@media print")[2]

    assert ".scroll { overflow: visible; }" in style[:600]
