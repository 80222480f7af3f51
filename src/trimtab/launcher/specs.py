"""Pure. From a plan to what a runtime is asked to start."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Mapping
from dataclasses import dataclass, field

from trimtab.core.container import ContainerSpec
from trimtab.core.plan import ModelPlan, Plan, ReplicaPlan, SwapPlan
from trimtab.core.state import ReplicaSpec, SleepLimits
from trimtab.engines.vllm_container import container_of
from trimtab.engines.vllm_env import replica_devices
from trimtab.launcher.reconcile import config_hash_of

__all__ = ["SpecOptions", "has_embeddings", "is_ranking", "specs_of"]


@dataclass(frozen=True, slots=True, kw_only=True)
class SpecOptions:
    """What the plan leaves to whoever runs it.

    ``vllm_programs`` gives, per engine version, the path of the ``vllm`` to run as a process.
    """

    trimtab_version: str
    dies_with_supervisor: bool
    vllm_programs: Mapping[str, str] = field(default_factory=dict)


def specs_of(plan: Plan, options: SpecOptions) -> tuple[ReplicaSpec, ...]:
    """One spec per planned replica, in plan order."""
    return tuple(
        _spec_of(plan, model, replica, options) for model in plan.models for replica in model.replicas
    )


def _spec_of(plan: Plan, model: ModelPlan, replica: ReplicaPlan, options: SpecOptions) -> ReplicaSpec:
    env = (*model.env, *replica_devices(replica))
    swap = plan.swap
    container = _container_of(plan, model, replica)
    return ReplicaSpec(
        replica_id=replica.replica_id,
        stack=plan.stack,
        model=model.name,
        engine=model.engine,
        argv=_with_program(model, options.vllm_programs),
        env=env,
        config_hash=config_hash_of(model.argv, (*env, *_container_facts(container)), model.engine_version),
        trimtab_version=options.trimtab_version,
        predicted_bytes=replica.host.requested_bytes if replica.host else None,
        max_model_len=model.max_model_len,
        dies_with_supervisor=options.dies_with_supervisor,
        has_embeddings=has_embeddings(model),
        takes_ids=_is_on(model, "skip_tokenizer_init"),
        container=container,
        gpus=replica.gpus,
        family=model.family,
        thinking=model.thinking,
        concurrency=_concurrency_of(model, replica),
        # llama.cpp's slots each have a context of their own: they share nothing that could run out.
        kv_cache_tokens=(replica.kv_cache_tokens or None) if model.engine == "vllm" else None,
        sleep=None if swap is None else _sleep_of(model, swap),
    )


def _sleep_of(model: ModelPlan, swap: SwapPlan) -> SleepLimits | None:
    """What one replica of a model that sleeps may take; None where it is stopped instead."""
    planned = next((one for one in swap.sleepers if one.model == model.name), None)
    if planned is None:
        return None
    return SleepLimits(
        host_bytes=planned.host_bytes // len(model.replicas),
        card_bytes=planned.card_bytes,
        freed_bytes=planned.freed_bytes,
    )


def has_embeddings(model: ModelPlan) -> bool:
    """Pure. Whether its engine embeds instead of generating: llama.cpp's switch, vLLM's runner."""
    settings = {item.name: item.value for item in model.settings}
    return settings.get("embeddings") is True or settings.get("runner") == "pooling"


def is_ranking(model: ModelPlan) -> bool:
    """Pure. Whether its engine scores documents instead: llama.cpp's pooling, vLLM's conversion."""
    settings = {item.name: item.value for item in model.settings}
    return settings.get("pooling") == "rank" or settings.get("convert") == "classify"


def _is_on(model: ModelPlan, name: str) -> bool:
    return any(item.name == name and item.value is True for item in model.settings)


def _concurrency_of(model: ModelPlan, replica: ReplicaPlan) -> int | None:
    """How many requests one engine works on at once: vLLM's sequences, llama.cpp's slots."""
    if model.engine == "vllm":
        chosen = {item.name: item.value for item in model.settings}.get("max_num_seqs")
        return chosen if isinstance(chosen, int) and not isinstance(chosen, bool) else None
    return None if replica.max_concurrency is None else max(1, int(replica.max_concurrency))


def _container_of(plan: Plan, model: ModelPlan, replica: ReplicaPlan) -> ContainerSpec | None:
    if model.runtime != "docker" or model.engine != "vllm":
        return None
    gpus = plan.hardware.gpus if plan.hardware is not None else ()
    return container_of(model, replica, gpus=gpus)


def _container_facts(container: ContainerSpec | None) -> tuple[tuple[str, str], ...]:
    """The container as one more fact of the fingerprint; none for a process."""
    if container is None:
        return ()
    return (("container", json.dumps(dataclasses.asdict(container), sort_keys=True)),)


def _with_program(model: ModelPlan, programs: Mapping[str, str]) -> tuple[str, ...]:
    """The command with the path of the vLLM that was found; the fingerprint knows its version only."""
    program = programs.get(model.engine_version)
    if model.engine != "vllm" or program is None:
        return model.argv
    return (program, *model.argv[1:])
