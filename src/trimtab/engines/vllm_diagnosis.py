"""Pure. What a vLLM that failed says about itself: what happened, why, and what to change.

The causes and their figures are ``vllm_exit``'s; here each becomes a diagnosis with the settings that its
own words ask for. A log that is not understood gives the code "unknown" and its last lines.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from math import floor
from typing import Final

from trimtab.core.stack import SettingValue
from trimtab.engines.vllm_exit import ExitCause, find_cause

__all__ = ["Diagnosis", "diagnose_vllm", "waits_for_peers"]

_GIB_TO_SPARE: Final = 0.1
"""Free memory is printed in hundredths of a GiB, and the engine's own context comes after the look."""
_LAST_LINES: Final = 3
_LAST_CHARS: Final = 300

_ARGUMENTS: Final = (
    "unknown_argument", "ambiguous_argument", "bad_argument", "unknown_parser", "context_above_model",
    "heads_not_divisible", "shard_not_divisible", "block_above_batch",
)  # fmt: skip
_MACHINE: Final = (
    "port_taken", "descriptors", "too_few_gpus", "driver_too_old", "no_gpu", "no_kernel", "fp8_kv_in_triton",
    "capability_too_low", "no_attention_backend", "shared_memory_small", "disk_full", "cards_cannot_talk",
    "not_installed", "environment_incomplete", "cards_do_not_answer",
)  # fmt: skip
_MODEL: Final = (
    "gated_repository", "no_repository", "hub_unreachable", "architecture_dropped", "architecture_unknown",
    "code_not_trusted", "weights_absent", "weights_cut", "weights_missing", "config_unreadable",
)  # fmt: skip
_MEMORY: Final = (
    "card_not_free", "weights_exceed_card", "sampler_out_of_memory", "too_few_state_blocks",
    "no_room_for_cache", "context_exceeds_cache", "no_token_fits", "memory_changed", "workspace_locked",
    "gpu_out_of_memory", "host_out_of_memory",
)  # fmt: skip
_HAPPENED: Final = (
    *((code, "vLLM refused its settings") for code in _ARGUMENTS),
    *((code, "this machine lacks what vLLM needs") for code in _MACHINE),
    *((code, "the model cannot be loaded") for code in _MODEL),
    *((code, "memory is too small for these settings") for code in _MEMORY),
    ("kernel_failed", "a computation on the card failed"),
    ("engine_died_serving", "the engine died while it served"),
    ("engine_died_starting", "the engine died while it started"),
)
# What to do where the cause's own words do not say it.
_ADVICE: Final = {
    "unknown_argument": "leave it out of engine_args, or set engine_version to what is installed",
    "bad_argument": "correct it in engine_args",
    "unknown_parser": "leave it out, or take another engine_version",
    "context_above_model": "lower context, or extend the model's range with rope scaling",
    "port_taken": "end that process; trimtab takes another port by itself",
    "too_few_gpus": "lower tensor_parallel_size or name more cards",
    "driver_too_old": "renew the driver, or take an engine_version built for an older CUDA",
    "no_gpu": "install the driver, or give the container its cards",
    "no_kernel": "take another engine_version",
    "capability_too_low": "take another quantisation of the model",
    "no_attention_backend": "leave attention_backend and kv_cache_dtype to the planner",
    "disk_full": "free some space for the caches",
    "no_repository": "correct the name, or set HF_TOKEN",
    "hub_unreachable": "connect to the hub, or fetch the model first: trimtab pull",
    "architecture_dropped": "set engine_version to the last that has it",
    "weights_missing": "take the complete checkpoint",
    "config_unreadable": "name a folder or repository that holds the model",
    "heads_not_divisible": "use a tensor_parallel_size that divides the heads",
    "host_out_of_memory": "end other programs, or give the container more memory",
    "kernel_failed": "start it again; when it fails again, name the card's other owner or its driver",
    "not_installed": "set TRIMTAB_VLLM to the vllm of a working environment",
    "environment_incomplete": "install vLLM anew into an environment of its own",
    "engine_died_serving": "look further up in its log",
    "engine_died_starting": "look further up in its log",
    "cards_do_not_answer": "set NCCL_P2P_DISABLE=1 or disable_custom_all_reduce, and check shared memory",
}
# Causes whose words have a colon that does not lead to advice.
_COLON_IS_NO_ADVICE: Final = frozenset({"bad_argument", "no_gpu", "kernel_failed", "environment_incomplete"})
# vLLM's last words before its cards look for each other, and the first after they have found each other.
_BEFORE_PEERS: Final = ("vLLM is using nccl==", "init method", "distributed_init_method", "NCCL INFO")
_AFTER_PEERS: Final = (
    "Starting to load model",
    "Loading weights took",
    "Model loading took",
    "KV cache size",
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Diagnosis:
    """One failure. ``code`` is stable; ``change`` are settings with the values that the log itself names.

    ``happened``, ``why`` and ``advice`` are one clause each; ``figures`` the numbers of the log's line.
    """

    code: str
    happened: str
    why: str
    advice: str
    change: tuple[tuple[str, SettingValue], ...] = ()
    figures: tuple[tuple[str, str], ...] = ()

    @property
    def is_memory(self) -> bool:
        """Whether less would fit."""
        return self.code in _MEMORY

    def __str__(self) -> str:
        advice = f"; {self.advice}" if self.advice else ""
        return f"{self.happened}: {self.why}{advice}"


def diagnose_vllm(log_tail: tuple[str, ...], *, is_silent: bool = False) -> Diagnosis:
    """The diagnosis of a run that is over; any text is taken. ``is_silent``: it lived and did not answer."""
    found = find_cause(log_tail)
    if found is None and is_silent and waits_for_peers(log_tail):
        found = ExitCause(
            code="cards_do_not_answer",
            meaning="the cards wait for each other since their connection was set up",
        )
    if found is None:
        return _unknown(log_tail, is_silent=is_silent)
    why, advice = _split(found)
    return Diagnosis(
        code=found.code,
        happened=dict(_HAPPENED)[found.code],
        why=why,
        advice=advice,
        change=_change_of(found),
        figures=found.figures,
    )


def _split(found: ExitCause) -> tuple[str, str]:
    """(why, advice): most causes say both, parted by a colon."""
    if found.code in _COLON_IS_NO_ADVICE:
        return found.meaning, _ADVICE[found.code]
    why, _, advice = found.meaning.partition(": ")
    return why, advice or _ADVICE.get(found.code, "")


def _unknown(log_tail: tuple[str, ...], *, is_silent: bool) -> Diagnosis:
    last = [line.strip()[:_LAST_CHARS] for line in log_tail if line.strip()][-_LAST_LINES:]
    shown = " / ".join(last) if last else "it wrote nothing"
    return Diagnosis(
        code="unknown",
        happened="vLLM does not answer" if is_silent else "vLLM ended",
        why=f"unknown; its last lines: {shown}",
        advice="its log has all that it wrote",
    )


def waits_for_peers(log_tail: tuple[str, ...]) -> bool:
    """Whether the log stops where the cards of one engine look for each other."""
    for line in reversed(log_tail):
        if any(text in line for text in _AFTER_PEERS):
            return False
        if any(text in line for text in _BEFORE_PEERS):
            return True
    return False


def _change_of(found: ExitCause) -> tuple[tuple[str, SettingValue], ...]:
    make = _CHANGES.get(found.code)
    if make is None:
        return ()
    try:
        change = make(dict(found.figures))
    except (KeyError, ValueError, OverflowError, ZeroDivisionError):
        return ()
    return () if change is None else (change,)


def _smaller_share(figures: Mapping[str, str]) -> tuple[str, SettingValue] | None:
    share = floor((float(figures["free"]) - _GIB_TO_SPARE) / float(figures["total"]) * 100) / 100
    return ("gpu_memory_utilization", share) if 0 < share < 1 else None


def _fewer_sequences(figures: Mapping[str, str]) -> tuple[str, SettingValue] | None:
    limit = int(figures["limit"])
    return ("max_num_seqs", limit) if limit > 0 else None


def _half_the_sequences(figures: Mapping[str, str]) -> tuple[str, SettingValue]:
    return ("max_num_seqs", max(1, int(figures["what"]) // 2))


def _shorter_context(figures: Mapping[str, str]) -> tuple[str, SettingValue] | None:
    limit = int(figures["limit"]) // 16 * 16
    return ("max_model_len", limit) if limit > 0 else None


def _whole_block(figures: Mapping[str, str]) -> tuple[str, SettingValue]:
    return ("max_num_batched_tokens", int(figures["what"]))


_CHANGES: Final[dict[str, Callable[[Mapping[str, str]], tuple[str, SettingValue] | None]]] = {
    "card_not_free": _smaller_share,
    "sampler_out_of_memory": _half_the_sequences,
    "too_few_state_blocks": _fewer_sequences,
    "context_exceeds_cache": _shorter_context,
    "block_above_batch": _whole_block,
}
