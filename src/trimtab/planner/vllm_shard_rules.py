"""Pure. Which tensor-parallel degrees a checkpoint allows: heads, FP8 blocks, int4 groups, Marlin tiles.

Rules as vLLM checks them while building layers (layers/linear.py, utils/fp8_utils.py
validate_fp8_block_shape, utils/marlin_utils.py, 0.17.1, 0.25.1 and 0.33.0). Modules that the
checkpoint skips carry no scheme, so no quantisation rule touches them.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

from trimtab.core.model_facts import ModelFacts
from trimtab.core.model_parts import ExpertsPart, LinearPart, ModelParts
from trimtab.planner.vllm_settings import VllmSettings
from trimtab.planner.vllm_shards import expert_shape, linear_shape, shard_rows
from trimtab.planner.vllm_versions import VersionLine

__all__ = ["Illegality", "check_sharding", "largest_legal_tensor_parallel"]

_MARLIN_TILE_ROWS = 64
_MARLIN_TILE_COLUMNS = 128
_LARGEST_TENSOR_PARALLEL = 64


@dataclass(frozen=True, slots=True, kw_only=True)
class Illegality:
    """Why the engine would refuse: a stable code, the argument, a sentence with the numbers.

    ``largest_legal`` is the largest value of ``setting`` below the wished one that this rule and
    its siblings allow; None where no value would help.
    """

    code: str
    setting: str
    text: str
    largest_legal: int | str | None = None


def check_sharding(
    facts: ModelFacts, parts: ModelParts, settings: VllmSettings, line: VersionLine
) -> tuple[Illegality, ...]:
    """Every rule that this tensor-parallel degree breaks, each with the largest degree that breaks none."""
    problems = tuple(_problems(facts, parts, settings, line))
    if not problems:
        return ()
    largest = largest_legal_tensor_parallel(facts, parts, settings, line)
    return tuple(
        Illegality(code=code, setting="tensor_parallel_size", text=text, largest_legal=largest)
        for code, text in problems
    )


def largest_legal_tensor_parallel(
    facts: ModelFacts, parts: ModelParts, settings: VllmSettings, line: VersionLine
) -> int | None:
    """The largest legal degree up to the wished one; None when not even one card would do."""
    for degree in range(min(settings.tensor_parallel_size, _LARGEST_TENSOR_PARALLEL), 0, -1):
        tried = replace(settings, tensor_parallel_size=degree)
        if next(_problems(facts, parts, tried, line), None) is None:
            return degree
    return None


def _problems(
    facts: ModelFacts, parts: ModelParts, settings: VllmSettings, line: VersionLine
) -> Iterator[tuple[str, str]]:
    degree = settings.tensor_parallel_size
    yield from _head_problems(facts, degree)
    yield from _tower_problems(facts, settings)
    seen: set[str] = set()
    for part in parts.linears:
        if part.scheme is None or (part.part == "mtp" and settings.num_speculative_tokens == 0):
            continue
        if part.part == "vision" and settings.mm_limits_are_zero:
            continue
        for code, text in _linear_problems(part, degree, line):
            if code not in seen:
                seen.add(code)
                yield code, text
    for experts in parts.experts:
        for code, text in _expert_problems(experts, settings):
            if code not in seen:
                seen.add(code)
                yield code, text


def _head_problems(facts: ModelFacts, degree: int) -> Iterator[tuple[str, str]]:
    layers = tuple({id(layer): layer for layer in facts.layers}.values())
    for layer in layers:
        if layer.num_heads and layer.num_heads % degree:
            yield (
                "attention_heads",
                f"{layer.num_heads} attention heads cannot be divided over {degree} cards",
            )
            break
    for layer in layers:
        heads = layer.num_kv_heads
        if layer.kind != "mla" and heads and heads % degree and degree % heads:
            yield (
                "kv_heads",
                f"{heads} KV heads can neither be divided over nor copied to {degree} cards evenly",
            )
            break
    for layer in layers:
        for name, heads in (
            ("key", layer.linear_num_key_heads),
            ("value", layer.linear_num_value_heads),
        ):
            if heads % degree:
                yield (
                    "linear_attention_heads",
                    f"{heads} linear-attention {name} heads cannot be divided over {degree} cards",
                )
                return


def _tower_problems(facts: ModelFacts, settings: VllmSettings) -> Iterator[tuple[str, str]]:
    vision, degree = facts.vision, settings.tensor_parallel_size
    if vision is None or settings.mm_limits_are_zero or settings.mm_encoder_tp_mode == "data":
        return
    for name, size in (("heads", vision.num_heads), ("feed-forward columns", vision.intermediate_size)):
        if size % degree:
            text = f"the vision tower's {size} {name} cannot be divided over {degree} cards"
            yield "vision_tower", f"{text}; language_model_only leaves it out"
            return


def _linear_problems(part: LinearPart, degree: int, line: VersionLine) -> Iterator[tuple[str, str]]:
    scheme = part.scheme
    if scheme is None:
        return
    if scheme.block_shape is not None:
        yield from _block_problems(part, degree, scheme.block_shape)
    elif scheme.bits == 4 and scheme.group_size > 0:
        yield from _group_problems(part, degree, line)


def _block_problems(part: LinearPart, degree: int, block: tuple[int, int]) -> Iterator[tuple[str, str]]:
    name = part.name.rpartition(".")[2]
    if part.split == "row" and degree > 1:
        columns = part.in_features // degree
        if columns % block[1]:
            yield (
                "fp8_block",
                (
                    f"{name} has {part.in_features} inputs, {columns} per card at TP{degree}: "
                    f"not a multiple of the FP8 block of {block[1]}"
                ),
            )
    if part.split != "column" or (degree == 1 and len(part.shards) == 1):
        return
    shards = part.shards if degree > 1 else part.shards[:-1]
    for shard in shards:
        rows = shard_rows(shard, degree)
        if rows % block[0]:
            yield (
                "fp8_block",
                (
                    f"{shard.name.rpartition('.')[2]} has {shard.out_features} outputs, {rows} per card at "
                    f"TP{degree}: not a multiple of the FP8 block of {block[0]}"
                ),
            )
            return


def _group_problems(part: LinearPart, degree: int, line: VersionLine) -> Iterator[tuple[str, str]]:
    scheme = part.scheme
    if scheme is None:
        return
    name = part.name.rpartition(".")[2]
    rows, columns = linear_shape(part, degree)
    size = scheme.group_size
    if size < part.in_features and columns % size:
        groups = part.in_features / size
        yield (
            "int4_group",
            (
                f"{name} has {part.in_features} inputs = {groups:g} groups of {size}, which "
                f"{degree} cards cannot share evenly"
            ),
        )
        return
    is_strict = scheme.has_act_order or line.number < (0, 20)
    if is_strict and (columns % _MARLIN_TILE_COLUMNS or rows % _MARLIN_TILE_ROWS):
        yield (
            "marlin_tile",
            (
                f"{name} is {rows} x {columns} per card at TP{degree}; Marlin needs multiples of "
                f"{_MARLIN_TILE_ROWS} and {_MARLIN_TILE_COLUMNS} in vLLM {line.version}"
            ),
        )


def _expert_problems(experts: ExpertsPart, settings: VllmSettings) -> Iterator[tuple[str, str]]:
    """Experts cut over cards; with expert parallelism they stay whole."""
    scheme, degree = experts.scheme, settings.tensor_parallel_size
    if scheme is None or settings.expert_parallel_size > 1:
        return
    _, _, inner = expert_shape(experts, degree, 1)
    whole = experts.intermediate_size
    if scheme.block_shape is not None and (inner % scheme.block_shape[0] or whole % degree):
        yield (
            "fp8_block",
            (
                f"experts are {whole} wide, {inner} per card at TP{degree}: not a multiple of "
                f"the FP8 block of {scheme.block_shape[0]}; enable_expert_parallel keeps experts whole"
            ),
        )
    elif scheme.bits == 4 and scheme.group_size > 0 and (inner % scheme.group_size or whole % degree):
        yield (
            "int4_group",
            (
                f"experts are {whole} wide, {inner} per card at TP{degree}: a group of {scheme.group_size} "
                "would straddle cards; enable_expert_parallel keeps experts whole"
            ),
        )
