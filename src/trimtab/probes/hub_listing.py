"""I/O. What a hub has of a repository: its commit and files, from Hugging Face or ModelScope.

ModelScope's interface is its library's (modelscope/hub/api.py, read 2026-11-30): a list of files with
sizes and digests, and files by path.
"""

from __future__ import annotations

import os
import re
from dataclasses import dataclass
from typing import Any, Final
from urllib.parse import quote

from trimtab.errors import EnvironmentMissingError, StackFileError
from trimtab.probes.checkpoint import decode_json
from trimtab.probes.hub_download import HubFile
from trimtab.probes.hub_errors import HubUnreachableError, hub_endpoint, translated_errors
from trimtab.probes.hub_http import HubHost, modelscope_endpoint, read_whole

__all__ = ["RemoteRepo", "endpoint_of", "prepare_library", "read_listing"]

_MAX_LISTING_BYTES: Final = 64 << 20


@dataclass(frozen=True, slots=True, kw_only=True)
class RemoteRepo:
    """A repository at one commit; ``commit`` is ModelScope's newest file revision there."""

    repo: str
    host: HubHost
    commit: str
    files: tuple[HubFile, ...]


def endpoint_of(host: HubHost) -> str:
    """The address that requests to ``host`` go to."""
    return modelscope_endpoint() if host == "modelscope" else hub_endpoint()


def read_listing(
    repo: str, *, host: HubHost = "huggingface", revision: str | None = None, timeout_s: float | None = None
) -> RemoteRepo:
    """The repository's files at ``revision`` (None: the hub's newest).

    ``timeout_s`` is per read, None: huggingface_hub's own. HubUnreachableError when nothing answers as a
    hub does; StackFileError or EnvironmentMissingError for what it answers.
    """
    endpoint = endpoint_of(host)
    if not re.match(r"https?://[^/]", endpoint):
        variable = "MODELSCOPE_ENDPOINT" if host == "modelscope" else "HF_ENDPOINT"
        raise EnvironmentMissingError(
            f"{variable} is {endpoint!r}, which is no web address", hint="for example https://hf-mirror.com"
        )
    prepare_library()
    if host == "modelscope":
        return _read_modelscope(repo, revision or "master", endpoint, timeout_s)
    return _read_huggingface(repo, revision, endpoint, timeout_s)


def prepare_library() -> None:
    """Tell huggingface_hub to send no request of its own and to print no notes on retries.

    Before its import, which reads these variables once.
    """
    os.environ.setdefault("HF_HUB_DISABLE_TELEMETRY", "1")
    os.environ.setdefault("HF_HUB_VERBOSITY", "error")


def _read_huggingface(repo: str, revision: str | None, endpoint: str, timeout_s: float | None) -> RemoteRepo:
    from huggingface_hub import HfApi, constants  # noqa: PLC0415 - 0.2 s that a local file need not pay

    with translated_errors(repo if revision is None else f"{repo} at {revision}"):
        # The timeout is per read; the library's own default is to wait for ever.
        info = HfApi(endpoint=endpoint).model_info(
            repo, revision=revision, files_metadata=True, timeout=timeout_s or constants.HF_HUB_ETAG_TIMEOUT
        )
        commit = info.sha or revision or "main"
        files = tuple(_to_file(repo, entry, commit, endpoint) for entry in info.siblings or ())
    return RemoteRepo(
        repo=repo,
        host="huggingface",
        commit=commit,
        files=tuple(file for file in files if _is_plain(file.name)),
    )


def _to_file(repo: str, entry: Any, commit: str, endpoint: str) -> HubFile:
    import huggingface_hub as hub  # noqa: PLC0415

    return HubFile(
        name=entry.rfilename,
        url=hub.hf_hub_url(repo, entry.rfilename, revision=commit, endpoint=endpoint),
        size_bytes=entry.size,
        sha256=entry.lfs.sha256 if entry.lfs is not None else None,
        git_sha1=entry.blob_id if entry.lfs is None else None,
    )


def _read_modelscope(repo: str, revision: str, endpoint: str, timeout_s: float | None) -> RemoteRepo:
    base = f"{endpoint}/api/v1/models/{quote(repo)}/repo"
    url = f"{base}/files?Revision={quote(revision, safe='')}&Recursive=true"
    with translated_errors(repo, hub=endpoint):
        raw = read_whole(url, "modelscope", _MAX_LISTING_BYTES, timeout_s or 10.0)
        try:
            entries = decode_json(raw, where=endpoint)["Data"]["Files"]
            kept = [entry for entry in entries if entry.get("Type") == "blob" and _is_plain(entry["Path"])]
            files = tuple(_to_modelscope_file(base, entry, revision) for entry in kept)
        except (StackFileError, KeyError, TypeError, AttributeError) as error:
            raise HubUnreachableError(
                f"{endpoint} does not answer as ModelScope does",
                hint="check MODELSCOPE_ENDPOINT and the proxy",
            ) from error
    newest: Any = max(kept, key=lambda entry: int(entry.get("CommittedDate") or 0), default={})
    return RemoteRepo(
        repo=repo, host="modelscope", commit=str(newest.get("Revision") or revision), files=files
    )


def _to_modelscope_file(base: str, entry: Any, revision: str) -> HubFile:
    path = str(entry["Path"])
    digest = entry.get("Sha256")
    return HubFile(
        name=path,
        url=f"{base}?Revision={quote(revision, safe='')}&FilePath={quote(path)}",
        size_bytes=int(entry["Size"]) if entry.get("Size") is not None else None,
        sha256=str(digest) if digest else None,
        host="modelscope",
    )


def _is_plain(name: str) -> bool:
    """Whether a name can be shown and stays inside a folder; others are not offered."""
    return name.isprintable() and not {"", ".", ".."} & set(name.split("/"))
