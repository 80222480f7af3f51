"""Pure. A setting by its Python name becomes words of the command line, checked against the version.

What is legal is in the flag table; what the memory plan needs of a value is the planner's. The rules of
writing: switches as ``--x`` or ``--no-x``, objects as JSON, one ``--x=value`` word where a value begins
with a dash (argparse would take it for an option).
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterable, Sequence
from typing import Any, Final, Literal

from trimtab.core.plan import Setting
from trimtab.core.stack import SettingValue
from trimtab.engines.vllm_flag_notes import FLAG_NOTES
from trimtab.engines.vllm_flags import (
    Flag,
    explain_absence,
    find_flag,
    has_parser,
    nearest_flags,
    nearest_parsers,
    versions_with_flag,
)
from trimtab.errors import StackFileError

__all__ = ["MANAGED", "check_vllm_setting", "render_flags"]

MANAGED: Final[dict[str, str]] = {
    "model": "the model is the key checkpoint",
    "config": "write the arguments themselves under engine_args",
    "uds": "the gateway reaches engines over TCP",
    "headless": "one host is served here",
    "grpc": "the gateway speaks HTTP",
    "data_parallel_multi_port_external_lb": "write replicas",
}
"""Arguments that can't be pinned, with what to do instead."""

# As an operator would group them; what isn't named follows in alphabetical order.
_ORDER: Final = (
    "revision",
    "tokenizer",
    "trust_remote_code",
    "dtype",
    "quantization",
    "load_format",
    "tensor_parallel_size",
    "pipeline_parallel_size",
    "data_parallel_size",
    "decode_context_parallel_size",
    "enable_expert_parallel",
    "max_model_len",
    "kv_cache_dtype",
    "gpu_memory_utilization",
    "kv_cache_memory_bytes",
    "max_num_seqs",
    "max_num_batched_tokens",
    "language_model_only",
    "limit_mm_per_prompt",
    "enable_prefix_caching",
    "mamba_cache_mode",
    "speculative_config",
    "attention_backend",
    "enforce_eager",
    "compilation_config",
    "reasoning_parser",
    "enable_auto_tool_choice",
    "tool_call_parser",
    "chat_template",
    "default_chat_template_kwargs",
)
_RANK: Final = {name: rank for rank, name in enumerate(_ORDER)}
# vLLM's utils/argparse_utils.py: k, m, g, t are decimal, K, M, G, T binary; decimals only before the former.
_SIZE: Final = re.compile(r"^\d+(?:\.\d+)?[kmgt]$|^\d+[KMGT]?$")
_AUTO_SIZES: Final = ("auto", "-1")
_WORDS: Final = {"true": True, "false": False}
_CONTROL: Final = re.compile(r"[\x00]")


def check_vllm_setting(version: str, name: str, value: SettingValue, *, model: str) -> SettingValue:
    """The value as it will be written for that version; StackFileError names key path and legal values."""
    where = f"models.{model}.engine_args.{name}"
    if name in MANAGED:
        raise StackFileError(f"{where}: {name} can't be pinned", hint=MANAGED[name])
    flag = find_flag(version, name)
    if flag is None:
        text, note = explain_absence(version, name), FLAG_NOTES.get(name, "")
        # What replaces it is known, or the name is one that was: a look-alike would only mislead.
        is_past = bool(note or versions_with_flag(name))
        near = () if is_past else nearest_flags(version, name, count=3)
        raise StackFileError(f"{where}: {text}", hint=note or _did_you_mean(near))
    checked = _check_value(flag, value, where)
    kind = {"reasoning_parser": "reasoning", "tool_call_parser": "tool"}.get(name)
    if kind is not None and isinstance(checked, str) and checked not in {"", "none"}:
        _check_parser(version, kind, checked, where)
    return checked


def _check_parser(version: str, kind: str, name: str, where: str) -> None:
    which: Literal["reasoning", "tool"] = "reasoning" if kind == "reasoning" else "tool"
    if not has_parser(version, which, name):
        near = nearest_parsers(version, which, name)
        hint = _did_you_mean(near) if len(near) == 1 else f"it has: {', '.join(near)}"
        raise StackFileError(f"{where}: vLLM {version} has no {kind} parser {name!r}", hint=hint)


def _did_you_mean(names: Sequence[str]) -> str:
    return f"did you mean {' or '.join(names)}?" if names else ""


def _check_value(flag: Flag, value: SettingValue, where: str) -> SettingValue:
    if value is None:
        return None
    if isinstance(value, str) and _CONTROL.search(value):
        raise StackFileError(f"{where}: {value!r} holds a NUL character, which no command line can carry")
    legal = _LEGAL[flag.kind](value)
    if legal is None:
        raise StackFileError(f"{where}: {value!r} is not {_DESCRIPTIONS[flag.kind]}")
    if flag.choices and legal not in flag.choices:
        words = ", ".join(str(choice) for choice in flag.choices)
        raise StackFileError(f"{where}: {value!r} is not one of {words}")
    return legal


def _as_switch(value: SettingValue) -> SettingValue:
    if isinstance(value, str):
        return _WORDS.get(value.strip().lower())
    return value if isinstance(value, bool) else None


def _as_switch_or_text(value: SettingValue) -> SettingValue:
    return value if isinstance(value, bool | str) else None


def _as_integer(value: SettingValue) -> SettingValue:
    if isinstance(value, bool):
        return None
    try:
        number = float(value)  # type: ignore[arg-type]
    except (TypeError, ValueError):
        return None
    if not math.isfinite(number) or number != int(number):
        return None
    return int(value) if isinstance(value, str) and value.strip().lstrip("+-").isdigit() else int(number)


def _as_size(value: SettingValue) -> SettingValue:
    if isinstance(value, str) and (_SIZE.match(value) or value in _AUTO_SIZES):
        return int(value) if value.lstrip("-").isdigit() else value
    return _as_integer(value) if not isinstance(value, str) else None


def _as_number(value: SettingValue) -> SettingValue:
    if isinstance(value, bool):
        return None
    try:
        number = float(value)  # type: ignore[arg-type]
    except (TypeError, ValueError):
        return None
    return None if not math.isfinite(number) else value if isinstance(value, int | float) else number


def _as_text(value: SettingValue) -> SettingValue:
    return value if isinstance(value, str) else None if isinstance(value, bool) else str(value)


def _refuse_constant(text: str) -> Any:
    raise ValueError(text)


def _as_json(value: SettingValue) -> SettingValue:
    if isinstance(value, int) and not isinstance(value, bool):
        return value  # compilation_config=3 is a mode
    if not isinstance(value, str):
        return None
    try:
        found = json.loads(value, parse_constant=_refuse_constant)
    except ValueError:
        return None
    return json.dumps(found, ensure_ascii=False)


def _as_json_or_text(value: SettingValue) -> SettingValue:
    return _as_json(value) if isinstance(value, str) and value.lstrip().startswith("{") else _as_text(value)


def _as_list(value: SettingValue) -> SettingValue:
    if isinstance(value, bool):
        return None
    text = str(value)
    return text if text.strip() and _list_words(text) else None


_LEGAL: Final = {
    "switch": _as_switch,
    "switch_on": _as_switch,
    "switch_or_text": _as_switch_or_text,
    "integer": _as_integer,
    "size": _as_size,
    "number": _as_number,
    "text": _as_text,
    "list": _as_list,
    "json": _as_json,
    "json_or_text": _as_json_or_text,
}
_DESCRIPTIONS: Final = {
    "switch": "true or false",
    "switch_on": "true or false",
    "switch_or_text": "true, false or a text",
    "integer": "a whole number",
    "size": "a whole number (or one such as 8k, 8K or auto)",
    "number": "a number",
    "text": "a text",
    "list": "a word or a JSON list of words",
    "json": "JSON",
    "json_or_text": "JSON or a text",
}


def _list_words(text: str) -> list[str]:
    """Words of a list argument: a JSON list, numbers parted by blanks or commas, or the text as one."""
    if text.lstrip().startswith("["):
        try:
            found = json.loads(text)
        except ValueError:
            return []
        return [item if isinstance(item, str) else json.dumps(item) for item in found]
    parts = text.replace(",", " ").split()
    return parts if all(part.isdigit() for part in parts) else [text]


def render_flags(version: str, settings: Iterable[Setting], *, model: str) -> tuple[str, ...]:
    """Words for every setting that isn't the engine's default, in the order of ``_ORDER``.

    StackFileError when the version has no such argument or can't take the value.
    """
    given = {item.name: item.value for item in settings if item.origin != "default"}
    names = sorted(given, key=lambda name: (_RANK.get(name, len(_RANK)), name))
    return tuple(word for name in names for word in _words_of(version, name, given[name], model=model))


def _words_of(version: str, name: str, value: SettingValue, *, model: str) -> tuple[str, ...]:
    checked = check_vllm_setting(version, name, value, model=model)
    flag = find_flag(version, name)
    assert flag is not None  # noqa: S101  # checked above
    if checked is None:
        return ()
    if isinstance(checked, bool):
        negative = flag.negative_option
        return (flag.option,) if checked else (negative,) if negative else ()
    words = _list_words(str(checked)) if flag.kind == "list" else [_text_of(checked)]
    if any(word.startswith("-") for word in words):
        # Only the first word of a list can be joined; a list of options would be one of errors.
        return (f"{flag.option}={words[0]}", *words[1:])
    return (flag.option, *words)


def _text_of(value: SettingValue) -> str:
    return repr(value) if isinstance(value, float) else str(value)
