"""Pure. One file per engine: settings become argv and env; readiness path and capabilities."""

from __future__ import annotations

from typing import Final

from trimtab.engines.base import Engine
from trimtab.engines.llama_cpp import LlamaCpp
from trimtab.engines.vllm import Vllm
from trimtab.engines.vllm_phases import BootPhase, read_boot

__all__ = ["ENGINES", "describe_boot", "explain_exit"]

ENGINES: Final[dict[str, Engine]] = {"llama_cpp": LlamaCpp(), "vllm": Vllm()}


def explain_exit(engine: str, log_tail: tuple[str, ...]) -> str | None:
    """The likely cause of an engine's unplanned exit, or None when its log does not tell."""
    found = ENGINES.get(engine)
    return found.explain_exit(log_tail) if found is not None else None


def describe_boot(engine: str, log_tail: tuple[str, ...]) -> str:
    """Which phase of its start an engine is in, as its log tells; empty where it does not."""
    if engine != "vllm" or not log_tail:
        return ""
    state = read_boot(log_tail)
    if state.phase is BootPhase.READY:
        return ""
    return f"{state.phase} {state.done} of {state.total}" if state.total else str(state.phase)
