"""Pure. ModelParts → the exact tensor list of the checkpoint, folded by name pattern.

Layouts per quantisation method are those of the published files: block FP8 keeps BF16
``weight_scale_inv``; pack-quantized int4 keeps ``weight_packed`` I32, ``weight_scale`` and
``weight_shape``; AWQ packs along the output, GPTQ along the input; NVFP4 packs two values per byte
with FP8 scales per 16; GPT-OSS's MXFP4 stacks its experts.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from trimtab.core.model_facts import QuantScheme, TensorFact, TensorPart
from trimtab.core.model_parts import ExpertsPart, LinearPart, ModelParts, ParameterPart

__all__ = ["count_tensors", "render_inventory", "sum_bytes"]

_SAFETENSORS = {"bfloat16": "BF16", "float16": "F16", "float32": "F32"}

_Stored = tuple[str, tuple[int, ...], str]
"""Suffix, shape and safetensors dtype of one stored tensor."""


def render_inventory(
    parts: ModelParts, *, dtype: str, has_stacked_experts: bool = False
) -> tuple[TensorFact, ...]:
    """Every tensor of the checkpoint; ``dtype`` is the config's.

    ``has_stacked_experts`` lists unquantised experts as one gate_up_proj and one down_proj per
    layer, as Qwen3.5's BF16 repositories store them; bytes are the same either way.
    """
    stored = _SAFETENSORS[dtype]
    tensors: list[TensorFact] = [_parameter(part) for part in parts.parameters]
    for linear in parts.linears:
        tensors += _linear(linear, stored)
    for experts in parts.experts:
        if experts.scheme is not None and experts.scheme.format == "mxfp4":
            tensors += _mxfp4_experts(experts, stored)
        elif experts.scheme is None and has_stacked_experts:
            tensors += _stacked_experts(experts, stored)
        else:
            tensors += _single_experts(experts, stored)
    return _folded(tensors)


def _folded(tensors: list[TensorFact]) -> tuple[TensorFact, ...]:
    """Equal patterns of different layer kinds become one entry."""
    counts: dict[tuple[str, tuple[int, ...], str, TensorPart], int] = {}
    for tensor in tensors:
        key = (tensor.name, tensor.shape, tensor.dtype, tensor.part)
        counts[key] = counts.get(key, 0) + tensor.count
    return tuple(
        TensorFact(name=name, shape=shape, dtype=dtype, part=part, count=count)
        for (name, shape, dtype, part), count in counts.items()
    )


def count_tensors(tensors: Iterable[TensorFact]) -> int:
    """How many tensors an inventory stands for."""
    return sum(tensor.count for tensor in tensors)


def sum_bytes(tensors: Iterable[TensorFact], *parts: TensorPart) -> int:
    """Bytes of all tensors, or of the ``parts`` named."""
    return sum(tensor.nbytes for tensor in tensors if not parts or tensor.part in parts)


def _parameter(part: ParameterPart) -> TensorFact:
    return TensorFact(
        name=part.name,
        shape=part.shape,
        dtype=_SAFETENSORS[part.dtype],
        count=len(part.layers),
        part=part.part,
    )


def _linear(linear: LinearPart, dtype: str) -> Iterator[TensorFact]:
    count = len(linear.layers)
    for shard in linear.shards:
        for suffix, shape, kind in stored_tensors(
            linear.scheme, shard.out_features, linear.in_features, dtype
        ):
            yield TensorFact(
                name=f"{shard.name}.{suffix}", shape=shape, dtype=kind, count=count, part=linear.part
            )
        if linear.has_bias:
            yield TensorFact(
                name=f"{shard.name}.bias",
                shape=(shard.out_features,),
                dtype=dtype,
                count=count,
                part=linear.part,
            )


def _single_experts(experts: ExpertsPart, dtype: str) -> Iterator[TensorFact]:
    count = len(experts.layers) * experts.num_experts
    hidden, inner = experts.hidden_size, experts.intermediate_size
    for name, rows, columns in zip(
        experts.names, (inner, inner, hidden), (hidden, hidden, inner), strict=True
    ):
        for suffix, shape, kind in stored_tensors(experts.scheme, rows, columns, dtype):
            yield TensorFact(name=f"{name}.{suffix}", shape=shape, dtype=kind, count=count, part=experts.part)


def _stacked_experts(experts: ExpertsPart, dtype: str) -> Iterator[TensorFact]:
    total, hidden, inner = experts.num_experts, experts.hidden_size, experts.intermediate_size
    for name, shape in (("gate_up_proj", (total, 2 * inner, hidden)), ("down_proj", (total, hidden, inner))):
        yield TensorFact(
            name=f"{experts.name}.{name}",
            shape=shape,
            dtype=dtype,
            count=len(experts.layers),
            part=experts.part,
        )


def _mxfp4_experts(experts: ExpertsPart, dtype: str) -> Iterator[TensorFact]:
    total, hidden, inner = experts.num_experts, experts.hidden_size, experts.intermediate_size
    for name, rows, columns in (("gate_up_proj", 2 * inner, hidden), ("down_proj", hidden, inner)):
        groups = columns // 32
        stored: list[_Stored] = [
            ("blocks", (total, rows, groups, 16), "U8"),
            ("scales", (total, rows, groups), "U8"),
        ]
        if experts.has_bias:
            stored.append(("bias", (total, rows), dtype))
        for suffix, shape, kind in stored:
            yield TensorFact(
                name=f"{experts.name}.{name}_{suffix}",
                shape=shape,
                dtype=kind,
                count=len(experts.layers),
                part=experts.part,
            )


def stored_tensors(scheme: QuantScheme | None, rows: int, columns: int, dtype: str) -> list[_Stored]:
    """How a ``rows`` x ``columns`` Linear weight lies in the checkpoint under ``scheme``."""
    if scheme is None or scheme.format == "bf16":
        return [("weight", (rows, columns), dtype)]
    if scheme.format == "fp8_block":
        return _stored_fp8_block(scheme, rows, columns)
    if scheme.format == "fp8_tensor":
        return _stored_fp8_tensor(scheme, rows, columns, dtype)
    if scheme.format == "compressed_tensors_int4":
        return _stored_packed(scheme, rows, columns, dtype)
    if scheme.format in {"awq", "gptq"}:
        return _stored_awq_gptq(scheme, rows, columns)
    return _stored_fp4(scheme, rows, columns)


def _ceil(value: int, step: int) -> int:
    return -(-value // step)


def _stored_fp8_block(scheme: QuantScheme, rows: int, columns: int) -> list[_Stored]:
    block = scheme.block_shape or (128, 128)
    scales = (_ceil(rows, block[0]), _ceil(columns, block[1]))
    return [("weight", (rows, columns), "F8_E4M3"), ("weight_scale_inv", scales, "BF16")]


def _stored_fp8_tensor(scheme: QuantScheme, rows: int, columns: int, dtype: str) -> list[_Stored]:
    per_row = scheme.group_size == -1
    stored: list[_Stored] = [
        ("weight", (rows, columns), "F8_E4M3"),
        ("weight_scale", (rows, 1), dtype) if per_row else ("weight_scale", (), "F32"),
    ]
    if scheme.has_static_activation:
        stored.append(("input_scale", (), "F32"))
    return stored


def _stored_packed(scheme: QuantScheme, rows: int, columns: int, dtype: str) -> list[_Stored]:
    groups = 1 if scheme.group_size == -1 else columns // scheme.group_size
    stored: list[_Stored] = [
        ("weight_packed", (rows, _ceil(columns * scheme.bits, 32)), "I32"),
        ("weight_scale", (rows, groups), dtype),
        ("weight_shape", (2,), "I64"),
    ]
    if not scheme.is_symmetric:
        stored.append(("weight_zero_point", (_ceil(rows * scheme.bits, 32), groups), "I32"))
    if scheme.has_act_order:
        stored.append(("weight_g_idx", (columns,), "I32"))
    return stored


def _stored_awq_gptq(scheme: QuantScheme, rows: int, columns: int) -> list[_Stored]:
    packed = 32 // scheme.bits
    groups = 1 if scheme.group_size == -1 else _ceil(columns, scheme.group_size)
    is_awq = scheme.format == "awq"
    weight = (columns, rows // packed) if is_awq else (columns // packed, rows)
    stored: list[_Stored] = [("qweight", weight, "I32"), ("scales", (groups, rows), "F16")]
    stored.append(("qzeros", (groups, rows // packed), "I32"))
    if not is_awq:
        stored.append(("g_idx", (columns,), "I32"))
    return stored


def _stored_fp4(scheme: QuantScheme, rows: int, columns: int) -> list[_Stored]:
    groups = _ceil(columns, scheme.group_size or 16)
    if scheme.format == "mxfp4":
        return [("weight_packed", (rows, columns // 2), "U8"), ("weight_scale", (rows, groups), "U8")]
    stored: list[_Stored] = [
        ("weight", (rows, columns // 2), "U8"),
        ("weight_scale", (rows, groups), "F8_E4M3"),
        ("weight_scale_2", (), "F32"),
    ]
    if scheme.has_static_activation:
        stored.append(("input_scale", (), "F32"))
    return stored
