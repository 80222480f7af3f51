"""Pure. Words of a script → the arguments they stand for, as far as the file says; nothing is run.

A variable that the file does not set, a positional parameter, ``$(…)`` and the string operators of
``${…}`` stay in the text as written and are named as unknown.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Final

from trimtab.errors import StackFileError
from trimtab.stackfile.foreign_model import Argument
from trimtab.stackfile.foreign_tokens import Part, Word
from trimtab.stackfile.foreign_words import read_parts

__all__ = ["Scope", "expand_parameter", "expand_parts", "expand_word", "expand_words"]

_PARAMETER: Final = re.compile(
    r"(?P<name>[A-Za-z_]\w*|\d+|[@*#?$!\-])(?P<index>\[[^\]]*\])?(?:(?P<operator>:?[-=+?])(?P<rest>.*))?",
    re.DOTALL,
)
# A launch command of real life has a few kilobytes; a script that doubles a variable forty times does not.
_MAX_EXPANDED_CHARS: Final = 256 * 1024
_MAX_ARGUMENTS: Final = 1_000
# All of a script's expansions together.
_MAX_SPENT_CHARS: Final = 8 * 1024 * 1024
# ${A:-${B:-${C}}}
_MAX_NESTING: Final = 8


@dataclass(slots=True)
class Scope:
    """What a script has assigned so far.

    ``variables`` hold one argument each, ``arrays`` any number; ``exported`` are the names that
    programs get to see; ``positional`` are the arguments of the function being called; ``spent_chars``
    is what expansions have come to.
    """

    variables: dict[str, Argument] = field(default_factory=dict)
    arrays: dict[str, tuple[Argument, ...]] = field(default_factory=dict)
    exported: dict[str, int] = field(default_factory=dict)
    positional: tuple[Argument, ...] | None = None
    spent_chars: int = 0

    def spend(self, num_chars: int, line: int) -> None:
        """Counts an expansion; StackFileError when a script expands to absurdly much."""
        self.spent_chars += num_chars
        if self.spent_chars > _MAX_SPENT_CHARS:
            raise _too_long(line)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Value:
    """What a parameter stands for: one text, the items of a list, or the parts of a default.

    ``is_joined`` is a list that quotes make one text of (``"$*"``).
    """

    items: tuple[Argument, ...] = ()
    is_list: bool = False
    is_joined: bool = False
    parts: tuple[Part, ...] | None = None


def expand_words(words: Iterable[Word], scope: Scope) -> tuple[Argument, ...]:
    """All arguments that the words become; StackFileError when they become absurdly long."""
    found: list[Argument] = []
    for word in words:
        found.extend(expand_word(word, scope))
        if len(found) > _MAX_ARGUMENTS:
            raise StackFileError(f"line {word.line}: a command has more than {_MAX_ARGUMENTS:,} arguments")
    return tuple(found)


def expand_word(word: Word, scope: Scope) -> tuple[Argument, ...]:
    """Zero or more arguments: unquoted parameters fall apart at blanks, ``"${ARRAY[@]}"`` at its items."""
    fields = _Fields(word.line, scope)
    _fill(fields, word.parts, scope, 0)
    return fields.finish()


def _fill(fields: _Fields, parts: Iterable[Part], scope: Scope, nesting: int) -> None:
    """Adds parts to a word; below the first level (a default) unquoted text falls apart too."""
    for part in parts:
        if part.kind == "text":
            fields.add_text(part.text, is_split=nesting > 0 and not part.is_quoted)
            continue
        if part.kind == "unread":
            fields.add(part.text, unknowns=(_shortened(part.text),))
            continue
        value = _evaluate(part, scope, nesting)
        if value.parts is None:
            fields.add_value(value, is_quoted=part.is_quoted)
        elif part.is_quoted:
            inner = expand_parts(value.parts, scope, line=fields.line, nesting=nesting + 1)
            fields.add(inner.text, unknowns=inner.unknowns)
        else:
            _fill(fields, value.parts, scope, nesting + 1)


def expand_parts(parts: Iterable[Part], scope: Scope, *, line: int, nesting: int = 0) -> Argument:
    """One argument from parts that do not fall apart (an assignment, the inside of double quotes)."""
    texts: list[str] = []
    unknowns: list[str] = []
    size = 0
    for part in parts:
        if part.kind == "text":
            texts.append(part.text)
        elif part.kind == "unread":
            texts.append(part.text)
            unknowns.append(_shortened(part.text))
        else:
            value = _evaluate(part, scope, nesting)
            if value.parts is not None:
                inner = expand_parts(value.parts, scope, line=line, nesting=nesting + 1)
                value = _Value(items=(inner,))
            texts.append(" ".join(item.text for item in value.items))
            unknowns.extend(name for item in value.items for name in item.unknowns)
        size += len(texts[-1])
        scope.spend(len(texts[-1]), line)
        if size > _MAX_EXPANDED_CHARS:
            raise _too_long(line)
    return Argument(text="".join(texts), line=line, unknowns=tuple(dict.fromkeys(unknowns)))


def expand_parameter(inside: str, variables: Mapping[str, Argument]) -> Argument:
    """One ``${inside}`` against plain variables; unknown if they do not have it and it has no default."""
    part = Part(kind="parameter", text=inside, is_quoted=True)
    return expand_parts((part,), Scope(variables=dict(variables)), line=0)


class _Fields:
    """Arguments under construction."""

    def __init__(self, line: int, scope: Scope) -> None:
        self.line = line
        self._scope = scope
        self._size = 0
        self._done: list[Argument] = []
        self._texts: list[str] = []
        self._unknowns: list[str] = []

    def add(self, text: str, *, unknowns: tuple[str, ...] = ()) -> None:
        """More of the current argument."""
        self._texts.append(text)
        self._unknowns.extend(unknowns)
        self._size += len(text)
        self._scope.spend(len(text) + 1, self.line)
        if self._size > _MAX_EXPANDED_CHARS:
            raise _too_long(self.line)

    def close(self) -> None:
        """The current argument is complete, if there is one."""
        if self._texts:
            unknowns = tuple(dict.fromkeys(self._unknowns))
            self._done.append(Argument(text="".join(self._texts), line=self.line, unknowns=unknowns))
        self._texts, self._unknowns = [], []

    def add_text(self, text: str, *, is_split: bool) -> None:
        """Text as it stands, or falling apart at its blanks."""
        if is_split:
            self._add_split(text)
        else:
            self.add(text)

    def add_value(self, value: _Value, *, is_quoted: bool) -> None:
        """A parameter's value, by the rules of its quoting."""
        if is_quoted and (value.is_joined or not value.is_list):
            unknowns = tuple(name for item in value.items for name in item.unknowns)
            self.add(" ".join(item.text for item in value.items), unknowns=unknowns)
            return
        for place, item in enumerate(value.items):
            if place:
                self.close()
            if is_quoted or item.unknowns:
                self.add(item.text, unknowns=item.unknowns)
            else:
                self._add_split(item.text)

    def _add_split(self, text: str) -> None:
        pieces = text.split()
        if text and (not pieces or text[0].isspace()):
            self.close()
        for place, piece in enumerate(pieces):
            if place:
                self.close()
            self.add(piece)
        if pieces and text[-1].isspace():
            self.close()

    def finish(self) -> tuple[Argument, ...]:
        """Every argument."""
        self.close()
        return tuple(self._done)


def _evaluate(part: Part, scope: Scope, nesting: int) -> _Value:
    match = _PARAMETER.fullmatch(part.text)
    if match is None or nesting > _MAX_NESTING:
        return _unknown(part.text)
    name, index, operator, rest = match.group("name", "index", "operator", "rest")
    value = _look_up(name, index, scope)
    if operator is None or operator[-1] == "?":
        return value or _unknown(part.text)
    is_set = value is not None and bool(value.items)
    if is_set and value is not None and operator[0] == ":":
        is_set = any(item.text for item in value.items)
    if operator[-1] == "+":
        return _default(rest, part) if is_set else _Value()
    return value if is_set and value is not None else _default(rest, part)


def _look_up(name: str, index: str | None, scope: Scope) -> _Value | None:
    """The value of a name, None when the file does not set it."""
    if name in {"@", "*"}:
        items = scope.positional
        return None if items is None else _Value(items=items, is_list=True, is_joined=name == "*")
    if name.isdigit():
        return _positional(int(name), scope)
    if name in scope.arrays:
        items = scope.arrays[name]
        if index in {"[@]", "[*]"}:
            return _Value(items=items, is_list=True, is_joined=index == "[*]")
        at = index[1:-1] if index else "0"
        return _Value(items=items[int(at) : int(at) + 1]) if at.isdecimal() and len(at) < 6 else None
    if name in scope.variables and index in {None, "[0]", "[@]", "[*]"}:
        return _Value(items=(scope.variables[name],))
    return None


def _positional(number: int, scope: Scope) -> _Value | None:
    if scope.positional is None or number == 0:
        return None
    return _Value(items=scope.positional[number - 1 : number])


def _default(rest: str, part: Part) -> _Value:
    """What stands behind ``:-``: parts, whose own quotes count unless the whole is quoted."""
    return _Value(parts=read_parts(rest, is_quoted=part.is_quoted))


def _unknown(inside: str) -> _Value:
    name = re.match(r"[A-Za-z_]\w*", inside)
    label = name.group() if name else f"${_shortened(inside)}"
    return _Value(items=(Argument(text=f"${{{inside}}}", unknowns=(label,)),))


def _shortened(text: str) -> str:
    """A substitution's name for people: its beginning, on one line, without what it was given."""
    words = list(_first_words(text))
    return words[0] + ("…" + text[-1] if len(words) > 1 else "")


def _first_words(text: str) -> Iterator[str]:
    yield from text.split()[:2] or [""]


def _too_long(line: int) -> StackFileError:
    place = f"line {line}: " if line else ""
    return StackFileError(f"{place}the variables here expand to more text than any launch command has")
