"""Pure. What became of checking a command that somebody wrote: each flag's price, and what would change."""

from __future__ import annotations

from dataclasses import dataclass

from trimtab.core.plan import Plan
from trimtab.core.stack import SettingValue

__all__ = ["FlagCost", "SettingChange", "WrittenCheck"]


@dataclass(frozen=True, slots=True, kw_only=True)
class FlagCost:
    """What one written flag does to the KV cache of the fullest card, beside the engine's default.

    ``kv_cache_bytes`` is what it adds (negative: takes); ``kv_cache_tokens`` is that in tokens as the
    engine prints them, ``max_concurrency`` in requests of full length. None where the flag cannot be
    left out (the model would not start without it) or moves no memory.
    """

    model: str
    name: str
    value: SettingValue
    default: SettingValue
    kv_cache_bytes: int | None
    kv_cache_tokens: int | None
    max_concurrency: float | None
    text: str


@dataclass(frozen=True, slots=True, kw_only=True)
class SettingChange:
    """One setting that the planner would choose otherwise; None stands for the engine's default.

    ``is_default`` is set where nothing was written: ``written`` is then what the engine takes itself.
    """

    model: str
    name: str
    written: SettingValue
    chosen: SettingValue
    reason: str
    is_default: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class WrittenCheck:
    """The plan as it was written, the price of its flags, and the planner's own plan for the same wish.

    ``proposal`` is None, and there are no ``changes``, where the planner finds none that fits.
    """

    plan: Plan
    costs: tuple[FlagCost, ...]
    changes: tuple[SettingChange, ...]
    proposal: Plan | None
