"""Pure. A launch command as somebody wrote it: judged with the engine's defaults, not the planner's."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import replace
from typing import Final

from trimtab.core.hardware import Gpu
from trimtab.core.plan import ModelPlan, Setting
from trimtab.core.stack import SettingValue
from trimtab.core.written_check import FlagCost, SettingChange
from trimtab.engines.vllm_arguments import check_vllm_setting
from trimtab.errors import StackFileError, TrimtabError
from trimtab.planner.vllm_choice import DEFAULT_NUM_SEQS, Ranking
from trimtab.planner.vllm_evaluate import Evaluation, Evaluator
from trimtab.planner.vllm_placement import Placement, place_models
from trimtab.planner.vllm_settings import VllmSettings, resolve_vllm_settings
from trimtab.planner.vllm_shapes import Shape
from trimtab.planner.vllm_wish import VllmWish
from trimtab.units import GIB

__all__ = [
    "compare_plans",
    "estimate_flag_costs",
    "find_unusable",
    "judge_as_written",
    "loosen",
    "place_instead",
    "serves_no_more",
    "with_defaults",
]

# Arguments that the planner decides itself; every other one is the user's taste and stays as written.
# max_num_seqs is a cap on sequences and no wish for so many requests of full length: it stays too.
_PLANNED: Final = frozenset(
    {
        *("tensor_parallel_size", "pipeline_parallel_size", "data_parallel_size", "enable_expert_parallel"),
        *("max_model_len", "max_num_batched_tokens", "kv_cache_dtype", "enable_prefix_caching"),
        *("gpu_memory_utilization", "kv_cache_memory_bytes", "num_gpu_blocks_override"),
        *("enforce_eager", "attention_backend", "cpu_offload_gb"),
    }
)
# Why the planner's own plan does without what was written.
_WITHOUT: Final = {
    "pipeline_parallel_size": "layers need not be spread over cards",
    "data_parallel_size": "further cards run replicas of their own",
    "enable_expert_parallel": "experts can be cut like other layers",
    "kv_cache_dtype": "as many requests fit in the model's own dtype",
    "kv_cache_memory_bytes": "a share of the card is chosen instead",
    "num_gpu_blocks_override": "the KV cache is as large as the memory allows",
    "enforce_eager": "CUDA graphs and compilation fit, and make tokens faster",
    "attention_backend": "vLLM's own choice runs on these cards",
    "cpu_offload_gb": "the weights fit on the cards, where every step is faster",
}
_SEQUENCES: Final = "every further sequence costs memory; more than a household or a small team sends"
_FP8: Final = ("fp8", "fp8_e4m3")
# Shares of a card are chosen in hundredths; one more or less is rounding.
_SAME_SHARE: Final = 0.011
# Differences below these are printed as 0.00.
_SEEN_BYTES: Final = GIB // 200
_SEEN_REQUESTS: Final = 0.005
# What vLLM has where an argument is not given; the others move with model and card.
_VLLM_DEFAULTS: Final[dict[str, SettingValue]] = {
    "pipeline_parallel_size": 1,
    "data_parallel_size": 1,
    "enable_expert_parallel": False,
    "language_model_only": False,
}
# The same for requests at once, of which two digits are printed.
_SAME_REQUESTS: Final = 0.99
# Argument → field of the resolved settings that holds its default.
_DEFAULTED: Final = (
    "tensor_parallel_size",
    "max_model_len",
    "max_num_seqs",
    "max_num_batched_tokens",
    "kv_cache_dtype",
    "gpu_memory_utilization",
    "enable_prefix_caching",
)


def find_unusable(wish: VllmWish, gpu: Gpu) -> Iterator[tuple[str, str]]:
    """Pinned arguments that this vLLM would refuse, each with why; without them the rest can be judged."""
    for name, value in wish.pins.items():
        try:
            check_vllm_setting(wish.version.version, name, value, model=wish.name)
            resolve_vllm_settings([(name, value)], facts=wish.facts, gpu=gpu, line=wish.version.line)
        except StackFileError as error:
            yield name, error.message.removeprefix(f"models.{wish.name}.engine_args.{name}: ")


def judge_as_written(wishes: tuple[VllmWish, ...], gpus: tuple[Gpu, ...]) -> Placement:
    """Every model with its pinned arguments and the engine's defaults, on the cards it names.

    Models that name no cards take the first ones, as vLLM does; models on the same cards start in the
    order written, each on what the ones before it leave.
    """
    taken: dict[int, int] = {}
    found: list[Evaluation] = []
    for wish in wishes:
        item = _judge(wish, gpus, taken)
        found.append(item)
        for gpu, budget in zip(item.gpus, item.memory.per_gpu, strict=False):
            held = (
                (budget.requested_bytes or budget.kv_cache_bytes + budget.weights_bytes) if item.fits else 0
            )
            taken[gpu.index] = taken.get(gpu.index, 0) + held + budget.outside_budget_bytes
    used = {gpu.index for item in found for gpu in item.gpus}
    return Placement(
        rankings=tuple(Ranking(best=item) for item in found),
        idle=tuple(gpu.index for gpu in gpus if gpu.index not in used),
    )


def _judge(wish: VllmWish, gpus: tuple[Gpu, ...], taken: dict[int, int]) -> Evaluation:
    evaluator = Evaluator(wish)
    named = wish.card_indices
    own = tuple(gpu for gpu in gpus if named is None or gpu.index in named)
    settings = evaluator.base_settings(own[0])
    shape = _shape_of(settings)
    cards = tuple(gpu.less(taken.get(gpu.index, 0)) for gpu in own[: shape.num_cards])
    item = evaluator.judge_as_is(evaluator.judge(shape, settings, (cards,)), settings, cards)
    whole = {gpu.index: gpu for gpu in gpus}
    return item.with_cards((tuple(whole[gpu.index] for gpu in cards),))


def _shape_of(settings: VllmSettings) -> Shape:
    return Shape(
        tensor_parallel_size=settings.tensor_parallel_size,
        pipeline_parallel_size=settings.pipeline_parallel_size,
        data_parallel_size=settings.data_parallel_size,
        enable_expert_parallel=settings.enable_expert_parallel,
    )


def with_defaults(wish: VllmWish, model: ModelPlan, item: Evaluation) -> ModelPlan:
    """The model's settings as written, and the engine's defaults that decide about memory."""
    settings = [
        Setting(name=name, value=value, origin="pinned", reason="as written")
        for name, value in wish.pins.items()
    ]
    for name in _DEFAULTED:
        if name in wish.pins or (name == "gpu_memory_utilization" and "kv_cache_memory_bytes" in wish.pins):
            continue
        value = getattr(item.settings, name)
        settings.append(
            Setting(name=name, value=value, origin="default", reason=f"vLLM {wish.version.version}'s own")
        )
    return replace(model, settings=tuple(settings))


def estimate_flag_costs(wish: VllmWish, item: Evaluation) -> Iterator[FlagCost]:
    """For every written flag that moves the KV cache: what it adds or takes beside the default."""
    for name, value in wish.pins.items():
        without = _without(wish, name)
        try:
            evaluator = Evaluator(without)
            settings = evaluator.base_settings(item.gpus[0])
            other = evaluator.judge_as_is(item, settings, item.gpus)
        except TrimtabError:
            continue
        if _shape_of(settings) != _shape_of(item.settings):
            yield _uncounted(wish, name, value, settings)
            continue
        if other.memory.per_gpu == item.memory.per_gpu and other.memory.capacity == item.memory.capacity:
            continue
        cost = _counted(wish, name, item, other)
        if cost is not None:
            yield cost


def _without(wish: VllmWish, name: str) -> VllmWish:
    pins = tuple((key, value) for key, value in wish.request.engine_args if key != name)
    return replace(wish, request=replace(wish.request, engine_args=pins))


def _uncounted(wish: VllmWish, name: str, value: SettingValue, settings: VllmSettings) -> FlagCost:
    default = getattr(settings, name, None)
    return FlagCost(
        model=wish.name,
        name=name,
        value=value,
        default=default,
        kv_cache_bytes=None,
        kv_cache_tokens=None,
        max_concurrency=None,
        text=f"without it one replica spans other cards (default {default})",
    )


def _counted(wish: VllmWish, name: str, item: Evaluation, other: Evaluation) -> FlagCost | None:
    """The difference on the card with the least room; None where there is none to speak of.

    Of a plan that does not fit, what the flag does for or against fitting.
    """
    here = min(budget.kv_cache_bytes for budget in item.memory.per_gpu)
    there = min(budget.kv_cache_bytes for budget in other.memory.per_gpu)
    tokens = item.memory.capacity.tokens - other.memory.capacity.tokens
    requests = item.memory.capacity.max_concurrency - other.memory.capacity.max_concurrency
    default = _default_of(name, other)
    if not item.fits:
        text = _towards_fitting(item, other, default)
    elif abs(here - there) < _SEEN_BYTES and not tokens and abs(requests) < _SEEN_REQUESTS and other.fits:
        text = ""
    else:
        verdict = "" if other.fits else "; without it the model does not fit"
        text = (
            f"{(here - there) / GIB:+.2f} GiB of KV cache per card, {tokens:+,} tokens,"
            f" {requests:+.2f} requests of full length beside the default {default}{verdict}"
        )
    if not text:
        return None
    return FlagCost(
        model=wish.name,
        name=name,
        value=wish.pins[name],
        default=default,
        kv_cache_bytes=here - there,
        kv_cache_tokens=tokens,
        max_concurrency=round(requests, 2),
        text=text,
    )


def _towards_fitting(item: Evaluation, other: Evaluation, default: SettingValue) -> str:
    """What a flag of a plan that does not fit changes about that; empty where nothing."""
    if other.fits:
        return f"with the default {default} in its place the model fits"
    gain = other.memory.shortfall_bytes - item.memory.shortfall_bytes
    if abs(gain) < _SEEN_BYTES:
        return ""
    which = "nearer to" if gain > 0 else "further from"
    return (
        f"{abs(gain) / GIB:.2f} GiB per card {which} fitting than the default {default}:"
        f" {item.memory.shortfall_bytes / GIB:.2f} GiB are missing, {other.memory.shortfall_bytes / GIB:.2f}"
        " with the default"
    )


def _default_of(name: str, item: Evaluation) -> SettingValue:
    if name == "language_model_only":
        return item.settings.mm_limits_are_zero
    value = getattr(item.settings, name, None)
    return value if value is None or isinstance(value, str | int | float | bool) else str(value)


def usable_requests(item: Evaluation) -> float:
    """Requests of full length that run at once: as the KV cache holds and max_num_seqs admits."""
    if not item.fits:
        return 1.0
    return min(item.max_concurrency, float(item.settings.max_num_seqs * item.num_replicas))


def loosen(wish: VllmWish, item: Evaluation, concurrency: int) -> VllmWish:
    """The same wish with what the planner decides left to it; ``item`` is the plan as it was written.

    The context is kept as written, and ``concurrency`` requests of that length are asked for. Sequences
    that nobody capped are capped as the planner does: each costs memory.
    """
    pins = wish.pins
    kept = {name: value for name, value in pins.items() if name not in _PLANNED}
    kept.setdefault("max_num_seqs", max(DEFAULT_NUM_SEQS, concurrency))
    is_long = "max_model_len" in pins and item.settings.max_model_len is not None
    request = replace(
        wish.request,
        context=item.settings.max_model_len if is_long else wish.request.context,
        concurrency=wish.request.concurrency or concurrency,
        engine_args=tuple(kept.items()),
        gpus=None,
    )
    return replace(wish, request=request)


def place_instead(
    wishes: tuple[VllmWish, ...], written: tuple[Evaluation, ...], gpus: tuple[Gpu, ...]
) -> tuple[tuple[VllmWish, ...], Placement]:
    """The planner's own placement of what was written; no fewer requests run at once where that can be.

    A plan that was written holds a broken number of requests, and a wish is whole: the number below is
    asked for first, and the one above of models that would then hold less than they do.
    """
    held = tuple(usable_requests(item) for item in written)
    asked = tuple(max(1, math.floor(number)) for number in held)
    for _ in range(2):
        loose = tuple(
            loosen(wish, item, number) for wish, item, number in zip(wishes, written, asked, strict=True)
        )
        placement = place_models(loose, gpus)
        asked = tuple(
            math.ceil(before) if usable_requests(item) < before * _SAME_REQUESTS else number
            for item, before, number in zip(placement.chosen, held, asked, strict=True)
        )
    return loose, placement


def serves_no_more(written: tuple[Evaluation, ...], chosen: Placement) -> bool:
    """Whether models that share cards gain nothing by other shares: how room is split is then taste."""
    if not chosen.shared or not all(item.fits for item in written):
        return False
    pairs = zip(written, chosen.chosen, strict=True)
    return all(usable_requests(after) * _SAME_REQUESTS <= usable_requests(before) for before, after in pairs)


def compare_plans(
    written: ModelPlan, chosen: ModelPlan, *, keeps_share: bool = False
) -> Iterator[SettingChange]:
    """Settings that the planner decides and would choose otherwise, each with its reason.

    ``keeps_share`` passes over the share of the cards.
    """
    before = {item.name: item for item in written.settings}
    after = {item.name: item for item in chosen.settings}
    for name, item in after.items():
        old = before.get(name)
        if name not in _PLANNED | {"language_model_only", "max_num_seqs"} or _is_same(written, old, item):
            continue
        if keeps_share and name == "gpu_memory_utilization":
            continue
        is_written = old is not None and old.origin != "default"
        yield SettingChange(
            model=written.name,
            name=name,
            written=old.value if old is not None else _VLLM_DEFAULTS.get(name),
            chosen=item.value,
            reason=_SEQUENCES if name == "max_num_seqs" else item.reason,
            is_default=not is_written,
        )
    for name, old in before.items():
        if name in _WITHOUT and name not in after and old.origin == "pinned" and not _is_unset(old.value):
            yield SettingChange(
                model=written.name, name=name, written=old.value, chosen=None, reason=_WITHOUT[name]
            )


def _is_unset(value: SettingValue) -> bool:
    """Written out, and what the engine does anyway."""
    return value is None or value is False or value == "auto" or (value is not True and value in (0, 1))


def _is_same(written: ModelPlan, old: Setting | None, new: Setting) -> bool:
    """Equal in effect: rounding of a share, ``32k`` beside 32000, two names of FP8."""
    value = old.value if old is not None else _VLLM_DEFAULTS.get(new.name)
    if value == new.value:
        return True
    if new.name == "max_model_len":
        return new.value == written.max_model_len
    if new.name == "kv_cache_dtype":
        return value in _FP8 and new.value in _FP8
    if new.name == "gpu_memory_utilization" and written.fits:
        both = (value, new.value)
        numbers = [item for item in both if isinstance(item, int | float) and not isinstance(item, bool)]
        return len(numbers) == 2 and abs(numbers[0] - numbers[1]) < _SAME_SHARE
    return False
