"""Pure. One file per engine: settings become argv and env; readiness path and capabilities."""

from __future__ import annotations

from typing import Final

from trimtab.engines.base import Engine
from trimtab.engines.llama_cpp import LlamaCpp
from trimtab.engines.vllm import Vllm
from trimtab.engines.vllm_diagnosis import diagnose_vllm, waits_for_peers
from trimtab.engines.vllm_phases import BootPhase, read_boot

__all__ = ["ENGINES", "describe_boot", "describe_stall", "explain_exit"]

ENGINES: Final[dict[str, Engine]] = {"llama_cpp": LlamaCpp(), "vllm": Vllm()}


def explain_exit(engine: str, log_tail: tuple[str, ...]) -> str | None:
    """The likely cause of an engine's unplanned exit and what helps, or None when its log does not tell."""
    found = ENGINES.get(engine)
    text = found.explain_exit(log_tail) if found is not None else None
    if text is None or engine != "vllm":
        return text
    advice = diagnose_vllm(log_tail).advice
    return text if advice in text else f"{text}; {advice}"


def describe_boot(engine: str, log_tail: tuple[str, ...]) -> str:
    """Which phase of its start an engine is in, as its log tells; empty where it does not."""
    if engine != "vllm" or not log_tail:
        return ""
    state = read_boot(log_tail)
    if state.phase is BootPhase.READY:
        return ""
    return f"{state.phase} {state.done} of {state.total}" if state.total else str(state.phase)


def describe_stall(engine: str, log_tail: tuple[str, ...]) -> str:
    """Where starts are known to hang, and what helps, when the log stands there; else empty."""
    if engine != "vllm" or not waits_for_peers(log_tail):
        return ""
    found = diagnose_vllm(log_tail, is_silent=True)
    return f"{found.why}; {found.advice}" if found.code == "cards_do_not_answer" else ""
