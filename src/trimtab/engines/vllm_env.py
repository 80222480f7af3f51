"""Pure. The environment of a vLLM server: only what is right for these cards, each with its reason."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from trimtab.core.hardware import Gpu
from trimtab.core.plan import ModelPlan, ReplicaPlan, Setting
from trimtab.core.stack import SettingValue
from trimtab.engines.vllm_flags import find_flag, has_env
from trimtab.engines.vllm_sleep import is_put_to_sleep

__all__ = [
    "DEV_MODE_VARIABLE",
    "EnvChoice",
    "choose_env",
    "gpus_of_replica",
    "is_local_checkpoint",
    "mixed_card_settings",
    "replica_devices",
]

DEV_MODE_VARIABLE: Final = "VLLM_SERVER_DEV_MODE"
_LOCAL: Final = re.compile(r"^(?:/|\.{1,2}(?:/|$)|~|[A-Za-z]:[\\/])")
# Ada (8.9) is the first that multiplies FP8; older cards run FP8 weights through Marlin as 16 bit.
_FIRST_FP8: Final = (8, 9)


@dataclass(frozen=True, slots=True, kw_only=True)
class EnvChoice:
    """One variable, its value and why it is set."""

    name: str
    value: str
    reason: str


def is_local_checkpoint(checkpoint: str) -> bool:
    """Whether a checkpoint is a folder of this machine: it begins with /, ./, ../, ~ or a drive."""
    return _LOCAL.match(checkpoint) is not None


def gpus_of_replica(replica: ReplicaPlan, gpus: Sequence[Gpu]) -> tuple[Gpu, ...]:
    """The replica's cards out of the machine's, in the replica's order; unknown indices are left out."""
    by_index = {gpu.index: gpu for gpu in gpus}
    return tuple(by_index[index] for index in replica.gpus if index in by_index)


def replica_devices(replica: ReplicaPlan) -> tuple[tuple[str, str], ...]:
    """Variables that give a process exactly the replica's cards, in NVML's order; none without cards."""
    if not replica.gpus:
        return ()
    return (
        ("CUDA_DEVICE_ORDER", "PCI_BUS_ID"),
        ("CUDA_VISIBLE_DEVICES", ",".join(str(index) for index in replica.gpus)),
    )


def choose_env(plan: ModelPlan, gpus: Sequence[Gpu] = ()) -> tuple[EnvChoice, ...]:
    """What a server of this plan needs on these cards (those of one replica), sorted by name."""
    choices = [
        EnvChoice(
            name="VLLM_NO_USAGE_STATS", value="1", reason="nothing about this machine is sent anywhere"
        ),
        *_sleep(plan),
        *_offline(plan),
        *_nccl(plan, gpus),
        *_mixed(plan, gpus),
    ]
    return tuple(sorted(choices, key=lambda choice: choice.name))


def _sleep(plan: ModelPlan) -> list[EnvChoice]:
    """Set where trimtab puts the engine to sleep itself."""
    reason = "opens /sleep and /wake_up, with other development endpoints, on the engine's own loopback port"
    return [EnvChoice(name=DEV_MODE_VARIABLE, value="1", reason=reason)] if is_put_to_sleep(plan) else []


def _offline(plan: ModelPlan) -> list[EnvChoice]:
    values = {item.name: item.value for item in plan.settings}
    others = [
        values.get("tokenizer"),
        values.get("hf_config_path"),
        _draft_model(values.get("speculative_config")),
    ]
    needs_hub = any(isinstance(other, str) and not is_local_checkpoint(other) for other in others)
    if not is_local_checkpoint(plan.checkpoint) or needs_hub or values.get("trust_remote_code") is True:
        return []
    reason = "the folder has everything; a start never waits for a hub that can't be reached"
    return [EnvChoice(name="HF_HUB_OFFLINE", value="1", reason=reason)]


def _draft_model(config: SettingValue) -> str | None:
    if not isinstance(config, str):
        return None
    try:
        found = json.loads(config)
    except ValueError:
        return None
    model = found.get("model") if isinstance(found, dict) else None
    return model if isinstance(model, str) else None


def _world_size(plan: ModelPlan) -> int:
    values = {item.name: item.value for item in plan.settings}
    sizes = [values.get(f"{axis}_parallel_size") for axis in ("tensor", "pipeline", "data")]
    world = 1
    for size in sizes:
        world *= size if isinstance(size, int) and not isinstance(size, bool) else 1
    return world


def _nccl(plan: ModelPlan, gpus: Sequence[Gpu]) -> list[EnvChoice]:
    if _world_size(plan) < 2 or not any(gpu.has_p2p is False for gpu in gpus):
        return []
    name = next(gpu.name for gpu in gpus if gpu.has_p2p is False)
    return [
        EnvChoice(
            name="NCCL_IB_DISABLE", value="1", reason="all cards are in this host: no InfiniBand to look for"
        ),
        EnvChoice(
            name="NCCL_P2P_DISABLE",
            value="1",
            reason=f"{name} can't reach another card's memory; NCCL goes through host memory",
        ),
    ]


def _is_mixed(gpus: Sequence[Gpu]) -> bool:
    """Some of the cards multiply FP8 and some don't."""
    known = [gpu.compute_capability for gpu in gpus if gpu.compute_capability is not None]
    return len({capability >= _FIRST_FP8 for capability in known}) == 2


def _mixed(plan: ModelPlan, gpus: Sequence[Gpu]) -> list[EnvChoice]:
    if not _is_mixed(gpus) or not has_env(plan.engine_version, "VLLM_TEST_FORCE_FP8_MARLIN"):
        return []
    reason = "the cards differ in FP8 support; every rank must run the same kernels"
    return [EnvChoice(name="VLLM_TEST_FORCE_FP8_MARLIN", value="1", reason=reason)]


def mixed_card_settings(version: str, gpus: Sequence[Gpu]) -> tuple[Setting, ...]:
    """Settings that make FP8 ranks of unlike cards run the same kernels, where no variable does it.

    VLLM_TEST_FORCE_FP8_MARLIN did until 0.28; after that the backends are chosen by arguments.
    """
    if not _is_mixed(gpus) or has_env(version, "VLLM_TEST_FORCE_FP8_MARLIN"):
        return ()
    reason = "the cards differ in FP8 support; every rank must run the same kernels"
    return tuple(
        Setting(name=name, value="marlin", origin="chosen", reason=reason)
        for name in ("linear_backend", "moe_backend")
        if find_flag(version, name) is not None
    )
