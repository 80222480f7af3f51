"""I/O. Brings a whole safetensors checkpoint to this machine: only what an engine needs, checked, resumable.

huggingface_hub's snapshot_download (2.4) starts a broken file anew and checks sizes only; see
hub_download. A checkpoint that is here already, in trimtab's cache or a shared one, is used where it lies.
"""

from __future__ import annotations

import os
import shutil
import threading
from concurrent.futures import FIRST_EXCEPTION, ThreadPoolExecutor, wait
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from trimtab.core.model_source import ModelSource
from trimtab.errors import StackFileError
from trimtab.probes.checkpoint import check_complete
from trimtab.probes.hub_download import DownloadReport, HubFile, check_room, fetch_hub_file, partial_bytes
from trimtab.probes.hub_errors import HubUnreachableError, hub_is_offline, offline_error, translated_errors
from trimtab.probes.hub_files import choose_engine_files
from trimtab.probes.hub_listing import RemoteRepo, endpoint_of, read_listing
from trimtab.probes.hub_store import (
    Manifest,
    checkpoint_folder,
    find_stored,
    folder_lock,
    read_manifest,
    write_manifest,
)
from trimtab.probes.model_source_kind import check_kind, find_kind
from trimtab.probes.model_source_local import recall_folder_survey
from trimtab.probes.model_source_repo import RepoRequest, read_shared_source

__all__ = ["FetchedCheckpoint", "fetch_checkpoint"]

# One connection to a hub's store brings 20 to 100 MB/s; a few fill a usual line.
_PARALLEL: Final = 4


@dataclass(frozen=True, slots=True, kw_only=True)
class FetchedCheckpoint:
    """A checkpoint that can be started: its folder, and the commit it is of (empty where unknown)."""

    path: Path
    commit: str
    fetched_bytes: int


def fetch_checkpoint(
    request: RepoRequest, report: DownloadReport, *, is_refreshed: bool = False
) -> FetchedCheckpoint:
    """The whole checkpoint of a repository, downloaded where it isn't here.

    What is here is used as it is, without asking the hub, unless ``is_refreshed``: then a newer commit
    is fetched, of which files that did not change are not downloaded again. An interrupted download
    goes on where it stopped. StackFileError: it is no checkpoint for vLLM. EnvironmentMissingError:
    the hub or the disk is in the way; nothing half-made is ever taken for whole.
    """
    here = _find_here(request)
    if here is not None and not is_refreshed:
        return here
    if request.is_offline or hub_is_offline():
        if here is None:
            raise offline_error(request.repo)
        return here
    report(f"looking up {request.repo}", 0, None)
    try:
        remote = read_listing(request.repo, host=request.host, revision=request.revision)
    except HubUnreachableError:
        if here is None:
            raise
        report(f"{endpoint_of(request.host)} cannot be reached; using the copy that is here", 0, None)
        return here
    return _fetch(request, remote, report)


def _find_here(request: RepoRequest) -> FetchedCheckpoint | None:
    stored = find_stored(request.cache_dir, request.repo, request.revision)
    if stored is not None:
        return FetchedCheckpoint(path=stored[0], commit=stored[1].commit, fetched_bytes=0)
    shared = read_shared_source(request)
    if isinstance(shared, ModelSource) and shared.local_path is not None:
        return FetchedCheckpoint(path=Path(shared.local_path), commit=shared.revision, fetched_bytes=0)
    return None


def _fetch(request: RepoRequest, remote: RemoteRepo, report: DownloadReport) -> FetchedCheckpoint:
    files = _choose(remote)
    folder = checkpoint_folder(request.cache_dir, remote.repo, remote.commit)
    with folder_lock(folder, is_waiting=False) as is_held:
        if is_held:
            return _fill(request, remote, files, folder, report)
    report(f"waiting for another trimtab that downloads {remote.repo}", 0, None)
    with folder_lock(folder, is_waiting=True):
        return _fill(request, remote, files, folder, report)


def _choose(remote: RemoteRepo) -> list[HubFile]:
    kind = find_kind(file.name for file in remote.files)
    check_kind(kind, remote.repo)
    by_name = {file.name: file for file in remote.files}
    chosen = [by_name[name] for name in choose_engine_files(by_name)]
    if kind == "config only":
        raise StackFileError(
            f"{remote.repo} has a config.json and no weights",
            hint="name the repository that holds the weights",
        )
    return chosen


def _fill(
    request: RepoRequest, remote: RemoteRepo, files: list[HubFile], folder: Path, report: DownloadReport
) -> FetchedCheckpoint:
    """Everything of ``files`` in ``folder``, which this process holds."""
    if read_manifest(folder) is not None:
        return FetchedCheckpoint(path=folder, commit=remote.commit, fetched_bytes=0)
    folder.mkdir(parents=True, exist_ok=True)
    with translated_errors(remote.repo, hub=endpoint_of(remote.host)):
        _reuse(request, remote, files, folder)
    targets = [(file, folder / file.name) for file in files]
    needed = sum((file.size_bytes or 0) - partial_bytes(file, target) for file, target in targets)
    check_room(request.cache_dir, needed, remote.repo)
    _fetch_all(remote, targets, report)
    for lock in folder.rglob("*.lock"):
        lock.unlink(missing_ok=True)
    survey = recall_folder_survey(folder, request.cache_dir)
    check_complete(remote.repo, survey.missing_files, survey.damaged_files)
    stored = tuple((file.name, (folder / file.name).stat().st_size, file.sha256) for file in files)
    manifest = Manifest(
        repo=remote.repo,
        host=remote.host,
        commit=remote.commit,
        revision=request.revision or "",
        files=stored,
    )
    write_manifest(folder, manifest)
    return FetchedCheckpoint(path=folder, commit=remote.commit, fetched_bytes=max(0, needed))


def _reuse(request: RepoRequest, remote: RemoteRepo, files: list[HubFile], folder: Path) -> None:
    """Link files that an earlier commit has with the same digest; they take no room twice."""
    earlier = find_stored(request.cache_dir, remote.repo)
    if earlier is None:
        return
    known = {digest: earlier[0] / name for name, _, digest in earlier[1].files if digest is not None}
    for file in files:
        source, target = known.get(file.sha256 or ""), folder / file.name
        if source is None or target.exists():
            continue
        target.parent.mkdir(parents=True, exist_ok=True)
        try:
            os.link(source, target)
        except OSError:
            part = target.with_name(target.name + ".copy")
            shutil.copyfile(source, part)
            part.replace(target)


class _Stopped(Exception):  # noqa: N818 - not an error: another file's download failed
    """Ends the other downloads once one has failed."""


class _Total:
    """Progress of several downloads as one; called from their threads."""

    def __init__(self, repo: str, targets: list[tuple[HubFile, Path]], report: DownloadReport) -> None:
        self._repo = repo
        self._report = report
        self._lock = threading.Lock()
        self._done = {file.name: partial_bytes(file, target) for file, target in targets}
        sizes = [file.size_bytes for file, _ in targets]
        self._all = None if None in sizes else sum(filter(None, sizes))
        self.is_stopped = False

    def of(self, name: str) -> DownloadReport:
        """The report of one file's download."""

        def report(what: str, done: int, total: int | None) -> None:
            if self.is_stopped:
                raise _Stopped
            with self._lock:
                if what.startswith("downloading"):
                    self._done[name] = done
                    self._report(f"downloading {self._repo}", sum(self._done.values()), self._all)
                else:
                    self._report(what, done, total)

        return report


def _fetch_all(remote: RemoteRepo, targets: list[tuple[HubFile, Path]], report: DownloadReport) -> None:
    """All files, some at a time; the first failure ends the rest and is raised."""
    total = _Total(remote.repo, targets, report)

    def fetch(file: HubFile, target: Path) -> None:
        with translated_errors(f"{remote.repo}: {file.name}", hub=endpoint_of(remote.host)):
            fetch_hub_file(file, target, total.of(file.name))

    pool = ThreadPoolExecutor(_PARALLEL, thread_name_prefix="download")
    try:
        waiting = [pool.submit(fetch, file, target) for file, target in targets]
        done, _ = wait(waiting, return_when=FIRST_EXCEPTION)
    finally:
        # Also when Ctrl-C comes, at whatever line: the parts stay, and the next call goes on from there.
        total.is_stopped = True
        pool.shutdown(wait=True, cancel_futures=True)
    for future in done:
        failure = future.exception()
        if failure is not None and not isinstance(failure, _Stopped):
            raise failure
