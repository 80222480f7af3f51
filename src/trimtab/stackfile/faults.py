"""Pure. One validation fault of a stack file as one line: key path, value, what is legal."""

from __future__ import annotations

import dataclasses
import difflib
import json
import re
from collections.abc import Mapping
from typing import Any, Final

from trimtab.stackfile.wire import (
    PLANNED_KEYS,
    GatewayEntry,
    LimitsEntry,
    ModelEntry,
    StackEntry,
    SwapEntry,
)

__all__ = ["explain_fault", "show_part", "show_value"]

_MAX_SHOWN_CHARS: Final = 60
# Text that stands in YAML as it is.
_PLAIN: Final = re.compile(r"[A-Za-z0-9./](?:[A-Za-z0-9_./:-]*[A-Za-z0-9_./-])?")
# Level → (where it stands, its class).
_LEVELS: Final[dict[str, tuple[str, Any]]] = {
    "stack": ("at the top level", StackEntry),
    "model": ("under models.NAME", ModelEntry),
    "swap": ("under swap", SwapEntry),
    "gateway": ("under gateway", GatewayEntry),
    "limits": ("under gateway.limits", LimitsEntry),
}
# Kind of fault, as pydantic names it → what would be legal. {…} come from the fault's context.
_LEGAL: Final[dict[str, str]] = {
    "int_type": "write a whole number",
    "greater_than": "write a number above {gt}",
    "string_type": "write text, in quotes where YAML would read a number, a date or on/off",
    "string_unicode": "write text that UTF-8 can carry",
    "greater_than_equal": "the smallest legal value is {ge}",
    "less_than_equal": "the largest legal value is {le}",
    "dataclass_type": "write keys and values",
    "dict_type": "write keys and values",
    "bool_type": "write true or false",
    "float_type": "write a number",
    "tuple_type": "write a list",
    "too_short": "name at least one",
    "invalid_key": "a key is text",
}
# Key → what it holds, for those whose value may be a secret and is never repeated.
_SECRETS: Final[dict[str, str]] = {"keys": "key", "api_key_env": "name"}
# Key → what its pattern asks for.
_PATTERNS: Final[dict[str, str]] = {
    "host": "write an address such as 127.0.0.1, ::1 or localhost",
    "keys": "write printable ASCII without spaces",
    "gpus": "write card numbers such as 0,1 under a model, cards such as 4xrtx4090 at the top level",
    "url": "write an http or https address that ends in /v1, such as http://host:8000/v1",
    "engine_version": "write a version such as 0.25.1",
    "api_key_env": "write the name of an environment variable such as BOX_API_KEY, never the key itself",
}


def explain_fault(fault: Any) -> str:
    """One entry of ``ValidationError.errors()`` in our words; the value of a key is never repeated."""
    location = [part for part in fault["loc"] if part != "[key]"]
    path = ".".join(show_part(part) for part in location) or "a key"
    if fault["type"] in {"unexpected_keyword_argument", "extra_forbidden", "invalid_keyword"}:
        return _explain_unknown_key(location, path)
    if fault["type"] in {"missing_argument", "missing"}:
        return f"{path}: this key is missing"
    key = next((str(part) for part in reversed(location) if isinstance(part, str)), "")
    if fault["type"] == "dataclass_type" and len(location) == 2 and location[0] == "models":
        return f"{path}: {show_value(fault['input'])} is not legal; {_explain_model(fault['input'])}"
    if fault["type"] == "literal_error":
        return f"{path}: {show_value(fault['input'])} is not legal; write {fault['ctx']['expected']}"
    if key in _SECRETS:
        return f"{path}: this {_SECRETS[key]} is not legal; {_legal(fault, key)}"
    return f"{path}: {show_value(fault['input'])} is not legal; {_legal(fault, key)}"


def _explain_model(value: Any) -> str:
    """What a model must be; a text alone is likely its checkpoint."""
    is_plain = isinstance(value, str) and len(value) <= _MAX_SHOWN_CHARS and _PLAIN.fullmatch(value)
    return f"write keys and values, such as {{checkpoint: {value if is_plain else 'm.gguf'}}}"


def show_value(value: Any) -> str:
    """A value as it would stand in JSON, in one short line that any terminal can print."""
    text = json.dumps(value, default=str, ensure_ascii=False)
    if isinstance(value, Mapping | list) and value:
        text = f"a {'mapping' if isinstance(value, Mapping) else 'list'} of {len(value)}"
    text = text if len(text) <= _MAX_SHOWN_CHARS else text[: _MAX_SHOWN_CHARS - 3] + "..."
    return _printable(text)


def show_part(part: Any) -> str:
    """One part of a key path, short and printable."""
    text = str(part)
    return _printable(text if len(text) <= _MAX_SHOWN_CHARS else text[: _MAX_SHOWN_CHARS - 3] + "...")


def _printable(text: str) -> str:
    return "".join(char if char.isprintable() else f"\\u{ord(char):04x}" for char in text)


def _legal(fault: Any, key: str) -> str:
    kind = fault["type"]
    if kind == "string_pattern_mismatch":
        is_empty = fault["input"] == ""
        return _PATTERNS.get(key, "it is empty" if is_empty else "write text without control characters")
    if kind == "value_error":
        return str(fault["ctx"]["error"])
    if kind == "string_type" and key == "gpus":
        return _PATTERNS[key]
    if kind in _LEGAL:
        return _LEGAL[kind].format_map(fault.get("ctx", {}))
    message: str = fault["msg"]
    return message[:1].lower() + message[1:]


def _explain_unknown_key(location: list[Any], path: str) -> str:
    level = _level_of(location)
    key = str(location[-1])
    if key in PLANNED_KEYS[level]:
        return f"{path}: this key is not supported by this version of trimtab yet; leave it out"
    nearest = difflib.get_close_matches(key, sorted(_keys_of(level)), n=1)
    if not nearest:
        return f"{path}: unknown key; {_elsewhere(key) or _legal_keys(level)}"
    later = " (which this version does not support yet)" if nearest[0] in PLANNED_KEYS[level] else ""
    return f"{path}: unknown key; did you mean {nearest[0]!r}{later}?"


def _elsewhere(key: str) -> str:
    """Where a key of about this name stands, empty if nowhere."""
    every = {known for level in _LEVELS for known in _keys_of(level)}
    for nearest in difflib.get_close_matches(key, sorted(every), n=1):
        places = [where for level, (where, _) in _LEVELS.items() if nearest in _keys_of(level)]
        return f"{nearest!r} stands {' or '.join(places)}"
    return ""


def _legal_keys(level: str) -> str:
    return f"legal keys: {', '.join(sorted(_keys_of(level) - PLANNED_KEYS[level]))}"


def _level_of(location: list[Any]) -> str:
    if location[0] == "models" and len(location) == 3:
        return "model"
    if location[0] == "swap" and len(location) > 1:
        return "swap"
    if location[0] == "gateway" and len(location) > 1:
        return "gateway" if len(location) == 2 else "limits"
    return "stack"


def _keys_of(level: str) -> frozenset[str]:
    """The keys of a level, those of later versions too."""
    return frozenset(item.name for item in dataclasses.fields(_LEVELS[level][1])) | PLANNED_KEYS[level]
