"""Pure. What fits in a given number of bytes: blocks, the figures vLLM prints, needed bytes, longest request.

Exact, with the engine's own integer arithmetic (v1/core/kv_cache_utils.py of 0.17.1 and 0.25.1,
kv_cache_planning.py of 0.33.0).
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

from trimtab.core.model_facts import ModelFacts
from trimtab.planner.vllm_kv_cache import KvCacheLayout
from trimtab.planner.vllm_settings import VllmSettings
from trimtab.planner.vllm_versions import VersionLine

__all__ = ["KvCacheCapacity", "estimate_kv_cache_capacity"]


@dataclass(frozen=True, slots=True, kw_only=True)
class KvCacheCapacity:
    """What fits, as the engine will print it and as it really is.

    ``tokens`` and ``max_concurrency`` are the printed figures; ``needed_bytes`` is the cache one
    request of ``max_model_len`` takes on the fullest stage, as the start-up check prices it;
    ``starts`` is that check's verdict and ``holds_one_request`` the truth (0.17 starts hybrids that
    can never schedule a full-length request). ``suggested_max_model_len`` is the length the error
    message would name (0: not even one token); ``max_model_len_that_fits`` the longest request that
    really fits, up to the model's own limit. ``full_requests`` counts requests of ``max_model_len``
    that can run at once, the null block taken off.
    """

    blocks: int
    tokens: int
    max_concurrency: float
    blocks_per_request: int
    needed_bytes: int
    starts: bool
    holds_one_request: bool
    suggested_max_model_len: int
    max_model_len_that_fits: int
    full_requests: int
    max_model_len: int


@dataclass(frozen=True)
class _Pool:
    """A layout with the bytes that each stage has for it."""

    layout: KvCacheLayout
    available_bytes: tuple[int, ...]
    batched_tokens: int
    line: VersionLine
    override: int | None

    @cached_property
    def blocks(self) -> int:
        if self.override is not None:
            return self.override
        return min(
            max(available, 0) // size
            for available, size in zip(self.available_bytes, self.layout.bytes_per_block, strict=True)
        )

    def checked_blocks(self, tokens: int) -> int:
        """Blocks that the start-up check counts for one request."""
        if self.line.prices_first_group_only:
            spec = self.layout.groups[0].spec
            length = -(-tokens // self.layout.context_parallel_size)
            return spec.blocks_per_request(length, self.batched_tokens)
        return self.layout.blocks_per_request(tokens, self.batched_tokens)

    def passes_check(self, tokens: int) -> bool:
        need = self.checked_blocks(tokens) + self.line.null_blocks
        for available, size in zip(self.available_bytes, self.layout.bytes_per_block, strict=True):
            room = self.override * size if self.override is not None else available
            if room <= 0 or need * size > room:
                return False
        return True

    def holds(self, tokens: int) -> bool:
        return self.layout.blocks_per_request(tokens, self.batched_tokens) <= self.blocks - 1


def _longest(limit: int, fits: Sequence[bool]) -> int:
    """The largest length up to ``limit`` for which ``fits`` (True first, then False) holds; 0 for none."""
    return bisect_left(fits, True, 0, limit, key=lambda value: not value)


class _Lengths(Sequence[bool]):
    """Lengths 1, 2, 3 … seen as a sequence of verdicts, for bisection."""

    def __init__(self, pool: _Pool, limit: int, *, is_check: bool) -> None:
        self._pool = pool
        self._limit = limit
        self._is_check = is_check

    def __len__(self) -> int:
        return self._limit

    def __getitem__(self, index: int) -> bool:  # type: ignore[override]
        tokens = index + 1
        return self._pool.passes_check(tokens) if self._is_check else self._pool.holds(tokens)


def estimate_kv_cache_capacity(
    layout: KvCacheLayout,
    available_bytes: tuple[int, ...],
    *,
    facts: ModelFacts,
    settings: VllmSettings,
    line: VersionLine,
) -> KvCacheCapacity:
    """Blocks and printed figures for ``available_bytes`` per pipeline stage (the smallest rank of each)."""
    pool = _Pool(
        layout=layout,
        available_bytes=available_bytes,
        batched_tokens=settings.max_num_batched_tokens,
        line=line,
        override=settings.num_gpu_blocks_override,
    )
    limit = facts.max_context_tokens
    wanted = settings.max_model_len
    if wanted is None:
        wanted = _longest(limit, _Lengths(pool, limit, is_check=True)) or limit
    suggested = _longest(wanted, _Lengths(pool, wanted, is_check=True))
    reach = max(limit, wanted)
    fits = _longest(reach, _Lengths(pool, reach, is_check=False))
    per_request = layout.blocks_per_request(wanted, pool.batched_tokens)
    concurrency = pool.blocks / per_request
    return KvCacheCapacity(
        blocks=pool.blocks,
        tokens=_printed_tokens(pool, concurrency, settings, wanted),
        max_concurrency=concurrency,
        blocks_per_request=per_request,
        needed_bytes=pool.checked_blocks(wanted) * max(layout.bytes_per_block),
        starts=pool.passes_check(wanted),
        holds_one_request=pool.holds(wanted),
        suggested_max_model_len=suggested,
        max_model_len_that_fits=fits,
        full_requests=max(0, pool.blocks - 1) // per_request,
        max_model_len=wanted,
    )


def _printed_tokens(pool: _Pool, concurrency: float, settings: VllmSettings, max_model_len: int) -> int:
    """Up to 0.19 a state group counts as one block of max_model_len tokens unless it is aligned."""
    if pool.line.tokens_report == "concurrency":
        return int(concurrency * max_model_len)
    groups = pool.layout.groups
    is_whole = settings.mamba_cache_mode == "none"
    shortest = min(
        max_model_len if group.spec.kind == "state" and is_whole else group.spec.block_tokens
        for group in groups
    )
    return pool.blocks // len(groups) * shortest * pool.layout.context_parallel_size
