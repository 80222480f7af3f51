"""Pure. The served name of a model that was named on the command line only."""

from __future__ import annotations

import re

__all__ = ["served_name_of"]


def served_name_of(target: str) -> str:
    """A short name for the API from a path or a repo id: the file's stem, or the repo's last part.

    A config.json is named for its folder.
    Characters that a served name may not have become dashes; a name without any usable character
    becomes ``model``.
    """
    if target.endswith("/config.json"):
        target = target.removesuffix("/config.json")
    repo, _, file = target.partition(":")
    if "/" in target and not target.endswith("/") and not repo.endswith(".gguf") and not file:
        last = repo.rsplit("/", 1)[-1]
    else:
        last = (file or target).rstrip("/").rsplit("/", 1)[-1]
    stem = last.removesuffix(".gguf")
    return re.sub(r"[^A-Za-z0-9._\-]+", "-", stem).strip("-._")[:100] or "model"
