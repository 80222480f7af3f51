"""Pure. A script read as far as it can be without running it: the engines and containers it starts.

Assignments, arrays, functions, ``export`` and ``env`` are followed; every branch is taken once; loops,
substitutions, sourced files and here documents are not evaluated but named.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Final

from trimtab.errors import StackFileError
from trimtab.stackfile.foreign_commands import FunctionDefinition, SimpleCommand, Statement, read_commands
from trimtab.stackfile.foreign_expand import Scope, expand_parts, expand_word, expand_words
from trimtab.stackfile.foreign_launch import (
    Launch,
    ScriptText,
    find_launch,
    name_of_program,
    speaks_of_vllm,
)
from trimtab.stackfile.foreign_model import Argument, Finding, ForeignEnv, at_line
from trimtab.stackfile.foreign_tokens import Mark, Part, Word
from trimtab.stackfile.foreign_words import read_tokens

__all__ = ["Script", "read_script"]

_ASSIGNMENT: Final = re.compile(r"([A-Za-z_]\w*)(?:\[[^\]]*\])?(\+?)=")
_DECLARING: Final = frozenset({"export", "declare", "typeset", "local", "readonly"})
# Programs that only say or look for something, or end it; what they mention is not started.
_HARMLESS: Final = frozenset(
    {
        "echo",
        "printf",
        "cat",
        "grep",
        "egrep",
        "pgrep",
        "pkill",
        "kill",
        "killall",
        "curl",
        "wget",
        "tail",
        "less",
        "ls",
        "cd",
        "mkdir",
        "rm",
        "pip",
        "pip3",
        "docker",
        "podman",
        "nerdctl",
        "vllm",
        "test",
        "[",
        "[[",
        "hf",
        "huggingface-cli",
        "git",
        "sleep",
        "which",
        "tee",
        "sed",
        "awk",
        "chmod",
        "cp",
        "mv",
        "ln",
        "logger",
        "trap",
        "for",
        "case",
        "return",
        "exit",
        "set",
        "unset",
        "wait",
        "read",
        "python",
        "python3",
        "uv",
        "sudo",
    }
)
_MAX_NESTING: Final = 4
_MAX_COMMANDS: Final = 5_000
# Some times the models that are read; other containers count too.
_MAX_LAUNCHES: Final = 200


@dataclass(slots=True)
class Script:
    """What a script starts, what could not be followed, and marks of what looks mistaken."""

    launches: list[Launch] = field(default_factory=list)
    findings: list[Finding] = field(default_factory=list)
    marks: list[Mark] = field(default_factory=list)


def read_script(text: str, *, first_line: int = 1, variables: Mapping[str, Argument] | None = None) -> Script:
    """The launches in ``text``; ``variables`` are set beforehand.

    StackFileError where not even its words can be told apart.
    """
    run = _Run(Scope(variables=dict(variables or {})))
    run.read(text, first_line)
    return run.script


class _Run:
    """Walks through the commands with what they have assigned."""

    def __init__(self, scope: Scope) -> None:
        self.script = Script()
        self._scope = scope
        self._functions: dict[str, tuple[Statement, ...]] = {}
        self._called: set[str] = set()
        self._nesting = 0
        self._num_commands = 0

    def read(self, text: str, first_line: int) -> None:
        """Follows a text; functions that nobody calls are walked through once at the end."""
        tokens, marks = read_tokens(text, first_line=first_line)
        self.script.marks.extend(marks)
        self._walk(read_commands(tokens))
        if self._nesting == 0:
            for name, body in list(self._functions.items()):
                if name not in self._called:
                    self._walk(body)

    def _walk(self, statements: Iterable[Statement]) -> None:
        for statement in statements:
            self._num_commands += 1
            if self._num_commands > _MAX_COMMANDS:
                raise StackFileError(f"the script comes to more than {_MAX_COMMANDS:,} commands")
            if isinstance(statement, FunctionDefinition):
                self._functions[statement.name] = statement.body
            else:
                self._follow(statement)

    def _follow(self, command: SimpleCommand) -> None:
        if command.loop_variable:
            self._forget(command.loop_variable)
            return
        prefix = _count_assignments(command.words)
        rest = command.words[prefix:]
        if not rest:
            for word in command.words:
                self._assign(word)
            return
        if rest[0].unquoted in _DECLARING:
            self._declare(rest)
            return
        arguments = expand_words(rest, self._scope)
        if not arguments:
            return
        env = tuple(self._one_assignment(word) for word in command.words[:prefix])
        self._start(command, arguments, env)

    def _start(
        self, command: SimpleCommand, arguments: tuple[Argument, ...], env: tuple[ForeignEnv, ...]
    ) -> None:
        name = arguments[0].text
        if name in self._functions:
            self._call(name, arguments[1:])
            return
        if name == "eval":
            self._read_nested(Argument(text=" ".join(a.text for a in arguments[1:]), line=command.line))
            return
        found = find_launch(arguments)
        if isinstance(found, ScriptText):
            self._read_nested(found.argument)
        elif found is not None:
            if len(self.script.launches) >= _MAX_LAUNCHES:
                raise StackFileError(f"the script starts more than {_MAX_LAUNCHES} engines or containers")
            kind, rest = found
            own = _carried_env(arguments[: len(arguments) - len(rest)])
            lines = [a.line for a in arguments] + [word.line for word in command.words]
            self.script.launches.append(
                Launch(
                    kind=kind,
                    arguments=rest,
                    line=command.line,
                    first_line=min(line for line in lines if line),
                    last_line=max(lines),
                    env=(*self._exported(), *env, *own),
                    inside=command.inside,
                    lost_lines=command.lost_lines,
                )
            )
        else:
            self._note_other(command, arguments)

    def _note_other(self, command: SimpleCommand, arguments: tuple[Argument, ...]) -> None:
        name = name_of_program(arguments[0])
        if name in {"source", "."} and len(arguments) > 1:
            self._find("sourced_file", command.line, "another file is sourced here and was not read")
        elif name == "read":
            for argument in arguments[1:]:
                self._forget(argument.text)
        elif name == "unset":
            for argument in arguments[1:]:
                self._scope.variables.pop(argument.text, None)
                self._scope.arrays.pop(argument.text, None)
        elif name in {"docker", "podman", "nerdctl", "docker-compose"} and "up" in _texts(arguments):
            self._find(
                "compose_up",
                command.line,
                "a compose file is brought up here and was not read",
                hint="give that file itself",
            )
        elif name not in _HARMLESS and speaks_of_vllm(arguments):
            self._find(
                "command_not_understood", command.line, f"{name[:40]!r} mentions vLLM and was not understood"
            )

    def _read_nested(self, argument: Argument) -> None:
        """A script inside an argument, in the scope as it is."""
        if self._nesting >= _MAX_NESTING:
            self._find("nested_too_deeply", argument.line, "a script inside a script was not read")
            return
        self._nesting += 1
        self.read(argument.text, argument.line)
        self._nesting -= 1

    def _call(self, name: str, arguments: tuple[Argument, ...]) -> None:
        self._called.add(name)
        if self._nesting >= _MAX_NESTING:
            self._find("nested_too_deeply", 0, f"calls of {name[:40]!r} inside calls were not followed")
            return
        outer = self._scope.positional
        self._scope.positional = arguments
        self._nesting += 1
        self._walk(self._functions[name])
        self._nesting -= 1
        self._scope.positional = outer

    def _declare(self, words: Sequence[Word]) -> None:
        """What export, local and the like assign."""
        for word in words[1:]:
            if _ASSIGNMENT.match(_leading_text(word)):
                self._assign(word)
            name = re.match(r"[A-Za-z_]\w*", word.literal)
            if words[0].unquoted == "export" and name is not None:
                self._scope.exported[name.group()] = word.line

    def _assign(self, word: Word) -> None:
        match = _ASSIGNMENT.match(_leading_text(word))
        if match is None:
            return
        name, is_more = match.group(1), bool(match.group(2))
        if word.items is not None:
            items = tuple(argument for item in word.items for argument in expand_word(item, self._scope))
            self._scope.arrays[name] = (*(self._scope.arrays.get(name, ()) if is_more else ()), *items)
            self._scope.variables.pop(name, None)
            return
        value = expand_parts(_after(word, match.end()), self._scope, line=word.line)
        if is_more and name in self._scope.variables:
            old = self._scope.variables[name]
            value = replace(value, text=old.text + value.text, unknowns=old.unknowns + value.unknowns)
        self._scope.arrays.pop(name, None)
        self._scope.variables[name] = value

    def _one_assignment(self, word: Word) -> ForeignEnv:
        """``A=b`` in front of a command."""
        match = _ASSIGNMENT.match(_leading_text(word))
        end = match.end() if match else 0
        value = expand_parts(_after(word, end), self._scope, line=word.line)
        name = match.group(1) if match else ""
        return ForeignEnv(name=name, value=None if value.unknowns else value.text, line=word.line)

    def _exported(self) -> list[ForeignEnv]:
        found: list[ForeignEnv] = []
        for name, line in self._scope.exported.items():
            value = self._scope.variables.get(name)
            text = None if value is None or value.unknowns else value.text
            found.append(ForeignEnv(name=name, value=text, line=line))
        return found

    def _forget(self, name: str) -> None:
        """From here on the file does not say what ``name`` is."""
        self._scope.arrays.pop(name, None)
        self._scope.variables[name] = Argument(text=f"${{{name}}}", unknowns=(name,))

    def _find(self, code: str, line: int, text: str, *, hint: str = "") -> None:
        finding = Finding(code=code, severity="unknown", text=text, where=at_line(line), hint=hint)
        self.script.findings.append(finding)


def _texts(arguments: Sequence[Argument]) -> list[str]:
    return [argument.text for argument in arguments]


def _leading_text(word: Word) -> str:
    """The unquoted text a word begins with."""
    first = word.parts[0] if word.parts else None
    return first.text if first and first.kind == "text" and not first.is_quoted else ""


def _after(word: Word, length: int) -> tuple[Part, ...]:
    """A word's parts without its first ``length`` characters, which are in its first part."""
    if not word.parts or not length:
        return word.parts
    first = word.parts[0]
    return (replace(first, text=first.text[length:]), *word.parts[1:])


def _count_assignments(words: Sequence[Word]) -> int:
    for at, word in enumerate(words):
        if not _ASSIGNMENT.match(_leading_text(word)):
            return at
    return len(words)


def _carried_env(arguments: Sequence[Argument]) -> tuple[ForeignEnv, ...]:
    """``env A=b`` and ``sudo A=b`` between the carrier and the program."""
    found: list[ForeignEnv] = []
    for argument in arguments:
        match = _ASSIGNMENT.match(argument.text)
        if match is not None:
            value = None if argument.unknowns else argument.text[match.end() :]
            found.append(ForeignEnv(name=match.group(1), value=value, line=argument.line))
    return tuple(found)
