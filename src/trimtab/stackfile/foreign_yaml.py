"""I/O. YAML text as plain nodes with their lines; only the text itself is read.

It stands on the list of I/O modules because PyYAML could open files; ``yaml.compose`` with the safe
loader builds no objects, and scalars stay the text they were written as.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Final

import yaml

from trimtab.errors import StackFileError

__all__ = ["Node", "load_nodes"]

# Aliases may name the same node again and again; a compose file of real life has a few hundred.
_MAX_NODES: Final = 20_000
_MAX_DEPTH: Final = 60


@dataclass(frozen=True, slots=True, kw_only=True)
class Node:
    """One value: text (``text``), a list (``items``) or a mapping (``entries``, merge keys applied)."""

    line: int
    text: str | None = None
    items: tuple[Node, ...] | None = None
    entries: dict[str, Node] | None = None

    def get(self, *path: str) -> Node | None:
        """The value under a path of keys, None where it leads nowhere."""
        node: Node | None = self
        for key in path:
            node = (node.entries or {}).get(key) if node is not None else None
        return node

    @property
    def is_null(self) -> bool:
        """Whether nothing was written."""
        return self.text in {"", "null", "~"} and self.items is None and self.entries is None


def load_nodes(text: str) -> Node:
    """The document; StackFileError where it is not YAML, empty, or unfolds into too much."""
    try:
        root = yaml.compose(text, Loader=yaml.SafeLoader)
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        place = f" (line {mark.line + 1}, column {mark.column + 1})" if mark else ""
        raise StackFileError(f"this is not YAML: {error.problem or error.context}{place}") from None
    except (yaml.YAMLError, ValueError) as error:
        raise StackFileError(f"this is not YAML: {' '.join(str(error).split())[:120]}") from None
    if root is None:
        raise StackFileError("the document is empty")
    return _Converter().convert(root, 0)


class _Converter:
    """yaml's nodes → ours, within bounds."""

    def __init__(self) -> None:
        self._num_nodes = 0

    def convert(self, node: yaml.Node, depth: int) -> Node:
        """One node with all below it."""
        self._num_nodes += 1
        if self._num_nodes > _MAX_NODES or depth > _MAX_DEPTH:
            raise StackFileError("the document unfolds into too much to be a compose file")
        line = node.start_mark.line + 1
        if isinstance(node, yaml.ScalarNode):
            return Node(line=line, text=node.value)
        if isinstance(node, yaml.SequenceNode):
            return Node(line=line, items=tuple(self.convert(item, depth + 1) for item in node.value))
        merged: dict[str, Node] = {}
        own: dict[str, Node] = {}
        for key, value in node.value:
            # The key's line: a block begins on the line below, an alias somewhere else.
            converted = replace(self.convert(value, depth + 1), line=key.start_mark.line + 1)
            if not isinstance(key, yaml.ScalarNode):
                raise StackFileError(f"line {line}: a key is not plain text")
            if key.value == "<<":
                for source in reversed(converted.items or (converted,)):
                    merged |= source.entries or {}
            else:
                own[key.value] = converted
        return Node(line=line, entries=merged | own)
