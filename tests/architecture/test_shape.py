"""Files and functions stay small, exports are what they say, and the wheel holds the program only."""

import ast
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

import trimtab

ROOT = Path(__file__).parents[2]
SOURCES = sorted((ROOT / "src" / "trimtab").rglob("*.py"))
MAX_FILE_LINES = 400
MAX_FUNCTION_LINES = 50
LOCKS = sorted(path.name for path in ROOT.glob("requirements*.lock"))


@pytest.mark.parametrize("path", SOURCES, ids=lambda path: str(path.relative_to(ROOT / "src")))
def test_files_and_functions_stay_readable(path):
    """A file is read in minutes, a function at a glance."""
    text = path.read_text()
    functions = [
        (node.name, (node.end_lineno or 0) - node.lineno + 1)
        for node in ast.walk(ast.parse(text))
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
    ]

    assert text.count("\n") <= MAX_FILE_LINES
    assert [item for item in functions if item[1] > MAX_FUNCTION_LINES] == []


@pytest.mark.parametrize("path", SOURCES, ids=lambda path: str(path.relative_to(ROOT / "src")))
def test_no_module_is_named_for_nothing(path):
    """A name says what is inside; these never do."""
    assert path.stem not in {"utils", "helpers", "common", "manager", "handler", "misc"}


def test_public_names_are_sorted_and_real():
    """What the package exports exists."""
    assert trimtab.__all__ == sorted(trimtab.__all__)
    assert all(hasattr(trimtab, name) for name in trimtab.__all__)


def test_changelog_knows_the_version():
    """A released version has its entry; the one being worked on is Unreleased."""
    text = (ROOT / "CHANGELOG.md").read_text()

    assert f"[{trimtab.__version__}]" in text or "[Unreleased]" in text


def test_layers_import_downwards_only():
    """The import contract of pyproject.toml holds."""
    done = subprocess.run(
        [str(Path(sys.executable).parent / "lint-imports"), "--no-cache"],
        cwd=ROOT, capture_output=True, text=True, check=False,
    )  # fmt: skip

    assert done.returncode == 0, done.stdout


def test_generated_files_are_up_to_date():
    """Schema and reference pages say what the code does."""
    done = subprocess.run(
        [sys.executable, "scripts/generate.py", "--check"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )

    assert done.returncode == 0, done.stderr


def test_wheel_holds_the_program_only(tmp_path):
    """Whoever installs trimtab gets no tests and no benchmarks."""
    subprocess.run(
        [sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "--disable-pip-version-check",
         "--no-build-isolation", "--wheel-dir", str(tmp_path), str(ROOT)],
        check=True, capture_output=True,
    )  # fmt: skip
    names = zipfile.ZipFile(next(tmp_path.glob("*.whl"))).namelist()

    assert {name.split("/")[0].split("-")[0] for name in names} == {"trimtab"}
    assert "trimtab/cli/main.py" in names
    assert not [name for name in names if "test" in name.lower() or "benchmarks" in name.lower()]
    assert "trimtab/py.typed" in names


@pytest.mark.parametrize("file", LOCKS)
def test_locks_have_hashes_and_no_addresses(file):
    """A lock pins bytes, not places."""
    text = (ROOT / file).read_text()

    assert "--hash=sha256:" in text
    assert "://" not in text


def test_running_needs_nothing_heavy():
    """The base install brings no torch and no vLLM."""
    names = {
        line.split("==")[0] for line in (ROOT / "requirements.lock").read_text().splitlines() if "==" in line
    }

    assert not names & {"torch", "vllm", "ray", "numpy", "transformers"}
