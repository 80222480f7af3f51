"""I/O. A model's folder without its weights: config and tokenizer, all that a start with dummy weights reads.

What is on this machine is used where it lies. Of a repository only the small files are fetched, some
megabytes; of a built-in model without a network there is the config alone, and then no tokenizer.
"""

from __future__ import annotations

import hashlib
import json
import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from trimtab.core.model_source import ModelSource
from trimtab.errors import EnvironmentMissingError, StackFileError
from trimtab.probes.builtin_models import read_builtin_config
from trimtab.probes.checkpoint import decode_json
from trimtab.probes.hub import is_repo_id
from trimtab.probes.hub_cache import find_hub_snapshot
from trimtab.probes.hub_download import DownloadReport, fetch_hub_file
from trimtab.probes.hub_errors import HubUnreachableError, hub_is_offline, translated_errors
from trimtab.probes.hub_files import choose_engine_files
from trimtab.probes.hub_http import choose_host
from trimtab.probes.hub_listing import endpoint_of, read_listing
from trimtab.probes.hub_reach import is_reachable
from trimtab.probes.model_source_kind import is_weights_file
from trimtab.probes.path_kind import expanded, find_path_kind

__all__ = ["DummyCheckpoint", "fetch_dummy_checkpoint"]

_REACH_S: Final = 2.0
_LISTING_S: Final = 10.0
# Any of these gives the engine a tokenizer.
_TOKENIZERS: Final = (
    "tokenizer.json",
    "tokenizer.model",
    "tekken.json",
    "vocab.json",
    "tiktoken.model",
    "qwen.tiktoken",
)
_PROCESSORS: Final = ("preprocessor_config.json", "processor_config.json")
# Beside a lone config, what belongs to the same model.
_BESIDE: Final = (
    *_TOKENIZERS,
    *_PROCESSORS,
    "tokenizer_config.json",
    "special_tokens_map.json",
    "merges.txt",
    "generation_config.json",
    "chat_template.jinja",
    "video_preprocessor_config.json",
)


@dataclass(frozen=True, slots=True, kw_only=True)
class DummyCheckpoint:
    """A folder that an engine can load with dummy weights; ``note`` says what is missing, and why."""

    path: Path
    has_tokenizer: bool
    has_processor: bool
    note: str = ""


def fetch_dummy_checkpoint(
    source: ModelSource, *, cache_dir: Path, report: DownloadReport
) -> DummyCheckpoint:
    """Config and tokenizer of the model, fetched where they are not here; never a weight.

    StackFileError or EnvironmentMissingError when not even its config can be had.
    """
    if source.local_path is not None:
        return _describe(Path(source.local_path))
    kind = find_path_kind(source.checkpoint)
    if kind == "folder":
        return _describe(expanded(source.checkpoint))
    if kind == "file":
        return _copy_beside(expanded(source.checkpoint), cache_dir)
    if not is_repo_id(source.checkpoint):
        raise StackFileError(f"{source.checkpoint} is neither a folder, nor a config.json, nor a repository")
    return _of_repo(source.checkpoint, cache_dir, report)


def _describe(folder: Path, note: str = "") -> DummyCheckpoint:
    names = {entry.name for entry in folder.iterdir()}
    return DummyCheckpoint(
        path=folder,
        has_tokenizer=bool(names.intersection(_TOKENIZERS)),
        has_processor=bool(names.intersection(_PROCESSORS)),
        note=note,
    )


def _copy_beside(config: Path, cache_dir: Path) -> DummyCheckpoint:
    """A folder of its own for a lone config, whatever the file is called."""
    folder = _own_folder(cache_dir, str(config.resolve()))
    _write(folder, decode_json(config.read_bytes(), where=str(config)))
    for name in _BESIDE:
        if config.name == "config.json" and (config.parent / name).is_file():
            shutil.copyfile(config.parent / name, folder / name)
    return _describe(folder)


def _of_repo(repo: str, cache_dir: Path, report: DownloadReport) -> DummyCheckpoint:
    snapshot = find_hub_snapshot(repo, None)
    if snapshot is not None and (snapshot.folder / "config.json").is_file():
        found = _describe(snapshot.folder)
        if found.has_tokenizer:
            return found
    try:
        return _describe(_fetch(repo, cache_dir, report))
    except (HubUnreachableError, EnvironmentMissingError, StackFileError) as error:
        if snapshot is not None and (snapshot.folder / "config.json").is_file():
            return _describe(snapshot.folder, f"no tokenizer: {error.message}")
        config = read_builtin_config(repo)
        if config is None:
            raise
        folder = _own_folder(cache_dir, repo)
        _write(folder, config)
        return _describe(folder, f"built-in config, no tokenizer: {error.message}")


def _fetch(repo: str, cache_dir: Path, report: DownloadReport) -> Path:
    """The small files of the repository's newest commit."""
    if hub_is_offline():
        raise EnvironmentMissingError(f"{repo} is not on this machine, and HF_HUB_OFFLINE is set")
    host = choose_host("auto")
    report(f"looking up {repo}", 0, None)
    if not is_reachable(endpoint_of(host), _REACH_S):
        raise HubUnreachableError(f"{endpoint_of(host)} cannot be reached in {_REACH_S:g} s")
    remote = read_listing(repo, host=host, timeout_s=_LISTING_S)
    by_name = {file.name: file for file in remote.files}
    folder = cache_dir / "dummies" / repo / (remote.commit[:12] or "unknown")
    for name in choose_engine_files(by_name):
        if is_weights_file(name) or name.endswith((".bin", ".index.json")):
            continue
        with translated_errors(f"{repo}: {name}", hub=endpoint_of(host)):
            fetch_hub_file(by_name[name], folder / name, report)
    if not (folder / "config.json").is_file():
        raise StackFileError(f"{repo} has no config.json", hint="name a safetensors checkpoint")
    return folder


def _own_folder(cache_dir: Path, name: str) -> Path:
    folder = cache_dir / "dummies" / hashlib.sha256(name.encode()).hexdigest()[:16]
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise EnvironmentMissingError(
            f"{folder} cannot be made: {(error.strerror or str(error)).lower()}"
        ) from error
    return folder


def _write(folder: Path, config: Any) -> None:
    part = folder / "config.json.part"
    part.write_text(json.dumps(config, indent=1), encoding="utf-8")
    part.replace(folder / "config.json")
