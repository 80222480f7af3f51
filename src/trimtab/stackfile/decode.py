"""Pure. A mapping becomes a Stack, and back; every fault is reported with its key path."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from typing import Any, Final

from pydantic import TypeAdapter, ValidationError

from trimtab.core.stack import GatewaySettings, ModelRequest, Stack, SwapSettings
from trimtab.errors import StackFileError
from trimtab.stackfile.faults import explain_fault, show_value
from trimtab.stackfile.wire import ModelEntry, StackEntry, check_served_name

__all__ = ["check_model_name", "decode_stack", "dump_stack", "stack_schema"]

# More faults than this mean that the file is something else.
_MAX_FAULTS: Final = 20


@cache
def _adapter() -> TypeAdapter[StackEntry]:
    return TypeAdapter(StackEntry)


def stack_schema() -> dict[str, Any]:
    """The JSON schema of a stack file (draft 2020-12)."""
    head = {"$schema": "https://json-schema.org/draft/2020-12/schema", "title": "trimtab stack file"}
    return _adapter().json_schema() | head


def decode_stack(document: Any, *, source: str, default_name: str) -> Stack:
    """The Stack that ``document`` (plain data, as YAML gives it) describes.

    ``source`` begins every message. StackFileError lists all faults, one line each.
    """
    if not isinstance(document, Mapping):
        what = "is empty" if document is None else f"holds {show_value(document)}, not keys and values"
        raise StackFileError(
            f"{source} {what}", hint="the smallest stack: models: {my-model: {checkpoint: m.gguf}}"
        )
    try:
        entry = _adapter().validate_python(dict(document))
    except ValidationError as error:
        raise _all_faults(error, source) from None
    return Stack(
        name=entry.name or default_name,
        models=tuple(_to_request(name, model, entry, source) for name, model in entry.models.items()),
        gateway=GatewaySettings(
            host=entry.gateway.host,
            port=entry.gateway.port,
            keys=entry.gateway.keys,
            max_body_bytes=entry.gateway.limits.max_body_bytes,
            reasoning_fields=entry.gateway.reasoning_fields,
            reasoning_fields_by_key=tuple(entry.gateway.reasoning_fields_by_key.items()),
            repairs=entry.gateway.repairs,
            list_thinking_names=entry.gateway.list_thinking_names,
            max_waiting=entry.gateway.limits.max_waiting,
            max_wait_s=entry.gateway.limits.max_wait_s,
            keep_alive_s=entry.gateway.keep_alive_s,
            log_requests=entry.gateway.log_requests,
        ),
        swap=SwapSettings(
            idle_unload_s=entry.swap.idle_unload_s,
            min_residence_s=entry.swap.min_residence_s,
            sleep=entry.swap.sleep,
        ),
        gpus=entry.gpus,
        ram_bytes=entry.ram,
        source=source,
    )


def dump_stack(stack: Stack) -> dict[str, Any]:
    """The stack as plain data, values at their default left out.

    ``decode_stack`` turns it into an equal stack, or refuses what this version cannot run.
    """
    limits = _without_defaults(
        {
            "max_body_bytes": stack.gateway.max_body_bytes,
            "max_waiting": stack.gateway.max_waiting,
            "max_wait_s": stack.gateway.max_wait_s,
        },
        GatewaySettings(),
    )
    gateway = _without_defaults(
        {
            "host": stack.gateway.host,
            "port": stack.gateway.port,
            "keys": list(stack.gateway.keys),
            "reasoning_fields": stack.gateway.reasoning_fields,
            "reasoning_fields_by_key": dict(stack.gateway.reasoning_fields_by_key),
            "repairs": list(stack.gateway.repairs),
            "list_thinking_names": stack.gateway.list_thinking_names,
            "keep_alive_s": stack.gateway.keep_alive_s,
            "log_requests": stack.gateway.log_requests,
        },
        GatewaySettings(),
    )
    swap = _without_defaults(
        {
            "idle_unload_s": stack.swap.idle_unload_s,
            "min_residence_s": stack.swap.min_residence_s,
            "sleep": stack.swap.sleep,
        },
        SwapSettings(),
    )
    document = {
        "name": stack.name,
        "gpus": stack.gpus,
        "ram": stack.ram_bytes,
        "models": {model.name: _to_entry(model) for model in stack.models},
        "swap": swap,
        "gateway": gateway | ({"limits": limits} if limits else {}),
    }
    return {key: value for key, value in document.items() if value is not None and value != {}}


def check_model_name(name: str, *, where: str) -> None:
    """StackFileError unless the name can stand in URLs, file names and on screen."""
    try:
        check_served_name(name)
    except ValueError as error:
        raise StackFileError(
            f"{where}: {show_value(name)} cannot be a model's name", hint=str(error)
        ) from None


def _to_request(name: str, entry: ModelEntry, stack: StackEntry, source: str) -> ModelRequest:
    _check_origin(name, entry, source)
    return ModelRequest(
        name=name,
        checkpoint=entry.checkpoint or "",
        url=entry.url,
        upstream_model=entry.upstream_model,
        api_key_env=entry.api_key_env,
        family=entry.family,
        engine=entry.engine or stack.engine,
        engine_version=entry.engine_version or stack.engine_version,
        runtime=entry.runtime or stack.runtime,
        gpus=entry.gpus,
        context=entry.context,
        concurrency=entry.concurrency,
        replicas=entry.replicas,
        thinking=entry.thinking,
        keep_loaded=entry.keep_loaded,
        priority=entry.priority,
        engine_args=tuple(entry.engine_args.items()),
    )


def _check_origin(name: str, entry: ModelEntry, source: str) -> None:
    """A model is started from a checkpoint or fronted at a url; what starts it means nothing at a url."""
    path = f"{source}: models.{name}"
    if entry.url is None:
        if entry.checkpoint is None:
            raise StackFileError(
                f"{path}.checkpoint: this key is missing", hint="or write url: for an endpoint"
            )
        for key in ("upstream_model", "api_key_env"):
            if getattr(entry, key) is not None:
                raise StackFileError(f"{path}.{key} means a model at a url, and there is none")
        return
    started = (
        "checkpoint", "engine", "engine_version", "gpus", "replicas", "keep_loaded", "priority", "engine_args"
    )  # fmt: skip
    given = [key for key in started if getattr(entry, key)]
    if given:
        raise StackFileError(
            f"{path}: url is somebody else's endpoint, and {', '.join(given)} would start an engine",
            hint="write url or checkpoint",
        )


def _to_entry(model: ModelRequest) -> dict[str, Any]:
    entry = {
        "checkpoint": model.checkpoint or None,
        "url": model.url,
        "upstream_model": model.upstream_model,
        "api_key_env": model.api_key_env,
        "family": model.family,
        "engine": model.engine,
        "engine_version": model.engine_version,
        "runtime": model.runtime,
        "gpus": model.gpus,
        "context": model.context,
        "concurrency": model.concurrency,
        "replicas": model.replicas,
        "thinking": model.thinking,
        "keep_loaded": model.keep_loaded or None,
        "priority": model.priority or None,
        "engine_args": dict(model.engine_args) or None,
    }
    return {key: value for key, value in entry.items() if value is not None}


def _without_defaults(values: dict[str, Any], defaults: GatewaySettings | SwapSettings) -> dict[str, Any]:
    return {key: value for key, value in values.items() if not _is_default(value, getattr(defaults, key))}


def _is_default(value: Any, default: Any) -> bool:
    """Lists and mappings stand for the tuples of the settings."""
    if isinstance(value, list):
        return bool(tuple(value) == default)
    if isinstance(value, dict):
        return bool(tuple(value.items()) == default)
    return bool(value == default)


def _all_faults(error: ValidationError, source: str) -> StackFileError:
    lines = list(dict.fromkeys(explain_fault(fault) for fault in error.errors(include_url=False)))
    if len(lines) == 1:
        return StackFileError(f"{source}: {lines[0]}")
    shown = lines[:_MAX_FAULTS]
    if len(lines) > len(shown):
        shown.append(f"and {len(lines) - len(shown)} more")
    return StackFileError(f"{source} has {len(lines)} faults:\n  " + "\n  ".join(shown))
