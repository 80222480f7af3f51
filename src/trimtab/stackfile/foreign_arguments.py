"""Pure. The arguments of ``vllm serve`` → the model and every flag under its Python name.

Follows vLLM's parser (utils/argparse_utils.py of 0.17.1, 0.25.1 and 0.33.0): underscores for dashes,
``--no-x``, short forms, unique beginnings, ``-O3``, several words for list flags, and dotted JSON flags,
which are put together and then replace the flag's JSON. The last of a repeated flag counts.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from trimtab.core.stack import SettingValue
from trimtab.stackfile.foreign_model import Argument, Finding, FindingSeverity, ForeignFlag, at_line
from trimtab.stackfile.foreign_option import Option, resolve_option
from trimtab.stackfile.foreign_secrets import is_secret_name, is_secret_value, shown

__all__ = ["EngineArguments", "as_setting", "read_arguments"]

_NEGATIVE_NUMBER: Final = re.compile(r"-\d+|-\d*\.\d+")
_LEVEL: Final = re.compile(r"-O=?([^.=].*)")
_SWITCHES: Final = frozenset({"switch", "switch_on"})
_BOOLEANS: Final = {"true": True, "false": False}
_REPEATABLE: Final = frozenset({"middleware"})


@dataclass(slots=True)
class EngineArguments:
    """The model as written (None if there is none), the flags in order, and what was odd about them."""

    model: Argument | None = None
    flags: list[ForeignFlag] = field(default_factory=list)
    findings: list[Finding] = field(default_factory=list)


def read_arguments(arguments: Sequence[Argument], *, version: str | None) -> EngineArguments:
    """Everything the engine is told; nothing is dropped without a finding."""
    return _Arguments(arguments, version).read()


def as_setting(text: str) -> SettingValue:
    """A value as ``--set`` takes it: JSON if it parses to something finite, nested values as JSON text."""
    try:
        value = json.loads(text)
    except (ValueError, RecursionError):
        return text
    if isinstance(value, dict | list):
        return json.dumps(value)
    is_odd = isinstance(value, float) and (not math.isfinite(value) or "e" in text.lower())
    is_wide = isinstance(value, int) and abs(value) >= 2**63
    return text if is_odd or is_wide or isinstance(value, str) else value


class _Arguments:
    """Goes through the arguments once."""

    def __init__(self, arguments: Sequence[Argument], version: str | None) -> None:
        self._arguments = arguments
        self._version = version
        self._pos = 0
        self._out = EngineArguments()
        self._dotted: dict[str, tuple[dict[str, Any], ForeignFlag]] = {}
        self._unread: list[Argument] = []

    def read(self) -> EngineArguments:
        """The whole line."""
        while self._pos < len(self._arguments):
            argument = self._arguments[self._pos]
            self._pos += 1
            if argument.text == "--":
                continue
            if _is_option(argument):
                self._read_option(argument)
            else:
                self._read_positional(argument)
        self._out.flags.extend(_made(flag, json.dumps(value)) for value, flag in self._dotted.values())
        self._keep_last()
        self._out.model = self._out.model or self._model_flag()
        for argument in self._unread:
            if self._out.model is None:
                self._out.model = argument
                continue
            names = ", ".join(shown(name) for name in argument.unknowns)
            text = f"{names} may hold further flags, which the file does not say"
            self._find("arguments_unknown", "unknown", text, argument.line)
        return self._out

    def _find(self, code: str, severity: FindingSeverity, text: str, line: int, hint: str = "") -> None:
        found = Finding(code=code, severity=severity, text=text, where=at_line(line), hint=hint)
        self._out.findings.append(found)

    def _read_positional(self, argument: Argument) -> None:
        if not argument.text.strip():
            if not argument.unknowns:
                self._find("empty_argument", "error", "an empty argument stands here", argument.line)
        elif argument.unknowns:
            self._unread.append(argument)
        elif self._out.model is None:
            self._out.model = argument
        else:
            self._find(
                "stray_argument",
                "error",
                f"{shown(argument.text)!r} belongs to no flag",
                argument.line,
                "a value with blanks or quotes in it needs single quotes around it",
            )

    def _read_option(self, argument: Argument) -> None:
        level = _LEVEL.fullmatch(argument.text)
        if level is not None:
            self._add(Option(name="optimization_level", kind="text"), argument, level.group(1))
            return
        written, separator, value = argument.text.partition("=")
        if written == "-O":
            option = Option(name="optimization_level", kind="text")
        else:
            option = resolve_option(written, self._version)
        if option.is_abbreviated:
            self._find(
                "abbreviated_flag",
                "note",
                f"{shown(written)} is short for --{option.name.replace('_', '-')}",
                argument.line,
            )
        given = Argument(text=value, line=argument.line, unknowns=argument.unknowns) if separator else None
        if option.key:
            self._read_dotted(option, written, given or self._next_value(), argument)
        elif option.kind in _SWITCHES:
            self._read_switch(option, written, given, argument)
        elif option.kind == "list":
            self._read_list(option, written, [given] if given else self._next_values(), argument)
        else:
            self._read_single(option, written, given, argument)

    def _next_value(self) -> Argument | None:
        if self._pos < len(self._arguments) and not _is_option(self._arguments[self._pos]):
            self._pos += 1
            return self._arguments[self._pos - 1]
        return None

    def _next_values(self) -> list[Argument]:
        found: list[Argument] = []
        while (value := self._next_value()) is not None:
            found.append(value)
        return found

    def _read_switch(self, option: Option, written: str, given: Argument | None, argument: Argument) -> None:
        value = given
        if value is None and self._pos < len(self._arguments):
            is_boolean = self._arguments[self._pos].text.lower() in _BOOLEANS
            value = self._next_value() if is_boolean else None
        is_on = not option.is_negated
        if value is not None:
            self._find(
                "switch_with_value",
                "error",
                f"{shown(written)} takes no value",
                value.line,
                f"write {written} or --no-{option.name.replace('_', '-')}",
            )
            is_on = _BOOLEANS.get(value.text.lower(), is_on)
        self._out.flags.append(
            ForeignFlag(name=option.name, written=written, value=is_on, line=argument.line)
        )

    def _read_list(
        self, option: Option, written: str, values: Sequence[Argument], argument: Argument
    ) -> None:
        if not values:
            self._miss_value(written, argument.line)
            return
        unknowns = [name for value in values for name in value.unknowns]
        texts = [value.text for value in values]
        is_secret = _is_secret(option.name, " ".join(texts)) and not unknowns
        if unknowns:
            self._note_unread(written, unknowns, argument.line)
        items = json.dumps([as_setting(text) if option.name.endswith("sizes") else text for text in texts])
        flag = ForeignFlag(
            name=option.name,
            written=written,
            value=None if unknowns or is_secret else items,
            line=argument.line,
            is_unread=bool(unknowns),
            is_secret=is_secret,
        )
        self._out.flags.append(flag)

    def _read_single(self, option: Option, written: str, given: Argument | None, argument: Argument) -> None:
        value = given or self._next_value()
        if value is None:
            if option.kind in {None, "switch_or_text"}:
                flag = ForeignFlag(name=option.name, written=written, value=True, line=argument.line)
                self._out.flags.append(flag)
            else:
                self._miss_value(written, argument.line)
            return
        if value.unknowns:
            self._note_unread(written, value.unknowns, value.line)
            self._out.flags.append(
                ForeignFlag(name=option.name, written=written, value=None, line=argument.line, is_unread=True)
            )
            return
        self._add(option, argument, value.text, written=written)

    def _add(self, option: Option, argument: Argument, text: str, *, written: str = "-O") -> None:
        is_secret = _is_secret(option.name, text)
        value = None if is_secret else self._convert(option, written, text, argument.line)
        self._out.flags.append(
            ForeignFlag(
                name=option.name, written=written, value=value, line=argument.line, is_secret=is_secret
            )
        )

    def _convert(self, option: Option, written: str, text: str, line: int) -> SettingValue:
        if option.kind == "text":
            return text
        value = as_setting(text)
        if option.kind in {"integer", "number"} and (isinstance(value, str | bool) or value is None):
            self._find("not_a_number", "error", f"{shown(written)} is {shown(text)!r}, not a number", line)
        elif option.kind == "json" and isinstance(value, str) and not _is_json(text):
            return self._convert_broken_json(written, text, line)
        return value

    def _convert_broken_json(self, written: str, text: str, line: int) -> SettingValue:
        """JSON that is none: repaired where an editor spoiled its quotes, pinned as it is otherwise."""
        plain = text.translate(dict.fromkeys(map(ord, "\u201c\u201d\u201e"), '"'))
        if plain != text and _is_json(plain):
            self._find(
                "typed_quote",
                "error",
                f"{shown(written)} has typographic quotes, which are not JSON's",
                line,
                "replace them by plain ones",
            )
            return as_setting(plain)
        self._find(
            "bad_json",
            "error",
            f"{shown(written)} is {shown(text)!r}, which is not JSON",
            line,
            "put single quotes around the JSON and double quotes inside it",
        )
        return text

    def _read_dotted(self, option: Option, written: str, value: Argument | None, argument: Argument) -> None:
        """``--config.key.key value``; a ``+`` at the end adds to a list."""
        if value is None:
            self._miss_value(written, argument.line)
            return
        if value.unknowns:
            self._note_unread(written, value.unknowns, value.line)
            return
        key = option.key.removesuffix("+")
        item: Any = value.text.split(",") if key != option.key else _json_or_text(value.text)
        flag = ForeignFlag(
            name=option.name, written=written.partition(".")[0], value=None, line=argument.line
        )
        whole, flag = self._dotted.setdefault(option.name, ({}, flag))
        *path, last = key.split(".")
        for part in path:
            inner = whole.setdefault(part, {})
            whole = inner if isinstance(inner, dict) else whole.update({part: {}}) or whole[part]
        old = whole.get(last)
        whole[last] = [*old, *item] if isinstance(old, list) and isinstance(item, list) else item

    def _miss_value(self, written: str, line: int) -> None:
        self._find("value_missing", "error", f"{shown(written)} has no value", line)

    def _note_unread(self, written: str, unknowns: Sequence[str], line: int) -> None:
        names = ", ".join(shown(name) for name in dict.fromkeys(unknowns))
        self._find(
            "value_unknown",
            "unknown",
            f"{shown(written)} hangs on {names}, which the file does not say; it is not pinned",
            line,
            "write the value, or pin it with --set",
        )

    def _keep_last(self) -> None:
        """Repeated flags: the last one counts, as argparse has it."""
        last = {flag.name: place for place, flag in enumerate(self._out.flags)}
        kept: list[ForeignFlag] = []
        for place, flag in enumerate(self._out.flags):
            if last[flag.name] == place or flag.name in _REPEATABLE:
                kept.append(flag)
                continue
            winner = self._out.flags[last[flag.name]]
            self._find(
                "repeated_flag",
                "note",
                f"{shown(flag.written)} is given again{_on(winner.line)}; the last one counts",
                flag.line,
            )
        self._out.flags = kept

    def _model_flag(self) -> Argument | None:
        """``--model X`` in place of the positional."""
        for flag in self._out.flags:
            if flag.name == "model" and isinstance(flag.value, str):
                return Argument(text=flag.value, line=flag.line)
        return None


def _is_option(argument: Argument) -> bool:
    text = argument.text
    return text.startswith("-") and len(text) > 1 and not _NEGATIVE_NUMBER.fullmatch(text)


def _is_secret(name: str, text: str) -> bool:
    return is_secret_name(name) or is_secret_value(text)


def _is_json(text: str) -> bool:
    try:
        json.loads(text)
    except (ValueError, RecursionError):
        return False
    return True


def _json_or_text(text: str) -> Any:
    return json.loads(text) if _is_json(text) else text


def _made(flag: ForeignFlag, value: str) -> ForeignFlag:
    return ForeignFlag(name=flag.name, written=flag.written, value=value, line=flag.line)


def _on(line: int) -> str:
    return f" on line {line}" if line else ""
