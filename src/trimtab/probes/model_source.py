"""I/O. Turns what a user calls a model into the facts a plan needs, from the nearest place that has them."""

from __future__ import annotations

from pathlib import Path

from trimtab.core.model_source import GgufSource, ModelSource
from trimtab.engines.embedded_model import guess_meant
from trimtab.errors import StackFileError
from trimtab.probes.hub import is_repo_id
from trimtab.probes.hub_download import DownloadReport
from trimtab.probes.hub_errors import hub_is_offline
from trimtab.probes.hub_http import SourceName
from trimtab.probes.model_source_local import read_file_source, read_folder_source
from trimtab.probes.model_source_repo import RepoRequest, read_repo_source
from trimtab.probes.path_kind import cut, expanded, find_path_kind

__all__ = ["nothing_there", "read_model_source"]


def ignore_progress(what: str, done: int, total: int | None) -> None:
    """The report of a caller who does not want one."""


def nothing_there(text: str, *, where: str = "") -> StackFileError:
    """The refusal of a checkpoint that names nothing at all; ``where`` is the key that holds it."""
    place = f"{where}: " if where else ""
    return StackFileError(
        f"{place}{cut(text)!r} is neither a file, nor a folder, nor a repo id (org/name)",
        hint=guess_meant(text) or "for example: trimtab plan Qwen/Qwen3.5-35B-A3B-FP8 --gpus 4xrtx4090",
    )


def read_model_source(
    checkpoint: str,
    *,
    cache_dir: Path,
    revision: str | None = None,
    offline: bool = False,
    source: SourceName = "auto",
    report: DownloadReport = ignore_progress,
) -> ModelSource | GgufSource:
    """The facts of a folder, a lone config.json or a repository; GgufSource when it is llama.cpp's.

    Facts only: no weights are fetched. ``offline`` (or HF_HUB_OFFLINE) asks no network;
    ``source`` says which hub a repository is of, "auto" is Hugging Face unless VLLM_USE_MODELSCOPE is
    set. StackFileError: it names nothing usable, or files of it are missing. MissingFactError: its
    layers aren't known. EnvironmentMissingError: the hub was needed and is in the way.
    """
    text = checkpoint.strip()
    if text.lower().endswith(".gguf") or (
        is_repo_id(text) and (":" in text or text.upper().endswith("-GGUF"))
    ):
        return GgufSource(checkpoint=text)
    kind = find_path_kind(text)
    if kind == "folder":
        return read_folder_source(expanded(text), cache_dir=cache_dir)
    if kind == "file":
        return read_file_source(expanded(text))
    if not is_repo_id(text):
        raise nothing_there(text)
    request = RepoRequest(
        repo=text,
        cache_dir=cache_dir,
        revision=revision,
        is_offline=offline or hub_is_offline(),
        source=source,
    )
    return read_repo_source(request, report)
