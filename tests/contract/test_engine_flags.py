"""The flag table against what real builds print: `vllm serve --help=all` of three versions."""

from __future__ import annotations

import re
from functools import cache
from pathlib import Path

import pytest

from trimtab.core.hardware import Gpu
from trimtab.core.plan import Setting
from trimtab.engines.vllm_arguments import MANAGED, render_flags
from trimtab.engines.vllm_env import mixed_card_settings
from trimtab.engines.vllm_flags import (
    FLAG_VERSIONS,
    find_flag,
    find_option,
    flag_names,
    has_parser,
    versions_with_flag,
)
from trimtab.units import GIB

# What the planner and the adapter write on their own; all else was pinned and is checked when it is read.
WRITTEN = {
    "tensor_parallel_size": 2,
    "pipeline_parallel_size": 2,
    "data_parallel_size": 2,
    "decode_context_parallel_size": 2,
    "enable_expert_parallel": True,
    "max_model_len": 4096,
    "kv_cache_dtype": "fp8",
    "gpu_memory_utilization": 0.9,
    "kv_cache_memory_bytes": 2**30,
    "max_num_seqs": 4,
    "max_num_batched_tokens": 8192,
    "language_model_only": True,
    "enable_prefix_caching": False,
    "mamba_cache_mode": "align",
    "speculative_config": '{"method": "mtp", "num_speculative_tokens": 1}',
    "attention_backend": "FLASHINFER",
    "enforce_eager": True,
    "compilation_config": '{"mode": 0}',
    "reasoning_parser": "qwen3",
    "enable_auto_tool_choice": True,
    "tool_call_parser": "qwen3_coder",
    "default_chat_template_kwargs": '{"enable_thinking": false}',
}
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


@pytest.mark.parametrize("version", FLAG_VERSIONS)
def test_every_flag_that_is_written_exists_in_every_version(version):
    """No version from 0.17 to 0.33 ends a planned start with "unrecognized arguments"."""
    settings = tuple(Setting(name=name, value=value, origin="chosen") for name, value in WRITTEN.items())
    words = [word for word in render_flags(version, settings, model="m") if word.startswith("--")]

    assert len(words) == len(WRITTEN)
    for word in words:
        match = find_option(version, word)
        assert match is not None, word
        assert not match.is_abbreviated
    for name in ("served_model_name", "host", "port", "model"):
        assert find_flag(version, name) is not None


@pytest.mark.parametrize("version", FLAG_VERSIONS)
def test_unlike_cards_are_handled_in_every_version(version):
    """A 4090 beside a 3090 has a way to run the same kernels, whichever version is pinned."""
    cards = [
        Gpu(index=index, name=name, total_bytes=24 * GIB, compute_capability=capability)
        for index, (name, capability) in enumerate({"a": (8, 9), "b": (8, 6)}.items())
    ]
    chosen = mixed_card_settings(version, cards)

    assert len(render_flags(version, chosen, model="m")) == 2 * len(chosen)
    assert [item.name for item in chosen] in ([], ["linear_backend", "moe_backend"])


def test_what_cannot_be_pinned_exists():
    """Nothing is kept from the user that no version has."""
    assert [name for name in MANAGED if not versions_with_flag(name)] == []


_SAMPLES = {
    "switch": (True, False),
    "switch_on": (True,),
    "switch_or_text": (True, "x"),
    "integer": (1,),
    "size": (1, "8k"),
    "number": (0.5,),
    "text": ("x", "-x"),
    "list": ("x", '["x", "y"]'),
    "json": ('{"a": 1}',),
    "json_or_text": ('{"a": 1}', "x"),
}


@pytest.mark.parametrize("version", FLAG_VERSIONS)
def test_any_argument_that_may_be_pinned_is_written_so_that_it_is_read_back(version):
    """Whatever is pinned arrives under the name it was pinned by, on or off as wished."""
    for name in set(flag_names(version)) - MANAGED.keys() - {"reasoning_parser", "tool_call_parser"}:
        flag = find_flag(version, name)
        for value in flag.choices or _SAMPLES[flag.kind]:
            setting = Setting(name=name, value=value, origin="pinned")
            word = render_flags(version, (setting,), model="m")[0]
            match = find_option(version, word.partition("=")[0])
            assert match is not None, word
            assert (match.flag.name, match.is_negated) == (name, value is False)
