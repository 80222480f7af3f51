"""Pure. The Engine protocol: how an engine is commanded. It never touches the machine."""

from __future__ import annotations

from typing import Protocol

from trimtab.core.plan import ModelPlan
from trimtab.core.stack import EngineName

__all__ = ["Engine"]


class Engine(Protocol):
    """Says how one engine is started and spoken to."""

    @property
    def name(self) -> EngineName:
        """The engine's name in stack files and plans."""
        ...

    def render_argv(self, plan: ModelPlan, *, python: str) -> tuple[str, ...]:
        """The command that starts it, with PORT_PLACEHOLDER for the port; ``python`` is the interpreter."""
        ...

    def render_env(self, plan: ModelPlan) -> tuple[tuple[str, str], ...]:
        """Environment variables to add, sorted by name."""
        ...

    def explain_exit(self, log_tail: tuple[str, ...]) -> str | None:
        """The likely cause of an unplanned exit in one clause, or None when the log does not tell."""
        ...
