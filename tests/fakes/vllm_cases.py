"""Real vLLM start-ups from tests/checkpoints/vllm_memory.json, and short ways to ask the planner the same."""

from __future__ import annotations

import json
from functools import lru_cache
from typing import Any

from checkpoint_facts import FOLDER, read_config, read_config_with_mask

from trimtab.core.hardware import Gpu
from trimtab.core.model_facts import ModelFacts
from trimtab.core.model_parts import ModelParts
from trimtab.planner.gpu_spec import decode_gpu_spec
from trimtab.planner.model_config import decode_model_config
from trimtab.planner.model_parts import decode_parts
from trimtab.planner.vllm_attention import AttentionChoice, choose_attention_backend
from trimtab.planner.vllm_budget import MemoryRequest
from trimtab.planner.vllm_kv_cache import KvCacheLayout, KvCacheRequest, estimate_kv_cache_layout
from trimtab.planner.vllm_kv_capacity import KvCacheCapacity, estimate_kv_cache_capacity
from trimtab.planner.vllm_legality import Illegality, LegalityRequest, check_vllm_settings
from trimtab.planner.vllm_memory import VllmMemory, estimate_vllm_memory
from trimtab.planner.vllm_settings import VllmSettings, resolve_vllm_settings
from trimtab.planner.vllm_versions import find_version

GIB = 1 << 30


@lru_cache
def rows(name: str) -> tuple[dict[str, Any], ...]:
    """One list of the data file."""
    return tuple(json.loads((FOLDER / "vllm_memory.json").read_text(encoding="utf-8"))[name])


@lru_cache
def facts_of(config: str, mask: str | None = None) -> ModelFacts:
    """The facts of a checkpoint, with another quantisation block where a mask is named."""
    return decode_model_config(read_config(config) if mask is None else read_config_with_mask(config, mask))


@lru_cache
def parts_of(facts: ModelFacts) -> ModelParts:
    """Its parts, computed once."""
    return decode_parts(facts)


def settle(
    facts: ModelFacts, args: dict[str, Any], version: str = "0.25.1", gpu: Gpu | None = None
) -> VllmSettings:
    """Arguments as a user writes them, resolved."""
    card = gpu or decode_gpu_spec("h200")[0]
    return resolve_vllm_settings(args.items(), facts=facts, gpu=card, line=find_version(version).line)


def lay_out(
    facts: ModelFacts,
    args: dict[str, Any],
    version: str = "0.25.1",
    capability: tuple[int, int] = (9, 0),
    attention: AttentionChoice | None = None,
) -> tuple[KvCacheLayout, VllmSettings]:
    """The cache's layout for a model and arguments on a card."""
    line = find_version(version).line
    settings = settle(facts, args, version)
    choice = attention or choose_attention_backend(facts, settings, capability, line)
    request = KvCacheRequest(settings=settings, capability=capability, line=line, attention=choice)
    return estimate_kv_cache_layout(facts, request), settings


def fill(
    facts: ModelFacts, args: dict[str, Any], gib: float, version: str = "0.25.1", **where: Any
) -> KvCacheCapacity:
    """What fits in so many GiB per card."""
    layout, settings = lay_out(facts, args, version, **where)
    return estimate_kv_cache_capacity(
        layout,
        (int(gib * GIB),) * len(layout.bytes_per_block),
        facts=facts,
        settings=settings,
        line=find_version(version).line,
    )


def budget(
    config: str, gpus: str, args: dict[str, Any], version: str = "0.25.1", mask: str | None = None
) -> VllmMemory:
    """A whole replica's memory, as ``plan`` would ask for it."""
    facts, cards = facts_of(config, mask), decode_gpu_spec(gpus)
    return estimate_vllm_memory(
        MemoryRequest(
            facts=facts,
            parts=parts_of(facts),
            settings=settle(facts, args, version, cards[0]),
            gpus=cards,
            version=find_version(version),
        )
    )


def judge(
    facts: ModelFacts, gpus: str, args: dict[str, Any], version: str = "0.25.1"
) -> tuple[Illegality, ...]:
    """What the engine would refuse."""
    cards = decode_gpu_spec(gpus)
    return check_vllm_settings(
        LegalityRequest(
            facts=facts,
            parts=parts_of(facts),
            settings=settle(facts, args, version, cards[0]),
            gpus=cards,
            line=find_version(version).line,
            pinned=tuple(args),
        )
    )
