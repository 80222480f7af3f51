"""Plans for vLLM as a planner would write them: hosts and models that real people have."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from trimtab.core.hardware import Host, Inventory
from trimtab.core.plan import ModelPlan, Plan, ReplicaPlan, Setting, SettingOrigin
from trimtab.core.stack import GatewaySettings, SettingValue
from trimtab.planner.gpu_spec import decode_gpu_spec
from trimtab.units import GIB

HOST = Host(total_ram_bytes=256 * GIB, available_ram_bytes=240 * GIB, physical_cores=32, logical_cores=64)
SEED_SETTINGS: Mapping[str, SettingValue] = {
    "tensor_parallel_size": 4,
    "max_model_len": 262144,
    "kv_cache_dtype": "fp8",
    "gpu_memory_utilization": 0.9,
    "max_num_seqs": 4,
    "max_num_batched_tokens": 8192,
    "language_model_only": True,
    "enable_prefix_caching": True,
    "default_chat_template_kwargs": '{"enable_thinking": false}',
}


def settings_of(values: Mapping[str, SettingValue], origin: SettingOrigin = "pinned") -> tuple[Setting, ...]:
    return tuple(Setting(name=name, value=value, origin=origin) for name, value in values.items())


def vllm_plan(
    name: str,
    checkpoint: str,
    values: Mapping[str, SettingValue],
    *,
    gpus: tuple[tuple[int, ...], ...] = ((0,),),
    version: str = "0.25.1",
) -> ModelPlan:
    """A plan with one replica per group of cards."""
    return ModelPlan(
        name=name,
        checkpoint=checkpoint,
        fits=True,
        engine="vllm",
        engine_version=version,
        runtime="docker",
        max_model_len=int(str(values.get("max_model_len", 32768))),
        settings=settings_of(values),
        replicas=tuple(
            ReplicaPlan(replica_id=f"{name}-{index}", gpus=cards) for index, cards in enumerate(gpus)
        ),
    )


def plan_of(gpus: str, *models: ModelPlan, host: str = "0.0.0.0", port: int = 8000) -> Plan:
    inventory = Inventory(host=HOST, gpus=decode_gpu_spec(gpus))
    return Plan(
        stack="box",
        fits=True,
        models=models,
        gateway=GatewaySettings(host=host, port=port),
        hardware=inventory,
    )


SEED_35B = vllm_plan(
    "qwen3.5-35b-a3b-fp8", "/data/models/Qwen3.5-35B-A3B-FP8", SEED_SETTINGS, gpus=((0, 1, 2, 3),),
    version="0.17.0",
)  # fmt: skip
SEED_27B = replace(
    SEED_35B,
    name="qwen3.5-27b-fp8",
    checkpoint="/data/models/Qwen3.5-27B-FP8",
    replicas=(ReplicaPlan(replica_id="qwen3.5-27b-fp8-0", gpus=(0, 1, 2, 3)),),
)
_AWQ = {**SEED_SETTINGS, "tensor_parallel_size": 2, "max_num_seqs": 16}
SEED_AWQ = (
    vllm_plan(
        "qwen3.5-35b-a3b-awq", "cyankiwi/Qwen3.5-35B-A3B-AWQ-4bit", _AWQ, gpus=((0, 1),), version="0.17.0"
    ),
    vllm_plan("qwen3.5-27b-awq", "cyankiwi/Qwen3.5-27B-AWQ-4bit", _AWQ, gpus=((2, 3),), version="0.17.0"),
)

_TOOLS = {
    "reasoning_parser": "qwen3",
    "enable_auto_tool_choice": True,
    "tool_call_parser": "qwen3_coder",
}
PLANS: Mapping[str, Plan] = {
    "4xrtx4090--qwen3.5-35b-fp8": plan_of("4xrtx4090", SEED_35B),
    "4xrtx4090--qwen3.5-27b-fp8": plan_of("4xrtx4090", SEED_27B),
    "4xrtx4090--two-awq": plan_of("4xrtx4090", *SEED_AWQ),
    "1xh200--qwen3.5-35b-fp8": plan_of(
        "1xh200",
        vllm_plan("qwen3.5-35b", "Qwen/Qwen3.5-35B-A3B-FP8", {
            "max_model_len": 262144, "gpu_memory_utilization": 0.92, "max_num_seqs": 128,
            "max_num_batched_tokens": 8192, "enable_prefix_caching": True,
            "speculative_config": '{"method":"mtp","num_speculative_tokens":2}', **_TOOLS,
        }),
        host="127.0.0.1",
    ),
    "2xrtx5090--qwen3.5-27b-fp8": plan_of(
        "2xrtx5090",
        vllm_plan("qwen3.5-27b", "Qwen/Qwen3.5-27B-FP8", {
            "tensor_parallel_size": 2, "max_model_len": 131072, "kv_cache_dtype": "fp8", "max_num_seqs": 8,
            "max_num_batched_tokens": 4096, "language_model_only": True, **_TOOLS,
        }, gpus=((0, 1),), version="0.33.0"),
    ),
    "1xrtx3090-1xrtx4090--qwen3.5-27b-fp8": plan_of(
        "1xrtx4090,1xrtx3090",
        vllm_plan("qwen3.5-27b", "Qwen/Qwen3.5-27B-FP8", {
            "tensor_parallel_size": 2, "max_model_len": 219520, "kv_cache_dtype": "fp8", "max_num_seqs": 4,
            "gpu_memory_utilization": 0.92, "attention_backend": "FLASHINFER", "language_model_only": True,
        }, gpus=((0, 1),)),
    ),
    "3xrtx4090--qwen3-32b-awq-replicas": plan_of(
        "3xrtx4090",
        vllm_plan("qwen3-32b", "Qwen/Qwen3-32B-AWQ", {
            "max_model_len": 16384, "kv_cache_dtype": "fp8", "max_num_seqs": 8, "reasoning_parser": "qwen3",
        }, gpus=((0,), (1,), (2,))),
        host="127.0.0.1",
    ),
    "4xa10--qwen3-30b-bf16": plan_of(
        "4xa10",
        vllm_plan("qwen3-30b-a3b", "/srv/models/Qwen3-30B-A3B", {
            "tensor_parallel_size": 4, "max_model_len": 32768, "max_num_seqs": 4, "enforce_eager": True,
            "enable_prefix_caching": False,
        }, gpus=((0, 1, 2, 3),)),
    ),
    "2xl40s--llama-3.1-70b-fp8": plan_of(
        "2xl40s",
        vllm_plan("llama-3.1-70b", "RedHatAI/Meta-Llama-3.1-70B-Instruct-FP8", {
            "tensor_parallel_size": 2, "max_model_len": 16384, "kv_cache_memory_bytes": 4_294_967_296,
            "tool_call_parser": "llama3_json", "enable_auto_tool_choice": True,
        }, gpus=((0, 1),), version="0.27.1"),
    ),
}  # fmt: skip
