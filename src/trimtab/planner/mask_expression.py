"""Pure. Regular expressions out of a checkpoint's config: compiled only where matching them stays quick.

A config is anybody's data, and Python's matcher goes back over every choice: ``(a+)+!`` takes for ever on
a name of forty letters. How many ways an expression has to read one name is counted from its parts, from
above; masks as quantisers write them have at most some ten thousand.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Final

from trimtab.errors import MissingFactError, StackFileError

__all__ = ["MOST_ENTRIES", "check_mask", "compile_expression", "match_wildcard"]

MOST_ENTRIES: Final = 4096
"""Expressions and short names in one mask; the longest published ones have some hundred rules."""

_MOST_CHARS: Final = 1000
# Steps that one name may take: a tenth of a second in Python's matcher, were it to go through all of them.
_MOST_WAYS: Final = 1_000_000
# Characters in the longest module names, rounded up.
_NAME_CHARS: Final = 64
# Layers and experts are counted in at most four digits.
_NUMBER_CHARS: Final = 4

_TOKEN: Final = re.compile(
    r"(?P<escape>\\.)"
    r"|(?P<set>\[\^?\]?(?:\\.|[^\]\\])*\])"
    r"|(?P<open>\((?:\?(?:P<\w+>|P=\w+|[:>=!]|<[=!]|[aiLmsu]*(?:-[ims]+)?:|[aiLmsu]+(?=\))))?)"
    r"|(?P<close>\))|(?P<or>\|)"
    r"|(?P<repeat>(?:[*+?]|\{\d*(?:,\d*)?\})[?+]?)"
    r"|(?P<plain>[^\\()|*+?\[])",
    re.DOTALL,
)
_NUMBERED: Final = re.compile(r"\.\d+\.")
_DIGITS: Final = frozenset({"\\d", "[0-9]"})
# What stands last in ``.*`` reads the rest of the name in one way.
_TAIL: Final = re.compile(r"(?<!\\)\.[*+]\??\$?\Z")
# Comments and the verbose form, in which blanks do not count: nobody writes a mask so.
_ODD: Final = re.compile(r"\(\?(?:#|[a-zA-Z-]*x)")


@dataclass(slots=True)
class _Group:
    """What is counted of an open group: parts of any length, and ways, of this branch and of those before."""

    repeats: int = 0
    ways: int = 1
    most_repeats: int = 0
    sum_ways: int = 0
    is_fixed: bool = True
    last: tuple[int, int, bool, str] = field(default=(0, 1, True, ""))

    def add(self, repeats: int, ways: int, *, is_fixed: bool, text: str) -> None:
        """One more part of the branch."""
        self.repeats += repeats
        self.ways *= ways
        self.is_fixed = self.is_fixed and is_fixed
        self.last = (repeats, ways, is_fixed, text)

    def end_branch(self) -> None:
        """``|`` or the group's end."""
        self.most_repeats = max(self.most_repeats, self.repeats)
        self.sum_ways += self.ways
        self.repeats, self.ways, self.last = 0, 1, (0, 1, True, "")


def _count_ways(expression: str) -> float:
    """How many ways there are at most to read a name; infinite where they double with its length."""
    groups, pos = [_Group()], 0
    while pos < len(expression):
        token = _TOKEN.match(expression, pos)
        if token is None:
            return math.inf
        pos = token.end()
        kind, text, group = token.lastgroup, token[0], groups[-1]
        if kind == "open":
            groups.append(_Group())
        elif kind == "or":
            group.end_branch()
            group.is_fixed = False
        elif kind == "close":
            if len(groups) == 1:
                return math.inf
            group.end_branch()
            groups.pop()
            groups[-1].add(group.most_repeats, group.sum_ways, is_fixed=group.is_fixed, text="(")
        elif kind == "repeat":
            if not _add_repeat(group, text):
                return math.inf
        else:
            group.add(0, 1, is_fixed=True, text=text)
    top = groups[0]
    top.end_branch()
    if len(groups) > 1 or top.most_repeats > _NAME_CHARS or top.sum_ways > _MOST_WAYS:
        return math.inf
    return math.comb(_NAME_CHARS + top.most_repeats, top.most_repeats) * top.sum_ways


def _add_repeat(group: _Group, text: str) -> bool:
    """Count the repetition of the part before; False where that part has choices of its own."""
    _, _, is_fixed, part = group.last
    bounds = text.rstrip("?+") or text[0]
    if bounds == "?" or text == "?":
        group.ways *= 2
    elif re.fullmatch(r"\{\d+\}", bounds):
        return is_fixed
    elif not is_fixed:
        return False
    elif part in _DIGITS:
        group.ways *= _NUMBER_CHARS
    else:
        group.repeats += 1
    group.is_fixed = False
    group.last = (0, 1, False, part)
    return True


def _ways_of(expression: str) -> float:
    return math.inf if _ODD.search(expression) else _count_ways(_TAIL.sub("", expression))


def check_mask(entries: Iterable[str], *, where: str) -> None:
    """StackFileError where a mask has an expression, or so many, that matching names could take minutes.

    ``entries`` are names, ``*`` patterns and ``re:`` expressions; full names of numbered layers are free.
    """
    costly = [
        entry for entry in entries if entry.startswith("re:") or "*" in entry or not _NUMBERED.search(entry)
    ]
    if len(costly) > MOST_ENTRIES:
        raise StackFileError(
            f"{where}: quantization_config has {len(costly):,} patterns, expected at most {MOST_ENTRIES:,}",
            hint="take the config.json of the original repository",
        )
    total = 0.0
    for entry in costly:
        if entry.startswith("re:"):
            compile_expression(entry[3:], where=where)
            total += _ways_of(entry[3:])
    if total > _MOST_WAYS:
        raise StackFileError(
            f"{where}: the expressions of quantization_config together could take minutes to match",
            hint="write them with fewer .* in each",
        )


@lru_cache(maxsize=4 * MOST_ENTRIES)
def compile_expression(expression: str, *, where: str = "config.json") -> re.Pattern[str]:
    """The expression, ready to match; MissingFactError where it is none.

    StackFileError where matching it could take minutes on one name.
    """
    shown = repr(expression if len(expression) <= 60 else expression[:57] + "...")
    named = f"{where}: quantization_config has the expression {shown}, which"
    try:
        compiled = re.compile(expression) if len(expression) <= _MOST_CHARS else None
    except (re.error, OverflowError, RecursionError) as error:
        raise MissingFactError(f"{named} isn't a regular expression ({error})") from error
    if compiled is None or _ways_of(expression) > _MOST_WAYS:
        raise StackFileError(
            f"{named} could take minutes to match (repetitions inside repetitions, or too many of them)",
            hint="write it with fewer repetitions, such as re:.*mlp.*",
        )
    return compiled


def match_wildcard(entry: str, name: str) -> bool:
    """``entry`` fits whole dotted parts of ``name``; each ``*`` stands for anything."""
    first, *middle, last = entry.split("*")
    start = 0 if name.startswith(first) else name.find(f".{first}") + 1
    if start == 0 and not name.startswith(first):
        return False
    pos = start + len(first)
    for piece in middle:
        found = name.find(piece, pos)
        if found < 0:
            return False
        pos = found + len(piece)
    return f"{last}." in f"{name}."[pos:]
