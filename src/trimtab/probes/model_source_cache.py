"""I/O. Remembers what was read of a checkpoint, so that the next plan needs neither network nor headers.

One JSON file per checkpoint in ``cache_dir/facts``; a file that is damaged, of another version or of
another state of the checkpoint is as good as none.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from trimtab.errors import StackFileError
from trimtab.probes.model_source_survey import CheckpointSurvey, survey_from_document, survey_to_document
from trimtab.probes.small_file import read_small_file

__all__ = ["Remembered", "fingerprint_folder", "recall_survey", "remember_survey"]

_MAX_BYTES: Final = 64 << 20
_FINGERPRINTED: Final = (".json", ".jinja", ".safetensors")


@dataclass(frozen=True, slots=True, kw_only=True)
class Remembered:
    """A survey read earlier; ``state`` is the commit or the folder's fingerprint it is of."""

    survey: CheckpointSurvey
    state: str
    age_s: float


def recall_survey(cache_dir: Path, key: str) -> Remembered | None:
    """What is remembered under ``key``, None when nothing usable is."""
    path = _path_of(cache_dir, key)
    try:
        age_s = max(0.0, time.time() - path.stat().st_mtime)
        document = json.loads(read_small_file(path, max_bytes=_MAX_BYTES))
    except (OSError, ValueError, RecursionError, StackFileError):
        return None
    if not isinstance(document, dict) or document.get("key") != key:
        return None
    survey = survey_from_document(document)
    state = document.get("state")
    if survey is None or not isinstance(state, str):
        return None
    return Remembered(survey=survey, state=state, age_s=age_s)


def remember_survey(cache_dir: Path, key: str, state: str, survey: CheckpointSurvey) -> None:
    """Keep ``survey`` for ``recall_survey``; a cache that cannot be written costs the next plan time only."""
    path = _path_of(cache_dir, key)
    document = {"key": key, "state": state, **survey_to_document(survey)}
    with contextlib.suppress(OSError):
        path.parent.mkdir(parents=True, exist_ok=True)
        handle, name = tempfile.mkstemp(dir=path.parent, prefix=".facts-")
        try:
            with os.fdopen(handle, "w", encoding="utf-8") as out:
                json.dump(document, out, separators=(",", ":"))
            Path(name).replace(path)
        except OSError:
            Path(name).unlink(missing_ok=True)
            raise


def fingerprint_folder(folder: Path) -> str:
    """A digest that changes when a config or weights file of the folder is written, added or removed."""
    digest = hashlib.sha256()
    for entry in sorted(os.scandir(folder), key=lambda entry: entry.name):
        if entry.name.endswith(_FINGERPRINTED):
            with contextlib.suppress(OSError):  # A broken link is as good as an absent file.
                status = entry.stat()
                digest.update(f"{entry.name}\0{status.st_size}\0{status.st_mtime_ns}\n".encode())
    return digest.hexdigest()


def _path_of(cache_dir: Path, key: str) -> Path:
    return cache_dir / "facts" / f"{hashlib.sha256(key.encode()).hexdigest()[:24]}.json"
