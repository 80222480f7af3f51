"""How fast the planner is: a whole ``trimtab plan``, the same in-process, and a sweep of 10,000 settings.

    python benchmarks/planner/measure_speed.py [--out FILE]

Two models on four cards (the seed case's second deployment). The first in-process plan is counted with
cold caches of its own; imports are not in it, they are in the whole process.
"""

from __future__ import annotations

import argparse
import json
import platform
import statistics
import subprocess
import sys
import tempfile
import time
from dataclasses import replace
from itertools import islice, product
from pathlib import Path

from trimtab import __version__
from trimtab.core.stack import ModelRequest
from trimtab.planner.gpu_spec import decode_gpu_spec
from trimtab.planner.model_parts import decode_parts
from trimtab.planner.vllm_choice import base_settings
from trimtab.planner.vllm_evaluate import Evaluator
from trimtab.planner.vllm_plan import plan_vllm
from trimtab.planner.vllm_versions import find_version
from trimtab.planner.vllm_wish import VllmWish
from trimtab.probes.builtin_models import read_builtin_model

STACK = """gpus: 4x rtx4090
models:
  qwen3.5-35b: {checkpoint: cyankiwi/Qwen3.5-35B-A3B-AWQ-4bit, context: 262144, concurrency: 16}
  qwen3.5-27b: {checkpoint: cyankiwi/Qwen3.5-27B-AWQ-4bit, context: 262144}
"""
ROUNDS = 10


def make_wish(repo: str, **request: int) -> VllmWish:
    """A wish with facts read anew, so that nothing is remembered from an earlier round."""
    model = read_builtin_model(repo)
    assert model is not None
    return VllmWish(
        request=ModelRequest(name=repo.rpartition("/")[2], checkpoint=repo, **request),
        checkpoint=repo,
        facts=model.facts,
        parts=decode_parts(model.facts),
        version=find_version("0.25.1"),
    )


def time_process() -> list[float]:
    """Seconds of ``trimtab plan`` as a process."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "stack.yaml"
        path.write_text(STACK)
        found = []
        for _ in range(ROUNDS):
            began = time.perf_counter()
            subprocess.run(
                [sys.executable, "-m", "trimtab", "plan", str(path)], check=True, stdout=subprocess.DEVNULL
            )
            found.append(time.perf_counter() - began)
        return found


def time_in_process() -> list[float]:
    """Milliseconds of placing both models, wishes made before."""
    gpus, found = decode_gpu_spec("4xrtx4090"), []
    for _ in range(ROUNDS):
        wishes = (
            make_wish("cyankiwi/Qwen3.5-35B-A3B-AWQ-4bit", context=262144, concurrency=16),
            make_wish("cyankiwi/Qwen3.5-27B-AWQ-4bit", context=262144),
        )
        began = time.perf_counter()
        assert plan_vllm(wishes, gpus).fits
        found.append((time.perf_counter() - began) * 1e3)
    return found


def time_sweep() -> list[float]:
    """Seconds for 10,000 candidate settings of one model on two cards."""
    gpus, found = decode_gpu_spec("2xrtx4090"), []
    for _ in range(3):
        evaluator = Evaluator(make_wish("cyankiwi/Qwen3.5-27B-AWQ-4bit"))
        base = replace(base_settings(evaluator, gpus), tensor_parallel_size=2)
        axes = product(
            range(1, 26), range(2048, 10240, 512), ("auto", "fp8"), (8192, 32768, 131072, 262144), (0.8, 0.85, 0.9, 0.92)
        )  # fmt: skip
        began = time.perf_counter()
        for seqs, batch, dtype, length, share in islice(axes, 10_000):
            evaluator.estimate(
                replace(
                    base,
                    max_num_seqs=seqs,
                    max_num_batched_tokens=batch,
                    kv_cache_dtype=dtype,
                    max_model_len=length,
                    gpu_memory_utilization=share,
                ),
                gpus,
            )
        found.append(time.perf_counter() - began)
        assert evaluator.num_estimates == 10_000
    return found


def main() -> None:
    """Measure, print, and save where asked."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out")
    out = parser.parse_args().out
    result = {
        "trimtab": __version__,
        "python": platform.python_version(),
        "host": platform.processor() or platform.machine(),
        "process_s": time_process(),
        "in_process_ms": time_in_process(),
        "sweep_10000_s": time_sweep(),
    }
    for name in ("process_s", "in_process_ms", "sweep_10000_s"):
        values = result[name]
        print(f"{name:15} median {statistics.median(values):.3f}  max {max(values):.3f}")
    if out:
        Path(out).write_text(json.dumps(result, indent=1) + "\n")


if __name__ == "__main__":
    main()
