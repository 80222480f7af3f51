"""Pure. The flags that may be given up for a wish, each with its price; pinned ones stay as they are."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from itertools import product
from typing import Final, TypeAlias

from trimtab.core.hardware import Gpu
from trimtab.planner.vllm_attention import is_fp8_kv_cache, resolve_kv_cache_dtype
from trimtab.planner.vllm_cards import kind_of
from trimtab.planner.vllm_settings import VllmSettings
from trimtab.planner.vllm_wish import VllmWish

__all__ = ["BATCHED_TOKENS", "CONCESSION_COSTS", "apply_concessions", "cost_of", "enumerate_variants"]

# Prefill tokens per step, best first. 8,192 is what vLLM takes on data-centre cards; less prefills slower.
BATCHED_TOKENS: Final = (8192, 4096, 2048)
# What each concession costs, against a wish that is met (1.0): a wish is never cut by more than that
# to avoid one. Halving the KV cache's precision is widely run without loss; images are a feature.
CONCESSION_COSTS: Final[dict[str, float]] = {
    "fp8_kv": 0.02,
    "text_only": 0.10,
    "batch_4096": 0.01,
    "batch_2048": 0.03,
    "no_prefix_caching": 0.15,
    "pipeline": 0.04,
    "mixed_cards": 0.05,
}


_Axis: TypeAlias = tuple[tuple[str, dict[str, object]], ...]


def enumerate_variants(
    wish: VllmWish, base: VllmSettings, gpus: tuple[Gpu, ...]
) -> Iterator[tuple[VllmSettings, tuple[str, ...]]]:
    """Settings for one replica on ``gpus`` and what each gives up, cheapest first; ``base`` is the first."""
    if wish.is_fully_pinned:
        yield base, ()
        return
    fixed: tuple[str, ...] = ("pipeline",) if base.pipeline_parallel_size > 1 else ()
    fixed += ("mixed_cards",) if len({kind_of(gpu) for gpu in gpus}) > 1 else ()
    axes = (_cache_axis(wish, base), _image_axis(wish, base), _batch_axis(wish, base), _prefix_axis(wish))
    variants: list[tuple[float, int, dict[str, object], tuple[str, ...]]] = []
    for combination in product(*axes):
        names = tuple(name for name, _ in combination if name)
        changes = {key: value for _, part in combination for key, value in part.items()}
        variants.append((cost_of(names), len(variants), changes, (*fixed, *names)))
    for _, _, changes, names in sorted(variants, key=lambda item: item[:2]):
        yield replace(base, **changes), names  # type: ignore[arg-type]


def cost_of(concessions: tuple[str, ...]) -> float:
    """What these concessions cost together, on the scale where a wish that is met is worth 1."""
    return sum(CONCESSION_COSTS[name] for name in concessions)


def apply_concessions(
    wish: VllmWish, base: VllmSettings, names: tuple[str, ...]
) -> tuple[VllmSettings, tuple[str, ...]]:
    """``base`` with the named concessions where the wish leaves them open: (settings, those applied)."""
    settings, applied = base, []
    for axis in (_cache_axis(wish, base), _image_axis(wish, base)):
        for name, changes in axis:
            if name in names:
                settings = replace(settings, **changes)  # type: ignore[arg-type]
                applied.append(name)
    return settings, tuple(applied)


def _cache_axis(wish: VllmWish, base: VllmSettings) -> _Axis:
    is_open = "kv_cache_dtype" not in wish.pins
    is_fp8_already = is_fp8_kv_cache(resolve_kv_cache_dtype(wish.facts, base))
    if not is_open or is_fp8_already:
        return (("", {}),)
    return ("", {}), ("fp8_kv", {"kv_cache_dtype": "fp8"})


def _image_axis(wish: VllmWish, base: VllmSettings) -> _Axis:
    is_open = not {"language_model_only", "limit_mm_per_prompt"} & set(wish.pins)
    if base.mm_limits_are_zero or not is_open:
        return (("", {}),)
    return ("", {}), ("text_only", {"mm_limits_are_zero": True})


def _batch_axis(wish: VllmWish, base: VllmSettings) -> _Axis:
    if "max_num_batched_tokens" in wish.pins:
        return (("", {}),)
    smaller: list[tuple[str, dict[str, object]]] = [
        (f"batch_{tokens}", {"max_num_batched_tokens": tokens})
        for tokens in BATCHED_TOKENS[1:]
        if tokens >= base.max_num_seqs
    ]
    return ("", {}), *smaller


def _prefix_axis(wish: VllmWish) -> _Axis:
    """Only hybrids pay for prefix caching: states at block borders, and blocks aligned to them."""
    if "enable_prefix_caching" in wish.pins or not wish.facts.is_hybrid or "mamba_cache_mode" in wish.pins:
        return (("", {}),)
    return ("", {}), ("no_prefix_caching", {"enable_prefix_caching": False, "mamba_cache_mode": "none"})
