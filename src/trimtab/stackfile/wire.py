"""Pure. The stack file as it is written: one data class per level, every key described.

The JSON schema and docs/stack-file.md are generated from these classes; pydantic validates with
them. They exist only at the border: decode.py turns them into core.stack.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Annotated, Final, Literal, TypeAlias

from pydantic import ConfigDict, Field, Strict

__all__ = ["PLANNED_KEYS", "GatewayEntry", "LimitsEntry", "ModelEntry", "StackEntry"]

_FORBID_EXTRA: Final = ConfigDict(extra="forbid")
_PositiveInt: TypeAlias = Annotated[int, Strict(), Field(ge=1, le=2**40)]
_Text: TypeAlias = Annotated[str, Strict(), Field(min_length=1)]
_EngineArgument: TypeAlias = (
    Annotated[str, Strict()]
    | Annotated[int, Strict()]
    | Annotated[float, Strict()]
    | Annotated[bool, Strict()]
    | None
)

# Keys of the design that this version knows but cannot act on yet: refused by name, so that a stack
# file never promises what is not done. Level → keys.
PLANNED_KEYS: Final[dict[str, frozenset[str]]] = {
    "stack": frozenset({"gpus", "engine_version", "slo", "workload"}),
    "model": frozenset(
        {
            "url",
            "upstream_model",
            "family",
            "engine_version",
            "gpus",
            "replicas",
            "thinking",
            "priority",
            "keep_loaded",
            "slo",
        }
    ),
    "gateway": frozenset({"reasoning_fields"}),
    "limits": frozenset(),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class LimitsEntry:
    """Bounds on one request."""

    __pydantic_config__ = _FORBID_EXTRA

    max_body_bytes: Annotated[
        _PositiveInt, Field(description="Largest request body, in bytes; a larger one is answered with 413.")
    ] = 32 * 1024 * 1024


@dataclass(frozen=True, slots=True, kw_only=True)
class GatewayEntry:
    """The one endpoint in front of every model."""

    __pydantic_config__ = _FORBID_EXTRA

    host: Annotated[
        _Text, Field(description="Address to listen on; 0.0.0.0 opens it to the network (set keys then).")
    ] = "127.0.0.1"
    port: Annotated[int, Strict(), Field(ge=0, le=65535, description="TCP port; 0 takes any free one.")] = (
        8000
    )
    keys: Annotated[
        tuple[_Text, ...],
        Field(description="Accepted bearer keys; with none the endpoint is open. /health is always open."),
    ] = ()
    limits: Annotated[LimitsEntry, Field(description="Bounds on one request.")] = field(
        default_factory=LimitsEntry
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelEntry:
    """One served model."""

    __pydantic_config__ = _FORBID_EXTRA

    checkpoint: Annotated[
        _Text,
        Field(
            description="What to serve: a path to a .gguf (relative to this file), a Hugging Face repo id "
            "(repo:file.gguf names one quant), or smollm2-135m, the embedded default."
        ),
    ]
    engine: Annotated[
        Literal["llama_cpp"] | None, Field(description="Engine to use; this version has llama_cpp.")
    ] = None
    runtime: Annotated[
        Literal["process"], Field(description="How the engine runs; this version has process.")
    ] = "process"
    context: Annotated[
        _PositiveInt | None,
        Field(description="Tokens one request may use, prompt and answer together; default: what fits."),
    ] = None
    concurrency: Annotated[
        _PositiveInt | None, Field(description="Requests at once; more wait in line. Default: what fits.")
    ] = None
    engine_args: Annotated[
        dict[str, _EngineArgument],
        Field(
            description="Engine settings pinned by name (n_threads: 2); obeyed, checked and explained, "
            "never silently changed."
        ),
    ] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class StackEntry:
    """What one ``trimtab up`` brings up."""

    __pydantic_config__ = _FORBID_EXTRA

    models: Annotated[
        dict[str, ModelEntry],
        Field(min_length=1, description="The served models by name; clients ask for them by these names."),
    ]
    name: Annotated[
        _Text | None, Field(description="Label of what is started; default: the file's name.")
    ] = None
    ram: Annotated[
        _Text | _PositiveInt | None,
        Field(description="Host memory the plan may use (8GiB, or bytes); default: what is free."),
    ] = None
    engine: Annotated[
        Literal["llama_cpp"] | None, Field(description="Engine of every model that names none.")
    ] = None
    runtime: Annotated[
        Literal["process"], Field(description="Runtime of every model; this version has process.")
    ] = "process"
    gateway: Annotated[GatewayEntry, Field(description="The one endpoint in front of every model.")] = field(
        default_factory=GatewayEntry
    )
