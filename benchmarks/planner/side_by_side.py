"""Planners side by side on ten configurations whose truth was measured: python side_by_side.py OUT.json

    HF_MEM=…/bin/python VLLM_WIZARD=…/bin/vllm-wizard AICONFIGURATOR=…/bin/python python side_by_side.py OUT.json

Each tool lives in an environment of its own. Nothing is downloaded: they get folders with the real config.json,
and hf-mem a safetensors header made of the checkpoint's tensors. Truth is ../ground-truth (vLLM 0.25.1 on H200).
trimtab answers twice: as it stood when the rows were predicted, and as it stands.
"""

import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

HERE = Path(__file__).resolve().parent
TRUTH = HERE.parent / "ground-truth"
sys.path.insert(0, str(TRUTH))

from model_folders import read_config  # noqa: E402
from predict import predict  # noqa: E402

from trimtab.core.model_facts import DTYPE_BYTES  # noqa: E402
from trimtab.planner.model_config import decode_model_config  # noqa: E402
from trimtab.planner.model_parts import decode_parts  # noqa: E402
from trimtab.planner.tensor_inventory import render_inventory  # noqa: E402

TOTAL = 150_109_880_320
# id -> (billions of parameters as published, quantisation as each tool names it)
TEN = {
    "27b-int4-24g-2k": (27.8, "awq", {"gemm_quant_mode": "int4_wo"}),
    "27b-fp8-vision-8k": (27.8, "fp8", {"gemm_quant_mode": "fp8_block"}),
    "27b-fp8-mtp3-4k": (27.8, "fp8", {"gemm_quant_mode": "fp8_block", "nextn": 3}),
    "35b-fp8-nocache-2k": (36.0, "fp8", {"gemm_quant_mode": "fp8_block", "moe_quant_mode": "fp8_block"}),
    "35b-int4-8k-256": (36.0, "awq", {"gemm_quant_mode": "int4_wo", "moe_quant_mode": "int4_wo"}),
    "32b-fp8-8k-256": (32.8, "fp8", {"gemm_quant_mode": "fp8_block"}),
    "32b-awq-24g-2k": (32.8, "awq", {"gemm_quant_mode": "int4_wo"}),
    "30b-fp8-8k": (30.5, "fp8", {"gemm_quant_mode": "fp8_block", "moe_quant_mode": "fp8_block"}),
    "llama-8b-8k-256": (8.03, "none", {}),
    "tp2-27b-int4-24g": (27.8, "awq", {"gemm_quant_mode": "int4_wo"}),
}


def run(argv: list[str]) -> dict:
    began = time.time()
    wide = os.environ | {"COLUMNS": "20000"}  # vllm-wizard wraps its JSON at the terminal's width
    done = subprocess.run(argv, capture_output=True, text=True, check=False, env=wide)
    text = done.stdout.strip()
    try:
        found = json.loads(text if text.startswith("{\n") else text.splitlines()[-1])
    except (ValueError, IndexError):
        words = (done.stderr or done.stdout).strip().splitlines()
        return {"failed": " ".join(words[-3:])[-400:]}
    return found | {"seconds": round(time.time() - began, 2)}


def make_folder(row: dict, root: Path) -> Path:
    folder = root / row["id"]
    folder.mkdir()
    config = read_config(row)
    (folder / "config.json").write_text(json.dumps(config))
    facts = decode_model_config(config)
    header, offset = {}, 0
    for tensor in render_inventory(decode_parts(facts), dtype=facts.dtype):
        for number in range(tensor.count):
            size = DTYPE_BYTES[tensor.dtype]
            for extent in tensor.shape:
                size *= extent
            name = f"{tensor.name}#{number}" if tensor.count > 1 else tensor.name
            header[name] = {
                "dtype": tensor.dtype,
                "shape": list(tensor.shape),
                "data_offsets": [offset, offset + size],
            }
            offset += size
    (folder / "header.json").write_text(json.dumps(header))
    return folder


def ask_wizard(folder: Path, row: dict, requested: int, billions: float, quantisation: str) -> dict:
    """Its utilisation can't go below 0.5, so the card is named by the memory that makes 0.9 of it the same budget."""
    args, ranks = row["args"], row["args"].get("tensor_parallel_size", 1)
    argv = [
        os.environ["VLLM_WIZARD"], "plan", "--gpu", "emulated", "--gpus", str(ranks),
        "--vram-gb", f"{requested / 0.9 / 2**30:.4f}", "--gpu-memory-utilization", "0.9",
        "--tensor-parallel-size", str(ranks), "--max-model-len", str(args["max_model_len"]), "--concurrency", "1",
        "-q", quantisation, "--json",
    ]  # fmt: skip
    if args.get("kv_cache_dtype") == "fp8":
        argv += ["--kv-cache-dtype", "fp8_e4m3fn"]
    # Given the parameters it doesn't read the config (it takes a typical Llama); given the folder it reads the
    # top level of the config and guesses the parameters. Asked both ways, the better half of each is taken:
    # weights and what they leave from the first, the cache of a request from the second (text_config lifted,
    # a folder name without a size, as it looks names up before it reads).
    weighed = run([*argv, "--model", str(folder), "--params-b", str(billions)])
    flat = folder.with_name("wizard")
    flat.mkdir(exist_ok=True)
    config = json.loads((folder / "config.json").read_text())
    (flat / "config.json").write_text(json.dumps(config | config.get("text_config", {})))
    counted = run([*argv, "--model", str(flat)])
    for found in (weighed, counted):
        if "failed" in found:
            return found
    report = weighed["feasibility"]
    available = report["vram_target_alloc_gb"] / ranks - report["weights_gb"] - report["overhead_gb"]
    return {
        "weights_bytes": int(report["weights_gb"] * 2**30),
        "kv_cache_bytes": int(available * 2**30),
        "request_kv_bytes": int(counted["feasibility"]["kv_cache_gb"] * 2**30 / ranks),
        "request_kv_bytes_by_parameters": int(report["kv_cache_gb"] * 2**30 / ranks),
        "weights_bytes_by_config": int(counted["feasibility"]["weights_gb"] * 2**30),
        "seconds": weighed["seconds"],
    }


def ask_aiconfigurator(folder: Path, row: dict, modes: dict) -> dict:
    args = row["args"]
    options = modes | {
        "length": args["max_model_len"],
        "max_num_tokens": args["max_num_batched_tokens"],
        "max_batch_size": args["max_num_seqs"],
        "memory_fraction_value": args["gpu_memory_utilization"],
        "gpu_memory_capacity_bytes_override": TOTAL,
        "tp_size": args.get("tensor_parallel_size", 1),
        "kvcache_quant_mode": "fp8" if args.get("kv_cache_dtype") == "fp8" else "bfloat16",
    }
    if "moe_quant_mode" in modes:
        options |= {"moe_tp_size": 1, "moe_ep_size": 1}
    argv = [os.environ["AICONFIGURATOR"], str(HERE / "ask_aiconfigurator.py")]
    found = run([*argv, str(folder), json.dumps(options)])
    if "Unsupported quant algorithm" not in found.get("failed", ""):
        return found
    # It knows four bits as a mode but not the config's name for them: asked again without the config's block.
    plain = folder.with_name(f"{folder.name}-plain")
    plain.mkdir()
    config = json.loads((folder / "config.json").read_text())
    config.pop("quantization_config")
    (plain / "config.json").write_text(json.dumps(config))
    return run([*argv, str(plain), json.dumps(options)]) | {"is_without_quantization_config": True}


def ask_trimtab(said: dict, truth: dict) -> dict:
    return {
        "weights_bytes": said["weights_bytes"],
        "kv_cache_bytes": said["kv_cache_bytes"],
        "request_kv_bytes": int(said["kv_cache_bytes"] / said["max_concurrency"]),
    }


def main() -> None:
    starts = json.loads((HERE.parent.parent / "tests/checkpoints/vllm_h200_starts.json").read_text())[
        "starts"
    ]
    rows = {
        run["id"]: run["row"] for run in json.loads((TRUTH / "h200-vllm-0.25.1.json").read_text())["runs"]
    }
    before = json.loads((TRUTH / "predictions-2026-11-30.json").read_text())["predictions"]
    found = []
    with tempfile.TemporaryDirectory() as root:
        for name, (billions, quantisation, modes) in TEN.items():
            row = rows[name]
            truth = next(start["measured"] for start in starts if start["id"] == name)
            folder = make_folder(row, Path(root))
            dtype = "fp8" if row["args"].get("kv_cache_dtype") == "fp8" else "bfloat16"
            length = str(row["args"]["max_model_len"])
            hf_mem = run([os.environ["HF_MEM"], str(HERE / "ask_hf_mem.py"), str(folder), length, dtype])
            ranks = row["args"].get("tensor_parallel_size", 1)
            hf_mem |= {
                key: hf_mem[key] // ranks for key in ("weights_bytes", "request_kv_bytes") if key in hf_mem
            }
            began = time.time()
            now = ask_trimtab(predict(row), truth) | {"seconds": round(time.time() - began, 3)}
            answers = {
                "trimtab, before": ask_trimtab(next(one for one in before if one["id"] == name), truth),
                "trimtab, now": now,
                "hf-mem": hf_mem,
                "vllm-wizard": ask_wizard(folder, row, truth["requested_bytes"], billions, quantisation),
                "aiconfigurator": ask_aiconfigurator(folder, row, modes),
            }
            measured = {
                "weights_bytes": truth["weights_bytes"],
                "kv_cache_bytes": truth["kv_cache_bytes"],
                "request_kv_bytes": int(truth["kv_cache_bytes"] / truth["max_concurrency"]),
            }
            found.append({"id": name, "args": row["args"], "measured": measured, "answers": answers})
            print(name, {tool: answer.get("failed", "ok") for tool, answer in answers.items()}, flush=True)
    Path(sys.argv[1]).write_text(
        json.dumps({"date": time.strftime("%Y-%m-%d"), "rows": found}, indent=1) + "\n"
    )


if __name__ == "__main__":
    main()
