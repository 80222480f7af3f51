"""A whole checkpoint of two shards that fits into a test: every tensor of a tiny Qwen3, zeros as weights."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from checkpoint_facts import write_safetensors

from trimtab.planner.model_config import decode_model_config
from trimtab.planner.model_parts import decode_parts
from trimtab.planner.tensor_inventory import render_inventory

TINY: dict[str, Any] = {
    "architectures": ["Qwen3ForCausalLM"],
    "model_type": "qwen3",
    "hidden_size": 64,
    "intermediate_size": 128,
    "num_hidden_layers": 4,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 16,
    "vocab_size": 256,
    "max_position_embeddings": 512,
    "torch_dtype": "bfloat16",
    "tie_word_embeddings": False,
}


def stored_tensors(config: dict[str, Any]) -> dict[str, tuple[str, list[int]]]:
    """Every tensor of a tiny model, as the inventory lists it."""
    facts = decode_model_config(config)
    named: dict[str, tuple[str, list[int]]] = {}
    for tensor in render_inventory(decode_parts(facts), dtype=facts.dtype):
        for layer in range(tensor.count):
            named[tensor.name.replace("{l}", str(layer))] = (tensor.dtype, list(tensor.shape))
    return named


def write_model(folder: Path, config: dict[str, Any] | None = None) -> Path:
    """A whole small checkpoint of two shards."""
    config = TINY if config is None else config
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps(config))
    tensors = stored_tensors(config)
    half = len(tensors) // 2
    shards = {
        "model-00001-of-00002.safetensors": dict(list(tensors.items())[:half]),
        "model-00002-of-00002.safetensors": dict(list(tensors.items())[half:]),
    }
    for name, content in shards.items():
        write_safetensors(folder / name, content)
    weight_map = {tensor: name for name, content in shards.items() for tensor in content}
    index = {"metadata": {"total_size": 1}, "weight_map": weight_map}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))
    return folder
