"""I/O. Reads the header of one safetensors file: names, dtypes and shapes, without the weights.

Format: 8 bytes little-endian length, that many bytes of JSON, then the tensors' bytes; offsets are
counted from the end of the JSON (safetensors' format page).
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Final, TypeAlias

from trimtab.core.model_facts import DTYPE_BYTES
from trimtab.errors import StackFileError

__all__ = [
    "HeaderTensor",
    "RangeReader",
    "SafetensorsHeader",
    "decode_safetensors_header",
    "read_safetensors_header",
]

RangeReader: TypeAlias = Callable[[int, int], bytes]
"""(offset, length) → at most that many bytes; the seam for files and for HTTP range requests."""

_MAX_HEADER_BYTES: Final = 100_000_000
"""The limit of the safetensors library itself."""


@dataclass(frozen=True, slots=True, kw_only=True)
class HeaderTensor:
    """One tensor's entry: safetensors dtype, shape and bytes."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    nbytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class SafetensorsHeader:
    """A file's tensors; ``file_bytes`` is how long the file must be to hold them."""

    tensors: tuple[HeaderTensor, ...]
    file_bytes: int


def read_safetensors_header(path: Path) -> SafetensorsHeader:
    """The header of the file at ``path``.

    StackFileError when it isn't a safetensors file or is shorter than its header says.
    """
    try:
        with path.open("rb") as file:

            def read(offset: int, length: int) -> bytes:
                file.seek(offset)
                return file.read(length)

            header = decode_safetensors_header(read, where=path.name)
        actual = path.stat().st_size
    except OSError as error:
        raise StackFileError(f"{path} cannot be read: {error.strerror}") from error
    if actual < header.file_bytes:
        raise StackFileError(
            f"{path.name} is cut off: {actual:,} bytes, its header promises {header.file_bytes:,}",
            hint="download this file again",
        )
    return header


def decode_safetensors_header(read: RangeReader, *, where: str) -> SafetensorsHeader:
    """The header that ``read`` delivers; ``where`` names the file in messages."""
    prefix = read(0, 8)
    length = int.from_bytes(prefix, "little")
    if len(prefix) < 8 or not 2 <= length <= _MAX_HEADER_BYTES:
        raise StackFileError(f"{where} isn't a safetensors file", hint="download this file again")
    raw = read(8, length)
    if len(raw) < length:
        raise StackFileError(
            f"{where} is cut off inside its header: {len(raw) + 8:,} of {length + 8:,} bytes",
            hint="download this file again",
        )
    try:
        table = json.loads(raw)
    except ValueError as error:
        raise StackFileError(f"{where} isn't a safetensors file: its header isn't JSON") from error
    if not isinstance(table, dict):
        raise StackFileError(f"{where} isn't a safetensors file: its header isn't a table of tensors")
    table.pop("__metadata__", None)
    tensors = tuple(_decode_tensor(name, entry, where) for name, entry in table.items())
    return SafetensorsHeader(
        tensors=tensors, file_bytes=8 + length + sum(tensor.nbytes for tensor in tensors)
    )


def _decode_tensor(name: str, entry: object, where: str) -> HeaderTensor:
    try:
        dtype, shape = entry["dtype"], tuple(entry["shape"])  # type: ignore[index]
        begin, end = entry["data_offsets"]  # type: ignore[index]
        nbytes = int(end) - int(begin)
        elements = 1
        for extent in shape:
            elements *= int(extent)
    except (KeyError, TypeError, ValueError) as error:
        raise StackFileError(f"{where}: tensor {name!r} has no dtype, shape and offsets") from error
    size = DTYPE_BYTES.get(dtype)
    if size is not None and elements * size != nbytes:
        raise StackFileError(
            f"{where}: tensor {name!r} of {elements:,} x {dtype} takes {nbytes:,} bytes, "
            f"expected {elements * size:,}",
            hint="download this file again",
        )
    return HeaderTensor(name=name, dtype=dtype, shape=shape, nbytes=nbytes)
