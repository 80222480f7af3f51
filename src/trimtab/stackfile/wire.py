"""Pure. The stack file as it is written: one data class per level, every key described.

The JSON schema and docs/stack-file.md are generated from these classes; pydantic validates with
them. They exist only at the border: decode.py turns them into core.stack.
"""

from __future__ import annotations

import json
import math
import re
from dataclasses import dataclass, field
from typing import Annotated, Any, Final, Literal, TypeAlias

from pydantic import AfterValidator, BeforeValidator, ConfigDict, Field, PlainValidator, Strict

from trimtab.core.stack import (
    EngineName,
    ReasoningForm,
    RepairName,
    RuntimeName,
    SettingValue,
    SleepMode,
    ThinkingDefault,
)
from trimtab.units import parse_bytes, parse_count

__all__ = [
    "PLANNED_KEYS",
    "GatewayEntry",
    "LimitsEntry",
    "ModelEntry",
    "StackEntry",
    "SwapEntry",
    "check_served_name",
]

_FORBID_EXTRA: Final = ConfigDict(extra="forbid")
# The upper bound of counts: far above any real one, far below what would overflow a plan's sums.
_MAX_COUNT: Final = 2**40
_MAX_BYTES: Final = 2**50
_MAX_WAIT_S: Final = 7 * 24 * 3600
_MAX_CARD: Final = 999
_MAX_PRIORITY: Final = 1000
# A month: what is longer means never.
_MAX_SECONDS: Final = 31 * 24 * 3600
_CARDS_RULE: Final = "write numbers of cards from 0 on, each once, such as 0,1 or [0, 1]"
# Control characters cannot stand in a path, a header or on a terminal.
_PRINTABLE: Final = r"^[^\x00-\x1f\x7f]+$"
_MODEL_NAME: Final = r"^[A-Za-z0-9][A-Za-z0-9._\-]{0,99}$"
# The log folder uses these names for trimtab itself and for the log of requests.
_RESERVED_NAMES: Final = frozenset({"trimtab", "trimtab-requests"})


def check_served_name(name: str) -> str:
    """The name itself; ValueError unless it can stand in URLs, file names and on screen."""
    if not re.match(_MODEL_NAME, name) or name in _RESERVED_NAMES or name.endswith("\n"):
        raise ValueError(
            "a served name is letters, digits, dots, dashes and underscores, begins with a letter or digit, "
            "has at most 100 of them and is neither 'trimtab' nor 'trimtab-requests'"
        )
    return name


def _to_setting(value: Any) -> SettingValue:
    """An engine argument as core.stack has it: a single value, or JSON text of a nested one."""
    if isinstance(value, dict | list):
        try:
            return json.dumps(value, allow_nan=False)
        except (TypeError, ValueError):
            raise ValueError(
                "a nested engine argument holds text, numbers, true, false and null only"
            ) from None
    if isinstance(value, float) and not math.isfinite(value):
        raise ValueError("a number is finite")
    if isinstance(value, int) and abs(value) >= 2**63:
        raise ValueError("a whole number fits 64 bits")
    if value is None or isinstance(value, str | int | float):
        return value
    raise ValueError("an engine argument is text, a number, true, false, null, or a list or mapping of them")


def _read_size(value: Any) -> Any:
    """Text such as 8GiB as bytes; anything else is left to the type."""
    num_bytes = parse_bytes(value) if isinstance(value, str) else value
    if isinstance(value, str) and not 1 <= num_bytes <= _MAX_BYTES:
        raise ValueError("a size is at least one byte and at most 1024 TiB")
    return num_bytes


def _read_count(value: Any) -> Any:
    """Text such as 256k as a number; anything else is left to the type."""
    return parse_count(value) if isinstance(value, str) else value


def _read_switch(value: Any) -> Any:
    """YAML reads a bare on or off as true or false; both spellings mean the same."""
    return {True: "on", False: "off"}.get(value, value) if isinstance(value, bool) else value


def _read_cards(value: Any) -> Any:
    """Card numbers as text: 0, [0, 1] and "0,1" alike."""
    numbers = value if isinstance(value, list) else [value] if isinstance(value, int) else None
    if numbers is None:
        return value
    if not numbers or not all(type(number) is int and 0 <= number <= _MAX_CARD for number in numbers):
        raise ValueError(_CARDS_RULE)
    return ",".join(str(number) for number in numbers)


def _check_cards(text: str) -> str:
    """The text itself; ValueError where a card stands in it twice."""
    numbers = [int(number) for number in text.split(",")]
    twice = next((number for number in numbers if numbers.count(number) > 1), None)
    if twice is not None:
        raise ValueError(f"card {twice} is named twice; {_CARDS_RULE}")
    return text


_PositiveInt: TypeAlias = Annotated[int, Strict(), Field(ge=1, le=_MAX_COUNT)]
_Count: TypeAlias = Annotated[
    int,
    Strict(),
    Field(ge=1, le=_MAX_COUNT),
    BeforeValidator(_read_count, json_schema_input_type=Annotated[int, Field(ge=1)] | str),
]
_Text: TypeAlias = Annotated[str, Strict(), Field(pattern=_PRINTABLE)]
_Size: TypeAlias = Annotated[
    int,
    Strict(),
    Field(ge=1, le=_MAX_BYTES),
    BeforeValidator(_read_size, json_schema_input_type=Annotated[int, Field(ge=1)] | str),
]
_ServedName: TypeAlias = Annotated[
    str, Strict(), AfterValidator(check_served_name), Field(json_schema_extra={"pattern": _MODEL_NAME})
]
_Seconds: TypeAlias = Annotated[float, Strict(), Field(ge=0, le=_MAX_SECONDS, allow_inf_nan=False)]
_Priority: TypeAlias = Annotated[int, Strict(), Field(ge=-_MAX_PRIORITY, le=_MAX_PRIORITY)]
_Version: TypeAlias = Annotated[
    str, Strict(), Field(pattern=r"^v?\d{1,6}(\.\d{1,6}){1,3}([.\-+]?[A-Za-z0-9]{1,20}){0,3}$")
]
_Cards: TypeAlias = Annotated[
    str,
    Strict(),
    Field(pattern=r"^\d{1,3}( *, *\d{1,3})*$"),
    AfterValidator(_check_cards),
    BeforeValidator(_read_cards, json_schema_input_type=str | int | list[int]),
]
_Switch: TypeAlias = Annotated[
    ThinkingDefault, BeforeValidator(_read_switch, json_schema_input_type=Literal["on", "off"] | bool)
]
_Url: TypeAlias = Annotated[str, Strict(), Field(pattern=r"^https?://[^\s]+/v1/?$")]
_Variable: TypeAlias = Annotated[str, Strict(), Field(pattern=r"^[A-Za-z_][A-Za-z0-9_]{0,99}$")]
_Address: TypeAlias = Annotated[str, Strict(), Field(pattern=r"^[0-9A-Za-z.:%_\-]+$")]
_EngineArgument: TypeAlias = Annotated[SettingValue, PlainValidator(_to_setting, json_schema_input_type=Any)]
# What an Authorization header can carry without quoting.
_Key: TypeAlias = Annotated[str, Strict(), Field(pattern=r"^[!-~]+$")]

# Keys of the design that this version knows but cannot act on yet: refused by name, so that a stack
# file never promises what is not done. Level → keys.
PLANNED_KEYS: Final[dict[str, frozenset[str]]] = {
    "stack": frozenset({"slo", "workload"}),
    "model": frozenset({"slo"}),
    "swap": frozenset(),
    "gateway": frozenset(),
    "limits": frozenset(),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class LimitsEntry:
    """Bounds on requests."""

    __pydantic_config__ = _FORBID_EXTRA

    max_body_bytes: Annotated[
        _PositiveInt, Field(description="Largest request body, in bytes; a larger one is answered with 413.")
    ] = 32 * 1024 * 1024
    max_waiting: Annotated[
        Annotated[int, Strict(), Field(ge=0, le=_MAX_COUNT)] | None,
        Field(
            description="Requests that may wait for one busy model; one more is answered with 429. "
            "Default: 1024, or 16 for each of its slots if that is more."
        ),
    ] = None
    max_wait_s: Annotated[
        float,
        Strict(),
        Field(gt=0, le=_MAX_WAIT_S, description="Seconds a request may wait for a busy model; then 503."),
    ] = 600.0


@dataclass(frozen=True, slots=True, kw_only=True)
class GatewayEntry:
    """The one endpoint in front of every model."""

    __pydantic_config__ = _FORBID_EXTRA

    host: Annotated[
        _Address,
        Field(
            description="Address to listen on; 0.0.0.0 opens it to the network. With no key anywhere "
            "trimtab makes one then and prints it."
        ),
    ] = "127.0.0.1"
    port: Annotated[int, Strict(), Field(ge=0, le=65535, description="TCP port; 0 takes any free one.")] = (
        8000
    )
    keys: Annotated[
        tuple[_Key, ...],
        Field(description="Accepted bearer keys; with none the endpoint is open. /health is always open."),
    ] = ()
    reasoning_fields: Annotated[
        ReasoningForm,
        Field(
            description="How clients get a thought: in both fields, in one of them, inline in <think> tags, "
            "or not at all."
        ),
    ] = "both"
    reasoning_fields_by_key: Annotated[
        dict[_Key, ReasoningForm], Field(description="Another form for the clients with one of the keys.")
    ] = field(default_factory=dict)
    repairs: Annotated[
        tuple[RepairName, ...], Field(description="What is put right in requests; [] passes all as it is.")
    ] = ("extra-body", "system-messages", "background-call", "tool-choice")
    list_thinking_names: Annotated[
        bool,
        Strict(),
        Field(
            description="Whether /v1/models also lists m:thinking and m:instant for a model m whose thinking "
            "can be switched; requests may use them either way."
        ),
    ] = True
    keep_alive_s: Annotated[
        float,
        Strict(),
        Field(
            ge=0,
            le=_MAX_WAIT_S,
            description="Seconds until a silent stream gets a comment, so that proxies keep it; 0: never.",
        ),
    ] = 15.0
    log_requests: Annotated[
        bool,
        Strict(),
        Field(description="Whether each request is a line in the log trimtab-requests, without any text."),
    ] = True
    limits: Annotated[LimitsEntry, Field(description="Bounds on requests.")] = field(
        default_factory=LimitsEntry
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelEntry:
    """One served model."""

    __pydantic_config__ = _FORBID_EXTRA

    checkpoint: Annotated[
        _Text | None,
        Field(
            description="What to serve: a Hugging Face repo id (repo:file.gguf names one quant), a folder or "
            ".gguf file (relative to this file), or smollm2-135m, the embedded default."
        ),
    ] = None
    url: Annotated[
        _Url | None,
        Field(
            description="In place of a checkpoint: an OpenAI-compatible endpoint that somebody else runs, "
            "such as http://host:8000/v1; trimtab fronts it and starts nothing."
        ),
    ] = None
    upstream_model: Annotated[
        _Text | None, Field(description="The model's name at that url; default: this one, or the only one.")
    ] = None
    api_key_env: Annotated[
        _Variable | None,
        Field(
            description="Name of the environment variable that holds the key for that url; the key itself "
            "stands in no file."
        ),
    ] = None
    family: Annotated[
        Literal["plain", "qwen3", "qwen3.5", "qwen3.5-small", "glm-4.5", "deepseek-v3.1"] | None,
        Field(description="How requests switch thinking; default: as its checkpoint tells, plain for a url."),
    ] = None
    engine: Annotated[
        EngineName | None,
        Field(description="Engine to use; default: llama_cpp for GGUF files, vllm for everything else."),
    ] = None
    engine_version: Annotated[
        _Version | None, Field(description="Version of the engine, e.g. 0.25.1; default: the stack's.")
    ] = None
    runtime: Annotated[
        RuntimeName | None, Field(description="How the engine runs; default: the stack's.")
    ] = None
    gpus: Annotated[
        _Cards | None,
        Field(description="Numbers of the cards this model may use (0,1 or [0, 1]); default: any."),
    ] = None
    context: Annotated[
        _Count | None,
        Field(
            description="Tokens one request may use, prompt and answer together, such as 32768 or 32K "
            "(k is 1,000, K is 1,024); default: what fits."
        ),
    ] = None
    concurrency: Annotated[
        _Count | None,
        Field(description="Requests at once; more wait in line. Default: what fits; at a url, no bound."),
    ] = None
    replicas: Annotated[
        _PositiveInt | None, Field(description="Engines to run side by side; default: what cards allow.")
    ] = None
    thinking: Annotated[
        _Switch | None,
        Field(description="Whether the model thinks when a request does not say; default: its template's."),
    ] = None
    keep_loaded: Annotated[
        bool,
        Strict(),
        Field(description="Never unload it, where not all models fit together or idle ones are unloaded."),
    ] = False
    priority: Annotated[
        _Priority,
        Field(
            description="Where not all models fit together: higher is loaded first and unloaded last; "
            "a whole number."
        ),
    ] = 0
    engine_args: Annotated[
        dict[_Text, _EngineArgument],
        Field(
            description="Engine settings pinned by name (n_threads: 2); obeyed, checked and explained, "
            "never silently changed."
        ),
    ] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class SwapEntry:
    """When models that do not all fit together come and go (docs/load-on-demand.md)."""

    __pydantic_config__ = _FORBID_EXTRA

    idle_unload_s: Annotated[
        _Seconds | None,
        Field(
            description="Seconds without a request after which a model is unloaded, also where all fit "
            "together; default: never, only for another one."
        ),
    ] = None
    min_residence_s: Annotated[
        _Seconds,
        Field(description="Seconds that a busy model stays loaded before it gives way to one that waits."),
    ] = 20.0
    sleep: Annotated[
        SleepMode,
        BeforeValidator(_read_switch, json_schema_input_type=Literal["auto", "off", False]),
        Field(description="auto: vLLM models give way by sleeping where RAM and cards allow; off: never."),
    ] = "auto"


@dataclass(frozen=True, slots=True, kw_only=True)
class StackEntry:
    """What one ``trimtab up`` brings up."""

    __pydantic_config__ = _FORBID_EXTRA

    models: Annotated[
        dict[_ServedName, ModelEntry],
        Field(
            min_length=1,
            # The names' pattern alone would let an editor accept any other name.
            json_schema_extra={"additionalProperties": False},
            description="The served models by name; clients ask for them by these names.",
        ),
    ]
    name: Annotated[
        _Text | None, Field(description="Label of what is started; default: the file's name.")
    ] = None
    ram: Annotated[
        _Size | None,
        Field(description="Host memory the plan may use (8GiB, or bytes); default: what is free."),
    ] = None
    gpus: Annotated[
        _Text | None,
        Field(description="Cards to plan for (4x rtx4090; 2xrtx5090,1xrtx3090); default: the machine's own."),
    ] = None
    engine: Annotated[EngineName | None, Field(description="Engine of every model that names none.")] = None
    engine_version: Annotated[
        _Version | None, Field(description="Engine version of every model that names none.")
    ] = None
    runtime: Annotated[RuntimeName, Field(description="Runtime of every model that names none.")] = "process"
    swap: Annotated[SwapEntry, Field(description="When models are loaded and unloaded on demand.")] = field(
        default_factory=SwapEntry
    )
    gateway: Annotated[GatewayEntry, Field(description="The one endpoint in front of every model.")] = field(
        default_factory=GatewayEntry
    )
