"""Pure. CUDA graphs: which sizes are captured, what vLLM estimates for them and what they take.

Sizes are exact (config/vllm.py _set_cudagraph_sizes and config/compilation.py, 0.17.1, 0.25.1, 0.33.0).
The estimate follows the engine's own: it captures the two largest graphs of each kind, takes the
dearer first one and the second one for every further graph (gpu_model_runner.py
profile_cudagraph_memory). What the samples weigh was read from 25 start-ups of 0.25.1 on H200 that
logged them (benchmarks/ground-truth, 2026-11-30).
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from trimtab.core.hardware import Gpu
from trimtab.core.model_facts import LayerFacts, ModelFacts
from trimtab.planner.vllm_activations import estimate_forward_token_bytes, uses_v2_runner
from trimtab.planner.vllm_settings import VllmSettings
from trimtab.planner.vllm_versions import VersionLine
from trimtab.units import MIB

__all__ = ["CudaGraphMemory", "enumerate_capture_sizes", "estimate_cuda_graph_memory"]

_SEGMENT_BYTES = 20 * MIB
"""PyTorch takes memory for tensors of 1 to 10 MiB in segments of this size; the first is in the base."""

_BASE_BYTES = 30 * MIB
"""The first graph's launch data and first segment, cuBLAS aside: 62 to 66 MiB logged with 32 of cuBLAS."""

_STREAM_BYTES = 40 * MIB
"""Shared experts run on a stream of their own, with another cuBLAS workspace: 102 against 62 MiB logged."""

_STREAM_TOKENS = 256
"""Up to this many tokens (VLLM_SHARED_EXPERTS_STREAM_TOKEN_THRESHOLD)."""

_PIECE_BYTES = int(0.145 * MIB)
"""Launch data per layer of a piecewise graph; the driver hands out 2 MiB at a time (4 MiB logged for 24
to 32 layers, 6 for 48, 10 for 64; half more with shared experts: 8 to 10 for 40 layers)."""

_FULL_DENSE_BYTES = int(0.05 * MIB)
_FULL_MOE_BYTES = int(0.125 * MIB)
"""The same for a full graph: 2 to 4 MiB logged for 64 dense layers, 4 to 6 for 40 and 48 with experts."""

_ATTENTION_SPLITS = 32
"""FlashAttention keeps this many partial outputs of 32 bit per token and head in a full graph
(flash_attn_max_num_splits_for_cuda_graph): 98 MiB logged for 128 tokens of 27B, 130 for 256 of 4B."""


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
    """Batch sizes in tokens that are captured, ascending; empty under enforce_eager.

    With drafts, runner V1 rounds each up to whole requests of 1 + k tokens and drops what passes the largest.
    """
    if settings.cudagraph_mode == "NONE":
        return ()
    decode = 1 + settings.num_speculative_tokens
    sizes = _plain_sizes(settings, facts, line, decode)
    if decode == 1 or not sizes or not settings.cudagraph_mode.startswith("FULL"):
        return sizes
    if uses_v2_runner(facts, line):
        return sizes
    rounded = {-(-size // decode) * decode for size in sizes}
    return tuple(sorted(size for size in rounded if size <= sizes[-1])) or (decode,)


def _plain_sizes(
    settings: VllmSettings, facts: ModelFacts, line: VersionLine, decode: int
) -> tuple[int, ...]:
    """1, 2, 4, 8 and on in steps of 8, from 256 in steps of 16, up to twice the sequences."""
    if settings.cudagraph_capture_sizes is not None:
        return tuple(sorted(set(settings.cudagraph_capture_sizes)))
    largest = settings.max_cudagraph_capture_size
    if largest is None:
        # GPT-OSS asks for 1024 whatever max_num_seqs is (models/config.py GptOssForCausalLMConfig).
        has_sinks = any(layer.has_sinks for layer in facts.layers)
        largest = 1024 if has_sinks else min(settings.max_num_seqs * decode * 2, 512)
    largest = min(largest, settings.max_num_batched_tokens)
    steps = (1, 2, 4, *range(8, 256, 8), *range(256, largest + 1, 16))
    sizes = {size for size in steps if size <= largest}
    if line.number >= (0, 25) and settings.max_num_batched_tokens <= largest:
        sizes.add(settings.max_num_batched_tokens)
    return tuple(sorted(sizes))


def estimate_cuda_graph_memory(
    facts: ModelFacts,
    settings: VllmSettings,
    line: VersionLine,
    gpu: Gpu | None = None,
    *,
    attention_backend: str | None = None,
) -> CudaGraphMemory:
    """Graph memory of one rank. 0.17 subtracts nothing; 0.25's V2 runner estimates 0 although it captures.

    FlashInfer has no full graphs for drafts, so the engine falls back to pieces (config/compilation.py).
    """
    if attention_backend == "FLASHINFER" and settings.num_speculative_tokens:
        is_off = settings.cudagraph_mode == "NONE"
        settings = settings if is_off else replace(settings, cudagraph_mode="PIECEWISE")
    sizes = enumerate_capture_sizes(settings, facts, line)
    mode = settings.cudagraph_mode
    reach = settings.max_num_seqs * (1 + settings.num_speculative_tokens)
    pieces = sizes if "PIECEWISE" in mode else ()
    whole = tuple(size for size in sizes if size <= reach) if mode.startswith("FULL") else ()
    if not pieces and not whole:
        return CudaGraphMemory(
            subtracted_bytes=0, captured_bytes=0, piecewise_graphs=0, full_graphs=0, error_bytes=0
        )
    samples = _Samples(facts, settings, line, gpu)
    first_piece = samples.first_piece_bytes(pieces)
    first_whole = samples.first_whole_bytes(whole, is_only=not pieces)
    further = max(0, len(pieces) - 1) * samples.piece_bytes(pieces)
    further += max(0, len(whole) - 1) * samples.whole_bytes()
    estimate = max(first_piece, first_whole) + further
    is_subtracted = line.is_graph_memory_subtracted and (
        line.is_v2_runner_universal or not uses_v2_runner(facts, line)
    )
    return CudaGraphMemory(
        subtracted_bytes=estimate if is_subtracted else 0,
        captured_bytes=first_piece + first_whole + further,
        piecewise_graphs=len(pieces),
        full_graphs=len(whole),
        error_bytes=32 * MIB + estimate // 8,
    )


class _Samples:
    """What single graphs weigh on one rank."""

    def __init__(self, facts: ModelFacts, settings: VllmSettings, line: VersionLine, gpu: Gpu | None) -> None:
        self.ranks = settings.tensor_parallel_size
        self.layers = -(-facts.num_layers // settings.pipeline_parallel_size)
        self.kinds = tuple({id(layer): layer for layer in facts.layers}.values())
        self.token_bytes = estimate_forward_token_bytes(facts, settings, line)
        self.is_moe = any(layer.moe is not None for layer in self.kinds)
        self.has_shared_experts = any(
            layer.moe is not None and layer.moe.shared_intermediate_size for layer in self.kinds
        )
        major = ((gpu and gpu.compute_capability) or (9, 0))[0]
        self.cublas_bytes = 32 * MIB if major >= 9 else 8 * MIB

    def _stream_bytes(self, largest: int) -> int:
        return _STREAM_BYTES if self.has_shared_experts and largest <= _STREAM_TOKENS else 0

    def first_piece_bytes(self, sizes: tuple[int, ...]) -> int:
        """Base, and activations beyond the first segment: those of two pieces live at once."""
        if not sizes:
            return 0
        held = max(0, 2 * self.token_bytes * sizes[-1] - _SEGMENT_BYTES)
        return _BASE_BYTES + self.cublas_bytes + held + self._stream_bytes(sizes[-1])

    def piece_bytes(self, sizes: tuple[int, ...]) -> int:
        """One more piecewise graph, in the driver's steps of 2 MiB; the engine counts 1 MiB at least."""
        second = sizes[-2] if len(sizes) > 1 else 0
        per_layer = _PIECE_BYTES * 3 // 2 if self._stream_bytes(second) else _PIECE_BYTES
        step = 2 * MIB
        return max(MIB, (self.layers * per_layer + step // 2) // step * step)

    def first_whole_bytes(self, sizes: tuple[int, ...], *, is_only: bool) -> int:
        """Attention's partial outputs; pieces before it left their pool, alone it brings the base."""
        if not sizes:
            return 0
        widest = max(self._attention_token_bytes(layer) for layer in self.kinds)
        base = _BASE_BYTES + self.cublas_bytes if is_only else 0
        return base + widest * sizes[-1] + self._stream_bytes(sizes[-1])

    def _attention_token_bytes(self, layer: LayerFacts) -> int:
        width = layer.v_head_dim or layer.head_dim
        return _ATTENTION_SPLITS * max(1, layer.num_heads // self.ranks) * width * 4

    def whole_bytes(self) -> int:
        """One more full graph."""
        per_layer = _FULL_MOE_BYTES if self.is_moe else _FULL_DENSE_BYTES
        return max(MIB, self.layers * per_layer)
