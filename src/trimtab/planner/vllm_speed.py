"""Pure. The speed of a chosen candidate, as the plan carries it."""

from __future__ import annotations

from trimtab.core.workload import Interval, SpeedPlan, Workload
from trimtab.errors import MissingFactError
from trimtab.planner.latency import SpeedEstimate, SpeedSettings, SpeedWorkload, estimate_speed
from trimtab.planner.vllm_evaluate import Evaluation
from trimtab.planner.vllm_wish import VllmWish

__all__ = ["estimate_plan_speed"]


def estimate_plan_speed(wish: VllmWish, item: Evaluation, workload: Workload) -> SpeedPlan | None:
    """Means under ``workload``, its users spread evenly over the replicas; None where a card is unknown."""
    users = -(-workload.concurrency // item.num_replicas)
    try:
        estimate = estimate_speed(
            wish.facts,
            wish.parts,
            _settings_of(item),
            item.gpus,
            SpeedWorkload(
                input_tokens=workload.input_tokens,
                output_tokens=workload.output_tokens,
                concurrency=users,
            ),
        )
    except MissingFactError:
        return None
    return _as_plan(estimate, workload, share=workload.concurrency / users)


def _settings_of(item: Evaluation) -> SpeedSettings:
    settings = item.settings
    return SpeedSettings(
        tensor_parallel_size=settings.tensor_parallel_size,
        pipeline_parallel_size=settings.pipeline_parallel_size,
        expert_parallel_size=settings.expert_parallel_size,
        kv_cache_dtype=settings.kv_cache_dtype,
        max_num_batched_tokens=settings.max_num_batched_tokens,
        max_num_seqs=settings.max_num_seqs,
        kv_cache_tokens=item.memory.capacity.tokens or None,
        num_speculative_tokens=settings.num_speculative_tokens,
    )


def _as_plan(estimate: SpeedEstimate, workload: Workload, *, share: float) -> SpeedPlan:
    """``share`` is the users of all replicas per users of one."""
    tpot = _band(estimate.tpot_ms, estimate.error_ratio)
    return SpeedPlan(
        workload=workload,
        ttft_ms=_band(estimate.ttft_ms, estimate.ttft_error_ratio),
        tpot_ms=tpot,
        output_tokens_per_s=_band(estimate.output_tokens_per_s * share, estimate.error_ratio),
        output_tokens_per_s_per_user=_band(estimate.output_tokens_per_s_per_user, estimate.error_ratio),
        source="calibrated" if estimate.source.startswith("calibrat") else "roofline",
        error_ratio=round(estimate.error_ratio, 3),
        basis=estimate.source,
    )


def _band(mean: float, ratio: float) -> Interval:
    return Interval(mean=round(mean, 2), low=round(mean / (1 + ratio), 2), high=round(mean * (1 + ratio), 2))
