"""I/O. Walks the bytes of one GGUF file: key-value pairs and tensor table, past the token arrays.

Format: GGUF versions 2 and 3, little-endian (ggml's docs/gguf.md): magic, version, number of tensors,
number of key-value pairs, the pairs, the tensor table, padding to ``general.alignment``, tensor data.
"""

from __future__ import annotations

import mmap
import struct
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final, NoReturn, TypeAlias

from trimtab.errors import StackFileError
from trimtab.units import format_bytes

__all__ = ["MAX_KEPT_ELEMENTS", "GgufTables", "Tensor", "Value", "read_gguf_tables"]

_MAGIC: Final = b"GGUF"
_STRING: Final = 8
_ARRAY: Final = 9
# Value type number → struct format of one element (strings and arrays apart).
_SCALARS: Final[dict[int, struct.Struct]] = {
    number: struct.Struct("<" + code) for number, code in enumerate("BbHhIif?") if number < 8
} | {10: struct.Struct("<Q"), 11: struct.Struct("<q"), 12: struct.Struct("<d")}
_U32: Final = struct.Struct("<I")
_U64: Final = struct.Struct("<Q")
_MAX_DIMENSIONS: Final = 4
# An array is kept only up to this many numbers (per-layer lists); longer ones are token tables.
MAX_KEPT_ELEMENTS: Final = 4096

# ggml tensor type → (elements per block, bytes per block, name); ggml.h and ggml-common.h of 2026.
_TENSOR_TYPES: Final[dict[int, tuple[int, int, str]]] = {
    0: (1, 4, "F32"),
    1: (1, 2, "F16"),
    2: (32, 18, "Q4_0"),
    3: (32, 20, "Q4_1"),
    6: (32, 22, "Q5_0"),
    7: (32, 24, "Q5_1"),
    8: (32, 34, "Q8_0"),
    9: (32, 36, "Q8_1"),
    10: (256, 84, "Q2_K"),
    11: (256, 110, "Q3_K"),
    12: (256, 144, "Q4_K"),
    13: (256, 176, "Q5_K"),
    14: (256, 210, "Q6_K"),
    15: (256, 292, "Q8_K"),
    16: (256, 66, "IQ2_XXS"),
    17: (256, 74, "IQ2_XS"),
    18: (256, 98, "IQ3_XXS"),
    19: (256, 50, "IQ1_S"),
    20: (32, 18, "IQ4_NL"),
    21: (256, 110, "IQ3_S"),
    22: (256, 82, "IQ2_S"),
    23: (256, 136, "IQ4_XS"),
    24: (1, 1, "I8"),
    25: (1, 2, "I16"),
    26: (1, 4, "I32"),
    27: (1, 8, "I64"),
    28: (1, 8, "F64"),
    29: (256, 56, "IQ1_M"),
    30: (1, 2, "BF16"),
    34: (256, 54, "TQ1_0"),
    35: (256, 66, "TQ2_0"),
    39: (32, 17, "MXFP4"),
    40: (64, 36, "NVFP4"),
    41: (128, 18, "Q1_0"),
}

Value: TypeAlias = str | int | float | bool | tuple[int | float | bool, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Tensor:
    """One entry of the tensor table: its type by ggml's name and its size."""

    name: str
    type_name: str
    size_bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class GgufTables:
    """The pairs kept, the length of every array, the tensors; ``end_bytes`` is where the data must end."""

    pairs: Mapping[str, Value]
    array_lengths: Mapping[str, int]
    tensors: tuple[Tensor, ...]
    end_bytes: int


def read_gguf_tables(path: Path) -> GgufTables:
    """The header of the regular, non-empty file at ``path``; StackFileError when not GGUF or cut off."""
    try:
        with path.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
            return _Reader(path=path, data=data).read_header()
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) else error
        raise StackFileError(f"{path} cannot be read: {reason}") from error


class _Reader:
    """A cursor over the mapped file; every step checks that the bytes are there."""

    def __init__(self, *, path: Path, data: mmap.mmap) -> None:
        self._path = path
        self._data = data
        self._size = len(data)
        self._at = 0

    def read_header(self) -> GgufTables:
        if self._data[:4] != _MAGIC:
            raise StackFileError(
                f"{self._path} is not a GGUF file: it starts with {self._data[:4]!r} instead of {_MAGIC!r}",
                hint="name a .gguf file; safetensors and older GGML files cannot be read by llama.cpp",
            )
        self._at = 4
        version = self._u32()
        if version not in (2, 3):
            swapped = int.from_bytes(version.to_bytes(4, "little"), "big")
            what = "is big-endian" if swapped in (2, 3) else f"has GGUF version {version}"
            raise StackFileError(f"{self._path} {what}; versions 2 and 3, little-endian, can be read")
        num_tensors, num_pairs = self._u64(), self._u64()
        # A tensor entry takes at least 24 bytes and a pair 13: larger counts cannot be true.
        if num_tensors * 24 + num_pairs * 13 > self._size:
            self._fail(
                f"says it has {num_tensors:,} tensors and {num_pairs:,} keys, more than its size allows"
            )
        pairs: dict[str, Value] = {}
        lengths: dict[str, int] = {}
        for _ in range(num_pairs):
            self._read_pair(pairs, lengths)
        alignment = pairs.get("general.alignment", 32)
        if not isinstance(alignment, int) or alignment <= 0 or alignment % 8:
            self._fail(f"has general.alignment {alignment!r}; a positive multiple of 8 is legal")
        return self._read_tensor_table(num_tensors, pairs, lengths, alignment=int(alignment))

    def _read_pair(self, pairs: dict[str, Value], lengths: dict[str, int]) -> None:
        key = self._string()
        kind = self._u32()
        if kind == _STRING:
            pairs[key] = self._string()
        elif kind == _ARRAY:
            lengths[key], kept = self._array()
            if kept is not None:
                pairs[key] = kept
        elif kind in _SCALARS:
            pairs[key] = self._unpack(_SCALARS[kind])
        else:
            self._fail(f"has a value of unknown type {kind} at key {key[:200]!r}")

    def _array(self) -> tuple[int, tuple[int | float | bool, ...] | None]:
        """Walk past an array; gives its length, and its elements when they are a short list of numbers."""
        kind, length = self._u32(), self._u64()
        if kind == _STRING:
            self._skip_strings(length)
            return length, None
        if kind not in _SCALARS:
            self._fail(f"has an array of unknown type {kind}")
        element = _SCALARS[kind]
        start = self._at
        self._advance(length * element.size)
        if length > MAX_KEPT_ELEMENTS:
            return length, None
        return length, tuple(value for (value,) in element.iter_unpack(self._data[start : self._at]))

    def _skip_strings(self, length: int) -> None:
        # The hot loop of the whole module: some 100,000 strings in a usual file.
        if length * 8 > self._size - self._at:
            self._fail(f"is cut off: it ends inside an array of {length:,} strings")
        unpack, data, at = _U64.unpack_from, self._data, self._at
        try:
            for _ in range(length):
                at += 8 + unpack(data, at)[0]
        except (struct.error, OverflowError):  # the length leads past the end, or past any file
            at = self._size + 1
        self._at = at
        self._advance(0)

    def _read_tensor_table(
        self, num_tensors: int, pairs: dict[str, Value], lengths: dict[str, int], *, alignment: int
    ) -> GgufTables:
        tensors: list[Tensor] = []
        end_of_data = 0
        for _ in range(num_tensors):
            name = self._string()
            num_dimensions = self._u32()
            if num_dimensions > _MAX_DIMENSIONS:
                self._fail(f"gives tensor {name[:200]!r} {num_dimensions} dimensions; at most 4 are legal")
            elements = 1
            for _ in range(num_dimensions):
                elements *= self._u64()
            kind, offset = self._u32(), self._u64()
            if kind not in _TENSOR_TYPES:
                self._fail(
                    f"stores tensor {name[:200]!r} as unknown type {kind}; a newer trimtab may know it"
                )
            block_elements, block_bytes, type_name = _TENSOR_TYPES[kind]
            size = elements // block_elements * block_bytes
            tensors.append(Tensor(name=name, type_name=type_name, size_bytes=size))
            end_of_data = max(end_of_data, offset + size)
        data_start = -(-self._at // alignment) * alignment
        return GgufTables(
            pairs=pairs,
            array_lengths=lengths,
            tensors=tuple(tensors),
            end_bytes=data_start + end_of_data,
        )

    def _u32(self) -> int:
        return int(self._unpack(_U32))

    def _u64(self) -> int:
        return int(self._unpack(_U64))

    def _unpack(self, form: struct.Struct) -> int | float | bool:
        start = self._at
        self._advance(form.size)
        value: int | float | bool = form.unpack_from(self._data, start)[0]
        return value

    def _string(self) -> str:
        length = self._u64()
        start = self._at
        self._advance(length)
        return self._data[start : self._at].decode("utf-8", "replace")

    def _advance(self, num_bytes: int) -> None:
        self._at += num_bytes
        if self._at > self._size:
            self._fail(f"is cut off: its header goes on past its {format_bytes(self._size)}")

    def _fail(self, what: str) -> NoReturn:
        raise StackFileError(f"{self._path} {what}", hint="download it again, or take it from another source")
