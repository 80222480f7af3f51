"""Pure. Which models on cards sleep when they give way, what that takes of RAM and cards, why others cannot.

A vLLM engine that sleeps (level 1) copies its weights to pinned RAM, frees them and the KV cache on the card;
its processes stay, and with them all that lies outside vLLM's own pools: CUDA context, communicators, graphs,
kernels, workspaces. Whoever is loaded meanwhile has that much less of the card, so shares are planned anew
beside it. The RAM stays taken after a wake (vllm-project/vllm issue 16663): PyTorch keeps pinned memory.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Final

from trimtab.core.hardware import Gpu
from trimtab.core.plan import GpuBudget, ModelPlan, Plan, SleepPlan
from trimtab.core.workload import Workload
from trimtab.engines.vllm import Vllm
from trimtab.engines.vllm_env import DEV_MODE_VARIABLE
from trimtab.engines.vllm_flags import find_flag
from trimtab.engines.vllm_sleep import SLEEP_FLAG, with_sleep_settings, without_sleep_settings
from trimtab.planner.swap_plan import InTurn, host_copies, less_held
from trimtab.planner.vllm_attention import is_fp8_kv_cache
from trimtab.planner.vllm_placement import place_models
from trimtab.planner.vllm_plan import VllmOutcome, outcome_of
from trimtab.planner.vllm_wish import VllmWish
from trimtab.units import GIB, MIB, format_bytes

__all__ = ["Sleep", "estimate_residue_bytes", "plan_sleep", "without_sleep"]

# What the processes of an engine take of RAM beside the copy, the API server and one per card: 2.6 GiB in all
# for Llama-3.1-8B on one card (benchmarks/sleep), more with several cards and images.
_SERVER_BYTES: Final = 2 * GIB
_RANK_BYTES: Final = 2 * GIB
# What comes with the first requests, on top of what the plan counts at the start: 133 MiB of 998 that
# Llama-3.1-8B kept of an H200 (benchmarks/sleep).
_LATER_BYTES: Final = 512 * MIB
# What the pools free may be a little less than weights and cache; measured: all of both.
_FREED_SHARE: Final = 0.9
# What sleepers keep depends on their shares, and these on what the others keep: so often until it settles.
_SETTLE_TRIES: Final = 3
_CROWD: Final = 4
# What would be given up for sleeping; share, sequences and batch may become smaller.
_GIVEN_UP: Final = ("kv_cache_dtype", "language_model_only", "tensor_parallel_size", "pipeline_parallel_size")


@dataclass(frozen=True, slots=True, kw_only=True)
class Sleep:
    """The plans with room for what sleeps, who does, and (model, why not) for those whose engine could."""

    part: InTurn
    sleepers: tuple[SleepPlan, ...] = ()
    stopped: tuple[tuple[str, str], ...] = ()


def estimate_residue_bytes(budget: GpuBudget, *, has_workspace: bool) -> int:
    """The most that a sleeping engine keeps of a card: all but weights, cache and passing activations.

    ``has_workspace``: experts and linear attention compute in buffers that stay, which are counted as
    activations (35B-A3B kept 2.5 GiB of an H200, see benchmarks/sleep).
    """
    counted = budget.outside_budget_bytes + budget.non_torch_bytes + budget.cuda_graph_bytes
    return counted + (budget.activation_bytes if has_workspace else 0) + _LATER_BYTES


def plan_sleep(
    part: InTurn,
    wishes: tuple[VllmWish, ...],
    gpus: tuple[Gpu, ...],
    workload: Workload | None,
    *,
    ram_bytes: int,
) -> Sleep:
    """``part`` planned anew with as many models asleep as RAM and cards have room for, higher priority first.

    Guaranteed: on every card what is loaded at one time and what of others sleeps there fit together, RAM
    holds the weights of all that may sleep, and no model has a shorter context or a smaller cache type.
    """
    groups = _sharing_groups(part, wishes)
    taking_turns = {name for group in groups for name in group}
    reasons = {
        wish.name: _find_obstacle(wish, part.models[wish.name])
        for wish in wishes
        if wish.name in taking_turns and not wish.request.keep_loaded
    }
    able = [wish for wish in wishes if reasons.get(wish.name) == ""]
    chosen: list[SleepPlan] = []
    for wish in sorted(able, key=lambda wish: -wish.request.priority):
        one = _describe(wish, part)
        left = ram_bytes - sum(other.host_bytes for other in chosen)
        if one.host_bytes <= left:
            chosen.append(one)
        else:
            taken, room = format_bytes(one.host_bytes), format_bytes(max(0, left))
            reasons[wish.name] = f"asleep it would take {taken} of RAM, and {room} are left"
    sleepers: list[SleepPlan] = []
    for group in groups:
        own = tuple(wish for wish in wishes if wish.name in group)
        here = [one for one in chosen if one.model in group]
        while here:
            made = _plan_beside(part, tuple(here), own, gpus, workload)
            if made is not None:
                part = made.part
                sleepers.extend(made.sleepers)
                break
            # One less, or half of a crowd: each try plans all of them anew.
            number = len(here) // 2 if len(here) > _CROWD else len(here) - 1
            for one in here[number:]:
                kept = format_bytes(one.card_bytes)
                reasons[one.model] = f"asleep it would keep {kept} of its cards, which others need whole"
            here = here[:number]
    return Sleep(part=part, sleepers=tuple(sleepers), stopped=_told(reasons))


def _sharing_groups(part: InTurn, wishes: tuple[VllmWish, ...]) -> tuple[frozenset[str], ...]:
    """Models that take cards in turn, directly or through others; one that nobody displaces is in none."""
    groups: list[tuple[set[str], set[int]]] = []
    for wish in wishes:
        if wish.name not in part.round_of:
            continue
        names, cards = {wish.name}, _cards_of(part.models[wish.name])
        for other in [one for one in groups if one[1] & cards]:
            groups.remove(other)
            names, cards = other[0] | names, other[1] | cards
        groups.append((names, cards))
    turns = (frozenset(names) for names, _ in groups)
    return tuple(names for names in turns if len({part.round_of[name] for name in names}) > 1)


def without_sleep(plan: Plan, name: str, reason: str) -> Plan | None:
    """The plan with this model stopped when it gives way, for this reason; None where it is so already."""
    if plan.swap is None or all(one.model != name for one in plan.swap.sleepers):
        return None
    models = tuple(_without_flag(model) if model.name == name else model for model in plan.models)
    swap = replace(
        plan.swap,
        sleepers=tuple(one for one in plan.swap.sleepers if one.model != name),
        stopped=(*plan.swap.stopped, (name, reason)),
    )
    return replace(plan, models=models, swap=swap)


def _told(reasons: Mapping[str, str]) -> tuple[tuple[str, str], ...]:
    return tuple((name, reason) for name, reason in reasons.items() if reason)


def _find_obstacle(wish: VllmWish, model: ModelPlan) -> str:
    """Why this engine is never put to sleep, whatever room there is; empty where it may be."""
    if wish.request.runtime != "process":
        return "it runs in a container, where vLLM's development endpoints would be open to other containers"
    if find_flag(wish.version.version, SLEEP_FLAG) is None:
        return f"vLLM {wish.version.version} has no {SLEEP_FLAG}"
    if SLEEP_FLAG in wish.pins:
        # Pinned to true it is for somebody else's calls: trimtab opens no endpoints for it.
        return f"engine_args pin {SLEEP_FLAG}; left out, trimtab sets it where it puts the model to sleep"
    dtype = next((item.value for item in model.settings if item.name == "kv_cache_dtype"), "auto")
    quant = wish.facts.quant
    if dtype == "auto" and quant is not None and quant.kv_cache_format:
        dtype = quant.kv_cache_format
    if is_fp8_kv_cache(str(dtype)):
        # A wake sets its scales to 1 (PR 28783), and fails for models with linear attention.
        return "an FP8 KV cache does not survive a wake (vllm-project/vllm issues 41564, 49237)"
    return ""


def _describe(wish: VllmWish, part: InTurn) -> SleepPlan:
    model, facts = part.models[wish.name], wish.facts
    has_workspace = facts.is_moe or facts.is_hybrid
    budgets = [budget for replica in model.replicas for budget in replica.per_gpu]
    processes = sum(_SERVER_BYTES + _RANK_BYTES * len(replica.per_gpu) for replica in model.replicas)
    return SleepPlan(
        model=model.name,
        host_bytes=part.host_copy_bytes[wish.name] + processes,
        card_bytes=max(estimate_residue_bytes(budget, has_workspace=has_workspace) for budget in budgets),
        freed_bytes=int(
            _FREED_SHARE * min(budget.weights_bytes + budget.kv_cache_bytes for budget in budgets)
        ),
    )


def _plan_beside(
    part: InTurn,
    sleepers: tuple[SleepPlan, ...],
    wishes: tuple[VllmWish, ...],
    gpus: tuple[Gpu, ...],
    workload: Workload | None,
) -> Sleep | None:
    """Every round on the same cards as before, less what the sleepers of other rounds keep of them."""
    by_name = {wish.name: wish for wish in wishes}
    for _ in range(_SETTLE_TRIES):
        made = _plan_rounds(part, sleepers, wishes, gpus, workload)
        if made is None or any(_gives_up(part.models[name], model) for name, model in made.models.items()):
            return None
        now = tuple(_describe(by_name[one.model], made) for one in sleepers)
        if all(new.card_bytes <= old.card_bytes for new, old in zip(now, sleepers, strict=True)):
            told = tuple(
                replace(new, card_bytes=old.card_bytes) for new, old in zip(now, sleepers, strict=True)
            )
            asleep = {one.model for one in sleepers}
            models = {
                name: with_sleep_settings(model) if name in asleep else model
                for name, model in made.models.items()
            }
            return Sleep(part=replace(made, models=models), sleepers=told)
        sleepers = tuple(
            replace(old, card_bytes=max(new.card_bytes, old.card_bytes))
            for new, old in zip(now, sleepers, strict=True)
        )
    return None


def _plan_rounds(
    part: InTurn,
    sleepers: tuple[SleepPlan, ...],
    wishes: tuple[VllmWish, ...],
    gpus: tuple[Gpu, ...],
    workload: Workload | None,
) -> InTurn | None:
    """None where a model finds no room any more."""
    models: dict[str, ModelPlan] = {}
    copies: dict[str, int] = {}
    kept: tuple[ModelPlan, ...] = ()
    for number in sorted(set(part.round_of.values())):
        wanted = tuple(_at_home(wish, part) for wish in wishes if part.round_of.get(wish.name) == number)
        if not wanted:
            continue
        asleep = [one for one in sleepers if part.round_of[one.model] != number]
        cards = _less_asleep(less_held(gpus, kept) if number else gpus, asleep, part)
        placement = place_models(wanted, cards)
        outcome = outcome_of(wanted, placement, workload)
        if not placement.fits or not _have_room(outcome, cards):
            return None
        models |= {model.name: model for model in outcome.models}
        copies |= host_copies(outcome)
        if not number:
            keep = {wish.name for wish in wanted if wish.request.keep_loaded}
            kept = tuple(model for model in outcome.models if model.name in keep)
    return replace(part, models=part.models | models, host_copy_bytes=copies)


def _at_home(wish: VllmWish, part: InTurn) -> VllmWish:
    """The same wish, for the cards that it was given."""
    homes = sorted(_cards_of(part.models[wish.name]))
    return replace(wish, request=replace(wish.request, gpus=",".join(str(card) for card in homes)))


def _cards_of(model: ModelPlan) -> set[int]:
    return {card for replica in model.replicas for card in replica.gpus}


def _less_asleep(gpus: tuple[Gpu, ...], asleep: Iterable[SleepPlan], part: InTurn) -> tuple[Gpu, ...]:
    """The cards as they are while these sleep."""
    held: dict[int, int] = {}
    for one in asleep:
        for card in _cards_of(part.models[one.model]):
            held[card] = held.get(card, 0) + one.card_bytes
    return tuple(gpu.less(held.get(gpu.index, 0)) for gpu in gpus)


def _have_room(outcome: VllmOutcome, gpus: tuple[Gpu, ...]) -> bool:
    """Whether all of a round and what lies beside its budgets fits in what is free; pinned shares too."""
    left = {gpu.index: gpu.room_bytes for gpu in gpus}
    for model in outcome.models:
        for replica in model.replicas:
            for card, budget in zip(replica.gpus, replica.per_gpu, strict=True):
                left[card] -= budget.inside_bytes + budget.outside_budget_bytes
    return min(left.values()) >= 0


def _gives_up(before: ModelPlan, after: ModelPlan) -> bool:
    old = {item.name: item.value for item in before.settings}
    new = {item.name: item.value for item in after.settings}
    if after.max_model_len < before.max_model_len or len(after.replicas) < len(before.replicas):
        return True
    return any(old.get(name) != new.get(name) for name in _GIVEN_UP)


def _without_flag(model: ModelPlan) -> ModelPlan:
    """Without what makes it able to sleep, its environment and command included."""
    made = without_sleep_settings(model)
    if made is model:
        return model
    env = tuple(pair for pair in made.env if pair[0] != DEV_MODE_VARIABLE)
    return replace(made, env=env, argv=Vllm().render_argv(made))
