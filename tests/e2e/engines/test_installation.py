"""A wheel of trimtab in an environment of its own, with nothing of the repository around it."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]

pytestmark = [pytest.mark.engine, pytest.mark.slow, pytest.mark.timeout(400)]


def run(*argv, folder, **environment):
    """Away from the repository, with an empty HOME and no variables of this user but pip's."""
    kept = {name: value for name, value in os.environ.items() if name.startswith("PIP_")}
    done = subprocess.run(
        argv,
        cwd=folder,
        env=kept | {"PATH": os.environ["PATH"], "HOME": str(folder)} | environment,
        capture_output=True, text=True, timeout=300, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_an_installed_wheel_fetches_the_default_model_and_plans_it(tmp_path):
    """``pip install`` is enough: the command works, and the embedded model comes into the cache by itself."""
    pip = [sys.executable, "-m", "pip", "--quiet", "--disable-pip-version-check"]
    run(
        *pip,
        "wheel",
        "--no-deps",
        "--no-build-isolation",
        "--wheel-dir",
        str(tmp_path),
        str(ROOT),
        folder=tmp_path,
    )
    run(sys.executable, "-m", "venv", str(tmp_path / "venv"), folder=tmp_path)
    own_pip = [str(tmp_path / "venv/bin/python"), *pip[1:]]
    lock = str(ROOT / "requirements.lock")
    run(*own_pip, "install", "--only-binary", ":all:", "--require-hashes", "-r", lock, folder=tmp_path)
    run(*own_pip, "install", "--no-deps", str(next(tmp_path.glob("*.whl"))), folder=tmp_path)
    run(*own_pip, "check", folder=tmp_path)

    cache = tmp_path / "cache"
    trimtab = str(tmp_path / "venv/bin/trimtab")
    plan = json.loads(run(trimtab, "plan", "--json", folder=tmp_path, XDG_CACHE_HOME=str(cache)))

    assert plan["fits"]
    assert plan["models"]["smollm2-135m"]["checkpoint"].startswith(str(cache))
    assert [path.suffix for path in (cache / "trimtab").iterdir() if path.stat().st_size > 10**6] == [".gguf"]
