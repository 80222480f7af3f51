"""Real configs and inventories from tests/checkpoints, and checkpoints written as tiny real files."""

from __future__ import annotations

import copy
import json
from functools import lru_cache
from pathlib import Path
from typing import Any

from trimtab.core.model_facts import DTYPE_BYTES

FOLDER = Path(__file__).parent.parent / "checkpoints"

AWQ_G128 = {"quant_method": "awq", "bits": 4, "group_size": 128, "zero_point": True}
INT4_ALL_BUT_LINEAR_ATTN = {
    "quant_method": "compressed-tensors",
    "format": "pack-quantized",
    "config_groups": {
        "group_0": {
            "targets": ["Linear"],
            "weights": {
                "num_bits": 4,
                "group_size": 32,
                "strategy": "group",
                "symmetric": True,
                "type": "int",
            },
        }
    },
    "ignore": [
        "lm_head",
        "re:.*linear_attn.*",
        "re:.*mlp[.]gate$",
        "re:.*shared_expert_gate$",
        "re:.*visual.*",
        "re:.*mtp.*",
    ],
}
MASKS = {"awq-g128": AWQ_G128, "int4-all-but-linear-attn": INT4_ALL_BUT_LINEAR_ATTN}


@lru_cache
def _document(name: str) -> dict[str, Any]:
    return json.loads((FOLDER / name).read_text(encoding="utf-8"))


def config_names() -> list[str]:
    """Names of every config at hand."""
    return [*_document("qwen_configs.json"), *_document("other_configs.json")]


def read_config(name: str) -> dict[str, Any]:
    """A fresh copy of a config.json."""
    both = _document("qwen_configs.json") | _document("other_configs.json")
    return copy.deepcopy(both[name])


def read_config_with_mask(name: str, mask: str) -> dict[str, Any]:
    """A config with another quantisation block."""
    config = read_config(name)
    config["quantization_config"] = copy.deepcopy(MASKS[mask])
    return config


def inventories() -> dict[str, Any]:
    """Every checked inventory, by config name."""
    return _document("inventories.json")


def start_ups() -> list[dict[str, Any]]:
    """Measured "Model loading took" figures."""
    return _document("vllm_start_ups.json")["rows"]


def write_safetensors(
    path: Path, tensors: dict[str, tuple[str, list[int]]], *, missing_bytes: int = 0
) -> None:
    """A real safetensors file of zeros; ``missing_bytes`` are cut off its end."""
    table: dict[str, Any] = {"__metadata__": {"format": "pt"}}
    offset = 0
    for name, (dtype, shape) in tensors.items():
        size = DTYPE_BYTES[dtype]
        for extent in shape:
            size *= extent
        table[name] = {"dtype": dtype, "shape": shape, "data_offsets": [offset, offset + size]}
        offset += size
    header = json.dumps(table).encode()
    body = len(header).to_bytes(8, "little") + header + bytes(offset)
    path.write_bytes(body[: len(body) - missing_bytes])
