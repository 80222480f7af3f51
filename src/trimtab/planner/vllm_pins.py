"""Pure. Engine arguments that move memory, or that no start survives, and that no other rule looks at.

What the account cannot follow is said beside the plan; what cannot be at all is refused with the limit.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Final

from trimtab.core.model_facts import ModelFacts
from trimtab.core.plan import PlanWarning
from trimtab.core.stack import SettingValue
from trimtab.planner.rope_stretch import is_only_stretch
from trimtab.planner.vllm_settings import VllmSettings
from trimtab.planner.vllm_shard_rules import Illegality

__all__ = ["check_pins", "warn_of_pins"]

# Argument → what it changes that the account does not follow.
_NOT_FOLLOWED: Final[dict[str, str]] = {
    "cpu_offload_gb": "moves weights to the host's RAM: the cards hold less than is planned",
    "hf_overrides": "changes the model's own facts: of these only YaRN is followed",
    "enable_lora": "reserves memory for adapters: the cards hold more than is planned",
    "kv_transfer_config": "adds buffers of a connector: the cards hold more than is planned",
    "kv_offloading_size": "keeps a copy of the cache in the host's RAM, which is not planned",
    "mamba_block_size": "changes how recurrent states are cut: blocks may differ from the plan",
    "nnodes": "spreads the engine over several hosts: the account is of one",
    "prefill_context_parallel_size": "cuts prompts over more cards: the account is of one group",
    "load_format": "may hold the weights twice while loading",
}
_DEFAULTS: Final = (None, False, 0, 0.0, 1, "auto")
# Kernels that carry another name than the format whose weights they run.
_KERNEL_ENDINGS: Final = ("_marlin", "-marlin")
# vllm/v1/attention/backends/registry.py of 16 releases, 0.17.1 to 0.33.0, without ROCm and XPU.
_BACKENDS: Final = frozenset(
    {
        *("AMX_MLA", "B12X", "CPU_ATTN", "CPU_MLA", "CUSTOM", "CUTLASS_MLA", "CUTLASS_MSA"),
        *("FLASHINFER", "FLASHINFER_MLA", "FLASHINFER_MLA_SPARSE", "FLASHINFER_MLA_SPARSE_DSV4"),
        *("FLASHINFER_MLA_SPARSE_DSV41", "FLASHINFER_MLA_SPARSE_SM120"),
        *("FLASHINFER_MLA_SPARSE_SM90", "FLASHMLA", "FLASHMLA_MEGA_ATTN_DSV41", "FLASHMLA_SPARSE"),
        *("FLASHMLA_SPARSE_DSV4", "FLASHMLA_SPARSE_DSV41", "FLASH_ATTN", "FLASH_ATTN_DIFFKV"),
        *("FLASH_ATTN_MLA", "FLASH_ATTN_MLA_SPARSE", "FLASH_ATTN_MLA_SPARSE_FA4", "FLEX_ATTENTION"),
        *("GDN_ATTN", "HPC_ATTN", "LINEAR", "MAMBA1", "MAMBA2", "MINIMAX_M3_SPARSE"),
        *("NO_ATTENTION", "SHORT_CONV", "STEP5_DSA", "TOKENSPEED_MLA", "TORCH_SDPA", "TREE_ATTN"),
        *("TRITON_ATTN", "TRITON_ATTN_DIFFKV", "TRITON_FLASHINFER", "TRITON_FLASH_ATTN"),
        *("TRITON_MLA", "TRITON_MSA", "TURBOQUANT", "ULTRAQUANT"),
    }
)
_FORMATS_OF: Final[dict[str, frozenset[str]]] = {
    "fp8": frozenset({"fp8", "fbgemm_fp8"}),
    "awq": frozenset({"awq"}),
    "gptq": frozenset({"gptq", "auto-round"}),
}


def warn_of_pins(pins: Mapping[str, SettingValue]) -> Iterator[PlanWarning]:
    """What a reader must know of pinned arguments that the account does not follow."""
    for name, effect in _NOT_FOLLOWED.items():
        if name == "hf_overrides" and is_only_stretch(pins.get(name)):
            continue
        if name in pins and (pins[name] is True or pins[name] not in _DEFAULTS):
            yield PlanWarning(code="not_modelled", text=f"{name} {effect}", source="not modelled")


def check_pins(
    settings: VllmSettings, facts: ModelFacts, *, num_cards: int, block_room: int | None
) -> Iterator[Illegality]:
    """Values that no start survives; ``block_room`` is the blocks that memory gives, if known."""
    copies = settings.data_parallel_size
    if copies > 1 and settings.world_size * copies > num_cards:
        yield Illegality(
            code="too_few_cards",
            setting="data_parallel_size",
            text=f"data_parallel_size {copies} with {settings.world_size} cards each needs"
            f" {settings.world_size * copies} cards, {num_cards} are there",
            largest_legal=max(1, num_cards // settings.world_size),
        )
    if settings.attention_backend is not None and settings.attention_backend.upper() not in _BACKENDS:
        yield Illegality(
            code="no_such_backend",
            setting="attention_backend",
            text=f"attention_backend {settings.attention_backend[:40]!r} is none of"
            f" {', '.join(sorted(_BACKENDS))}",
        )
    degree, context_degree = settings.tensor_parallel_size, settings.decode_context_parallel_size
    if degree % context_degree:
        yield Illegality(
            code="context_parallel",
            setting="decode_context_parallel_size",
            text=f"decode_context_parallel_size {context_degree} does not divide"
            f" tensor_parallel_size {degree}",
            largest_legal=1,
        )
    override = settings.num_gpu_blocks_override
    if override is not None and block_room is not None and override > block_room:
        yield Illegality(
            code="blocks_exceed_memory",
            setting="num_gpu_blocks_override",
            text=f"num_gpu_blocks_override {override:,} is more than the {block_room:,} blocks that fit",
            largest_legal=block_room or None,
        )
    yield from _check_quantization(settings, facts)


def _check_quantization(settings: VllmSettings, facts: ModelFacts) -> Iterator[Illegality]:
    """The engine refuses a method that is not the checkpoint's own."""
    wished, quant = settings.quantization, facts.quant
    if wished is None or quant is None or quant.is_online:
        return
    plain = wished
    for ending in _KERNEL_ENDINGS:
        plain = plain.removesuffix(ending)
    own = quant.method.removesuffix("_marlin")
    if plain != own and own not in _FORMATS_OF.get(plain, frozenset()):
        yield Illegality(
            code="quantization_mismatch",
            setting="quantization",
            text=f"quantization {wished} is asked for, and the checkpoint is quantised as {quant.method}",
            largest_legal=quant.method,
        )
