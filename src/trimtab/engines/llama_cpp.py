"""Pure. How llama.cpp is commanded: the engine host's command line, its environment, its last words.

The engine host is ``trimtab.runtimes.llama_cpp_host``; it serves llama.cpp's own HTTP server through
xllamacpp and takes llama-server's flags.
"""

from __future__ import annotations

import re
from typing import Final

from trimtab.core.plan import ModelPlan
from trimtab.core.stack import EngineName, SettingValue
from trimtab.core.state import PORT_PLACEHOLDER
from trimtab.engines.llama_cpp_settings import SETTINGS

__all__ = ["HOST_MODULE", "READINESS_PATH", "REQUIRED_XLLAMACPP", "LlamaCpp"]

# The names of CommonParams fields drift between releases (hostname became hostnames), hence one version.
REQUIRED_XLLAMACPP: Final = "2026.10.11549"
HOST_MODULE: Final = "trimtab.runtimes.llama_cpp_host"
# 503 while the model loads, 200 after; whether it generates is only known by generating.
READINESS_PATH: Final = "/health"

# What the log of xllamacpp 2026.10.11549 says → what it means. Each was provoked on 2026-11-30
# (docs/engines/llama-cpp.md); the first that matches wins, so causes stand before their consequences.
_LAST_WORDS: Final[tuple[tuple[re.Pattern[str], str], ...]] = tuple(
    (re.compile(pattern), cause)
    for pattern, cause in (
        (
            r"data is not within the file bounds|model is corrupted or incomplete",
            "the model file is cut off: download it again",
        ),
        (r"invalid magic", "the model file is not a GGUF file"),
        (r"failed to open GGUF file '(?P<what>[^']*)' \((?P<why>[^)]*)\)", "cannot open {what}: {why}"),
        (
            r"unknown model architecture: '(?P<what>[^']*)'",
            "this llama.cpp does not know the architecture {what}; it needs a newer trimtab",
        ),
        (
            r"tensor '(?P<what>[^']*)' not found",
            "the model file lacks the tensor {what}: it was made for another llama.cpp",
        ),
        (r"unknown pre-tokenizer type: '(?P<what>[^']*)'", "llama.cpp does not know the tokenizer {what}"),
        (
            r"failed to allocate (?:\S+ )?buffer (?:of size (?P<bytes>\d+)|for)",
            "out of memory while allocating{size}",
        ),
        (r"unable to allocate|failed to mmap|[Cc]annot allocate memory|std::bad_alloc|MemoryError|mmap: 12",
         "out of memory"),
        (
            r"couldn't bind HTTP server socket, hostname: \S+, port: (?P<what>\d+)",
            "port {what} is taken by another process",
        ),
        (r"[Ii]llegal instruction", "this CPU lacks instructions that the prebuilt llama.cpp uses"),
        (r"No module named '?(?P<what>[\w.]+)", "the package {what} is missing: install trimtab again"),
        (
            r"version [`'](?P<what>\w+_[\d.]+)' not found",
            "this system is too old for the prebuilt llama.cpp (it needs {what})",
        ),
        (r"CommonParams has no (?P<what>\w+)", "another xllamacpp is installed than the one required"),
        (r"error loading model: (?P<what>.+)", "the model cannot be loaded: {what}"),
        (r"failed to (?P<what>load model|create context)", "llama.cpp failed to {what}"),
    )
)  # fmt: skip


class LlamaCpp:
    """Implements engines.base.Engine for the engine host."""

    @property
    def name(self) -> EngineName:
        """The engine's name in stack files and plans."""
        return "llama_cpp"

    def render_argv(self, plan: ModelPlan, *, python: str) -> tuple[str, ...]:
        """The command that starts the host, every setting spelled out in the order of SETTINGS."""
        values = {setting.name: setting.value for setting in plan.settings}
        flags = [part for name in SETTINGS if name in values for part in _render_flag(name, values[name])]
        return (
            python,
            *("-m", HOST_MODULE),
            *("--model", plan.checkpoint),
            *("--alias", plan.name),
            *("--host", "127.0.0.1"),
            *("--port", PORT_PLACEHOLDER),
            *flags,
        )

    def render_env(self, plan: ModelPlan) -> tuple[tuple[str, str], ...]:
        """Variables for the host: it must not start a debugger on itself when it crashes."""
        del plan
        return (("GGML_NO_BACKTRACE", "1"),)

    def explain_exit(self, log_tail: tuple[str, ...]) -> str | None:
        """The likely cause of an unplanned exit in one clause, or None when the log does not tell."""
        for pattern, cause in _LAST_WORDS:
            for line in log_tail:
                match = pattern.search(line)
                if match is not None:
                    return _fill(cause, match.groupdict())
        return None


def _fill(cause: str, found: dict[str, str | None]) -> str:
    num_bytes = found.get("bytes")
    size = f" {int(num_bytes) / 2**20:,.0f} MiB" if num_bytes else ""
    return cause.format(what=found.get("what") or "", why=found.get("why") or "", size=size)


def _render_flag(name: str, value: SettingValue) -> tuple[str, ...]:
    flag = SETTINGS[name].flag
    if isinstance(value, bool):
        return (flag,) if value else (f"--no-{flag.removeprefix('--')}",)
    return (flag, str(value))
