"""Pure. Facts about weights on disk that a planner needs."""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["GgufCheckpoint"]


@dataclass(frozen=True, slots=True, kw_only=True)
class GgufCheckpoint:
    """What the header of one GGUF file says (sizes in bytes, lengths in tokens).

    ``kv_heads_per_layer`` has one entry per layer (0 where a layer keeps no KV cache);
    ``key_head_dim`` and ``value_head_dim`` are elements per head; ``weights_bytes`` is the sum of
    all tensors; ``sliding_window_tokens`` is 0 for full attention; ``has_chat_template`` tells
    whether the file carries one; ``name`` is the file's own general.name, or its stem.

    ``bytes_by_tensor_type`` sums the tensors per type, largest first; ``has_output_head`` is False
    where the token embedding doubles as output matrix. ``num_experts_used`` is experts per token of
    a mixture, each ``expert_feed_forward_length`` wide (0: dense). ``has_recurrent_layers`` marks
    architectures that keep a state instead of a KV cache in some layers. ``num_files`` counts the
    parts of a split checkpoint; the byte sums are over all of them. ``has_pooling``: the header says how
    tokens become the embedding of a text.
    """

    path: str
    name: str
    architecture: str
    file_bytes: int
    weights_bytes: int
    num_tensors: int
    num_layers: int
    embedding_length: int
    feed_forward_length: int
    vocab_size: int
    trained_context_tokens: int
    num_heads: int
    kv_heads_per_layer: tuple[int, ...]
    key_head_dim: int
    value_head_dim: int
    sliding_window_tokens: int = 0
    quantization: str = ""
    has_chat_template: bool = False
    is_embedding_only: bool = False
    has_pooling: bool = False
    bytes_by_tensor_type: tuple[tuple[str, int], ...] = ()
    token_embedding_bytes: int = 0
    token_embedding_type: str = ""
    has_output_head: bool = True
    num_experts_used: int = 0
    expert_feed_forward_length: int = 0
    has_recurrent_layers: bool = False
    num_files: int = 1
