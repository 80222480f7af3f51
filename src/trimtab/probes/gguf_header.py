"""I/O. Reads the header of a GGUF file: only what a plan needs, walking past the token arrays.

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

from trimtab.core.checkpoint import GgufCheckpoint
from trimtab.errors import MissingFactError, StackFileError
from trimtab.units import format_bytes

__all__ = ["read_gguf_header"]

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
_MAX_KEPT_ELEMENTS: Final = 4096

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

_Value: TypeAlias = str | int | float | bool | tuple[int | float | bool, ...]


def read_gguf_header(path: Path) -> GgufCheckpoint:
    """The facts of the GGUF file at ``path``.

    Raises StackFileError when it is not a whole GGUF file (missing, a folder, another format, cut
    off) and MissingFactError when it is one but lacks a key that a plan needs.
    """
    file_bytes = _check_file(path)
    try:
        with path.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
            header = _Reader(path=path, data=data).read_header()
    except OSError as error:
        raise StackFileError(f"{path} cannot be read: {error.strerror}") from error
    _check_complete(path, header, file_bytes)
    return _to_checkpoint(path, header, file_bytes)


def _check_file(path: Path) -> int:
    """The file's size; StackFileError says what is wrong with a path that cannot be a checkpoint."""
    try:
        if path.is_dir():
            raise StackFileError(f"{path} is a folder, not a .gguf file", hint=_hint_nearby(path))
        size = path.stat().st_size
        with path.open("rb"):
            pass
    except FileNotFoundError:
        raise StackFileError(f"{path} does not exist", hint=_hint_nearby(path.parent)) from None
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) else error
        raise StackFileError(f"{path} cannot be read: {reason}") from error
    if size == 0:
        raise StackFileError(f"{path} is empty", hint="download it again")
    return size


def _hint_nearby(folder: Path) -> str:
    try:
        names = sorted(entry.name for entry in folder.glob("*.gguf"))[:5]
    except OSError:
        return ""
    return f"in {folder} there are: {', '.join(names)}" if names else ""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Header:
    """The pairs kept, and the tensor table summed up; ``end_bytes`` is where the data must end."""

    pairs: Mapping[str, _Value]
    array_lengths: Mapping[str, int]
    num_tensors: int
    weights_bytes: int
    end_bytes: int


class _Reader:
    """A cursor over the mapped file; every step checks that the bytes are there."""

    def __init__(self, *, path: Path, data: mmap.mmap) -> None:
        self._path = path
        self._data = data
        self._size = len(data)
        self._at = 0

    def read_header(self) -> _Header:
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
        pairs: dict[str, _Value] = {}
        lengths: dict[str, int] = {}
        for _ in range(num_pairs):
            self._read_pair(pairs, lengths)
        alignment = pairs.get("general.alignment", 32)
        if not isinstance(alignment, int) or alignment <= 0 or alignment % 8:
            self._fail(f"has general.alignment {alignment!r}; a positive multiple of 8 is legal")
        return self._read_tensor_table(num_tensors, pairs, lengths, alignment=int(alignment))

    def _read_pair(self, pairs: dict[str, _Value], lengths: dict[str, int]) -> None:
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
            self._fail(f"has a value of unknown type {kind} at key {key!r}")

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
        if length > _MAX_KEPT_ELEMENTS:
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
        except struct.error:
            at = self._size + 1
        self._at = at
        self._advance(0)

    def _read_tensor_table(
        self, num_tensors: int, pairs: dict[str, _Value], lengths: dict[str, int], *, alignment: int
    ) -> _Header:
        weights_bytes = end_of_data = 0
        for _ in range(num_tensors):
            name = self._string()
            num_dimensions = self._u32()
            if num_dimensions > _MAX_DIMENSIONS:
                self._fail(f"gives tensor {name!r} {num_dimensions} dimensions; at most 4 are legal")
            elements = 1
            for _ in range(num_dimensions):
                elements *= self._u64()
            kind, offset = self._u32(), self._u64()
            if kind not in _TENSOR_TYPES:
                self._fail(f"stores tensor {name!r} as unknown type {kind}; a newer trimtab may know it")
            block_elements, block_bytes, _type_name = _TENSOR_TYPES[kind]
            size = elements // block_elements * block_bytes
            weights_bytes += size
            end_of_data = max(end_of_data, offset + size)
        data_start = -(-self._at // alignment) * alignment
        return _Header(
            pairs=pairs,
            array_lengths=lengths,
            num_tensors=num_tensors,
            weights_bytes=weights_bytes,
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


def _check_complete(path: Path, header: _Header, file_bytes: int) -> None:
    if header.end_bytes > file_bytes:
        raise StackFileError(
            f"{path} is cut off: {header.end_bytes - file_bytes:,} of {header.end_bytes:,} bytes are missing",
            hint="the download was probably interrupted: download it again",
        )


def _to_checkpoint(path: Path, header: _Header, file_bytes: int) -> GgufCheckpoint:
    facts = _Facts(path=path, header=header)
    architecture = facts.text("general.architecture")
    num_layers = facts.number("block_count")
    num_heads = max(facts.per_layer("attention.head_count", num_layers))
    embedding_length = facts.number("embedding_length")
    head_dim = embedding_length // num_heads if num_heads else 0
    return GgufCheckpoint(
        path=str(path),
        name=facts.optional_text("general.name") or path.stem,
        architecture=architecture,
        file_bytes=file_bytes,
        weights_bytes=header.weights_bytes,
        num_tensors=header.num_tensors,
        num_layers=num_layers,
        embedding_length=embedding_length,
        feed_forward_length=max(facts.per_layer("feed_forward_length", num_layers, default=0)),
        vocab_size=facts.vocab_size(),
        trained_context_tokens=facts.number("context_length"),
        num_heads=num_heads,
        kv_heads_per_layer=facts.per_layer("attention.head_count_kv", num_layers, default=num_heads),
        key_head_dim=facts.number("attention.key_length", default=head_dim),
        value_head_dim=facts.number("attention.value_length", default=head_dim),
        sliding_window_tokens=facts.number("attention.sliding_window", default=0),
        quantization=_FILE_TYPES.get(facts.file_type(), ""),
        has_chat_template=bool(facts.optional_text("tokenizer.chat_template")),
        is_embedding_only=architecture in _EMBEDDING_ARCHITECTURES or facts.pools(),
    )


# general.file_type → the name people know (llama.cpp's include/llama.h, enum llama_ftype).
_FILE_TYPES: Final[dict[int, str]] = {
    0: "F32", 1: "F16", 2: "Q4_0", 3: "Q4_1", 7: "Q8_0", 8: "Q5_0", 9: "Q5_1", 10: "Q2_K", 11: "Q3_K_S",
    12: "Q3_K_M", 13: "Q3_K_L", 14: "Q4_K_S", 15: "Q4_K_M", 16: "Q5_K_S", 17: "Q5_K_M", 18: "Q6_K",
    19: "IQ2_XXS", 20: "IQ2_XS", 21: "Q2_K_S", 22: "IQ3_XS", 23: "IQ3_XXS", 24: "IQ1_S", 25: "IQ4_NL",
    26: "IQ3_S", 27: "IQ3_M", 28: "IQ2_S", 29: "IQ2_M", 30: "IQ4_XS", 31: "IQ1_M", 32: "BF16",
    36: "TQ1_0", 37: "TQ2_0", 38: "MXFP4",
}  # fmt: skip
_EMBEDDING_ARCHITECTURES: Final = frozenset(
    {
        "bert",
        "eurobert",
        "gemma-embedding",
        "jina-bert-v2",
        "jina-bert-v3",
        "modern-bert",
        "neo-bert",
        "nomic-bert",
        "nomic-bert-moe",
    }
)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Facts:
    """Typed look-ups in the pairs; a key without a dot-prefix of its own is the architecture's."""

    path: Path
    header: _Header

    def _get(self, key: str) -> _Value | None:
        pairs = self.header.pairs
        if key.startswith(("general.", "tokenizer.")):
            return pairs.get(key)
        return pairs.get(f"{pairs.get('general.architecture')}.{key}")

    def text(self, key: str) -> str:
        value = self._get(key)
        if not isinstance(value, str) or not value:
            raise self._missing(key)
        return value

    def optional_text(self, key: str) -> str:
        value = self._get(key)
        return value if isinstance(value, str) else ""

    def number(self, key: str, *, default: int | None = None) -> int:
        value = self._get(key)
        if value is None and default is not None:
            return default
        if isinstance(value, tuple) and value:
            value = max(value)
        if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value < 2**40:
            raise self._missing(key)
        return value

    def per_layer(self, key: str, num_layers: int, *, default: int | None = None) -> tuple[int, ...]:
        """One number per layer, from a list or from one number for all."""
        if not 0 < num_layers <= _MAX_KEPT_ELEMENTS:
            raise self._missing("block_count")
        value = self._get(key)
        if not isinstance(value, tuple):
            return (self.number(key, default=default),) * num_layers
        if len(value) < num_layers or not all(isinstance(item, int) and 0 <= item < 2**31 for item in value):
            raise self._missing(key)
        return tuple(int(item) for item in value[:num_layers])

    def vocab_size(self) -> int:
        value = self._get("vocab_size")
        if isinstance(value, int) and value > 0:
            return value
        return self.header.array_lengths.get("tokenizer.ggml.tokens", 0)

    def file_type(self) -> int:
        value = self._get("general.file_type")
        return value if isinstance(value, int) else -1

    def pools(self) -> bool:
        """Whether the file asks for pooling (mean, cls, last …), which makes it an embedding model."""
        value = self._get("pooling_type")
        return isinstance(value, int) and value in (1, 2, 3)

    def _missing(self, key: str) -> MissingFactError:
        full_key = (
            key if "." in key and key.startswith(("general.", "tokenizer.")) else f"<architecture>.{key}"
        )
        architecture = self.header.pairs.get("general.architecture")
        if isinstance(architecture, str):
            full_key = full_key.replace("<architecture>", architecture)
        return MissingFactError(
            f"{self.path}: the key {full_key} is absent or not a usable number, and a plan needs it",
            hint="take a file made by a current llama.cpp converter",
        )
