"""Pure. Whether an engine that says it sleeps has really freed its cards, from what the driver says."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass

from trimtab.core.gpu_facts import GpuProcess
from trimtab.core.state import SleepLimits
from trimtab.units import format_bytes

__all__ = ["CardsNow", "judge_cards"]


@dataclass(frozen=True, slots=True, kw_only=True)
class CardsNow:
    """One look at the cards: who holds memory of which, and what is free of each, as far as can be seen."""

    processes: tuple[GpuProcess, ...] = ()
    free_bytes: Mapping[int, int]


def judge_cards(
    limits: SleepLimits,
    cards: Collection[int],
    pids: Collection[int],
    *,
    before: CardsNow | None,
    now: CardsNow,
) -> str:
    """Empty where every card is free of all but the planned rest, else which is not and by what.

    What the driver says of these processes counts. Where it names none of them (other pid namespaces) or not
    what they hold, what the card has gained since ``before`` does; where nothing tells, it is not free.
    """
    for card in sorted(cards):
        held = [one.used_bytes for one in now.processes if one.pid in pids and one.gpu_index == card]
        known = [amount for amount in held if amount is not None]
        if held and len(known) == len(held):
            if sum(known) > limits.card_bytes:
                return (
                    f"its processes still hold {format_bytes(sum(known))} of card {card}, where"
                    f" {format_bytes(limits.card_bytes)} were planned"
                )
            continue
        fault = _judge_gain(limits, card, before, now)
        if fault:
            return fault
    return "" if cards else "it has no card whose memory could be looked at"


def _judge_gain(limits: SleepLimits, card: int, before: CardsNow | None, now: CardsNow) -> str:
    if before is None or card not in before.free_bytes or card not in now.free_bytes:
        return f"nothing tells what it holds of card {card}"
    gained = now.free_bytes[card] - before.free_bytes[card]
    if gained >= limits.freed_bytes:
        return ""
    return (
        f"card {card} has {format_bytes(max(0, gained))} more free, where {format_bytes(limits.freed_bytes)}"
        " were to be freed"
    )
