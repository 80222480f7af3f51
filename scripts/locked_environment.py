"""Environments of their own for tests, each made once from a lock with checksums: the part that they share.

A program that has one defines an ``Environment`` and calls ``main`` with it:

    python scripts/NAME.py install [FOLDER]    make it unless it is there; prints its folder
    python scripts/NAME.py lock                renew its lock (needs uv)

Without FOLDER it lies in $XDG_CACHE_HOME/trimtab/test, named after the lock's checksum.
Exit code 3 and one line when this machine cannot have it. Only the standard library is used.
"""

# ruff: noqa: T201
from __future__ import annotations

import argparse
import fcntl
import hashlib
import json
import os
import platform
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
PYTHON = (3, 11)
# Asked only when pip's own settings know no CPU build of torch.
TORCH_INDEX = "https://download.pytorch.org/whl/cpu"
STAMP = "trimtab-complete"
INSTALL_TIMEOUT_S = 900
CANNOT = 3


class CannotInstallError(Exception):
    """The environment cannot be had here; the message is one sentence."""


@dataclass(frozen=True, kw_only=True)
class Environment:
    """What is made.

    ``lock`` and ``wishes`` are files of the repository, ``left_out`` packages that nobody needs though
    others ask for them. ``finish`` does what is left after pip and gives a line that says what it is;
    ``recipe`` is raised when it changes, so that older environments are not taken. ``why_not`` says why
    this machine cannot have it, where there is such a reason.
    """

    name: str
    what: str
    lock: str
    wishes: str
    left_out: tuple[str, ...]
    needed_bytes: int
    recipe: int
    finish: Callable[[Path], str]
    why_not: Callable[[], str | None] = lambda: None

    @property
    def script(self) -> str:
        """The file in scripts that makes it."""
        return f"{self.name.replace('-', '_')}.py"

    @property
    def folder(self) -> Path:
        """Where tests look for it; another lock is another folder."""
        cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
        digest = hashlib.sha256((ROOT / self.lock).read_bytes() + bytes([self.recipe])).hexdigest()[:12]
        return cache / "trimtab" / "test" / f"{self.name}-{digest}"


def main(environment: Environment) -> int:
    parser = argparse.ArgumentParser(description=f"{environment.what}, in an environment of its own.")
    commands = parser.add_subparsers(dest="command", required=True)
    commands.add_parser("install").add_argument("folder", type=Path, nargs="?")
    commands.add_parser("lock")
    options = parser.parse_args()
    if options.command == "lock":
        write_lock(environment)
        return 0
    try:
        print(install(environment, options.folder or environment.folder))
    except CannotInstallError as error:
        print(f"{environment.script}: {error}", file=sys.stderr)
        return CANNOT
    return 0


def why_not() -> str | None:
    """Why this machine cannot have what is locked, as far as that is known beforehand."""
    if sys.version_info[:2] != PYTHON:
        return "the lock holds wheels for Python {}.{} only, this is {}.{}".format(*PYTHON, *sys.version_info)
    if platform.system() != "Linux" or platform.machine() != "x86_64":
        machine = f"{platform.machine()} {platform.system()}"
        return f"the lock holds wheels for x86-64 Linux only, this is {machine}"
    return None


def install(environment: Environment, folder: Path) -> Path:
    """Make the environment in ``folder`` unless it is complete already; one process at a time."""
    reason = why_not() or environment.why_not()
    if reason:
        raise CannotInstallError(reason)
    folder = folder.resolve()
    folder.parent.mkdir(parents=True, exist_ok=True)
    with (folder.parent / f"{folder.name}.lock").open("w") as guard:
        fcntl.flock(guard, fcntl.LOCK_EX)
        if not (folder / STAMP).exists():
            needed = environment.needed_bytes
            if shutil.disk_usage(folder.parent).free < needed:
                raise CannotInstallError(f"{folder.parent} has less than {needed / 1e9:.0f} GB free")
            make(environment, folder)
    return folder


def make(environment: Environment, folder: Path) -> None:
    began_s = time.monotonic()
    print(f"installing {environment.what} into {folder} ...", file=sys.stderr)
    shutil.rmtree(folder, ignore_errors=True)
    subprocess.run([sys.executable, "-m", "venv", str(folder)], check=True, timeout=INSTALL_TIMEOUT_S)
    lock = ROOT / environment.lock
    output = pip_install(folder, lock)
    if output is not None and "torch==" in output:
        output = pip_install(folder, lock, "--extra-index-url", TORCH_INDEX)
    if output is not None:
        raise CannotInstallError(f"pip could not install the lock: {output.strip().splitlines()[-1]}")
    (folder / STAMP).write_text(environment.finish(folder))
    print(f"... took {time.monotonic() - began_s:.0f} s", file=sys.stderr)


def pip_install(folder: Path, lock: Path, *extra: str) -> str | None:
    """None when all of the lock is installed, else what pip said."""
    done = subprocess.run(
        [str(folder / "bin" / "python"), "-m", "pip", "--disable-pip-version-check", "install", "--quiet",
         "--no-compile", "--require-hashes", "--only-binary", ":all:", "--no-deps", "-r", str(lock), *extra],
        capture_output=True, text=True, check=False, timeout=INSTALL_TIMEOUT_S,
    )  # fmt: skip
    return None if done.returncode == 0 else f"{done.stdout}\n{done.stderr}"


def ask_version(program: Path) -> str:
    """What the program answers to --version; CannotInstallError where it does not start."""
    shown = subprocess.run(
        [str(program), "--version"], capture_output=True, text=True, check=False, timeout=120
    )
    if shown.returncode != 0:
        last = (shown.stderr.strip().splitlines() or ["nothing was said"])[-1]
        raise CannotInstallError(f"{program.name} --version fails: {last}")
    return shown.stdout


def write_lock(environment: Environment) -> None:
    """Resolve the wishes with uv, then note for each package the one wheel that pip takes here."""
    with tempfile.TemporaryDirectory() as name:
        resolved, report = Path(name) / "resolved.txt", Path(name) / "report.json"
        left_out = [word for package in environment.left_out for word in ("--no-emit-package", package)]
        subprocess.run(
            [str(Path(sys.executable).with_name("uv")), "pip", "compile", "--quiet", "--no-header",
             "--no-annotate", "--no-emit-index-url", "--no-emit-find-links", "--python-version", "3.11",
             *left_out, *find_links(), str(ROOT / environment.wishes), "-o", str(resolved)],
            check=True,
        )  # fmt: skip
        subprocess.run(
            [sys.executable, "-m", "pip", "--disable-pip-version-check", "install", "--quiet", "--dry-run",
             "--ignore-installed", "--no-deps", "--only-binary", ":all:", "--report", str(report),
             "-r", str(resolved)],
            check=True,
        )  # fmt: skip
        (ROOT / environment.lock).write_text(render_lock(environment, json.loads(report.read_text())))


def find_links() -> list[str]:
    """Where pip looks besides the index, for uv, which does not read pip's settings."""
    places = os.environ.get("PIP_FIND_LINKS", "").split()
    return [word for place in places for word in ("--find-links", place)]


def render_lock(environment: Environment, report: dict[str, Any]) -> str:
    lines = [
        f"# Made by scripts/{environment.script} lock from {environment.wishes}: x86-64 Linux, Python 3.11.",
        "# Complete, to be installed with --no-deps; one wheel for each package.",
    ]
    entries = []
    for item in report["install"]:
        digest = item["download_info"]["archive_info"]["hashes"]["sha256"]
        name = item["metadata"]["name"].lower().replace("_", "-").replace(".", "-")
        entries.append(f"{name}=={item['metadata']['version']} \\\n    --hash=sha256:{digest}")
    return "\n".join([*lines, *sorted(entries)]) + "\n"
