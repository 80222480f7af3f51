"""Pure. What one llama.cpp engine on the CPU keeps in RAM: weights, KV cache, compute buffers, process.

Every constant is from benchmarks/llama_cpp_memory (xllamacpp 2026.10.11549, Linux x86-64, Python 3.11,
2026-11-30): buffer sizes as the engine logs them, resident sizes as the kernel reports them. How the
formulas were found and how far they are off is written in docs/engines/llama-cpp.md.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from trimtab.core.checkpoint import GgufCheckpoint
from trimtab.units import KIB, MIB

__all__ = [
    "CELL_TOKENS",
    "LlamaCppShape",
    "MemoryEstimate",
    "estimate_memory",
    "is_upper_bound",
    "pad_tokens",
    "prefers_loading_without_mmap",
]

# llama.cpp rounds the KV cache of each sequence up to this many tokens.
CELL_TOKENS: Final = 256
# Bytes per element of a cache type: blocks of 32 elements with their scales (ggml-common.h).
_CACHE_BYTES_PER_32: Final[dict[str, int]] = {
    "f32": 128, "f16": 64, "bf16": 64, "q8_0": 34, "q5_1": 24, "q5_0": 22, "q4_1": 20, "q4_0": 18,
}  # fmt: skip
# Tensor types that llama.cpp copies into an interleaved layout for AVX2 ("CPU_REPACK" in its log).
_REPACKED_TYPES: Final = frozenset({"IQ4_NL", "MXFP4", "Q4_0", "Q4_K"})
# Architecture → every how many layers one has full attention; the others keep only the window.
# Read from the engine's log ("is_swa"). Unlisted ones count as full attention: an upper bound.
_FULL_ATTENTION_EVERY: Final[dict[str, int]] = {"gemma2": 2, "gemma3": 6}
# Interpreter, xllamacpp and its libraries, resident as mapped files; and what they allocate at start.
_PROCESS_FILE_BYTES: Final = int(19.7 * MIB)
_PROCESS_ANON_BYTES: Final = int(13.0 * MIB)
# Tokenizer tables per token of the vocabulary (with one merge each): 483 to 515 bytes in 49 k to 250 k.
_TOKENIZER_BYTES_PER_TOKEN: Final = 490
# Per slot: last logits (float) and the sampler's candidate list (id, logit, probability).
_SLOT_BYTES_PER_TOKEN_OF_VOCABULARY: Final = 4 + 12
_SLOT_BYTES: Final = 40 * KIB
# Inputs of the graph per token of a batch (ids, positions, rows to write).
_INPUT_BYTES_PER_TOKEN: Final = 64
# Half-width of the band, from the worst row of the benchmark: a share of the whole and a floor.
_ERROR_RATIO: Final = 0.04
_ERROR_FLOOR_BYTES: Final = 12 * MIB


@dataclass(frozen=True, slots=True, kw_only=True)
class LlamaCppShape:
    """The settings that decide about memory.

    ``pool_tokens`` is llama.cpp's n_ctx: tokens of KV cache over all slots, already padded.
    ``flash_attention`` is True unless it was switched off.
    """

    pool_tokens: int
    num_slots: int
    ubatch_tokens: int = 512
    cache_type_k: str = "f16"
    cache_type_v: str = "f16"
    flash_attention: bool = True
    kv_unified: bool = False
    swa_full: bool = False
    embeddings: bool = False
    mmap: bool = True
    repack: bool = True
    context_checkpoints: int = 0

    @property
    def sequence_tokens(self) -> int:
        """Tokens of cache that one sequence can reach: the whole pool if it is unified."""
        return self.pool_tokens if self.kv_unified else self.pool_tokens // self.num_slots


@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryEstimate:
    """Resident bytes by cause; ``checkpoint_bytes`` comes on top, as conversations use it."""

    weights_bytes: int
    kv_cache_bytes: int
    compute_bytes: int
    process_bytes: int
    checkpoint_bytes: int

    @property
    def resident_bytes(self) -> int:
        """What the engine holds once every slot has worked, without remembered prompts."""
        return self.weights_bytes + self.kv_cache_bytes + self.compute_bytes + self.process_bytes

    @property
    def error_bytes(self) -> int:
        """Half-width of the band around ``resident_bytes``."""
        return max(_ERROR_FLOOR_BYTES, int(self.resident_bytes * _ERROR_RATIO))


def pad_tokens(tokens: int) -> int:
    """``tokens`` rounded up to whole cells of the KV cache."""
    return -(-tokens // CELL_TOKENS) * CELL_TOKENS


def estimate_memory(checkpoint: GgufCheckpoint, shape: LlamaCppShape) -> MemoryEstimate:
    """Resident memory of the engine at this shape, by cause."""
    full_bytes, window_bytes = _cache_bytes(checkpoint, shape)
    return MemoryEstimate(
        weights_bytes=_weights_bytes(checkpoint, shape),
        kv_cache_bytes=full_bytes + window_bytes,
        compute_bytes=_compute_bytes(checkpoint, shape),
        process_bytes=_process_bytes(checkpoint, shape),
        checkpoint_bytes=window_bytes * shape.context_checkpoints,
    )


def is_upper_bound(checkpoint: GgufCheckpoint) -> bool:
    """Whether the KV cache of this architecture is only bounded from above, not known."""
    has_unknown_window = (
        checkpoint.sliding_window_tokens > 0 and checkpoint.architecture not in _FULL_ATTENTION_EVERY
    )
    return has_unknown_window or checkpoint.has_recurrent_layers


def prefers_loading_without_mmap(checkpoint: GgufCheckpoint) -> bool:
    """Whether mapping the file would keep its weights in RAM twice, mapped and repacked."""
    return _repacked_bytes(checkpoint) > 0


def _repacked_bytes(checkpoint: GgufCheckpoint) -> int:
    return sum(size for name, size in checkpoint.bytes_by_tensor_type if name in _REPACKED_TYPES)


def _weights_bytes(checkpoint: GgufCheckpoint, shape: LlamaCppShape) -> int:
    weights = checkpoint.weights_bytes
    if not shape.repack:
        return weights
    if shape.mmap:
        return weights + _repacked_bytes(checkpoint)
    # A tied embedding is needed plain for look-ups and repacked as output matrix.
    is_doubled = not checkpoint.has_output_head and checkpoint.token_embedding_type in _REPACKED_TYPES
    return weights + (checkpoint.token_embedding_bytes if is_doubled else 0)


def _cache_bytes(checkpoint: GgufCheckpoint, shape: LlamaCppShape) -> tuple[int, int]:
    """(bytes of layers with full attention, bytes of layers that keep a window)."""
    if _keeps_no_cache(checkpoint):
        return 0, 0
    window_tokens = _window_pool_tokens(checkpoint, shape)
    full = window = 0
    for layer, heads in enumerate(checkpoint.kv_heads_per_layer):
        k_bytes = heads * checkpoint.key_head_dim * _CACHE_BYTES_PER_32[shape.cache_type_k]
        v_bytes = heads * checkpoint.value_head_dim * _CACHE_BYTES_PER_32[shape.cache_type_v]
        if _keeps_window(checkpoint, layer):
            window += (k_bytes + v_bytes) * window_tokens // 32
        else:
            full += (k_bytes + v_bytes) * shape.pool_tokens // 32
    return full, window


def _keeps_window(checkpoint: GgufCheckpoint, layer: int) -> bool:
    period = _FULL_ATTENTION_EVERY.get(checkpoint.architecture)
    return period is not None and checkpoint.sliding_window_tokens > 0 and (layer + 1) % period != 0


def _window_pool_tokens(checkpoint: GgufCheckpoint, shape: LlamaCppShape) -> int:
    """Tokens of cache in a layer that keeps a window: the window and one batch, per slot."""
    window = checkpoint.sliding_window_tokens
    if shape.swa_full or window == 0:
        return shape.pool_tokens
    if shape.kv_unified:
        return min(shape.pool_tokens, pad_tokens(window * shape.num_slots + shape.ubatch_tokens))
    per_slot = min(shape.sequence_tokens, pad_tokens(window + shape.ubatch_tokens))
    return per_slot * shape.num_slots


def _keeps_no_cache(checkpoint: GgufCheckpoint) -> bool:
    # Encoders (bert and kin) see the whole text at once; embedders made from decoders do keep a cache.
    return checkpoint.is_embedding_only and "bert" in checkpoint.architecture


def _computes_logits(checkpoint: GgufCheckpoint) -> bool:
    """Whether the model has an output matrix that llama.cpp runs for embeddings as well: decoders do."""
    return "bert" not in checkpoint.architecture and "embedding" not in checkpoint.architecture


def _compute_bytes(checkpoint: GgufCheckpoint, shape: LlamaCppShape) -> int:
    """The engine's "compute buffer size": the widest moment of one micro-batch through the model."""
    embd = checkpoint.embedding_length
    experts = max(1, checkpoint.num_experts_used)
    width = (checkpoint.expert_feed_forward_length or checkpoint.feed_forward_length) * experts
    feed_forward = 3 * width + 5 * embd if width > embd else 6 * embd
    kv_dim = max(checkpoint.kv_heads_per_layer, default=0) * checkpoint.key_head_dim
    attention = 6 * embd + 2 * kv_dim
    cells = shape.sequence_tokens
    if shape.flash_attention:
        # The mask is a half-precision number per cell; sliding windows have a mask of their own.
        window = _window_pool_tokens(checkpoint, shape) // shape.num_slots
        has_window = any(_keeps_window(checkpoint, layer) for layer in range(checkpoint.num_layers))
        per_token = 4 * max(feed_forward, attention) + 2 * (cells + (window if has_window else 0))
    else:
        # Scores of every head and the mask, a float each; and the scores once more in half precision
        # for the product with V, which is outside the engine's "compute buffer size".
        scores = cells * (4 * (checkpoint.num_heads + 1) + 2 * checkpoint.num_heads)
        per_token = max(4 * feed_forward, 4 * attention + scores)
    if shape.embeddings and _computes_logits(checkpoint):
        # A decoder asked for embeddings computes logits for every token too, and copies them out.
        per_token = max(per_token, 4 * (checkpoint.vocab_size + 6 * embd) + 2 * cells)
        per_token += 4 * checkpoint.vocab_size
    return shape.ubatch_tokens * (per_token + _INPUT_BYTES_PER_TOKEN)


def _process_bytes(checkpoint: GgufCheckpoint, shape: LlamaCppShape) -> int:
    per_slot = checkpoint.vocab_size * _SLOT_BYTES_PER_TOKEN_OF_VOCABULARY + _SLOT_BYTES
    tokenizer = checkpoint.vocab_size * _TOKENIZER_BYTES_PER_TOKEN
    return _PROCESS_FILE_BYTES + _PROCESS_ANON_BYTES + tokenizer + per_slot * shape.num_slots
