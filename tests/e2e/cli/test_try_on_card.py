"""`trimtab try` on a card: NVML and the engine are stand-ins, the log is that of a real start on an H200."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner
from fake_nvml import MACHINES, FakeNvml

from trimtab.cli.main import cli
from trimtab.errors import EngineStartError, StackFileError
from trimtab.probes import gpus

ROOT = Path(__file__).parents[3]
MODEL = "Qwen/Qwen3-32B-FP8"
START = "32b-fp8-8k-256"
WISH = (
    *("--context", "16384", "--concurrency", "4", "--engine-version", "0.25.1"),
    *("--set", "gpu_memory_utilization=0.3", "--set", "max_num_batched_tokens=8192"),
)
TTFT_MS, TPOT_MS = 80.0, 15.0
PROGRAM = """\
#!{python}
import runpy
runpy.run_path({fake!r}, run_name="__main__")
"""
INTERPRETER = """\
#!/bin/sh
[ "$1" = -c ] && {{ echo 0.25.1 gpu flashinfer 13.0.48; exit; }}
exec {python} "$@"
"""


@pytest.fixture
def card(tmp_path, monkeypatch):
    """One H200 and a vLLM 0.25.1 for it; gives the environment's setter."""
    machine = MACHINES["8xh200"] | {"cards": MACHINES["8xh200"]["cards"][:1]}
    probe = gpus.probe_gpus(FakeNvml(machine), environ={}, root=tmp_path)
    for module in ("deployment", "try_prepare", "try_engine", "vllm_ready", "preflight", "machine"):
        monkeypatch.setattr(f"trimtab.cli.{module}.probe_gpus", lambda: probe)
    record = json.loads((ROOT / "benchmarks/ground-truth/h200-vllm-0.25.1.json").read_text())
    lines = next(run["log"] for run in record["runs"] if run["id"] == START)
    log = tmp_path / "recorded.log"
    log.write_text("\n".join(["Initializing a V1 LLM engine (v0.25.1) with config: model='m'", *lines]))
    python = tmp_path / "python"
    python.write_text(INTERPRETER.format(python=sys.executable))
    program = tmp_path / "vllm"
    fake = str(ROOT / "tests" / "fakes" / "fake_vllm.py")
    program.write_text(PROGRAM.format(python=python, fake=fake))
    for path in (python, program):
        path.chmod(0o755)
    for name, value in {
        "TRIMTAB_VLLM": str(program),
        "FAKE_VLLM_LOG": str(log),
        "FAKE_VLLM_MS": f"{TTFT_MS},{TPOT_MS}",
        "XDG_STATE_HOME": str(tmp_path / "state"),
        "XDG_CACHE_HOME": str(tmp_path / "cache"),
        "HF_HUB_OFFLINE": "1",
        "HF_HOME": str(tmp_path / "hub"),
    }.items():
        monkeypatch.setenv(name, value)
    return tmp_path


def run_try(*arguments: str):
    return CliRunner().invoke(cli, ["try", MODEL, *WISH, *arguments], catch_exceptions=False)


@pytest.mark.alone
def test_a_card_is_measured_and_the_next_plan_uses_it(card):
    """Memory and speed of the start stand beside the plan, are kept, and the plan that follows says so."""
    done = run_try("--budget", "12s", "--json")

    assert done.exit_code == 0, done.output
    document = json.loads(done.stdout)
    (model,) = document["models"]
    rows = {row["name"]: row for row in model["memory"]}
    assert (model["card"], model["num_cards"], model["is_cpu_build"]) == ("h200", 1, False)
    assert rows["weights"]["ratio"] == pytest.approx(1.0, abs=0.001)
    assert rows["KV cache"]["measured"] == 33_120
    assert model["calibrated"]["memory"] is True

    first = model["speed"][0]
    assert (first["kind"], first["concurrency"], first["input_tokens"]) == ("decode", 1, 1024)
    # The stand-in's own times; a busy machine is late, never early.
    assert TTFT_MS <= first["mean_ttft_ms"] < 4 * TTFT_MS
    assert TPOT_MS <= first["mean_tpot_ms"] < 2 * TPOT_MS
    assert first["tpot_ratio"] == pytest.approx(
        first["mean_tpot_ms"] / first["predicted_mean_tpot_ms"], rel=0.001
    )
    slowest, quickest = model["calibrated"]["speed"]["tpot"][::-1]
    assert slowest >= quickest > 0
    assert slowest > 1
    assert model["cut"]
    assert all("the budget" in cut["reason"] for cut in model["cut"])

    following = document["plan"]["models"]["Qwen3-32B-FP8"]
    assert following["speed"]["source"] == "calibrated"
    assert any(item["code"] == "calibrated" for item in following["warnings"])
    planned = CliRunner().invoke(cli, ["plan", MODEL, *WISH, "--json"], catch_exceptions=False)
    again = json.loads(planned.stdout)["models"]["Qwen3-32B-FP8"]
    assert again["speed"] == following["speed"]
    # With dummy weights, from the built-in config, by token ids; what is planned is not changed by it.
    log = (card / "state/trimtab/try/logs/Qwen3-32B-FP8.log").read_text()
    assert "--load-format dummy" in log
    assert "--skip-tokenizer-init" in log
    assert "load_format" not in again["settings"]


def test_a_result_of_a_card_becomes_a_row_of_the_record(card, monkeypatch):
    """The command that writes docs/accuracy.md takes the file as it is, without paths of this machine."""
    monkeypatch.syspath_prepend(str(ROOT / "benchmarks" / "accuracy"))
    import record
    import rows

    out, tries = card / "result.json", card / "tries"
    tries.mkdir()
    assert run_try("--budget", "8s", "--out", str(out)).exit_code == 0

    added = record.add(str(out), tries)

    monkeypatch.setattr(rows, "TRIES", tries)
    monkeypatch.setattr(record, "link", lambda path: path.name)
    text = "\n".join(record.try_section(rows.read_try_rows()))
    assert "| 1x h200 | vLLM 0.25.1 | Qwen/Qwen3-32B-FP8 |" in text
    assert added.name in text
    assert str(card) not in added.read_text()


def test_an_engine_that_dies_under_load_keeps_what_was_measured(card, monkeypatch):
    """Exit code 0 of the engine is a failure all the same; the loads before it stand in the result."""
    monkeypatch.setenv("FAKE_VLLM_DIE", "5")

    done = run_try("--budget", "25s", "--json")

    (model,) = json.loads(done.stdout)["models"]
    assert done.exit_code == 5
    assert model["failure"].startswith("the engine ended while it was measured:")
    assert len(model["speed"]) >= 1


STACK = """\
models:
  one: {checkpoint: Qwen/Qwen3-8B, context: 4096, concurrency: 2, engine_version: "0.25.1"}
  two: {checkpoint: Qwen/Qwen3-8B, context: 8192, concurrency: 2, engine_version: "0.25.1"}
"""


def test_models_of_a_stack_are_tried_one_after_the_other(card, monkeypatch):
    """Each with its own share of the budget; a log that is another model's calibrates nothing."""
    (card / "stack.yaml").write_text(STACK)
    arguments = ["try", str(card / "stack.yaml"), "--budget", "12s", "--json"]

    done = CliRunner().invoke(cli, arguments, catch_exceptions=False)

    assert done.exit_code == 0, done.output
    models = json.loads(done.stdout)["models"]
    assert [model["name"] for model in models] == ["one", "two"]
    for model in models:
        assert model["speed"]
        assert model["calibrated"]["memory"] is False
        assert any("one after the other" in note for note in model["notes"])
        assert any("do not add up" in note for note in model["notes"])


def test_a_vllm_without_flashinfer_is_told_to_do_without(card, monkeypatch):
    """Left to itself it would choose FlashInfer's kernels on this card and die at the first prompt."""
    python = card / "python"
    python.write_text(python.read_text().replace("gpu flashinfer", "gpu"))
    wish = ("--context", "4096", "--concurrency", "2", "--set", "language_model_only=true")
    arguments = ["try", "Qwen/Qwen3.5-27B-FP8", *wish, "--budget", "6s", "--json"]

    done = CliRunner().invoke(cli, arguments, catch_exceptions=False)

    assert done.exit_code == 0, done.output
    (log,) = (card / "state/trimtab/try/logs").glob("*.log")
    assert "--gdn-prefill-backend triton" in log.read_text()
    assert "sampler: 0" in log.read_text()
    settings = json.loads(done.stdout)["plan"]["models"]["Qwen3.5-27B-FP8"]["settings"]
    assert settings["gdn_prefill_backend"] == "triton"


def test_a_model_that_takes_images_needs_its_processor(card):
    """Without it vLLM dies minutes into the start; the sentence names the file and the way out."""
    with pytest.raises(StackFileError, match="has no preprocessor_config") as caught:
        CliRunner().invoke(
            cli,
            ["try", "Qwen/Qwen3.5-27B-FP8", "--set", "language_model_only=false", "--context", "4096"],
            catch_exceptions=False,
        )

    assert "language_model_only=true" in caught.value.hint


def test_a_card_that_is_not_the_named_one_is_refused(card):
    """What an H200 measures must not calibrate the plans of a 4090."""
    with pytest.raises(StackFileError, match="--gpus names NVIDIA GeForce RTX 4090 as card 0, and it is a"):
        CliRunner().invoke(cli, ["try", "Qwen/Qwen3-8B", "--gpus", "1xrtx4090"], catch_exceptions=False)


def test_a_start_that_fails_says_why_and_is_kept(card, monkeypatch):
    """The engine's last words, where its log is, and the result file with the failure."""
    (card / "recorded.log").unlink()

    with pytest.raises(EngineStartError, match="ended with exit code 1") as caught:
        run_try("--budget", "25s")

    assert str(card / "state/trimtab/try/logs") in caught.value.hint
    (kept,) = (card / "state/trimtab/try/results").glob("*.json")
    assert "exit code 1" in json.loads(kept.read_text())["models"][0]["failure"]
