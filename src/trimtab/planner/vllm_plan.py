"""Pure. Models on vLLM planned together: placement, then each choice as settings, budgets and words."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Final

from trimtab.core.hardware import Gpu
from trimtab.core.plan import Change, GpuBudget, ModelPlan, PlanWarning, Rejection, ReplicaPlan
from trimtab.core.stack import SettingValue
from trimtab.core.workload import Workload
from trimtab.planner.vllm_choice import Ranking
from trimtab.planner.vllm_evaluate import Evaluation, Evaluator
from trimtab.planner.vllm_explain import explain_settings, explain_warnings, family_of
from trimtab.planner.vllm_nearest import FindAlternatives, find_changes
from trimtab.planner.vllm_placement import Placement, place_models
from trimtab.planner.vllm_shapes import Shape
from trimtab.planner.vllm_speculation import price_mtp
from trimtab.planner.vllm_speed import estimate_plan_speed, explain_excess
from trimtab.planner.vllm_wish import VllmWish, check_wish

__all__ = ["VllmOutcome", "outcome_of", "plan_vllm"]

# More rejected candidates than these are noise; the nearest come first.
_MAX_REJECTIONS: Final = 12


@dataclass(frozen=True, slots=True, kw_only=True)
class VllmOutcome:
    """Plans parallel to the wishes, what was rejected, which cards idle, how many candidates were judged."""

    models: tuple[ModelPlan, ...]
    placement: Placement
    rejections: tuple[Rejection, ...] = ()
    nearest_fit: tuple[Change, ...] = ()

    @property
    def fits(self) -> bool:
        """All models fit at once."""
        return all(model.fits for model in self.models)


def plan_vllm(
    wishes: tuple[VllmWish, ...],
    gpus: tuple[Gpu, ...],
    find_alternatives: FindAlternatives | None = None,
    workload: Workload | None = None,
) -> VllmOutcome:
    """The plan of all ``wishes`` together on ``gpus``; StackFileError when a wish contradicts itself.

    ``find_alternatives`` is asked only when nothing fits; ``workload`` is what speed is estimated for.
    """
    for wish in wishes:
        check_wish(wish)
    placement = place_models(wishes, gpus)
    outcome = outcome_of(wishes, placement, workload)
    if placement.fits:
        return outcome
    changes = find_changes(wishes, gpus, placement, find_alternatives or _no_alternatives)
    return replace(outcome, nearest_fit=changes)


def outcome_of(
    wishes: tuple[VllmWish, ...], placement: Placement, workload: Workload | None = None
) -> VllmOutcome:
    """A placement as plans of the models, with the reasons of what was rejected."""
    pairs = tuple(zip(wishes, placement.rankings, strict=True))
    crowded = {index for group in placement.shared for index in group}
    models = tuple(
        _model_plan(wish, ranking.best, workload, is_shared=index in crowded)
        for index, (wish, ranking) in enumerate(pairs)
    )
    rejections = [rejection for wish, ranking in pairs for rejection in _rejections(wish, ranking)]
    return VllmOutcome(models=models, placement=placement, rejections=tuple(rejections[:_MAX_REJECTIONS]))


def _no_alternatives(wish: VllmWish) -> tuple[VllmWish, ...]:
    del wish
    return ()


def _model_plan(wish: VllmWish, item: Evaluation, workload: Workload | None, *, is_shared: bool) -> ModelPlan:
    warnings, family = list(explain_warnings(wish, item)), family_of(wish)
    if item.fits and workload is not None:
        warnings += explain_excess(item, workload)
    if is_shared:
        warnings.append(
            PlanWarning(
                code="shared_cards",
                text="models share these cards: start them one after the other, in this order, each when the"
                " one before it is ready",
                source="every engine wants its share of the card free when it starts",
            )
        )
    return ModelPlan(
        name=wish.name,
        checkpoint=wish.checkpoint,
        fits=item.fits,
        engine="vllm",
        engine_version=wish.version.version,
        runtime=wish.request.runtime,
        max_model_len=item.max_model_len,
        family=wish.request.family or (family.thinking_family if family is not None else "plain"),
        thinking=wish.request.thinking,
        speed=estimate_plan_speed(wish, item, workload or Workload()) if item.fits else None,
        settings=explain_settings(wish, item),
        replicas=tuple(_replicas(wish, item)),
        warnings=tuple(dict.fromkeys(warnings)),
    )


def _replicas(wish: VllmWish, item: Evaluation) -> Iterator[ReplicaPlan]:
    """One per set of cards; sets of another kind are accounted for on their own."""
    evaluator = Evaluator(wish)
    lead = tuple((gpu.spec, gpu.total_bytes, gpu.free_bytes) for gpu in item.gpus)
    for number, cards in enumerate(sorted(item.replica_sets, key=lambda cards: cards[0].index)):
        kinds = tuple((gpu.spec, gpu.total_bytes, gpu.free_bytes) for gpu in cards)
        own = item if kinds == lead else evaluator.judge_as_is(item, item.settings, cards)
        capacity = own.memory.capacity
        yield ReplicaPlan(
            replica_id=f"{wish.name}/{number}",
            gpus=tuple(gpu.index for gpu in cards[: own.shape.num_cards]),
            per_gpu=_budgets(own, cards),
            kv_block_tokens=own.memory.layout.block_tokens,
            kv_blocks=capacity.blocks,
            kv_cache_tokens=capacity.tokens,
            max_concurrency=round(capacity.max_concurrency, 2),
            max_model_len_that_fits=capacity.max_model_len_that_fits or None,
        )


def _budgets(item: Evaluation, cards: tuple[Gpu, ...]) -> tuple[GpuBudget, ...]:
    """One per card; data-parallel ranks repeat the first."""
    budgets = item.memory.per_gpu
    count = min(len(cards), item.shape.num_cards)
    return tuple(budgets[index % len(budgets)] for index in range(count))


def _rejections(wish: VllmWish, ranking: Ranking) -> Iterator[Rejection]:
    """The chosen one's faults first, then every other shape with its one reason."""
    best = ranking.best
    if not best.fits:
        problems = best.problems
        for problem in problems:
            yield Rejection(
                candidate=_candidate(wish, best),
                code=problem.code,
                text=f"models.{wish.name}: {problem.text}",
            )
        if not problems:
            yield Rejection(
                candidate=_candidate(wish, best),
                code=best.code,
                text=f"models.{wish.name}, {best.shape}: {best.memory.reason}",
            )
    for item in ranking.others:
        code, text = (item.code, item.reason) if not item.fits else _outranked(best, item)
        yield Rejection(
            candidate=_candidate(wish, item), code=code, text=f"models.{wish.name}, {item.shape}: {text}"
        )
    for shape in ranking.illegal:
        problem = shape.problems[0]
        yield Rejection(
            candidate=_shape_candidate(wish, shape),
            code=problem.code,
            text=f"models.{wish.name}, {shape}: {problem.text}",
        )
    priced = price_mtp(wish, best)
    if priced is not None:
        yield priced


def _outranked(best: Evaluation, item: Evaluation) -> tuple[str, str]:
    """Why a candidate that fits was not taken."""
    text = f"fits {item.max_concurrency:.2f} requests of {item.max_model_len:,} tokens on {_cards(item)}"
    given_up = [name for name in item.concessions if name not in best.concessions]
    if item.memory.verdict == "tight" and best.memory.verdict == "fits":
        return "tight", f"{text}, but only within the error of the estimate"
    if given_up:
        return "outranked", f"{text}, but gives up more: {', '.join(given_up)}"
    return "outranked", f"{text}; the chosen one holds {best.max_concurrency:.2f} on {_cards(best)}"


def _cards(item: Evaluation) -> str:
    cards = item.shape.num_cards
    each = f"{cards} card{'s' if cards > 1 else ''}"
    return f"{item.num_replicas} x {each}" if item.num_replicas > 1 else each


def _candidate(wish: VllmWish, item: Evaluation) -> tuple[tuple[str, SettingValue], ...]:
    settings = item.settings
    return (
        *_shape_candidate(wish, item.shape),
        ("replicas", item.num_replicas),
        ("max_model_len", item.max_model_len),
        ("max_num_seqs", settings.max_num_seqs),
        ("max_num_batched_tokens", settings.max_num_batched_tokens),
        ("kv_cache_dtype", settings.kv_cache_dtype),
    )


def _shape_candidate(wish: VllmWish, shape: Shape) -> tuple[tuple[str, SettingValue], ...]:
    return (
        ("model", wish.name),
        ("tensor_parallel_size", shape.tensor_parallel_size),
        ("pipeline_parallel_size", shape.pipeline_parallel_size),
    )
