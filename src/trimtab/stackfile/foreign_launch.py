"""Pure. Where in a command's arguments an engine or a container is started, past sudo, nohup and the like."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, Literal, TypeAlias

from trimtab.stackfile.foreign_model import Argument, ForeignEnv

__all__ = ["Launch", "LaunchKind", "ScriptText", "find_launch", "name_of_program", "speaks_of_vllm"]

LaunchKind: TypeAlias = Literal["engine", "container"]

_CONTAINER_PROGRAMS: Final = frozenset({"docker", "podman", "nerdctl"})
_SHELLS: Final = frozenset({"bash", "sh", "zsh", "dash", "ash", "ksh"})
_API_SERVERS: Final = ("vllm.entrypoints.openai.api_server", "vllm.entrypoints.api_server")
# Programs that run the command given to them, what stands between being theirs; and the prompt of a page
# that a command was copied from.
_CARRIERS: Final = frozenset(
    {
        "$",
        "sudo",
        "doas",
        "nohup",
        "exec",
        "env",
        "time",
        "nice",
        "ionice",
        "chrt",
        "setsid",
        "stdbuf",
        "unbuffer",
        "numactl",
        "taskset",
        "timeout",
        "command",
        "builtin",
        "uv",
        "uvx",
        "pipx",
        "conda",
        "mamba",
        "micromamba",
        "poetry",
        "pixi",
        "screen",
        "tmux",
        "systemd-run",
        "torchrun",
        "nsys",
        "strace",
        "catchsegv",
        "dumb-init",
        "tini",
    }
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Launch:
    """A start that was found.

    ``arguments`` are those of the engine (after ``vllm serve`` or the module) or of the container
    program (after ``run``); ``env`` is what the program gets from its command line and the script;
    ``inside`` and ``lost_lines`` are as in a SimpleCommand; ``first_line`` to ``last_line`` is all that
    its arguments were written on, arrays and variables included.
    """

    kind: LaunchKind
    arguments: tuple[Argument, ...]
    line: int
    first_line: int
    last_line: int
    env: tuple[ForeignEnv, ...] = ()
    inside: tuple[tuple[str, int], ...] = ()
    lost_lines: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class ScriptText:
    """A script given as an argument (``bash -c '…'``), to be read in turn."""

    argument: Argument


def name_of_program(argument: Argument) -> str:
    """The last part of a program's path."""
    return argument.text.rsplit("/", 1)[-1]


def speaks_of_vllm(arguments: Sequence[Argument]) -> bool:
    """Whether any argument has to do with vLLM."""
    return any("vllm" in argument.text.lower() for argument in arguments)


def find_launch(
    arguments: Sequence[Argument],
) -> tuple[LaunchKind, tuple[Argument, ...]] | ScriptText | None:
    """The start in a command, or the script it passes on; None if it is neither.

    Only the program itself and what carries it are looked at: ``echo docker run …`` starts nothing.
    """
    for at, argument in enumerate(arguments):
        found = _launch_at(arguments, at)
        if found is not None:
            return found
        name = name_of_program(argument)
        is_carrier = name in _CARRIERS or name.startswith("python")
        if at == 0 and not is_carrier:
            return None
    return _passed_script(arguments)


def _launch_at(
    arguments: Sequence[Argument], at: int
) -> tuple[LaunchKind, tuple[Argument, ...]] | ScriptText | None:
    name = name_of_program(arguments[at])
    rest = tuple(arguments[at + 1 :])
    if name in _CONTAINER_PROGRAMS:
        return _container_run(rest)
    if name == "vllm" and rest and rest[0].text == "serve":
        return "engine", rest[1:]
    if name in _API_SERVERS or arguments[at].text.endswith("vllm/entrypoints/openai/api_server.py"):
        return "engine", rest
    if name in _SHELLS:
        for place, argument in enumerate(rest):
            if argument.text.startswith("-") and argument.text.endswith("c") and place + 1 < len(rest):
                return ScriptText(argument=rest[place + 1])
    return None


def _container_run(rest: tuple[Argument, ...]) -> tuple[LaunchKind, tuple[Argument, ...]] | None:
    """What follows ``run`` or ``create``, also behind ``container`` and options of the program."""
    for at, argument in enumerate(rest[:8]):
        if argument.text in {"run", "create"}:
            return "container", rest[at + 1 :]
        is_option = argument.text.startswith("-") or (at > 0 and rest[at - 1].text.startswith("-"))
        if argument.text != "container" and not is_option:
            return None
    return None


def _passed_script(arguments: Sequence[Argument]) -> ScriptText | None:
    """The quoted command that screen, tmux and systemd-run are given."""
    for argument in arguments[1:]:
        if " " in argument.text and "vllm" in argument.text.lower():
            return ScriptText(argument=argument)
    return None
