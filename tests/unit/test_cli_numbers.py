"""Numbers on the command line and in a stack file mean the same, and are refused in one sentence."""

from __future__ import annotations

import click
import pytest
from click.testing import CliRunner

from trimtab.cli.options import Number, parse_workload, wish_options
from trimtab.core.workload import Workload
from trimtab.engines.vllm_arguments import check_vllm_setting
from trimtab.errors import StackFileError
from trimtab.stackfile.decode import decode_stack


@click.command()
@wish_options
def show(**values: object) -> None:
    """Print what the flags were read as."""
    click.echo(values)


def context_in_file(value: object) -> int | None:
    """What a stack file's context is read as."""
    document = {"models": {"m": {"checkpoint": "a.gguf", "context": value}}}
    return decode_stack(document, source="s.yaml", default_name="s").models[0].context


@pytest.mark.parametrize(
    ("text", "number"),
    [
        pytest.param("4096", 4096, id="plain"),
        pytest.param("256k", 256_000, id="k"),
        pytest.param("256K", 262_144, id="K"),
        pytest.param("1M", 1_048_576, id="M"),
    ],
)
def test_one_number_means_the_same_everywhere(text, number):
    """A context of 256K is that many tokens as a flag, in a file and in a workload."""
    done = CliRunner().invoke(show, ["--context", text])

    assert f"'context': {number}" in done.output, done.output
    assert context_in_file(text) == number
    assert parse_workload(f"isl={text}") == Workload(input_tokens=number)


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        pytest.param(["--context", "big"], "'big' is no number; write one such as 8192", id="word"),
        pytest.param(["--context", "0"], "0 is out of range; write 1 or more", id="nothing"),
        pytest.param(["--replicas", "-1"], "'-1' is no number", id="negative"),
        pytest.param(["--concurrency", "1.5"], "'1.5' is no number", id="fraction"),
        pytest.param(["--port", "70000"], "70000 is out of range; write 0 to 65535", id="port"),
    ],
)
def test_what_is_no_number_is_said_in_our_words(arguments, words):
    """No word of the library that reads the command line."""
    done = CliRunner().invoke(show, arguments)

    assert done.exit_code == 2
    assert words in done.output
    assert "integer" not in done.output


@pytest.mark.parametrize("value", ["big", "1.5", "-4", True, 2.5])
def test_what_is_no_number_in_a_file_is_refused(value):
    """The key and its value are named."""
    with pytest.raises(StackFileError, match=r"models.m.context: .* is not legal"):
        context_in_file(value)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        pytest.param("isl=8q", "'isl=8q' is none of isl=N", id="unit"),
        pytest.param("isl=1,isl=2", "isl stands twice", id="twice"),
        pytest.param("tokens=4", "'tokens=4' is none of", id="key"),
        pytest.param("isl=99M", "'isl=99M' is none of", id="too-many"),
    ],
)
def test_a_workload_that_cannot_be_read_is_refused(text, words):
    """The hint shows one that would do."""
    with pytest.raises(StackFileError, match="--workload") as caught:
        parse_workload(text)

    assert words in caught.value.message
    assert "isl=8k,osl=1k,concurrency=64" in caught.value.hint


def test_a_mistyped_engine_argument_is_guessed_once():
    """One "did you mean" is help, two are noise."""
    with pytest.raises(StackFileError) as caught:
        check_vllm_setting("0.25.1", "kv_cache_dtyp", "fp8", model="m")

    assert f"{caught.value.message} {caught.value.hint}".count("did you mean") == 1
    assert "kv_cache_dtype" in caught.value.hint


def test_the_range_stays_in_the_help():
    """Whoever reads --help sees what is legal."""
    assert Number(min=0, max=65535)._describe_range() == "0<=x<=65535"
