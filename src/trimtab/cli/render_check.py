"""Pure. The judgement of somebody's launch command as lines: faults first, then prices, then changes."""

from __future__ import annotations

import json
from collections.abc import Iterable
from typing import TYPE_CHECKING, Final

from trimtab.cli.render import render_table
from trimtab.core.stack import SettingValue
from trimtab.core.written_check import SettingChange, WrittenCheck
from trimtab.stackfile.foreign_model import Finding
from trimtab.stackfile.foreign_secrets import shown

if TYPE_CHECKING:
    from trimtab.cli.foreign_plan import ForeignCheck, LeftOut

__all__ = ["render_check"]

_ORDER: Final = ("error", "harmful", "obsolete", "unknown", "note")


def render_check(checked: ForeignCheck) -> str:
    """Findings by severity, what each flag costs, and what the planner would do otherwise."""
    check = checked.check
    lines = list(_findings(checked.findings))
    if checked.left_out:
        flags = ", ".join(_place(item) for item in checked.left_out)
        lines.append(f"left out of what follows and of the plan above: {flags}")
    if check.costs:
        lines.append("what each flag does:")
        rows = [(cost.model, cost.name, _show(cost.value), cost.text) for cost in check.costs]
        lines.append(render_table(("model", "flag", "value", "effect"), rows, indent="  "))
    if check.changes:
        lines.append("what the planner would change:")
        changes = [
            (item.model, item.name, _written(item), _show(item.chosen), item.reason) for item in check.changes
        ]
        lines.append(render_table(("model", "flag", "written", "planned", "why"), changes, indent="  "))
    elif check.proposal is not None:
        lines.append("the planner would change nothing")
    else:
        lines.append("the planner has no plan for this on these cards either")
    if check.proposal is not None and check.changes:
        lines.extend(_compare(check))
    return "\n".join(lines)


def _findings(findings: Iterable[Finding]) -> Iterable[str]:
    ordered = sorted(findings, key=lambda item: (_ORDER.index(item.severity), _line_of(item)))
    if ordered:
        yield "findings:"
    for item in ordered:
        place = f"{item.where}: " if item.where else ""
        yield f"  {item.severity.upper():<9}{place}{item.text}"
        if item.hint:
            yield f"{'':<11}fix: {item.hint}"


def _line_of(finding: Finding) -> int:
    digits = finding.where.removeprefix("line ")
    return int(digits) if digits.isdecimal() else 0


def _place(item: LeftOut) -> str:
    return f"{shown(item.written)} (line {item.line})" if item.line else shown(item.written)


def _written(change: SettingChange) -> str:
    """What stands in the file, or the default that is taken since nothing does."""
    if change.is_default and change.written is not None:
        return f"(default {_show(change.written)})"
    return _show(change.written)


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
