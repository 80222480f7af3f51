"""Write GGUF files of any shape whose weights are all zero, to measure memory where no download is possible.

    python benchmarks/llama_cpp_memory/synthetic_models.py DONOR.gguf FOLDER [NAME ...]

The tokenizer comes from DONOR (SmolLM2). Weights are holes of a sparse file: they cost no disk, but
llama.cpp reads, maps, repacks and multiplies them like any others, so memory is what a real model of
that shape takes. The text that such a model writes means nothing.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import gguf
import numpy as np

Q = gguf.GGMLQuantizationType
BASE = {
    "arch": "llama", "layers": 16, "embd": 2048, "ff": 8192, "heads": 32, "kv_heads": 8, "head_dim": 64,
    "quant": "Q4_0", "vocab": 49152, "tied": True, "context": 32768,
}  # fmt: skip
SMALL = BASE | {"layers": 12, "embd": 768, "ff": 2048, "heads": 12, "kv_heads": 12}
MODELS = {
    "q4_0": BASE,
    "q8_0": BASE | {"quant": "Q8_0"},
    "q4_k": BASE | {"quant": "Q4_K"},
    "q6_k": BASE | {"quant": "Q6_K"},
    "iq4_nl": SMALL | {"quant": "IQ4_NL"},
    "q2_k": SMALL | {"quant": "Q2_K"},
    "q3_k": SMALL | {"quant": "Q3_K"},
    "q5_k": SMALL | {"quant": "Q5_K"},
    "q5_0": SMALL | {"quant": "Q5_0"},
    "mxfp4": SMALL | {"quant": "MXFP4"},
    "f16": BASE | {"quant": "F16", "layers": 8},
    "bf16": BASE | {"quant": "BF16", "layers": 8},
    "f32": SMALL | {"quant": "F32"},
    "wide-ff": BASE | {"ff": 16384, "layers": 8},
    "narrow-ff": BASE | {"ff": 2048, "layers": 8},
    "mha": SMALL,
    "big-head": SMALL | {"head_dim": 128, "kv_heads": 4},
    "untied": SMALL | {"tied": False},
    "vocab-150k": SMALL | {"vocab": 150000},
    "vocab-250k": SMALL | {"vocab": 250000},
    "gemma3": BASE | {"arch": "gemma3", "layers": 26, "embd": 1152, "ff": 6912, "heads": 4, "kv_heads": 1,
                      "head_dim": 256, "window": 512},
    "gemma2": BASE | {"arch": "gemma2", "layers": 26, "embd": 1152, "ff": 6912, "heads": 4, "kv_heads": 1,
                      "head_dim": 256, "window": 512},
    "moe": BASE | {"arch": "qwen3moe", "layers": 12, "embd": 1024, "ff": 512, "heads": 16, "kv_heads": 4,
                   "head_dim": 64, "experts": 32, "experts_used": 4},
}  # fmt: skip


def tensors(m: dict) -> Iterator[tuple[str, tuple[int, ...], str]]:
    """Name, shape (rows first, as numpy) and type of every tensor."""
    embd, q, kv = m["embd"], m["heads"] * m["head_dim"], m["kv_heads"] * m["head_dim"]
    kind = m["quant"]
    yield "token_embd.weight", (m["vocab"], embd), kind
    if not m["tied"]:
        yield "output.weight", (m["vocab"], embd), kind
    yield "output_norm.weight", (embd,), "F32"
    for i in range(m["layers"]):
        b = f"blk.{i}."
        yield b + "attn_norm.weight", (embd,), "F32"
        yield b + "ffn_norm.weight", (embd,), "F32"
        yield b + "attn_q.weight", (q, embd), kind
        yield b + "attn_k.weight", (kv, embd), kind
        yield b + "attn_v.weight", (kv, embd), kind
        yield b + "attn_output.weight", (embd, q), kind
        if m["arch"] in ("gemma3", "qwen3moe"):
            yield b + "attn_q_norm.weight", (m["head_dim"],), "F32"
            yield b + "attn_k_norm.weight", (m["head_dim"],), "F32"
        if m["arch"] in ("gemma2", "gemma3"):
            yield b + "post_attention_norm.weight", (embd,), "F32"
            yield b + "post_ffw_norm.weight", (embd,), "F32"
        if "experts" in m:
            yield b + "ffn_gate_inp.weight", (m["experts"], embd), "F32"
            yield b + "ffn_gate_exps.weight", (m["experts"], m["ff"], embd), kind
            yield b + "ffn_up_exps.weight", (m["experts"], m["ff"], embd), kind
            yield b + "ffn_down_exps.weight", (m["experts"], embd, m["ff"]), kind
        else:
            yield b + "ffn_gate.weight", (m["ff"], embd), kind
            yield b + "ffn_up.weight", (m["ff"], embd), kind
            yield b + "ffn_down.weight", (embd, m["ff"]), kind


def write(path: Path, m: dict, donor: gguf.GGUFReader) -> None:
    w = gguf.GGUFWriter(path, m["arch"])
    w.add_name(path.stem)
    w.add_context_length(m["context"])
    w.add_embedding_length(m["embd"])
    w.add_block_count(m["layers"])
    w.add_feed_forward_length(m["ff"])
    w.add_head_count(m["heads"])
    w.add_head_count_kv(m["kv_heads"])
    w.add_key_length(m["head_dim"])
    w.add_value_length(m["head_dim"])
    w.add_layer_norm_rms_eps(1e-5)
    w.add_rope_freq_base(10000.0)
    w.add_rope_dimension_count(m["head_dim"])
    if "window" in m:
        w.add_sliding_window(m["window"])
    if "experts" in m:
        w.add_expert_count(m["experts"])
        w.add_expert_used_count(m["experts_used"])
        w.add_expert_feed_forward_length(m["ff"])
    tokens, merges = vocabulary(donor, m["vocab"])
    w.add_tokenizer_model("gpt2")
    w.add_tokenizer_pre("smollm")
    w.add_token_list(tokens)
    w.add_token_types([3 if i < 17 else 1 for i in range(len(tokens))])
    w.add_token_merges(merges)
    w.add_bos_token_id(1)
    w.add_eos_token_id(2)
    for name, shape, kind in tensors(m):
        quant = Q[kind]
        block, size = gguf.GGML_QUANT_SIZES[quant]
        nbytes = int(np.prod(shape)) // block * size
        byte_shape = shape if kind in ("F32", "F16") else gguf.quant_shape_to_byte_shape(shape, quant)
        dtype = {"F32": np.float32, "F16": np.float16}.get(kind, np.uint8)
        w.add_tensor_info(
            name, byte_shape, np.dtype(dtype), nbytes, None if kind in ("F32", "F16") else quant
        )
    w.write_header_to_file()
    w.write_kv_data_to_file()
    w.write_ti_data_to_file()
    alignment = 32
    start = -(-path.stat().st_size // alignment) * alignment
    sizes = [-(-t.nbytes // alignment) * alignment for t in w.tensors[0].values()]
    w.close()
    with path.open("r+b") as file:
        file.truncate(start + sum(sizes))


def vocabulary(donor: gguf.GGUFReader, size: int) -> tuple[list[str], list[str]]:
    def strings(key: str) -> list[str]:
        return donor.fields[key].contents()

    tokens, merges = strings("tokenizer.ggml.tokens"), strings("tokenizer.ggml.merges")
    words = tokens[1000:]
    for i in range(size - len(tokens)):
        left, right = words[i % 40000], words[(i * 7 + 13 + i // 40000) % 40000]
        tokens.append(f"{left}{right}{i}")
        merges.append(f"{left} {right}{i}")
    return tokens[:size], merges


def main() -> None:
    donor, folder = gguf.GGUFReader(sys.argv[1]), Path(sys.argv[2])
    for name in sys.argv[3:] or MODELS:
        write(folder / f"{name}.gguf", MODELS[name], donor)
        print(folder / f"{name}.gguf", flush=True)


if __name__ == "__main__":
    main()
