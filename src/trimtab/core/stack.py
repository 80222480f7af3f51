"""Pure. What the user wrote: the stack file as data. It says what is wanted, never how."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, TypeAlias

__all__ = [
    "DEFAULT_GATEWAY_PORT",
    "EngineName",
    "GatewaySettings",
    "ModelRequest",
    "ReasoningForm",
    "RepairName",
    "RuntimeName",
    "SettingValue",
    "SleepMode",
    "Stack",
    "SwapSettings",
    "ThinkingDefault",
]

DEFAULT_GATEWAY_PORT = 8000

EngineName: TypeAlias = Literal["vllm", "llama_cpp"]
RuntimeName: TypeAlias = Literal["process", "docker"]
ThinkingDefault: TypeAlias = Literal["on", "off"]
# Whether engines that can may sleep instead of being stopped when a model gives way.
SleepMode: TypeAlias = Literal["auto", "off"]
# How clients get a thought: in both fields that engines use, in one, inline with tags, or not at all.
ReasoningForm: TypeAlias = Literal["both", "reasoning_content", "reasoning", "inline", "none"]
# What the gateway may put right in a request.
RepairName: TypeAlias = Literal["extra-body", "system-messages", "background-call", "tool-choice"]
# A pinned engine argument as JSON would carry it; nested objects stay JSON text until an engine reads them.
SettingValue: TypeAlias = str | int | float | bool | None


@dataclass(frozen=True, slots=True, kw_only=True)
class GatewaySettings:
    """Where the one endpoint listens.

    ``port`` is a TCP port (0 takes a free one); ``keys`` are accepted bearer tokens, none means
    open; ``max_body_bytes`` bounds a request body. ``reasoning_fields`` is the form of a thought, for
    clients with one of the keys in ``reasoning_fields_by_key`` the form beside it; ``repairs`` are those
    that are made. With ``list_thinking_names`` the list of models has ``m:thinking`` and ``m:instant``. At
    most ``max_waiting`` requests wait for one model, None leaves it to the gateway, and none longer than
    ``max_wait_s``; a stream that is silent gets a comment every ``keep_alive_s``, 0 for never.
    With ``log_requests`` each request is one line of a log.
    """

    host: str = "127.0.0.1"
    port: int = DEFAULT_GATEWAY_PORT
    keys: tuple[str, ...] = ()
    max_body_bytes: int = 32 * 1024 * 1024
    reasoning_fields: ReasoningForm = "both"
    reasoning_fields_by_key: tuple[tuple[str, ReasoningForm], ...] = ()
    repairs: tuple[RepairName, ...] = ("extra-body", "system-messages", "background-call", "tool-choice")
    list_thinking_names: bool = True
    max_waiting: int | None = None
    max_wait_s: float = 600.0
    keep_alive_s: float = 15.0
    log_requests: bool = True


@dataclass(frozen=True, slots=True, kw_only=True)
class SwapSettings:
    """When models that are loaded on demand come and go, in seconds.

    After ``idle_unload_s`` without a request a model is unloaded, None keeps it until its room is wanted;
    one that is busy keeps its room for at least ``min_residence_s`` while others wait. With ``sleep`` "auto"
    an engine that gives way sleeps where RAM and cards have room for that, else it is stopped.
    """

    idle_unload_s: float | None = None
    min_residence_s: float = 20.0
    sleep: SleepMode = "auto"


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelRequest:
    """One served model as wished.

    ``checkpoint`` is a repo id (``repo:file.gguf`` for one quant), a folder or a ``.gguf`` path;
    ``gpus`` names the indices of the cards it may use (``0,1``), None any; ``context`` is tokens one
    request may use and ``concurrency`` requests at once, None lets the planner choose, as it does with
    ``replicas``; ``thinking`` is the default of requests that do not say; ``engine_args`` are pinned
    (name, value) pairs in the order written. An external endpoint has ``url`` and ``upstream_model``
    instead of a checkpoint, and ``api_key_env`` names the environment variable with its key, never the key
    itself; ``family`` says how its thinking is switched. Where not all models fit together,
    one with ``keep_loaded`` is never unloaded, and a higher ``priority`` is loaded first and unloaded last.
    """

    name: str
    checkpoint: str
    engine: EngineName | None = None
    engine_version: str | None = None
    runtime: RuntimeName = "process"
    gpus: str | None = None
    context: int | None = None
    concurrency: int | None = None
    replicas: int | None = None
    thinking: ThinkingDefault | None = None
    family: str | None = None
    url: str | None = None
    upstream_model: str | None = None
    api_key_env: str | None = None
    keep_loaded: bool = False
    priority: int = 0
    engine_args: tuple[tuple[str, SettingValue], ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Stack:
    """Everything one ``trimtab up`` brings up.

    ``name`` labels what is started; ``ram_bytes`` caps host memory, None uses what is free;
    ``gpus`` is the wished inventory as text, None uses the machine's own; ``source`` is the file
    the stack was read from, empty when it was made from a flag or from the default.
    """

    name: str
    models: tuple[ModelRequest, ...]
    gateway: GatewaySettings = GatewaySettings()
    swap: SwapSettings = SwapSettings()
    gpus: str | None = None
    ram_bytes: int | None = None
    source: str = ""
