"""Pure. Which cards CUDA_VISIBLE_DEVICES leaves to a process, by CUDA's own rules.

The list ends at the first entry that names no card; -1 names none; a UUID may be shortened while
only one card begins so; a card named twice hides all (CUDA programming guide, environment variables;
torch/cuda/__init__.py reads it the same way). Numbers are taken in PCI order, which is CUDA's only
where the cards are alike or CUDA_DEVICE_ORDER=PCI_BUS_ID is set.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Final

__all__ = ["choose_visible"]

_NUMBER: Final = re.compile(r"\s*([+-]?\d+)")


def choose_visible(text: str | None, uuids: Sequence[str]) -> tuple[tuple[int, ...], str]:
    """Indices into ``uuids`` that stay visible, in the order named, and what is wrong with ``text``.

    None (unset) leaves all. The complaint is empty when every entry names a card.
    """
    if text is None:
        return tuple(range(len(uuids))), ""
    if not text.strip():
        return (), "CUDA_VISIBLE_DEVICES is empty, which hides every card"
    chosen: list[int] = []
    for entry in text.split(","):
        found = _find(entry.strip(), uuids)
        if found is None:
            return tuple(chosen), _complaint(text, entry.strip(), len(chosen), len(uuids))
        if found in chosen:
            return (), f"CUDA_VISIBLE_DEVICES={text} names card {found} twice, and CUDA then hides every card"
        chosen.append(found)
    return tuple(chosen), ""


def _find(entry: str, uuids: Sequence[str]) -> int | None:
    if entry.startswith("GPU-"):
        found = [index for index, uuid in enumerate(uuids) if uuid.startswith(entry)]
        return found[0] if len(found) == 1 else None
    number = _NUMBER.match(entry)
    if number is None or not 0 <= int(number[1]) < len(uuids):
        return None
    return int(number[1])


def _complaint(text: str, entry: str, kept: int, total: int) -> str:
    if entry.startswith("MIG-"):
        return f"CUDA_VISIBLE_DEVICES={text} names a MIG instance, which isn't planned"
    if entry == "-1" and kept == 0:
        return "CUDA_VISIBLE_DEVICES=-1 hides every card"
    after = f"CUDA ends its list there, with {kept}" if kept else "CUDA then hides every card"
    return f"CUDA_VISIBLE_DEVICES={text}: {entry!r} names none of the {total} cards, and {after}"
