"""I/O. Reads a checkpoint as vLLM would find it: config.json, index and the headers of its shards.

A lone config.json is enough; where an index or a shard is present, completeness is checked, and the
quantisation mask is the one that the stored tensors show.
"""

from __future__ import annotations

import json
import re
from collections import Counter
from pathlib import Path
from typing import Any, Final

from trimtab.core.model_facts import SafetensorsCheckpoint, TensorFact, TensorPart, with_basis
from trimtab.errors import StackFileError
from trimtab.planner.model_config import decode_model_config
from trimtab.planner.observed_mask import apply_observed_mask
from trimtab.probes.safetensors_header import HeaderTensor, read_safetensors_header

__all__ = ["check_checkpoint", "read_checkpoint"]

_INDEX: Final = "model.safetensors.index.json"
_SHARD: Final = re.compile(r"^(?P<stem>.+)-(?P<part>\d{5})-of-(?P<parts>\d{5})\.safetensors$")
_NUMBERED: Final = re.compile(r"\b(layers|experts|blocks)\.\d+\.")
_PLACES: Final = {"layers": "layers.{l}.", "experts": "experts.{e}.", "blocks": "blocks.{b}."}
_MAX_JSON_BYTES: Final = 64 << 20
_MAX_LISTED: Final = 4


def read_checkpoint(path: Path) -> SafetensorsCheckpoint:
    """What lies at ``path``, a folder or a config.json.

    StackFileError when there is no readable config.json; MissingFactError when the model's layers
    aren't known. Missing and cut-off shards are reported in the result, see ``check_checkpoint``.
    """
    folder, config_path = _locate(path)
    mapping = _read_json(config_path)
    if folder is not None:
        mapping = _with_quant_file(mapping, folder)
    facts = decode_model_config(mapping, where=str(config_path))
    if folder is None:
        return SafetensorsCheckpoint(path=str(path), facts=facts)
    promised, total = _promised_files(folder)
    missing = [name for name in promised if not (folder / name).is_file()]
    tensors, damaged = _read_shards(folder, [name for name in promised if name not in missing])
    if tensors and not missing and not damaged:
        dtypes = {tensor.name: tensor.dtype for tensor in tensors}
        facts = apply_observed_mask(facts, dtypes)
        facts = with_basis(facts, basis="measured from the files", error_ratio=min(facts.error_ratio, 0.005))
        total = sum(tensor.nbytes for tensor in tensors)
    return SafetensorsCheckpoint(
        path=str(path),
        facts=facts,
        tensors=fold_tensors(tensors),
        weights_bytes=total,
        missing_files=tuple(missing),
        damaged_files=tuple(damaged),
        has_weights=bool(promised) and len(missing) < len(promised),
    )


def check_checkpoint(checkpoint: SafetensorsCheckpoint) -> None:
    """StackFileError naming the files when some that the checkpoint needs are missing or cut off.

    A lone config.json passes: it promises nothing.
    """
    if checkpoint.missing_files:
        raise StackFileError(
            f"{checkpoint.path}: {_named(checkpoint.missing_files)} missing from the checkpoint",
            hint="finish the download; the files that are there are kept",
        )
    if checkpoint.damaged_files:
        raise StackFileError(
            f"{checkpoint.path}: {_named(checkpoint.damaged_files)} cut off or damaged",
            hint="download these files again",
        )


def _named(names: tuple[str, ...]) -> str:
    shown = ", ".join(names[:_MAX_LISTED])
    more = f" and {len(names) - _MAX_LISTED} more" if len(names) > _MAX_LISTED else ""
    return f"{shown}{more} {'is' if len(names) == 1 else 'are'}"


def _locate(path: Path) -> tuple[Path | None, Path]:
    if path.is_dir():
        config = path / "config.json"
        if not config.is_file():
            raise StackFileError(
                f"{path} holds no config.json", hint="point at the folder of a Hugging Face checkpoint"
            )
        return path, config
    if not path.exists():
        raise StackFileError(f"{path} does not exist")
    return None, path


def _read_json(path: Path) -> Any:
    try:
        size = path.stat().st_size
        if size > _MAX_JSON_BYTES:
            raise StackFileError(f"{path} has {size:,} bytes, too many for a JSON file of a checkpoint")
        return json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise StackFileError(f"{path} cannot be read: {error.strerror}") from error
    except (ValueError, RecursionError) as error:
        raise StackFileError(f"{path} isn't JSON: {error}", hint="download it again") from error


def _with_quant_file(mapping: Any, folder: Path) -> Any:
    """NVIDIA's exports keep their quantisation in hf_quant_config.json."""
    extra = folder / "hf_quant_config.json"
    if not isinstance(mapping, dict) or "quantization_config" in mapping or not extra.is_file():
        return mapping
    content = _read_json(extra)
    if not isinstance(content, dict):
        raise StackFileError(f"{extra} holds a {type(content).__name__}, expected a mapping")
    return {**mapping, "quantization_config": {"quant_method": "modelopt", **content}}


def _promised_files(folder: Path) -> tuple[list[str], int | None]:
    """Names of the files the checkpoint consists of, and the index's byte total."""
    index_path = folder / _INDEX
    if index_path.is_file():
        index = _read_json(index_path)
        weight_map = index.get("weight_map") if isinstance(index, dict) else None
        if not isinstance(weight_map, dict) or not weight_map:
            raise StackFileError(f"{index_path} has no weight_map", hint="download it again")
        names = {str(name) for name in weight_map.values()}
        for name in names:
            if Path(name).name != name:
                raise StackFileError(f"{index_path}: weight_map names {name!r}, a file outside the folder")
        metadata = index.get("metadata")
        total = metadata.get("total_size") if isinstance(metadata, dict) else None
        return sorted(names), total if isinstance(total, int) else None
    present = sorted(
        file.name for file in folder.glob("*.safetensors") if file.name != "consolidated.safetensors"
    )
    names = set(present)
    for name in present:
        found = _SHARD.match(name)
        if found:
            parts = int(found["parts"])
            names |= {
                f"{found['stem']}-{part:05d}-of-{parts:05d}.safetensors" for part in range(1, parts + 1)
            }
    return sorted(names), None


def _read_shards(folder: Path, names: list[str]) -> tuple[list[HeaderTensor], list[str]]:
    tensors: list[HeaderTensor] = []
    damaged: list[str] = []
    for name in names:
        try:
            tensors += read_safetensors_header(folder / name).tensors
        except StackFileError:
            damaged.append(name)
    return tensors, damaged


def fold_tensors(tensors: list[HeaderTensor]) -> tuple[TensorFact, ...]:
    """Tensors grouped by name pattern, shape and dtype."""
    counts: Counter[tuple[str, tuple[int, ...], str]] = Counter()
    for tensor in tensors:
        pattern = _NUMBERED.sub(lambda found: _PLACES[found[1]], tensor.name)
        counts[pattern, tensor.shape, tensor.dtype] += 1
    return tuple(
        TensorFact(name=name, shape=shape, dtype=dtype, count=count, part=_part_of(name))
        for (name, shape, dtype), count in counts.items()
    )


def _part_of(name: str) -> TensorPart:
    if ".visual." in name or "vision" in name:
        return "vision"
    return "mtp" if name.startswith("mtp.") else "language"
