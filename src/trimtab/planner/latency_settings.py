"""Pure. vLLM's arguments → what the speed model asks."""

from __future__ import annotations

from trimtab.planner.latency_profile import Interconnect, SpeedSettings
from trimtab.planner.vllm_settings import VllmSettings

__all__ = ["make_speed_settings"]


def make_speed_settings(
    settings: VllmSettings,
    *,
    kv_cache_tokens: int | None = None,
    interconnect: Interconnect | None = None,
) -> SpeedSettings:
    """Speed-relevant arguments of one replica; ``kv_cache_tokens`` as the memory plan has it."""
    return SpeedSettings(
        tensor_parallel_size=settings.tensor_parallel_size,
        pipeline_parallel_size=settings.pipeline_parallel_size,
        expert_parallel_size=settings.expert_parallel_size,
        kv_cache_dtype=settings.kv_cache_dtype,
        max_num_batched_tokens=settings.max_num_batched_tokens,
        max_num_seqs=settings.max_num_seqs,
        kv_cache_tokens=kv_cache_tokens,
        interconnect=interconnect,
        num_speculative_tokens=settings.num_speculative_tokens,
    )
