"""Pure. The speed of a chosen candidate, as the plan carries it."""

from __future__ import annotations

from trimtab.core.plan import PlanWarning
from trimtab.core.workload import Interval, SpeedPlan, Workload
from trimtab.errors import MissingFactError
from trimtab.planner.latency import SpeedEstimate, SpeedSettings, SpeedWorkload, estimate_speed
from trimtab.planner.speed_calibration import find_speed_calibration
from trimtab.planner.vllm_evaluate import Evaluation, calibration_key, oldest_of
from trimtab.planner.vllm_wish import VllmWish

__all__ = ["estimate_plan_speed", "explain_excess"]


def estimate_plan_speed(wish: VllmWish, item: Evaluation, workload: Workload) -> SpeedPlan | None:
    """Means under ``workload``, its users spread evenly over the replicas; None where a card is unknown."""
    users = -(-workload.concurrency // item.num_replicas)
    calibration = None
    if wish.speeds and not item.settings.num_speculative_tokens:
        key = calibration_key(wish, item.settings, oldest_of(item.gpus))
        calibration = find_speed_calibration(wish.speeds, key)
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
            calibration=calibration,
        )
    except MissingFactError:
        return None
    return _as_plan(estimate, workload, share=workload.concurrency / users)


def explain_excess(item: Evaluation, workload: Workload) -> tuple[PlanWarning, ...]:
    """What of ``workload`` this candidate cannot serve as it is asked: lengths, or users at once."""
    texts = []
    isl, osl, users = workload.input_tokens, workload.output_tokens, workload.concurrency
    if isl + osl > item.max_model_len:
        texts.append(
            f"the workload's {isl:,} + {osl:,} tokens exceed the context of {item.max_model_len:,}: such a"
            f" request is refused; plan with --context {isl + osl}, or lower isl or osl"
        )
    held = item.memory.capacity.tokens // (isl + osl)
    at_once = min(item.settings.max_num_seqs, max(1, held)) * item.num_replicas
    if users > at_once:
        texts.append(
            f"the workload's {users:,} users exceed the {at_once:,} of its requests that run at once: the"
            f" rest waits in line, which the speed counts in; plan with --concurrency {users}, or lower it"
        )
    return tuple(
        PlanWarning(code="workload_exceeds_plan", text=text, source="--workload against this plan")
        for text in texts
    )


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
