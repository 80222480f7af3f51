"""Pure. What the checkpoint's own draft head (MTP) would cost on top of a chosen plan.

It is priced and offered, never switched on: it costs memory for certain, and gains what share of its drafts
is accepted, which depends on the text and is known only from a run (docs/decisions/0003).
"""

from __future__ import annotations

from trimtab.core.plan import Rejection
from trimtab.planner.vllm_evaluate import Evaluation, Evaluator
from trimtab.planner.vllm_wish import VllmWish

__all__ = ["price_mtp"]

_PIN = "speculative_config"
_FORM = '{"method": "mtp", "num_speculative_tokens": 1}'
# Other spellings of the same argument, from 0.25 on.
_SPELLINGS = (_PIN, "spec_method", "spec_model", "spec_tokens")


def price_mtp(wish: VllmWish, item: Evaluation) -> Rejection | None:
    """The plan with one drafted token per step; None where there is no head or nothing is left to choose."""
    is_decided = wish.is_fully_pinned or any(name in wish.pins for name in _SPELLINGS)
    if wish.facts.mtp is None or is_decided or not item.fits:
        return None
    priced = Evaluator(wish).judge_with_draft_head(item)
    return Rejection(
        candidate=(("model", wish.name), (_PIN, _FORM)),
        code="speculation",
        text=f"models.{wish.name}, MTP: {_price(item, priced)}",
    )


def _price(item: Evaluation, priced: Evaluation) -> str:
    if not priced.fits:
        return f"the checkpoint's draft head does not fit on top: {priced.reason}"
    after, before = priced.memory.capacity, item.memory.capacity
    each = " per replica" if item.num_replicas > 1 else ""
    return (
        f"{after.tokens:,} instead of {before.tokens:,} tokens of KV cache{each} "
        f"({after.max_concurrency:.2f} instead of {before.max_concurrency:.2f} requests); how many drafts "
        f"are accepted only a run tells, so it is not switched on: "
        f"--set '{_PIN}={_FORM}'"
    )
