"""I/O. Reads the header of a GGUF checkpoint, split or whole: the facts that a plan needs."""

from __future__ import annotations

import re
import stat
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from trimtab.core.checkpoint import GgufCheckpoint
from trimtab.errors import MissingFactError, StackFileError
from trimtab.probes.gguf_tables import MAX_KEPT_ELEMENTS, GgufTables, Tensor, Value, read_gguf_tables

__all__ = ["read_gguf_header"]

# llama.cpp names the parts of a split checkpoint so, counted from 1 (its gguf-split).
_PART_NAME: Final = re.compile(r"^(?P<stem>.+)-(?P<part>\d{5})-of-(?P<parts>\d{5})\.gguf$")
# More parts than any published checkpoint has; bounds how many files a wrong header makes us open.
_MAX_PARTS: Final = 512
# Names in files are shorter; a damaged length could make a message of megabytes.
_MAX_TEXT: Final = 200


def read_gguf_header(path: Path) -> GgufCheckpoint:
    """The facts of the GGUF checkpoint at ``path``; of a split one, ``path`` is the first part.

    Raises StackFileError when it is not a whole GGUF file (missing, a folder, another format, cut
    off, a part missing) and MissingFactError when it is one but lacks a key that a plan needs.
    """
    file_bytes = _check_file(path)
    tables = read_gguf_tables(path)
    _check_complete(path, tables, file_bytes)
    tensors = list(tables.tensors)
    parts = _part_paths(path, tables)
    for part in parts:
        part_bytes = _check_file(part)
        part_tables = read_gguf_tables(part)
        _check_complete(part, part_tables, part_bytes)
        tensors.extend(part_tables.tensors)
        file_bytes += part_bytes
    facts = _Facts(path=path, tables=tables)
    return _to_checkpoint(facts, tuple(tensors), file_bytes=file_bytes, num_files=1 + len(parts))


def _check_file(path: Path) -> int:
    """The file's size; StackFileError says what is wrong with a path that cannot be a checkpoint."""
    try:
        status = path.stat()
        if stat.S_ISDIR(status.st_mode):
            raise StackFileError(f"{path} is a folder, not a .gguf file", hint=_hint_nearby(path))
        if not stat.S_ISREG(status.st_mode):
            raise StackFileError(f"{path} is not a regular file")
    except (FileNotFoundError, NotADirectoryError):
        raise StackFileError(f"{path} does not exist", hint=_hint_nearby(path.parent)) from None
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) else error
        raise StackFileError(f"{path} cannot be read: {reason}") from error
    if status.st_size == 0:
        raise StackFileError(f"{path} is empty", hint="download it again")
    return status.st_size


def _hint_nearby(folder: Path) -> str:
    try:
        names = sorted(entry.name for entry in folder.glob("*.gguf"))[:5]
    except OSError:
        return ""
    return f"in {folder} there are: {', '.join(names)}" if names else ""


def _check_complete(path: Path, tables: GgufTables, file_bytes: int) -> None:
    if tables.end_bytes > file_bytes:
        raise StackFileError(
            f"{path} is cut off: {tables.end_bytes - file_bytes:,} of {tables.end_bytes:,} bytes are missing",
            hint="the download was probably interrupted: download it again",
        )


def _part_paths(path: Path, tables: GgufTables) -> tuple[Path, ...]:
    """The other parts of a split checkpoint, in order; empty for a whole one."""
    count, number = tables.pairs.get("split.count", 1), tables.pairs.get("split.no", 0)
    if not isinstance(count, int) or not isinstance(number, int) or count <= 1:
        return ()
    if count > _MAX_PARTS:
        raise StackFileError(f"{path} says it is split into {count:,} parts; at most {_MAX_PARTS} are read")
    match = _PART_NAME.match(path.name)
    if match is None or int(match["parts"]) != count:
        raise StackFileError(
            f"{path} is part {number + 1} of {count}, and its name does not say so",
            hint=f"name the parts <name>-00001-of-{count:05d}.gguf and so on, as they were published",
        )
    names = [f"{match['stem']}-{part:05d}-of-{count:05d}.gguf" for part in range(1, count + 1)]
    if number != 0:
        raise StackFileError(
            f"{path} is part {number + 1} of {count}", hint=f"name the first part: {names[0]}"
        )
    missing = [name for name in names[1:] if not path.with_name(name).exists()]
    if missing:
        raise StackFileError(
            f"{path} is split, and {len(missing)} of its {count} parts are missing: {', '.join(missing[:3])}",
            hint=f"put all parts into {path.parent}",
        )
    return tuple(path.with_name(name) for name in names[1:])


def _to_checkpoint(
    facts: _Facts, tensors: tuple[Tensor, ...], *, file_bytes: int, num_files: int
) -> GgufCheckpoint:
    architecture = facts.text("general.architecture")
    num_layers = facts.number("block_count")
    num_heads = max(facts.per_layer("attention.head_count", num_layers))
    embedding_length = facts.number("embedding_length")
    head_dim = embedding_length // num_heads if num_heads else 0
    embedding = next((item for item in tensors if item.name == "token_embd.weight"), None)
    return GgufCheckpoint(
        path=str(facts.path),
        name=_printable(facts.optional_text("general.name")) or facts.path.stem,
        architecture=architecture,
        file_bytes=file_bytes,
        weights_bytes=sum(item.size_bytes for item in tensors),
        num_tensors=len(tensors),
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
        has_pooling=facts.pools(by_rank=True),
        bytes_by_tensor_type=_bytes_by_type(tensors),
        token_embedding_bytes=embedding.size_bytes if embedding else 0,
        token_embedding_type=embedding.type_name if embedding else "",
        has_output_head=any(item.name == "output.weight" for item in tensors),
        num_experts_used=facts.number("expert_used_count", default=0),
        expert_feed_forward_length=facts.number("expert_feed_forward_length", default=0),
        has_recurrent_layers=facts.has_any("ssm.", "rwkv.", "wkv.", "shortconv."),
        num_files=num_files,
    )


def _bytes_by_type(tensors: tuple[Tensor, ...]) -> tuple[tuple[str, int], ...]:
    sums: dict[str, int] = {}
    for item in tensors:
        sums[item.type_name] = sums.get(item.type_name, 0) + item.size_bytes
    return tuple(sorted(sums.items(), key=lambda entry: (-entry[1], entry[0])))


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
    tables: GgufTables

    def _get(self, key: str) -> Value | None:
        pairs = self.tables.pairs
        if key.startswith(("general.", "tokenizer.")):
            return pairs.get(key)
        return pairs.get(f"{pairs.get('general.architecture')}.{key}")

    def text(self, key: str) -> str:
        value = self._get(key)
        if not isinstance(value, str) or not value:
            raise self._missing(key)
        return _printable(value)

    def optional_text(self, key: str) -> str:
        value = self._get(key)
        return value if isinstance(value, str) else ""

    def number(self, key: str, *, default: int | None = None) -> int:
        value = self._get(key)
        if value is None and default is not None:
            return default
        if isinstance(value, tuple) and value:
            value = max(value)
        minimum = 1 if default is None else 0
        if isinstance(value, bool) or not isinstance(value, int) or not minimum <= value < 2**40:
            raise self._missing(key)
        return value

    def per_layer(self, key: str, num_layers: int, *, default: int | None = None) -> tuple[int, ...]:
        """One number per layer, from a list or from one number for all."""
        if not 0 < num_layers <= MAX_KEPT_ELEMENTS:
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
        return self.tables.array_lengths.get("tokenizer.ggml.tokens", 0)

    def file_type(self) -> int:
        value = self._get("general.file_type")
        return value if isinstance(value, int) else -1

    def pools(self, *, by_rank: bool = False) -> bool:
        """Whether the file asks for pooling (mean, cls, last …), which makes it an embedding model.

        ``by_rank`` counts a reranker's pooling too.
        """
        value = self._get("pooling_type")
        return isinstance(value, int) and value in ((1, 2, 3, 4) if by_rank else (1, 2, 3))

    def has_any(self, *prefixes: str) -> bool:
        """Whether the architecture has a key that starts with one of the prefixes."""
        architecture = self.tables.pairs.get("general.architecture")
        starts = tuple(f"{architecture}.{prefix}" for prefix in prefixes)
        return any(key.startswith(starts) for key in self.tables.pairs)

    def _missing(self, key: str) -> MissingFactError:
        architecture = _printable(str(self.tables.pairs.get("general.architecture", "<architecture>")))
        full_key = key if key.startswith(("general.", "tokenizer.")) else f"{architecture}.{key}"
        return MissingFactError(
            f"{self.path}: the key {full_key} is absent or not a usable number, and a plan needs it",
            hint="take a file made by a current llama.cpp converter",
        )


def _printable(text: str) -> str:
    """Text of a file as it may go to a terminal: one line, no control characters, not endless."""
    shown = "".join(character if character.isprintable() else "?" for character in text[:_MAX_TEXT])
    return shown if len(text) <= _MAX_TEXT else f"{shown}..."
