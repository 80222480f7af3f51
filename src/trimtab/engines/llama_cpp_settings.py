"""Pure. Which llama.cpp settings may be pinned: name, legal values and the flag that carries each.

Names are those of llama.cpp's ``common_params`` (xllamacpp's CommonParams); flags are spelled as
``llama-server`` spells them. The engine host maps them back, and a test compares the two tables.
"""

from __future__ import annotations

import difflib
from dataclasses import dataclass
from typing import Final, Literal, TypeAlias

from trimtab.core.stack import SettingValue
from trimtab.errors import StackFileError

__all__ = ["CACHE_TYPES", "SETTINGS", "SettingSpec", "check_setting"]

Kind: TypeAlias = Literal["integer", "number", "switch", "choice", "text"]

# Cache types of llama.cpp's --cache-type-k; those after bf16 are quantised in blocks of 32.
CACHE_TYPES: Final = ("f32", "f16", "bf16", "q8_0", "q5_1", "q5_0", "q4_1", "q4_0")


@dataclass(frozen=True, slots=True, kw_only=True)
class SettingSpec:
    """One setting; ``minimum`` and ``maximum`` are inclusive, ``choices`` are the legal words."""

    name: str
    flag: str
    kind: Kind
    minimum: float | None = None
    maximum: float | None = None
    choices: tuple[str, ...] = ()


def _integer(name: str, flag: str, minimum: int, maximum: int = 2**31 - 1) -> SettingSpec:
    return SettingSpec(name=name, flag=flag, kind="integer", minimum=minimum, maximum=maximum)


def _number(name: str, flag: str, minimum: float, maximum: float | None = None) -> SettingSpec:
    return SettingSpec(name=name, flag=flag, kind="number", minimum=minimum, maximum=maximum)


def _switch(name: str, flag: str) -> SettingSpec:
    return SettingSpec(name=name, flag=flag, kind="switch")


def _choice(name: str, flag: str, *choices: str) -> SettingSpec:
    return SettingSpec(name=name, flag=flag, kind="choice", choices=choices)


# In the order in which the command is written.
SETTINGS: Final[dict[str, SettingSpec]] = {
    spec.name: spec
    for spec in (
        _integer("n_ctx", "--ctx-size", 1),
        _integer("n_parallel", "--parallel", 1, 256),
        _integer("n_threads", "--threads", 1, 512),
        _integer("n_threads_batch", "--threads-batch", 1, 512),
        _integer("n_threads_http", "--threads-http", 1, 512),
        _integer("n_batch", "--batch-size", 1),
        _integer("n_ubatch", "--ubatch-size", 1),
        _choice("cache_type_k", "--cache-type-k", *CACHE_TYPES),
        _choice("cache_type_v", "--cache-type-v", *CACHE_TYPES),
        _choice("flash_attn", "--flash-attn", "auto", "on", "off"),
        _switch("kv_unified", "--kv-unified"),
        _switch("swa_full", "--swa-full"),
        _integer("cache_ram_mib", "--cache-ram", 0),
        _integer("n_ctx_checkpoints", "--ctx-checkpoints", 0, 1024),
        _integer("sse_ping_interval", "--sse-ping-interval", 1, 3600),
        _choice("load_mode", "--load-mode", "mmap", "none", "mlock"),
        _switch("repack", "--repack"),
        _switch("embeddings", "--embeddings"),
        _choice("pooling", "--pooling", "none", "mean", "cls", "last", "rank"),
        _choice("rope_scaling_type", "--rope-scaling", "none", "linear", "yarn"),
        _number("rope_freq_base", "--rope-freq-base", 0),
        _number("rope_freq_scale", "--rope-freq-scale", 0, 1),
        _integer("yarn_orig_ctx", "--yarn-orig-ctx", 0),
        _switch("context_shift", "--context-shift"),
        _number("slot_prompt_similarity", "--slot-prompt-similarity", 0, 1),
        _integer("n_cache_reuse", "--cache-reuse", 0),
        _choice("reasoning_format", "--reasoning-format", "none", "auto", "deepseek", "deepseek-legacy"),
        SettingSpec(name="chat_template", flag="--chat-template", kind="text"),
        _choice("numa", "--numa", "distribute", "isolate", "numactl"),
        _switch("check_tensors", "--check-tensors"),
        _integer("verbosity", "--verbosity", 0, 10),
    )
}


def check_setting(name: str, value: SettingValue, *, model: str) -> SettingValue:
    """The pinned value as the engine will get it; StackFileError with key path and legal values."""
    where = f"models.{model}.engine_args.{name}"
    spec = SETTINGS.get(name)
    if spec is None:
        near = difflib.get_close_matches(name, SETTINGS, n=1, cutoff=0.5)
        hint = f"did you mean {near[0]}? " if near else ""
        raise StackFileError(
            f"{where}: llama.cpp has no setting {name!r} here", hint=f"{hint}known: {', '.join(SETTINGS)}"
        )
    if spec.kind == "switch" and isinstance(value, bool):
        return value
    if spec.kind == "choice" and value in spec.choices:
        return value
    # YAML 1.1 reads a bare on or off as a truth value.
    if spec.kind == "choice" and isinstance(value, bool) and {"on", "off"} <= set(spec.choices):
        return "on" if value else "off"
    if spec.kind == "text" and isinstance(value, str) and value:
        return value
    if spec.kind == "integer" and isinstance(value, int) and not isinstance(value, bool):
        return _check_range(spec, value, where)
    if spec.kind == "number" and isinstance(value, int | float) and not isinstance(value, bool):
        return _check_range(spec, value, where)
    raise StackFileError(f"{where}: {value!r} is not {_legal(spec)}")


def _check_range(spec: SettingSpec, value: float, where: str) -> SettingValue:
    too_small = spec.minimum is not None and not value >= spec.minimum
    too_large = spec.maximum is not None and not value <= spec.maximum
    if too_small or too_large:
        raise StackFileError(f"{where}: {value!r} is not {_legal(spec)}")
    return value


def _legal(spec: SettingSpec) -> str:
    if spec.kind == "switch":
        return "true or false"
    if spec.kind == "choice":
        return f"one of {', '.join(spec.choices)}"
    if spec.kind == "text":
        return "a text"
    what = "a whole number" if spec.kind == "integer" else "a number"
    if spec.maximum is None:
        return f"{what} of at least {spec.minimum:g}"
    return f"{what} from {spec.minimum:.12g} to {spec.maximum:.12g}"
