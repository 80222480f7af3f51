"""Whatever a log holds, its diagnosis is made, in bounded time, and says something."""

# ruff: noqa: E501  # messages stand as they are written

from __future__ import annotations

import time

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from trimtab.engines.progress import read_progress
from trimtab.engines.vllm_diagnosis import diagnose_vllm

# Pieces of vLLM's own messages, cut anywhere and mixed with anything.
PIECES = st.sampled_from(
    [
        "Free memory on device cuda:0 (", "22.1/23.56 GiB", "0/0 GiB) on startup is less than desired GPU memory ",
        "utilization (0.95, 22.38 GiB)", "max seq len (262144), (16.17 GiB KV cache is needed", "is needed",
        "KV cache memory (9.5 GiB)", "maximum model length is 99999999999999999999", "NCCL", "timed out",
        "out of memory occurred when warming up sampler with ", "1024 dummy requests", "error: argument --x: y",
        "max_num_seqs (9) exceeds available Mamba cache blocks (0)", "CUDA error: ", "{what}", "%s", "\x00",
    ]
)  # fmt: skip
LINES = st.lists(st.one_of(PIECES, st.text(max_size=40)), max_size=8).map("".join)


@settings(max_examples=300, deadline=None)
@given(st.lists(LINES, max_size=30), st.booleans())
def test_no_log_text_breaks_the_diagnosis(log, is_silent):
    """A log of any kind gives a diagnosis with words, never an exception."""
    found = diagnose_vllm(tuple(log), is_silent=is_silent)
    assert found.code
    assert found.happened
    assert found.why
    assert found.advice


@pytest.mark.parametrize(
    "line",
    [
        pytest.param("max seq len (1), (1 GiB KV cache is needed" * 20_000, id="repeated-beginning"),
        pytest.param("NCCL" * 200_000, id="nccl"),
        pytest.param("Free memory on device " + "(" * 500_000, id="brackets"),
        pytest.param("error: argument " + "a" * 500_000, id="argument"),
        pytest.param("1 is not divisible by " * 50_000, id="divisible"),
    ],
)
def test_a_hostile_line_costs_no_time(line):
    """A megabyte in one line does not hold up the supervisor."""
    began_s = time.perf_counter()
    diagnose_vllm((line,) * 20)
    assert time.perf_counter() - began_s < 5


@settings(max_examples=200, deadline=None)
@given(st.text(max_size=400))
def test_no_metrics_text_breaks_the_reading(text):
    """Whatever answers on /metrics, watching goes on."""
    read_progress(text)
    read_progress(f"vllm:prompt_tokens_total{{{text}}} 1\nvllm:prompt_tokens_total {text}")
