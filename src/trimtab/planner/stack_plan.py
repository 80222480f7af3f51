"""Pure. One plan for a whole stack: its models one after the other, each from what the earlier leave."""

from __future__ import annotations

from trimtab.core.checkpoint import GgufCheckpoint
from trimtab.core.hardware import Host, Inventory
from trimtab.core.plan import Plan
from trimtab.core.stack import Stack
from trimtab.planner.llama_cpp import plan_llama_cpp

__all__ = ["plan_stack"]


def plan_stack(
    stack: Stack, checkpoints: tuple[GgufCheckpoint, ...], host: Host, *, python: str, engine_version: str
) -> Plan:
    """The plan of every model of ``stack``; ``checkpoints`` is parallel to ``stack.models``.

    A model that does not fit leaves the plan whole, with ``fits`` False and what would fit instead.
    """
    outcomes = []
    reserved_bytes = 0
    for request, checkpoint in zip(stack.models, checkpoints, strict=True):
        outcome = plan_llama_cpp(
            request,
            checkpoint,
            host,
            ram_bytes=stack.ram_bytes,
            python=python,
            engine_version=engine_version,
            reserved_bytes=reserved_bytes,
        )
        outcomes.append(outcome)
        budgets = [replica.host for replica in outcome.model.replicas if replica.host is not None]
        reserved_bytes += sum(budget.requested_bytes + budget.prompt_cache_bytes for budget in budgets)
    return Plan(
        stack=stack.name,
        fits=all(outcome.model.fits for outcome in outcomes),
        models=tuple(outcome.model for outcome in outcomes),
        gateway=stack.gateway,
        hardware=Inventory(host=host),
        rejections=tuple(item for outcome in outcomes for item in outcome.rejections),
        nearest_fit=tuple(item for outcome in outcomes for item in outcome.nearest_fit),
    )
