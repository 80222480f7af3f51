"""Pure. What an engine's /metrics tell about its progress: counters that only working can move.

Names as vLLM 0.17 to 0.33 and llama.cpp's server export them. vLLM's come from its engine core (the API
process only repeats the last it heard), so a core that hangs or is stopped leaves all of them as they are;
``kv_cache_usage_perc`` moves with each chunk of a long prompt, when no token is counted yet. llama.cpp's
/metrics is answered by the loop that computes: there the answer is a sign of life by itself.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Final

__all__ = ["EngineProgress", "read_progress"]

_VLLM: Final = frozenset(
    {
        "vllm:generation_tokens_total",
        "vllm:iteration_tokens_total_count",
        "vllm:kv_cache_usage_perc",
        "vllm:num_preemptions_total",
        "vllm:num_requests_running",
        "vllm:num_requests_waiting",
        "vllm:prefix_cache_queries_total",
        "vllm:prompt_tokens_total",
    }
)
_LLAMA_CPP: Final = frozenset(
    {
        "llamacpp:n_decode_total",
        "llamacpp:prompt_tokens_total",
        "llamacpp:requests_deferred",
        "llamacpp:requests_processing",
        "llamacpp:tokens_predicted_total",
    }
)
_RUNNING: Final = frozenset({"vllm:num_requests_running", "llamacpp:requests_processing"})
_WAITING: Final = frozenset({"vllm:num_requests_waiting", "llamacpp:requests_deferred"})
_PREEMPTIONS: Final = frozenset({"vllm:num_preemptions_total"})
_KV_USED: Final = "vllm:kv_cache_usage_perc"
# name{labels} value [timestamp], as Prometheus' text format has it.
_SAMPLE: Final = re.compile(
    r"^([a-z]+:[a-z_]+)(?:\{[^\n]{0,2000}\})? ([0-9.eE+-]{1,40})(?: \d+)?$", re.MULTILINE
)


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineProgress:
    """One reading; another ``marks`` than before means that the engine has worked in between.

    ``answer_is_life``: whoever computes answered this itself. ``kv_used_ratio`` is the share of its
    cache in use (its fullest rank's), None where it does not tell; ``num_preemptions`` counts evictions.
    """

    marks: tuple[tuple[str, float], ...]
    num_running: int
    num_waiting: int
    answer_is_life: bool
    kv_used_ratio: float | None = None
    num_preemptions: int = 0


def read_progress(text: str) -> EngineProgress | None:
    """The reading in a /metrics document; None where it has no counters that are known."""
    found: dict[str, float] = {}
    used_ratios = []
    for name, value in _SAMPLE.findall(text):
        if name in _VLLM or name in _LLAMA_CPP:
            number = _to_number(value)
            if number is not None:
                found[name] = found.get(name, 0.0) + number
                if name == _KV_USED:
                    used_ratios.append(number)
    if not found:
        return None
    return EngineProgress(
        marks=tuple(sorted(found.items())),
        num_running=_total(found, _RUNNING),
        num_waiting=_total(found, _WAITING),
        answer_is_life=any(name in _LLAMA_CPP for name in found),
        kv_used_ratio=max(used_ratios, default=None),
        num_preemptions=_total(found, _PREEMPTIONS),
    )


def _total(found: dict[str, float], names: frozenset[str]) -> int:
    return int(sum(value for name, value in found.items() if name in names))


def _to_number(text: str) -> float | None:
    try:
        number = float(text)
    except ValueError:
        return None
    return number if abs(number) < 1e300 else None
