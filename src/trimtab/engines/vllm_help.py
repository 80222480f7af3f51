"""Pure. What an installed vLLM says it understands: `vllm serve --help=all` as a set of options.

Asking takes 8 s (0.32.0 on two cores), so whoever runs it keeps the text by interpreter and version.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

__all__ = ["InstalledOptions", "decode_help", "find_unknown_options"]

# argparse prints an option's spellings at two blanks, its help further in or after two more.
_OPTION_LINE: Final = re.compile(r"^  (-[^\n]*)$", re.MULTILINE)
_SPELLING: Final = re.compile(r"^-{1,2}[A-Za-z][\w-]*")
# Fewer than any version has (305 in 0.17.1): a cut text or another program's.
_MIN_OPTIONS: Final = 100


@dataclass(frozen=True, slots=True, kw_only=True)
class InstalledOptions:
    """Every spelling that the installed `vllm serve` takes, negative forms of switches included."""

    spellings: frozenset[str]


def decode_help(text: str) -> InstalledOptions | None:
    """The options of a help text; None when it isn't a whole one, so that nothing is judged by it."""
    spellings = set()
    for line in _OPTION_LINE.findall(text):
        for part in re.split(r",\s+(?=-)", re.split(r"\s{2,}", line, maxsplit=1)[0]):
            match = _SPELLING.match(part)
            if match is not None:
                spellings.add(match.group())
    if len(spellings) < _MIN_OPTIONS or "--tensor-parallel-size" not in spellings:
        return None
    # The model is positional in `vllm serve`, yet --model is taken and isn't printed by every version.
    return InstalledOptions(spellings=frozenset(spellings | {"--model"}))


def find_unknown_options(argv: Sequence[str], installed: InstalledOptions) -> tuple[str, ...]:
    """The options of a command that the installed vLLM would refuse, in their order."""
    words = (word.partition("=")[0] for word in argv if word.startswith("-") and _SPELLING.match(word))
    return tuple(dict.fromkeys(word for word in words if word not in installed.spellings))
