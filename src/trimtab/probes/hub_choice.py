"""Pure. Which files of a hub repository are the checkpoint that was asked for."""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Final

from trimtab.errors import StackFileError

__all__ = ["choose_files"]

# gguf-split's names; parts count from 1.
_PART: Final = re.compile(r"-(\d{5})-of-(\d{5})\.gguf$", re.IGNORECASE)
# What is preferred where a repo holds several quants and none was named.
_USUAL_QUANT: Final = "Q4_K_M"
# GGUF files that hold no language model: image encoders and quantisation statistics.
_NO_MODEL: Final = ("mmproj", "imatrix")
_MAX_LISTED: Final = 8


def choose_files(repo: str, wanted: str, files: Iterable[str]) -> tuple[str, ...]:
    """The files of one checkpoint, in order: one, or all parts of a split one.

    ``wanted`` is a file's name, with or without its folder, or a quant (``Q8_0``); empty takes the
    only checkpoint, or the usual quant. StackFileError lists what there is.
    """
    checkpoints = _group(files)
    if not checkpoints:
        raise StackFileError(
            f"{repo} holds no .gguf model",
            hint="this version runs GGUF models; look for the same model with -GGUF behind its name",
        )
    found = [parts for parts in checkpoints if any(wanted in (name, _base(name)) for name in parts)]
    if not found:
        found = [parts for parts in checkpoints if _has_quant(_base(parts[0]), wanted or _USUAL_QUANT)]
    if not found and not wanted and len(checkpoints) == 1:
        found = checkpoints
    if len(found) != 1:
        raise _cannot_choose(repo, wanted, found or checkpoints, is_ambiguous=bool(found))
    _check_parts(repo, found[0])
    return found[0]


def _group(files: Iterable[str]) -> list[tuple[str, ...]]:
    """Checkpoints in order of their names; the parts of a split one stand together."""
    groups: dict[str, list[str]] = {}
    for name in sorted(files):
        if name.lower().endswith(".gguf") and not any(word in name.lower() for word in _NO_MODEL):
            groups.setdefault(_PART.sub(r"-of-\2", name), []).append(name)
    return [tuple(names) for names in groups.values()]


def _base(name: str) -> str:
    return name.rsplit("/", 1)[-1]


def _has_quant(name: str, quant: str) -> bool:
    """Whether the quant stands in the name as a whole word: F16 is not BF16, Q4_K is not Q4_K_M."""
    pattern = rf"(?<![A-Za-z0-9]){re.escape(quant)}(?![A-Za-z0-9_])"
    return re.search(pattern, name, re.IGNORECASE) is not None


def _cannot_choose(
    repo: str, wanted: str, checkpoints: list[tuple[str, ...]], *, is_ambiguous: bool
) -> StackFileError:
    if is_ambiguous:
        problem = f"{len(checkpoints)} checkpoints called {wanted or _USUAL_QUANT!r}"
    elif wanted:
        problem = f"no checkpoint {wanted!r}"
    else:
        problem = f"{len(checkpoints)} checkpoints and none called {_USUAL_QUANT}"
    names = [parts[0] for parts in checkpoints]
    listed = ", ".join(names[:_MAX_LISTED]) + (", ..." if len(names) > _MAX_LISTED else "")
    return StackFileError(f"{repo} has {problem}", hint=f"name one as {repo}:FILE; there are {listed}")


def _check_parts(repo: str, parts: tuple[str, ...]) -> None:
    match = _PART.search(parts[0])
    if match is None:
        return
    there = {int(found.group(1)) for name in parts if (found := _PART.search(name))}
    # As many as are there plus one are looked at: a name may claim any number.
    missing = next((number for number in range(1, int(match.group(2)) + 1) if number not in there), None)
    if missing is not None:
        of_all = f"{len(parts)} of the {int(match.group(2))} parts of {parts[0]}"
        raise StackFileError(
            f"{repo} has only {of_all}; part {missing} is missing",
            hint="name another file of it, or another repo",
        )
