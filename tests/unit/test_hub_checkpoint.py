"""Whole checkpoints from a hub: what is fetched, resumed, reused, refused, listed and removed."""

from __future__ import annotations

import errno
import json
import os
import shutil
import subprocess
import sys
import threading
from pathlib import Path
from types import SimpleNamespace

import pytest
from fake_hub import COMMIT, FakeHub, Fault, wait_for
from huggingface_hub import close_session, constants
from test_model_source import cache_snapshot, write_model

from trimtab.errors import EnvironmentMissingError, StackFileError
from trimtab.probes import hub_download, hub_store
from trimtab.probes.hub_checkpoint import fetch_checkpoint
from trimtab.probes.hub_store import list_cached, remove_cached
from trimtab.probes.model_source import read_model_source
from trimtab.probes.model_source_repo import RepoRequest

REPO = "org/tiny"
FIRST, SECOND = "model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors"
UNWANTED = {
    "README.md": b"hi",
    "consolidated.safetensors": b"x" * 1000,
    "pytorch_model.bin": b"x" * 1000,
    "m-Q8_0.gguf": b"x" * 1000,
    "onnx/model.onnx": b"x" * 1000,
    "original/params.json": b"{}",
}


@pytest.fixture(autouse=True)
def clean_surroundings(monkeypatch, tmp_path):
    """No test sees this user's tokens, caches, proxies or mirrors, nor another test's connections."""
    for name in list(os.environ):
        if name.startswith(("HF_", "HUGGING", "VLLM_", "MODELSCOPE_")) or name.lower().endswith("_proxy"):
            monkeypatch.delenv(name)
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path / "shared"))
    monkeypatch.setattr(constants, "HF_TOKEN_PATH", str(tmp_path / "home" / "token"))
    monkeypatch.setattr(constants, "HF_HUB_ETAG_TIMEOUT", 10)
    monkeypatch.setattr(constants, "HF_HUB_DOWNLOAD_TIMEOUT", 10)
    monkeypatch.setattr(hub_download, "_RETRY_PAUSE_S", 0.01)
    yield
    close_session()


@pytest.fixture
def impatient(monkeypatch):
    """For hubs that say nothing; the others may be as slow as a busy machine is."""
    monkeypatch.setattr(constants, "HF_HUB_ETAG_TIMEOUT", 1)
    monkeypatch.setattr(constants, "HF_HUB_DOWNLOAD_TIMEOUT", 1)


@pytest.fixture
def hub(monkeypatch, tmp_path):
    folder = write_model(tmp_path / "made")
    files = {path.name: path.read_bytes() for path in folder.iterdir()}
    fake = FakeHub(repos={REPO: files | {"merges.txt": b"a b", "tokenizer.json": b"{}"} | UNWANTED})
    fake.start()
    monkeypatch.setenv("HF_ENDPOINT", fake.url)
    yield fake
    fake.stop()


@pytest.fixture
def cache(tmp_path):
    return tmp_path / "cache"


def request_of(cache, repo=REPO, **options) -> RepoRequest:
    usual = {"revision": None, "is_offline": False, "source": "auto"}
    return RepoRequest(repo=repo, cache_dir=cache, **(usual | options))


def fetch(cache, reports=None, *, refreshed=False, **options):
    seen = [] if reports is None else reports
    return fetch_checkpoint(
        request_of(cache, **options), lambda *report: seen.append(report), is_refreshed=refreshed
    )


def wanted(hub) -> dict[str, bytes]:
    return {name: data for name, data in hub.repos[REPO].items() if name not in UNWANTED}


def content(folder) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir() if path.name != ".trimtab.json"}


def test_only_what_the_engine_needs_arrives_byte_for_byte(hub, cache):
    """A checkpoint is one copy of the weights and its texts, in a folder that can be mounted alone."""
    reports = []
    fetched = fetch(cache, reports)

    assert content(fetched.path) == wanted(hub)
    assert fetched.commit == COMMIT
    assert fetched.fetched_bytes == sum(map(len, wanted(hub).values()))
    downloading = [report for report in reports if report[0] == f"downloading {REPO}"]
    assert downloading[-1][1:] == (fetched.fetched_bytes, fetched.fetched_bytes)
    assert [report[1] for report in downloading] == sorted(report[1] for report in downloading)


def test_a_fetched_checkpoint_is_what_plans_use(hub, cache):
    """After a download no plan asks the network."""
    fetched = fetch(cache)
    hub.listing_faults += [Fault(status=503)] * 9
    source = read_model_source(REPO, cache_dir=cache)

    assert (source.local_path, source.revision, source.download_bytes) == (str(fetched.path), COMMIT, 0)


def test_a_second_start_asks_nobody(hub, cache):
    """A restart starts what is here, also without a network, and never brings new weights on its own."""
    first = fetch(cache)
    asked = hub.listings
    hub.commit = "d" * 40

    assert fetch(cache).path == first.path
    assert hub.listings == asked


def test_a_refresh_brings_a_newer_commit_and_keeps_what_did_not_change(hub, cache):
    """`trimtab pull` fetches the changed file only."""
    first = fetch(cache)
    hub.commit = "d" * 40
    hub.repos[REPO]["tokenizer.json"] = b'{"new": 1}'
    hub.asked.clear()

    second = fetch(cache, refreshed=True)

    assert second.path != first.path
    assert content(second.path) == wanted(hub)
    assert set(hub.asked) == {"tokenizer.json"}
    assert (second.path / FIRST).samefile(first.path / FIRST)
    assert fetch(cache).path == second.path


def test_a_refresh_without_a_network_keeps_what_is_here(hub, cache):
    """A hub that is down does not take a model away."""
    first = fetch(cache)
    hub.listing_faults += [Fault(status=503)] * 9

    assert fetch(cache, refreshed=True).path == first.path


def test_a_broken_download_goes_on_where_it_stopped(hub, cache):
    """What came is not fetched again, by this process or the next."""
    hub.file_faults += [Fault(cut_after=3000) for _ in range(9)]
    fetched = fetch(cache)

    assert content(fetched.path) == wanted(hub)
    assert any(asked and asked != "bytes=0-" for asked in hub.asked[FIRST] + hub.asked[SECOND])


def test_a_killed_download_goes_on_later(hub, cache):
    """A kill -9 in the middle leaves parts that the next start completes, and nothing that looks whole."""
    hub.file_faults += [Fault() for _ in range(5)] + [
        Fault(cut_after=2000),
        Fault(hang_s=30),
        Fault(hang_s=30),
    ]
    program = (
        "import sys; from pathlib import Path\n"
        "from trimtab.probes.hub_checkpoint import fetch_checkpoint\n"
        "from trimtab.probes.model_source_repo import RepoRequest\n"
        "fetch_checkpoint(RepoRequest(repo=sys.argv[1], cache_dir=Path(sys.argv[2]), revision=None,"
        " is_offline=False, source='auto'), lambda *a: None)"
    )
    process = subprocess.Popen([sys.executable, "-c", program, REPO, str(cache)])
    wait_for(lambda: any(cache.rglob("*.part")), timeout_s=30)
    process.kill()
    process.wait(timeout=10)
    hub.file_faults.clear()
    assert [model.is_complete for model in list_cached(cache)] == [False]
    with pytest.raises(EnvironmentMissingError):
        fetch(cache, is_offline=True)

    assert content(fetch(cache).path) == wanted(hub)


@pytest.mark.parametrize("name", [FIRST, "config.json"])
def test_damaged_bytes_are_thrown_away(hub, cache, name):
    """Other bytes than announced are never started; small files are checked as well as weights."""
    good = hub.repos[REPO][name]
    if name == "config.json":
        hub.says_digests = False
    hub.file_faults += [Fault(body=good[:-1] + b"!")] * 40
    with pytest.raises(EnvironmentMissingError, match="damaged"):
        fetch(cache)
    hub.file_faults.clear()
    assert [model.is_complete for model in list_cached(cache)] == [False]

    assert content(fetch(cache).path) == wanted(hub)


def test_a_full_disk_is_said_before_a_byte_is_fetched(hub, cache, monkeypatch):
    """What is missing is told in bytes, with what would help."""
    monkeypatch.setattr(shutil, "disk_usage", lambda path: SimpleNamespace(free=1000))

    with pytest.raises(EnvironmentMissingError, match=r"1000 B free, org/tiny needs") as caught:
        fetch(cache)
    assert caught.value.hint
    assert hub.asked == {}


def test_a_disk_that_fills_in_the_middle_leaves_parts(hub, cache, monkeypatch):
    """The other downloads end, and the next one goes on."""

    def full(*_arguments):
        raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as patched:
        patched.setattr(hub_download, "_write_blocks", full)
        with pytest.raises(EnvironmentMissingError, match="no space left"):
            fetch(cache)

    assert content(fetch(cache).path) == wanted(hub)


@pytest.mark.parametrize(
    ("fault", "error", "words"),
    [
        (Fault(status=403, headers={"X-Error-Code": "GatedRepo"}), EnvironmentMissingError, "gated"),
        (Fault(status=404, headers={"X-Error-Code": "RepoNotFound"}), StackFileError, "has no"),
        (Fault(status=429), EnvironmentMissingError, "429"),
        (Fault(status=500), EnvironmentMissingError, "500"),
        (Fault(hang_s=5), EnvironmentMissingError, "cannot be reached"),
    ],
    ids=["gated", "404", "429", "5xx", "hangs"],
)
def test_hub_faults_are_one_sentence_each(hub, impatient, cache, fault, error, words):
    """Nothing half-started is left, and the reader knows what to do."""
    hub.listing_faults += [fault] * 9

    with pytest.raises(error, match=words) as caught:
        fetch(cache)
    assert caught.value.hint
    assert list_cached(cache) == ()


def test_offline_uses_what_is_here_and_fetches_nothing(hub, cache):
    """Offline is a promise."""
    with pytest.raises(EnvironmentMissingError):
        fetch(cache, is_offline=True)
    assert hub.listings == 0
    first = fetch(cache)

    assert fetch(cache, is_offline=True, refreshed=False).path == first.path


def test_a_shared_cache_is_used_where_it_lies(hub, cache, tmp_path):
    """What another program downloaded is neither fetched nor copied."""
    snapshot = write_model(cache_snapshot(tmp_path / "shared", REPO))

    assert fetch(cache).path == snapshot
    assert hub.listings == 0
    assert list_cached(cache) == ()


@pytest.mark.parametrize(
    ("files", "words"),
    [
        ({"m.gguf": b""}, "GGUF"),
        ({"config.json": b"{}"}, "no weights"),
        ({"adapter_config.json": b"{}", "adapter_model.safetensors": b""}, "LoRA"),
    ],
    ids=["gguf", "config only", "adapter"],
)
def test_what_is_no_checkpoint_is_not_fetched(hub, cache, files, words):
    """Gigabytes of something else are not downloaded first."""
    hub.repos[REPO] = files

    with pytest.raises(StackFileError, match=words):
        fetch(cache)
    assert hub.asked == {}


def test_a_shard_cut_off_on_the_hub_is_noticed(hub, cache):
    """A whole download of a broken upload is not started."""
    hub.repos[REPO][SECOND] = hub.repos[REPO][SECOND][:-100]

    with pytest.raises(StackFileError, match="cut off or damaged"):
        fetch(cache)
    assert [model.is_complete for model in list_cached(cache)] == [False]


def test_two_at_once_make_one_download(hub, cache):
    """Two starts at the same moment share one download, and the second is told that it waits."""
    hub.file_faults += [Fault() for _ in range(3)] + [Fault(cut_after=500) for _ in range(20)]
    reports: list[list[tuple]] = [[], []]
    paths = []
    threads = [
        threading.Thread(target=lambda seen=seen: paths.append(fetch(cache, seen).path)) for seen in reports
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(timeout=60)

    assert len(set(paths)) == 1
    assert len(paths) == 2
    assert sum(asked is None for asked in hub.asked[FIRST]) == 1


def test_modelscope_brings_the_same_files(hub, cache, monkeypatch):
    """Where vLLM uses ModelScope, so does the download."""
    monkeypatch.setenv("MODELSCOPE_ENDPOINT", hub.url)
    monkeypatch.setenv("HF_ENDPOINT", "http://127.0.0.1:9")
    monkeypatch.setenv("HF_TOKEN", "hf_secret")
    fetched = fetch(cache, source="modelscope")

    assert content(fetched.path) == wanted(hub)
    assert set(hub.tokens) == {None}


def test_a_pinned_revision_is_kept_beside_the_newest(hub, cache):
    """A pinned model stays what it was."""
    pinned = fetch(cache, revision="v1")
    hub.commit = "d" * 40
    newest = fetch(cache, refreshed=True)

    assert pinned.path != newest.path
    assert fetch(cache, revision="v1").path == pinned.path
    assert hub.revisions[0] == "v1"


def test_the_list_says_what_there_is(hub, cache):
    """Every model with its size; parts of a download are seen as such."""
    fetch(cache)
    half = cache / "hub" / "a" / "b-GGUF" / "0123456789abcdef"
    half.mkdir(parents=True)
    (half / "b-Q8_0.gguf.part").write_bytes(b"12345")
    whole = half.with_name("fedcba9876543210")
    whole.mkdir()
    (whole / "b-Q4_K_M.gguf").write_bytes(b"123")
    (cache / "checkpoints" / "x" / "empty" / "c").mkdir(parents=True)

    rows = [(model.repo, model.kind, model.is_complete) for model in list_cached(cache)]

    assert rows == [("a/b-GGUF", "gguf", False), ("a/b-GGUF", "gguf", True), (REPO, "checkpoint", True)]
    checkpoint = list_cached(cache)[-1]
    assert checkpoint.commit == COMMIT
    assert checkpoint.size_bytes >= sum(map(len, wanted(hub).values()))


def test_removing_gives_the_room_back(hub, cache):
    """A removed model is gone with its locks; another one stays."""
    fetch(cache)
    other = cache / "hub" / "a" / "b-GGUF" / "0123456789abcdef"
    other.mkdir(parents=True)
    (other / "b.gguf").write_bytes(b"123")

    removed = remove_cached(cache, "ORG/tiny")

    assert [model.repo for model in removed] == [REPO]
    assert [model.repo for model in list_cached(cache)] == ["a/b-GGUF"]
    assert list((cache / "checkpoints").iterdir()) == []
    with pytest.raises(StackFileError, match="is not in trimtab's cache") as caught:
        remove_cached(cache, REPO)
    assert "a/b-GGUF" in caught.value.hint


@pytest.mark.parametrize("name", ["", "..", "../..", "org", "org/../..", "/etc", "org/tiny/x"])
def test_removing_takes_nothing_else(hub, cache, name):
    """No name leads out of the cache."""
    fetch(cache)
    with pytest.raises(StackFileError):
        remove_cached(cache, name)

    assert len(list_cached(cache)) == 1


def test_a_running_download_is_not_removed(hub, cache):
    """Files are not taken away under another process."""
    folder = fetch(cache).path
    with (
        hub_store.folder_lock(folder, is_waiting=True),
        pytest.raises(EnvironmentMissingError, match="being downloaded"),
    ):
        remove_cached(cache, REPO)
    assert folder.exists()


@pytest.mark.parametrize(
    "damage",
    [
        lambda folder: (folder / SECOND).unlink(),
        lambda folder: (folder / SECOND).write_bytes(b"x"),
        lambda folder: (folder / ".trimtab.json").write_text("{"),
        lambda folder: (folder / ".trimtab.json").write_text(json.dumps({"schema": 9})),
    ],
    ids=["file gone", "file cut", "record damaged", "record of another version"],
)
def test_a_copy_that_was_damaged_later_is_completed(hub, cache, damage):
    """A file that somebody deleted is fetched again, the others are not."""
    folder = fetch(cache).path
    damage(folder)

    assert content(fetch(cache).path) == wanted(hub)


def test_names_with_folders_stay_inside(hub, cache):
    """A malicious mirror cannot write elsewhere."""
    hub.repos[REPO]["../../../evil.json"] = b"{}"
    hub.repos[REPO]["/etc/evil.json"] = b"{}"
    hub.repos[REPO]["additional_chat_templates/tool.jinja"] = b"x"
    folder = fetch(cache).path

    assert (folder / "additional_chat_templates" / "tool.jinja").read_bytes() == b"x"
    assert not list(Path(cache).rglob("evil.json"))
