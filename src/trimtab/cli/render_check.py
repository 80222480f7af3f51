"""Pure. The judgement of somebody's launch command as lines: faults first, then prices, then changes."""

from __future__ import annotations

import json
from collections.abc import Iterable
from typing import Final

from trimtab.cli.render import render_table
from trimtab.core.stack import SettingValue
from trimtab.core.written_check import WrittenCheck
from trimtab.stackfile.foreign_model import Finding

__all__ = ["render_check"]

_ORDER: Final = ("error", "harmful", "obsolete", "unknown", "note")


def render_check(findings: Iterable[Finding], check: WrittenCheck) -> str:
    """Findings by severity, what each flag costs, and what the planner would do otherwise."""
    lines: list[str] = []
    ordered = sorted(findings, key=lambda item: _ORDER.index(item.severity))
    if ordered:
        lines.append("findings:")
    for item in ordered:
        place = f"{item.where}: " if item.where else ""
        lines.append(f"  {item.severity.upper():<9}{place}{item.text}")
        if item.hint:
            lines.append(f"{'':<11}fix: {item.hint}")
    if check.costs:
        lines.append("what each flag does:")
        rows = [(cost.model, cost.name, _show(cost.value), cost.text) for cost in check.costs]
        lines.append(render_table(("model", "flag", "value", "effect"), rows, indent="  "))
    if check.changes:
        lines.append("what the planner would change:")
        changes = [
            (item.model, item.name, _show(item.written), _show(item.chosen), item.reason)
            for item in check.changes
        ]
        lines.append(render_table(("model", "flag", "written", "planned", "why"), changes, indent="  "))
    elif check.proposal is not None:
        lines.append("the planner would change nothing")
    if check.proposal is not None and check.changes:
        lines.extend(_compare(check))
    return "\n".join(lines)


def _compare(check: WrittenCheck) -> Iterable[str]:
    if check.proposal is None:
        return
    for before, after in zip(check.plan.models, check.proposal.models, strict=True):
        was = sum(replica.max_concurrency or 0 for replica in before.replicas) if before.fits else 0.0
        now = sum(replica.max_concurrency or 0 for replica in after.replicas)
        yield (
            f"  {after.name}: {now:.2f} requests of {after.max_model_len:,} tokens at once,"
            f" {was:.2f} of {before.max_model_len:,} as written"
        )


def _show(value: SettingValue) -> str:
    return "(default)" if value is None else value if isinstance(value, str) else json.dumps(value)
