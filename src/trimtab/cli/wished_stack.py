"""I/O. From the words of a command line to the stack they mean; flags lie on top of what a file says."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path
from typing import Final

from trimtab.cli.options import Wish
from trimtab.core.stack import GatewaySettings, ModelRequest, Stack
from trimtab.engines import embedded_model
from trimtab.errors import StackFileError
from trimtab.probes.path_kind import cut, path_exists
from trimtab.stackfile.decode import check_model_name
from trimtab.stackfile.names import served_name_of
from trimtab.stackfile.read import is_stack_path, read_stack
from trimtab.units import parse_bytes

__all__ = ["gateway_of", "read_wished_stack", "with_overrides"]

# A bare model name is looked up in these, in this order, in the current folder.
_DEFAULT_STACKS: Final = ("stack.yaml", "trimtab.yaml")


def read_wished_stack(wish: Wish) -> Stack:
    """The stack that the target names, with what the command line sets.

    A target is a file, a model of ./stack.yaml, one model, or None for the embedded default.
    """
    return with_overrides(_read_target(wish), wish)


def _read_target(wish: Wish) -> Stack:
    target = wish.target
    if target is not None:
        _check_text(target)
    if target is None or target == embedded_model.SERVED_NAME:
        request = ModelRequest(name=embedded_model.SERVED_NAME, checkpoint=embedded_model.SERVED_NAME)
        return Stack(name="default", models=(request,))
    if is_stack_path(target):
        return read_stack(Path(target))
    if "/" not in target and not target.endswith(".gguf") and not path_exists(target):
        return _find_in_default_stack(target)
    if target.endswith((".safetensors", ".bin")):
        raise StackFileError(
            f"{target!r} is one file of a checkpoint", hint="name the folder it lies in, with its config.json"
        )
    name = served_name_of(target)
    check_model_name(name, where="MODEL")
    return Stack(name=name, models=(ModelRequest(name=name, checkpoint=target),))


def _check_text(target: str) -> None:
    """StackFileError for a path with bytes that are no text: engines and saved plans take UTF-8 only."""
    path = Path(target)
    words = (target, str(path.absolute())) if path_exists(path) else (target,)
    for word in words:
        try:
            word.encode()
        except UnicodeEncodeError:
            shown = os.fsencode(word).decode(errors="backslashreplace")
            raise StackFileError(
                f"{shown} holds bytes that are no UTF-8 text, and engines cannot open such a path",
                hint="rename it, or give it a symbolic link with a plain name",
            ) from None


def _find_in_default_stack(name: str) -> Stack:
    for file in _DEFAULT_STACKS:
        if not Path(file).is_file():
            continue
        stack = read_stack(Path(file))
        chosen = tuple(model for model in stack.models if model.name == name)
        if chosen:
            return replace(stack, models=chosen)
        known = ", ".join(model.name for model in stack.models)
        raise StackFileError(f"{file} has no model {cut(name)!r}", hint=f"its models: {known}")
    raise StackFileError(
        f"{cut(name)!r} is neither a file, nor a repo id (org/name), "
        "nor a model of ./stack.yaml (there is none)",
        hint=embedded_model.guess_meant(name)
        or f"for example: trimtab up ./model.gguf, or trimtab up for {embedded_model.SERVED_NAME}",
    )


def with_overrides(stack: Stack, wish: Wish) -> Stack:
    """The stack with what the command line sets; per-model flags need a stack of one model."""
    one_model = {
        "--context": wish.context,
        "--concurrency": wish.concurrency,
        "--replicas": wish.replicas,
        "--set": wish.pins or None,
    }
    given = [flag for flag, value in one_model.items() if value is not None]
    if given and len(stack.models) > 1:
        names = ", ".join(model.name for model in stack.models)
        raise StackFileError(
            f"{', '.join(given)} {'means' if len(given) == 1 else 'mean'} one model, and"
            f" {stack.source or 'the stack'} has {len(stack.models)}",
            hint=f"set them in the file, under models.<name>; its models: {names}",
        )
    return replace(
        stack,
        models=tuple(_with_model_flags(model, wish) for model in stack.models),
        ram_bytes=stack.ram_bytes if wish.ram is None else _ram_bytes(wish.ram),
        gpus=stack.gpus if wish.gpus is None else wish.gpus,
        gateway=gateway_of(stack.gateway, wish),
    )


def _ram_bytes(text: str) -> int:
    if text.strip().isdigit():
        raise StackFileError(
            f"--ram {text}: a size needs a unit, {text} bytes would hold nothing",
            hint=f"write --ram {text}GiB",
        )
    try:
        return parse_bytes(text)
    except ValueError as error:
        raise StackFileError(f"--ram: {error}") from None


def _with_model_flags(model: ModelRequest, wish: Wish) -> ModelRequest:
    return replace(
        model,
        context=model.context if wish.context is None else wish.context,
        concurrency=model.concurrency if wish.concurrency is None else wish.concurrency,
        replicas=model.replicas if wish.replicas is None else wish.replicas,
        engine=model.engine if wish.engine is None else wish.engine,
        engine_version=model.engine_version if wish.engine_version is None else wish.engine_version,
        engine_args=tuple((dict(model.engine_args) | dict(wish.pins)).items()),
    )


def gateway_of(settings: GatewaySettings, wish: Wish) -> GatewaySettings:
    """The endpoint's address with what the command line sets."""
    return replace(
        settings,
        host=settings.host if wish.host is None else wish.host,
        port=settings.port if wish.port is None else wish.port,
    )
