"""Pure. What one tensor-parallel rank holds of each part, in rows and columns.

The rules are vLLM's (layers/linear.py, vocab_parallel_embedding.py, 0.17 to 0.33): columns and rows
are cut evenly, KV heads are copied when there are fewer than ranks, the vocabulary is padded first.
"""

from __future__ import annotations

from trimtab.core.model_parts import ExpertsPart, LinearPart, LinearShard, ParameterPart

__all__ = ["ExpertShape", "expert_shape", "linear_shape", "parameter_elements", "round_up", "stage_layers"]

ExpertShape = tuple[int, int, int]
"""Experts on this rank, hidden size, intermediate size on this rank."""


def round_up(value: int, step: int) -> int:
    """``value`` rounded up to a multiple of ``step``."""
    return -(-value // step) * step


def shard_rows(shard: LinearShard, ranks: int) -> int:
    """Rows of one shard on a rank that splits columns ``ranks`` ways."""
    if shard.kv_heads is None:
        return -(-shard.out_features // ranks)
    return shard.out_features // shard.kv_heads * max(1, shard.kv_heads // ranks)


def linear_shape(linear: LinearPart, ranks: int) -> tuple[int, int]:
    """(rows, columns) of a Linear's weight on one rank."""
    if linear.split == "column":
        return sum(shard_rows(shard, ranks) for shard in linear.shards), linear.in_features
    if linear.split == "row":
        return linear.out_features, -(-linear.in_features // ranks)
    return linear.out_features, linear.in_features


def expert_shape(experts: ExpertsPart, ranks: int, expert_ranks: int) -> ExpertShape:
    """What a rank holds: whole experts when ``expert_ranks`` > 1, else a slice of every expert."""
    if expert_ranks > 1:
        return -(-experts.num_experts // expert_ranks), experts.hidden_size, experts.intermediate_size
    return experts.num_experts, experts.hidden_size, -(-experts.intermediate_size // ranks)


def parameter_elements(parameter: ParameterPart, ranks: int) -> int:
    """Elements of a parameter on one rank."""
    elements = 1
    for dimension, extent in enumerate(parameter.shape):
        if dimension == parameter.split_dim:
            elements *= -(-round_up(extent, parameter.pad_to) // ranks)
        else:
            elements *= extent
    return elements


def stage_layers(num_layers: int, stages: int) -> tuple[range, ...]:
    """Layers of each pipeline stage (distributed/utils.py get_pp_indices): extras go to the middle."""
    counts = [num_layers // stages] * stages
    for step in range(2, num_layers % stages + 2):
        counts[-step] += 1
    starts = [sum(counts[:index]) for index in range(stages)]
    return tuple(range(start, start + count) for start, count in zip(starts, counts, strict=True))
