"""Pure. Workloads that somebody wrote down: the user's own prompts, and traces with times and lengths.

Both are JSON lines. Prompts: ``{"messages": [...]}`` or ``{"prompt": "..."}`` with an optional
``max_tokens`` and ``model``. Traces: ``{"timestamp": ms, "input_length": n, "output_length": m}``, the
form of the Mooncake traces.
"""

from __future__ import annotations

import json
from collections.abc import Iterable

from trimtab.bench.workload import LONGEST_TOKENS, Ask
from trimtab.errors import StackFileError

__all__ = ["decode_prompt_lines", "decode_trace_lines"]


def decode_prompt_lines(lines: Iterable[str], *, where: str) -> tuple[Ask, ...]:
    """The user's own requests in order; StackFileError names the line."""
    found: list[Ask] = []
    for number, row in _rows(lines, where):
        messages, model = row.get("messages"), row.get("model")
        if messages is None and isinstance(row.get("prompt"), str):
            messages = [{"role": "user", "content": row["prompt"]}]
        if not isinstance(messages, list) or not messages:
            raise StackFileError(f"{where}:{number}: needs messages, a list, or prompt, a text")
        found.append(
            Ask(
                index=len(found),
                model=model if isinstance(model, str) else "",
                input_tokens=0,
                output_tokens=_count(row, "max_tokens", f"{where}:{number}", default=0),
                messages=json.dumps(messages, ensure_ascii=False),
            )
        )
    return _some(found, where)


def decode_trace_lines(lines: Iterable[str], *, where: str) -> tuple[Ask, ...]:
    """Requests with their times from the first one on, in order of time."""
    found: list[Ask] = []
    for number, row in _rows(lines, where):
        place = f"{where}:{number}"
        stamp = row.get("timestamp")
        if isinstance(stamp, bool) or not isinstance(stamp, int | float) or not 0 <= stamp < 1e12:
            raise StackFileError(f"{place}: timestamp is {stamp!r}, expected milliseconds")
        found.append(
            Ask(
                index=len(found),
                model="",
                input_tokens=_count(row, "input_length", place),
                output_tokens=_count(row, "output_length", place),
                start_word=number * 31,
                at_s=stamp / 1e3,
            )
        )
    found.sort(key=lambda ask: ask.at_s or 0.0)
    return _some(found, where)


def _rows(lines: Iterable[str], where: str) -> Iterable[tuple[int, dict[str, object]]]:
    for number, line in enumerate(lines, start=1):
        if not line.strip():
            continue
        try:
            row = json.loads(line)
        except ValueError as error:
            raise StackFileError(f"{where}:{number}: isn't JSON: {error}") from None
        if not isinstance(row, dict):
            raise StackFileError(f"{where}:{number}: is a {type(row).__name__}, expected an object")
        yield number, row


def _count(row: dict[str, object], name: str, place: str, *, default: int | None = None) -> int:
    value = row.get(name, default)
    lowest = 0 if default == 0 else 1
    if isinstance(value, bool) or not isinstance(value, int) or not lowest <= value <= LONGEST_TOKENS:
        raise StackFileError(f"{place}: {name} is {value!r}, expected {lowest} to {LONGEST_TOKENS}")
    return value


def _some(found: list[Ask], where: str) -> tuple[Ask, ...]:
    if not found:
        raise StackFileError(f"{where}: holds no requests")
    return tuple(found)
