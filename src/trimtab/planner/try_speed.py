"""Pure. What the speed model says of one load on a planned engine, with and without earlier measurements."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from trimtab.core.hardware import Gpu
from trimtab.core.model_source import ModelSource
from trimtab.core.plan import ModelPlan
from trimtab.errors import MissingFactError, StackFileError
from trimtab.planner.latency import SpeedCalibration, SpeedWorkload, estimate_speed
from trimtab.planner.latency_profile import SpeedSettings
from trimtab.planner.latency_settings import make_speed_settings
from trimtab.planner.vllm_settings import resolve_vllm_settings
from trimtab.planner.vllm_versions import find_planned_version

__all__ = ["PointSpeed", "SpeedQuestion", "predict_load"]


@dataclass(frozen=True, slots=True, kw_only=True)
class SpeedQuestion:
    """One load: ``rounds`` requests of these lengths by each of ``concurrency`` users."""

    concurrency: int
    input_tokens: int
    output_tokens: int
    rounds: int


@dataclass(frozen=True, slots=True, kw_only=True)
class PointSpeed:
    """Means in milliseconds; ``plain_*`` are without any factor of earlier measurements."""

    ttft_ms: float
    tpot_ms: float
    plain_ttft_ms: float
    plain_tpot_ms: float


def predict_load(
    model: ModelPlan, source: ModelSource, cards: Sequence[Gpu], load: SpeedQuestion
) -> PointSpeed | None:
    """The prediction of a load; None where the card's speed is not known."""
    try:
        settings = _settings_of(model, source, cards)
        workload = SpeedWorkload(
            input_tokens=load.input_tokens,
            output_tokens=load.output_tokens,
            concurrency=load.concurrency,
            requests_per_user=load.rounds,
        )
        said = estimate_speed(source.facts, source.parts, settings, cards, workload)
        plain = estimate_speed(
            source.facts, source.parts, settings, cards, workload, calibration=SpeedCalibration()
        )
    except (MissingFactError, StackFileError):
        return None
    return PointSpeed(
        ttft_ms=said.ttft_ms,
        tpot_ms=said.tpot_ms,
        plain_ttft_ms=plain.ttft_ms,
        plain_tpot_ms=plain.tpot_ms,
    )


def _settings_of(model: ModelPlan, source: ModelSource, cards: Sequence[Gpu]) -> SpeedSettings:
    pairs = tuple((item.name, item.value) for item in model.settings)
    line = find_planned_version(model.engine_version).line
    settings = resolve_vllm_settings(pairs, facts=source.facts, gpu=cards[0], line=line)
    return make_speed_settings(settings, kv_cache_tokens=model.replicas[0].kv_cache_tokens)
