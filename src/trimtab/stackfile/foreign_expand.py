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
    """What a parameter stands for: one text, or the items of an array."""

    items: tuple[Argument, ...]
    is_list: bool = False


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
    for part in word.parts:
        if part.kind == "text":
            fields.add(part.text)
        elif part.kind == "unread":
            fields.add(part.text, unknowns=(_shortened(part.text),))
        else:
            fields.add_value(_evaluate(part.text, scope, 0), is_quoted=part.is_quoted)
    return fields.finish()


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
            value = _evaluate(part.text, scope, nesting)
            texts.append(" ".join(item.text for item in value.items))
            unknowns.extend(name for item in value.items for name in item.unknowns)
        size += len(texts[-1])
        scope.spend(len(texts[-1]), line)
        if size > _MAX_EXPANDED_CHARS:
            raise _too_long(line)
    return Argument(text="".join(texts), line=line, unknowns=tuple(dict.fromkeys(unknowns)))


def expand_parameter(inside: str, variables: Mapping[str, Argument]) -> Argument:
    """One ``${inside}`` against plain variables; unknown if they do not have it and it has no default."""
    value = _evaluate(inside, Scope(variables=dict(variables)), 0)
    return value.items[0] if value.items else Argument(text="")


class _Fields:
    """Arguments under construction."""

    def __init__(self, line: int, scope: Scope) -> None:
        self._line = line
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
        self._scope.spend(len(text) + 1, self._line)
        if self._size > _MAX_EXPANDED_CHARS:
            raise _too_long(self._line)

    def close(self) -> None:
        """The current argument is complete, if there is one."""
        if self._texts:
            unknowns = tuple(dict.fromkeys(self._unknowns))
            self._done.append(Argument(text="".join(self._texts), line=self._line, unknowns=unknowns))
        self._texts, self._unknowns = [], []

    def add_value(self, value: _Value, *, is_quoted: bool) -> None:
        """A parameter's value, by the rules of its quoting."""
        for place, item in enumerate(value.items):
            if place:
                self.close()
            if is_quoted or item.unknowns:
                self.add(item.text, unknowns=item.unknowns)
            else:
                self._add_split(item.text)
        if is_quoted and not value.is_list and not value.items:
            self.add("")

    def _add_split(self, text: str) -> None:
        pieces = text.split()
        if not pieces:
            return
        if text[0].isspace():
            self.close()
        for place, piece in enumerate(pieces):
            if place:
                self.close()
            self.add(piece)
        if text[-1].isspace():
            self.close()

    def finish(self) -> tuple[Argument, ...]:
        """Every argument."""
        self.close()
        return tuple(self._done)


def _evaluate(inside: str, scope: Scope, nesting: int) -> _Value:
    match = _PARAMETER.fullmatch(inside)
    if match is None or nesting > _MAX_NESTING:
        return _unknown(inside)
    name, index, operator, rest = match.group("name", "index", "operator", "rest")
    value = _look_up(name, index, scope)
    if operator is None or operator[-1] == "?":
        return value or _unknown(inside)
    is_set = value is not None and (operator[0] != ":" or any(item.text for item in value.items))
    if operator[-1] == "+":
        return _default(rest, scope, nesting) if is_set else _Value(items=())
    if is_set and value is not None:
        return value
    return _default(rest, scope, nesting)


def _look_up(name: str, index: str | None, scope: Scope) -> _Value | None:
    """The value of a name, None when the file does not set it."""
    if name in {"@", "*"}:
        return None if scope.positional is None else _Value(items=scope.positional, is_list=True)
    if name.isdigit():
        return _positional(int(name), scope)
    if name in scope.arrays:
        items = scope.arrays[name]
        if index in {"[@]", "[*]"}:
            return _Value(items=items, is_list=True)
        at = index[1:-1] if index else "0"
        return _Value(items=items[int(at) : int(at) + 1]) if at.isdecimal() and len(at) < 6 else None
    if name in scope.variables and index in {None, "[0]", "[@]", "[*]"}:
        return _Value(items=(scope.variables[name],))
    return None


def _positional(number: int, scope: Scope) -> _Value | None:
    if scope.positional is None or number == 0:
        return None
    return _Value(items=scope.positional[number - 1 : number])


def _default(rest: str, scope: Scope, nesting: int) -> _Value:
    text = rest[1:-1] if len(rest) > 1 and rest[0] == rest[-1] and rest[0] in "'\"" else rest
    return _Value(items=(expand_parts(read_parts(text), scope, line=0, nesting=nesting + 1),))


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
