"""Pure. A mapping becomes a Stack, and back; every fault is reported with its key path."""

from __future__ import annotations

import dataclasses
import difflib
import json
import re
from collections.abc import Mapping
from functools import cache
from typing import Any, Final

from pydantic import TypeAdapter, ValidationError

from trimtab.core.stack import GatewaySettings, ModelRequest, SettingValue, Stack
from trimtab.errors import StackFileError
from trimtab.stackfile.wire import PLANNED_KEYS, GatewayEntry, LimitsEntry, ModelEntry, StackEntry
from trimtab.units import parse_bytes

__all__ = ["check_model_name", "decode_stack", "dump_stack", "stack_schema"]

_MODEL_NAME: Final = re.compile(r"^[A-Za-z0-9][A-Za-z0-9._\-]{0,99}$")
# Names the log folder uses for trimtab itself.
_RESERVED_NAMES: Final = frozenset({"trimtab"})
_MAX_SHOWN_CHARS: Final = 60


@cache
def _adapter() -> TypeAdapter[StackEntry]:
    return TypeAdapter(StackEntry)


def stack_schema() -> dict[str, Any]:
    """The JSON schema of a stack file (draft 2020-12)."""
    schema = _adapter().json_schema()
    return {"$schema": "https://json-schema.org/draft/2020-12/schema", "title": "trimtab stack file"} | schema


def decode_stack(document: Any, *, source: str, default_name: str) -> Stack:
    """The Stack that ``document`` (plain data, as YAML gives it) describes.

    ``source`` begins every message. StackFileError lists all faults, one line each.
    """
    if not isinstance(document, Mapping):
        what = "is empty" if document is None else f"holds {_show(document)}, not keys and values"
        raise StackFileError(
            f"{source} {what}", hint="the smallest stack: models: {my-model: {checkpoint: m.gguf}}"
        )
    try:
        entry = _adapter().validate_python(dict(document))
    except ValidationError as error:
        lines = [_explain(fault) for fault in error.errors(include_url=False)]
        raise StackFileError(f"{source}: " + "\n  ".join(dict.fromkeys(lines))) from None
    return Stack(
        name=entry.name or default_name,
        models=tuple(_to_request(name, model, entry) for name, model in entry.models.items()),
        gateway=GatewaySettings(
            host=entry.gateway.host,
            port=entry.gateway.port,
            keys=entry.gateway.keys,
            max_body_bytes=entry.gateway.limits.max_body_bytes,
        ),
        ram_bytes=_to_bytes(entry.ram, source),
        source=source,
    )


def dump_stack(stack: Stack) -> dict[str, Any]:
    """The stack as plain data that ``decode_stack`` turns into an equal one."""
    models = {model.name: _to_entry(model) for model in stack.models}
    gateway = GatewayEntry(
        host=stack.gateway.host,
        port=stack.gateway.port,
        keys=stack.gateway.keys,
        limits=LimitsEntry(max_body_bytes=stack.gateway.max_body_bytes),
    )
    entry = StackEntry(models=models, name=stack.name, ram=stack.ram_bytes, gateway=gateway)
    document: dict[str, Any] = _adapter().dump_python(entry, mode="json", exclude_defaults=True)
    return document


def check_model_name(name: str, *, where: str) -> None:
    """StackFileError unless the name can stand in URLs, file names and on screen."""
    if not _MODEL_NAME.match(name) or name in _RESERVED_NAMES:
        raise StackFileError(
            f"{where}: {_show(name)} cannot be a model's name",
            hint="use letters, digits, dots, dashes and underscores, at most 100 (and not 'trimtab')",
        )


def _to_request(name: str, entry: ModelEntry, stack: StackEntry) -> ModelRequest:
    check_model_name(name, where="models")
    return ModelRequest(
        name=name,
        checkpoint=entry.checkpoint,
        engine=entry.engine or stack.engine,
        runtime=entry.runtime,
        context=entry.context,
        concurrency=entry.concurrency,
        engine_args=tuple(entry.engine_args.items()),
    )


def _to_entry(model: ModelRequest) -> ModelEntry:
    arguments: dict[str, SettingValue] = dict(model.engine_args)
    return ModelEntry(
        checkpoint=model.checkpoint,
        engine="llama_cpp" if model.engine == "llama_cpp" else None,
        context=model.context,
        concurrency=model.concurrency,
        engine_args=arguments,
    )


def _to_bytes(ram: str | int | None, source: str) -> int | None:
    if not isinstance(ram, str):
        return ram
    try:
        return parse_bytes(ram)
    except ValueError as error:
        raise StackFileError(f"{source}: ram: {error}") from None


def _explain(fault: Any) -> str:
    """One fault of pydantic in our words: path, value, what is legal."""
    location = [part for part in fault["loc"] if not _is_branch(part)]
    path = ".".join(str(part) for part in location)
    if fault["type"] in {"unexpected_keyword_argument", "extra_forbidden"}:
        return _explain_unknown_key(location, path)
    if fault["type"] in {"missing_argument", "missing"}:
        return f"{path}: this key is missing"
    message = fault["msg"][:1].lower() + fault["msg"][1:]
    if any(_is_branch(part) for part in fault["loc"]):
        message = "a single value is: text, a number, true, false or null"
    return f"{path}: {_show(fault['input'])} is not legal: {message}"


def _is_branch(part: Any) -> bool:
    """Whether a location part names a branch of a union, not a key."""
    return isinstance(part, str) and (part in {"str", "int", "float", "bool"} or "[" in part)


def _explain_unknown_key(location: list[Any], path: str) -> str:
    level, legal = _level_of(location)
    key = str(location[-1])
    if key in PLANNED_KEYS[level]:
        return f"{path}: this key is not supported by this version of trimtab yet; leave it out"
    nearest = difflib.get_close_matches(key, sorted(legal), n=1)
    advice = f"did you mean {nearest[0]!r}?" if nearest else f"legal keys: {', '.join(sorted(legal))}"
    return f"{path}: unknown key; {advice}"


def _level_of(location: list[Any]) -> tuple[str, set[str]]:
    """The level an unknown key stands on, and the keys that are legal there."""
    kind: tuple[str, Any] = ("stack", StackEntry)
    if location[0] == "models" and len(location) >= 3:
        kind = ("model", ModelEntry)
    elif location[0] == "gateway" and len(location) == 2:
        kind = ("gateway", GatewayEntry)
    elif location[0] == "gateway" and len(location) > 2:
        kind = ("limits", LimitsEntry)
    return kind[0], {item.name for item in dataclasses.fields(kind[1])}


def _show(value: Any) -> str:
    text = json.dumps(value, default=str, ensure_ascii=False)
    return text if len(text) <= _MAX_SHOWN_CHARS else text[: _MAX_SHOWN_CHARS - 3] + "..."
