"""Pure. What differs between vLLM's version lines in memory accounting, defaults and checks.

Three lines were read in full (wheels 0.17.1, 0.25.1 and 0.33.0; 0.17.0 is the same here); selected
files of 0.19.1, 0.20.2, 0.27.1 and 0.30.0 date the changes in between. A version outside the three
is planned as the line whose accounting it shares, with a warning.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from typing import Literal, TypeAlias

from trimtab.core.plan import PlanWarning
from trimtab.errors import StackFileError
from trimtab.units import GIB

__all__ = [
    "DEFAULT_VLLM_VERSION",
    "VERSION_LINES",
    "VersionLine",
    "VersionMatch",
    "find_planned_version",
    "find_version",
    "find_version_line",
]

DEFAULT_VLLM_VERSION = "0.25.1"
"""The newest release whose accounting was compared with start-ups on a GPU (H200, 2026-11)."""

TokensReport: TypeAlias = Literal["blocks_per_group", "concurrency"]


@dataclass(frozen=True, slots=True, kw_only=True)
class VersionLine:
    """The facts of one line; every field is read from the wheel named in ``read_from``.

    ``group_size_ratio``: layers of all types go into one group size when the most frequent type has
    fewer than this times the layers of the rarest. ``tokens_report`` is how "GPU KV cache size" is
    computed. ``prices_first_group_only``: the start-up check counts the first cache group alone.
    ``null_blocks`` is subtracted before the check. ``is_graph_memory_subtracted`` and
    ``profiles_device_memory`` (weights and buffers as a difference of free memory) are the budget
    equation. ``has_state_block_check``: max_num_seqs must not exceed the blocks when full graphs
    are captured. ``block_must_fit_batch``: align mode's block must not exceed a batch.
    """

    version: str
    number: tuple[int, int]
    read_from: str
    gpu_memory_utilization: float
    group_size_ratio: float
    tokens_report: TokensReport
    prices_first_group_only: bool
    null_blocks: int
    is_graph_memory_subtracted: bool
    profiles_device_memory: bool
    caches_hybrid_prefixes: bool
    block_must_fit_batch: bool
    has_state_block_check: bool
    exports_state_checkpoints: bool
    warms_linear_attention: bool
    v2_runner_families: frozenset[str]
    is_v2_runner_universal: bool
    has_flashinfer_sampler: bool
    largest_batched_tokens: int
    removed_flags: tuple[tuple[str, str], ...] = ()

    def default_batched_tokens(self, gpu_total_bytes: int, gpu_name: str) -> int:
        """``max_num_batched_tokens`` of the API server (engine/arg_utils.py get_batch_defaults)."""
        if gpu_total_bytes >= 160 * GIB:
            return self.largest_batched_tokens
        if gpu_total_bytes >= 70 * GIB and "a100" not in gpu_name.lower():
            return 8192
        return 2048

    @staticmethod
    def default_max_num_seqs(gpu_total_bytes: int, gpu_name: str) -> int:
        """``max_num_seqs`` of the API server: 1024 on cards of 70 GiB and more except A100, else 256."""
        return 1024 if gpu_total_bytes >= 70 * GIB and "a100" not in gpu_name.lower() else 256


_LINE_17 = VersionLine(
    version="0.17.1",
    number=(0, 17),
    read_from="vllm 0.17.0 and 0.17.1 wheels",
    gpu_memory_utilization=0.9,
    group_size_ratio=1.25,
    tokens_report="blocks_per_group",
    prices_first_group_only=True,
    null_blocks=0,
    is_graph_memory_subtracted=False,
    profiles_device_memory=False,
    caches_hybrid_prefixes=False,
    block_must_fit_batch=True,
    has_state_block_check=False,
    exports_state_checkpoints=False,
    warms_linear_attention=False,
    v2_runner_families=frozenset(),
    is_v2_runner_universal=False,
    has_flashinfer_sampler=False,
    largest_batched_tokens=8192,
    removed_flags=(
        ("gdn_prefill_backend", "isn't there yet (0.25 has it)"),
        ("linear_backend", "isn't there yet (0.25 has it)"),
        ("kv_cache_dtype_skip_layers", "isn't there yet (0.25 has it)"),
        ("mm_ipc_gpu_memory_gb", "isn't there yet (0.25 has it)"),
        ("scheduler_reserve_full_isl", "isn't there yet (0.25 has it)"),
        ("watermark", "isn't there yet (0.25 has it)"),
        ("reasoning_config", "isn't there yet (0.25 has it)"),
        ("spec_method", "isn't there yet (0.25 has it); use speculative_config"),
        ("spec_model", "isn't there yet (0.25 has it); use speculative_config"),
        ("spec_tokens", "isn't there yet (0.25 has it); use speculative_config"),
        ("prefix_match_unit", "isn't there yet (0.33 has it)"),
        ("use_replayssm", "isn't there yet (0.33 has it)"),
    ),
)

_LINE_25 = replace(
    _LINE_17,
    version="0.25.1",
    number=(0, 25),
    read_from="vllm 0.25.1 wheel",
    gpu_memory_utilization=0.92,
    group_size_ratio=1.5,
    tokens_report="concurrency",
    prices_first_group_only=False,
    is_graph_memory_subtracted=True,
    has_state_block_check=True,
    warms_linear_attention=True,
    v2_runner_families=frozenset({"dense"}),
    has_flashinfer_sampler=True,
    removed_flags=(
        ("swap_space", "went by 0.19.1; KV is never swapped, drop it"),
        ("prefix_match_unit", "isn't there yet (0.33 has it)"),
        ("use_replayssm", "isn't there yet (0.33 has it)"),
    ),
)

_LINE_33 = replace(
    _LINE_25,
    version="0.33.0",
    number=(0, 33),
    read_from="vllm 0.33.0 wheel",
    null_blocks=1,
    profiles_device_memory=True,
    caches_hybrid_prefixes=True,
    block_must_fit_batch=False,
    exports_state_checkpoints=True,
    is_v2_runner_universal=True,
    largest_batched_tokens=16384,
    removed_flags=(
        ("swap_space", "went by 0.19.1; KV is never swapped, drop it"),
        ("calculate_kv_scales", "went by 0.30; scales of 1.0 are used"),
        ("max_num_partial_prefills", "went by 0.27.1; drop it"),
        ("max_long_partial_prefills", "went by 0.27.1; drop it"),
        ("hash_block_size", "is prefix_match_unit since 0.33"),
    ),
)

VERSION_LINES: tuple[VersionLine, ...] = (_LINE_17, _LINE_25, _LINE_33)

_FIRST_OF_LINE = ((0, 20), (0, 27))
"""0.20 prints tokens from concurrency and subtracts graphs; 0.27 profiles device memory."""

_VERSION = re.compile(r"^v?(\d+)\.(\d+)(?:\.(\d+))?(?:[.+-]?[A-Za-z].*)?$")


@dataclass(frozen=True, slots=True, kw_only=True)
class VersionMatch:
    """The line a version is planned as; ``warning`` is set when it isn't one that was read."""

    version: str
    line: VersionLine
    warning: PlanWarning | None = None


def find_version_line(number: tuple[int, int]) -> VersionLine:
    """The line that shares its accounting with ``number`` (major, minor)."""
    line = VERSION_LINES[sum(number >= first for first in _FIRST_OF_LINE)]
    if (0, 27) <= number < (0, 30):
        return replace(line, null_blocks=0, is_v2_runner_universal=False)
    return line


def find_version(version: str) -> VersionMatch:
    """The line for a version such as ``0.25.1`` or ``v0.17.0``; StackFileError when it isn't one."""
    match = _VERSION.match(version.strip())
    if match is None:
        raise StackFileError(
            f"engine_version is {version!r}, which isn't a vLLM version",
            hint=f"write it like {DEFAULT_VLLM_VERSION}",
        )
    number = (int(match.group(1)), int(match.group(2)))
    line = find_version_line(number)
    text = f"{number[0]}.{number[1]}.{match.group(3) or 0}"
    if number == line.number:
        return VersionMatch(version=text, line=line)
    warning = PlanWarning(
        code="version_not_read",
        text=f"vLLM {text} was not read; planned with the accounting of {line.version}",
        source=line.read_from,
    )
    return VersionMatch(version=text, line=line, warning=warning)


def find_planned_version(version: str) -> VersionMatch:
    """``find_version``; StackFileError also for versions whose models, flags and memory nobody read here."""
    found, oldest = find_version(version), VERSION_LINES[0]
    major, minor = found.version.split(".")[:2]
    if (int(major), int(minor)) < oldest.number:
        raise StackFileError(
            f"engine_version is {found.version}, and vLLM before {oldest.number[0]}.{oldest.number[1]} is not"
            " known here: neither its models and flags nor its memory",
            hint=f"{oldest.version} or later",
        )
    return found
