"""Arguments under vLLM's names become one object with the version's defaults; impossible values are named."""

from __future__ import annotations

from typing import Any

import pytest
from vllm_cases import facts_of, settle

from trimtab.errors import StackFileError
from trimtab.planner.gpu_spec import decode_gpu_spec
from trimtab.planner.vllm_versions import find_version


@pytest.mark.parametrize(
    ("version", "gpu", "expected"),
    [
        pytest.param("0.17.0", "rtx4090", (0.9, 2048, 256, False), id="0.17-small"),
        pytest.param("0.25.1", "rtx4090", (0.92, 2048, 256, False), id="0.25-small"),
        pytest.param("0.25.1", "h100", (0.92, 8192, 1024, False), id="0.25-large"),
        pytest.param("0.25.1", "a100-80g", (0.92, 2048, 256, False), id="a100-counts-as-small"),
        pytest.param("0.25.1", "b200", (0.92, 8192, 1024, False), id="0.25-largest"),
        pytest.param("0.33.0", "b200", (0.92, 16384, 1024, True), id="0.33-largest"),
    ],
)
def test_defaults_are_the_servers_own(version: str, gpu: str, expected: tuple[Any, ...]) -> None:
    """What a start without flags would use on this card."""
    found = settle(facts_of("Qwen3.5-27B"), {}, version, decode_gpu_spec(gpu)[0])
    assert (
        found.gpu_memory_utilization,
        found.max_num_batched_tokens,
        found.max_num_seqs,
        found.enable_prefix_caching,
    ) == expected


def test_prefix_caching_turns_into_aligned_states() -> None:
    """Hybrids cache prefixes only when asked before 0.27; dense models always do."""
    hybrid, dense = facts_of("Qwen3.5-27B"), facts_of("Qwen3-32B")
    assert settle(hybrid, {}).mamba_cache_mode == "none"
    assert settle(hybrid, {"enable_prefix_caching": True}).mamba_cache_mode == "align"
    assert settle(hybrid, {}, "0.33.0").mamba_cache_mode == "align"
    assert settle(hybrid, {"enable_prefix_caching": False}, "0.33.0").mamba_cache_mode == "none"
    assert settle(dense, {}).enable_prefix_caching
    assert settle(dense, {}).mamba_cache_mode == "none"


@pytest.mark.parametrize(
    ("args", "field", "value"),
    [
        pytest.param({"max_model_len": "32k"}, "max_model_len", 32000, id="thousands"),
        pytest.param({"max_model_len": "32K"}, "max_model_len", 32768, id="kibi"),
        pytest.param({"max_model_len": "auto"}, "max_model_len", None, id="auto"),
        pytest.param({"max_model_len": -1}, "max_model_len", None, id="minus-one"),
        pytest.param({"limit_mm_per_prompt": '{"image":0,"video":0}'}, "mm_limits_are_zero", True, id="mm"),
        pytest.param({"limit_mm_per_prompt": '{"image":0}'}, "mm_limits_are_zero", False, id="mm-half"),
        pytest.param({"language_model_only": True}, "mm_limits_are_zero", True, id="text"),
        pytest.param({"spec_tokens": 3}, "num_speculative_tokens", 3, id="spec-short"),
        pytest.param({"enforce_eager": True}, "cudagraph_mode", "NONE", id="eager-graphs"),
        pytest.param({"enforce_eager": "true"}, "compilation_mode", 0, id="eager-text"),
        pytest.param({"compilation_config": 0}, "compilation_mode", 0, id="mode-number"),
        pytest.param(
            {"compilation_config": '{"mode":0,"cudagraph_mode":"FULL_DECODE_ONLY"}'},
            "cudagraph_mode",
            "FULL_DECODE_ONLY",
            id="mode-json",
        ),
        pytest.param({"performance_mode": "throughput"}, "max_num_batched_tokens", 16384, id="throughput"),
        pytest.param({"max_num_batched_tokens": 512}, "max_num_batched_tokens", 512, id="batch"),
        pytest.param(
            {"max_num_batched_tokens": 512, "performance_mode": "throughput"},
            "max_num_batched_tokens",
            512,
            id="throughput-leaves-pins-alone",
        ),
        pytest.param({"served_model_name": "x"}, "max_num_seqs", 1024, id="others-pass-unread"),
    ],
)
def test_arguments_are_read_as_the_command_line_reads_them(
    args: dict[str, Any], field: str, value: object
) -> None:
    """Suffixes, JSON and switches mean the same here and there."""
    assert getattr(settle(facts_of("Qwen3.5-27B"), args), field) == value


@pytest.mark.parametrize(
    "args",
    [
        pytest.param({"tensor_parallel_size": 0}, id="zero-cards"),
        pytest.param({"tensor_parallel_size": -2}, id="negative"),
        pytest.param({"max_num_seqs": "many"}, id="word"),
        pytest.param({"max_num_seqs": 2.5}, id="fraction"),
        pytest.param({"max_num_seqs": True}, id="switch-for-number"),
        pytest.param({"max_model_len": 0}, id="no-context"),
        pytest.param({"max_model_len": "12q"}, id="unknown-suffix"),
        pytest.param({"gpu_memory_utilization": 0}, id="no-memory"),
        pytest.param({"gpu_memory_utilization": 1.2}, id="more-than-all"),
        pytest.param({"gpu_memory_utilization": "most"}, id="word-for-share"),
        pytest.param({"gpu_memory_utilization": "nan"}, id="not-a-number"),
        pytest.param({"enforce_eager": "perhaps"}, id="word-for-switch"),
        pytest.param({"speculative_config": "{"}, id="half-json"),
        pytest.param({"compilation_config": "[1]"}, id="json-list"),
        pytest.param({"kv_cache_memory_bytes": -1}, id="negative-cache"),
        pytest.param({"mm_ipc_gpu_memory_gb": "lots"}, id="word-for-gb"),
        pytest.param({"cudagraph_capture_sizes": "1,two"}, id="word-for-size"),
        pytest.param({"compilation_config": '{"cudagraph_capture_sizes":["a"]}'}, id="word-in-json"),
    ],
)
def test_values_that_cannot_be_are_named(args: dict[str, Any]) -> None:
    """The argument and its value stand in one sentence."""
    with pytest.raises(StackFileError) as caught:
        settle(facts_of("Qwen3.5-27B"), args)
    named = {"compilation_config", "speculative_config"} & args.keys()
    assert named or next(iter(args)) in caught.value.message
    assert " is " in caught.value.message


@pytest.mark.parametrize(
    ("version", "line", "is_warned"),
    [
        pytest.param("0.17.0", "0.17.1", False, id="0.17.0"),
        pytest.param("v0.25.1", "0.25.1", False, id="v-prefix"),
        pytest.param("0.33.0", "0.33.0", False, id="0.33.0"),
        pytest.param("0.16.0", "0.17.1", True, id="older"),
        pytest.param("0.19.1", "0.17.1", True, id="0.19"),
        pytest.param("0.20.2", "0.25.1", True, id="0.20"),
        pytest.param("0.24.0", "0.25.1", True, id="0.24"),
        pytest.param("0.27.1", "0.33.0", True, id="0.27"),
        pytest.param("0.41.0", "0.33.0", True, id="newer"),
        pytest.param("0.25.2.dev3+gabc", "0.25.1", False, id="nightly"),
    ],
)
def test_versions_fall_to_the_line_whose_accounting_they_share(
    version: str, line: str, *, is_warned: bool
) -> None:
    """Versions that were not read are planned as one that was, and the plan says so."""
    found = find_version(version)
    assert found.line.version == line
    assert (found.warning is not None) is is_warned


def test_between_the_lines_some_things_changed_on_their_own() -> None:
    """0.27 has 0.33's profile, but not yet its null block and runner."""
    early, late = find_version("0.27.1").line, find_version("0.30.0").line
    assert (early.null_blocks, early.is_v2_runner_universal) == (0, False)
    assert (late.null_blocks, late.is_v2_runner_universal) == (1, True)


@pytest.mark.parametrize("version", ["", "latest", "25", "0.x.1", "0,25"])
def test_what_is_no_version_is_said_to_be_none(version: str) -> None:
    """A typing error doesn't silently become some version."""
    with pytest.raises(StackFileError, match="isn't a vLLM version"):
        find_version(version)
