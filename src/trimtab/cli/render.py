"""Pure. Text for people: plans, replicas and findings as lines; no arithmetic beyond formatting."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterable

from trimtab.cli.render_gpus import render_card_bars, render_gpu_lines, render_idle
from trimtab.core.hardware import Gpu
from trimtab.core.plan import HostBudget, ModelPlan, Plan, SwapPlan
from trimtab.core.preflight import Finding
from trimtab.units import format_bytes, format_duration_s

__all__ = [
    "render_embedding_snippets",
    "render_explanation",
    "render_findings",
    "render_plan",
    "render_ranking_snippets",
    "render_snippets",
    "render_table",
]

# Candidates that fit are no reason why a plan does not.
_OUTRANKED = ("outranked", "tight")
# Warnings of a plan that may yet not hold.
_TIGHT = ("runtime_peak_exceeds_card", "tight")
_MARKS = {"ok": "ok     ", "warning": "WARNING", "error": "ERROR  "}


def render_plan(plan: Plan) -> str:
    """The plan as a short block per model, then what was rejected and what would fit instead."""
    gpus = plan.hardware.gpus if plan.hardware is not None else ()
    said: dict[str, str] = {}
    blocks = [
        _render_model(model, gpus, said, has_figures=not _is_impossible(model, plan)) for model in plan.models
    ]
    blocks.extend(
        f"endpoint: {item.name}, which runs elsewhere: nothing of it is planned" for item in plan.externals
    )
    blocks.extend(render_idle(plan))
    if plan.swap is not None:
        blocks.append(_render_swap(plan.swap))
    if not plan.fits:
        blocks.append(_render_misfit(plan))
    return "\n".join(blocks)


def _render_swap(swap: SwapPlan) -> str:
    """Which models may be loaded at once, and which are to begin with."""
    first = ", ".join(swap.resident_sets[0]) if swap.resident_sets else "none"
    if len(swap.resident_sets) > 1:
        lines = ["loaded on demand: these models do not all fit at once, so they are swapped"]
        lines.extend(f"  fit together {', '.join(names) or 'none'}" for names in swap.resident_sets)
    else:
        lines = ["loaded on demand: all models fit at once"]
    lines.append(f"  loaded first {first}")
    if swap.keep_loaded:
        lines.append(f"  never out    {', '.join(swap.keep_loaded)}")
    if swap.idle_unload_s is not None:
        lines.append(f"  unloaded     after {format_duration_s(swap.idle_unload_s)} without a request")
    for one in swap.sleepers:
        ram, card = format_bytes(one.host_bytes), format_bytes(one.card_bytes)
        lines.append(f"  sleeps       {one.model}: takes {ram} of RAM, keeps up to {card} of each card")
    lines.extend(f"  is stopped   {name}: {reason}" for name, reason in swap.stopped)
    return "\n".join(lines)


def _is_impossible(model: ModelPlan, plan: Plan) -> bool:
    """Whether no engine would run it at any size: a card with more memory changes nothing.

    A model's first rejection is what is wrong with the plan that is shown.
    """
    own = (item.code for item in plan.rejections if ("model", model.name) in item.candidate)
    return not model.fits and next(own, "memory") != "memory"


def _render_model(model: ModelPlan, gpus: tuple[Gpu, ...], said: dict[str, str], *, has_figures: bool) -> str:
    """One model; ``said``: warning → the model above that it stands under; those of this one are added."""
    is_tight = any(item.code in _TIGHT for item in model.warnings)
    verdict = "DOES NOT FIT" if not model.fits else "TIGHT" if is_tight else "fits"
    lines = [
        f"plan: {model.name} with {model.engine} {model.engine_version}: {verdict}",
        f"  checkpoint   {model.checkpoint}",
        f"  context      {model.max_model_len:,} tokens per request",
    ]
    if model.replicas[0].per_gpu and has_figures:
        lines.extend(render_gpu_lines(model, gpus))
    for replica in model.replicas:
        if replica.host is not None and replica.max_concurrency is not None:
            requests = "request" if replica.max_concurrency == 1 else "requests"
            lines.append(f"  concurrency  {replica.max_concurrency:g} {requests} at once")
        if replica.host is not None:
            lines.extend(_render_host_budget(replica.host))
    for text in dict.fromkeys(item.text for item in model.warnings):
        first = said.setdefault(text, model.name)
        if first == model.name:
            lines.append(f"  warning      {text}")
        elif model.name not in text:  # one that names it is about it where it stands
            lines.append(f"  warning      as for {first} above: {_first_clause(text)}")
    return "\n".join(lines)


def _first_clause(text: str) -> str:
    return re.split(r"[,:;]\s", text, maxsplit=1)[0]


def _render_host_budget(budget: HostBudget) -> list[str]:
    parts = (
        ("weights", budget.weights_bytes),
        ("KV cache", budget.kv_cache_bytes),
        ("compute", budget.compute_bytes),
        ("process", budget.process_bytes),
    )
    listed = " + ".join(f"{name} {format_bytes(size)}" for name, size in parts)
    requested, available = format_bytes(budget.requested_bytes), format_bytes(budget.available_bytes)
    lines = [
        f"  memory       {requested} of {available} RAM (± {format_bytes(budget.error_bytes)})",
        f"               = {listed}",
    ]
    if budget.prompt_cache_bytes:
        lines.append(
            f"               up to {format_bytes(budget.prompt_cache_bytes)} more for remembered prompts"
        )
    return lines


def _render_misfit(plan: Plan) -> str:
    reasons = [item for item in plan.rejections if item.code not in _OUTRANKED]
    shown = {item.text.partition(",")[0].partition(":")[0]: item for item in reversed(reasons)}
    lines = [f"does not fit: {item.text}" for item in reasons if item in shown.values()]
    if len(reasons) > len(lines):
        lines.append(f"  ({len(reasons) - len(lines)} other ways do not fit either: --explain lists them)")
    if plan.nearest_fit:
        lines.append("would fit:")
        lines.extend(f"  {change.text}" for change in plan.nearest_fit)
    return "\n".join(lines)


def render_explanation(plan: Plan) -> str:
    """Every setting with its value, origin and reason, then the command."""
    lines = list(render_card_bars(plan))
    for model in plan.models:
        lines.append(f"settings of {model.name}:")
        rows = [(item.name, str(item.value), item.origin, item.reason) for item in model.settings]
        lines.append(render_table(("setting", "value", "origin", "why"), rows, indent="  "))
        lines.append("command:")
        lines.append(f"  {shlex.join(model.argv)}")
    if plan.rejections:
        lines.append("not chosen:")
        lines.extend(f"  {rejection.text}" for rejection in plan.rejections)
    return "\n".join(lines)


def render_findings(findings: Iterable[Finding]) -> str:
    """One line per finding, its fix on the next line."""
    lines: list[str] = []
    for finding in findings:
        lines.append(f"{_MARKS[finding.severity]} {finding.code:<15} {finding.text}")
        if finding.fix:
            lines.append(f"{'':<8}{'':<15} fix: {finding.fix}")
    return "\n".join(lines)


def render_table(header: tuple[str, ...], rows: Iterable[tuple[str, ...]], *, indent: str = "") -> str:
    """Columns padded to their widest cell; trailing blanks are cut."""
    table = [header, *rows]
    widths = [max(len(row[column]) for row in table) for column in range(len(header))]
    lines = [
        indent + "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True))
        for row in table
    ]
    return "\n".join(line.rstrip() for line in lines)


def render_snippets(url: str, model: str, *, key: str | None) -> str:
    """Pure. A curl line and an openai-SDK program that work as pasted, for the endpoint at ``url``."""
    body = f"""{{
  "model": "{model}", "max_tokens": 64, "temperature": 0,
  "messages": [{{"role": "user", "content": "Say hello."}}]}}"""
    program = f"""answer = client.chat.completions.create(
    model="{model}", max_tokens=64, temperature=0,
    messages=[{{"role": "user", "content": "Say hello."}}])
print(answer.choices[0].message.content)"""
    return _snippets(url, "chat/completions", body, program, key)


def render_embedding_snippets(url: str, model: str, *, key: str | None) -> str:
    """Pure. The same for a model that embeds instead of generating."""
    body = f'{{"model": "{model}", "input": "Say hello."}}'
    program = f"""answer = client.embeddings.create(model="{model}", input="Say hello.")
print(len(answer.data[0].embedding), "numbers")"""
    return _snippets(url, "embeddings", body, program, key)


def render_ranking_snippets(url: str, model: str, *, key: str | None) -> str:
    """Pure. The same for a model that scores documents; the SDK has no method for that."""
    body = f'{{"model": "{model}", "query": "a small sail", "documents": ["a jib", "a mast"]}}'
    program = f"""body = {{"model": "{model}", "query": "a small sail", "documents": ["a jib", "a mast"]}}
print(client.post("/rerank", body=body, cast_to=object)["results"])"""
    return _snippets(url, "rerank", body, program, key)


def _snippets(url: str, path: str, body: str, program: str, key: str | None) -> str:
    header = f" \\\n  -H 'Authorization: Bearer {key}'" if key is not None else ""
    return f"""endpoint: {url}/v1

try it with curl:

curl {url}/v1/{path} -H 'Content-Type: application/json'{header} -d '{body}'

or with the openai SDK (pip install openai):

from openai import OpenAI
client = OpenAI(base_url="{url}/v1", api_key="{key or "unused"}")
{program}
"""
