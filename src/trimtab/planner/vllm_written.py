"""Pure. A launch command as somebody wrote it: judged with the engine's defaults, not the planner's."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Final

from trimtab.core.hardware import Gpu
from trimtab.core.plan import ModelPlan, Setting
from trimtab.core.stack import SettingValue
from trimtab.core.written_check import FlagCost, SettingChange
from trimtab.errors import TrimtabError
from trimtab.planner.vllm_choice import Ranking
from trimtab.planner.vllm_evaluate import Evaluation, Evaluator
from trimtab.planner.vllm_placement import Placement
from trimtab.planner.vllm_settings import VllmSettings
from trimtab.planner.vllm_shapes import Shape
from trimtab.planner.vllm_wish import VllmWish
from trimtab.units import GIB

__all__ = ["compare_plans", "estimate_flag_costs", "judge_as_written", "loosen", "with_defaults"]

# Arguments that decide about memory and speed: what the planner chooses. The rest is the user's taste.
_PLANNED: Final = frozenset(
    {
        *("tensor_parallel_size", "pipeline_parallel_size", "data_parallel_size", "enable_expert_parallel"),
        *("max_model_len", "max_num_seqs", "max_num_batched_tokens", "kv_cache_dtype", "block_size"),
        *("gpu_memory_utilization", "kv_cache_memory_bytes", "num_gpu_blocks_override", "swap_space"),
        *("enable_prefix_caching", "enable_chunked_prefill", "enforce_eager", "attention_backend"),
        *("cpu_offload_gb", "disable_custom_all_reduce", "calculate_kv_scales", "mamba_cache_mode"),
    }
)
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
    cards = tuple(_with_less_free(gpu, taken.get(gpu.index, 0)) for gpu in own[: shape.num_cards])
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


def _with_less_free(gpu: Gpu, taken_bytes: int) -> Gpu:
    if not taken_bytes:
        return gpu
    free = gpu.total_bytes if gpu.free_bytes is None else gpu.free_bytes
    return replace(gpu, free_bytes=max(0, free - taken_bytes))


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
        yield _counted(wish, name, item, other)


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


def _counted(wish: VllmWish, name: str, item: Evaluation, other: Evaluation) -> FlagCost:
    """The difference on the card with the least room; sequences and lengths also move what fits in it."""
    here = min(budget.kv_cache_bytes for budget in item.memory.per_gpu)
    there = min(budget.kv_cache_bytes for budget in other.memory.per_gpu)
    tokens = item.memory.capacity.tokens - other.memory.capacity.tokens
    requests = item.memory.capacity.max_concurrency - other.memory.capacity.max_concurrency
    default = _default_of(name, other)
    verdict = "" if other.fits else "; without it the model does not fit"
    return FlagCost(
        model=wish.name,
        name=name,
        value=wish.pins[name],
        default=default,
        kv_cache_bytes=here - there,
        kv_cache_tokens=tokens,
        max_concurrency=round(requests, 2),
        text=f"{(here - there) / GIB:+.2f} GiB of KV cache per card, {tokens:+,} tokens,"
        f" {requests:+.2f} requests of full length beside the default {default}{verdict}",
    )


def _default_of(name: str, item: Evaluation) -> SettingValue:
    if name == "language_model_only":
        return item.settings.mm_limits_are_zero
    value = getattr(item.settings, name, None)
    return value if value is None or isinstance(value, str | int | float | bool) else str(value)


def loosen(wish: VllmWish) -> VllmWish:
    """The same wish with what the planner decides left to it; context and concurrency are kept as asked."""
    pins = wish.pins
    request = replace(
        wish.request,
        context=_count(pins.get("max_model_len")) or wish.request.context,
        concurrency=_count(pins.get("max_num_seqs")) or wish.request.concurrency,
        engine_args=tuple((name, value) for name, value in pins.items() if name not in _PLANNED),
        gpus=None,
    )
    return replace(wish, request=request)


def _count(value: SettingValue) -> int | None:
    return value if isinstance(value, int) and not isinstance(value, bool) and value > 0 else None


def compare_plans(written: ModelPlan, chosen: ModelPlan) -> Iterator[SettingChange]:
    """Settings that the planner would choose otherwise, each with its reason."""
    before = {item.name: item for item in written.settings}
    after = {item.name: item for item in chosen.settings}
    for name, item in after.items():
        old = before.get(name)
        if name in _PLANNED | {"language_model_only"} and (old is None or old.value != item.value):
            yield SettingChange(
                model=written.name,
                name=name,
                written=old.value if old is not None else None,
                chosen=item.value,
                reason=item.reason,
            )
    for name, old in before.items():
        if name in _PLANNED and name not in after and old.origin == "pinned":
            yield SettingChange(
                model=written.name,
                name=name,
                written=old.value,
                chosen=None,
                reason="not needed: the wish fits without it",
            )
