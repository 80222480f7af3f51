"""Pure. A chosen candidate as settings with origin and reason, and the warnings that belong to it."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from trimtab.core.plan import PlanWarning, Setting, SettingOrigin
from trimtab.core.stack import SettingValue
from trimtab.engines.vllm_env import mixed_card_settings
from trimtab.engines.vllm_families import ModelFamily, family_settings, find_family, thinking_kwargs
from trimtab.engines.vllm_flags import knows_architecture
from trimtab.planner.vllm_attention import is_fp8_kv_cache, resolve_kv_cache_dtype
from trimtab.planner.vllm_budget import CALIBRATED
from trimtab.planner.vllm_evaluate import Evaluation
from trimtab.planner.vllm_pins import warn_of_pins
from trimtab.planner.vllm_shapes import legal_tensor_parallel_sizes
from trimtab.planner.vllm_wish import VllmWish
from trimtab.units import format_bytes

__all__ = ["explain_settings", "explain_warnings", "family_of"]

_FP8_BY_TRITON_FROM: Final = (8, 9)
# Parsers of vLLM that read the same format.
_SAME_FORMAT: Final[dict[str, frozenset[str]]] = {
    "qwen3_coder": frozenset({"qwen3_xml"}),
    "deepseek_r1": frozenset({"deepseek_v3", "qwen3"}),
    "qwen3": frozenset({"deepseek_r1"}),
}
_KV_SCALE_FAMILIES: Final = ("qwen3_5", "qwen3_5_moe", "qwen3_next")


def explain_settings(wish: VllmWish, item: Evaluation) -> tuple[Setting, ...]:
    """Every argument that goes to the command line, in reading order; pinned ones as they were written."""
    made = {setting.name: setting for setting in _planned(wish, item)}
    made |= {setting.name: setting for setting in mixed_card_settings(wish.version.version, item.gpus)}
    for name, value in wish.pins.items():
        made[name] = Setting(name=name, value=value, origin="pinned", reason="set by the user")
    return tuple(made.values())


def _planned(wish: VllmWish, item: Evaluation) -> Iterator[Setting]:
    settings, shape = item.settings, item.shape
    legal = ", ".join(str(size) for size in legal_tensor_parallel_sizes(wish, item.settings))
    yield _chosen(
        "tensor_parallel_size",
        shape.tensor_parallel_size,
        f"cards that share every layer; legal for this checkpoint: {legal or 'none'}",
    )
    if shape.pipeline_parallel_size > 1:
        yield _chosen(
            "pipeline_parallel_size",
            shape.pipeline_parallel_size,
            "layers are spread over the cards: no legal tensor-parallel size carries the wish",
        )
    if shape.enable_expert_parallel:
        yield _chosen(
            "enable_expert_parallel", value=True, reason="cut over these cards, experts are illegal"
        )
    yield _context(wish, item)
    yield _sequences(wish, item)
    yield _chosen(
        "max_num_batched_tokens",
        settings.max_num_batched_tokens,
        f"prefill tokens per step; the profile run takes {_activation(item)} per card for it",
    )
    yield from _cache(wish, item)
    yield from _budget(item)
    is_default = wish.is_fully_pinned
    reason = f"vLLM {wish.version.version}'s own" if is_default else _prefix_reason(item)
    origin: SettingOrigin = "default" if is_default else "chosen"
    yield _chosen("enable_prefix_caching", settings.enable_prefix_caching, reason, origin)
    yield from _family(wish)
    if settings.mm_limits_are_zero and wish.facts.vision is not None:
        yield _chosen(
            "language_model_only", value=True, reason="text only: the vision tower stays out of memory"
        )


def _family(wish: VllmWish) -> Iterator[Setting]:
    """What the server must be told about the model's way of thinking and calling tools."""
    family = family_of(wish)
    # A parser looks its marks up in the tokenizer, and the server ends at its start where there is none.
    if family is None or wish.pins.get("skip_tokenizer_init") is True:
        return
    for name, value in family_settings(family, wish.version.version):
        yield _chosen(name, value, f"the format that {family.name} answers in; {family.source}")
    default = wish.request.thinking
    kwargs = None if default is None else thinking_kwargs(family, default)
    if kwargs is not None:
        yield _chosen("default_chat_template_kwargs", kwargs, f"thinking: {default}, as asked", "asked")


def family_of(wish: VllmWish) -> ModelFamily | None:
    """The chat family of the wished model, None where it cannot be told."""
    facts = wish.facts
    return find_family(
        architecture=facts.architecture,
        model_type=facts.model_type,
        checkpoint=wish.checkpoint,
        hidden_size=facts.hidden_size,
        max_position_embeddings=facts.max_position_embeddings,
    )


def _chosen(name: str, value: SettingValue, reason: str, origin: SettingOrigin = "chosen") -> Setting:
    return Setting(name=name, value=value, origin=origin, reason=reason)


def _context(wish: VllmWish, item: Evaluation) -> Setting:
    limit = wish.facts.max_context_tokens
    if wish.context_tokens is not None:
        return _chosen("max_model_len", item.max_model_len, "the context asked for", "asked")
    why = "the longest that fits" if item.is_shortened else "all that the model is made for"
    return _chosen("max_model_len", item.max_model_len, f"{why} (of {limit:,})")


def _sequences(wish: VllmWish, item: Evaluation) -> Setting:
    value, wanted = item.settings.max_num_seqs, wish.request.concurrency
    if wanted is not None:
        spread = f", spread over {item.num_replicas} replicas" if item.num_replicas > 1 else ""
        return _chosen("max_num_seqs", value, f"the concurrency of {wanted} asked for{spread}", "asked")
    return _chosen("max_num_seqs", value, "as many chats of 8,192 tokens as the KV cache holds, 32 at most")


def _activation(item: Evaluation) -> str:
    return format_bytes(max(budget.activation_bytes for budget in item.memory.per_gpu))


def _cache(wish: VllmWish, item: Evaluation) -> Iterator[Setting]:
    settings = item.settings
    if "fp8_kv" in item.concessions:
        yield _chosen(
            "kv_cache_dtype",
            settings.kv_cache_dtype,
            "half the KV cache per token: the wish does not fit in the model's own dtype",
        )
    is_fp8 = is_fp8_kv_cache(resolve_kv_cache_dtype(wish.facts, settings))
    oldest = min((gpu.compute_capability or (9, 0)) for gpu in item.gpus)
    if is_fp8 and oldest < _FP8_BY_TRITON_FROM and item.memory.attention.backend == "FLASHINFER":
        yield _chosen(
            "attention_backend",
            "FLASHINFER",
            "below compute capability 8.9 only FlashInfer takes an FP8 KV cache; Triton would raise",
        )


def _budget(item: Evaluation) -> Iterator[Setting]:
    if item.settings.kv_cache_memory_bytes is not None:
        return
    outside = format_bytes(max(budget.outside_budget_bytes for budget in item.memory.per_gpu))
    yield _chosen(
        "gpu_memory_utilization",
        item.settings.gpu_memory_utilization,
        f"the largest share that leaves room for {outside} outside the budget and a full batch at run time",
    )


def _prefix_reason(item: Evaluation) -> str:
    if item.settings.enable_prefix_caching:
        return f"shared beginnings are computed once, in blocks of {item.memory.layout.block_tokens:,} tokens"
    return "states at block borders would cost the KV cache that the wish needs"


def explain_warnings(wish: VllmWish, item: Evaluation) -> Iterator[PlanWarning]:
    """What a careful operator would want to know before the start."""
    yield from wish.warnings
    if not item.fits:
        return
    yield from item.memory.warnings
    if item.memory.verdict == "tight" and not any(
        warning.code == "runtime_peak_exceeds_card" for warning in item.memory.warnings
    ):
        yield PlanWarning(code="tight", text=item.memory.reason, source="the band of the account")
    yield from warn_of_pins(wish.pins)
    measured = [term.name for term in item.memory.terms[0] if term.source == CALIBRATED]
    if measured:
        yield PlanWarning(
            code="calibrated",
            text=f"{' and '.join(measured)} as an earlier start on this machine measured",
            source="calibrated",
        )
    yield from _capacity_warnings(wish, item)
    yield from _family_warnings(wish)
    heads = min((layer.num_kv_heads for layer in wish.facts.layers if layer.num_kv_heads), default=0)
    degree = item.shape.tensor_parallel_size
    if heads and degree > heads:
        yield PlanWarning(
            code="kv_heads_copied",
            text=f"TP{degree} with {heads} KV heads keeps every head {degree // heads} times:"
            f" no less KV cache per card than TP{heads}",
            source="KV heads are copied when there are fewer than ranks",
        )
    if wish.pins.get("calculate_kv_scales") is True and wish.facts.model_type.startswith(_KV_SCALE_FAMILIES):
        yield PlanWarning(
            code="kv_scales",
            text="calculate_kv_scales turns this family's answers into gibberish; leave it out (scale 1.0)",
            source="model card of ig1/Qwen3.5-35B-A3B-NVFP4, measured by its author",
        )
    kinds = {gpu.compute_capability for gpu in item.gpus}
    if len(kinds) > 1 and wish.facts.quant is not None and wish.facts.quant.format.startswith("fp8"):
        yield PlanWarning(
            code="mixed_cards",
            text="cards of different generations in one replica: all run the weight-only FP8 kernel"
            " (VLLM_TEST_FORCE_FP8_MARLIN=1), at the speed of the slower card",
            source="ranks must compute the same; README of allanchan339/vllm-qwen3.5-27B",
        )


def _family_warnings(wish: VllmWish) -> Iterator[PlanWarning]:
    family, default = family_of(wish), wish.request.thinking
    if default is not None and (family is None or family.thinking_kwarg is None):
        yield PlanWarning(
            code="thinking_without_switch",
            text=f"thinking: {default} has no effect: this model's template is not known to have a switch",
            source=family.source if family is not None else "",
        )
    yield from _parser_warnings(wish, family)
    if not knows_architecture(wish.version.version, wish.facts.architecture):
        yield PlanWarning(
            code="architecture_unknown_to_version",
            text=f"vLLM {wish.version.version} does not list {wish.facts.architecture} and may refuse it",
            source="the model registry of that release",
        )


def _parser_warnings(wish: VllmWish, family: ModelFamily | None) -> Iterator[PlanWarning]:
    """A parser of another family finds nothing in what this one writes."""
    usual = {} if family is None else dict(family_settings(family, wish.version.version))
    for name in ("reasoning_parser", "tool_call_parser"):
        pinned, own = wish.pins.get(name), usual.get(name)
        if (
            family is None
            or pinned is None
            or own is None
            or pinned in {own, *_SAME_FORMAT.get(str(own), ())}
        ):
            continue
        what = "thoughts" if name == "reasoning_parser" else "tool calls"
        yield PlanWarning(
            code="foreign_parser",
            text=f"{name} {pinned} is not for what {family.name} writes: its {what} may stay in the text;"
            f" {own} is",
            source=family.source,
        )


def _capacity_warnings(wish: VllmWish, item: Evaluation) -> Iterator[PlanWarning]:
    if "fp8_kv" in item.concessions:
        yield PlanWarning(
            code="fp8_kv_cache",
            text="the KV cache is kept in FP8, half of the model's own precision, so that more fits;"
            " engine_args kv_cache_dtype: auto keeps it",
            source="widely run without loss; not measured here",
        )
    if "text_only" in item.concessions:
        yield PlanWarning(
            code="text_only",
            text="images are switched off to make room; engine_args language_model_only: false keeps them",
        )
    if item.is_shortened:
        yield PlanWarning(
            code="context_shortened",
            text=f"the model is made for {wish.facts.max_context_tokens:,} tokens,"
            f" {item.max_model_len:,} are planned: more does not fit",
        )
    if not (
        item.settings.enable_prefix_caching or wish.is_fully_pinned or "enable_prefix_caching" in wish.pins
    ):
        yield PlanWarning(
            code="no_prefix_caching",
            text="prefix caching is off, so each turn of a chat computes all of it again:"
            f" {_prefix_reason(item)}; engine_args enable_prefix_caching: true keeps it",
        )
    if item.settings.enforce_eager:
        yield PlanWarning(
            code="eager_speed",
            text="speed is that of compiled graphs; with enforce_eager tokens take longer, by how much is"
            " not modelled",
        )
    sequences = item.settings.max_num_seqs * item.num_replicas
    if item.max_concurrency < sequences and wish.request.concurrency is not None:
        tokens = int(item.memory.capacity.max_concurrency * item.max_model_len / item.settings.max_num_seqs)
        yield PlanWarning(
            code="shorter_at_full_concurrency",
            text=f"{item.max_concurrency:.1f} requests of {item.max_model_len:,} tokens run at once;"
            f" {sequences} do when they average {tokens:,} tokens, beyond that some wait",
            source="KV cache blocks per request",
        )
