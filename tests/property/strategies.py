"""Hypothesis strategies for models, machines and wishes as the llama.cpp planner meets them."""

from __future__ import annotations

from hypothesis import strategies as st

from trimtab.core.checkpoint import GgufCheckpoint
from trimtab.core.hardware import Host
from trimtab.core.stack import ModelRequest
from trimtab.units import GIB, MIB

_ARCHITECTURES = ("llama", "qwen2", "gemma3", "gemma2", "phi3")


@st.composite
def checkpoints(draw: st.DrawFn) -> GgufCheckpoint:
    """Models from toys to some 70 GB, with and without windows, experts and quantisation."""
    layers = draw(st.integers(1, 96))
    heads = draw(st.integers(1, 64))
    head_dim = draw(st.sampled_from([16, 32, 64, 80, 128, 256]))
    embd = heads * head_dim
    weights = draw(st.integers(MIB, 70 * GIB))
    is_mixture = draw(st.booleans())
    return GgufCheckpoint(
        path="/models/m.gguf",
        name="m",
        architecture=draw(st.sampled_from(_ARCHITECTURES)),
        file_bytes=weights + MIB,
        weights_bytes=weights,
        num_tensors=layers * 9 + 2,
        num_layers=layers,
        embedding_length=embd,
        feed_forward_length=embd * draw(st.integers(1, 5)),
        vocab_size=draw(st.integers(100, 260_000)),
        trained_context_tokens=draw(st.integers(256, 262_144)),
        num_heads=heads,
        kv_heads_per_layer=(draw(st.integers(1, heads)),) * layers,
        key_head_dim=head_dim,
        value_head_dim=head_dim,
        sliding_window_tokens=draw(st.sampled_from([0, 0, 512, 4096])),
        bytes_by_tensor_type=((draw(st.sampled_from(["Q4_0", "Q4_K", "Q8_0", "F16"])), weights),),
        token_embedding_bytes=min(weights // 2, 200 * MIB),
        token_embedding_type=draw(st.sampled_from(["Q4_0", "Q8_0"])),
        has_output_head=draw(st.booleans()),
        num_experts_used=8 if is_mixture else 0,
        expert_feed_forward_length=512 if is_mixture else 0,
        has_chat_template=True,
    )


@st.composite
def hosts(draw: st.DrawFn) -> Host:
    """Machines from 256 MiB to 512 GiB of free RAM."""
    available = draw(st.integers(256 * MIB, 512 * GIB))
    cores = draw(st.integers(1, 64))
    return Host(
        total_ram_bytes=available + GIB,
        available_ram_bytes=available,
        physical_cores=cores,
        logical_cores=2 * cores,
    )


@st.composite
def requests(draw: st.DrawFn, *, max_context: int = 262_144) -> ModelRequest:
    """Wishes with any mix of context and concurrency, asked or left to the planner."""
    return ModelRequest(
        name="m",
        checkpoint="/models/m.gguf",
        context=draw(st.none() | st.integers(1, max_context)),
        concurrency=draw(st.none() | st.integers(1, 64)),
    )
