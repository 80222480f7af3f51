"""Pure. CUDA graphs: which sizes are captured, what vLLM estimates for them and what they take.

Sizes are exact (config/vllm.py _set_cudagraph_sizes, 0.17.1, 0.25.1, 0.33.0). The bytes are fitted
to what was logged: a first capture and a step per further graph.
"""

from __future__ import annotations

from dataclasses import dataclass

from trimtab.core.model_facts import ModelFacts
from trimtab.planner.vllm_activations import uses_v2_runner
from trimtab.planner.vllm_settings import VllmSettings
from trimtab.planner.vllm_versions import VersionLine
from trimtab.units import MIB

__all__ = ["CudaGraphMemory", "enumerate_capture_sizes", "estimate_cuda_graph_memory"]

_FIRST_BYTES = 52 * MIB
_STEP_DENSE_BYTES = 8 * MIB
_STEP_MOE_BYTES = 12 * MIB
"""Fitted to five start-ups: 0.11 and 0.17 GiB (35B, 7 and 12 graphs), 0.11 (27B, 9), 0.13 (7, TP2),
0.73 GiB (86 graphs); H200 2026-11 and the logs in the planning notes. Largest miss 0.03 GiB."""

_ACTUAL_RATIO = 0.8
"""Measured after capture: 0.08, 0.14 and 0.09 GiB against estimates of 0.11, 0.17 and 0.11."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CudaGraphMemory:
    """``subtracted_bytes`` leave the KV budget, ``captured_bytes`` is what capture really takes.

    ``piecewise_graphs`` and ``full_graphs`` are counts; ``error_bytes`` is the half-width of both.
    """

    subtracted_bytes: int
    captured_bytes: int
    piecewise_graphs: int
    full_graphs: int
    error_bytes: int


def enumerate_capture_sizes(settings: VllmSettings, facts: ModelFacts, line: VersionLine) -> tuple[int, ...]:
    """Batch sizes in tokens that are captured, ascending; empty under enforce_eager."""
    if settings.cudagraph_mode == "NONE":
        return ()
    if settings.cudagraph_capture_sizes is not None:
        return tuple(sorted(set(settings.cudagraph_capture_sizes)))
    decode = 1 + settings.num_speculative_tokens
    ceiling = 1024 if any(layer.has_sinks for layer in facts.layers) else 512
    largest = settings.max_cudagraph_capture_size or min(settings.max_num_seqs * decode * 2, ceiling)
    largest = min(largest, settings.max_num_batched_tokens)
    steps = (1, 2, 4, *range(8, 256, 8), *range(256, largest + 1, 16))
    sizes = [size for size in steps if size <= largest]
    if line.number >= (0, 25) and settings.max_num_batched_tokens <= largest:
        sizes.append(settings.max_num_batched_tokens)
    return tuple(sorted(set(sizes)))


def estimate_cuda_graph_memory(
    facts: ModelFacts, settings: VllmSettings, line: VersionLine
) -> CudaGraphMemory:
    """Graph memory of one rank. 0.17 subtracts nothing; 0.25's V2 runner estimates 0 although it captures."""
    sizes = enumerate_capture_sizes(settings, facts, line)
    mode = settings.cudagraph_mode
    piecewise = len(sizes) if "PIECEWISE" in mode else 0
    decode = 1 + settings.num_speculative_tokens
    reach = settings.max_num_seqs * decode
    full = sum(size <= reach for size in sizes) if mode.startswith("FULL") else 0
    if not piecewise and not full:
        return CudaGraphMemory(
            subtracted_bytes=0, captured_bytes=0, piecewise_graphs=0, full_graphs=0, error_bytes=0
        )
    step = _STEP_MOE_BYTES if facts.is_moe else _STEP_DENSE_BYTES
    further = max(0, piecewise - 1) + max(0, full - 1)
    estimate = _FIRST_BYTES + further * step
    is_blind = uses_v2_runner(facts, line) and not line.is_v2_runner_universal
    is_subtracted = line.is_graph_memory_subtracted and not is_blind
    return CudaGraphMemory(
        subtracted_bytes=estimate if is_subtracted else 0,
        captured_bytes=int(estimate * _ACTUAL_RATIO),
        piecewise_graphs=piecewise,
        full_graphs=full,
        error_bytes=32 * MIB + estimate // 4,
    )
