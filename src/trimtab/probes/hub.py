"""I/O. Turns what a user calls a model into a GGUF file on this machine, fetching it where needed.

Downloads go through huggingface_hub: resume, checksums, HF_TOKEN, HF_ENDPOINT and HF_HUB_OFFLINE are
its own. Files land in trimtab's cache; one that the shared Hugging Face cache has is used there.
"""

from __future__ import annotations

import io
import os
import re
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final, TypeVar

from trimtab.errors import EnvironmentMissingError, StackFileError
from trimtab.probes.embedded_model import ProgressReport
from trimtab.units import format_bytes

__all__ = ["hub_endpoint", "hub_is_offline", "is_repo_id", "resolve_checkpoint"]

_REPO: Final = re.compile(r"^[A-Za-z0-9][\w.\-]*/[A-Za-z0-9][\w.\-]*(:[^:]+)?$")
_SHARD: Final = re.compile(r"-(\d{5})-of-(\d{5})\.gguf$")
# What is preferred where a repo holds several quants and none was named.
_USUAL_QUANT: Final = "Q4_K_M"
_OTHER_WAYS: Final = (
    "give a local .gguf path, set HF_ENDPOINT to a mirror, or download from ModelScope "
    "(modelscope download --model REPO FILE) and give that path"
)
_MAX_LISTED: Final = 8

_Answer = TypeVar("_Answer")


def is_repo_id(text: str) -> bool:
    """Whether ``text`` reads as ``org/name`` or ``org/name:file.gguf`` and no such path exists."""
    return bool(_REPO.match(text)) and not Path(text).exists()


def hub_endpoint() -> str:
    """The hub that downloads come from."""
    return os.environ.get("HF_ENDPOINT", "").rstrip("/") or "https://huggingface.co"


def hub_is_offline() -> bool:
    """Whether HF_HUB_OFFLINE asks for no network at all."""
    return os.environ.get("HF_HUB_OFFLINE", "").strip().upper() in {"1", "ON", "YES", "TRUE"}


def resolve_checkpoint(text: str, *, cache_dir: Path, report: ProgressReport) -> Path:
    """The GGUF file that ``text`` (a path or a repo id) names.

    StackFileError when it names nothing usable, EnvironmentMissingError when the hub or the disk
    is in the way. A download that was interrupted goes on where it stopped.
    """
    path = Path(text).expanduser()
    if text.endswith(".gguf") and ":" not in text:
        return path
    if path.is_dir():
        return _choose_in_folder(path)
    if not is_repo_id(text):
        raise StackFileError(
            f"{text!r} is neither a file, nor a repo id (org/name), nor a model of ./stack.yaml",
            hint="for example: trimtab up ./model.gguf, or trimtab up org/name-GGUF:file.gguf",
        )
    repo, _, file = text.partition(":")
    return _fetch(repo, file, cache_dir, report)


def _choose_in_folder(folder: Path) -> Path:
    files = sorted(folder.glob("*.gguf"))
    if len(files) == 1:
        return files[0]
    if not files:
        raise StackFileError(
            f"{folder} holds no .gguf file", hint="this version runs GGUF models; name the .gguf file itself"
        )
    names = ", ".join(file.name for file in files[:_MAX_LISTED])
    raise StackFileError(f"{folder} holds {len(files)} .gguf files", hint=f"name one of: {names}")


def _fetch(repo: str, file: str, cache_dir: Path, report: ProgressReport) -> Path:
    # Before the library is imported: it reads these once. Xet and telemetry write and speak elsewhere.
    os.environ.setdefault("HF_HUB_DISABLE_XET", "1")
    os.environ.setdefault("HF_HUB_DISABLE_TELEMETRY", "1")
    import huggingface_hub as hub  # noqa: PLC0415 - 0.2 s that a local file need not pay

    def listing() -> Any:
        return hub.HfApi().model_info(repo, files_metadata=True).siblings or []

    name = file
    if not file or not hub_is_offline():
        report(f"looking up {repo}", 0, None)
        sizes = {entry.rfilename: entry.size or 0 for entry in _translate(repo, listing)}
        name = _choose_file(repo, file, sorted(sizes))
        _check_room(cache_dir, sizes[name], name)
    cached = hub.try_to_load_from_cache(repo, name)
    if isinstance(cached, str):
        return Path(cached)
    bar = _progress_bar(f"downloading {name}", report)

    def download() -> str:
        return str(hub.hf_hub_download(repo, name, cache_dir=cache_dir / "hub", tqdm_class=bar))

    return Path(_translate(f"{repo}:{name}", download))


def _choose_file(repo: str, wanted: str, files: list[str]) -> str:
    ggufs = [name for name in files if name.endswith(".gguf") and "mmproj" not in name.lower()]
    if not ggufs:
        raise StackFileError(
            f"{repo} holds no .gguf file",
            hint="this version runs GGUF models; look for the same model with -GGUF behind its name",
        )
    exact = [name for name in ggufs if wanted and wanted in (name, Path(name).name)]
    by_quant = [name for name in ggufs if (wanted or _USUAL_QUANT).lower() in name.lower()]
    found = exact or by_quant or (ggufs if len(ggufs) == 1 and not wanted else [])
    if not found:
        asked = f"no file {wanted!r}" if wanted else f"{len(ggufs)} quants and none called {_USUAL_QUANT}"
        names = ", ".join(ggufs[:_MAX_LISTED]) + (", ..." if len(ggufs) > _MAX_LISTED else "")
        raise StackFileError(f"{repo} has {asked}", hint=f"name one as {repo}:FILE; there are {names}")
    if _SHARD.search(found[0]):
        raise StackFileError(
            f"{found[0]} is split into several files, which this version does not run",
            hint="join them with llama-gguf-split --merge, or name a file that is in one piece",
        )
    return found[0]


def _check_room(cache_dir: Path, size_bytes: int, name: str) -> None:
    folder = cache_dir
    while not folder.exists() and folder != folder.parent:
        folder = folder.parent
    free = shutil.disk_usage(folder).free
    if free < size_bytes:
        raise EnvironmentMissingError(
            f"{cache_dir} has {format_bytes(free)} free, {name} needs {format_bytes(size_bytes)}",
            hint="free some disk, or set XDG_CACHE_HOME to a folder with more room",
        )


def _translate(what: str, call: Callable[[], _Answer]) -> _Answer:
    """Run a call of the library; its exceptions become one sentence each."""
    from huggingface_hub import errors  # noqa: PLC0415

    hub = hub_endpoint()
    try:
        return call()
    except errors.GatedRepoError as error:
        raise EnvironmentMissingError(
            f"{what} is gated: {hub} lets only accepted users have it",
            hint="accept its terms on its page, then set HF_TOKEN to a token of that account",
        ) from error
    except (errors.RepositoryNotFoundError, errors.EntryNotFoundError) as error:
        if isinstance(error, errors.LocalEntryNotFoundError):
            raise _unreachable(what, error) from error
        raise StackFileError(
            f"{hub} has no {what}, or it is private", hint="check the name; for a private one set HF_TOKEN"
        ) from error
    except errors.HFValidationError as error:
        raise StackFileError(f"{what!r} is not a repo id: {error}") from error
    except errors.HfHubHTTPError as error:
        status = error.response.status_code if error.response is not None else "no status"
        slow = "; wait a minute" if status == 429 else ""
        raise EnvironmentMissingError(
            f"{hub} answered {status} for {what}", hint=f"try again{slow}, or {_OTHER_WAYS}"
        ) from error
    except OSError as error:
        if error.errno is None or error.strerror is None:
            raise _unreachable(what, error) from error
        raise EnvironmentMissingError(
            f"cannot store {what}: {error.strerror.lower()}",
            hint="free some disk, or set XDG_CACHE_HOME; the download goes on where it stopped",
        ) from error
    except Exception as error:
        # The library's HTTP layer has changed its exceptions before: whatever is of its network
        # module means that the hub was not reached; anything else is a bug and shows itself.
        if type(error).__module__.split(".")[0] not in {
            "httpx",
            "httpx2",
            "httpcore",
            "httpcore2",
            "requests",
        }:
            raise
        raise _unreachable(what, error) from error


def _unreachable(what: str, error: Exception) -> EnvironmentMissingError:
    why = "HF_HUB_OFFLINE is set and it is not in the cache" if hub_is_offline() else "it cannot be reached"
    del error
    return EnvironmentMissingError(f"cannot get {what} from {hub_endpoint()}: {why}", hint=_OTHER_WAYS)


def _progress_bar(text: str, report: ProgressReport) -> Any:
    """A class with tqdm's interface that reports instead of drawing."""
    from tqdm import tqdm  # noqa: PLC0415

    def update(self: Any, n: float | None = 1) -> None:
        tqdm.update(self, n)
        report(text, int(self.n), int(self.total) if self.total else None)

    def start(self: Any, *args: Any, **kwargs: Any) -> None:
        kwargs.pop("name", None)
        # Enabled, so that it counts; drawn to nowhere.
        tqdm.__init__(self, *args, **(kwargs | {"disable": False, "file": io.StringIO()}))

    return type("ReportingBar", (tqdm,), {"update": update, "__init__": start})
