"""Pure. Shapes of public models that measurement tables name and whose config may not be at hand.

Each entry is a config.json with just the keys that size and speed depend on, from the models'
public config.json files (2026-11), and the names under which tables list the same shape.
"""

from __future__ import annotations

from trimtab.core.model_facts import ModelFacts
from trimtab.planner.model_config import decode_model_config

__all__ = ["ALIASES", "decode_known_model", "known_models"]

_Config = dict[str, object]


def _dense(name: str, sizes: tuple[int, int, int, int, int, int, int], *, is_tied: bool = False) -> _Config:
    """A plain decoder: layers, hidden, intermediate, heads, KV heads, head size, vocabulary."""
    layers, hidden, intermediate, heads, kv_heads, head_dim, vocabulary = sizes
    return {
        "architectures": [name],
        "model_type": name.removesuffix("ForCausalLM").lower(),
        "torch_dtype": "bfloat16",
        "num_hidden_layers": layers,
        "hidden_size": hidden,
        "intermediate_size": intermediate,
        "num_attention_heads": heads,
        "num_key_value_heads": kv_heads,
        "head_dim": head_dim,
        "vocab_size": vocabulary,
        "max_position_embeddings": 131072,
        "tie_word_embeddings": is_tied,
        "rope_theta": 1000000.0,
    }


def _gemma3(sizes: tuple[int, int, int, int, int, int], window: int) -> _Config:
    layers, hidden, intermediate, heads, kv_heads, head_dim = sizes
    vocabulary = 262144
    config = _dense(
        "Gemma3ForCausalLM",
        (layers, hidden, intermediate, heads, kv_heads, head_dim, vocabulary),
        is_tied=True,
    )
    return {
        **config,
        "model_type": "gemma3_text",
        "sliding_window": window,
        "sliding_window_pattern": 6,
        "rope_local_base_freq": 10000.0,
    }


def _gemma4_31b() -> _Config:
    config = _dense("Gemma4ForConditionalGeneration", (60, 5376, 21504, 32, 16, 256, 262144), is_tied=True)
    layers = (["sliding_attention"] * 5 + ["full_attention"]) * 10
    text = {
        **config,
        "model_type": "gemma4_text",
        "layer_types": layers,
        "sliding_window": 1024,
        "global_head_dim": 512,
        "num_global_key_value_heads": 4,
        "attention_k_eq_v": True,
        "enable_moe_block": False,
        "num_kv_shared_layers": 0,
        "hidden_size_per_layer_input": 0,
        "rope_parameters": {"full_attention": {"partial_rotary_factor": 0.25, "rope_type": "proportional"}},
    }
    return {
        "architectures": ["Gemma4ForConditionalGeneration"],
        "model_type": "gemma4",
        "tie_word_embeddings": True,
        "text_config": text,
    }


_KNOWN: dict[str, _Config] = {
    "gemma-3-1b-it": _gemma3((26, 1152, 6912, 4, 1, 256), 512),
    "gemma-3-4b-it": _gemma3((34, 2560, 10240, 8, 4, 256), 1024),
    "gemma-3-12b-it": _gemma3((48, 3840, 15360, 16, 8, 256), 1024),
    "gemma-3-27b-it": _gemma3((62, 5376, 21504, 32, 16, 128), 1024),
    "gemma-4-31B-it": _gemma4_31b(),
    "Qwen2.5-7B-Instruct": _dense("Qwen2ForCausalLM", (28, 3584, 18944, 28, 4, 128, 152064)),
    "Qwen2.5-14B-Instruct": _dense("Qwen2ForCausalLM", (48, 5120, 13824, 40, 8, 128, 152064)),
    "Qwen2.5-32B-Instruct": _dense("Qwen2ForCausalLM", (64, 5120, 27648, 40, 8, 128, 152064)),
    "Qwen3-4B": _dense("Qwen3ForCausalLM", (36, 2560, 9728, 32, 8, 128, 151936), is_tied=True),
    "Qwen3-8B": _dense("Qwen3ForCausalLM", (36, 4096, 12288, 32, 8, 128, 151936)),
    "Qwen3-14B": _dense("Qwen3ForCausalLM", (40, 5120, 17408, 40, 8, 128, 151936)),
    "Mistral-7B": _dense("MistralForCausalLM", (32, 4096, 14336, 32, 8, 128, 32768)),
    "Llama-3.1-8B": _dense("LlamaForCausalLM", (32, 4096, 14336, 32, 8, 128, 128256)),
}

ALIASES: tuple[tuple[str, str], ...] = (
    ("qwen3.8-27b", "Qwen3.6-27B"),
    ("qwen3.5-27b", "Qwen3.6-27B"),
    ("tess-4-27b", "Qwen3.6-27B"),
    ("thinkingcap-qwen3.6-27b", "Qwen3.6-27B"),
    ("ornith-1.0-35b", "Qwen3.6-35B-A3B"),
    ("qwen3.5-35b-a3b", "Qwen3.6-35B-A3B"),
    ("qwen3-vl-30b-a3b", "Qwen3-30B-A3B"),
    ("qwen3-coder-30b-a3b", "Qwen3-30B-A3B"),
    ("qwen3-vl-32b", "Qwen3-32B"),
    ("deepseek-r1-distill-qwen-14b", "Qwen2.5-14B-Instruct"),
    ("qwen2.5-coder-32b", "Qwen2.5-32B-Instruct"),
    ("llama 3.1 8b", "Llama-3.1-8B"),
)
"""(what a table's model name contains, the shape it shares): fine-tunes and successors of equal size."""


def known_models() -> tuple[str, ...]:
    """Base names of the shapes kept here."""
    return tuple(_KNOWN)


def decode_known_model(name: str) -> ModelFacts:
    """The facts of one of ``known_models()``."""
    return decode_model_config(_KNOWN[name], where=f"known shape {name}")
