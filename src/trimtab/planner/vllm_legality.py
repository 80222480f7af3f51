"""Pure. What vLLM refuses before memory matters: argument by argument, with the numbers and a legal value."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass

from trimtab.core.hardware import Gpu
from trimtab.core.model_facts import ModelFacts
from trimtab.core.model_parts import ModelParts
from trimtab.planner.vllm_attention import choose_attention_backend, resolve_kv_cache_dtype
from trimtab.planner.vllm_cuda_graphs import enumerate_capture_sizes
from trimtab.planner.vllm_kv_cache import KvCacheLayout
from trimtab.planner.vllm_kv_capacity import KvCacheCapacity
from trimtab.planner.vllm_settings import VllmSettings
from trimtab.planner.vllm_shard_rules import Illegality, check_sharding
from trimtab.planner.vllm_versions import VersionLine

__all__ = ["Illegality", "LegalityRequest", "check_vllm_capacity", "check_vllm_settings", "is_legal_sharding"]


@dataclass(frozen=True, slots=True, kw_only=True)
class LegalityRequest:
    """What is checked, with the cards in rank order; ``pinned`` are the argument names the user wrote."""

    facts: ModelFacts
    parts: ModelParts
    settings: VllmSettings
    gpus: tuple[Gpu, ...]
    line: VersionLine
    pinned: tuple[str, ...] = ()

    @property
    def capability(self) -> tuple[int, int]:
        """Of the oldest card, which decides the kernels that all ranks can run."""
        known = [gpu.compute_capability for gpu in self.gpus if gpu.compute_capability is not None]
        return min(known, default=(9, 0))


def check_vllm_settings(request: LegalityRequest) -> tuple[Illegality, ...]:
    """Every reason why this version would not start with these settings on these cards, block count aside."""
    found: list[Illegality] = []
    for rule in _RULES:
        found.extend(rule(request))
    return tuple(found)


def is_legal_sharding(
    facts: ModelFacts, parts: ModelParts, settings: VllmSettings, line: VersionLine
) -> bool:
    """Tensor and pipeline degrees only; for enumerating candidates."""
    if settings.pipeline_parallel_size > facts.num_layers:
        return False
    return not check_sharding(facts, parts, settings, line)


def check_vllm_capacity(
    request: LegalityRequest, layout: KvCacheLayout, capacity: KvCacheCapacity
) -> tuple[Illegality, ...]:
    """Rules that need the cache: aligned block against batch, sequences against states."""
    settings, line, facts = request.settings, request.line, request.facts
    found: list[Illegality] = []
    is_aligned = facts.is_hybrid and settings.mamba_cache_mode == "align"
    if is_aligned and line.block_must_fit_batch and layout.block_tokens > settings.max_num_batched_tokens:
        found.append(
            Illegality(
                code="block_exceeds_batch",
                setting="max_num_batched_tokens",
                text=f"prefix caching aligns blocks of {layout.block_tokens} tokens, which must not exceed "
                f"max_num_batched_tokens {settings.max_num_batched_tokens}; set it to at least "
                f"{layout.block_tokens} or turn prefix caching off",
            )
        )
    sizes = enumerate_capture_sizes(settings, facts, line)
    has_full_graphs = settings.cudagraph_mode.startswith("FULL") and bool(sizes)
    too_many = settings.max_num_seqs > capacity.blocks
    if facts.is_hybrid and line.has_state_block_check and has_full_graphs and too_many:
        found.append(
            Illegality(
                code="sequences_exceed_states",
                setting="max_num_seqs",
                text=f"max_num_seqs {settings.max_num_seqs} exceeds the {capacity.blocks} cache blocks, "
                "and each sequence needs one for its recurrent state",
                largest_legal=capacity.blocks or None,
            )
        )
    return tuple(found)


def _check_cards(request: LegalityRequest) -> Iterator[Illegality]:
    settings, cards = request.settings, len(request.gpus)
    if settings.world_size > cards:
        largest = cards // settings.pipeline_parallel_size
        yield Illegality(
            code="too_few_cards",
            setting="tensor_parallel_size",
            text=f"tensor_parallel_size {settings.tensor_parallel_size} x pipeline_parallel_size "
            f"{settings.pipeline_parallel_size} needs {settings.world_size} cards, {cards} are there",
            largest_legal=largest or None,
        )
    if settings.pipeline_parallel_size > request.facts.num_layers:
        yield Illegality(
            code="too_few_layers",
            setting="pipeline_parallel_size",
            text=f"{request.facts.num_layers} layers cannot fill {settings.pipeline_parallel_size} stages",
            largest_legal=request.facts.num_layers,
        )


def _check_shards(request: LegalityRequest) -> Iterable[Illegality]:
    return check_sharding(request.facts, request.parts, request.settings, request.line)


def _check_attention(request: LegalityRequest) -> Iterator[Illegality]:
    choice = choose_attention_backend(request.facts, request.settings, request.capability, request.line)
    if choice.backend is None:
        dtype = resolve_kv_cache_dtype(request.facts, request.settings)
        why = "; ".join(f"{name} {reason}" for name, reason in choice.reasons)
        is_forced = request.settings.attention_backend is not None
        yield Illegality(
            code="no_attention_backend",
            setting="attention_backend" if is_forced else "kv_cache_dtype",
            text=f"no attention backend takes kv_cache_dtype {dtype} on this card: {why}",
            largest_legal=None if is_forced else "auto",
        )


def _check_weight_kernels(request: LegalityRequest) -> Iterator[Illegality]:
    """Oldest cards that each format has kernels for (get_min_capability of the quantisation configs)."""
    quant, capability = request.facts.quant, request.capability
    if quant is None:
        floor, name = (7, 0), request.facts.dtype
        if request.facts.dtype == "bfloat16" and request.settings.dtype == "auto" and capability < (8, 0):
            yield Illegality(
                code="dtype_not_supported",
                setting="dtype",
                text=f"bfloat16 needs compute capability 8.0, the card has {capability[0]}.{capability[1]}",
                largest_legal="float16",
            )
            return
    else:
        floor, name = (7, 5), quant.method
    if capability < floor:
        yield Illegality(
            code="card_too_old",
            setting="quantization",
            text=f"{name} needs compute capability {floor[0]}.{floor[1]}, "
            f"the card has {capability[0]}.{capability[1]}",
        )


def _check_lengths(request: LegalityRequest) -> Iterator[Illegality]:
    settings, facts = request.settings, request.facts
    limit = facts.max_context_tokens
    if settings.max_model_len is not None and settings.max_model_len > limit:
        yield Illegality(
            code="context_exceeds_model",
            setting="max_model_len",
            text=f"max_model_len {settings.max_model_len} is above the model's {limit} positions",
            largest_legal=limit,
        )
    if settings.max_num_batched_tokens < settings.max_num_seqs:
        yield Illegality(
            code="sequences_exceed_batch",
            setting="max_num_seqs",
            text=f"max_num_seqs {settings.max_num_seqs} is above max_num_batched_tokens "
            f"{settings.max_num_batched_tokens}",
            largest_legal=settings.max_num_batched_tokens,
        )
    if settings.block_size is not None and settings.block_size % 16:
        yield Illegality(
            code="block_size",
            setting="block_size",
            text=f"block_size {settings.block_size} isn't a multiple of the kernels' 16",
            largest_legal=settings.block_size // 16 * 16 or 16,
        )


def _check_recurrence(request: LegalityRequest) -> Iterator[Illegality]:
    settings, facts = request.settings, request.facts
    if settings.num_speculative_tokens > 0 and facts.mtp is None:
        yield Illegality(
            code="no_mtp_head",
            setting="speculative_config",
            text=f"{settings.num_speculative_tokens} speculative tokens are asked for, but the checkpoint "
            "has no MTP head",
            largest_legal=0,
        )
    if facts.is_hybrid and settings.mamba_cache_mode == "all":
        yield Illegality(
            code="mamba_cache_mode",
            setting="mamba_cache_mode",
            text="this family doesn't take mamba_cache_mode all",
            largest_legal="align",
        )


def _check_flags(request: LegalityRequest) -> Iterator[Illegality]:
    absent = dict(request.line.removed_flags)
    for name in request.pinned:
        if name in absent:
            yield Illegality(
                code="flag_not_in_version",
                setting=name,
                text=f"vLLM {request.line.version} doesn't take {name}: it {absent[name]}",
            )


_RULES: tuple[Callable[[LegalityRequest], Iterable[Illegality]], ...] = (
    _check_cards,
    _check_shards,
    _check_attention,
    _check_weight_kernels,
    _check_lengths,
    _check_recurrence,
    _check_flags,
)
