"""Pure. How many cards one replica spans and in which directions: TP × PP, expert parallel where needed."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Final

from trimtab.planner.vllm_legality import is_legal_sharding
from trimtab.planner.vllm_settings import VllmSettings
from trimtab.planner.vllm_shard_rules import Illegality, check_sharding
from trimtab.planner.vllm_wish import VllmWish

__all__ = ["Shape", "apply_shape", "enumerate_shapes", "legal_tensor_parallel_sizes"]

_MOST_DEGREES: Final = 16


@dataclass(frozen=True, slots=True, kw_only=True)
class Shape:
    """Degrees of parallelism of one replica; ``problems`` are what the checkpoint's shards forbid."""

    tensor_parallel_size: int
    pipeline_parallel_size: int = 1
    enable_expert_parallel: bool = False
    data_parallel_size: int = 1
    problems: tuple[Illegality, ...] = ()

    @property
    def is_legal(self) -> bool:
        """Whether the checkpoint can be cut like this."""
        return not self.problems

    @property
    def num_cards(self) -> int:
        """Cards of one replica."""
        return self.tensor_parallel_size * self.pipeline_parallel_size * self.data_parallel_size

    def __str__(self) -> str:
        """TP2×PP1, expert and data parallelism only where there is any."""
        text = f"TP{self.tensor_parallel_size}"
        text += f"×PP{self.pipeline_parallel_size}" if self.pipeline_parallel_size > 1 else ""
        text += f"×DP{self.data_parallel_size}" if self.data_parallel_size > 1 else ""
        return text + (" with expert parallel" if self.enable_expert_parallel else "")


def apply_shape(settings: VllmSettings, shape: Shape) -> VllmSettings:
    """``settings`` with the degrees of ``shape``."""
    return replace(
        settings,
        tensor_parallel_size=shape.tensor_parallel_size,
        pipeline_parallel_size=shape.pipeline_parallel_size,
        data_parallel_size=shape.data_parallel_size,
        enable_expert_parallel=shape.enable_expert_parallel,
    )


def enumerate_shapes(wish: VllmWish, base: VllmSettings, num_cards: int) -> Iterator[Shape]:
    """Shapes of up to ``num_cards`` cards, smallest first; pinned degrees are kept, legal or not.

    Experts are spread whole (expert parallel) only where cutting them is what makes a degree illegal.
    """
    pins = wish.pins
    tensor = base.tensor_parallel_size if "tensor_parallel_size" in pins else None
    pipeline = base.pipeline_parallel_size if "pipeline_parallel_size" in pins else None
    for cards in range(1, num_cards + 1):
        for degree in range(cards, 0, -1):
            if cards % degree or degree * (cards // degree) * base.data_parallel_size > num_cards:
                continue
            if tensor not in {None, degree} or pipeline not in {None, cards // degree}:
                continue
            yield from _variants(wish, base, degree, cards // degree)
    if tensor is not None or pipeline is not None or base.data_parallel_size > num_cards:
        wished = (tensor or 1) * (pipeline or 1) * base.data_parallel_size
        if wished > num_cards:
            yield from _variants(wish, base, tensor or 1, pipeline or 1)


def _variants(wish: VllmWish, base: VllmSettings, tensor: int, pipeline: int) -> Iterator[Shape]:
    """The degree as it is and, if experts are what forbids it, with experts kept whole."""
    shape = Shape(
        tensor_parallel_size=tensor,
        pipeline_parallel_size=pipeline,
        data_parallel_size=base.data_parallel_size,
        enable_expert_parallel=base.enable_expert_parallel,
    )
    problems = _problems(wish, base, shape)
    yield replace(shape, problems=problems)
    if not problems:
        return
    if wish.facts.is_moe and "enable_expert_parallel" not in wish.pins:
        spread = replace(shape, enable_expert_parallel=True)
        if not _problems(wish, base, spread):
            yield spread


def _problems(wish: VllmWish, base: VllmSettings, shape: Shape) -> tuple[Illegality, ...]:
    # The vision tower may be left out later, so it does not forbid a degree here.
    settings = replace(apply_shape(base, shape), mm_limits_are_zero=True)
    num_layers = wish.facts.num_layers
    if shape.pipeline_parallel_size > num_layers:
        return (
            Illegality(
                code="too_few_layers",
                setting="pipeline_parallel_size",
                text=f"{num_layers} layers cannot fill {shape.pipeline_parallel_size} stages",
                largest_legal=num_layers,
            ),
        )
    return check_sharding(wish.facts, wish.parts, settings, wish.version.line)


def legal_tensor_parallel_sizes(wish: VllmWish, settings: VllmSettings) -> tuple[int, ...]:
    """Degrees up to 16 that the checkpoint's shards allow with these settings."""
    line = wish.version.line
    return tuple(
        degree
        for degree in range(1, _MOST_DEGREES + 1)
        if is_legal_sharding(wish.facts, wish.parts, replace(settings, tensor_parallel_size=degree), line)
    )
