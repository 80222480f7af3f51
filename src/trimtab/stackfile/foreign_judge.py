"""Pure. What the judgements of a foreign stack share: the model at hand, its version, its cards."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Final

from trimtab.core.stack import SettingValue
from trimtab.engines.vllm_flags import is_older_than_read
from trimtab.planner.vllm_versions import DEFAULT_VLLM_VERSION, VersionLine, find_version
from trimtab.stackfile.foreign_model import Finding, FindingSeverity, ForeignModel, at_line

__all__ = ["Case", "line_for"]

_DEGREES: Final = ("tensor_parallel_size", "pipeline_parallel_size", "data_parallel_size")
_HYBRID: Final = re.compile(r"qwen[\-_ ]?3(?:\.[5-9]|-next)", re.IGNORECASE)
_THINKING: Final = re.compile(
    r"qwen[\-_ ]?3(?:\.\d)?-(?!.*(?:instruct|coder|embedding|reranker))", re.IGNORECASE
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """One model and what is known around it.

    ``version`` is what it is judged as: its own, else the one given, else the newest that was
    compared with a GPU. ``has_p2p`` is whether the cards reach each other's memory, None unknown;
    ``label`` begins texts that are about the whole model, empty when it is the only one.
    """

    model: ForeignModel
    version: str
    has_p2p: bool | None = None
    gpu_total_bytes: int | None = None
    label: str = ""

    @property
    def is_older_than_known(self) -> bool:
        """Whether the version is older than every one whose arguments were read."""
        return is_older_than_read(self.version)

    @property
    def is_hybrid(self) -> bool:
        """Whether the names speak of a model with linear attention (Qwen3.5, Qwen3.6, Qwen3-Next)."""
        return any(_HYBRID.search(name) for name in self._names)

    @property
    def is_thinking_qwen(self) -> bool:
        """Whether the names speak of a Qwen3 that thinks before it answers."""
        return any(_THINKING.search(f"{name}-") for name in self._names)

    @property
    def _names(self) -> tuple[str, ...]:
        return (self.model.request.checkpoint, *self.model.served_names)

    @property
    def is_world_known(self) -> bool:
        """Whether none of the degrees hangs on something the file does not say."""
        return not any(flag.is_unread and flag.name in _DEGREES for flag in self.model.flags)

    @property
    def world_size(self) -> int:
        """Cards that the engine takes: TP x PP x DP as far as they are known."""
        size = 1
        for name in _DEGREES:
            value = self.value(name)
            size *= value if isinstance(value, int) and not isinstance(value, bool) and value > 0 else 1
        return size

    def value(self, name: str) -> SettingValue:
        """The pinned value of an argument, None where it is not given."""
        flag = self.model.find_flag(name)
        return flag.value if flag is not None else None

    def is_given(self, name: str) -> bool:
        """Whether the flag is there, its value known or not."""
        return self.model.find_flag(name) is not None

    def number(self, name: str) -> float | None:
        """The pinned value where it is a number."""
        value = self.value(name)
        return value if isinstance(value, int | float) and not isinstance(value, bool) else None

    def at(self, name: str, code: str, severity: FindingSeverity, text: str, hint: str = "") -> Finding:
        """A finding at the line of a flag."""
        flag = self.model.find_flag(name)
        line = flag.line if flag is not None else self.model.line
        return Finding(code=code, severity=severity, text=text, where=at_line(line), hint=hint)

    def on(self, code: str, severity: FindingSeverity, text: str, hint: str = "") -> Finding:
        """A finding about the model as a whole."""
        where = self.model.where
        return Finding(code=code, severity=severity, text=self.label + text, where=where, hint=hint)


def find_number(version: str) -> tuple[int, ...]:
    """Major and minor."""
    return tuple(int(part) for part in re.findall(r"\d+", version)[:2])


def line_for(version: str | None) -> VersionLine:
    """The accounting of a version, the default's where it is not known."""
    return find_version(version or DEFAULT_VLLM_VERSION).line
