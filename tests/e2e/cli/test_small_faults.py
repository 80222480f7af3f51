"""Slips of everyday use: each answered at once and in one sentence."""

import json
import os
import re

import pytest
from trimtab_program import Program, chat


@pytest.fixture
def program(tmp_path):
    made = Program(tmp_path, is_warm=True)
    yield made
    made.close()


@pytest.mark.parametrize(
    ("words", "answer"),
    [
        (["plna"], "did you mean plan?"),
        (["Status"], "did you mean status?"),
        (["org/model"], "did you mean: trimtab up org/model?"),
        (["stack.yaml"], "did you mean: trimtab up stack.yaml?"),
        (["frobnicate"], "there are up, plan"),
    ],
)
def test_a_mistyped_verb_is_answered_with_what_was_meant(program, words, answer):
    """Nobody has to read the whole help for a typing error."""
    done = program.run(*words)

    assert done.returncode == 2
    assert answer in done.stderr


@pytest.mark.parametrize("verb", ["up", "plan", "pull"])
def test_a_pipe_as_stack_is_refused_instead_of_waited_for(program, verb):
    """A named pipe without a writer does not hold the command up for ever."""
    os.mkfifo(program.root / "pipe.yaml")
    done = program.run(verb, "pipe.yaml")

    assert done.returncode == 2
    assert "is a pipe" in done.stderr


def test_a_folder_as_stack_is_called_a_folder(program):
    """The refusal says what is there."""
    (program.root / "dir.yaml").mkdir()

    assert "dir.yaml is a folder" in program.run("plan", "dir.yaml").stderr


@pytest.mark.parametrize("name", [b"m\xff.gguf", b"org/m\xff", b"s\xff.yaml", b"n\xff"])
def test_a_path_with_odd_bytes_is_refused_before_anything_starts(program, name):
    """A name that no engine can open is said in a sentence, not by an engine that dies."""
    (program.root / os.fsdecode(b"m\xff.gguf")).write_bytes(b"GGUF")
    done = program.run("up", os.fsdecode(name), "--port", "0")

    assert done.returncode == 2
    assert "no UTF-8 text" in done.stderr
    assert "\\xff" in done.stderr


@pytest.mark.parametrize("scale", ["1e-320", "1e-300", "1e-7"])
def test_a_scale_beyond_counting_is_refused(program, scale):
    """A pinned scale of almost nothing is a sentence with the limit, not a traceback."""
    done = program.run(
        "plan", "smollm2-135m", "--set", "rope_scaling_type=yarn", "--set", f"rope_freq_scale={scale}"
    )

    assert done.returncode == 2
    assert "rope_freq_scale" in done.stderr
    assert "2,147,483,647" in done.stderr


def test_one_request_is_no_requests(program):
    """A plan for one request at a time says so in good English."""
    text = program.run("plan", "smollm2-135m", "--concurrency", "1", "--explain").stdout

    assert "1 request at once" in text
    assert not re.search(r"\b1 requests", text)


def test_the_background_log_has_times(program):
    """Whoever reads trimtab's log the next day sees when each thing happened."""
    done = program.run("up", "-d", "--port", "0", "--set", "n_threads=1", "--json")
    endpoint = json.loads(done.stdout)["endpoint"]
    chat(endpoint)
    program.run("down")
    lines = program.run("logs", "trimtab").stdout.splitlines()

    assert len(lines) >= 3
    stamped = [line for line in lines if re.match(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d[+-]\d\d:\d\d ", line)]
    assert [line for line in stamped if " ready at http" in line]
    assert stamped == lines
