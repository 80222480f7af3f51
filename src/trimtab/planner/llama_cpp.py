"""Pure. Plans one model on llama.cpp and the CPU: slots, context, threads and caches within free RAM.

What is asked or pinned is obeyed and checked; the rest is chosen, with the reason beside the value. A
wish that does not fit comes back whole, with the nearest changes that do (llama_cpp_nearest).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Final

from trimtab.core.checkpoint import GgufCheckpoint
from trimtab.core.hardware import Host
from trimtab.core.plan import Change, ModelPlan, PlanWarning, Rejection, ReplicaPlan
from trimtab.core.stack import ModelRequest
from trimtab.engines.llama_cpp import REQUIRED_XLLAMACPP, LlamaCpp
from trimtab.planner.llama_cpp_choice import Choice, RamLimit, choose, largest_context
from trimtab.planner.llama_cpp_memory import is_upper_bound
from trimtab.planner.llama_cpp_nearest import enumerate_changes
from trimtab.planner.llama_cpp_settings import explain_settings
from trimtab.units import format_bytes

__all__ = ["LlamaCppOutcome", "plan_llama_cpp"]

# More changes than these are noise on a screen.
_MAX_CHANGES: Final = 4


@dataclass(frozen=True, slots=True, kw_only=True)
class LlamaCppOutcome:
    """The plan of one model, what was rejected on the way, and what would fit when it does not."""

    model: ModelPlan
    rejections: tuple[Rejection, ...] = ()
    nearest_fit: tuple[Change, ...] = ()


def plan_llama_cpp(  # noqa: PLR0913 - the whole world of a pure plan comes in here
    request: ModelRequest,
    checkpoint: GgufCheckpoint,
    host: Host,
    *,
    ram_bytes: int | None,
    python: str,
    engine_version: str,
    reserved_bytes: int = 0,
) -> LlamaCppOutcome:
    """The plan for ``request`` on ``host``.

    ``ram_bytes`` caps what the stack may use, None takes what is free; ``reserved_bytes`` is what
    models planned earlier take of it. Raises StackFileError when the request contradicts itself or
    the model; what is too large for the RAM is a plan with ``fits`` False.
    """
    ram = RamLimit(free_bytes=host.available_ram_bytes, cap_bytes=ram_bytes, reserved_bytes=reserved_bytes)
    choice = choose(request, checkpoint, ram)
    model = _model_plan(request, checkpoint, host, choice, engine_version=engine_version)
    model = replace(model, argv=LlamaCpp().render_argv(model, python=python))
    model = replace(model, env=LlamaCpp().render_env(model))
    if choice.fits:
        return LlamaCppOutcome(model=model, rejections=choice.rejections)
    changes = _verified_changes(request, checkpoint, ram, choice)
    reason = _why_not(request, choice, ram, has_changes=bool(changes))
    rejection = Rejection(candidate=choice.as_candidate(), code="ram", text=reason)
    return LlamaCppOutcome(model=model, rejections=(rejection, *choice.rejections), nearest_fit=changes)


def _verified_changes(
    request: ModelRequest, checkpoint: GgufCheckpoint, ram: RamLimit, choice: Choice
) -> tuple[Change, ...]:
    """The changes that make the planner itself say that it fits, least intrusive first."""
    found: list[Change] = []
    for proposal in enumerate_changes(request, checkpoint, ram, choice):
        if proposal.is_last_resort and found:
            break
        tried = choose(proposal.request, checkpoint, proposal.ram)
        if tried.fits:
            needed = format_bytes(tried.budget.requested_bytes + tried.budget.prompt_cache_bytes)
            text = f"{proposal.text}: {needed} of {format_bytes(proposal.ram.usable_bytes)}"
            found.append(Change(change=proposal.change, text=text))
        if len(found) == _MAX_CHANGES:
            break
    return tuple(found)


def _why_not(request: ModelRequest, choice: Choice, ram: RamLimit, *, has_changes: bool) -> str:
    budget = choice.budget
    parts = (
        ("weights", budget.weights_bytes),
        ("KV cache", budget.kv_cache_bytes),
        ("compute", budget.compute_bytes),
        ("process", budget.process_bytes),
        ("prompt cache", budget.prompt_cache_bytes),
    )
    listed = " + ".join(f"{name} {format_bytes(size)}" for name, size in parts if size)
    needed = budget.requested_bytes + budget.prompt_cache_bytes + budget.error_bytes
    error = format_bytes(budget.error_bytes)
    text = (
        f"models.{request.name} needs {format_bytes(needed)} RAM ({listed}, and {error} for the error of this"
        f" estimate) and may use {format_bytes(ram.usable_bytes)} ({ram.describe()})"
    )
    return text if has_changes else f"{text}; a smaller model or more RAM is needed"


def _model_plan(
    request: ModelRequest, checkpoint: GgufCheckpoint, host: Host, choice: Choice, *, engine_version: str
) -> ModelPlan:
    replica = ReplicaPlan(
        replica_id=f"{request.name}/0",
        host=choice.budget,
        kv_cache_tokens=choice.shape.pool_tokens,
        max_concurrency=float(choice.shape.num_slots),
        max_model_len_that_fits=largest_context(request, checkpoint, choice),
    )
    return ModelPlan(
        name=request.name,
        checkpoint=checkpoint.path,
        fits=choice.fits,
        engine="llama_cpp",
        engine_version=engine_version,
        runtime=request.runtime,
        max_model_len=choice.max_model_len,
        family=request.family or "plain",
        thinking=request.thinking,
        settings=explain_settings(request, checkpoint, host, choice),
        replicas=(replica,),
        warnings=tuple(_warnings(checkpoint, choice, engine_version)),
    )


def _warnings(checkpoint: GgufCheckpoint, choice: Choice, engine_version: str) -> Iterator[PlanWarning]:
    if engine_version != REQUIRED_XLLAMACPP:
        yield PlanWarning(
            code="engine-version",
            text=f"planned for xllamacpp {REQUIRED_XLLAMACPP}, {engine_version} is installed",
            source="the memory model and the setting names were measured with the former",
        )
    if is_upper_bound(checkpoint):
        yield PlanWarning(
            code="kv-cache-upper-bound",
            text=f"the KV cache of architecture {checkpoint.architecture} is counted as if every layer kept"
            " the whole context; the engine will take less",
            source="the layer pattern is not in the GGUF header",
        )
    if not checkpoint.has_chat_template and not choice.shape.embeddings:
        yield PlanWarning(
            code="no-chat-template",
            text="the file has no chat template: llama.cpp falls back to ChatML, and answers may be poor",
            source="tokenizer.chat_template of the GGUF header",
        )
    if choice.is_context_shortened:
        yield PlanWarning(
            code="context-shortened",
            text=f"the model is trained for {checkpoint.trained_context_tokens:,} tokens,"
            f" {choice.max_model_len:,} are planned: more would take too much of the RAM",
            source=choice.rejections[-1].text if choice.rejections else "",
        )
