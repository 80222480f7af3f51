"""Pure. What one answer cost in tokens, read off its bytes, and what a day's cost."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Final, NamedTuple

__all__ = ["TokenCount", "UsageTotal", "read_usage"]

# Text inside an answer cannot look like these: its quotes are escaped.
_USAGE: Final = re.compile(rb'"usage"\s*:\s*\{[^{}]*(?:\{[^{}]*\}[^{}]*)*\}')
_PROMPT: Final = re.compile(rb'"prompt_tokens"\s*:\s*(\d+)')
_COMPLETION: Final = re.compile(rb'"completion_tokens"\s*:\s*(\d+)')
# The same in one go, as vLLM and most others write it.
_PLAIN: Final = re.compile(
    rb'"usage"\s*:\s*\{\s*"prompt_tokens"\s*:\s*(\d{1,15}),\s*"(?:total_tokens"\s*:\s*\d+,\s*")?'
    rb'completion_tokens"\s*:\s*(\d{1,15})[,}\s]'
)
# The word may also be a whole answer, or stand for none (null): then the one before it is looked at.
_MAX_LOOKS: Final = 8
# What llama.cpp says at the end of a stream whose client did not ask for usage.
_CACHED_N: Final = re.compile(rb'"cache_n"\s*:\s*(\d+)')
_PROMPT_N: Final = re.compile(rb'"prompt_n"\s*:\s*(\d+)')
_PREDICTED_N: Final = re.compile(rb'"predicted_n"\s*:\s*(\d+)')


class TokenCount(NamedTuple):
    """Tokens of one answer; estimated where the engine did not tell: one per event, its prompt unknown."""

    prompt: int = 0
    completion: int = 0
    is_estimated: bool = False


def read_usage(data: bytes, *, num_events: int = 0) -> TokenCount:
    """The count that a whole answer, or the last events of a stream of ``num_events``, tells."""
    at = len(data)
    for _ in range(_MAX_LOOKS):
        at = data.rfind(b'"usage"', 0, at)
        if at < 0:
            break
        plain = _PLAIN.match(data, at)
        if plain is not None:
            return TokenCount(int(plain[1]), int(plain[2]))
        told = _USAGE.match(data, at)
        if told is not None:
            return TokenCount(_number(_PROMPT, told[0]), _number(_COMPLETION, told[0]))
    if b'"predicted_n"' in data:
        prompt = _number(_PROMPT_N, data) + _number(_CACHED_N, data)
        return TokenCount(prompt, _number(_PREDICTED_N, data))
    return TokenCount(0, num_events, is_estimated=num_events > 0)


def _number(pattern: re.Pattern[bytes], data: bytes) -> int:
    found = pattern.search(data)
    # Longer is no count of tokens, and no number of SQLite's.
    return int(found[1][:15]) if found is not None else 0


@dataclass(frozen=True, slots=True, kw_only=True)
class UsageTotal:
    """Answers of one day (UTC, as 2026-11-30), key (by name, empty without one) and model.

    ``num_errors`` of the requests have a status from 400 on, ``num_estimated`` tokens that are estimated.
    """

    day: str
    key: str
    model: str
    num_requests: int = 0
    num_errors: int = 0
    prompt_tokens: int = 0
    completion_tokens: int = 0
    num_estimated: int = 0
