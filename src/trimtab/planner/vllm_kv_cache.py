"""Pure. How vLLM cuts its KV cache: what each layer keeps, the hybrid block, groups, bytes per block.

Exact: the planning functions of 0.17.1, 0.25.1 and
0.33.0 (v1/core/kv_cache_utils.py, kv_cache_planning.py, v1/kv_cache_interface.py, the hybrid block
size in platforms/interface.py) with the same integer arithmetic. Not modelled: packed layouts of
DeepSeek V4, turboquant caches, cross-attention.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from math import lcm
from typing import Literal, TypeAlias

from trimtab.core.model_facts import DTYPE_BYTES, LayerFacts, ModelFacts
from trimtab.errors import MissingFactError
from trimtab.planner.vllm_attention import (
    AttentionChoice,
    choose_linear_attention_kernel,
    is_fp8_kv_cache,
    resolve_kv_cache_dtype,
)
from trimtab.planner.vllm_settings import VllmSettings
from trimtab.planner.vllm_shards import stage_layers
from trimtab.planner.vllm_versions import VersionLine

__all__ = [
    "KvCacheGroup",
    "KvCacheLayout",
    "KvCacheRequest",
    "KvSpec",
    "estimate_kv_cache_layout",
]

SpecKind: TypeAlias = Literal["full", "sliding", "state"]


@dataclass(frozen=True, slots=True, kw_only=True)
class KvSpec:
    """What one layer keeps: ``page_bytes`` per block of ``block_tokens``.

    ``state_blocks`` is the blocks one request holds in a recurrent layer whatever its length;
    ``window_tokens`` is a sliding layer's window.
    """

    kind: SpecKind
    block_tokens: int
    page_bytes: int
    window_tokens: int = 0
    state_blocks: int = 0

    def blocks_per_request(self, tokens: int, max_num_batched_tokens: int) -> int:
        """Blocks that the engine reserves for one request of ``tokens``."""
        if self.kind == "state":
            return self.state_blocks
        if self.kind == "sliding":
            held = min(self.window_tokens - 1 + max_num_batched_tokens, tokens)
            return -(-held // self.block_tokens) + 1
        return -(-tokens // self.block_tokens)


@dataclass(frozen=True, slots=True, kw_only=True)
class KvCacheGroup:
    """Layers that share a block table; ``page_bytes_by_layer`` is parallel to ``layers``."""

    spec: KvSpec
    layers: tuple[int, ...]
    page_bytes_by_layer: tuple[int, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class KvCacheLayout:
    """How the cache is cut. ``bytes_per_block`` has one entry per pipeline stage.

    ``block_tokens`` is the attention block that the engine logs; ``mamba_page_padding`` the share
    by which a recurrent state is padded to it; ``padding_layers`` are slots that no layer uses.
    """

    groups: tuple[KvCacheGroup, ...]
    bytes_per_block: tuple[int, ...]
    block_tokens: int
    context_parallel_size: int = 1
    mamba_page_padding: float = 0.0
    padding_layers: int = 0

    def blocks_per_request(self, tokens: int, max_num_batched_tokens: int) -> int:
        """Blocks of one request of ``tokens``, over all groups."""
        length = -(-tokens // self.context_parallel_size)
        return sum(group.spec.blocks_per_request(length, max_num_batched_tokens) for group in self.groups)


@dataclass(frozen=True, slots=True, kw_only=True)
class KvCacheRequest:
    """Everything the layout depends on besides the model: arguments, card, attention kernels."""

    settings: VllmSettings
    capability: tuple[int, int]
    line: VersionLine
    attention: AttentionChoice


def estimate_kv_cache_layout(facts: ModelFacts, request: KvCacheRequest) -> KvCacheLayout:
    """Specs of every layer, brought to one page size and grouped as the engine does."""
    return _build_layout(_LayoutKey(facts=facts, request=_relevant(request)))


def _relevant(request: KvCacheRequest) -> KvCacheRequest:
    """The request without the arguments that move the budget but not the layout (for the cache)."""
    settings = replace(
        request.settings,
        max_model_len=None,
        max_num_seqs=1,
        max_num_batched_tokens=1,
        gpu_memory_utilization=0.9,
        kv_cache_memory_bytes=None,
        num_gpu_blocks_override=None,
    )
    return replace(request, settings=settings)


class _LayoutKey:
    """Facts by identity, request by value: hashing 64 layers costs more than the layout."""

    __slots__ = ("_hash", "facts", "request")

    def __init__(self, *, facts: ModelFacts, request: KvCacheRequest) -> None:
        self.facts = facts
        self.request = request
        self._hash = hash((id(facts), request))

    def __hash__(self) -> int:
        return self._hash

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _LayoutKey) and self.facts is other.facts and self.request == other.request


@lru_cache(maxsize=256)
def _build_layout(key: _LayoutKey) -> KvCacheLayout:
    facts, request = key.facts, key.request
    settings, line = request.settings, request.line
    stages = stage_layers(facts.num_layers, settings.pipeline_parallel_size)
    layers = _cached_layers(facts, settings)
    block, state_page, padding = _hybrid_block(facts, layers, request)
    specs = [_layer_spec(facts, layer, request, (block, state_page)) for layer in layers]
    if settings.disable_hybrid_kv_cache_manager:
        specs = _unify_kinds(specs)
    groups, unused = _group(specs, line)
    return KvCacheLayout(
        groups=groups,
        bytes_per_block=_stage_bytes(groups, stages, len(facts.layers)),
        block_tokens=block,
        context_parallel_size=settings.decode_context_parallel_size,
        mamba_page_padding=padding,
        padding_layers=unused,
    )


def _cached_layers(facts: ModelFacts, settings: VllmSettings) -> tuple[LayerFacts, ...]:
    """Layers of the model, then the MTP head's, which sits on the last stage."""
    if settings.num_speculative_tokens == 0 or facts.mtp is None:
        return facts.layers
    return (*facts.layers, *[facts.mtp.layer] * facts.mtp.num_layers)


def _stage_bytes(
    groups: tuple[KvCacheGroup, ...], stages: tuple[range, ...], num_layers: int
) -> tuple[int, ...]:
    """Bytes of one block on each stage: the fullest group's pages there."""
    sizes = []
    for index, stage in enumerate(stages):
        stop = num_layers + 1024 if index == len(stages) - 1 else stage.stop
        wanted = range(stage.start, stop)
        sizes.append(
            max(
                sum(
                    page
                    for layer, page in zip(group.layers, group.page_bytes_by_layer, strict=True)
                    if layer in wanted
                )
                for group in groups
            )
        )
    return tuple(sizes)


def _element_bytes(facts: ModelFacts, settings: VllmSettings, dtype: str) -> int:
    """Bytes of one cached element in a dtype without per-head extras."""
    if dtype == "auto":
        name = facts.dtype if settings.dtype in {"auto", "half", "float"} else settings.dtype
        return DTYPE_BYTES.get(name, 2)
    if is_fp8_kv_cache(dtype) or dtype in {"int8_per_token_head", "fp8_per_token_head"}:
        return 1
    return DTYPE_BYTES.get(dtype, 2)


def _token_bytes(layer: LayerFacts, facts: ModelFacts, settings: VllmSettings) -> int:
    """Bytes of one token in one attention layer on one rank."""
    dtype = resolve_kv_cache_dtype(facts, settings)
    size = _element_bytes(facts, settings, dtype)
    if layer.kind == "mla":
        if dtype == "fp8_ds_mla":
            return 656
        return (layer.kv_lora_rank + layer.qk_rope_head_dim) * size
    heads = max(1, layer.num_kv_heads // settings.tensor_parallel_size)
    width = layer.head_dim + layer.v_head_dim
    if dtype == "nvfp4":
        return heads * sum(dim // 2 + dim // 16 for dim in (layer.head_dim, layer.v_head_dim))
    if dtype == "int4_per_token_head":
        return heads * (width // 2 + 8)
    if dtype.endswith("_per_token_head"):
        return heads * (width + 8)
    if dtype.startswith("turboquant"):
        raise MissingFactError(
            f"kv_cache_dtype {dtype} isn't modelled: its packed page size is not known",
            hint="use fp8, or auto for the model's own dtype",
        )
    return heads * width * size


def _state_bytes(layer: LayerFacts, facts: ModelFacts, settings: VllmSettings) -> int:
    """One sequence's recurrent state in one gated-delta-net layer on one rank."""
    ranks = settings.tensor_parallel_size
    keys = layer.linear_num_key_heads * layer.linear_key_head_dim
    values = layer.linear_num_value_heads * layer.linear_value_head_dim
    columns = layer.linear_conv_kernel - 1 + settings.num_speculative_tokens
    conv_bytes = _state_dtype_bytes(settings.mamba_cache_dtype, facts.dtype)
    ssm_default = facts.linear_state_dtype or facts.dtype
    ssm_bytes = _state_dtype_bytes(settings.mamba_ssm_cache_dtype, ssm_default)
    conv = (2 * keys + values) // ranks * columns * conv_bytes
    state = layer.linear_num_value_heads // ranks * layer.linear_value_head_dim * layer.linear_key_head_dim
    return conv + state * ssm_bytes


def _state_dtype_bytes(dtype: str, default: str) -> int:
    return DTYPE_BYTES.get(default if dtype == "auto" else dtype, 2)


def _hybrid_block(
    facts: ModelFacts, layers: Sequence[LayerFacts], request: KvCacheRequest
) -> tuple[int, int, float]:
    """(attention block in tokens, page of a recurrent state, padding share)."""
    settings, line = request.settings, request.line
    base = settings.block_size or request.attention.block_tokens
    state_layer = next((layer for layer in layers if layer.kind == "linear_attention"), None)
    attention = next((layer for layer in layers if layer.kind != "linear_attention"), None)
    if state_layer is None or attention is None:
        return base, 0, 0.0
    state = _state_bytes(state_layer, facts, settings)
    token = _token_bytes(attention, facts, settings)
    step = request.attention.kernel_block_tokens
    if line.number >= (0, 20):
        step = max(step, base)
    kernel = choose_linear_attention_kernel(facts, settings, request.capability, line)
    is_aligned = settings.mamba_cache_mode == "align"
    if is_aligned and line.exports_state_checkpoints and kernel == "flashinfer":
        step = lcm(step, 64)
    block = max(step * -(-state // (step * token)), base)
    page = block * token
    return block, page, (page - state) / state


def _layer_spec(
    facts: ModelFacts, layer: LayerFacts, request: KvCacheRequest, hybrid: tuple[int, int]
) -> KvSpec:
    settings = request.settings
    block, state_page = hybrid
    if layer.kind == "linear_attention":
        blocks = 1 + settings.num_speculative_tokens
        if settings.mamba_cache_mode == "align":
            kernel = choose_linear_attention_kernel(facts, settings, request.capability, request.line)
            is_exporting = request.line.exports_state_checkpoints and kernel == "flashinfer"
            blocks += 2 if is_exporting else 1
        page = state_page or _state_bytes(layer, facts, settings)
        return KvSpec(kind="state", block_tokens=block, page_bytes=page, state_blocks=blocks)
    page = block * _token_bytes(layer, facts, settings)
    if layer.kind == "sliding":
        return KvSpec(
            kind="sliding", block_tokens=block, page_bytes=page, window_tokens=layer.sliding_window_tokens
        )
    return KvSpec(kind="full", block_tokens=block, page_bytes=page)


def _unify_kinds(specs: list[KvSpec]) -> list[KvSpec]:
    """Without the hybrid manager, sliding layers are cached in full."""
    if all(spec.kind != "full" for spec in specs):
        return specs
    return [replace(spec, kind="full", window_tokens=0) if spec.kind == "sliding" else spec for spec in specs]


def _group(specs: list[KvSpec], line: VersionLine) -> tuple[tuple[KvCacheGroup, ...], int]:
    """Groups in the engine's order, and the padding layers they contain."""
    if len({(spec.kind, spec.block_tokens, spec.window_tokens, spec.state_blocks) for spec in specs}) == 1:
        pages = tuple(spec.page_bytes for spec in specs)
        group = KvCacheGroup(spec=specs[0], layers=tuple(range(len(specs))), page_bytes_by_layer=pages)
        return (group,), 0
    specs = _unify_pages(specs, line)
    layers_by_spec: dict[KvSpec, list[int]] = {}
    for index, spec in enumerate(specs):
        layers_by_spec.setdefault(spec, []).append(index)
    counts = [len(layers) for layers in layers_by_spec.values()]
    size = max(counts) if max(counts) < min(counts) * line.group_size_ratio else min(counts)
    groups: list[KvCacheGroup] = []
    unused = 0
    for spec, layers in layers_by_spec.items():
        number = -(-len(layers) // size)
        unused += number * size - len(layers)
        for index in range(number):
            members = tuple(layers[index::number])
            pages = (spec.page_bytes,) * len(members)
            groups.append(KvCacheGroup(spec=spec, layers=members, page_bytes_by_layer=pages))
    return tuple(groups), unused


def _unify_pages(specs: list[KvSpec], line: VersionLine) -> list[KvSpec]:
    """Smaller pages get longer blocks; what doesn't divide is padded (0.25 and later) or refused."""
    largest = max(spec.page_bytes for spec in specs)
    unified = []
    for spec in specs:
        if spec.page_bytes == largest:
            unified.append(spec)
        elif largest % spec.page_bytes == 0 and spec.kind != "state":
            ratio = largest // spec.page_bytes
            unified.append(replace(spec, page_bytes=largest, block_tokens=spec.block_tokens * ratio))
        elif line.number >= (0, 20):
            unified.append(replace(spec, page_bytes=largest))
        else:
            raise MissingFactError(
                f"vLLM {line.version} cannot cache this model: a layer's page of {spec.page_bytes} bytes "
                f"doesn't divide the largest page of {largest}",
                hint="0.25 and later pad such pages",
            )
    return unified
