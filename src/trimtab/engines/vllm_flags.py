"""Pure. The command line of each vLLM release line: every argument of `vllm serve`, as its sources say.

The table is package data written by ``scripts/vllm_flags.py`` from the sources of the wheels (one per
minor version from 0.17 to 0.33); ``tests/contract/test_engine_flags.py`` compares it with what real
builds print. Names are vLLM's own Python argument names, which stack files and plans use too.
"""

from __future__ import annotations

import difflib
import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from importlib import resources
from typing import Any, Final, Literal, TypeAlias

from trimtab.engines.vllm_flag_notes import ENV_NOTES, FLAG_NOTES
from trimtab.errors import StackFileError

__all__ = [
    "FLAG_VERSIONS",
    "Flag",
    "FlagKind",
    "OptionMatch",
    "choose_flag_version",
    "explain_absence",
    "explain_env",
    "find_flag",
    "find_option",
    "flag_names",
    "has_env",
    "has_parser",
    "is_older_than_read",
    "knows_architecture",
    "nearest_flags",
    "nearest_parsers",
    "versions_with_flag",
]

FlagKind: TypeAlias = Literal[
    "switch",  # --x and --no-x
    "switch_on",  # --x only
    "switch_or_text",  # --x alone, or with a value
    "integer",
    "size",  # an integer that also takes 8k (8000) and 8K (8192)
    "number",
    "text",
    "list",  # several words
    "json",
    "json_or_text",
]
_VERSION: Final = re.compile(r"^v?(\d+)\.(\d+)(?:\.(\d+))?(?:[.+-]?[A-Za-z].*)?$")
# Shorter beginnings of an option are too likely a slip to be completed.
_MIN_PREFIX_CHARS: Final = 4


@dataclass(frozen=True, slots=True, kw_only=True)
class Flag:
    """One argument of one version.

    ``options`` are its spellings, the long one first; ``choices`` are the only legal words, empty when
    any will do; ``suggestions`` are the known words where others are legal too.
    """

    name: str
    options: tuple[str, ...]
    kind: FlagKind
    choices: tuple[str | int, ...] = ()
    suggestions: tuple[str | int, ...] = ()
    is_deprecated: bool = False

    @property
    def option(self) -> str:
        """The spelling to write, such as ``--tensor-parallel-size``."""
        return next(option for option in self.options if option.startswith("--"))

    @property
    def negative_option(self) -> str | None:
        """The spelling that turns a switch off, or None when there is none."""
        return f"--no-{self.option.removeprefix('--')}" if self.kind == "switch" else None

    @property
    def takes_value(self) -> bool:
        """Whether a word must follow."""
        return self.kind not in {"switch", "switch_on", "switch_or_text"}


@dataclass(frozen=True, slots=True, kw_only=True)
class OptionMatch:
    """What a word on a command line means.

    ``is_negated`` for ``--no-x``; ``key`` is the path after a dot (``mode`` in
    ``--compilation-config.mode``); ``is_abbreviated`` when argparse would complete it.
    """

    flag: Flag
    is_negated: bool = False
    key: str = ""
    is_abbreviated: bool = False


@lru_cache(maxsize=1)
def _table() -> Mapping[str, Any]:
    text = resources.files("trimtab.engines").joinpath("data", "vllm_flags.json").read_text(encoding="utf-8")
    table: Mapping[str, Any] = json.loads(text)
    return table


FLAG_VERSIONS: Final[tuple[str, ...]] = tuple(_table()["versions"])
"""The versions that were read, oldest first."""


def _number(version: str) -> tuple[int, int]:
    match = _VERSION.match(version.strip())
    if match is None:
        raise StackFileError(
            f"engine_version is {version!r}, which isn't a vLLM version", hint="write it like 0.25.1"
        )
    return int(match.group(1)), int(match.group(2))


_NUMBERS: Final = tuple(_number(version) for version in FLAG_VERSIONS)


def choose_flag_version(version: str) -> str:
    """The version whose table speaks for ``version``: the same minor, else the nearest older one.

    Patch releases change no arguments (0.17.0 and 0.17.1 were compared). Older than the oldest gets
    the oldest. StackFileError when it isn't a version.
    """
    number = _number(version)
    older = [read for read, known in zip(FLAG_VERSIONS, _NUMBERS, strict=True) if known <= number]
    return older[-1] if older else FLAG_VERSIONS[0]


@lru_cache(maxsize=64)
def _indices(spans: str) -> frozenset[int]:
    """Positions in FLAG_VERSIONS of "0.17.1-0.25.1,0.30.0"."""
    found: set[int] = set()
    for span in spans.split(","):
        first, _, last = span.partition("-")
        found |= set(range(FLAG_VERSIONS.index(first), FLAG_VERSIONS.index(last or first) + 1))
    return frozenset(found)


@lru_cache(maxsize=8)
def _flags_at(index: int) -> Mapping[str, Flag]:
    return {
        name: _flag_of(name, form)
        for name, forms in _table()["flags"].items()
        for form in forms
        if index in _indices(form["in"])
    }


def _flag_of(name: str, form: Mapping[str, Any]) -> Flag:
    return Flag(
        name=name,
        options=tuple(sorted(form["options"], key=lambda option: not option.startswith("--"))),
        kind=form["kind"],
        choices=tuple(form.get("choices", ())),
        suggestions=tuple(form.get("suggested", ())),
        is_deprecated=form.get("is_deprecated", False),
    )


def _flags_of(version: str) -> Mapping[str, Flag]:
    return _flags_at(FLAG_VERSIONS.index(choose_flag_version(version)))


def find_flag(version: str, name: str) -> Flag | None:
    """The argument of that Python name in that version, or None when it has none."""
    return _flags_of(version).get(name)


def flag_names(version: str) -> tuple[str, ...]:
    """Every argument name of that version, sorted."""
    return tuple(sorted(_flags_of(version)))


def nearest_flags(version: str, name: str, *, count: int = 1) -> tuple[str, ...]:
    """Names of that version that look most like ``name``, best first; empty when none does."""
    normal = name.strip().lstrip("-").lower().replace("-", "_")
    return tuple(difflib.get_close_matches(normal, flag_names(version), n=count, cutoff=0.6))


def versions_with_flag(name: str) -> tuple[str, ...]:
    """The read versions that have this argument, oldest first."""
    forms = _table()["flags"].get(name, ())
    indices = sorted({index for form in forms for index in _indices(form["in"])})
    return tuple(FLAG_VERSIONS[index] for index in indices)


def find_option(version: str, word: str) -> OptionMatch | None:
    """What ``--x``, ``-tp``, ``--no-x``, ``--x_y``, ``--config.key`` or a unique beginning of one means.

    ``word`` comes without ``=value``. None when that version's parser would not know it.
    """
    flags = _flags_of(version)
    head, _, key = word.partition(".")
    if head.startswith("--"):
        head = "--" + head[2:].replace("_", "-")
    names: dict[str, tuple[Flag, bool]] = {}
    for flag in flags.values():
        names |= dict.fromkeys(flag.options, (flag, False))
        if flag.kind == "switch":
            names |= {f"--no-{o[2:]}": (flag, True) for o in flag.options if o.startswith("--")}
    if head in names:
        flag, is_negated = names[head]
        return OptionMatch(flag=flag, is_negated=is_negated, key=key)
    found = {names[option] for option in names if option.startswith(head)}
    if len(head) < _MIN_PREFIX_CHARS or not head.startswith("--") or len(found) != 1:
        return None
    flag, is_negated = found.pop()
    return OptionMatch(flag=flag, is_negated=is_negated, key=key, is_abbreviated=True)


def explain_absence(version: str, name: str, *, written: str = "") -> str | None:
    """That this version has no argument ``name``, and which had it or will; None when it has it.

    ``written`` is how the text calls it. Of versions that were not read nothing is claimed: a newer one
    is spoken of as the newest that was, an older one not at all.
    """
    if find_flag(version, name) is not None:
        return None
    called, having = written or name, versions_with_flag(name)
    if is_older_than_read(version):
        return f"which flags vLLM {version} has is not known here ({FLAG_VERSIONS[0]} has no {called})"
    if _number(version) > _NUMBERS[-1]:
        version = f"{FLAG_VERSIONS[-1]}, the newest that is known here,"
    if not having:
        is_past = name in FLAG_NOTES
        return f"vLLM {version} has no {called} any more" if is_past else f"vLLM {version} has no {called}"
    at = FLAG_VERSIONS.index(choose_flag_version(version.partition(",")[0]))
    later = [other for other in having if FLAG_VERSIONS.index(other) > at]
    if later:
        return f"vLLM {version} has no {called} yet ({later[0]} has it)"
    return f"vLLM {version} has no {called} any more ({having[-1]} was the last that was read with it)"


def is_older_than_read(version: str) -> bool:
    """Whether the version is older than every one whose arguments were read."""
    return _number(version) < _NUMBERS[0]


def has_env(version: str, name: str) -> bool:
    """Whether that version reads the ``VLLM_…`` variable."""
    return _has("env", version, name)


def explain_env(version: str, name: str) -> str | None:
    """Why setting this ``VLLM_…`` variable does nothing in that version; None when it is read."""
    if not name.startswith("VLLM_") or has_env(version, name):
        return None
    spans = _table()["env"].get(name)
    note = ENV_NOTES.get(name, "")
    text = f"vLLM {version} does not read {name}"
    if spans is not None:
        text += f" ({spans.replace('-', ' to ')} did)"
    return f"{text}: {note}" if note else text


def has_parser(version: str, kind: Literal["reasoning", "tool"], name: str) -> bool:
    """Whether that version ships the reasoning or tool-call parser."""
    return _has(f"{kind}_parsers", version, name)


def nearest_parsers(version: str, kind: Literal["reasoning", "tool"], name: str) -> tuple[str, ...]:
    """Parsers of that version whose names look most like ``name``, best first; all where none does."""
    known = [parser for parser in _table()[f"{kind}_parsers"] if has_parser(version, kind, parser)]
    return tuple(difflib.get_close_matches(name.strip().lower(), known, n=1, cutoff=0.6) or sorted(known))


def knows_architecture(version: str, architecture: str) -> bool:
    """Whether that version has a model class for the architecture of a config.json."""
    return _has("architectures", version, architecture)


def _has(part: str, version: str, name: str) -> bool:
    spans = _table()[part].get(name)
    return spans is not None and FLAG_VERSIONS.index(choose_flag_version(version)) in _indices(spans)
