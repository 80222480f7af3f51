"""I/O. Reads a stack file: YAML in, Stack out, with one clear sentence for whatever is wrong."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any, Final

import yaml

from trimtab.core.stack import ModelRequest, Stack
from trimtab.errors import StackFileError
from trimtab.stackfile.decode import decode_stack

__all__ = ["is_stack_path", "read_stack"]

# A stack file is written by hand. The bound keeps a mistaken path (a checkpoint, a log) from being parsed.
_MAX_FILE_BYTES: Final = 1024 * 1024
_MAX_NODES: Final = 20_000


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
    stack = decode_stack(document, source=str(path), default_name=path.stem)
    return replace(stack, models=tuple(_anchor(model, path.parent) for model in stack.models))


def _read_text(path: Path) -> str:
    try:
        with path.open("rb") as file:
            data = file.read(_MAX_FILE_BYTES + 1)
    except FileNotFoundError:
        near = sorted(entry.name for entry in path.parent.glob("*.y*ml"))[:5] if path.parent.is_dir() else []
        hint = f"in {path.parent} there are: {', '.join(near)}" if near else ""
        raise StackFileError(f"{path} does not exist", hint=hint) from None
    except OSError as error:
        raise StackFileError(f"{path} cannot be read: {(error.strerror or str(error)).lower()}") from None
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
        if self.check_event(yaml.AliasEvent):
            event = self.peek_event()  # type: ignore[no-untyped-call]
            raise yaml.composer.ComposerError(
                None, None, f"aliases (*{event.anchor}) are not used in stack files", event.start_mark
            )
        self._num_nodes += 1
        if self._num_nodes > _MAX_NODES:
            raise yaml.composer.ComposerError(None, None, f"more than {_MAX_NODES:,} values", None)
        return super().compose_node(parent, index)

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:  # noqa: ARG002, FBT001, FBT002
        seen: dict[str, int] = {}
        for key_node, _ in node.value:
            if not isinstance(key_node, yaml.ScalarNode):
                raise yaml.constructor.ConstructorError(
                    None, None, "a key must be plain text", key_node.start_mark
                )
            line = key_node.start_mark.line + 1
            if key_node.value in seen:
                text = f"{key_node.value!r} is there twice, on lines {seen[key_node.value]} and {line}"
                raise yaml.constructor.ConstructorError(None, None, text, key_node.start_mark)
            seen[key_node.value] = line
        # Keys are always text: YAML 1.1 would make `on:` a boolean and `1.5:` a number.
        return {key.value: self.construct_object(value, deep=True) for key, value in node.value}


def _construct_mapping(loader: _Loader, node: yaml.MappingNode) -> dict[Any, Any]:
    return loader.construct_mapping(node, deep=True)


_Loader.add_constructor("tag:yaml.org,2002:map", _construct_mapping)


def _load(text: str) -> Any:
    loader = _Loader(text)
    try:
        return loader.get_single_data()
    finally:
        loader.dispose()


def _where(error: yaml.YAMLError) -> str:
    if isinstance(error, yaml.MarkedYAMLError):
        mark = error.problem_mark or error.context_mark
        place = f" (line {mark.line + 1}, column {mark.column + 1})" if mark else ""
        return f"{error.problem or error.context}{place}"
    return " ".join(str(error).split())


def _anchor(model: ModelRequest, folder: Path) -> ModelRequest:
    """A relative .gguf path as one that holds from any folder."""
    if not model.checkpoint.endswith(".gguf") or ":" in model.checkpoint:
        return model
    expanded = Path(model.checkpoint).expanduser()
    return replace(model, checkpoint=str(expanded if expanded.is_absolute() else folder / expanded))
