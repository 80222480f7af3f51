"""Pure. A config's quantization_config as facts, and whether it covers a given module.

The mask is read as the quantiser wrote it: exact names, dotted parts of names, ``*`` wildcards and
``re:`` expressions; nothing is taken for granted beyond it. What engines leave alone whatever the
config says (embeddings, norms, routers) is not Linear here and never asked about.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from functools import lru_cache

from trimtab.core.model_facts import QuantFacts, QuantFormat, QuantScheme
from trimtab.errors import MissingFactError
from trimtab.planner.config_reader import ConfigReader
from trimtab.planner.mask_expression import check_mask, compile_expression, match_wildcard

__all__ = ["decode_quantization", "scheme_of"]

_EXAMPLES = "fp8, awq, gptq, compressed-tensors, modelopt, mxfp4"


def decode_quantization(reader: ConfigReader | None) -> QuantFacts | None:
    """The facts of a ``quantization_config`` block; None without one.

    MissingFactError names a method whose layout isn't known; StackFileError a mask that cannot be matched.
    """
    if reader is None:
        return None
    method = reader.text("quant_method").lower().replace("_", "-")
    decoder = _DECODERS.get("modelopt" if method.startswith("modelopt") else method)
    if decoder is not None:
        facts = decoder(reader)
        check_mask((*facts.ignored, *(target for target, _ in facts.targets)), where=reader.where)
        return facts
    raise MissingFactError(
        f"{reader.where}: quantisation method {method or 'without a name'!r} isn't known, "
        f"so the size of its tensors cannot be computed",
        hint=f"known methods: {_EXAMPLES}; a folder with the safetensors files can be measured instead",
    )


def _decode_fp8(reader: ConfigReader) -> QuantFacts:
    block = reader.raw("weight_block_size")
    is_static = reader.text("activation_scheme", default="dynamic") == "static"
    ignored = (*reader.texts("modules_to_not_convert", "ignored_layers"), "lm_head")
    if block is None:
        scheme = QuantScheme(format="fp8_tensor", bits=8, has_static_activation=is_static)
        return QuantFacts(method="fp8", scheme=scheme, ignored=ignored)
    if not (isinstance(block, list) and len(block) == 2 and all(type(n) is int and n > 0 for n in block)):
        raise reader.refuse("weight_block_size", "two positive whole numbers")
    scheme = QuantScheme(format="fp8_block", bits=8, block_shape=(block[0], block[1]))
    return QuantFacts(method="fp8", scheme=scheme, ignored=ignored)


def _decode_mxfp4(reader: ConfigReader) -> QuantFacts:
    return QuantFacts(
        method="mxfp4",
        scheme=QuantScheme(format="mxfp4", bits=4, group_size=32, is_weight_only=True),
        ignored=reader.texts("modules_to_not_convert"),
    )


def _decode_awq(reader: ConfigReader) -> QuantFacts:
    scheme = QuantScheme(
        format="awq",
        bits=_bits(reader, "bits", "w_bit"),
        group_size=_group_size(reader, "group_size", "q_group_size"),
        is_symmetric=not reader.flag("zero_point", default=True),
        is_weight_only=True,
    )
    ignored = reader.texts("modules_to_not_convert") + _spared_head(reader)
    return QuantFacts(method="awq", scheme=scheme, ignored=ignored)


def _bits(reader: ConfigReader, *keys: str, default: int | None = None) -> int:
    """Bits per weight: 4 or 8, the widths that pack evenly into 32."""
    bits = reader.count(*keys, default=default)
    if bits not in (4, 8):
        raise MissingFactError(
            f"{reader.where}: {reader.path}{keys[0]} is {bits}, and only 4 and 8 bits are known here",
            hint="a folder with the safetensors files can be measured instead",
        )
    return bits


def _group_size(reader: ConfigReader, *keys: str, default: int | None = None) -> int:
    """Inputs per scale: a positive number, or -1 for a whole row."""
    size = reader.count(*keys, default=default, minimum=-1)
    if size == 0:
        raise reader.refuse(
            next((key for key in keys if reader.has(key)), keys[0]), "-1 or a positive number"
        )
    return size


def _spared_head(reader: ConfigReader) -> tuple[str, ...]:
    """AWQ and GPTQ leave the head alone unless their config says ``lm_head: true``."""
    return () if reader.flag("lm_head", default=False) else ("lm_head",)


def _decode_gptq(reader: ConfigReader) -> QuantFacts:
    scheme = QuantScheme(
        format="gptq",
        bits=_bits(reader, "bits"),
        group_size=_group_size(reader, "group_size"),
        is_symmetric=reader.flag("sym", default=True),
        has_act_order=reader.flag("desc_act", default=False),
        is_weight_only=True,
    )
    dynamic = reader.child("dynamic")
    rules = tuple(dynamic.mapping) if dynamic else ()
    ignored = tuple(f"re:{rule[2:]}" for rule in rules if rule.startswith("-:"))
    ignored += reader.texts("modules_to_not_convert") + _spared_head(reader)
    targets = tuple(
        (f"re:{rule.removeprefix('+:')}", _overridden(scheme, dynamic.child(rule)))
        for rule in rules
        if dynamic and not rule.startswith("-:")
    )
    if targets:
        targets += (("Linear", scheme),)
    return QuantFacts(method="gptq", scheme=scheme, targets=targets, ignored=ignored)


def _overridden(scheme: QuantScheme, rule: ConfigReader | None) -> QuantScheme:
    if rule is None:
        return scheme
    return QuantScheme(
        format=scheme.format,
        bits=_bits(rule, "bits", default=scheme.bits),
        group_size=_group_size(rule, "group_size", default=scheme.group_size),
        is_symmetric=rule.flag("sym", default=scheme.is_symmetric),
        has_act_order=rule.flag("desc_act", default=scheme.has_act_order),
        is_weight_only=True,
    )


def _decode_compressed_tensors(reader: ConfigReader) -> QuantFacts:
    groups = reader.child("config_groups")
    if groups is None or not groups.mapping:
        raise reader.missing("config_groups")
    targets: list[tuple[str, QuantScheme]] = []
    for name in groups.mapping:
        group = groups.child(name)
        if group is None:
            continue
        scheme = _decode_group(group, reader.text("format"))
        targets += [(target, scheme) for target in group.texts("targets") or ("Linear",)]
    if not targets:
        raise reader.missing("config_groups")
    kv_scheme = reader.child("kv_cache_scheme")
    return QuantFacts(
        method="compressed-tensors",
        scheme=targets[0][1],
        targets=tuple(targets),
        ignored=reader.texts("ignore"),
        kv_cache_format="fp8" if kv_scheme is not None and kv_scheme.text("type") == "float" else None,
    )


def _decode_group(group: ConfigReader, format_above: str) -> QuantScheme:
    weights = group.child("weights")
    if weights is None:
        raise group.missing("weights")
    bits = weights.count("num_bits")
    kind = weights.text("type", default="int")
    strategy = weights.text("strategy", default="tensor")
    activations = group.child("input_activations")
    layout = group.text("format") or format_above
    is_static = activations is not None and not activations.flag("dynamic", default=False)
    plain = activations is None
    if kind == "float" and bits == 4:
        group_size = weights.count("group_size", default=16)
        fp4: QuantFormat = "nvfp4" if group_size == 16 else "mxfp4"
        return QuantScheme(
            format=fp4,
            group_size=group_size,
            has_static_activation=is_static,
            bits=bits,
            is_weight_only=plain,
        )
    if kind == "float" and strategy == "block":
        block = weights.raw("block_structure")
        shape = tuple(block) if isinstance(block, list) and len(block) == 2 else (128, 128)
        return QuantScheme(
            format="fp8_block", block_shape=(int(shape[0]), int(shape[1])), bits=bits, is_weight_only=plain
        )
    if kind == "float":
        rows = -1 if strategy == "channel" else 0
        return QuantScheme(
            format="fp8_tensor",
            group_size=rows,
            has_static_activation=is_static,
            bits=bits,
            is_weight_only=plain,
        )
    if bits == 4 and activations is None and layout in {"pack-quantized", ""}:
        return QuantScheme(
            format="compressed_tensors_int4",
            group_size=-1 if strategy == "channel" else _group_size(weights, "group_size"),
            is_symmetric=weights.flag("symmetric", default=True),
            has_act_order=weights.text("actorder") == "group",
            bits=bits,
            is_weight_only=plain,
        )
    raise MissingFactError(
        f"{group.where}: {group.path}weights with type {kind}, {bits} bits, layout {layout or 'none'!r} "
        f"isn't known, so the size of its tensors cannot be computed",
        hint=f"known methods: {_EXAMPLES}; a folder with the safetensors files can be measured instead",
    )


def _decode_modelopt(reader: ConfigReader) -> QuantFacts:
    inner = reader.child("quantization") or reader
    algorithm = inner.text("quant_algo").upper()
    kv_algorithm = inner.text("kv_cache_quant_algo").upper()
    ignored = inner.texts("ignore", "exclude_modules")
    if algorithm == "FP8":
        scheme = QuantScheme(format="fp8_tensor", bits=8, has_static_activation=True)
    elif algorithm == "NVFP4":
        group_size = inner.count("group_size", default=16)
        scheme = QuantScheme(format="nvfp4", bits=4, group_size=group_size, has_static_activation=True)
    else:
        raise MissingFactError(
            f"{reader.where}: {reader.path}quant_algo {algorithm or 'none'!r} isn't known, "
            f"so the size of its tensors cannot be computed",
            hint="known for modelopt: FP8 and NVFP4",
        )
    return QuantFacts(
        method="modelopt",
        scheme=scheme,
        ignored=ignored,
        kv_cache_format="fp8" if kv_algorithm == "FP8" else None,
    )


_DECODERS: dict[str, Callable[[ConfigReader], QuantFacts]] = {
    "fp8": _decode_fp8,
    "awq": _decode_awq,
    "gptq": _decode_gptq,
    "compressed-tensors": _decode_compressed_tensors,
    "modelopt": _decode_modelopt,
    "mxfp4": _decode_mxfp4,
}


def scheme_of(quant: QuantFacts | None, name: str) -> QuantScheme | None:
    """The scheme that stores the Linear called ``name`` in the checkpoint; None when unquantised."""
    if quant is None:
        return None
    plain = name.replace(".language_model.", ".")
    exact, expressions = _split_mask(quant.ignored)
    if not exact.isdisjoint(_prefixes(plain)):
        return None
    if any(expression.match(name) or expression.match(plain) for expression in expressions):
        return None
    if quant.method != "compressed-tensors" and _is_named(quant, plain):
        return None
    return _targeted(quant, name, plain)


def _targeted(quant: QuantFacts, name: str, plain: str) -> QuantScheme | None:
    if not quant.targets:
        return quant.scheme
    fallback = None
    for target, scheme in quant.targets:
        if target == "Linear":
            fallback = fallback or scheme
        elif target.startswith("re:"):
            expression = compile_expression(target[3:])
            if expression.match(name) or expression.match(plain):
                return scheme
        elif target.replace(".language_model.", ".") == plain:
            return scheme
    return fallback


@lru_cache(maxsize=64)
def _split_mask(ignored: tuple[str, ...]) -> tuple[frozenset[str], tuple[re.Pattern[str], ...]]:
    exact = {entry for entry in ignored if not entry.startswith("re:")}
    exact = {entry.replace(".language_model.", ".") for entry in exact}
    return frozenset(exact), tuple(
        compile_expression(entry[3:]) for entry in ignored if entry.startswith("re:")
    )


def _prefixes(name: str) -> list[str]:
    """The name, every module above it, and the same counted from its ``layers`` part."""
    parts = name.split(".")
    starts = {0, parts.index("layers")} if "layers" in parts else {0}
    return [".".join(parts[start:end]) for start in starts for end in range(start + 1, len(parts) + 1)]


@lru_cache(maxsize=64)
def _short_entries(ignored: tuple[str, ...]) -> tuple[str, ...]:
    """Entries that are not plain names of one numbered layer's module; those are met exactly."""
    return tuple(
        entry.replace(".language_model.", ".")
        for entry in ignored
        if not entry.startswith("re:") and ("*" in entry or not re.search(r"\.\d+\.", entry))
    )


def _is_named(quant: QuantFacts, name: str) -> bool:
    """Some entry names the module: by substring for AWQ and GPTQ, by whole dotted parts elsewhere."""
    entries = _short_entries(quant.ignored)
    if quant.method in {"awq", "gptq"}:
        return any(entry in name for entry in entries)
    return any(_dotted(entry, name) for entry in entries)


def _dotted(entry: str, name: str) -> bool:
    """``entry`` is a run of whole dotted parts of ``name``; ``*`` stands for anything."""
    if "*" in entry:
        return match_wildcard(entry, name)
    return f".{entry}." in f".{name}."
