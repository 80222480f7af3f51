"""A vLLM that failed: what happened, why, what to change, and which settings its own words ask for."""

# ruff: noqa: E501  # log lines stand as they are written

from __future__ import annotations

import pytest
from test_vllm_exit import LINES

from trimtab.engines import explain_exit
from trimtab.engines.vllm_diagnosis import diagnose_vllm
from trimtab.engines.vllm_exit import find_cause

NOT_FREE = (
    "ValueError: Free memory on device cuda:0 (18.1/23.56 GiB) on startup is less than desired GPU memory "
    "utilization (0.95, 22.38 GiB). Decrease GPU memory utilization or reduce GPU memory used by other processes."
)
SAMPLER = "RuntimeError: CUDA out of memory occurred when warming up sampler with 1024 dummy requests. Please"
STATES = "ValueError: max_num_seqs (1024) exceeds available Mamba cache blocks (327). Each decode sequence"
CONTEXT = (
    "ValueError: To serve at least one request with the model's max seq len (262144), (16.17 GiB KV cache is "
    "needed, which is larger than the available KV cache memory (9.5 GiB). Based on the available memory, the "
    "estimated maximum model length is 152889. Try increasing `gpu_memory_utilization` or decreasing"
)
BLOCK = (
    "AssertionError: In Mamba cache align mode, block_size (2096) must be <= max_num_batched_tokens (2048)."
)


@pytest.mark.parametrize("line", [pytest.param(row.values[0], id=row.id) for row in LINES])
def test_every_known_failure_is_told_in_three_parts(line):
    """Whoever reads it learns what happened, why, and what to do."""
    found = diagnose_vllm(("INFO vLLM API server version 0.25.1", line))
    assert found.code != "unknown"
    assert found.happened
    assert found.why
    assert found.advice
    assert "{" not in str(found)


@pytest.mark.parametrize(
    ("line", "code", "change"),
    [
        pytest.param(NOT_FREE, "card_not_free", ("gpu_memory_utilization", 0.76), id="share-of-what-is-free"),
        pytest.param(SAMPLER, "sampler_out_of_memory", ("max_num_seqs", 512), id="half-the-sequences"),
        pytest.param(STATES, "too_few_state_blocks", ("max_num_seqs", 327), id="as-many-as-states"),
        pytest.param(CONTEXT, "context_exceeds_cache", ("max_model_len", 152880), id="length-that-fits"),
        pytest.param(BLOCK, "block_above_batch", ("max_num_batched_tokens", 2096), id="batch-of-a-block"),
    ],
)
def test_figures_of_the_log_become_settings(line, code, change):
    """What vLLM names itself is taken over to the letter, never above it."""
    found = diagnose_vllm((line,))
    assert (found.code, found.change) == (code, (change,))


@pytest.mark.parametrize(
    ("line", "is_memory"),
    [
        pytest.param(SAMPLER, True, id="sampler"),
        pytest.param("ERROR Failed to load model - not enough GPU memory. Try lowering", True, id="weights"),
        pytest.param("OSError: [Errno 98] Address already in use", False, id="port"),
        pytest.param("RuntimeError: NCCL error: unhandled cuda error", False, id="nccl"),
    ],
)
def test_memory_is_told_from_the_rest(line, is_memory):
    """Only where memory was short a smaller plan is worth trying."""
    assert diagnose_vllm((line,)).is_memory is is_memory


def test_weights_that_exceed_the_card_are_not_blamed_on_the_share():
    """Its own advice, to lower the utilisation, does not help, and is not passed on."""
    found = diagnose_vllm(("ERROR Failed to load model - not enough GPU memory. Try lowering --gpu-memory",))
    assert found.change == ()
    assert "more cards" in found.advice


def test_an_unknown_end_shows_the_last_lines_and_says_so():
    """What is not understood is not guessed at."""
    found = diagnose_vllm(("first", "", "something odd happened", "  at line 12", "bye  "))
    assert found.code == "unknown"
    assert found.why == "unknown; its last lines: something odd happened / at line 12 / bye"
    assert diagnose_vllm(()).why == "unknown; its last lines: it wrote nothing"


def test_cards_that_wait_for_each_other_are_named():
    """A start that hangs in NCCL has no error in its log; where it stands still tells."""
    log = (
        "INFO [pynccl.py:111] vLLM is using nccl==2.27.5",
        "INFO [symm_mem.py:90] SymmMemCommunicator: Device capability 8.9 not supported",
    )
    found = diagnose_vllm(log, is_silent=True)
    assert found.code == "cards_do_not_answer"
    assert "NCCL_P2P_DISABLE=1" in found.advice
    loading = (*log, "INFO [gpu_model_runner.py:1] Starting to load model m...")
    assert diagnose_vllm(loading, is_silent=True).code == "unknown"
    assert diagnose_vllm(log).code == "unknown"


def test_figures_without_sense_change_nothing():
    """A log that speaks of a card of no size does not make trimtab divide by it."""
    line = NOT_FREE.replace("18.1/23.56", "1/0")
    assert diagnose_vllm((line,)).change == ()
    assert find_cause((line,)).code == "card_not_free"


def test_a_failure_is_shown_with_what_helps_even_where_its_cause_does_not_say():
    """The one line that a user reads has the way out, once."""
    refused = "vllm serve: error: argument --max-model-len: invalid human_readable_int_or_auto value: 'abc'"
    assert (explain_exit("vllm", (refused,)) or "").endswith("; correct it in engine_args")
    assert (explain_exit("vllm", (STATES,)) or "").count("lower it to 327 or less") == 1
    assert explain_exit("vllm", ("nothing known",)) is None
    assert explain_exit("llama_cpp", ("nothing known",)) is None
