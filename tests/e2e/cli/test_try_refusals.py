"""What `trimtab try` refuses: one clear sentence each, the right exit code, nothing started."""

from __future__ import annotations

import json

import pytest
from small_checkpoint import TINY
from trimtab_program import Program

FAKE_VLLM = "#!/bin/sh\nexit 1\n"


@pytest.fixture
def program(tmp_path, monkeypatch):
    monkeypatch.delenv("TRIMTAB_VLLM", raising=False)
    monkeypatch.setenv("HF_HOME", str(tmp_path / "hub"))
    program = Program(tmp_path, is_warm=True)
    (tmp_path / "config.json").write_text(json.dumps(TINY))
    return program


def refused(program, *arguments):
    done = program.run("try", *arguments)
    assert done.stdout == ""
    assert "Traceback" not in done.stderr
    errors = [line for line in done.stderr.splitlines() if line.startswith("error: ")]
    assert len(errors) == 1, done.stderr
    assert not program.processes()
    return done.returncode, done.stderr


@pytest.mark.parametrize(
    ("arguments", "code", "words"),
    [
        pytest.param(("./config.json",), 4, "and no GPU was found here", id="no-gpu"),
        pytest.param(("./config.json", "--budget", "0"), 2, "--budget: '0' is not a time", id="budget-0"),
        pytest.param(("./config.json", "--budget", "0s"), 2, "is no time at all", id="budget-0s"),
        pytest.param(("./config.json", "--budget", "-5m"), 2, "is not a time", id="budget-negative"),
        pytest.param((), 2, "try needs a model or a stack", id="no-model"),
        pytest.param(("smollm2-135m",), 2, "runs on llama.cpp, which has no dummy weights", id="embedded"),
        pytest.param(("org/some-GGUF",), 2, "runs on llama.cpp, which has no dummy weights", id="gguf"),
        pytest.param(
            ("./config.json", "--engine", "llama_cpp"), 2, "runs on llama.cpp", id="engine-llama-cpp"
        ),
        pytest.param(
            ("nobody/nothing", "--gpus", "1xrtx4090"), 2, "not among the models known", id="unknown"
        ),
        pytest.param(("./config.json", "--port", "1"), 2, "--port", id="port"),
        pytest.param(
            ("./config.json", "--gpus", "1xrtx4090"), 4, "planned for card 0, and this machine lacks it",
            id="no-such-card",
        ),
        pytest.param(("./config.json", "--gpus", "1xrtx9999"), 2, "rtx9999", id="no-such-name"),
        pytest.param(
            ("./config.json", "--out", "nowhere/result.json"), 2, "its folder does not exist", id="out"
        ),
    ],
)  # fmt: skip
def test_a_try_that_cannot_be_is_refused_in_one_sentence(program, arguments, code, words):
    """Said before anything is fetched, made or started."""
    found, text = refused(program, *arguments)

    assert (found, words in text) == (code, True), text


def test_a_model_that_does_not_fit_is_not_started(program):
    """The plan's own reason, with what would fit: a start would only fail later."""
    code, text = refused(program, "Qwen/Qwen3.5-27B-FP8", "--gpus", "1xrtx4090", "--context", "262144")

    assert code == 3
    assert "would fit:" in text


def test_an_endpoint_of_others_is_not_tried(program):
    """It is measured as it runs."""
    stack = program.root / "stack.yaml"
    stack.write_text("models: {far: {url: 'http://127.0.0.1:9/v1'}}\n")

    code, text = refused(program, str(stack))

    assert (code, "trimtab bench http://127.0.0.1:9/v1" in text) == (2, True)


def test_a_vllm_that_is_none_is_named(program, monkeypatch):
    """A variable that points to something else is said, not ignored."""
    other = program.root / "vllm"
    other.write_text(FAKE_VLLM)
    other.chmod(0o755)
    monkeypatch.setenv("TRIMTAB_VLLM", str(other))

    code, text = refused(program, "./config.json", "--gpus", "1xrtx4090")

    assert (code, "which is no vllm program" in text) == (4, True)
