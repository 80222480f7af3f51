"""I/O. Reads a checkpoint as vLLM would find it: config.json, index and the headers of its shards.

A lone config.json is enough; where an index or a shard is present, completeness is checked, and the
quantisation mask is the one that the stored tensors show.
"""

from __future__ import annotations

import codecs
import json
import re
from collections.abc import Iterable
from pathlib import Path
from typing import Any, Final

from trimtab.core.model_facts import SafetensorsCheckpoint
from trimtab.errors import StackFileError
from trimtab.planner.model_config import decode_model_config
from trimtab.probes.model_source_kind import check_config_kind, check_kind, find_kind, is_weights_file
from trimtab.probes.model_source_survey import CheckpointSurvey, fold_tensors, survey_facts, with_tensors
from trimtab.probes.safetensors_header import HeaderTensor, read_safetensors_header
from trimtab.probes.small_file import read_small_file

__all__ = [
    "MAX_JSON_BYTES",
    "QUANT_FILE",
    "check_checkpoint",
    "check_complete",
    "decode_index",
    "decode_json",
    "find_chat_template",
    "promised_shards",
    "read_checkpoint",
    "survey_config",
    "survey_folder",
    "with_quant_file",
]

INDEX: Final = "model.safetensors.index.json"
QUANT_FILE: Final = "hf_quant_config.json"
MAX_JSON_BYTES: Final = 64 << 20
_SHARD: Final = re.compile(r"^(?P<stem>.+)-(?P<part>\d{5})-of-(?P<parts>\d{5})\.safetensors$")
_MAX_LISTED: Final = 4
# 64 bits have 20; far below the length at which Python refuses to convert.
_MOST_DIGITS: Final = 100
# A numbering above this is a typing error: the largest published checkpoints have 300 shards.
_MOST_SHARDS: Final = 10_000


def read_checkpoint(path: Path) -> SafetensorsCheckpoint:
    """What lies at ``path``, a folder or a config.json.

    StackFileError when there is no readable config.json; MissingFactError when the model's layers
    aren't known. Missing and cut-off shards are reported in the result, see ``check_checkpoint``.
    """
    survey = survey_folder(path) if path.is_dir() else survey_config(path)
    where = str(path / "config.json" if path.is_dir() else path)
    return SafetensorsCheckpoint(
        path=str(path),
        facts=survey_facts(survey, where),
        tensors=survey.tensors,
        weights_bytes=survey.weights_bytes,
        missing_files=survey.missing_files,
        damaged_files=survey.damaged_files,
        has_weights=survey.has_weights,
    )


def check_checkpoint(checkpoint: SafetensorsCheckpoint) -> None:
    """StackFileError naming the files when some that the checkpoint needs are missing or cut off.

    A lone config.json passes: it promises nothing.
    """
    check_complete(checkpoint.path, checkpoint.missing_files, checkpoint.damaged_files)


def check_complete(where: str, missing: tuple[str, ...], damaged: tuple[str, ...]) -> None:
    """StackFileError naming ``missing`` or ``damaged`` files; nothing when there are none."""
    if missing:
        raise StackFileError(
            f"{where}: {_named(missing)} missing from the checkpoint",
            hint="finish the download; the files that are there are kept",
        )
    if damaged:
        raise StackFileError(
            f"{where}: {_named(damaged)} cut off or damaged", hint="download these files again"
        )


def _named(names: tuple[str, ...]) -> str:
    shown = ", ".join(names[:_MAX_LISTED])
    more = f" and {len(names) - _MAX_LISTED:,} more" if len(names) > _MAX_LISTED else ""
    return f"{shown}{more} {'is' if len(names) == 1 else 'are'}"


def survey_config(path: Path) -> CheckpointSurvey:
    """A lone config.json."""
    if not path.exists():
        raise StackFileError(f"{path} does not exist")
    mapping = _read_json(path)
    check_config_kind(mapping, str(path))
    decode_model_config(mapping, where=str(path))
    return CheckpointSurvey(config=mapping)


def survey_folder(folder: Path) -> CheckpointSurvey:
    """A folder: its config.json, and what its index and shards show.

    StackFileError when it is no checkpoint of this kind; files that are missing or cut off are
    named in the result.
    """
    names = _list_names(folder)
    kind = find_kind(names)
    check_kind(kind, str(folder), adapter_base=_adapter_base(folder) if kind == "adapter" else "")
    config_path = folder / "config.json"
    mapping = with_quant_file(_read_json(config_path), _optional_json(folder / QUANT_FILE))
    check_config_kind(mapping, str(config_path))
    decode_model_config(mapping, where=str(config_path))
    promised, total = _promised_files(folder, names)
    present = {name for name in names if is_weights_file(name) and (folder / name).is_file()}
    missing = tuple(name for name in promised if name not in present)
    tensors, damaged = _read_shards(folder, [name for name in promised if name in present])
    is_whole = bool(tensors) and not missing and not damaged
    survey = CheckpointSurvey(
        config=mapping,
        tensors=() if is_whole else fold_tensors(tensors),
        weights_bytes=total,
        has_weights=bool(promised) and len(missing) < len(promised),
        has_generation_config=(folder / "generation_config.json").is_file(),
        chat_template=_read_chat_template(folder),
        missing_files=missing,
        damaged_files=damaged,
    )
    if is_whole:
        survey = with_tensors(survey, tensors, str(config_path))
    return survey


def _list_names(folder: Path) -> list[str]:
    try:
        return sorted(entry.name for entry in folder.iterdir())
    except OSError as error:
        raise StackFileError(f"{folder} cannot be read: {error.strerror}") from error


def _adapter_base(folder: Path) -> str:
    content = _optional_json(folder / "adapter_config.json")
    base = content.get("base_model_name_or_path") if isinstance(content, dict) else None
    return base if isinstance(base, str) else ""


def _read_json(path: Path) -> Any:
    return decode_json(read_small_file(path, max_bytes=MAX_JSON_BYTES), where=str(path))


def decode_json(raw: bytes, *, where: str) -> Any:
    """The value; StackFileError in one sentence when it isn't JSON."""
    if not raw.strip():
        raise StackFileError(f"{where} is empty", hint="download it again")
    if raw.lstrip()[:1] == b"<":
        raise StackFileError(
            f"{where} is a web page, not JSON", hint="download the file itself (on a hub: its raw form)"
        )
    if raw.startswith((codecs.BOM_UTF8, codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)):
        raise StackFileError(
            f"{where} begins with a byte order mark, which the engines' JSON readers refuse",
            hint="save it as UTF-8 without a BOM",
        )
    try:
        return json.loads(raw.decode("utf-8"), parse_int=_parse_int)
    except RecursionError as error:
        raise StackFileError(f"{where} isn't JSON of a checkpoint: it is nested too deeply") from error
    except (ValueError, OverflowError) as error:
        raise StackFileError(f"{where} isn't JSON: {error}", hint="download it again") from error


def _parse_int(digits: str) -> int:
    if len(digits) > _MOST_DIGITS:
        raise ValueError(f"a number in it has {len(digits):,} digits, expected at most {_MOST_DIGITS}")
    return int(digits)


def _optional_json(path: Path) -> Any:
    return _read_json(path) if path.is_file() else None


def with_quant_file(mapping: Any, extra: Any, *, where: str = QUANT_FILE) -> Any:
    """The config with NVIDIA's separate quantisation file in it; ``extra`` None: there is none."""
    if not isinstance(mapping, dict) or "quantization_config" in mapping or extra is None:
        return mapping
    if not isinstance(extra, dict):
        raise StackFileError(f"{where} holds a {type(extra).__name__}, expected a mapping")
    return {**mapping, "quantization_config": {"quant_method": "modelopt", **extra}}


def _promised_files(folder: Path, names: Iterable[str]) -> tuple[list[str], int | None]:
    """Names of the files the checkpoint consists of, and the index's byte total."""
    index_path = folder / INDEX
    if index_path.is_file():
        return decode_index(_read_json(index_path), where=str(index_path))
    return promised_shards(names), None


def decode_index(index: Any, *, where: str) -> tuple[list[str], int | None]:
    """File names of a shard index, and its byte total; StackFileError when it names none or foreign ones."""
    weight_map = index.get("weight_map") if isinstance(index, dict) else None
    if not isinstance(weight_map, dict) or not weight_map:
        raise StackFileError(f"{where} has no weight_map", hint="download it again")
    names = {str(name) for name in weight_map.values()}
    for name in names:
        if Path(name).name != name or name in {"", ".."}:
            raise StackFileError(f"{where}: weight_map names {name!r}, a file outside the folder")
    metadata = index.get("metadata")
    total = metadata.get("total_size") if isinstance(metadata, dict) else None
    return sorted(names), total if isinstance(total, int) else None


def promised_shards(names: Iterable[str]) -> list[str]:
    """The safetensors files among ``names``, and those that the numbering of one promises."""
    present = sorted(name for name in names if is_weights_file(name))
    promised = set(present)
    for name in present:
        found = _SHARD.match(name)
        if found and int(found["parts"]) <= _MOST_SHARDS:
            promised |= {
                f"{found['stem']}-{part:05d}-of-{found['parts']}.safetensors"
                for part in range(1, int(found["parts"]) + 1)
            }
    return sorted(promised)


def _read_shards(folder: Path, names: list[str]) -> tuple[list[HeaderTensor], tuple[str, ...]]:
    tensors: list[HeaderTensor] = []
    damaged: list[str] = []
    for name in names:
        try:
            tensors += read_safetensors_header(folder / name).tensors
        except StackFileError:
            damaged.append(name)
    return tensors, tuple(damaged)


def _read_chat_template(folder: Path) -> str:
    path = folder / "chat_template.jinja"
    try:
        plain = read_small_file(path).decode("utf-8") if path.is_file() else None
        return find_chat_template(plain, _optional_json(folder / "tokenizer_config.json"))
    except (ValueError, StackFileError):
        return ""  # The engine will complain about such a file in its own words.


def find_chat_template(plain: str | None, tokenizer_config: Any) -> str:
    """The template's text: the .jinja file's, else the tokenizer config's default one, else empty."""
    if plain is not None:
        return plain
    template = tokenizer_config.get("chat_template") if isinstance(tokenizer_config, dict) else None
    if isinstance(template, list):
        named = {item.get("name"): item.get("template") for item in template if isinstance(item, dict)}
        template = named.get("default")
    return template if isinstance(template, str) else ""
