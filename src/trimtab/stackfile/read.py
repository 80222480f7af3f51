"""I/O. Reads a stack file: YAML in, Stack out, with one clear sentence for whatever is wrong."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

import yaml

from trimtab.core.stack import ModelRequest, Stack
from trimtab.errors import StackFileError
from trimtab.stackfile.decode import decode_stack
from trimtab.stackfile.names import served_name_of

__all__ = ["is_stack_path", "read_stack"]

# A stack file is written by hand. The bound keeps a mistaken path (a checkpoint, a log) from being parsed.
_MAX_FILE_BYTES: Final = 1024 * 1024
_MAX_NODES: Final = 20_000
_MAX_SHOWN_CHARS: Final = 40


def is_stack_path(text: str) -> bool:
    """Whether a command-line argument means a stack file, by its ending alone."""
    return text.endswith((".yaml", ".yml"))


def read_stack(path: Path) -> Stack:
    """The stack at ``path``; checkpoints given as relative paths are taken from the file's folder."""
    text = _read_text(path)
    try:
        document = _load(text)
    except yaml.YAMLError as error:
        raise StackFileError(f"{path} is not YAML: {_where(error)}") from None
    except RecursionError:
        raise StackFileError(f"{path} is nested too deeply to be a stack file") from None
    stack = decode_stack(document, source=str(path), default_name=served_name_of(path.stem))
    return replace(stack, models=tuple(_anchor(model, path.parent) for model in stack.models))


def _read_text(path: Path) -> str:
    try:
        if path.exists() and not path.is_file():
            kind = "a folder" if path.is_dir() else "a pipe, a socket or a device"
            raise StackFileError(f"{path} is {kind}, not a file")
        with path.open("rb") as file:
            data = file.read(_MAX_FILE_BYTES + 1)
    except FileNotFoundError:
        near = sorted(entry.name for entry in path.parent.glob("*.y*ml"))[:5] if path.parent.is_dir() else []
        hint = f"in {path.parent} there are: {', '.join(near)}" if near else ""
        raise StackFileError(f"{path} does not exist", hint=hint) from None
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or str(error)
        raise StackFileError(f"{path} cannot be read: {reason.lower()}") from None
    if len(data) > _MAX_FILE_BYTES:
        raise StackFileError(f"{path} is larger than {_MAX_FILE_BYTES:,} bytes, too large for a stack file")
    try:
        return data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise StackFileError(
            f"{path} is not UTF-8 text: byte {error.start} is {data[error.start]:#04x}"
        ) from None


class _Loader(yaml.SafeLoader):
    """Plain data only; refuses repeated keys, and aliases that would unfold into too much."""

    def __init__(self, stream: str) -> None:
        super().__init__(stream)
        self._num_nodes = 0

    def compose_node(self, parent: yaml.Node | None, index: Any) -> yaml.Node | None:
        event = self.peek_event()  # type: ignore[no-untyped-call]
        if isinstance(event, yaml.AliasEvent):
            raise _fault(f"aliases (*{event.anchor}) are not used in stack files", event)
        self._num_nodes += 1
        if self._num_nodes > _MAX_NODES:
            raise _fault(f"more than {_MAX_NODES:,} values", event)
        return super().compose_node(parent, index)

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:  # noqa: ARG002, FBT001, FBT002
        seen: dict[str, int] = {}
        for key_node, _ in node.value:
            if not isinstance(key_node, yaml.ScalarNode):
                raise _fault("a key must be plain text", key_node)
            line = key_node.start_mark.line + 1
            if key_node.value in seen:
                raise _fault(
                    f"{key_node.value!r} is there twice, on lines {seen[key_node.value]} and {line}", key_node
                )
            seen[key_node.value] = line
        # Keys are always text: YAML 1.1 would make `on:` a boolean and `1.5:` a number.
        return {key.value: self.construct_object(value, deep=True) for key, value in node.value}


def _construct_mapping(loader: _Loader, node: yaml.Node) -> dict[Any, Any]:
    if not isinstance(node, yaml.MappingNode):
        raise _fault("a !!map is keys and values", node)
    return loader.construct_mapping(node, deep=True)


def _construct_list(loader: _Loader, node: yaml.Node) -> list[Any]:
    if not isinstance(node, yaml.SequenceNode):
        raise _fault("a !!seq is a list", node)
    return loader.construct_sequence(node, deep=True)


def _refuse_tag(loader: _Loader, node: yaml.Node) -> Any:
    del loader
    raise _fault(f"the tag {node.tag.replace(_CORE, '!!')} is not used in stack files", node)


def _construct_scalar(loader: _Loader, node: yaml.ScalarNode) -> Any:
    """A scalar by its kind; what its text cannot be (``!!int x``, a 5,000-digit number) is a fault."""
    kind = node.tag.rsplit(":", 1)[-1]
    try:
        return getattr(yaml.SafeLoader, f"construct_yaml_{kind}")(loader, node)
    except (ValueError, KeyError, IndexError) as error:
        raise _fault(f"{node.value[:_MAX_SHOWN_CHARS]!r} is not a legal {kind}", node) from error


def _fault(text: str, place: Any) -> yaml.MarkedYAMLError:
    return yaml.constructor.ConstructorError(None, None, text, place.start_mark)


# The kinds of values that JSON has; any other tag (dates, binary, sets, Python objects) is refused by name.
_CORE: Final = "tag:yaml.org,2002:"
_Loader.yaml_constructors = {
    None: _refuse_tag,
    f"{_CORE}map": _construct_mapping,
    f"{_CORE}seq": _construct_list,
} | {f"{_CORE}{kind}": _construct_scalar for kind in ("null", "bool", "int", "float", "str")}
# Numbers as JSON writes them, with _ between digits and 0x allowed. YAML 1.1 alone would read dates, 1:30 as
# 90 and 010 as 8; these stay the text they are, and a key that wants a number then says so.
_NUMBERS: Final = {
    "int": r"[-+]?(?:0|[1-9][0-9_]*)|0x[0-9a-fA-F]+",
    "float": r"[-+]?(?:[0-9]+\.[0-9]*|\.[0-9]+)(?:[eE][-+]?[0-9]+)?|[-+]?[0-9]+[eE][-+]?[0-9]+"
    r"|[-+]?\.(?:inf|Inf|INF)|\.(?:nan|NaN|NAN)",
}
_Loader.yaml_implicit_resolvers = {
    first: [entry for entry in resolvers if entry[0].removeprefix(_CORE) not in {"timestamp", *_NUMBERS}]
    for first, resolvers in yaml.SafeLoader.yaml_implicit_resolvers.items()
}
for _kind, _pattern in _NUMBERS.items():
    _Loader.add_implicit_resolver(f"{_CORE}{_kind}", re.compile(f"^(?:{_pattern})$"), list("-+.0123456789"))


def _load(text: str) -> Any:
    loader = _Loader(text)
    try:
        return loader.get_single_data()
    finally:
        loader.dispose()


def _where(error: yaml.YAMLError) -> str:
    if isinstance(error, yaml.reader.ReaderError):
        return f"character {error.position} is {error.character:#04x}, which YAML does not allow"
    if isinstance(error, yaml.MarkedYAMLError):
        mark = error.problem_mark or error.context_mark
        place = f" (line {mark.line + 1}, column {mark.column + 1})" if mark else ""
        problem = "a second document begins" if _is_second_document(error) else error.problem or error.context
        return f"{problem}{place}"
    return " ".join(str(error).split())


def _is_second_document(error: yaml.MarkedYAMLError) -> bool:
    return isinstance(error, yaml.composer.ComposerError) and "another document" in (error.problem or "")


def _anchor(model: ModelRequest, folder: Path) -> ModelRequest:
    """A relative path of a .gguf, or one that begins with ./, ../ or ~, as one that holds from any folder."""
    is_file = model.checkpoint.endswith(".gguf") and ":" not in model.checkpoint
    if not is_file and not model.checkpoint.startswith(("./", "../", "~")):
        return model
    try:
        expanded = Path(model.checkpoint).expanduser()
    except RuntimeError:
        user = model.checkpoint.partition("/")[0]
        raise StackFileError(
            f"models.{model.name}.checkpoint: {user!r} is the home of nobody on this machine",
            hint="write the path from the root: /…, or ~/… for your own home",
        ) from None
    return replace(model, checkpoint=str(expanded if expanded.is_absolute() else folder / expanded))
