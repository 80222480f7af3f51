"""Pure. Environment variables of a foreign stack, judged: what they do in that version on those cards."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Final

from trimtab.engines.vllm_flags import explain_env
from trimtab.stackfile.foreign_judge import Case
from trimtab.stackfile.foreign_model import Finding, FindingSeverity, ForeignEnv, at_line
from trimtab.stackfile.foreign_secrets import shown

__all__ = ["check_env"]

_ON: Final = frozenset({"1", "true", "yes", "on"})


def check_env(case: Case) -> Iterator[Finding]:
    """Findings about each variable, and about one that is missing."""
    for entry in case.model.env:
        rule = _RULES.get(entry.name)
        if rule is not None:
            yield from rule(case, entry)
        elif entry.name.startswith("VLLM_"):
            yield from _check_vllm(case, entry)
    yield from _check_device_order(case)


def _at(entry: ForeignEnv, code: str, severity: FindingSeverity, text: str, hint: str = "") -> Finding:
    return Finding(code=code, severity=severity, text=text, where=at_line(entry.line), hint=hint)


def _check_vllm(case: Case, entry: ForeignEnv) -> Iterator[Finding]:
    """Variables that this version does not read (envs.py of each release)."""
    text = explain_env(case.version, entry.name)
    if text is not None and not case.is_older_than_known:
        yield _at(entry, "obsolete_env", "obsolete", shown_whole(text))


def shown_whole(text: str) -> str:
    """A sentence of our own that repeats a name of the file; only that may be odd."""
    return "".join(char if char.isprintable() else " " for char in text)[:300]


def _check_p2p(case: Case, entry: ForeignEnv) -> Iterator[Finding]:
    """NCCL_P2P_DISABLE turns direct transfers between cards off; unset and 0 are the same to NCCL."""
    is_off = entry.value == "1"
    if case.world_size == 1:
        yield _at(entry, "p2p_unused", "note", "NCCL_P2P_DISABLE changes nothing with one card")
    elif not is_off and case.has_p2p is False:
        yield _at(
            entry,
            "p2p_forced_on",
            "harmful",
            f"NCCL_P2P_DISABLE={shown(entry.value or '')} leaves direct transfers on, which these cards do "
            "not have; where a driver claims them all the same, NCCL may hang at the start",
            "NCCL_P2P_DISABLE=1",
        )
    elif not is_off:
        text = f"NCCL_P2P_DISABLE={shown(entry.value or '')} is what NCCL does by itself"
        yield _at(entry, "p2p_default", "note", text, "leave it out, or set 1 on cards without P2P")
    elif case.has_p2p:
        yield _at(
            entry,
            "p2p_given_away",
            "harmful",
            "NCCL_P2P_DISABLE=1 sends through host memory what these cards could send each other directly",
            "leave it out, unless the start hangs in NCCL",
        )


def _check_infiniband(case: Case, entry: ForeignEnv) -> Iterator[Finding]:
    """With P2P off it is what trimtab sets itself: NCCL then looks for a network first."""
    p2p = case.model.find_env("NCCL_P2P_DISABLE")
    if entry.value == "1" and not (p2p is not None and p2p.value == "1" and case.has_p2p is not True):
        text = "NCCL_IB_DISABLE=1 keeps NCCL from InfiniBand, which within one machine it does not use anyway"
        yield _at(entry, "infiniband_off", "note", text)


def _check_use_v1(case: Case, entry: ForeignEnv) -> Iterator[Finding]:
    text = explain_env(case.version, entry.name)
    if text is None or case.is_older_than_known:
        return
    if entry.value == "0":
        text += "; 0 does not bring V0 back"
    yield _at(entry, "obsolete_env", "obsolete", text)


def _check_attention_backend(case: Case, entry: ForeignEnv) -> Iterator[Finding]:
    text = explain_env(case.version, entry.name)
    if text is not None and not case.is_older_than_known:
        hint = f"--attention-backend {shown(entry.value)}" if entry.value else "--attention-backend"
        yield _at(entry, "obsolete_env", "obsolete", "VLLM_ATTENTION_BACKEND is not read any more", hint)


def _check_long_context(case: Case, entry: ForeignEnv) -> Iterator[Finding]:
    del case
    if (entry.value or "").lower() in _ON:
        yield _at(
            entry,
            "longer_than_trained",
            "harmful",
            "VLLM_ALLOW_LONG_MAX_MODEL_LEN lets requests be longer than the model can take; answers there "
            "are nonsense, or the engine crashes",
            "give a max_model_len that the model has",
        )


def _check_internal_port(case: Case, entry: ForeignEnv) -> Iterator[Finding]:
    del case
    text = f"{entry.name} is for vLLM's own processes, not where the API listens"
    yield _at(entry, "internal_address", "note", text, "--host and --port are for clients")


def _check_debugging(case: Case, entry: ForeignEnv) -> Iterator[Finding]:
    del case
    if (entry.value or "").lower() in _ON:
        text = f"{entry.name} is for looking for faults, and slows every step down"
        yield _at(entry, "debugging_left_on", "harmful", text, "leave it out")


def _check_nccl_log(case: Case, entry: ForeignEnv) -> Iterator[Finding]:
    del case
    if (entry.value or "").upper() in {"INFO", "TRACE"}:
        yield _at(entry, "debugging_left_on", "note", "NCCL_DEBUG fills the log", "WARN says what matters")


def _check_device_order(case: Case) -> Iterator[Finding]:
    """CUDA counts the fastest card first unless told otherwise; in containers the order is the bus's."""
    entry = case.model.find_env("CUDA_VISIBLE_DEVICES")
    if case.model.is_container or entry is None or not (entry.value or "").replace(",", "").isdecimal():
        return
    if case.model.find_env("CUDA_DEVICE_ORDER") is None:
        yield _at(
            entry,
            "device_order_open",
            "note",
            "CUDA_VISIBLE_DEVICES counts the fastest card first, nvidia-smi counts along the bus; with "
            "unequal cards these are not the same",
            "CUDA_DEVICE_ORDER=PCI_BUS_ID",
        )


_RULES: Final[dict[str, Callable[[Case, ForeignEnv], Iterator[Finding]]]] = {
    "NCCL_P2P_DISABLE": _check_p2p,
    "NCCL_IB_DISABLE": _check_infiniband,
    "VLLM_USE_V1": _check_use_v1,
    "VLLM_ATTENTION_BACKEND": _check_attention_backend,
    "VLLM_ALLOW_LONG_MAX_MODEL_LEN": _check_long_context,
    "VLLM_PORT": _check_internal_port,
    "VLLM_HOST_IP": _check_internal_port,
    "CUDA_LAUNCH_BLOCKING": _check_debugging,
    "VLLM_TRACE_FUNCTION": _check_debugging,
    "NCCL_DEBUG": _check_nccl_log,
}
