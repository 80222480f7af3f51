"""I/O. Fetches one file of a hub: goes on where it stopped, and checks what came.

huggingface_hub (2.4, read 2026-11-30) throws a partial file away when its process ends, checks the
size only and waits without bound for a listing; a checkpoint of tens of GB needs better. Its session
(proxies, certificates), headers (HF_TOKEN) and error classes are used.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import shutil
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, TypeAlias
from urllib.parse import urlsplit

from trimtab.errors import EnvironmentMissingError
from trimtab.probes.hub_errors import HubUnreachableError, is_passing_error
from trimtab.probes.hub_http import HubHost, check_response, request_headers
from trimtab.units import format_bytes

__all__ = ["DownloadReport", "HubFile", "check_room", "fetch_hub_file", "partial_bytes"]

# Called with (what is being done, bytes done, bytes in all or None).
DownloadReport: TypeAlias = Callable[[str, int, int | None], None]

_HASH_BLOCK_BYTES: Final = 8 * 1024 * 1024
_REPORT_EVERY_S: Final = 0.1
# Attempts in a row that bring no byte before the download gives up.
_MAX_FAILURES: Final = 5
_RETRY_PAUSE_S: Final = 1.0


@dataclass(frozen=True, slots=True, kw_only=True)
class HubFile:
    """One file as a hub lists it; size and digests are None where the hub does not say.

    ``git_sha1`` is git's name for the content, which hubs give for small files in place of SHA-256.
    """

    name: str
    url: str
    size_bytes: int | None
    sha256: str | None
    host: HubHost = "huggingface"
    git_sha1: str | None = None


def fetch_hub_file(file: HubFile, target: Path, report: DownloadReport) -> None:
    """Bring ``file`` to ``target``, which exists only once it is whole and its digest is right.

    An interrupted download leaves ``target``.part, from which the next call goes on. Two callers
    at once make one download. HubUnreachableError when the connection is lost for good,
    EnvironmentMissingError when other bytes came than were announced, OSError for the disk.
    """
    if _is_whole(target, file):
        return
    target.parent.mkdir(parents=True, exist_ok=True)
    with _locked(target, file, report):
        if _is_whole(target, file):
            return
        part = _part_of(target)
        has_leftover = _size_of(part) > 0
        _receive(file, part, report)
        try:
            _check(file, part, report)
        except EnvironmentMissingError:
            if not has_leftover:
                raise
            # The damage may be of an earlier run: once more, from the first byte on.
            _receive(file, part, report)
            _check(file, part, report)
        part.replace(target)


def check_room(folder: Path, needed_bytes: int, what: str) -> None:
    """EnvironmentMissingError when the disk of ``folder``, which need not exist yet, has no such room."""
    nearest = folder
    while not nearest.exists() and nearest != nearest.parent:
        nearest = nearest.parent
    free = shutil.disk_usage(nearest).free
    if free < needed_bytes:
        raise EnvironmentMissingError(
            f"{folder} has {format_bytes(free)} free, {what} needs {format_bytes(needed_bytes)}",
            hint="free some disk, or set XDG_CACHE_HOME to a folder with more room",
        )


def partial_bytes(file: HubFile, target: Path) -> int:
    """Bytes of ``file`` that are on disk already."""
    return _size_of(target) if _is_whole(target, file) else _size_of(_part_of(target))


def _part_of(target: Path) -> Path:
    return target.with_name(target.name + ".part")


def _size_of(path: Path) -> int:
    try:
        return path.stat().st_size
    except OSError:
        return 0


def _is_whole(target: Path, file: HubFile) -> bool:
    # The digest was checked before the file got its name.
    return target.is_file() and file.size_bytes in (None, _size_of(target))


@contextmanager
def _locked(target: Path, file: HubFile, report: DownloadReport) -> Iterator[None]:
    with target.with_name(target.name + ".lock").open("ab") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            report(f"waiting for another trimtab that downloads {file.name}", 0, file.size_bytes)
            fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def _receive(file: HubFile, part: Path, report: DownloadReport) -> None:
    """Fill ``part``; a connection that breaks is made again from the byte where it broke."""
    failures = 0
    cause: Exception | None = None
    while True:
        before = _size_of(part)
        try:
            if file.size_bytes is None or before != file.size_bytes:
                _receive_once(file, part, report)
            if file.size_bytes is None or _size_of(part) >= file.size_bytes:
                return
        except Exception as error:
            if not is_passing_error(error):
                raise
            cause = error
        failures = 0 if _size_of(part) > before else failures + 1
        if failures > _MAX_FAILURES:
            raise _lost(file, part) from cause
        report(f"the connection broke; going on with {file.name}", _size_of(part), file.size_bytes)
        time.sleep(_RETRY_PAUSE_S)


def _receive_once(file: HubFile, part: Path, report: DownloadReport) -> None:
    from huggingface_hub import constants, get_session  # noqa: PLC0415

    have = _size_of(part)
    headers = request_headers(file.host)
    if have:
        headers["Range"] = f"bytes={have}-"
    # Per read. The session follows redirects, and sends the token to the hub's own host only.
    timeout_s = constants.HF_HUB_DOWNLOAD_TIMEOUT
    with get_session().stream("GET", file.url, headers=headers, timeout=timeout_s) as response:
        if response.status_code == 416:
            _settle_range(response, part, have)
            return
        check_response(response, file.host)
        is_rest = have > 0 and response.status_code == 206
        with part.open("ab" if is_rest else "wb") as out:
            _write_blocks(response, out, file, report)
            out.flush()
            os.fsync(out.fileno())


def _settle_range(response: Any, part: Path, have: int) -> None:
    """The hub has no byte after what is here: this is all of it, or it is of another file."""
    if response.headers.get("Content-Range", "").rpartition("/")[2] != str(have):
        part.unlink()


def _write_blocks(response: Any, out: Any, file: HubFile, report: DownloadReport) -> None:
    done = out.tell()
    reported_at_s = 0.0
    # Blocks as they arrive: one of a fixed size would be lost where the connection breaks.
    for block in response.iter_bytes():
        out.write(block)
        done += len(block)
        if time.monotonic() - reported_at_s >= _REPORT_EVERY_S or done == file.size_bytes:
            report(f"downloading {file.name}", done, file.size_bytes)
            reported_at_s = time.monotonic()
        if file.size_bytes is not None and done > file.size_bytes:
            return  # The check refuses it; no need to take in more.


def _lost(file: HubFile, part: Path) -> HubUnreachableError:
    whole = f" of {format_bytes(file.size_bytes)}" if file.size_bytes is not None else ""
    done = format_bytes(_size_of(part))
    return HubUnreachableError(
        f"the connection to {_origin(file)} was lost after {done}{whole} of {file.name}",
        hint="run the same command again: it goes on from there",
    )


def _origin(file: HubFile) -> str:
    """The hub's address as messages show it."""
    parts = urlsplit(file.url)
    return f"{parts.scheme}://{parts.netloc.rpartition('@')[2]}"


def _check(file: HubFile, part: Path, report: DownloadReport) -> None:
    """Size and digest are as announced; else the bytes are thrown away."""
    size = _size_of(part)
    if file.size_bytes not in (None, size):
        difference = f"{size:,} bytes came and {file.size_bytes:,} were announced"
    elif file.sha256 is not None and _sha256_of(part, file, report) != file.sha256.lower():
        difference = "its SHA-256 is not the announced one"
    elif file.sha256 is None and file.git_sha1 is not None and _git_sha1_of(part) != file.git_sha1.lower():
        difference = "its git hash is not the announced one"
    else:
        return
    part.unlink()
    raise EnvironmentMissingError(
        f"{_origin(file)} sent a damaged {file.name}: {difference}; it was thrown away",
        hint="run the same command again; if it stays so, use another mirror (HF_ENDPOINT)",
    )


def _git_sha1_of(part: Path) -> str:
    """Git's name of a blob: SHA-1 over "blob", the size and the content. Guards against damage only."""
    data = part.read_bytes()
    return hashlib.sha1(b"blob %d\0" % len(data) + data, usedforsecurity=False).hexdigest()


def _sha256_of(part: Path, file: HubFile, report: DownloadReport) -> str:
    digest = hashlib.sha256()
    with part.open("rb") as data:
        while block := data.read(_HASH_BLOCK_BYTES):
            digest.update(block)
            report(f"checking {file.name}", data.tell(), file.size_bytes)
    return digest.hexdigest()
