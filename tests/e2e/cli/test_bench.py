"""``trimtab bench`` against servers that keep time, over real sockets, as a user runs it."""

import asyncio
import contextlib
import itertools
import json
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import psutil
import pytest
from click.testing import CliRunner
from processes_seen import wait_until

from trimtab.bench.connection import decode_target
from trimtab.bench.driver import LoadPlan, run_load
from trimtab.bench.workload import Ask
from trimtab.cli import bench_progress
from trimtab.cli.bench_run import run

SERVER = Path(__file__).parents[2] / "fakes" / "timed_server.py"
TRIMTAB = (sys.executable, "-m", "trimtab")


@contextlib.contextmanager
def serving(*arguments):
    """A timed server; gives its address, and ends it whatever happens."""
    with subprocess.Popen([sys.executable, SERVER, *arguments], stdout=subprocess.PIPE, text=True) as process:
        try:
            yield f"http://127.0.0.1:{int(process.stdout.readline())}"
        finally:
            process.send_signal(signal.SIGTERM)
            process.wait(10)


def bench(*arguments, timeout_s=60):
    return subprocess.run(
        [*TRIMTAB, "bench", *arguments], capture_output=True, text=True, timeout=timeout_s, check=False
    )


def result_of(*arguments):
    """The result; a busy machine may call its own client too slow (exit code 1), which changes no count."""
    done = bench(*arguments, "--json")
    assert done.returncode in (0, 1), done.stderr + done.stdout
    return json.loads(done.stdout)


class Numbered:
    """A workload whose requests are told apart by their length."""

    models = (("clock", 1.0),)

    def make(self, index, draw):
        return Ask(
            index=index, model="clock", input_tokens=64, output_tokens=20 + index, start_word=int(draw() * 99)
        )


def test_sixty_four_streams_are_timed_at_the_socket(tmp_path):
    """First token and gaps of 64 streams at once are right to a millisecond, by the server's own clock."""
    log = tmp_path / "times.json"
    with serving("--ttft", "30", "--itl", "8", "--log", str(log)) as url:
        plan = LoadPlan(
            target=decode_target(url), path="/v1/chat/completions", api_key="", workload=Numbered(),
            num_requests=64, concurrency=64, extra=b',"stream":true',
        )  # fmt: skip
        run = asyncio.run(run_load(plan, asyncio.Event()))
    written = {len(times) - 1: times[1:] for times in json.loads(log.read_text())}

    assert {record.error for record in run.records} == {""}
    first, gaps = [], []
    for record in run.records:
        truth = written[record.asked_output_tokens]
        first.append(abs(record.token_times_s[0] - truth[0]) * 1e3)
        true_gaps = [(b - a) * 1e3 for a, b in itertools.pairwise(truth)]
        gaps += [abs(got - true) for got, true in zip(record.itls_ms, true_gaps, strict=True)]
        assert record.output_tokens == record.asked_output_tokens
    assert statistics.median(first) < 1.0
    assert statistics.median(gaps) < 1.0


def test_thought_starts_the_clock_and_the_answer_has_its_own():
    """A thinking model's first token is its first thought; the first answer token is told apart."""
    with serving("--ttft", "20", "--itl", "30", "--thoughts", "4") as url:
        run = result_of(url, "--requests", "4", "--output-tokens", "6")["runs"][0]

    assert run["completed"] == 4
    assert 18 < run["median_ttft_ms"] < 80
    assert run["median_ttfo_ms"] - run["median_ttft_ms"] == pytest.approx(120, abs=40)


def test_stdout_is_the_result_alone_and_counts_are_exact():
    """With --json stdout parses; token counts are the server's to the last one."""
    with serving() as url:
        done = bench(
            url, "--concurrency", "4", "--requests", "40", "--input-tokens", "100", "--output-tokens", "7",
            "--json", "--details",
        )  # fmt: skip
    document = json.loads(done.stdout)
    run = document["runs"][0]

    assert done.returncode in (0, 1)
    assert (run["completed"], run["failed"]) == (40, 0)
    assert run["total_output_tokens"] == 280
    assert run["total_input_tokens"] == 4000
    assert run["details"]["output_lens"] == [7] * 40
    assert document["workload"]["models"] == {"clock": 1.0}


def test_an_open_loop_keeps_its_rate():
    """Requests leave on time although answers take longer than the gaps between them."""
    with serving("--ttft", "300", "--itl", "1") as url:
        run = result_of(
            url,
            "--rate",
            "40",
            "--arrivals",
            "constant",
            "--requests",
            "40",
            "--output-tokens",
            "2",
            "--details",
        )["runs"][0]

    assert run["details"]["start_times"][-1] == pytest.approx(39 / 40, abs=0.1)
    assert run["max_concurrent_requests"] >= 10
    assert run["request_rate"] == 40.0
    assert run["max_concurrency"] is None


def test_several_loads_and_the_largest_that_holds():
    """A ramp gives a row each; the search ends at the most users under the limit."""
    with serving("--ttft", "5", "--itl", "1") as url:
        ramp = result_of(url, "--concurrency", "1,2,4", "--requests", "8", "--output-tokens", "4")
        search = result_of(
            url, "--find-max", "concurrency", "--max-load", "4", "--requests", "8", "--output-tokens", "4",
            "--slo", "ttft=5000",
        )  # fmt: skip

    assert [run["max_concurrency"] for run in ramp["runs"]] == [1, 2, 4]
    assert search["find_max"]["largest_load"] == 4


def test_conversations_grow():
    """Turns of one user follow each other, each with what was said before."""
    with serving() as url:
        run = result_of(
            url,
            "--requests",
            "2",
            "--turns",
            "3",
            "--input-tokens",
            "50",
            "--output-tokens",
            "10",
            "--details",
        )["runs"][0]

    assert run["completed"] == 6
    assert run["details"]["input_lens"][2] > run["details"]["input_lens"][1] > run["details"]["input_lens"][0]


def test_the_user_s_own_prompts_are_sent(tmp_path):
    """A file of prompts is used line by line."""
    file = tmp_path / "mine.jsonl"
    file.write_text('{"prompt": "one two three", "max_tokens": 3}\n{"prompt": "one", "max_tokens": 5}\n')
    with serving() as url:
        run = result_of(url, "--prompts", str(file), "--requests", "4", "--details")["runs"][0]

    assert run["details"]["output_lens"] == [3, 5, 3, 5]


@pytest.mark.parametrize(
    ("server", "kind"),
    [(("--fail",), "http_503"), (("--ttft", "5", "--itl", "1", "--hang-up-after", "2"), "disconnected")],
    ids=["refuses", "hangs-up"],
)
def test_a_server_that_fails_is_a_result(server, kind):
    """Errors are counted by kind and the run says that nothing came."""
    with serving(*server) as url:
        done = bench(url, "--requests", "3", "--output-tokens", "8", "--json")

    assert done.returncode == 1
    assert json.loads(done.stdout)["runs"][0]["errors_by_kind"] == {kind: 3}


@pytest.mark.parametrize("pace", [(), ("--ttft", "20", "--itl", "5")], ids=["at-once", "slow"])
def test_a_server_that_gives_each_connection_one_answer_is_measured(pace):
    """A kept connection that the server leaves just then (llama.cpp does) costs no request."""
    with serving("--one-each", *pace) as url:
        run = result_of(url, "--concurrency", "4", "--requests", "24", "--output-tokens", "4")["runs"][0]

    assert (run["completed"], run["failed"], run["total_output_tokens"]) == (24, 0, 96)
    assert not pace or 20 <= run["median_ttft_ms"] < 60


def test_a_request_without_end_is_given_up():
    """A hung server costs the time-out, not the run."""
    with serving("--ttft", "60000", "--itl", "1") as url:
        done = bench(
            url, "--requests", "2", "--concurrency", "2", "--timeout", "0.5", "--warmup", "0", "--json"
        )

    assert json.loads(done.stdout)["runs"][0]["errors_by_kind"] == {"timeout": 2}


def test_ctrl_c_still_writes_a_result(tmp_path):
    """Stopping early keeps what was measured, as valid JSON, in the file and on stdout."""
    out = tmp_path / "r.json"
    with serving("--ttft", "20", "--itl", "5") as url:
        process = subprocess.Popen(
            [*TRIMTAB, "bench", url, "--requests", "9999", "--output-tokens", "8", "--json", "--out", out],
            stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        )  # fmt: skip
        bench_process = psutil.Process(process.pid)
        wait_until(bench_process.net_connections, within_s=30, what="connection to the server")
        time.sleep(1.5)
        process.send_signal(signal.SIGINT)
        stdout, stderr = process.communicate(timeout=20)
    run = json.loads(stdout)["runs"][0]

    assert "Traceback" not in stderr
    assert run["is_interrupted"]
    assert run["completed"] > 5
    assert run["failed"] == 0
    assert json.loads(out.read_text())["runs"][0]["completed"] == run["completed"]


@pytest.mark.parametrize("warmup", ["1", "0"])
def test_a_run_that_measured_nothing_says_so(tmp_path, warmup):
    """Stopped in the warm-up, or before an answer was whole: no word on the client, no figures."""
    prompts = tmp_path / "p.jsonl"
    prompts.write_text('{"prompt": "one two"}\n')
    with serving("--ttft", "3000", "--itl", "1") as url:
        arguments = (url, "--prompts", prompts, "--requests", "3", "--warmup", warmup)
        process = subprocess.Popen(
            [*TRIMTAB, "bench", *arguments], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
        )
        wait_until(psutil.Process(process.pid).net_connections, within_s=30, what="connection to the server")
        time.sleep(4.5)  # the request that asks whether the model is served takes 3
        process.send_signal(signal.SIGINT)
        stdout, stderr = process.communicate(timeout=20)

    assert process.returncode == 1
    assert "Traceback" not in stderr
    assert "nothing was measured: stopped before" in stdout
    assert ("the warm-up" in stdout) == (warmup == "1")
    assert "invalid" not in stdout.lower()


def test_a_long_warm_up_tells_how_far_it_is(monkeypatch):
    """A slow server's warm-up is not silence."""
    monkeypatch.setattr(bench_progress, "_LINE_EVERY_S", 0.1)
    with serving("--ttft", "700", "--itl", "1") as url:
        done = CliRunner().invoke(run, [url, "--requests", "1", "--output-tokens", "1"])
    assert done.exit_code in (0, 1), done.output
    assert "1 user, warm-up: 0 done  1 in flight" in done.stderr


def test_more_users_than_the_server_takes_at_once_are_told_of():
    """A queue is measured then; a load that fits is not commented on."""
    with serving("--concurrency", "2") as url:
        notes = result_of(url, "--concurrency", "2,3", "--requests", "6", "--output-tokens", "2")["notes"]
    with serving() as url:
        assert result_of(url, "--concurrency", "3", "--requests", "6", "--output-tokens", "2")["notes"] == []

    (note,) = notes
    assert note.startswith("3 users: the server works on 2 at once")


@pytest.mark.parametrize("named", [(), ("--model", "m")])
def test_a_dead_port_ends_at_the_first_refusal(named):
    """One sentence and the exit code of what the machine lacks, whatever the load would have been."""
    began_s = time.monotonic()
    done = bench("http://127.0.0.1:1", "--requests", "2000", *named)

    assert done.returncode == 4, done.stderr
    assert "connection refused" in done.stderr
    assert "is the server up at this address?" in done.stderr
    assert "token counts" not in done.stderr + done.stdout
    assert time.monotonic() - began_s < 30


def test_what_is_no_result_is_told_in_a_sentence(tmp_path):
    """Missing, a folder, no JSON: never the system's own words for it."""
    rubbish = tmp_path / "x.json"
    rubbish.write_text("{")
    for path, words in (
        (tmp_path / "missing.json", "does not exist"), (tmp_path, "cannot be read: is a directory"),
        (rubbish, "is not JSON"),
    ):  # fmt: skip
        done = bench("compare", str(path), str(rubbish))
        assert (done.returncode, "Errno" in done.stderr) == (2, False)
        assert f"{path} {words}" in done.stderr


def test_a_server_without_counts_or_metrics_is_measured_all_the_same():
    """No usage and a /metrics page that isn't Prometheus: pieces are counted, and it is said."""
    with serving("--no-usage") as url:
        run = result_of(url, "--requests", "3", "--output-tokens", "9")["runs"][0]

    assert run["total_output_tokens"] == 27
    assert run["tokens"]["counted_by_client"] == 3
    assert run["server_queue_ms"] is None


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("http://127.0.0.1:1",), "cannot be read"),
        (("ftp://x",), "isn't a URL"),
        (("http://127.0.0.1:1", "--rate", "1", "--concurrency", "2"), "exclude each other"),
        (("http://127.0.0.1:1", "--find-max", "rate"), "needs objectives"),
        (("http://127.0.0.1:1", "--concurrency", "0"), "must be above 0"),
        (("http://127.0.0.1:1", "--body", "{"), "--body isn't JSON"),
        (("http://127.0.0.1:1", "--prompts", "/nowhere.jsonl"), "cannot be read"),
        (("http://127.0.0.1:1", "--out", "/nowhere/r.json"), "its folder does not exist"),
    ],
    ids=["down", "url", "both-loops", "no-slo", "no-users", "body", "no-file", "no-folder"],
)
def test_wrong_input_is_one_sentence(arguments, words):
    """A wrong flag or a server that isn't there ends at once, in words."""
    done = bench(*arguments)

    assert done.returncode != 0
    assert words in done.stderr
    assert "Traceback" not in done.stderr


def test_the_prediction_stands_beside_the_measurement():
    """With a config and cards named, each load says what was expected and how far off it was."""
    config = Path(__file__).parents[2] / "checkpoints" / "qwen_configs.json"
    with serving("--ttft", "20", "--itl", "5") as url, tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "config.json"
        file.write_text(json.dumps(json.loads(config.read_text())["Qwen3-32B"]))
        predicting = ("--predict", folder, "--gpus", "2xh100")
        run = result_of(url, "--requests", "4", "--output-tokens", "8", *predicting)["runs"][0]
        refused = bench(url, "--predict", folder)

    assert 5 < run["predicted"]["mean_tpot_ms"] < 30
    assert run["predicted"]["tpot_error_ratio"] > 0
    assert "--predict needs the cards" in refused.stderr


def test_two_results_are_compared(tmp_path):
    """A slower server is told from a faster one in plain words."""
    files = [str(tmp_path / name) for name in ("a.json", "b.json")]
    for file, itl in zip(files, ("2", "6"), strict=True):
        with serving("--ttft", "5", "--itl", itl) as url:
            bench(url, "--requests", "12", "--output-tokens", "12", "--out", file)

    done = bench("compare", *files)
    document = json.loads(bench("compare", *files, "--json").stdout)

    assert "the difference is real" in done.stdout
    found = {each["figure"]: each for each in document["loads"]["concurrency 1"]}
    assert found["mean_tpot_ms"]["is_real"]
    assert found["mean_tpot_ms"]["change_ratio"] > 1.0
    assert bench("compare", files[0], "/nowhere.json").returncode == 2
