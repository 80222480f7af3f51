"""Pure. Every setting of a llama.cpp plan with its origin and the reason for its value."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from trimtab.core.checkpoint import GgufCheckpoint
from trimtab.core.hardware import Host
from trimtab.core.plan import Setting, SettingOrigin
from trimtab.core.stack import ModelRequest, SettingValue
from trimtab.engines.llama_cpp_settings import SETTINGS
from trimtab.planner.llama_cpp_choice import Choice
from trimtab.units import format_bytes

__all__ = ["explain_settings"]

# Connections that may be served at once beside the slots' own: health, metrics, queued requests.
_SPARE_HTTP_THREADS: Final = 8


def explain_settings(
    request: ModelRequest, checkpoint: GgufCheckpoint, host: Host, choice: Choice
) -> tuple[Setting, ...]:
    """The settings in command order; pinned ones keep their value."""
    pins = dict(choice.pins.values)
    rows = {row.name: row for row in _rows(request, checkpoint, host, choice)}
    settings: list[Setting] = []
    for name in SETTINGS:
        row = rows.get(name)
        if name in pins:
            settings.append(Setting(name=name, value=pins[name], origin="pinned", reason=_pin_reason(row)))
        elif row is not None:
            settings.append(Setting(name=name, value=row.value, origin=row.origin, reason=row.reason))
    return tuple(settings)


@dataclass(frozen=True, slots=True)
class _Row:
    name: str
    value: SettingValue
    origin: SettingOrigin
    reason: str


def _pin_reason(row: _Row | None) -> str:
    return "" if row is None else f"without the pin: {row.value}"


def _rows(request: ModelRequest, checkpoint: GgufCheckpoint, host: Host, choice: Choice) -> tuple[_Row, ...]:
    shape, threads = choice.shape, host.physical_cores
    one_per_core = f"one per physical core; this machine offers {host.physical_cores}"
    rows = [
        _context_row(request, checkpoint, choice),
        _slots_row(request, choice),
        _Row("n_threads", threads, "measured", one_per_core),
        _Row("n_threads_batch", threads, "measured", one_per_core),
        _Row(
            "n_threads_http",
            shape.num_slots + _SPARE_HTTP_THREADS,
            "chosen",
            f"one per slot and {_SPARE_HTTP_THREADS} for what is queued or asks for health",
        ),
        *_batch_rows(choice),
        _Row("cache_type_k", shape.cache_type_k, "default", "full precision of llama.cpp's default"),
        _Row("cache_type_v", shape.cache_type_v, "default", "full precision of llama.cpp's default"),
        _Row("flash_attn", "auto", "default", "llama.cpp switches it on wherever the model allows"),
        _prompt_cache_row(choice),
        _Row(
            "n_ctx_checkpoints",
            shape.context_checkpoints,
            "chosen",
            "states of the sliding window kept per slot"
            if shape.context_checkpoints
            else "no sliding window",
        ),
        _load_mode_row(choice),
    ]
    if shape.embeddings:
        rows.append(_Row("embeddings", True, "chosen", "the file is an embedding model"))
    if shape.embeddings and not checkpoint.has_pooling:
        reason = "the file names no pooling, without which llama.cpp embeds no text; mean is the usual one"
        rows.append(_Row("pooling", "mean", "chosen", reason))
    return tuple(rows)


def _context_row(request: ModelRequest, checkpoint: GgufCheckpoint, choice: Choice) -> _Row:
    shape = choice.shape
    each = f"{choice.max_model_len:,} tokens in each of {shape.num_slots} slots"
    if request.context is not None:
        rounded = (
            "" if request.context == choice.max_model_len else f"; {request.context:,} asked, rounded up"
        )
        return _Row("n_ctx", shape.pool_tokens, "asked", each + rounded)
    if choice.is_context_shortened:
        return _Row(
            "n_ctx", shape.pool_tokens, "chosen", f"{each}, the most that leaves room for other programs"
        )
    if choice.max_model_len == checkpoint.trained_context_tokens:
        return _Row("n_ctx", shape.pool_tokens, "chosen", f"{each}: all that the model is trained for")
    return _Row("n_ctx", shape.pool_tokens, "chosen", each)


def _slots_row(request: ModelRequest, choice: Choice) -> _Row:
    slots = choice.shape.num_slots
    at_once = "1 request at a time" if slots == 1 else f"{slots} requests at once"
    if request.concurrency is not None:
        return _Row("n_parallel", slots, "asked", f"{at_once}; more wait in a queue")
    share = "has the cores" if slots == 1 else "share the cores"
    return _Row("n_parallel", slots, "chosen", f"{at_once} {share}; more wait in a queue")


def _batch_rows(choice: Choice) -> tuple[_Row, _Row]:
    ubatch = choice.shape.ubatch_tokens
    if choice.shape.embeddings:
        reason = "an input to embed is computed in one piece"
    else:
        reason = "while one batch of a prompt is computed, the other streams and a cancellation wait"
    batch = max(ubatch, choice.pins.integer("n_batch") or ubatch)
    return (
        _Row("n_batch", batch, "chosen", reason),
        _Row("n_ubatch", ubatch, "chosen" if choice.shape.embeddings else "default", "computed at once"),
    )


def _prompt_cache_row(choice: Choice) -> _Row:
    size = choice.prompt_cache_mib
    if size:
        budget = choice.budget
        left = budget.available_bytes - budget.requested_bytes - budget.error_bytes
        reason = f"old prompts, so that a chat goes on without computing again; {format_bytes(left)} are left"
    else:
        reason = "too little RAM is left to remember old prompts"
    return _Row("cache_ram_mib", size, "chosen", reason)


def _load_mode_row(choice: Choice) -> _Row:
    if choice.shape.mmap:
        return _Row("load_mode", "mmap", "default", "weights stay in the page cache and load at once")
    reason = "llama.cpp repacks these weights for the CPU; a mapped file would hold them in RAM twice"
    return _Row("load_mode", "none", "chosen", reason)
