"""I/O. What a stack's models are: GGUF headers, or facts of safetensors checkpoints, wherever they lie."""

from __future__ import annotations

from pathlib import Path

from trimtab.cli.folders import Folders
from trimtab.cli.progress import Progress
from trimtab.core.checkpoint import GgufCheckpoint
from trimtab.core.model_source import GgufSource, ModelSource
from trimtab.core.stack import ModelRequest
from trimtab.engines import embedded_model
from trimtab.errors import StackFileError
from trimtab.planner.quantisations import enumerate_editions
from trimtab.planner.stack_plan import make_wish
from trimtab.planner.vllm_wish import VllmWish
from trimtab.probes.builtin_models import list_builtin_models
from trimtab.probes.embedded_model import fetch_embedded_model
from trimtab.probes.gguf_header import read_gguf_header
from trimtab.probes.hub import is_repo_id, resolve_checkpoint
from trimtab.probes.model_source import nothing_there, read_model_source
from trimtab.probes.path_kind import find_path_kind

__all__ = ["find_alternatives", "find_facts", "read_source"]


def read_source(request: ModelRequest, folders: Folders, progress: Progress) -> GgufCheckpoint | ModelSource:
    """The facts of one model; a GGUF file is fetched where needed, of a checkpoint only the headers are.

    StackFileError when it names nothing usable or asks an engine that cannot run it.
    """
    if request.checkpoint == embedded_model.SERVED_NAME:
        _check_engine(request, "llama_cpp", "the embedded default is a GGUF file")
        path = fetch_embedded_model(folders.cache, progress.show_bytes)
        return read_gguf_header(path.absolute())
    if request.engine != "llama_cpp" and not _is_named_gguf(request.checkpoint):
        found = find_facts(request, folders, progress)
        if isinstance(found, ModelSource):
            return found
    _check_engine(request, "llama_cpp", f"{request.checkpoint} is a GGUF model")
    return _read_gguf(request, folders, progress)


def find_facts(request: ModelRequest, folders: Folders, progress: Progress) -> ModelSource | GgufSource:
    """As ``read_model_source``; a checkpoint that is nothing at all is told with the key that names it."""
    checkpoint = request.checkpoint
    if find_path_kind(checkpoint) is None and not (is_repo_id(checkpoint) or _is_named_gguf(checkpoint)):
        raise nothing_there(checkpoint, where=f"models.{request.name}.checkpoint")
    return read_model_source(checkpoint, cache_dir=folders.cache, report=progress.show_bytes)


def _is_named_gguf(checkpoint: str) -> bool:
    """Whether the name alone says GGUF, so that no other facts need be looked for."""
    return checkpoint.lower().endswith((".gguf", "-gguf")) or ":" in checkpoint


def _read_gguf(request: ModelRequest, folders: Folders, progress: Progress) -> GgufCheckpoint:
    path = resolve_checkpoint(request.checkpoint, cache_dir=folders.cache, report=progress.show_bytes)
    return read_gguf_header(path.absolute())


def _check_engine(request: ModelRequest, engine: str, why: str) -> None:
    if request.engine not in {None, engine}:
        raise StackFileError(
            f"models.{request.name}.engine is {request.engine}, and {why}: {engine} runs it",
            hint="leave engine out",
        )


def find_alternatives(wish: VllmWish) -> tuple[VllmWish, ...]:
    """The same model in other quantisations that trimtab has facts of, smallest change of name first."""
    found = []
    for repo in enumerate_editions(wish.checkpoint, list_builtin_models()):
        source = read_model_source(repo, cache_dir=Path(), offline=True)
        if isinstance(source, ModelSource):
            found.append(make_wish(wish.request, source))
    return tuple(found)
