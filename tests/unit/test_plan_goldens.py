"""Plans as people read them, on ten hosts; ``make golden`` rewrites them, and the changelog says why."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from wishes import DENSE_AWQ, DENSE_FP8, MOE_AWQ, MOE_FP8, known

from trimtab.cli.render import render_explanation, render_plan
from trimtab.core.hardware import Host, Inventory
from trimtab.core.model_source import ModelSource
from trimtab.core.stack import ModelRequest, Stack
from trimtab.planner.gpu_spec import decode_gpu_spec
from trimtab.planner.stack_plan import World, plan_stack

FOLDER = Path(__file__).parent.parent / "golden" / "plans"
HOST = Host(
    total_ram_bytes=128 << 30,
    available_ram_bytes=120 << 30,
    physical_cores=16,
    logical_cores=32,
    cpu_name="x",
)


def model(repo: str, **request: object) -> ModelRequest:
    """One wished model."""
    return ModelRequest(name=repo.rpartition("/")[2].lower(), checkpoint=repo, **request)


CASES = {
    "4x-rtx4090--35b-fp8--seed": (
        "4xrtx4090",
        [
            model(
                MOE_FP8,
                engine_version="0.17.0",
                context=262144,
                concurrency=4,
                thinking="off",
                engine_args=(
                    ("kv_cache_dtype", "fp8"),
                    ("gpu_memory_utilization", 0.9),
                    ("language_model_only", True),
                ),
            )
        ],
    ),
    "4x-rtx4090--two-awq--262144": (
        "4xrtx4090",
        [model(MOE_AWQ, context=262144, concurrency=16, thinking="off"), model(DENSE_AWQ, context=262144)],
    ),
    "1x-rtx4090--27b-awq--free": ("1xrtx4090", [model(DENSE_AWQ)]),
    "3x-rtx4090--27b-fp8--32768": ("3xrtx4090", [model(DENSE_FP8, context=32768)]),
    "1x-rtx5090--27b-fp8--16384": ("1xrtx5090", [model(DENSE_FP8, context=16384)]),
    "2x-rtx5090-1x-rtx3090--two--free": ("2xrtx5090,1xrtx3090", [model("Qwen/Qwen3-4B"), model(DENSE_FP8)]),
    "2x-rtx3090--32b-awq--8-at-once": ("2xrtx3090", [model("Qwen/Qwen3-32B-AWQ", concurrency=8)]),
    "1x-h200--two-shared--free": ("1xh200", [model(MOE_AWQ), model(DENSE_AWQ)]),
    "8x-h200--397b-fp8--free": ("8xh200", [model("Qwen/Qwen3.5-397B-A17B-FP8")]),
    "4x-a10--30b-bf16--1024": ("4xa10", [model("Qwen/Qwen3-30B-A3B", context=1024, concurrency=1)]),
}


@pytest.mark.parametrize("name", CASES)
def test_the_plan_reads_as_recorded(name: str) -> None:
    """A prediction or a word that moves shows in a diff."""
    gpus, models = CASES[name]
    sources = tuple(
        ModelSource(
            checkpoint=item.checkpoint,
            facts=known(item.checkpoint)[0],
            parts=known(item.checkpoint)[1],
            origin="built in",
            mask_origin="config",
        )
        for item in models
    )
    world = World(
        inventory=Inventory(host=HOST, gpus=decode_gpu_spec(gpus)), python="python", llama_cpp_version=""
    )
    made = plan_stack(Stack(name="golden", models=tuple(models)), sources, world)
    text = f"{render_plan(made)}\n{render_explanation(made)}\n"
    path = FOLDER / f"{name}.txt"
    if os.environ.get("TRIMTAB_GOLDEN") == "write":
        path.parent.mkdir(exist_ok=True)
        path.write_text(text, encoding="utf-8")

    assert path.read_text(encoding="utf-8") == text
