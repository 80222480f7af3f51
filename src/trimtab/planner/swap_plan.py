"""Pure. Plans models that do not all fit at once, so that they can be loaded on demand: in rounds.

The first round holds what is always loaded and as many others as fit beside it; later rounds get what the
former leave. A model that fits in no round comes back as it would be refused.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import TypeAlias

from trimtab.core.hardware import Gpu
from trimtab.core.plan import Change, ModelPlan, Rejection
from trimtab.core.stack import ModelRequest
from trimtab.core.workload import Workload
from trimtab.planner.llama_cpp import LlamaCppOutcome
from trimtab.planner.resident_sets import first_that_fit, in_loading_order, pack_in_rounds
from trimtab.planner.vllm_budget import CONTEXT_BYTES
from trimtab.planner.vllm_nearest import FindAlternatives
from trimtab.planner.vllm_placement import Placement, place_models
from trimtab.planner.vllm_plan import VllmOutcome, outcome_of, plan_vllm
from trimtab.planner.vllm_wish import VllmWish

__all__ = ["InTurn", "PlanOnCpu", "host_copies", "less_held", "plan_cpu_in_turn", "plan_gpus_in_turn"]

# (request, bytes that others take) → its plan.
PlanOnCpu: TypeAlias = Callable[[ModelRequest, int], LlamaCppOutcome]


@dataclass(frozen=True, slots=True, kw_only=True)
class InTurn:
    """Every model's plan by its name, and the round that it was planned in; none for what fits in none.

    ``ram`` is (bytes, error) of models on the CPU, ``host_copy_bytes`` what a copy of the weights of one on
    cards takes of RAM.
    """

    models: dict[str, ModelPlan]
    round_of: dict[str, int]
    rejections: tuple[Rejection, ...] = ()
    nearest_fit: tuple[Change, ...] = ()
    ram: dict[str, tuple[int, int]] = field(default_factory=dict)
    host_copy_bytes: dict[str, int] = field(default_factory=dict)


def plan_gpus_in_turn(
    wishes: tuple[VllmWish, ...],
    gpus: tuple[Gpu, ...],
    find_alternatives: FindAlternatives | None,
    workload: Workload | None,
) -> InTurn | None:
    """The plans of ``wishes`` in rounds; None where those that are kept loaded do not fit together."""
    by_name = {wish.name: wish for wish in wishes}

    def written(names: Iterable[str]) -> tuple[VllmWish, ...]:
        chosen = set(names)
        return tuple(wish for wish in wishes if wish.name in chosen)

    names, keep = _in_order(wish.request for wish in wishes)
    first = first_that_fit(names, lambda some: place_models(written(some), gpus).fits)
    if not keep <= set(first):
        return None
    wanted = written(first)
    outcomes = [outcome_of(wanted, place_models(wanted, gpus), workload)] if first else []
    held = [model for outcome in outcomes for model in outcome.models if model.name in keep]
    left = less_held(gpus, held)
    rest = tuple(name for name in names if name not in first)
    rounds, misfits = pack_in_rounds(rest, lambda some: _place_beside(written(some), gpus, left).fits)
    outcomes += [
        outcome_of(written(some), _place_beside(written(some), gpus, left), workload) for some in rounds
    ]
    alone = [plan_vllm((by_name[name],), left, find_alternatives, workload) for name in misfits]
    models = {model.name: model for outcome in (*outcomes, *alone) for model in outcome.models}
    return InTurn(
        models=models,
        round_of=_numbered((first, *rounds)),
        rejections=tuple(item for outcome in (*alone, *outcomes) for item in outcome.rejections),
        nearest_fit=tuple(item for outcome in alone for item in outcome.nearest_fit),
        host_copy_bytes={name: size for outcome in outcomes for name, size in host_copies(outcome).items()},
    )


def host_copies(outcome: VllmOutcome) -> dict[str, int]:
    """RAM for a copy of each model's weights, over all of its replicas and their cards."""
    found = {}
    for model, item in zip(outcome.models, outcome.placement.chosen, strict=True):
        ranks = [weights.host_copy_bytes for weights in item.memory.weights]
        found[model.name] = sum(ranks) * item.shape.tensor_parallel_size * item.num_replicas
    return found


def _place_beside(wishes: tuple[VllmWish, ...], gpus: tuple[Gpu, ...], left: tuple[Gpu, ...]) -> Placement:
    """On cards of which nothing is held, else on all as far as they are free."""
    untouched = tuple(gpu for gpu, rest in zip(gpus, left, strict=True) if gpu == rest)
    named = {index for wish in wishes for index in wish.card_indices or ()}
    if untouched and named <= {gpu.index for gpu in untouched}:
        placement = place_models(wishes, untouched)
        if placement.fits:
            return placement
    return place_models(wishes, left)


def less_held(gpus: tuple[Gpu, ...], models: Iterable[ModelPlan]) -> tuple[Gpu, ...]:
    """The cards as they are while ``models`` are loaded."""
    held: dict[int, int] = {}
    for model in models:
        for replica in model.replicas:
            for index, budget in zip(replica.gpus, replica.per_gpu, strict=True):
                taken = budget.inside_bytes + budget.outside_budget_bytes + budget.error_bytes + CONTEXT_BYTES
                held[index] = held.get(index, 0) + taken
    return tuple(gpu.less(held.get(gpu.index, 0)) for gpu in gpus)


def plan_cpu_in_turn(requests: tuple[ModelRequest, ...], plan_one: PlanOnCpu) -> InTurn | None:
    """The same for models on the CPU, each from the RAM that those loaded beside it leave."""
    by_name = {request.name: request for request in requests}

    def plan_in_a_row(names: Iterable[str], reserved: int) -> list[tuple[str, LlamaCppOutcome]]:
        outcomes: list[tuple[str, LlamaCppOutcome]] = []
        for name in names:
            outcome = plan_one(by_name[name], reserved)
            outcomes.append((name, outcome))
            reserved += _taken(outcome.model)[0]
        return outcomes

    names, keep = _in_order(requests)
    first = first_that_fit(names, lambda some: _all_fit(plan_in_a_row(some, 0)))
    if not keep <= set(first):
        return None
    planned = plan_in_a_row(first, 0)
    held = sum(_taken(outcome.model)[0] for name, outcome in planned if name in keep)
    rest = tuple(name for name in names if name not in first)
    rounds, misfits = pack_in_rounds(rest, lambda some: _all_fit(plan_in_a_row(some, held)))
    for some in rounds:
        planned += plan_in_a_row(some, held)
    alone = [(name, plan_one(by_name[name], held)) for name in misfits]
    return InTurn(
        models={name: outcome.model for name, outcome in (*planned, *alone)},
        round_of=_numbered((first, *rounds)),
        rejections=tuple(item for _, outcome in (*alone, *planned) for item in outcome.rejections),
        nearest_fit=tuple(item for _, outcome in alone for item in outcome.nearest_fit),
        ram={name: _taken(outcome.model) for name, outcome in planned},
    )


def _all_fit(outcomes: list[tuple[str, LlamaCppOutcome]]) -> bool:
    return all(outcome.model.fits for _, outcome in outcomes)


def _taken(model: ModelPlan) -> tuple[int, int]:
    """Bytes that a model takes at most, and the error of that."""
    budgets = [replica.host for replica in model.replicas if replica.host is not None]
    taken = sum(budget.requested_bytes + budget.prompt_cache_bytes for budget in budgets)
    return taken, sum(budget.error_bytes for budget in budgets)


def _in_order(requests: Iterable[ModelRequest]) -> tuple[tuple[str, ...], set[str]]:
    ordered = in_loading_order(requests)
    return tuple(item.name for item in ordered), {item.name for item in ordered if item.keep_loaded}


def _numbered(rounds: tuple[tuple[str, ...], ...]) -> dict[str, int]:
    return {name: number for number, names in enumerate(rounds) for name in names}
