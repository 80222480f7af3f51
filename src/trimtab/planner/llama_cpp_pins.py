"""Pure. What a request pins or asks of llama.cpp: each value checked, and the values against each other."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from trimtab.core.checkpoint import GgufCheckpoint
from trimtab.core.stack import ModelRequest, SettingValue
from trimtab.engines.llama_cpp_settings import check_setting
from trimtab.errors import StackFileError
from trimtab.planner.llama_cpp_memory import pad_tokens

__all__ = ["DEFAULT_SLOTS", "Pins", "check_request"]

# What is planned where neither concurrency nor n_parallel is given. Fewer leave a chat waiting behind
# a browser's title request (14.9 s on one slot, measured); on two cores more only slow each other.
DEFAULT_SLOTS: Final = 4
# LLAMA_MAX_SEQ of llama.cpp.
_MAX_SLOTS: Final = 256
# Positions are 32-bit integers there (llama_pos in llama.h).
_MAX_TOKENS: Final = 2**31 - 1
_UNQUANTISED: Final = ("f32", "f16", "bf16")


@dataclass(frozen=True, slots=True, kw_only=True)
class Pins:
    """The pinned settings of one request, checked; ``trained_tokens`` includes a pinned YaRN factor."""

    values: tuple[tuple[str, SettingValue], ...]
    trained_tokens: int

    def value(self, name: str) -> SettingValue:
        """The pinned value, None when the name is not pinned."""
        return dict(self.values).get(name)

    def integer(self, name: str) -> int | None:
        """The pinned whole number, None when the name is not pinned."""
        value = self.value(name)
        return value if isinstance(value, int) and not isinstance(value, bool) else None

    def is_on(self, name: str, *, default: bool = False) -> bool:
        """The pinned switch, or ``default``."""
        value = self.value(name)
        return value if isinstance(value, bool) else default

    def word(self, name: str, default: str) -> str:
        """The pinned word, or ``default``."""
        value = self.value(name)
        return value if isinstance(value, str) else default


def check_request(request: ModelRequest, checkpoint: GgufCheckpoint) -> Pins:
    """The request's pins; StackFileError when a value is illegal or two of them contradict."""
    values = tuple(
        (name, check_setting(name, value, model=request.name))
        for name, value in request.engine_args
        if value is not None
    )
    pins = Pins(values=values, trained_tokens=checkpoint.trained_context_tokens)
    pins = Pins(values=values, trained_tokens=_extended_tokens(pins, request.name))
    _check_positive(request)
    _check_slots(request, pins)
    _check_context(request, pins)
    _check_batch(request, pins)
    _check_cache_types(request, checkpoint, pins)
    return pins


def _extended_tokens(pins: Pins, model: str) -> int:
    """The trained length, stretched by a pinned YaRN scale.

    llama.cpp caps each slot at the trained length unless YaRN is on; linear scaling and a changed
    base leave the cap (measured with xllamacpp 2026.10.11549). StackFileError beyond what it can count.
    """
    scale = pins.value("rope_freq_scale")
    if pins.value("rope_scaling_type") != "yarn" or not isinstance(scale, int | float) or not 0 < scale < 1:
        return pins.trained_tokens
    if pins.trained_tokens > _MAX_TOKENS * scale:
        raise StackFileError(
            f"models.{model}.engine_args.rope_freq_scale: {scale:g} stretches the {pins.trained_tokens:,}"
            f" tokens of training beyond the {_MAX_TOKENS:,} that llama.cpp counts",
            hint="write 1 / (wished length / trained length), for example 0.25 for four times the length",
        )
    return int(pins.trained_tokens / scale)


def _check_positive(request: ModelRequest) -> None:
    for key, value in (("context", request.context), ("concurrency", request.concurrency)):
        if value is not None and value < 1:
            raise StackFileError(f"models.{request.name}.{key}: {value} is not a positive number")
    if request.concurrency is not None and request.concurrency > _MAX_SLOTS:
        raise StackFileError(
            f"models.{request.name}.concurrency: {request.concurrency} is more than the {_MAX_SLOTS} slots"
            " that llama.cpp has"
        )


def _check_slots(request: ModelRequest, pins: Pins) -> None:
    pinned = pins.integer("n_parallel")
    if pinned is not None and request.concurrency is not None and pinned != request.concurrency:
        raise StackFileError(
            f"models.{request.name}: concurrency {request.concurrency} contradicts"
            f" engine_args.n_parallel {pinned}",
            hint="drop one of the two",
        )


def _check_context(request: ModelRequest, pins: Pins) -> None:
    where = f"models.{request.name}"
    trained = pins.trained_tokens
    if request.context is not None and request.context > trained:
        raise StackFileError(
            f"{where}.context: {request.context:,} tokens are more than the {trained:,}"
            " that the model is trained for",
            hint=_hint_longer(request.context, trained),
        )
    n_ctx = pins.integer("n_ctx")
    slots = pins.integer("n_parallel") or request.concurrency
    if n_ctx is None:
        return
    shared = pins.is_on("kv_unified")
    if request.context is not None:
        needed = pad_tokens(request.context) * (1 if shared else (slots or 1))
        if n_ctx < needed:
            raise StackFileError(
                f"{where}: engine_args.n_ctx {n_ctx:,} is shared by {slots or 1} slots and cannot hold"
                f" {request.context:,} tokens in each",
                hint=f"pin n_ctx={needed}, or drop it and let context and concurrency decide",
            )
    most = pad_tokens(trained) * (slots or DEFAULT_SLOTS)
    if n_ctx > most:
        raise StackFileError(
            f"{where}.engine_args.n_ctx: {n_ctx:,} tokens in {slots or DEFAULT_SLOTS} slots are more than the"
            f" {trained:,} per request the model is trained for",
            hint=f"pin n_ctx={most} or less",
        )


def _hint_longer(context: int, trained: int) -> str:
    scale = max(1, -(-context // trained))
    return (
        f"ask for {trained:,} or less, or stretch it with YaRN, at some loss of quality:"
        f" engine_args rope_scaling_type=yarn rope_freq_scale={1 / scale:.4g} yarn_orig_ctx={trained}"
    )


def _check_batch(request: ModelRequest, pins: Pins) -> None:
    batch, ubatch = pins.integer("n_batch"), pins.integer("n_ubatch")
    if batch is not None and ubatch is not None and ubatch > batch:
        raise StackFileError(
            f"models.{request.name}.engine_args.n_ubatch: {ubatch} is more than n_batch {batch},"
            " of which it is a part",
            hint=f"pin n_batch={ubatch} too",
        )


def _check_cache_types(request: ModelRequest, checkpoint: GgufCheckpoint, pins: Pins) -> None:
    where = f"models.{request.name}.engine_args"
    dims = (("cache_type_k", checkpoint.key_head_dim), ("cache_type_v", checkpoint.value_head_dim))
    for name, head_dim in dims:
        kind = pins.word(name, "f16")
        if kind not in _UNQUANTISED and head_dim % 32:
            raise StackFileError(
                f"{where}.{name}: {kind} packs 32 values together, and this model has heads of {head_dim}",
                hint=f"legal here: {', '.join(_UNQUANTISED)}",
            )
    v_type = pins.word("cache_type_v", "f16")
    if v_type not in _UNQUANTISED and pins.value("flash_attn") == "off":
        raise StackFileError(
            f"{where}: cache_type_v {v_type} needs flash attention, and flash_attn is off",
            hint="drop flash_attn, or pin cache_type_v=f16",
        )
