"""Pure. Which attention kernels vLLM picks on a card, and the smallest block they read.

Order and conditions are those of platforms/cuda.py and the backends' own checks in the wheels
0.17.1, 0.25.1 and 0.33.0.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from trimtab.core.model_facts import LayerFacts, ModelFacts
from trimtab.planner.vllm_settings import VllmSettings
from trimtab.planner.vllm_versions import VersionLine

__all__ = [
    "AttentionChoice",
    "choose_attention_backend",
    "choose_linear_attention_kernel",
    "is_fp8_kv_cache",
    "resolve_kv_cache_dtype",
]

_FP8 = frozenset({"fp8", "fp8_e4m3", "fp8_e5m2"})
_PLAIN = frozenset({"auto", "float16", "bfloat16"})
_PER_TOKEN = frozenset({"int8_per_token_head", "fp8_per_token_head", "int4_per_token_head"})


@dataclass(frozen=True, slots=True, kw_only=True)
class AttentionChoice:
    """The backend chosen, or None with ``reasons`` why each candidate was turned down.

    ``block_tokens`` is the cache block without a hybrid's enlargement; ``kernel_block_tokens`` the
    smallest block its kernels read, a hybrid's blocks are multiples of it.
    """

    backend: str | None
    block_tokens: int = 16
    kernel_block_tokens: int = 16
    reasons: tuple[tuple[str, str], ...] = ()


def resolve_kv_cache_dtype(facts: ModelFacts, settings: VllmSettings) -> str:
    """``auto`` becomes fp8 where the checkpoint carries a KV scheme (utils/torch_utils.py)."""
    if settings.kv_cache_dtype == "auto" and facts.quant is not None and facts.quant.kv_cache_format:
        return facts.quant.kv_cache_format
    return settings.kv_cache_dtype


def is_fp8_kv_cache(dtype: str) -> bool:
    """One byte per element with a scale per tensor."""
    return dtype in _FP8


def choose_attention_backend(
    facts: ModelFacts, settings: VllmSettings, capability: tuple[int, int], line: VersionLine
) -> AttentionChoice:
    """The first backend of the card's order that takes this head size and cache dtype."""
    layer = next((layer for layer in facts.layers if layer.kind != "linear_attention"), None)
    if layer is None:
        return AttentionChoice(backend="NONE")
    dtype = resolve_kv_cache_dtype(facts, settings)
    is_mla = layer.kind == "mla"
    order = _mla_order(capability) if is_mla else _order(capability)
    if settings.attention_backend is not None:
        order = (settings.attention_backend.upper(),)
    reasons: list[tuple[str, str]] = []
    for backend in order:
        if is_mla:
            refusal = _refuse_mla(backend, dtype, capability)
        else:
            case = _Case(dtype=dtype, capability=capability, layer=layer, line=line)
            refusal = _refuse(backend, case)
        if not refusal:
            return _describe(backend, layer, capability, line)
        reasons.append((backend, refusal))
    return AttentionChoice(backend=None, reasons=tuple(reasons))


def choose_linear_attention_kernel(
    facts: ModelFacts, settings: VllmSettings, capability: tuple[int, int], line: VersionLine
) -> str:
    """``flashinfer`` or ``triton`` for the prefill of gated-delta-net layers; empty without such layers.

    SM 9.0, SM 10 with key heads of 128, and SM 12 from 0.30 (facts 2.2); others run Triton.
    """
    layer = next((layer for layer in facts.layers if layer.kind == "linear_attention"), None)
    if layer is None:
        return ""
    if settings.gdn_prefill_backend != "auto":
        return settings.gdn_prefill_backend
    major = capability[0]
    is_flashinfer = (
        capability == (9, 0)
        or (major == 10 and layer.linear_key_head_dim == 128)
        or (major == 12 and line.exports_state_checkpoints)
    )
    return "flashinfer" if is_flashinfer else "triton"


def _order(capability: tuple[int, int]) -> tuple[str, ...]:
    if capability[0] == 10:
        return ("FLASHINFER", "FLASH_ATTN", "TRITON_ATTN", "FLEX_ATTENTION")
    return ("FLASH_ATTN", "FLASHINFER", "TRITON_ATTN", "FLEX_ATTENTION")


def _mla_order(capability: tuple[int, int]) -> tuple[str, ...]:
    if capability[0] == 10:
        return ("FLASHINFER_MLA", "CUTLASS_MLA", "FLASH_ATTN_MLA", "FLASHMLA", "TRITON_MLA")
    if capability[0] == 12:
        return ("TRITON_MLA",)
    return ("FLASH_ATTN_MLA", "FLASHMLA", "FLASHINFER_MLA", "TRITON_MLA")


@dataclass(frozen=True, slots=True, kw_only=True)
class _Case:
    """What a backend is asked for."""

    dtype: str
    capability: tuple[int, int]
    layer: LayerFacts
    line: VersionLine

    @property
    def card(self) -> str:
        return f"the card has {_show(self.capability)}"


def _refuse(backend: str, case: _Case) -> str:
    """Why a plain-attention backend cannot be used; empty when it can."""
    check = _CHECKS.get(backend)
    return "" if check is None else check(case)


def _refuse_flash_attention(case: _Case) -> str:
    if case.capability < (8, 0):
        return f"needs compute capability 8.0, {case.card}"
    if case.dtype in _PLAIN:
        return _refuse_flash_attention_shape(case)
    if case.dtype not in {"fp8", "fp8_e4m3"}:
        return f"has no {case.dtype} cache"
    has_fa4 = case.capability[0] == 10 and case.line.number >= (0, 33)
    if case.capability == (9, 0) or has_fa4:
        return ""
    return f"an {case.dtype} cache needs FlashAttention 3 on compute capability 9.0, {case.card}"


def _refuse_flash_attention_shape(case: _Case) -> str:
    major = case.capability[0]
    if case.layer.head_dim > 256 and major not in {9, 10}:
        return f"head size {case.layer.head_dim} is above 256"
    if case.layer.has_sinks and major != 9:
        return "attention sinks need FlashAttention 3 on compute capability 9.0"
    return ""


def _refuse_flashinfer(case: _Case) -> str:
    if not (8, 0) <= case.capability <= (12, 1):
        return f"runs on compute capability 8.0 to 12.1, {case.card}"
    largest = 512 if case.line.number >= (0, 25) else 256
    if case.layer.head_dim not in {64, 128, 256, largest}:
        return f"head size {case.layer.head_dim} isn't among 64, 128, 256"
    if case.layer.has_sinks and case.capability[0] != 10:
        return "attention sinks need compute capability 10.x"
    if case.dtype == "nvfp4":
        return "" if case.capability[0] == 10 else "an nvfp4 cache needs compute capability 10.x"
    return "" if case.dtype in _PLAIN | _FP8 else f"has no {case.dtype} cache"


def _refuse_triton(case: _Case) -> str:
    if case.dtype in _FP8 and case.capability < (8, 9):
        return f"an fp8 cache needs compute capability 8.9, {case.card}"
    if case.dtype in _PER_TOKEN and case.line.number < (0, 25):
        return f"has no {case.dtype} cache before 0.25"
    return "" if case.dtype in _PLAIN | _FP8 | _PER_TOKEN else f"has no {case.dtype} cache"


def _refuse_flex(case: _Case) -> str:
    if case.layer.has_sinks:
        return "has no attention sinks"
    return "" if case.dtype in _PLAIN else f"has no {case.dtype} cache"


_CHECKS: dict[str, Callable[[_Case], str]] = {
    "FLASH_ATTN": _refuse_flash_attention,
    "FLASHINFER": _refuse_flashinfer,
    "TRITON_ATTN": _refuse_triton,
    "FLEX_ATTENTION": _refuse_flex,
}


def _refuse_mla(backend: str, dtype: str, capability: tuple[int, int]) -> str:
    major = capability[0]
    needs = {"FLASH_ATTN_MLA": 9, "CUTLASS_MLA": 10, "FLASHINFER_MLA": 10}
    if backend in needs and major != needs[backend]:
        return f"needs compute capability {needs[backend]}.x, the card has {_show(capability)}"
    if backend == "FLASHMLA" and major not in {9, 10}:
        return f"needs compute capability 9.x or 10.x, the card has {_show(capability)}"
    if backend == "FLASH_ATTN_MLA" and dtype not in _PLAIN:
        return f"has no {dtype} cache"
    return "" if dtype in _PLAIN | {"fp8", "fp8_e4m3", "fp8_ds_mla"} else f"has no {dtype} cache"


def _describe(
    backend: str, layer: LayerFacts, capability: tuple[int, int], line: VersionLine
) -> AttentionChoice:
    block = {"FLASHMLA": 64, "CUTLASS_MLA": 128, "FLASHINFER_MLA": 32}.get(backend, 16)
    if line.number < (0, 20) and layer.kind == "mla" and capability[0] in {9, 10}:
        block = 128 if backend == "CUTLASS_MLA" else 64
    kernel = block
    is_wide = layer.head_dim == 256 and backend == "FLASHINFER" and capability[0] == 10
    if is_wide and line.number < (0, 20):
        kernel = 32
    is_fa4 = layer.head_dim == 256 and backend == "FLASH_ATTN" and capability[0] in {10, 11}
    if is_fa4 and line.number >= (0, 33):
        kernel = 128
    return AttentionChoice(backend=backend, block_tokens=block, kernel_block_tokens=kernel)


def _show(capability: tuple[int, int]) -> str:
    return f"{capability[0]}.{capability[1]}"
