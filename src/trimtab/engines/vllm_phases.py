"""Pure. What vLLM's start-up log tells: which phase the boot is in, how far, and what was measured.

Texts were read in the sources of vLLM 0.17.1, 0.25.1 and 0.32.0 (2026-11-30) and compared with the log
of a real start of 0.32.0 on a CPU. A line that is not known changes nothing.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Final

__all__ = ["BootFacts", "BootPhase", "BootState", "follow_boot", "read_boot"]


class BootPhase(StrEnum):
    """The phases of a start in their order; a boot never goes back, though some phases may be absent."""

    IMPORT = "import"
    DOWNLOAD = "download"
    LOAD = "load"
    COMPILE = "compile"
    PROFILE = "profile"
    GRAPHS = "graphs"
    WARM_UP = "warm-up"
    READY = "ready"


@dataclass(frozen=True, slots=True, kw_only=True)
class BootFacts:
    """What the engine measured about itself; None where the log does not say. GiB are of one card.

    With several workers ``weights_gib`` is the largest and the KV figures are the smallest of them,
    because that is what decides. ``kv_cache_tokens`` of a hybrid model from 0.20 on is concurrency
    times ``max_model_len``, on 0.19 and older a quarter of the truth for Qwen3.5. Times are seconds.
    """

    engine_version: str | None = None
    weights_gib: float | None = None
    load_s: float | None = None
    compile_s: float | None = None
    available_kv_gib: float | None = None
    kv_cache_tokens: int | None = None
    max_concurrency: float | None = None
    tokens_per_request: int | None = None
    attention_block_tokens: int | None = None
    estimated_graph_gib: float | None = None
    graph_gib: float | None = None
    graph_s: float | None = None
    init_s: float | None = None
    fitted_max_model_len: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class BootState:
    """Where a boot is; ``done`` and ``total`` count the steps of this phase where the log counts them."""

    phase: BootPhase = BootPhase.IMPORT
    done: int | None = None
    total: int | None = None
    facts: BootFacts = BootFacts()


_ORDER: Final = {phase: number for number, phase in enumerate(BootPhase)}
# A part of a line → the phase that it shows.
_MARKS: Final[tuple[tuple[str, BootPhase], ...]] = (
    ("Application startup complete", BootPhase.READY),
    ("init engine (profile, create kv cache, warmup model) took", BootPhase.WARM_UP),
    ("Graph capturing finished", BootPhase.WARM_UP),
    ("JIT kernel warmup starting", BootPhase.WARM_UP),
    ("Warming up model for the compilation", BootPhase.WARM_UP),
    ("Capturing CUDA graphs", BootPhase.GRAPHS),
    ("Capturing prefill CUDA graphs", BootPhase.GRAPHS),
    ("Capturing decode CUDA graphs", BootPhase.GRAPHS),
    ("KV cache size:", BootPhase.PROFILE),
    ("Available KV cache memory:", BootPhase.PROFILE),
    ("Profiling CUDA graph memory", BootPhase.PROFILE),
    ("Estimated CUDA graph memory", BootPhase.PROFILE),
    ("Initial profiling/warmup run took", BootPhase.PROFILE),
    ("torch.compile takes", BootPhase.PROFILE),
    ("torch.compile took", BootPhase.PROFILE),
    ("torch.compile and initial profiling/warmup", BootPhase.PROFILE),
    ("Encoder cache will be initialized", BootPhase.PROFILE),
    ("Starting torch.compile", BootPhase.COMPILE),
    ("Dynamo bytecode transform time", BootPhase.COMPILE),
    ("Compiling a graph for compile range", BootPhase.COMPILE),
    ("for vLLM's torch.compile", BootPhase.COMPILE),
    ("Time spent downloading weights", BootPhase.LOAD),
    ("checkpoint shards:", BootPhase.LOAD),
    ("Loading weights took", BootPhase.LOAD),
    ("Model loading took", BootPhase.LOAD),
    ("Starting to load model", BootPhase.LOAD),
)
# huggingface_hub's progress bars, whose names are its own: "Fetching 12 files: 33%|…| 4/12" and the files'.
_DOWNLOAD: Final = re.compile(r"^(?:Fetching \d+ files|Downloading|[\w.-]+\.safetensors):\s")
# tqdm: "20% Completed | 1/5 [00:01<…", "10%|█ | 5/51 [00:02<…"; a bar rewrites its line, the last one counts.
_STEPS: Final = re.compile(r"\| *(\d{1,9})/(\d{1,9}) \[")

_NUMBER: Final = r"(-?[\d,]{1,20}(?:\.\d{1,9})?)"
_PATTERNS: Final = {
    name: re.compile(pattern)
    for name, pattern in {
        "weights_gib": rf"Model loading took {_NUMBER} GiB",
        "load_s": rf"Loading weights took {_NUMBER} s",
        "compile_s": rf"torch\.compile (?:takes|took) {_NUMBER} s",
        "available_kv_gib": rf"Available KV cache memory: {_NUMBER} GiB",
        "kv_cache_tokens": rf"KV cache size: {_NUMBER} tokens",
        "max_concurrency": rf"Maximum concurrency for [\d,]{{1,20}} tokens per request: {_NUMBER}x",
        "tokens_per_request": rf"Maximum concurrency for {_NUMBER} tokens per request",
        "attention_block_tokens": rf"Setting attention block size to {_NUMBER} tokens",
        "estimated_graph_gib": rf"Estimated CUDA graph memory: {_NUMBER} GiB",
        "graph_gib": rf"Graph capturing finished in [\d.]{{1,20}} secs?, took {_NUMBER} GiB",
        "graph_s": rf"Graph capturing finished in {_NUMBER} sec",
        "init_s": rf"init engine \(profile, create kv cache, warmup model\) took {_NUMBER} s",
        "fitted_max_model_len": rf"Auto-fit max_model_len: reduced from [\d,]{{1,20}} to {_NUMBER} ",
    }.items()
}
_VERSION: Final = re.compile(r"LLM engine \(v([\w.+-]{1,40})\)")
_WHOLE: Final = frozenset(
    {"kv_cache_tokens", "tokens_per_request", "attention_block_tokens", "fitted_max_model_len"}
)
_SMALLEST: Final = frozenset({"available_kv_gib", "kv_cache_tokens", "max_concurrency"})


def read_boot(lines: Iterable[str]) -> BootState:
    """The state after these lines of one start."""
    state = BootState()
    for line in lines:
        state = follow_boot(state, line)
    return state


def follow_boot(state: BootState, line: str) -> BootState:
    """The state after one more line; any text is taken, what is not understood changes nothing."""
    facts = _read_facts(state.facts, line)
    phase = _read_phase(line)
    if phase is None or _ORDER[phase] < _ORDER[state.phase]:
        return state if facts is state.facts else replace(state, facts=facts)
    steps = _STEPS.findall(line)
    done, total = (int(steps[-1][0]), int(steps[-1][1])) if steps else (None, None)
    if phase is state.phase and done is None:
        done, total = state.done, state.total
    return BootState(phase=phase, done=done, total=total, facts=facts)


def _read_phase(line: str) -> BootPhase | None:
    for text, phase in _MARKS:
        if text in line:
            return phase
    return BootPhase.DOWNLOAD if _DOWNLOAD.match(line) else None


def _read_facts(facts: BootFacts, line: str) -> BootFacts:
    found: dict[str, int | float | str] = {}
    for name, pattern in _PATTERNS.items():
        match = pattern.search(line)
        value = None if match is None else _to_number(match[1])
        if value is not None:
            before = getattr(facts, name)
            better = min if name in _SMALLEST else max
            found[name] = value if before is None else better(before, value)
            if name in _WHOLE:
                found[name] = int(found[name])
    version = _VERSION.search(line)
    if version is not None:
        found["engine_version"] = version[1]
    return replace(facts, **found) if found else facts  # type: ignore[arg-type]


def _to_number(text: str) -> float | None:
    try:
        return float(text.replace(",", ""))
    except ValueError:
        return None
