"""Pure. The one JSON schema of a call of any of several tools, for llama.cpp.

References are read from a schema's top, where a tool's parameters are no longer: what they lead to becomes
a definition there, of a name that no other has and that needs no escapes, which llama.cpp does not read.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from graphlib import CycleError, TopologicalSorter
from typing import Any, Final

__all__ = ["build_call_schema"]

_PREFIX: Final = "#/$defs/"
_DEFINITIONS: Final = ("$defs", "definitions")
# Below these, keys are names that somebody chose.
_NAMED: Final = ("properties", "patternProperties", "dependentSchemas")
# What is below these is no schema.
_VALUES: Final = ("const", "enum", "default", "examples", "example", "required")
# ``true`` as llama.cpp reads it: it takes an empty schema for an object.
_ANYTHING: Final = {"title": "anything"}
# Own choice: places that lie inside each other are written once for each, so a small request could ask
# for a large schema.
_MAX_COPIED: Final = 100_000
_PERCENT: Final = re.compile(rb"%([0-9A-Fa-f]{2})")
_POSITION: Final = re.compile(r"0|[1-9][0-9]{0,8}")


class _LostError(Exception):
    """A reference that leads nowhere."""


def build_call_schema(functions: list[dict[str, Any]]) -> dict[str, Any] | None:
    """An object with ``name`` and ``arguments``; None where a reference leads nowhere, or back."""
    definitions: dict[str, Any] = {}
    calls = []
    num_left = _MAX_COPIED
    for place, function in enumerate(functions):
        move = _Move(_parameters_of(function), definitions, prefix=f"t{place}r", num_left=num_left)
        try:
            arguments = move.run()
        except _LostError:
            return None
        num_left = move.num_left
        named = {"name": {"const": function["name"]}, "arguments": arguments}
        calls.append({"type": "object", "properties": named, "required": ["name", "arguments"]})
    if not _have_ends(definitions):
        return None
    shared = {"$defs": definitions} if definitions else {}
    return shared | (calls[0] if len(calls) == 1 else {"anyOf": calls})


def _parameters_of(function: dict[str, Any]) -> dict[str, Any]:
    parameters = function.get("parameters")
    if parameters is None:
        # None are told of: there are none. Without "properties" llama.cpp lets any object pass.
        return {"type": "object", "properties": {}}
    return parameters or {"type": "object"}


def _have_ends(definitions: dict[str, Any]) -> bool:
    """Whether none is one of its own alternatives, of which no grammar can be made."""
    alternatives = {name: list(_list_alternatives(node)) for name, node in definitions.items()}
    try:
        TopologicalSorter(alternatives).prepare()
    except CycleError:
        return False
    return True


def _list_alternatives(node: Any) -> Iterator[str]:
    """The definitions that a value of ``node`` may itself be."""
    waiting = [node]
    while waiting:
        one = waiting.pop()
        if not isinstance(one, dict):
            continue
        if "$ref" in one:
            yield one["$ref"].removeprefix(_PREFIX)
        for word in ("anyOf", "oneOf"):
            waiting += one[word] if isinstance(one.get(word), list) else ()


class _Move:
    """One tool's parameters on their way to another place of a schema."""

    def __init__(
        self, parameters: dict[str, Any], definitions: dict[str, Any], *, prefix: str, num_left: int
    ) -> None:
        self._top = parameters
        self._definitions = definitions
        self._prefix = prefix
        self.num_left = num_left
        self._names: dict[int, str] = {}  # id of what a reference leads to: the top keeps it alive
        self._waiting: list[tuple[str, dict[str, Any]]] = []
        self._is_counted = False

    def run(self) -> Any:
        """The parameters as they are to be written; _LostError where they cannot be."""
        moved = self._copy(self._top, has_names=False)
        self._is_counted = True
        while self._waiting:
            name, target = self._waiting.pop()
            self._definitions[name] = self._copy(target, has_names=False)
        return moved

    # Few frames a level, so no comprehensions.
    def _copy(self, node: Any, *, has_names: bool) -> Any:
        if self._is_counted:
            self.num_left -= 1
            if self.num_left < 0:
                raise _LostError
        if isinstance(node, list):
            items = []
            for item in node:
                items.append(self._copy(item, has_names=False))  # noqa: PERF401
            return items
        return self._copy_object(node, has_names=has_names) if isinstance(node, dict) else node

    def _copy_object(self, node: dict[str, Any], *, has_names: bool) -> dict[str, Any]:
        if "$ref" in node:
            if has_names:
                raise _LostError  # an argument of this name, which llama.cpp takes for a reference
            return {"$ref": _PREFIX + self._place(node)}
        copied = {}
        for key, value in node.items():
            if value is True and (has_names or key == "items"):
                copied[key] = _ANYTHING
            elif has_names:
                copied[key] = self._copy(value, has_names=False)
            elif key in _VALUES:
                copied[key] = value
            elif key not in _DEFINITIONS:
                copied[key] = self._copy(value, has_names=key in _NAMED)
        return copied

    def _place(self, node: dict[str, Any]) -> str:
        """The name of the definition that a reference leads to."""
        target, seen = node, set()
        while "$ref" in target:
            if id(target) in seen:
                raise _LostError
            seen.add(id(target))
            target = _find(self._top, target["$ref"])
        if id(target) not in self._names:
            self._names[id(target)] = f"{self._prefix}{len(self._names)}"
            self._waiting.append((self._names[id(target)], target))
        return self._names[id(target)]


def _find(top: dict[str, Any], reference: Any) -> dict[str, Any]:
    """What a JSON pointer after ``#`` leads to; escaped as it should be, or as it is."""
    if isinstance(reference, str) and (reference == "#" or reference.startswith("#/")):
        for pointer in (_unquote(reference[1:]), reference[1:]):
            found = _follow(top, pointer)
            if isinstance(found, dict):
                return found
    raise _LostError


def _unquote(text: str) -> str:
    escaped = text.encode("utf-8", "surrogatepass")
    return _PERCENT.sub(lambda found: bytes([int(found[1], 16)]), escaped).decode("utf-8", "replace")


def _follow(top: dict[str, Any], pointer: str) -> Any:
    found: Any = top
    for token in pointer.split("/")[1:]:
        name = token.replace("~1", "/").replace("~0", "~")
        if isinstance(found, dict) and name in found:
            found = found[name]
        elif isinstance(found, list) and _POSITION.fullmatch(name) and int(name) < len(found):
            found = found[int(name)]
        else:
            return None
    return found
