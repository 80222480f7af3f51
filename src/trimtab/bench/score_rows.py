"""Pure. Rows of measurement tables → what the speed model is asked, or why it cannot be asked.

Two tables are known: ``serving`` (columns of aiconfigurator's accuracy sample: model_path, system,
isl, osl, batch_size, tp_size …) and ``consumer`` (one measurement per row: gpu, quant, concurrency,
decode_tok_s_per_user …).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from trimtab.bench.other_cards import find_table_card
from trimtab.core.model_facts import ModelFacts, QuantScheme
from trimtab.core.model_parts import LinearPart, LinearShard, ModelParts
from trimtab.errors import MissingFactError
from trimtab.planner.accelerator_specs import CardSpec
from trimtab.planner.latency import Interconnect, SpeedWorkload
from trimtab.planner.latency_profile import SpeedSettings

__all__ = [
    "Measured",
    "SpeedCase",
    "base_name",
    "decode_consumer_row",
    "decode_serving_row",
    "quantize_parts",
]

Row = Mapping[str, str]

_USUAL_PROMPT_TOKENS = 20
_USUAL_ANSWER_TOKENS = 512
"""What a row without lengths is taken for: a short question (prompts of 65 and 78 characters in the
largest source) and an answer of some hundred tokens."""

_ROOMY_CACHE_TOKENS = 10**9
"""Cache of a consumer row that doesn't log one: its author ran the stated users, so they fit."""

_AUTO_KV_FP8_MAJOR = 10
"""Serving rows name no KV dtype. The queueing of rows near capacity fits 8-bit caches on Blackwell
data-centre cards and 16-bit ones before them (MiniMax-M2.5 and Qwen3-32B rows, 2026-11)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Measured:
    """What a row measured; None where it did not."""

    ttft_ms: float | None = None
    tpot_ms: float | None = None
    prefill_tokens_per_s: float | None = None
    output_tokens_per_s: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class SpeedCase:
    """One row, ready for the model.

    ``scheme`` overrides the config's quantisation of Linears, ``moe_scheme`` that of routed experts
    (None keeps it); ``head_scheme`` is the output head's, 16 bits without.
    """

    model: str
    card: CardSpec
    num_gpus: int
    settings: SpeedSettings
    workload: SpeedWorkload
    measured: Measured
    scheme: QuantScheme | None = None
    moe_scheme: QuantScheme | None = None
    head_scheme: QuantScheme | None = None


def base_name(path: str) -> str:
    """The last part of an ``owner/name`` or a path."""
    return path.strip().rstrip("/").rsplit("/", 1)[-1]


def _number(row: Row, name: str, *, default: float | None = None, minimum: float = 0.0) -> float:
    """A number above ``minimum``, or the default where the cell is empty; MissingFactError otherwise."""
    text = (row.get(name) or "").strip()
    if not text:
        if default is None:
            raise MissingFactError(f"{name} is empty")
        return default
    try:
        value = float(text)
    except ValueError:
        raise MissingFactError(f"{name} is {text!r}, expected a number") from None
    if not minimum <= value < 1e9:
        raise MissingFactError(f"{name} is {text}, expected {minimum:g} or more")
    return value


def _measured(row: Row, name: str) -> float | None:
    value = _number(row, name, default=0.0)
    return value or None


def _card(name: str) -> CardSpec:
    card = find_table_card(name)
    if card is None:
        raise MissingFactError(f"card {name!r} isn't in the catalogue")
    return card


def decode_serving_row(row: Row) -> SpeedCase:
    """A row of the serving table; MissingFactError says what is missing or cannot be.

    ``attention_dp_size`` above 1 beside a ``tp_size`` above 1 is read as data-parallel attention on
    ``tp_size`` cards with ``batch_size`` users per group: rows that state one run both ways agree
    on that, and cache capacity too.
    """
    model = (row.get("model_path") or "").strip()
    if not model:
        raise MissingFactError("model_path is empty")
    card = _card((row.get("system") or "").strip().removesuffix("_sxm").removesuffix("_pcie"))
    batch = _number(row, "batch_size", minimum=1)
    settings, groups = _serving_settings(row, card)
    linears = row.get("gemm_quant_mode") or row.get("precision") or ""
    workload = SpeedWorkload(
        input_tokens=int(_number(row, "isl", minimum=1)),
        output_tokens=int(_number(row, "osl", minimum=1)),
        concurrency=int(batch * groups),
    )
    return SpeedCase(
        model=model,
        card=card,
        num_gpus=settings.tensor_parallel_size * settings.pipeline_parallel_size,
        settings=settings,
        workload=workload,
        measured=Measured(
            ttft_ms=_measured(row, "silicon_ttft_ms"), tpot_ms=_measured(row, "silicon_tpot_ms")
        ),
        scheme=_mode_scheme(linears),
        moe_scheme=_mode_scheme(row.get("moe_quant_mode") or linears),
    )


def _serving_settings(row: Row, card: CardSpec) -> tuple[SpeedSettings, int]:
    """The engine's parallel settings, and how many groups each take ``batch_size`` users."""
    tp = int(_number(row, "tp_size", default=1, minimum=1))
    moe_tp = int(_number(row, "moe_tp_size", default=1))
    moe_ep = int(_number(row, "moe_ep_size", default=1))
    stated = (row.get("attention_dp_size") or "").strip()
    groups = int(_number(row, "attention_dp_size", default=1, minimum=1))
    ranks, attention = tp, tp
    if groups > 1:
        ranks, attention = (tp, 1) if tp > 1 else (groups, 1)
    elif not stated and moe_tp * moe_ep > tp:
        ranks, groups = moe_tp * moe_ep, moe_tp * moe_ep // tp
    settings = SpeedSettings(
        tensor_parallel_size=ranks,
        pipeline_parallel_size=int(_number(row, "pp_size", default=1, minimum=1)),
        attention_parallel_size=attention,
        expert_parallel_size=ranks if moe_ep > 1 else 1,
        kv_cache_dtype=_kv_dtype(row.get("kv_dtype") or "", card),
    )
    return settings, groups


def _kv_dtype(stated: str, card: CardSpec) -> str:
    text = stated.strip().lower()
    if text:
        return "fp8" if text.startswith(("fp8", "int8", "nvfp4", "turboquant")) else "auto"
    return "fp8" if card.compute_capability[0] == _AUTO_KV_FP8_MAJOR else "auto"


_INT4 = QuantScheme(format="compressed_tensors_int4", bits=4, group_size=128, is_weight_only=True)
_FP8 = QuantScheme(format="fp8_tensor", bits=8)
_NVFP4 = QuantScheme(format="nvfp4", bits=4, group_size=16)
_INT8 = QuantScheme(format="gptq", bits=8, is_weight_only=True)
_INT8_ACTIVATIONS = QuantScheme(format="fp8_tensor", bits=8)


def _mode_scheme(mode: str) -> QuantScheme | None:
    """The quantisation modes of aiconfigurator; empty and 16-bit ones keep the config."""
    text = mode.strip().lower()
    if not text or text in {"float16", "bfloat16", "fp16", "bf16"}:
        return None
    if text.startswith("fp8"):
        return _FP8
    if text in {"nvfp4", "fp4", "w4a16_mxfp4", "w4a8_mxfp4_mxfp8", "mxfp4"}:
        return _NVFP4
    if text.startswith("int4"):
        return replace(_INT4, group_size=32)
    if text.startswith("int8"):
        return _INT8
    raise MissingFactError(f"quantisation mode {mode!r} isn't known")


def quantize_parts(facts: ModelFacts, parts: ModelParts, case: SpeedCase) -> ModelParts:
    """The parts as a table's row says they were run.

    A config of the same width is kept as it is (its mask is better known); one of another width has
    its mask kept and its scheme replaced; an unquantised one gets the scheme on every Linear of the
    language layers. The head stays as the config has it, 16 bits for a compressed-tensors mask.
    """
    linears, experts = case.scheme, case.moe_scheme
    is_quantized = facts.quant is not None
    new_linears = []
    for part in parts.linears:
        is_head = "lm_head" in part.name
        scheme = part.scheme
        if is_head:
            scheme = case.head_scheme
        elif linears is not None and part.part == "language":
            may = part.scheme is not None if is_quantized else not part.name.endswith("in_proj_ba")
            scheme = _override(part.scheme, linears) if may else part.scheme
        new_linears.append(replace(part, scheme=scheme))
    new_experts = [
        replace(part, scheme=_override(part.scheme, experts)) if experts is not None else part
        for part in parts.experts
    ]
    quantized = replace(parts, linears=tuple(new_linears), experts=tuple(new_experts))
    return _quantize_head(quantized, case.head_scheme)


def _quantize_head(parts: ModelParts, scheme: QuantScheme | None) -> ModelParts:
    """The 16-bit head as a Linear with ``scheme``; unchanged without one."""
    heads = [part for part in parts.parameters if "lm_head" in part.name]
    if scheme is None or not heads:
        return parts
    rows, columns = heads[0].shape
    head = LinearPart(
        name="lm_head",
        in_features=columns,
        shards=(LinearShard(name="lm_head", out_features=rows),),
        split="column",
        layers=(0,),
        scheme=scheme,
    )
    others = tuple(part for part in parts.parameters if "lm_head" not in part.name)
    return replace(parts, linears=(*parts.linears, head), parameters=others)


def _override(known: QuantScheme | None, wanted: QuantScheme) -> QuantScheme:
    if known is not None and known.bits == wanted.bits:
        is_other_math = wanted.format == "nvfp4" and known.format == "compressed_tensors_int4"
        return wanted if is_other_math else known
    return wanted


_CONSUMER_QUANT: tuple[tuple[str, QuantScheme | None], ...] = (
    ("autoround-int4", _INT4),
    ("nvfp4", _NVFP4),
    ("mixed4", _NVFP4),
    ("int8-w8a8", _INT8_ACTIVATIONS),
    ("int8", _INT8),
    ("fp8", _FP8),
    ("awq-int4", replace(_INT4, group_size=32)),
    ("int4", _INT4),
    ("w4a16", _INT4),
    ("gptq", _INT4),
    ("awq", _INT4),
    ("bf16", None),
    ("fp16", None),
    ("16-bit", None),
)


def decode_consumer_row(row: Row) -> SpeedCase:
    """A row of the consumer table; MissingFactError says why the model cannot be asked."""
    model = (row.get("model") or "").strip()
    if not model:
        raise MissingFactError("model is empty")
    _refuse_unlike(row)
    card = _card((row.get("gpu") or "").strip())
    tp = int(_number(row, "tp", default=_number(row, "num_gpus", default=1, minimum=1), minimum=1))
    pp = int(_number(row, "pp", default=1, minimum=1))
    scheme = _consumer_scheme(row.get("quant") or "")
    replicas = max(1, int(_number(row, "num_gpus", default=tp * pp, minimum=1)) // (tp * pp))
    users = max(1.0, _number(row, "concurrency", default=1, minimum=0) / replicas)
    settings = SpeedSettings(
        tensor_parallel_size=tp,
        pipeline_parallel_size=pp,
        kv_cache_dtype=_kv_dtype(row.get("kv_dtype") or "bf16", card),
        max_num_batched_tokens=int(_number(row, "max_num_batched_tokens", default=4096, minimum=1)),
        max_num_seqs=int(_number(row, "max_num_seqs", default=0)) or None,
        kv_cache_tokens=int(_number(row, "kv_cache_tokens_logged", default=_ROOMY_CACHE_TOKENS)),
        interconnect=_interconnect(row.get("interconnect") or "", card),
    )
    workload = SpeedWorkload(
        input_tokens=int(_number(row, "isl", default=_USUAL_PROMPT_TOKENS, minimum=1)),
        output_tokens=int(_number(row, "osl", default=_USUAL_ANSWER_TOKENS, minimum=1)),
        concurrency=int(users),
        cached_tokens=_cached_tokens(row),
        shared_tokens=_cached_tokens(row) if users > 1 else 0,
    )
    return SpeedCase(
        model=model,
        card=card,
        num_gpus=tp * pp,
        settings=settings,
        workload=workload,
        measured=_consumer_measured(row, replicas),
        scheme=scheme,
        moe_scheme=scheme,
        head_scheme=_INT8 if "head" in (row.get("quant") or "") else None,
    )


def _cached_tokens(row: Row) -> int:
    """A row with a context but no answer length measured decoding at that depth, the prompt cached.

    Its users share the prompt: 8 users of 131,072 tokens each on RTX PRO 6000 lost 2 ms a step, where
    reading eight caches would take 9.
    """
    has_rate = bool((row.get("decode_tok_s_per_user") or "").strip())
    if has_rate and not (row.get("osl") or "").strip():
        return int(_number(row, "isl", default=0))
    return 0


def _refuse_unlike(row: Row) -> None:
    engine = (row.get("engine") or "vllm").strip()
    if engine != "vllm":
        raise MissingFactError(f"engine {engine!r} isn't modelled, only vllm is")
    speculation = (row.get("spec_decode") or "").strip()
    if speculation not in {"", "none"}:
        raise MissingFactError(f"runs speculation ({speculation}), which the model doesn't price")
    if not speculation:
        raise MissingFactError("doesn't say whether speculation was on")


def _consumer_scheme(text: str) -> QuantScheme | None:
    plain = text.strip().lower()
    if not plain:
        return None
    for mark, scheme in _CONSUMER_QUANT:
        if mark in plain:
            return scheme
    raise MissingFactError(f"quantisation {text!r} isn't known")


def _consumer_measured(row: Row, replicas: int) -> Measured:
    rate = _measured(row, "decode_tok_s_per_user")
    tpot = _measured(row, "tpot_ms")
    total = _measured(row, "total_output_tok_s")
    if tpot is None and rate is not None:
        tpot = 1000.0 / rate
    return Measured(
        ttft_ms=_measured(row, "ttft_ms"),
        tpot_ms=tpot,
        prefill_tokens_per_s=_measured(row, "prefill_tok_s"),
        output_tokens_per_s=total / replicas if total is not None else None,
    )


def _interconnect(text: str, card: CardSpec) -> Interconnect | None:
    plain = text.strip().lower()
    if "nvlink" in plain:
        return "nvlink"
    if "nop2p" in plain:
        return "pcie"
    if plain.endswith("p2p"):
        return "pcie_p2p"
    if not plain:
        return None
    return "pcie_p2p" if card.has_p2p else "pcie"
