"""Model folders without weights: a config.json from tests/checkpoints, and a processor where images are on."""

import copy
import json
import shutil
import sys
from pathlib import Path

HERE = Path(__file__).resolve().parent
CHECKPOINTS = HERE.parent.parent / "tests" / "checkpoints"
sys.path.insert(0, str(HERE.parent.parent / "tests" / "fakes"))


def read_config(row: dict) -> dict:
    configs = {}
    for name in ("qwen_configs.json", "other_configs.json"):
        configs |= json.loads((CHECKPOINTS / name).read_text(encoding="utf-8"))
    config = copy.deepcopy(configs[row["model"]])
    if row.get("mask") == "awq-g128":
        config["quantization_config"] = {
            "quant_method": "awq", "bits": 4, "group_size": 128, "zero_point": True, "version": "gemm"
        }  # fmt: skip
    return config


def engine_config(config: dict) -> dict:
    """The same config with its spared modules written the way vLLM 0.25 matches them."""
    quant = config.get("quantization_config") or {}
    if "ignore" in quant and "vision_config" in config:
        spared = [name for name in quant["ignore"] if "visual" not in name]
        quant["ignore"] = [*spared, "re:.*visual.*"]
    if "modules_to_not_convert" in quant and "vision_config" in config:
        depth = config["vision_config"]["depth"]
        parts = ("attn.qkv", "attn.proj", "mlp.linear_fc1", "mlp.linear_fc2")
        tower = [f"model.visual.blocks.{block}.{part}" for block in range(depth) for part in parts]
        tower += ["model.visual.merger.linear_fc1", "model.visual.merger.linear_fc2"]
        names = quant["modules_to_not_convert"]
        quant["modules_to_not_convert"] = [*names, *(name for name in tower if name not in names)]
    return config


def make_model_folder(row: dict, root: Path) -> Path:
    # The compile cache's key has the path in it: a start that is to find it filled uses the same one.
    folder = root / row.get("after", row["id"])
    folder.mkdir(parents=True, exist_ok=True)
    config = engine_config(read_config(row))
    (folder / "config.json").write_text(json.dumps(config))
    if "vision_config" in config and not row["args"].get("language_model_only"):
        for path in (HERE / "processor").glob("*.json"):
            shutil.copy(path, folder)
    return folder
