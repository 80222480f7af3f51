"""Pure. How vLLM is commanded: `vllm serve`, the flags of its version, its environment, its last words."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Final

from trimtab.core.hardware import Gpu
from trimtab.core.plan import ModelPlan, Setting
from trimtab.core.stack import EngineName
from trimtab.core.state import PORT_PLACEHOLDER
from trimtab.engines.vllm_arguments import render_flags
from trimtab.engines.vllm_env import choose_env
from trimtab.engines.vllm_exit import explain_vllm_exit

__all__ = ["PROGRAM", "READINESS_PATH", "SERVER_NAMES", "Vllm", "served_names"]

PROGRAM: Final = "vllm"
"""The program; it lives in an environment of its own, whose bin folder whoever starts it names."""
# 200 with an empty body once the engine answers; refused connections before (0.17.1 to 0.33.0).
READINESS_PATH: Final = "/health"
SERVER_NAMES: Final = frozenset({"served_model_name", "host", "port"})
"""Settings that say where a server is found; each form of start writes them itself."""
_LOOPBACK: Final = "127.0.0.1"


class Vllm:
    """Implements engines.base.Engine for vLLM's OpenAI server."""

    @property
    def name(self) -> EngineName:
        """The engine's name in stack files and plans."""
        return "vllm"

    def render_argv(self, plan: ModelPlan, *, python: str = "") -> tuple[str, ...]:
        """The command of one replica: the same for all, their cards come from ``replica_devices``.

        ``python`` isn't used: vLLM has an environment of its own. StackFileError when the version has
        no such argument. A pinned host is obeyed, a pinned port isn't: the runtime picks one.
        """
        del python
        pinned = {item.name: item.value for item in plan.settings if item.name in SERVER_NAMES}
        host = pinned.get("host")
        return (
            *(PROGRAM, "serve", guarded_path(plan.checkpoint)),
            *("--served-model-name", *served_names(plan)),
            *("--host", host if isinstance(host, str) else _LOOPBACK),
            *("--port", PORT_PLACEHOLDER),
            *render_settings(plan),
        )

    def render_env(self, plan: ModelPlan, *, gpus: Sequence[Gpu] = ()) -> tuple[tuple[str, str], ...]:
        """Variables to add for the cards of one replica, sorted by name; ``choose_env`` has the reasons."""
        return tuple((choice.name, choice.value) for choice in choose_env(plan, gpus))

    def explain_exit(self, log_tail: tuple[str, ...]) -> str | None:
        """The likely cause of an unplanned exit in one clause, or None when the log does not tell."""
        return explain_vllm_exit(log_tail)


def served_names(plan: ModelPlan) -> tuple[str, ...]:
    """The names the server answers to; the plan's own is always the first."""
    pinned = next((item.value for item in plan.settings if item.name == "served_model_name"), None)
    if pinned is None or pinned == "":
        return (plan.name,)
    text = str(pinned)
    found = json.loads(text) if text.startswith("[") else [text]
    return tuple(dict.fromkeys([plan.name, *(str(name) for name in found)]))


def render_settings(plan: ModelPlan) -> tuple[str, ...]:
    """The flags of all settings that don't say where the server is found."""
    rest: list[Setting] = [item for item in plan.settings if item.name not in SERVER_NAMES]
    return render_flags(plan.engine_version, rest, model=plan.name)


def guarded_path(checkpoint: str) -> str:
    """The checkpoint, never read as an option."""
    return f"./{checkpoint}" if checkpoint.startswith("-") else checkpoint
