"""I/O. Reads the header of one safetensors file: names, dtypes and shapes, without the weights.

Format: 8 bytes little-endian length, that many bytes of JSON, then the tensors' bytes; offsets are
counted from the end of the JSON (safetensors' format page).
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Final, TypeAlias

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
_TOO_LARGE: Final = 1 << 48
_MOST_SHOWN: Final = 60
# Bits of one element (the safetensors library's Dtype, 0.6).
_DTYPE_BITS: Final[dict[str, int]] = {
    "F4": 4,
    "F6_E2M3": 6,
    "F6_E3M2": 6,
    **dict.fromkeys(("BOOL", "U8", "I8", "F8_E4M3", "F8_E5M2", "F8_E8M0"), 8),
    **dict.fromkeys(("F8_E4M3FNUZ", "F8_E5M2FNUZ"), 8),
    **dict.fromkeys(("U16", "I16", "F16", "BF16"), 16),
    **dict.fromkeys(("U32", "I32", "F32"), 32),
    **dict.fromkeys(("U64", "I64", "F64", "C64"), 64),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class HeaderTensor:
    """One tensor's entry: safetensors dtype, shape, bytes, and where they begin after the header."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    nbytes: int
    begin: int = 0


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
    tensors = tuple(_decode_tensor(name, entry, where) for name, entry in _decode_table(raw, where).items())
    _check_offsets(tensors, where)
    return SafetensorsHeader(
        tensors=tensors, file_bytes=8 + length + sum(tensor.nbytes for tensor in tensors)
    )


def _decode_table(raw: bytes, where: str) -> dict[str, object]:
    try:
        table = json.loads(raw)
    except (ValueError, RecursionError) as error:
        raise StackFileError(f"{where} isn't a safetensors file: its header isn't JSON") from error
    if not isinstance(table, dict):
        raise StackFileError(f"{where} isn't a safetensors file: its header isn't a table of tensors")
    table.pop("__metadata__", None)
    return table


def _decode_tensor(name: str, entry: object, where: str) -> HeaderTensor:
    try:
        dtype, shape = entry["dtype"], tuple(entry["shape"])  # type: ignore[index]
        begin, end = entry["data_offsets"]  # type: ignore[index]
    except (KeyError, TypeError, ValueError) as error:
        raise _damaged(name, where, "has no dtype, shape and offsets") from error
    bits = _DTYPE_BITS.get(dtype) if isinstance(dtype, str) else None
    if bits is None:
        raise _damaged(name, where, f"has dtype {str(dtype)[:20]!r}, which safetensors doesn't know")
    if not all(type(number) is int and 0 <= number < _TOO_LARGE for number in (*shape, begin, end)):
        raise _damaged(name, where, "has a shape or offsets that aren't whole numbers from 0 on")
    nbytes, elements = end - begin, math.prod(shape)
    if elements * bits != nbytes * 8:
        raise _damaged(
            name,
            where,
            f"of {elements:,} x {dtype} takes {nbytes:,} bytes, expected {-(-elements * bits // 8):,}",
        )
    return HeaderTensor(name=name, dtype=dtype, shape=shape, nbytes=nbytes, begin=begin)


def _check_offsets(tensors: tuple[HeaderTensor, ...], where: str) -> None:
    """The tensors' bytes lie one after the other without gaps, as the safetensors library demands."""
    expected = 0
    for tensor in sorted(tensors, key=lambda tensor: (tensor.begin, tensor.nbytes)):
        if tensor.begin != expected:
            raise _damaged(tensor.name, where, f"begins at {tensor.begin:,}, expected {expected:,}")
        expected += tensor.nbytes


def _damaged(name: str, where: str, what: str) -> StackFileError:
    shown = repr(name if len(name) <= _MOST_SHOWN else name[: _MOST_SHOWN - 3] + "...")
    return StackFileError(f"{where}: tensor {shown} {what}", hint="download this file again")
