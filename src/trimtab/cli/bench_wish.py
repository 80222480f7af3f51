"""I/O. The flags of ``trimtab bench ENDPOINT`` checked and put together; reads workload files."""

from __future__ import annotations

import json
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from trimtab.bench.connection import Target, decode_target
from trimtab.bench.driver import LoadPlan
from trimtab.bench.slo import Slo, decode_slos
from trimtab.bench.workload import Ask, LengthRange, Workload, decode_length_range, decode_models
from trimtab.bench.workload_files import decode_prompt_lines, decode_trace_lines
from trimtab.errors import EnvironmentMissingError, StackFileError

__all__ = ["BenchWish", "decode_wish", "make_plan", "make_warmup"]

_REQUESTS_PER_USER = 10
_MOST_WARMUP = 8
_MOST_S = 600.0
_MOST_USERS = 65_536
_CHARS_PER_WORD = 6


@dataclass(frozen=True, slots=True, kw_only=True)
class BenchWish:
    """What the command line asks for. ``loads`` are users or rates, as ``is_open`` says."""

    endpoint: str
    target: Target
    models: tuple[str, ...]
    workload: Workload
    loads: tuple[float, ...]
    is_open: bool
    is_search: bool
    slos: tuple[Slo, ...]
    extra: bytes
    values: dict[str, Any]


def decode_wish(values: dict[str, Any]) -> BenchWish:
    """StackFileError names the flag that is wrong or that another excludes."""
    endpoint = values["endpoint"]
    if endpoint is None or Path(endpoint).suffix in {".yaml", ".yml"}:
        endpoint = _running_endpoint()
    _check_pairs(values)
    is_open = values["rate"] is not None or values["find_max"] == "rate" or values["trace"] is not None
    slos = decode_slos(values["slos"])
    if values["find_max"] is not None and not slos:
        raise StackFileError("--find-max needs objectives", hint="add --slo ttft=2000 --slo tpot=50")
    text = values["rate"] if is_open else values["concurrency"]
    loads = _decode_loads(text or "1", flag="--rate" if is_open else "--concurrency", is_whole=not is_open)
    return BenchWish(
        endpoint=endpoint,
        target=decode_target(endpoint),
        models=tuple(values["models"]),
        workload=_decode_workload(values),
        loads=loads,
        is_open=is_open,
        is_search=values["find_max"] is not None,
        slos=slos,
        extra=_decode_extra(values),
        values=values,
    )


def _running_endpoint() -> str:
    """The gateway of the supervisor that runs here; a stack file names what that supervisor carries."""
    from trimtab.cli.folders import read_folders  # noqa: PLC0415 - only without an ENDPOINT
    from trimtab.launcher.state_folder import find_supervisor  # noqa: PLC0415

    record = find_supervisor(read_folders().state)
    if record is None or not record.port:
        raise EnvironmentMissingError(
            "trimtab runs nothing here to measure",
            hint="start it with trimtab up -d, or name an endpoint: trimtab bench http://127.0.0.1:8080",
        )
    return f"http://127.0.0.1:{record.port}"


def _check_pairs(values: dict[str, Any]) -> None:
    pairs = (
        ("concurrency", "rate"),
        ("prompts", "trace"),
        ("trace", "rate"),
        ("trace", "concurrency"),
        ("trace", "find_max"),
    )
    for one, other in pairs:
        if values[one] is not None and values[other] is not None:
            names = [f"--{name.replace('_', '-')}" for name in (one, other)]
            raise StackFileError(f"{names[0]} and {names[1]} exclude each other")
    if values["turns"] > 1 and (values["rate"] is not None or values["prompts"] or values["trace"]):
        raise StackFileError("--turns needs a closed loop of made-up prompts", hint="use --concurrency")


def _decode_loads(text: str, *, flag: str, is_whole: bool) -> tuple[float, ...]:
    try:
        found = tuple(float(int(part)) if is_whole else float(part) for part in text.split(","))
    except ValueError:
        raise StackFileError(
            f"{flag} {text!r} isn't a number or a list of them", hint=f"{flag} 1,2,4"
        ) from None
    if not all(0 < each <= _MOST_USERS for each in found):
        raise StackFileError(f"{flag} {text!r}: each must be above 0 and at most {_MOST_USERS}")
    return found


def _decode_workload(values: dict[str, Any]) -> Workload:
    asks: tuple[Ask, ...] = ()
    if values["prompts"] is not None:
        asks = decode_prompt_lines(_read_lines(values["prompts"]), where=values["prompts"])
    elif values["trace"] is not None:
        asks = decode_trace_lines(_read_lines(values["trace"]), where=values["trace"])
    return Workload(
        models=decode_models(values["models"] or ("",)),
        input_tokens=decode_length_range(values["input_tokens"], flag="--input-tokens"),
        output_tokens=decode_length_range(values["output_tokens"], flag="--output-tokens"),
        prefix_tokens=values["prefix_tokens"],
        num_prefixes=values["num_prefixes"],
        turns=values["turns"],
        asks=asks,
    )


def _read_lines(path: str) -> list[str]:
    try:
        return Path(path).read_text(encoding="utf-8").splitlines()
    except OSError as error:
        raise StackFileError(f"{path} cannot be read: {(error.strerror or str(error)).lower()}") from None
    except UnicodeDecodeError as error:
        raise StackFileError(f"{path} is not UTF-8 text: {error}") from None


def _decode_extra(values: dict[str, Any]) -> bytes:
    try:
        more = json.loads(values["body"])
    except ValueError as error:
        raise StackFileError(f"--body isn't JSON: {error}") from None
    if not isinstance(more, dict) or {"model", "messages", "max_tokens"} & set(more):
        raise StackFileError("--body must be an object without model, messages and max_tokens")
    fields: dict[str, Any] = {"stream": True, "stream_options": {"include_usage": True}, "temperature": 0.0}
    if values["ignore_eos"] and values["prompts"] is None:
        fields["ignore_eos"] = True
    return b"," + json.dumps({**fields, **more})[1:-1].encode()


def make_plan(wish: BenchWish, load: float) -> LoadPlan:
    """The plan of one load; a trace has its own times and count."""
    values, workload = wish.values, wish.workload
    users = 1 if wish.is_open else int(load)
    count = values["num_requests"]
    if count is None:
        count = len(workload.asks) if values["trace"] else _REQUESTS_PER_USER * max(users, 10 * wish.is_open)
    return LoadPlan(
        target=wish.target,
        path="/v1/chat/completions",
        api_key=values["api_key"],
        workload=workload,
        num_requests=count if values["duration"] is None or values["num_requests"] else 10_000_000,
        concurrency=users,
        rate=load if wish.is_open and not values["trace"] else None,
        arrivals=values["arrivals"],
        is_trace=values["trace"] is not None,
        most_s=values["duration"] or _MOST_S,
        timeout_s=values["timeout"],
        seed=values["seed"],
        extra=wish.extra,
    )


def make_warmup(wish: BenchWish, plan: LoadPlan) -> LoadPlan | None:
    """A closed loop with other words before counting begins; None with --warmup 0."""
    count = wish.values["warmup"]
    if count is None:
        count = min(_MOST_WARMUP, plan.concurrency)
    if count == 0:
        return None
    workload = plan.workload
    return LoadPlan(
        target=plan.target,
        path=plan.path,
        api_key=plan.api_key,
        workload=Workload(
            models=workload.models,
            input_tokens=workload.input_tokens,
            output_tokens=LengthRange(low=1, high=min(16, workload.output_tokens.high)),
            asks=tuple(_with_other_words(ask) for ask in workload.asks[:count]),
        ),
        num_requests=count,
        concurrency=min(count, max(plan.concurrency, 1)),
        timeout_s=plan.timeout_s,
        seed=plan.seed + 99,
        ruler=plan.ruler,
        extra=plan.extra,
        first_index=800_000,
    )


def _with_other_words(ask: Ask) -> Ask:
    """As long, but made up: a prompt that is asked twice comes from the prefix cache the second time."""
    if not ask.messages:
        return ask
    return replace(ask, messages="", input_tokens=max(1, len(ask.messages) // _CHARS_PER_WORD))
