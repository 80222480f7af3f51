"""Pure. A model taken apart into what an engine allocates: Linears, experts, other parameters.

These sit between ``ModelFacts`` and bytes: the checkpoint's tensor list, the weights per rank and
the legality of a tensor-parallel degree are all read from the same parts.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, TypeAlias

from trimtab.core.model_facts import QuantScheme, TensorPart

__all__ = ["ExpertsPart", "LinearPart", "LinearShard", "ModelParts", "ParameterPart", "Split"]

Split: TypeAlias = Literal["column", "row", "replicated"]


@dataclass(frozen=True, slots=True, kw_only=True)
class LinearShard:
    """One Linear of the checkpoint inside a fused module.

    ``kv_heads`` is set on k and v: such heads are copied when there are fewer than ranks.
    """

    name: str
    out_features: int
    kv_heads: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class LinearPart:
    """One Linear as the engine builds it, in ``layers`` alike: ``shards`` are merged along the output.

    ``name`` is the engine's (qkv_proj, gate_up_proj …) with {l} for the layer; ``shards`` carry
    the checkpoint's full names, in order; ``scheme`` is None when unquantised; ``layers`` are the
    layer indices it stands for (one entry, 0, for parts outside the layers). Two parts of one name
    in one layer mean that the mask treats the shards differently, which engines refuse.
    ``position`` orders the parts of a layer as the engine builds them.
    """

    name: str
    in_features: int
    shards: tuple[LinearShard, ...]
    split: Split
    layers: tuple[int, ...]
    scheme: QuantScheme | None = None
    has_bias: bool = False
    part: TensorPart = "language"
    position: int = 0

    @property
    def out_features(self) -> int:
        """Rows of the fused weight."""
        return sum(shard.out_features for shard in self.shards)


@dataclass(frozen=True, slots=True, kw_only=True)
class ExpertsPart:
    """The routed experts of ``layers``: w13 is E x 2I x H, w2 is E x H x I.

    ``names`` are the checkpoint's gate, up and down names with {l} and {e}.
    """

    name: str
    names: tuple[str, str, str]
    num_experts: int
    hidden_size: int
    intermediate_size: int
    layers: tuple[int, ...]
    scheme: QuantScheme | None = None
    has_bias: bool = False
    part: TensorPart = "language"
    position: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class ParameterPart:
    """Any other parameter: norms, convolutions, embeddings. ``split_dim`` None means replicated.

    ``pad_to`` rounds the split extent up to a multiple before splitting (vocabulary: 64);
    ``engine_dtype`` is a config dtype name the engine holds it in (``dtype`` is the checkpoint's).
    """

    name: str
    shape: tuple[int, ...]
    dtype: str
    layers: tuple[int, ...]
    split_dim: int | None = None
    pad_to: int = 1
    engine_dtype: str | None = None
    part: TensorPart = "language"
    position: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelParts:
    """All parts of a model, in the order the engine builds them."""

    linears: tuple[LinearPart, ...]
    experts: tuple[ExpertsPart, ...]
    parameters: tuple[ParameterPart, ...]
