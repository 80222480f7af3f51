"""Pure. The arguments with which trimtab makes a vLLM server able to sleep, and a plan without them."""

from __future__ import annotations

from dataclasses import replace
from typing import Final

from trimtab.core.plan import ModelPlan, Setting
from trimtab.engines.vllm_flags import find_flag

__all__ = ["SLEEP_FLAG", "is_put_to_sleep", "with_sleep_settings", "without_sleep_settings"]

SLEEP_FLAG: Final = "enable_sleep_mode"
_CACHE_SIZE: Final = "kv_cache_memory_bytes"
_ADDED: Final = frozenset({SLEEP_FLAG, _CACHE_SIZE})
# With any of these the user has given the cache a size.
_SIZES: Final = frozenset({_CACHE_SIZE, "num_gpu_blocks_override"})
_USERS: Final = frozenset({"pinned", "asked"})


def is_put_to_sleep(model: ModelPlan) -> bool:
    """Whether trimtab itself puts the engine to sleep; a user's own flag is for the user's calls."""
    return any(item.name == SLEEP_FLAG and item.origin == "chosen" for item in model.settings)


def with_sleep_settings(model: ModelPlan) -> ModelPlan:
    """The flag that makes an engine able to sleep, and the size of its cache where the user has set none.

    Left to itself, vLLM before 0.32 counts memory that its weights' pool has given back as free twice over,
    and takes a larger cache than its share has room for (benchmarks/sleep: 0.5 to 2.2 GiB).
    """
    reason = "it sleeps when it gives way: its weights wait in RAM, and a wake takes seconds"
    added = [Setting(name=SLEEP_FLAG, value=True, origin="chosen", reason=reason)]
    is_sized = any(item.name in _SIZES for item in model.settings)
    if not is_sized and find_flag(model.engine_version, _CACHE_SIZE) is not None:
        size = min(budget.kv_cache_bytes for replica in model.replicas for budget in replica.per_gpu)
        reason = "as planned: with sleep mode vLLM takes more than its share has room for"
        added.append(Setting(name=_CACHE_SIZE, value=size, origin="chosen", reason=reason))
    return replace(model, settings=(*model.settings, *added))


def without_sleep_settings(model: ModelPlan) -> ModelPlan:
    """The model without what ``with_sleep_settings`` has added; what the user pinned stays."""
    if not is_put_to_sleep(model):
        return model
    kept = (item for item in model.settings if item.name not in _ADDED or item.origin in _USERS)
    return replace(model, settings=tuple(kept))
