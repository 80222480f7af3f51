"""Pure. How models share the cards, as lines: budgets, a bar per card, what a plan leaves idle."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from trimtab.core.hardware import Gpu
from trimtab.core.plan import GpuBudget, ModelPlan, Plan, ReplicaPlan
from trimtab.core.workload import Interval, SpeedPlan
from trimtab.units import GIB

__all__ = ["render_card_bars", "render_gpu_lines", "render_idle"]

_BAR_WIDTH: Final = 60
# Letter → (part of the budget, its name on screen), in the order of the bar.
_PARTS: Final = (
    ("W", "weights_bytes", "weights"),
    ("A", "activation_bytes", "activation"),
    ("N", "non_torch_bytes", "non-torch"),
    ("G", "cuda_graph_bytes", "CUDA graphs"),
    ("K", "kv_cache_bytes", "KV cache"),
    ("O", "outside_budget_bytes", "outside the budget"),
)


def render_gpu_lines(model: ModelPlan, gpus: tuple[Gpu, ...]) -> list[str]:
    """Cards, cache and memory of a model's replicas; equal replicas are said once."""
    lead = model.replicas[0]
    names = {gpu.index: gpu.name for gpu in gpus}
    sets = " | ".join(",".join(str(index) for index in replica.gpus) for replica in model.replicas)
    kinds = sorted({names.get(index, "card") for replica in model.replicas for index in replica.gpus})
    copies = f" ({len(model.replicas)} replicas)" if len(model.replicas) > 1 else ""
    cards = f"  cards        {sets}: {', '.join(kinds)}{copies}"
    if min(budget.kv_cache_bytes for budget in lead.per_gpu) <= 0:
        return [cards, *_budget_lines(lead.per_gpu)]
    lines = [f"  concurrency  {_concurrency(model)}", f"  KV cache     {_tokens(lead)}"]
    return [cards, *lines, *_budget_lines(lead.per_gpu), *_speed_lines(model.speed)]


def _concurrency(model: ModelPlan) -> str:
    total = sum(replica.max_concurrency or 0 for replica in model.replicas)
    sequences = next((item.value for item in model.settings if item.name == "max_num_seqs"), None)
    if sequences is None:
        return f"{total:.2f} requests of that length at once"
    most = int(sequences) * len(model.replicas)
    if total >= most:
        return f"{most} at once (room for {total:.2f} of that length)"
    return f"{total:.2f} requests of that length at once, up to {most} shorter ones"


def _tokens(replica: ReplicaPlan) -> str:
    blocks = f"{replica.kv_blocks or 0:,} blocks of {replica.kv_block_tokens or 0:,}"
    return f"{replica.kv_cache_tokens or 0:,} tokens as vLLM prints them, {blocks}"


def _budget_lines(budgets: tuple[GpuBudget, ...]) -> list[str]:
    fullest = min(budgets, key=lambda budget: budget.kv_cache_bytes)
    lack = -fullest.kv_cache_bytes
    sizes: dict[str, int] = {name: getattr(fullest, field) for _, field, name in _PARTS[:-1]}
    if lack >= 0:
        del sizes["KV cache"]
    parts = " + ".join(f"{name} {_gib(size)}" for name, size in sizes.items())
    requested = fullest.requested_bytes
    asked = "the KV cache is pinned" if requested is None else f"{_gib(requested)} asked for"
    outside = _gib(fullest.outside_budget_bytes)
    total = f"{_gib(fullest.total_bytes)} GiB per card (± {_gib(fullest.error_bytes)})"
    return [
        f"  memory       {asked} of {total}, {outside} more outside the budget",
        f"               = {parts} GiB" if lack < 0 else f"               {parts} GiB: {_gib(lack)} too much",
    ]


def _speed_lines(speed: SpeedPlan | None) -> list[str]:
    """Means and their bands; what they are for stands beside them."""
    if speed is None:
        return []
    load = speed.workload
    users = "one user" if load.concurrency == 1 else f"{load.concurrency} users"
    rates = f"{speed.output_tokens_per_s_per_user.mean:,.0f} tokens/s per user"
    if load.concurrency > 1:
        rates += f", {speed.output_tokens_per_s.mean:,.0f} in all"
    lengths = f"{load.input_tokens:,} tokens in and {load.output_tokens:,} out"
    return [
        f"  speed        TTFT {_ms(speed.ttft_ms)}, TPOT {_ms(speed.tpot_ms)}: {rates}",
        f"               for {users}, {lengths}; {speed.basis}",
    ]


def _ms(interval: Interval) -> str:
    digits = 1 if interval.mean < 100 else 0
    return f"{interval.mean:,.{digits}f} ms ({interval.low:,.{digits}f} to {interval.high:,.{digits}f})"


def _gib(num_bytes: int) -> str:
    return f"{num_bytes / GIB:.2f}"


def render_idle(plan: Plan) -> list[str]:
    """One line that names the cards nothing uses."""
    if not plan.idle_gpus:
        return []
    names = {gpu.index: gpu.name for gpu in (plan.hardware.gpus if plan.hardware else ())}
    listed = ", ".join(f"{index} ({names.get(index, 'card')})" for index in plan.idle_gpus)
    return [f"idle: card{'s' if len(plan.idle_gpus) > 1 else ''} {listed}"]


def render_card_bars(plan: Plan) -> Iterator[str]:
    """A bar per card with all that runs on it, in start order: each letter is a sixtieth of the card."""
    gpus = plan.hardware.gpus if plan.hardware else ()
    names = {gpu.index: gpu.name for gpu in gpus}
    users: dict[int, list[tuple[str, GpuBudget]]] = {}
    for model in plan.models:
        for replica in model.replicas:
            for index, budget in zip(replica.gpus, replica.per_gpu, strict=False):
                users.setdefault(index, []).append((model.name, budget))
    for index, held in sorted(users.items()):
        total = held[0][1].total_bytes
        used = sum(_held_bytes(budget) for _, budget in held)
        who = " + ".join(name for name, _ in held)
        yield f"card {index}  {names.get(index, '')}, {_gib(used)} of {_gib(total)} GiB: {who}"
        yield f"  [{_bar([budget for _, budget in held], total)}]"
    if users:
        yield "  " + ", ".join(f"{letter} {name}" for letter, _, name in _PARTS) + ", . free"


def _held_bytes(budget: GpuBudget) -> int:
    return sum(max(0, getattr(budget, field)) for _, field, _ in _PARTS)


def _bar(budgets: list[GpuBudget], total_bytes: int) -> str:
    """The parts in order, rounded so that their ends are where they belong; an overflow ends in !."""
    text, end = "", 0
    for budget in budgets:
        for letter, field, _ in _PARTS:
            end += max(0, getattr(budget, field))
            cells = round(_BAR_WIDTH * end / total_bytes)
            text += letter * (cells - len(text))
    return text.ljust(_BAR_WIDTH, ".") if len(text) <= _BAR_WIDTH else text[: _BAR_WIDTH - 1] + "!"
