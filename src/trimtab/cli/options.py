"""I/O. The flags that several verbs share, and the wish they add up to."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from importlib import import_module
from typing import TYPE_CHECKING, Any, TypeVar

import click

from trimtab.core.stack import EngineName, SettingValue
from trimtab.core.workload import Workload
from trimtab.errors import StackFileError
from trimtab.units import parse_count

__all__ = [
    "Number",
    "Wish",
    "complete_by",
    "json_option",
    "model_options",
    "parse_pin",
    "wish_from",
    "wish_options",
]

_MOST = 10_000_000
if TYPE_CHECKING:
    from click.shell_completion import CompletionItem

_Command = TypeVar("_Command", bound=Callable[..., Any])


@dataclass(frozen=True, slots=True, kw_only=True)
class Wish:
    """What one command line asks for, before any file is read.

    ``target`` is MODEL or STACK as typed, None for the embedded default. None anywhere else leaves
    the choice to the stack file, then to the default.
    """

    target: str | None
    plan_file: str | None = None
    context: int | None = None
    concurrency: int | None = None
    replicas: int | None = None
    engine: EngineName | None = None
    engine_version: str | None = None
    gpus: str | None = None
    workload: Workload | None = None
    ram: str | None = None
    pins: tuple[tuple[str, SettingValue], ...] = ()
    host: str | None = None
    port: int | None = None


class Number(click.IntRange):
    """A whole number, also with k (1,000), K (1,024), m or M behind it; refused in one plain sentence."""

    name = "number"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> int:
        """The number; click.BadParameter when it is none, or out of range."""
        try:
            number = parse_count(value) if isinstance(value, str) else int(value)
        except ValueError as error:
            self.fail(str(error), param, ctx)
        low, high = self.min or 0, self.max
        if number < low or (high is not None and number > high):
            legal = f"{low:g} or more" if high is None else f"{low:g} to {high:g}"
            self.fail(f"{value} is out of range; write {legal}", param, ctx)
        return number


def complete_by(name: str) -> Callable[[click.Context, click.Parameter, str], list[CompletionItem]]:
    """A completion of trimtab.cli.completion, imported only when Tab is pressed."""

    def complete(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[CompletionItem]:
        words: list[CompletionItem] = getattr(import_module("trimtab.cli.completion"), name)(
            ctx, param, incomplete
        )
        return words

    return complete


def json_option(command: _Command) -> _Command:
    """``--json``: one document on stdout, everything else on stderr."""
    return click.option("--json", "as_json", is_flag=True, help="Print one JSON document on stdout.")(command)


_MODEL_OPTIONS = (
    click.argument(
        "target",
        metavar="[MODEL | STACK.yaml]",
        required=False,
        shell_complete=complete_by("complete_target"),
    ),
    click.option(
        "--context",
        type=Number(min=1),
        metavar="N",
        help="Tokens one request may use, such as 32768 or 32K (k is 1,000, K is 1,024).",
    ),
    click.option("--concurrency", type=Number(min=1), metavar="N", help="Requests at once."),
)
_ENGINE_OPTIONS = (
    click.option(
        "--engine",
        type=click.Choice(("vllm", "llama_cpp")),
        help="Engine to use [llama_cpp for GGUF files, vllm for everything else].",
    ),
    click.option("--engine-version", metavar="V", help="Version of the engine, e.g. 0.25.1."),
    click.option(
        "--gpus",
        metavar="SPEC",
        help="Cards to plan for, e.g. 4xrtx4090 or 2xrtx5090,1xrtx3090 [the machine's own].",
    ),
)
_PIN_OPTION = click.option(
    "--set",
    "pins",
    multiple=True,
    metavar="NAME=VALUE",
    help="Pin an engine argument, e.g. kv_cache_dtype=fp8; repeatable.",
)
_REPLICAS_OPTION = click.option(
    "--replicas", type=Number(min=1), metavar="N", help="Engines to run side by side."
)
_RAM_OPTION = click.option("--ram", metavar="SIZE", help="Host memory the plan may use, e.g. 8GiB.")
_ENDPOINT_OPTIONS = (
    click.option("--host", metavar="ADDRESS", help="Address the endpoint listens on [127.0.0.1]."),
    click.option(
        "--port",
        type=Number(min=0, max=65535),
        metavar="N",
        help="Port of the endpoint; 0 takes a free one [8000].",
    ),
)


def wish_options(command: _Command) -> _Command:
    """MODEL or STACK, and what may be changed about it on the command line."""
    options = (*_MODEL_OPTIONS, _REPLICAS_OPTION, *_ENGINE_OPTIONS, _RAM_OPTION, _PIN_OPTION)
    for decorate in reversed((*options, *_ENDPOINT_OPTIONS)):
        command = decorate(command)
    return command


def model_options(command: _Command) -> _Command:
    """The same without an endpoint: for verbs that serve nobody."""
    for decorate in reversed((*_MODEL_OPTIONS, *_ENGINE_OPTIONS, _PIN_OPTION)):
        command = decorate(command)
    return command


def wish_from(values: dict[str, Any], *, plan_file: str | None = None) -> Wish:
    """The wish that the parsed ``wish_options`` add up to."""
    return Wish(
        target=values["target"],
        plan_file=plan_file,
        context=values["context"],
        concurrency=values["concurrency"],
        replicas=values["replicas"],
        engine=values["engine"],
        engine_version=values["engine_version"],
        gpus=values["gpus"],
        workload=parse_workload(values.get("workload")),
        ram=values["ram"],
        pins=tuple(parse_pin(text) for text in values["pins"]),
        host=values["host"],
        port=values["port"],
    )


def parse_workload(text: str | None) -> Workload | None:
    """``isl=8192,osl=1024,concurrency=64`` as a workload; what is left out has its default."""
    if text is None:
        return None
    names = {"isl": "input_tokens", "osl": "output_tokens", "concurrency": "concurrency"}
    values: dict[str, int] = {}
    for part in text.split(","):
        key, _, value = part.partition("=")
        name = names.get(key.strip().lower())
        number = _workload_number(value)
        if name is None or number is None or name in values:
            twice = name is not None and number is not None
            what = (
                f"{key.strip()} stands twice"
                if twice
                else (f"{part.strip()!r} is none of isl=N, osl=N, concurrency=N")
            )
            raise StackFileError(
                f"--workload {text!r}: {what}",
                hint="for example: --workload isl=8k,osl=1k,concurrency=64 (k is 1,000, K is 1,024)",
            )
        values[name] = number
    return Workload(**values)


def _workload_number(text: str) -> int | None:
    try:
        number = parse_count(text)
    except ValueError:
        return None
    return number if 1 <= number <= _MOST else None


def parse_pin(text: str) -> tuple[str, SettingValue]:
    """``name=value`` as a pin: the value is JSON if it parses, else a string."""
    name, separator, value = text.partition("=")
    if not separator or not name:
        raise StackFileError(f"--set {text!r} is not NAME=VALUE", hint="for example: --set max_num_seqs=16")
    try:
        parsed = json.loads(value)
    except (ValueError, RecursionError):
        return name, value
    return name, json.dumps(parsed) if isinstance(parsed, dict | list) else parsed
