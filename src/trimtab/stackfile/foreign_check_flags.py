"""Pure. Flags of a foreign stack, judged for its version: unknown, gone, at odds, harmful, left open."""

from __future__ import annotations

import difflib
import json
from collections.abc import Callable, Iterator
from typing import Final, Literal

from trimtab.core.stack import SettingValue
from trimtab.engines.vllm_flag_notes import FLAG_NOTES
from trimtab.engines.vllm_flags import (
    Flag,
    explain_absence,
    find_flag,
    has_parser,
    nearest_flags,
    nearest_parsers,
    versions_with_flag,
)
from trimtab.stackfile.foreign_judge import Case, find_number, line_for
from trimtab.stackfile.foreign_model import Finding, FindingSeverity, ForeignFlag, at_line
from trimtab.stackfile.foreign_secrets import shown
from trimtab.units import GIB

__all__ = ["check_flags"]

_SMALL_CARD_BYTES: Final = 70 * GIB
# Above this share nothing is left for what lies outside vLLM's budget (CUDA context, NCCL, FlashInfer's
# workspace): 0.5 to 1.2 GiB a card in the start-ups that were compared.
_MAX_SHARE: Final = 0.95
# models/config.py switches computed scales off for models with linear attention from here on.
_KV_SCALES_IGNORED: Final = (0, 19)
# Up to these versions awq_marlin.py and gptq_marlin.py let the name decide and say so in the log.
_FORCED_KERNELS: Final[dict[SettingValue, tuple[int, int]]] = {"awq": (0, 23), "gptq": (0, 20)}
_PARSERS: Final[tuple[tuple[str, Literal["reasoning", "tool"], str], ...]] = (
    ("reasoning_parser", "reasoning", "reasoning_parser_plugin"),
    ("tool_call_parser", "tool", "tool_parser_plugin"),
)


def check_flags(case: Case) -> Iterator[Finding]:
    """Findings about every flag, and about those that should be there.

    Of a version that is older than all that are known here nothing is said that hangs on the version.
    """
    if case.is_older_than_known:
        for rule in _VERSION_FREE_RULES:
            yield from rule(case)
        return
    for flag in case.model.flags:
        yield from _check_known(case, flag)
    for rule in _RULES:
        yield from rule(case)


def _check_known(case: Case, flag: ForeignFlag) -> Iterator[Finding]:
    """Whether this version takes the flag and its word."""
    known = find_flag(case.version, flag.name)
    if known is not None:
        yield from _check_choice(case, flag, known)
        return
    if flag.name in {"model", "model_tag"}:
        return
    written, note = shown(flag.written), FLAG_NOTES.get(flag.name, "")
    text = explain_absence(case.version, flag.name, written=written) or ""
    if versions_with_flag(flag.name) or note:
        yield Finding(
            code="removed_flag",
            severity="error",
            text=text,
            where=at_line(flag.line),
            hint=note or f"leave {written} out",
        )
        return
    near = nearest_flags(case.version, flag.name)
    yield Finding(
        code="unknown_flag",
        severity="error",
        text=f"vLLM {case.version} has no flag {written}, and refuses to start",
        where=at_line(flag.line),
        hint=_nearest_hint(near) or f"leave {written} out",
    )


def _nearest_hint(near: tuple[str, ...]) -> str:
    return f"did you mean --{near[0].replace('_', '-')}?" if near else ""


def _check_choice(case: Case, flag: ForeignFlag, known: Flag) -> Iterator[Finding]:
    if known.is_deprecated:
        text = f"{shown(flag.written)} is deprecated in vLLM {case.version}"
        yield Finding(code="deprecated_flag", severity="note", text=text, where=at_line(flag.line))
    if not known.choices or flag.value is None or known.kind == "list":
        return
    words = [str(choice) for choice in known.choices]
    if str(flag.value) not in words and not isinstance(flag.value, bool):
        near = difflib.get_close_matches(str(flag.value), words, n=1)
        yield Finding(
            code="bad_choice",
            severity="error",
            text=f"{shown(flag.written)} {shown(str(flag.value))} is not a choice of vLLM {case.version}",
            where=at_line(flag.line),
            hint=f"did you mean {near[0]}?" if near else f"choices: {', '.join(words[:12])}",
        )


def _check_parsers(case: Case) -> Iterator[Finding]:
    for name, kind, plugin in _PARSERS:
        value = case.value(name)
        if not isinstance(value, str) or case.is_given(plugin) or has_parser(case.version, kind, value):
            continue
        near = nearest_parsers(case.version, kind, value)
        yield case.at(
            name,
            "unknown_parser",
            "error",
            f"vLLM {case.version} has no {kind} parser {shown(value)} (--{name.replace('_', '-')})",
            f"did you mean {near[0]}?" if len(near) == 1 else f"it has: {', '.join(near)}",
        )
    if case.value("enable_auto_tool_choice") is True and not case.is_given("tool_call_parser"):
        text = "--enable-auto-tool-choice needs a --tool-call-parser, and vLLM refuses to start without"
        yield case.at("enable_auto_tool_choice", "parser_missing", "error", text)
    if case.is_given("tool_call_parser") and case.value("enable_auto_tool_choice") is not True:
        yield case.at(
            "tool_call_parser",
            "parser_unused",
            "harmful",
            "--tool-call-parser alone does nothing: requests with tool_choice auto are refused",
            "add --enable-auto-tool-choice",
        )


def _check_thinking(case: Case) -> Iterator[Finding]:
    """Where the thoughts of a thinking model go (cases 46 and 50 of the field's reports)."""
    if not case.is_thinking_qwen:
        return
    parser = case.value("reasoning_parser")
    if parser == "deepseek_r1":
        yield case.at(
            "reasoning_parser",
            "wrong_parser",
            "harmful",
            "with the deepseek_r1 parser a Qwen3 answer without thoughts is taken for reasoning, not content",
            "--reasoning-parser qwen3",
        )
    elif not case.is_given("reasoning_parser") and not _is_thinking_off(case):
        yield case.on(
            "no_reasoning_parser",
            "note",
            "without a reasoning parser the model's thoughts reach clients as part of the answer",
            "--reasoning-parser qwen3",
        )


def _is_thinking_off(case: Case) -> bool:
    value = case.value("default_chat_template_kwargs")
    try:
        document = json.loads(value) if isinstance(value, str) else None
    except ValueError:
        return False
    return isinstance(document, dict) and document.get("enable_thinking") is False


def _check_share(case: Case) -> Iterator[Finding]:
    name = "gpu_memory_utilization"
    share = case.number(name)
    if share is None:
        return
    if not 0 < share <= 1:
        text = f"{name} is {share:g}, which is not a share of a card's memory"
        yield case.at(name, "share_out_of_range", "error", text, "write it above 0 and at most 1")
    elif share > _MAX_SHARE:
        yield case.at(
            name,
            "share_too_high",
            "harmful",
            f"{name} {share:g} leaves too little for what lies outside vLLM's budget: the CUDA context, "
            "NCCL's buffers, attention workspaces",
            "0.92 or less, or kv_cache_memory_bytes",
        )
    if case.is_given("kv_cache_memory_bytes"):
        text = f"{name} is not used, since kv_cache_memory_bytes is given"
        yield case.at(name, "share_unused", "note", text)


def _check_left_open(case: Case) -> Iterator[Finding]:
    """Defaults that move with the card (cases 7 and 8 of the field's reports)."""
    if not case.is_given("max_num_seqs"):
        small, large = 256, 1024
        total = case.gpu_total_bytes
        size = (
            f"{small}, or {large} on cards of 70 GiB"
            if total is None
            else str(large if total >= _SMALL_CARD_BYTES else small)
        )
        yield case.on(
            "max_num_seqs_open",
            "note",
            f"max_num_seqs is left at vLLM's default ({size}), which small cards pay for in memory",
            "--max-num-seqs with the number of users there are",
        )
    if not case.is_given("max_model_len") and not case.is_given("config"):
        yield case.on(
            "max_model_len_open",
            "note",
            "max_model_len is left at the longest the model can take; the start fails where the KV cache "
            "does not hold one such request",
            "--max-model-len with the tokens that are needed",
        )


def _check_kv_scales(case: Case) -> Iterator[Finding]:
    name = "calculate_kv_scales"
    if case.value(name) is not True or find_flag(case.version, name) is None:
        return
    if case.is_hybrid and find_number(case.version) >= _KV_SCALES_IGNORED:
        text = "--calculate-kv-scales does nothing for models with linear attention"
        yield case.at(name, "kv_scales", "obsolete", text, "leave it out")
    else:
        severity: FindingSeverity = "harmful" if case.is_hybrid else "note"
        yield case.at(
            name,
            "kv_scales",
            severity,
            "--calculate-kv-scales turns answers of models with linear attention (Qwen3.5, Qwen3-Next) to "
            "gibberish",
            "leave it out; plain fp8 with a scale of 1.0 is widely run",
        )


def _check_swap(case: Case) -> Iterator[Finding]:
    if case.is_given("swap_space") and find_flag(case.version, "swap_space") is not None:
        text = "--swap-space sets host memory aside that the engine never swaps to"
        yield case.at("swap_space", "swap_unused", "obsolete", text, "leave it out")


def _check_quantization(case: Case) -> Iterator[Finding]:
    """``awq`` and ``gptq`` by name force the old kernels."""
    value = case.value("quantization")
    if value in _FORCED_KERNELS and find_number(case.version) <= _FORCED_KERNELS[value]:
        yield case.at(
            "quantization",
            "slow_kernel",
            "harmful",
            f"quantization {value} by name forces the slower kernel of that format",
            "leave it out: the checkpoint says what it is, and the Marlin kernel is taken",
        )


def _check_batch(case: Case) -> Iterator[Finding]:
    """What the scheduler's configuration refuses (config/scheduler.py)."""
    tokens, seqs = case.number("max_num_batched_tokens"), case.number("max_num_seqs")
    length = case.number("max_model_len")
    name = "max_num_batched_tokens"
    if tokens is not None and seqs is not None and tokens < seqs:
        text = f"{name} {tokens:g} is below max_num_seqs {seqs:g}, and vLLM refuses to start"
        yield case.at(name, "batch_below_sequences", "error", text)
    is_whole = case.value("enable_chunked_prefill") is False
    if is_whole and tokens is not None and length is not None and tokens < length:
        text = f"without chunked prefill a batch of {tokens:g} tokens cannot take a prompt of {length:g}"
        yield case.at(name, "batch_below_length", "error", text)


def _check_habits(case: Case) -> Iterator[Finding]:
    if case.value("trust_remote_code") is True:
        text = "--trust-remote-code runs programs that come with the checkpoint"
        yield case.at(
            "trust_remote_code", "remote_code", "note", text, "models that vLLM knows itself run without"
        )
    if case.value("enforce_eager") is True:
        text = "--enforce-eager gives up CUDA graphs and compilation: less memory, slower tokens"
        yield case.at("enforce_eager", "eager", "note", text, "leave it out if the plan fits without")
    offload = case.number("cpu_offload_gb")
    if offload:
        text = "--cpu-offload-gb fetches weights over the bus at every step, which is very slow"
        yield case.at("cpu_offload_gb", "offload", "harmful", text)


def _check_port(case: Case) -> Iterator[Finding]:
    port = case.number("port")
    if port is not None and not 0 <= port <= 65535:
        text = f"--port {port:g} is not a TCP port"
        yield case.at("port", "port_out_of_range", "error", text)


def _check_default_share(case: Case) -> Iterator[Finding]:
    share = line_for(case.version).gpu_memory_utilization
    if not case.is_given("gpu_memory_utilization") and not case.is_given("kv_cache_memory_bytes"):
        text = f"gpu_memory_utilization is left at vLLM {case.version}'s default, {share:g} of each card"
        yield case.on("share_open", "note", text)


_RULES: Final[tuple[Callable[[Case], Iterator[Finding]], ...]] = (
    _check_parsers,
    _check_thinking,
    _check_share,
    _check_left_open,
    _check_default_share,
    _check_kv_scales,
    _check_swap,
    _check_quantization,
    _check_batch,
    _check_habits,
    _check_port,
)
# What holds in any version.
_VERSION_FREE_RULES: Final[tuple[Callable[[Case], Iterator[Finding]], ...]] = (
    _check_batch,
    _check_share,
    _check_port,
)
