"""Pure. The engine arguments that memory depends on, resolved: no default is left open.

``resolve_vllm_settings`` turns (name, value) pairs by vLLM's own argument names into one object;
arguments that move no memory pass unread.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Literal, TypeAlias

from trimtab.core.hardware import Gpu
from trimtab.core.model_facts import ModelFacts
from trimtab.core.stack import SettingValue
from trimtab.errors import StackFileError
from trimtab.planner.vllm_versions import VersionLine

__all__ = ["MambaCacheMode", "VllmSettings", "resolve_vllm_settings"]

MambaCacheMode: TypeAlias = Literal["none", "align", "all"]


@dataclass(frozen=True, slots=True, kw_only=True)
class VllmSettings:
    """vLLM's arguments under their own names, with the version's defaults filled in.

    ``max_model_len`` None stands for "auto" (as long as fits). ``kv_cache_memory_bytes`` replaces
    the profiled budget. ``cudagraph_mode`` is "NONE" under enforce_eager; ``compilation_mode`` 0
    means no torch.compile. ``num_speculative_tokens`` is the MTP depth, 0 without.
    ``mm_limits_are_zero`` is --language-model-only or limits of 0 for every modality.
    """

    tensor_parallel_size: int = 1
    pipeline_parallel_size: int = 1
    data_parallel_size: int = 1
    decode_context_parallel_size: int = 1
    enable_expert_parallel: bool = False
    max_model_len: int | None = None
    max_num_seqs: int = 256
    max_num_batched_tokens: int = 2048
    gpu_memory_utilization: float = 0.92
    kv_cache_memory_bytes: int | None = None
    num_gpu_blocks_override: int | None = None
    kv_cache_dtype: str = "auto"
    block_size: int | None = None
    enable_prefix_caching: bool = True
    mamba_cache_mode: MambaCacheMode = "none"
    mamba_cache_dtype: str = "auto"
    mamba_ssm_cache_dtype: str = "auto"
    dtype: str = "auto"
    quantization: str | None = None
    num_speculative_tokens: int = 0
    mm_limits_are_zero: bool = False
    skip_mm_profiling: bool = False
    mm_encoder_tp_mode: str = "weights"
    mm_ipc_gpu_memory_gb: float = 0.0
    enforce_eager: bool = False
    cudagraph_mode: str = "FULL_AND_PIECEWISE"
    compilation_mode: int = 3
    max_cudagraph_capture_size: int | None = None
    cudagraph_capture_sizes: tuple[int, ...] | None = None
    attention_backend: str | None = None
    gdn_prefill_backend: str = "auto"
    moe_backend: str = "auto"
    disable_hybrid_kv_cache_manager: bool = False
    disable_custom_all_reduce: bool = False

    @property
    def world_size(self) -> int:
        """Cards of one replica without data parallelism."""
        return self.tensor_parallel_size * self.pipeline_parallel_size

    @property
    def expert_parallel_size(self) -> int:
        """Ranks that whole experts are spread over; 1 means that experts are cut like other Linears."""
        if not self.enable_expert_parallel:
            return 1
        return self.tensor_parallel_size * self.data_parallel_size


_INTEGERS = frozenset(
    {
        "tensor_parallel_size",
        "pipeline_parallel_size",
        "data_parallel_size",
        "decode_context_parallel_size",
        "max_num_seqs",
        "max_num_batched_tokens",
        "num_gpu_blocks_override",
        "block_size",
        "kv_cache_memory_bytes",
        "max_cudagraph_capture_size",
    }
)
# Far above what any engine runs with, far below what would overflow the account's sums.
_MOST_DEGREE = 1024
_MOST = {
    "tensor_parallel_size": _MOST_DEGREE,
    "pipeline_parallel_size": _MOST_DEGREE,
    "data_parallel_size": _MOST_DEGREE,
    "decode_context_parallel_size": _MOST_DEGREE,
    "block_size": 2**20,
    "kv_cache_memory_bytes": 2**50,
}
_MOST_OTHERWISE = 2**31
_FLAGS = frozenset(
    {
        "enable_expert_parallel",
        "enable_prefix_caching",
        "enforce_eager",
        "skip_mm_profiling",
        "disable_hybrid_kv_cache_manager",
        "disable_custom_all_reduce",
    }
)
_TEXTS = frozenset(
    {
        "kv_cache_dtype",
        "mamba_cache_mode",
        "mamba_cache_dtype",
        "mamba_ssm_cache_dtype",
        "dtype",
        "quantization",
        "mm_encoder_tp_mode",
        "attention_backend",
        "gdn_prefill_backend",
        "moe_backend",
    }
)
_MODES = {"NONE": 0, "STOCK_TORCH_COMPILE": 1, "DYNAMO_TRACE_ONCE": 2, "VLLM_COMPILE": 3}
_GRAPH_MODES = frozenset({"NONE", "PIECEWISE", "FULL", "FULL_DECODE_ONLY", "FULL_AND_PIECEWISE"})
_WEIGHTLESS = frozenset({"ngram", "ngram_gpu", "suffix"})
_MOST_SHOWN = 60
_NO_COMPILE_LEVELS = ("0", "O0")


def resolve_vllm_settings(
    pairs: Iterable[tuple[str, SettingValue]], *, facts: ModelFacts, gpu: Gpu, line: VersionLine
) -> VllmSettings:
    """Settings for a start with ``pairs`` pinned on ``gpu``; StackFileError names a value that cannot be.

    Defaults are the API server's of that version line (vllm-memory facts, section 6).
    """
    pinned = dict(pairs)
    base = VllmSettings(
        max_num_seqs=line.default_max_num_seqs(gpu.total_bytes, gpu.name),
        max_num_batched_tokens=line.default_batched_tokens(gpu.total_bytes, gpu.name),
        gpu_memory_utilization=line.gpu_memory_utilization,
        enable_prefix_caching=line.caches_hybrid_prefixes or not facts.is_hybrid,
        max_model_len=facts.max_context_tokens,
    )
    values: dict[str, object] = {}
    for name, value in pinned.items():
        if name in _INTEGERS:
            values[name] = None if value is None else _integer(name, value)
        elif name in _FLAGS:
            values[name] = _flag(name, value)
        elif name in _TEXTS and value is not None:
            values[name] = str(value)
    settings = replace(base, **values)  # type: ignore[arg-type]
    settings = _apply_numbers(settings, pinned)
    settings = _apply_multimodal(settings, pinned, facts)
    settings = _apply_speculation(settings, pinned)
    settings = _apply_compilation(settings, pinned)
    return _apply_batch_rules(settings, pinned, facts)


def _integer(name: str, value: SettingValue, *, minimum: int = 1) -> int:
    number = value
    if isinstance(number, str):
        try:
            number = float(number) if "." in number else int(number)
        except ValueError:
            raise StackFileError(f"{name} is {value!r}, expected a whole number") from None
    if isinstance(number, bool) or not isinstance(number, int | float) or not _is_whole(number):
        raise StackFileError(f"{name} is {value!r}, expected a whole number")
    if number < minimum:
        raise StackFileError(f"{name} is {value}, expected {minimum} or more")
    most = _MOST.get(name, _MOST_OTHERWISE)
    if number > most:
        raise StackFileError(f"{name} is {number:.6g}, expected {most:,} or less")
    return int(number)


def _is_whole(number: float) -> bool:
    return math.isfinite(number) and int(number) == number


def _number(name: str, value: SettingValue) -> float:
    """A finite number of 0 or more."""
    try:
        number = float(value)  # type: ignore[arg-type]
    except (TypeError, ValueError):
        number = math.nan
    if isinstance(value, bool) or not 0 <= number < math.inf:
        raise StackFileError(f"{name} is {value!r}, expected a number")
    return number


def _sizes(name: str, values: Iterable[object]) -> tuple[int, ...]:
    """Capture sizes: whole numbers of 1 or more."""
    return tuple(_integer(name, value) for value in values)  # type: ignore[arg-type]


def _flag(name: str, value: SettingValue) -> bool:
    if isinstance(value, bool):
        return value
    if isinstance(value, str) and value.lower() in {"true", "false"}:
        return value.lower() == "true"
    raise StackFileError(f"{name} is {value!r}, expected true or false")


def _mapping(name: str, value: SettingValue | Mapping[str, object]) -> Mapping[str, object]:
    """A nested argument, as a mapping or as JSON text."""
    found: object = value
    if isinstance(value, str):
        try:
            found = json.loads(value)
        except (ValueError, RecursionError):
            shown = value if len(value) <= _MOST_SHOWN else f"{value[:_MOST_SHOWN]}..."
            raise StackFileError(f"{name} is {shown!r}, which isn't JSON that can be read") from None
    if not isinstance(found, Mapping):
        raise StackFileError(f"{name} is {value!r}, expected a JSON object")
    return found


def _apply_numbers(settings: VllmSettings, pinned: Mapping[str, SettingValue]) -> VllmSettings:
    if "gpu_memory_utilization" in pinned:
        share = _number("gpu_memory_utilization", pinned["gpu_memory_utilization"])
        if not 0 < share <= 1:
            raise StackFileError(
                f"gpu_memory_utilization is {share:g}, expected above 0 and at most 1",
                hint="it is a share of the card's whole memory, weights included",
            )
        settings = replace(settings, gpu_memory_utilization=share)
    if pinned.get("mm_ipc_gpu_memory_gb") is not None:
        reserved = _number("mm_ipc_gpu_memory_gb", pinned["mm_ipc_gpu_memory_gb"])
        settings = replace(settings, mm_ipc_gpu_memory_gb=reserved)
    if "max_model_len" in pinned:
        length = pinned["max_model_len"]
        is_auto = length is None or (isinstance(length, str) and length.lower() == "auto") or length == -1
        settings = replace(
            settings, max_model_len=None if is_auto else _integer("max_model_len", _tokens(length))
        )
    return settings


def _tokens(value: SettingValue) -> SettingValue:
    """``32k`` and ``1K`` as argparse reads them in vLLM (utils/argparse_utils.py human_readable_int)."""
    factors = {"k": 1000, "K": 1024, "m": 10**6, "M": 1024**2}
    if isinstance(value, str) and value and value[-1] in factors:
        try:
            return int(float(value[:-1]) * factors[value[-1]])
        except ValueError:
            return value
    return value


def _apply_multimodal(
    settings: VllmSettings, pinned: Mapping[str, SettingValue], facts: ModelFacts
) -> VllmSettings:
    is_off = facts.vision is None
    if pinned.get("language_model_only") is not None:
        is_off = is_off or _flag("language_model_only", pinned["language_model_only"])
    limits = pinned.get("limit_mm_per_prompt")
    if limits is not None:
        found = _mapping("limit_mm_per_prompt", limits)
        is_off = is_off or all(found.get(kind) in (0, {"count": 0}) for kind in ("image", "video"))
    return replace(settings, mm_limits_are_zero=is_off)


def _apply_speculation(settings: VllmSettings, pinned: Mapping[str, SettingValue]) -> VllmSettings:
    depth = 0
    if pinned.get("spec_tokens") is not None:
        depth = _integer("spec_tokens", pinned["spec_tokens"], minimum=0)
    config = pinned.get("speculative_config")
    if config is not None:
        found = _mapping("speculative_config", config)
        _check_speculation(found)
        depth = _integer("num_speculative_tokens", found.get("num_speculative_tokens", 0), minimum=0)  # type: ignore[arg-type]
    return replace(settings, num_speculative_tokens=depth)


def _check_speculation(config: Mapping[str, object]) -> None:
    """Only heads that are part of the checkpoint, and drafts without weights, can be accounted for."""
    method = config.get("method")
    if method is not None and not (isinstance(method, str) and _is_known_method(method)):
        raise StackFileError(
            f"speculative_config method is {str(method)[:_MOST_SHOWN]!r}, expected mtp, ngram or suffix",
            hint="draft models and EAGLE heads have weights of their own, which are not planned yet",
        )
    if config.get("model") is not None and method not in _WEIGHTLESS:
        raise StackFileError(
            "speculative_config names a draft model, whose memory is not planned yet",
            hint='the checkpoint\'s own head: {"method": "mtp", "num_speculative_tokens": 2}',
        )
    if config.get("num_speculative_tokens") is None and method is not None:
        raise StackFileError("speculative_config has a method and no num_speculative_tokens")


def _is_known_method(method: str) -> bool:
    return method in _WEIGHTLESS or method == "mtp" or method.endswith("_mtp")


def _apply_compilation(settings: VllmSettings, pinned: Mapping[str, SettingValue]) -> VllmSettings:
    mode, graphs = settings.compilation_mode, settings.cudagraph_mode
    sizes = settings.cudagraph_capture_sizes
    largest = settings.max_cudagraph_capture_size
    level = pinned.get("optimization_level")
    if level is not None and str(level) in _NO_COMPILE_LEVELS:
        mode, graphs = 0, "NONE"
    config = pinned.get("compilation_config")
    if isinstance(config, int) and not isinstance(config, bool):
        mode = _compilation_mode(config)
    elif config is not None:
        found = _mapping("compilation_config", config)
        mode = _compilation_mode(found.get("mode", found.get("level", mode)))
        graphs = str(found.get("cudagraph_mode", graphs)).upper().rpartition(".")[2]
        if graphs not in _GRAPH_MODES:
            raise StackFileError(
                f"compilation_config cudagraph_mode is {graphs[:_MOST_SHOWN]!r}, expected one of"
                f" {', '.join(sorted(_GRAPH_MODES))}"
            )
        listed = found.get("cudagraph_capture_sizes")
        sizes = _sizes("cudagraph_capture_sizes", listed) if isinstance(listed, list) else sizes
        given = found.get("max_cudagraph_capture_size")
        largest = given if isinstance(given, int) else largest
    direct = pinned.get("cudagraph_capture_sizes")
    if isinstance(direct, str):
        sizes = _sizes("cudagraph_capture_sizes", direct.strip("[]").replace(",", " ").split())
    if settings.enforce_eager:
        mode, graphs = 0, "NONE"
    if mode != 3 and "PIECEWISE" in graphs:
        graphs = "FULL_DECODE_ONLY" if graphs == "FULL_AND_PIECEWISE" and mode == 0 else "NONE"
    return replace(
        settings,
        compilation_mode=mode,
        cudagraph_mode=graphs,
        cudagraph_capture_sizes=sizes,
        max_cudagraph_capture_size=largest,
    )


def _compilation_mode(value: object) -> int:
    mode = value if isinstance(value, int) else _MODES.get(str(value).upper(), -1)
    if mode not in _MODES.values():
        raise StackFileError(
            f"compilation_config mode is {str(value)[:_MOST_SHOWN]!r}, expected 0 to 3",
            hint=", ".join(_MODES),
        )
    return mode


def _apply_batch_rules(
    settings: VllmSettings, pinned: Mapping[str, SettingValue], facts: ModelFacts
) -> VllmSettings:
    """What vLLM derives: mamba mode from prefix caching, batch at least one sequence each, whole prompts."""
    if facts.is_hybrid and "mamba_cache_mode" not in pinned:
        mode: MambaCacheMode = "align" if settings.enable_prefix_caching else "none"
        settings = replace(settings, mamba_cache_mode=mode)
    if pinned.get("performance_mode") == "throughput":
        settings = replace(
            settings,
            max_num_seqs=settings.max_num_seqs * (1 if "max_num_seqs" in pinned else 2),
            max_num_batched_tokens=settings.max_num_batched_tokens
            * (1 if "max_num_batched_tokens" in pinned else 2),
        )
    length = settings.max_model_len
    if "max_num_batched_tokens" not in pinned:
        tokens = settings.max_num_batched_tokens
        if pinned.get("enable_chunked_prefill") is False and length is not None:
            tokens = max(tokens, length)
        settings = replace(settings, max_num_batched_tokens=tokens)
        if "max_num_seqs" not in pinned and length is not None:
            seqs = min(settings.max_num_seqs, tokens)
            settings = replace(settings, max_num_seqs=seqs)
    return settings
