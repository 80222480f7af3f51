"""I/O. ``--predict``: what the speed model would have said, beside what was measured."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

from trimtab.errors import StackFileError

__all__ = ["Predictor", "make_predictor"]

Predictor = Callable[[int, int, int, int], dict[str, Any]]
"""(users, input tokens, output tokens, requests per user) → the ``predicted`` block of a run."""


def make_predictor(values: dict[str, Any]) -> Predictor | None:
    """A predictor for --predict CONFIG and --gpus; None without --predict."""
    if values["predict"] is None:
        return None
    if values["gpus"] is None:
        raise StackFileError("--predict needs the cards", hint="--predict config.json --gpus 2xrtx4090")
    from trimtab.planner.gpu_spec import decode_gpu_spec  # noqa: PLC0415 - only with --predict
    from trimtab.planner.latency import SpeedSettings, SpeedWorkload, estimate_speed  # noqa: PLC0415
    from trimtab.planner.model_config import decode_model_config  # noqa: PLC0415
    from trimtab.planner.model_parts import decode_parts  # noqa: PLC0415

    facts = decode_model_config(_read_config(values["predict"]), where=values["predict"])
    parts, gpus = decode_parts(facts), decode_gpu_spec(values["gpus"])
    settings = SpeedSettings(tensor_parallel_size=len(gpus), kv_cache_dtype=values["kv_cache_dtype"])

    def predict(users: int, input_tokens: int, output_tokens: int, rounds: int) -> dict[str, Any]:
        load = SpeedWorkload(
            input_tokens=input_tokens,
            output_tokens=output_tokens,
            concurrency=users,
            requests_per_user=max(1, rounds),
        )
        found = estimate_speed(facts, parts, settings, gpus, load)
        return {
            "mean_ttft_ms": found.ttft_ms,
            "mean_tpot_ms": found.tpot_ms,
            "output_throughput": found.output_tokens_per_s,
            "ttft_error_ratio": found.ttft_error_ratio,
            "tpot_error_ratio": found.error_ratio,
            "source": found.source,
        }

    return predict


def _read_config(path: str) -> Any:
    file = Path(path) / "config.json" if Path(path).is_dir() else Path(path)
    try:
        return json.loads(file.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise StackFileError(f"--predict {path}: cannot be read as a config.json: {error}") from None
