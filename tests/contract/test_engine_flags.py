"""The flag table against what real builds print: `vllm serve --help=all` of three versions."""

from __future__ import annotations

import re
from functools import cache
from pathlib import Path

import pytest

from trimtab.engines.vllm_flags import find_flag, flag_names, has_parser

DATA = Path(__file__).parent / "data"
HELP_VERSIONS = ("0.17.1", "0.25.1", "0.32.0")
_OPTION_LINE = re.compile(r"^  (-{1,2}[a-zA-Z][^\n]*)$", re.MULTILINE)
_CHOICES = re.compile(r"^\{([^}]*)\}")


@cache
def printed(version: str) -> dict[str, str]:
    """Option → what follows it on its line: a placeholder, the choices or nothing."""
    found: dict[str, str] = {}
    for line in _OPTION_LINE.findall((DATA / f"vllm-help-{version}.txt").read_text()):
        names = re.split(r"\s{2,}", line, maxsplit=1)[0]
        for part in re.split(r",\s+(?=-)", names):
            option, _, rest = part.partition(" ")
            found[option] = rest
    del found["-h"], found["--help"]
    return found


def in_table(version: str) -> set[str]:
    flags = [find_flag(version, name) for name in flag_names(version)]
    negative = {flag.negative_option for flag in flags if flag.negative_option}
    return {option for flag in flags for option in flag.options} | negative


@pytest.mark.parametrize("version", HELP_VERSIONS)
def test_the_table_has_exactly_the_options_that_are_printed(version):
    """What is said to exist exists, and nothing that a user may write is called unknown."""
    assert in_table(version) == set(printed(version))


@pytest.mark.parametrize("version", HELP_VERSIONS)
def test_the_words_offered_are_those_that_are_printed(version):
    """A value that the parser would refuse is refused before the start, and no legal one is."""
    for name in flag_names(version):
        flag = find_flag(version, name)
        choices = _CHOICES.match(printed(version)[flag.option])
        # The parsers' names stand there too; mm_processor_device offers the card where there is one.
        if choices is None or name in {"tool_call_parser", "collect_detailed_traces", "mm_processor_device"}:
            continue
        words = {word for word in choices.group(1).split(",") if word != "None"}
        assert {str(word) for word in flag.choices + flag.suggestions} == words, name


@pytest.mark.parametrize("version", HELP_VERSIONS)
def test_tool_parsers_are_those_that_are_printed(version):
    """No tool-call parser is set that the version lacks."""
    text = (DATA / f"vllm-help-{version}.txt").read_text()
    names = re.search(r"--tool-call-parser \{([^}]*)\}", text).group(1)

    assert all(has_parser(version, "tool", name) for name in names.split(","))


@pytest.mark.parametrize("version", HELP_VERSIONS)
def test_options_without_a_value_are_those_printed_without_one(version):
    """A switch is never followed by a word, and a value never forgotten."""
    for name in flag_names(version):
        flag = find_flag(version, name)
        placeholder = printed(version)[flag.option]
        assert flag.takes_value == bool(placeholder) or placeholder.startswith("["), name
