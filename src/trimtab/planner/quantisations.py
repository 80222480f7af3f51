"""Pure. Which repositories hold the same model in another quantisation, told from their names."""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Final

__all__ = ["enumerate_editions", "find_by_name"]

# Words that publishers append to a model's name for a quantisation; what is left names the model.
_QUANTISED: Final = re.compile(
    r"-(fp8|awq|gptq|nvfp4|mxfp4|int4|int8|4bit|8bit|w4a16|w8a8|bf16|dynamic|autoround)(?=-|$)", re.IGNORECASE
)


def enumerate_editions(checkpoint: str, known: Iterable[str]) -> tuple[str, ...]:
    """The repositories of ``known`` that hold the model of ``checkpoint`` otherwise quantised, sorted."""
    model = _model_of(checkpoint)
    own = checkpoint.rstrip("/").lower()
    return tuple(sorted(repo for repo in known if _model_of(repo) == model and repo.lower() != own))


def _model_of(checkpoint: str) -> str:
    """The last part of the name without the words of its quantisation, in lower case."""
    return _QUANTISED.sub("", checkpoint.rstrip("/").rpartition("/")[2]).lower()


def find_by_name(names: Iterable[str], known: Iterable[str]) -> str | None:
    """The repository of ``known`` that ends like one of ``names``; None unless there is exactly one."""
    repos = tuple(known)
    for name in names:
        last = name.rstrip("/").rpartition("/")[2].lower()
        found = [repo for repo in repos if repo.rpartition("/")[2].lower() == last]
        if len(found) == 1:
            return found[0]
    return None
