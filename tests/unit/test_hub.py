"""Models from a hub: what is chosen, fetched, resumed and refused, over real HTTP on 127.0.0.1."""

from __future__ import annotations

import errno
import hashlib
import os
import resource
import shutil
import socket
import subprocess
import sys
import threading
from pathlib import Path
from types import SimpleNamespace

import pytest
from fake_hub import FakeHub, Fault, wait_for
from huggingface_hub import close_session, constants

from trimtab.errors import EnvironmentMissingError, StackFileError
from trimtab.probes import hub_download
from trimtab.probes.hub import is_repo_id, resolve_checkpoint

REPO = "org/tiny-GGUF"
DATA = os.urandom(3 * 1024 * 1024 + 17)
OTHER = os.urandom(5000)
GATED = {"X-Error-Code": "GatedRepo"}
NO_REPO = {"X-Error-Code": "RepoNotFound"}
PORTAL = b"<html>log in</html>"
ONE_FILE = {"README.md": b"hi", "tiny.Q8_0.gguf": DATA}


@pytest.fixture(autouse=True)
def clean_surroundings(monkeypatch, tmp_path):
    """No test sees this user's tokens, caches, proxies or mirrors, nor another test's connections."""
    for name in list(os.environ):
        if name.startswith(("HF_", "HUGGING", "XDG_")) or name.lower().endswith("_proxy"):
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
def hub(monkeypatch):
    fake = FakeHub(repos={REPO: dict(ONE_FILE)})
    fake.start()
    monkeypatch.setenv("HF_ENDPOINT", fake.url)
    yield fake
    fake.stop()


@pytest.fixture
def cache(tmp_path):
    return tmp_path / "cache"


def resolve(text, cache, reports=None):
    seen = [] if reports is None else reports
    return resolve_checkpoint(text, cache_dir=cache, report=lambda *args: seen.append(args))


def files_in(folder):
    """Names of what a user would find there, locks apart."""
    return sorted(path.name for path in folder.rglob("*") if path.is_file() and path.suffix != ".lock")


def assert_one_sentence(error):
    text = error.value.message
    assert "\n" not in text
    assert "Traceback" not in text
    assert not text.endswith(".")
    assert error.value.hint


def test_the_only_checkpoint_is_fetched_whole(hub, cache):
    """`trimtab up org/name-GGUF` brings the model, byte for byte, and says how far it is."""
    reports = []
    path = resolve(REPO, cache, reports)

    assert path.read_bytes() == DATA
    assert path.name == "tiny.Q8_0.gguf"
    assert files_in(cache) == ["tiny.Q8_0.gguf"]
    done = [report[1] for report in reports if report[0] == "downloading tiny.Q8_0.gguf"]
    assert done == sorted(done)
    assert done[-1] == len(DATA) == reports[-1][2]


def test_a_second_start_fetches_nothing(hub, cache):
    """What is here is not downloaded again."""
    first = resolve(REPO, cache)

    assert resolve(f"{REPO}:tiny.Q8_0.gguf", cache) == first
    assert len(hub.asked["tiny.Q8_0.gguf"]) == 1


def test_a_commit_elsewhere_in_the_repo_fetches_nothing(hub, cache):
    """A changed README does not cost a download."""
    first = resolve(REPO, cache)
    hub.commit = "d" * 40

    assert resolve(REPO, cache) == first
    assert len(hub.asked["tiny.Q8_0.gguf"]) == 1


def test_a_changed_model_is_fetched_again(hub, cache):
    """A repo that replaces its file gives the new one."""
    first = resolve(REPO, cache)
    hub.repos[REPO]["tiny.Q8_0.gguf"] = OTHER

    second = resolve(REPO, cache)

    assert second != first
    assert second.read_bytes() == OTHER


def test_a_cut_connection_goes_on_where_it_broke(hub, cache):
    """A flaky line costs the rest of the file, not all of it."""
    hub.file_faults += [Fault(cut_after=1_000_000), Fault(cut_after=500_000)]

    assert resolve(REPO, cache).read_bytes() == DATA
    first, second, third = hub.asked["tiny.Q8_0.gguf"]
    assert first is None
    assert 0 < int(second.removeprefix("bytes=").rstrip("-")) <= 1_000_000
    assert int(third.removeprefix("bytes=").rstrip("-")) > 1_000_000 - 65536


def test_the_next_start_goes_on_where_the_last_one_stopped(hub, cache):
    """A connection that stays away ends in one sentence; the next `up` fetches only the rest."""
    hub.file_faults += [Fault(cut_after=2_000_000)] + [Fault(cut_after=0)] * 20
    with pytest.raises(EnvironmentMissingError, match=r"was lost after 1\.9 MiB of 3\.0 MiB") as error:
        resolve(REPO, cache)
    assert_one_sentence(error)
    assert files_in(cache) == ["tiny.Q8_0.gguf.part"]

    hub.file_faults.clear()
    hub.asked.clear()

    assert resolve(REPO, cache).read_bytes() == DATA
    assert files_in(cache) == ["tiny.Q8_0.gguf"]
    (asked,) = hub.asked["tiny.Q8_0.gguf"]
    assert int(asked.removeprefix("bytes=").rstrip("-")) > 1_900_000


def test_a_hub_without_ranges_is_read_from_the_start(hub, cache):
    """A mirror that ignores Range never leads to a file with a doubled beginning."""
    hub.file_faults += [Fault(cut_after=1_000_000), Fault(ignores_range=True)]

    assert resolve(REPO, cache).read_bytes() == DATA


def test_a_part_longer_than_the_file_is_thrown_away(hub, cache):
    """What another version left behind does not block the download for ever."""
    resolve(REPO, cache)
    target = next(cache.rglob("tiny.Q8_0.gguf"))
    target.rename(target.with_name(target.name + ".part"))
    with target.with_name(target.name + ".part").open("ab") as part:
        part.write(b"more")

    assert resolve(REPO, cache).read_bytes() == DATA


def test_a_hub_that_says_no_sizes_and_digests_still_works(hub, cache):
    """A plain mirror is enough."""
    hub.says_sizes = hub.says_digests = False

    assert resolve(REPO, cache).read_bytes() == DATA
    assert resolve(REPO, cache).read_bytes() == DATA


@pytest.mark.parametrize(
    ("lie", "words"),
    [
        pytest.param({"lying_digests": {"tiny.Q8_0.gguf": "0" * 64}}, "SHA-256", id="digest"),
        pytest.param({"lying_sizes": {"tiny.Q8_0.gguf": len(DATA) - 5}}, "were announced", id="longer"),
        pytest.param({"lying_sizes": {"tiny.Q8_0.gguf": len(DATA) + 5}}, "was lost|announced", id="shorter"),
    ],
)
def test_other_bytes_than_announced_never_become_a_model(hub, cache, lie, words):
    """A damaged or swapped file is refused."""
    for name, value in lie.items():
        setattr(hub, name, value)

    with pytest.raises(EnvironmentMissingError, match=words) as error:
        resolve(REPO, cache)

    assert_one_sentence(error)
    assert "tiny.Q8_0.gguf" not in files_in(cache)


@pytest.mark.parametrize(
    ("fault", "kind", "words"),
    [
        pytest.param(
            Fault(status=401, headers={"X-Error-Message": "Invalid credentials in Authorization header"}),
            EnvironmentMissingError,
            "answered 401",
            id="bad-token",
        ),
        pytest.param(Fault(status=401), EnvironmentMissingError, "answered 401", id="private-or-none"),
        pytest.param(Fault(status=403, headers=GATED), EnvironmentMissingError, "is gated", id="gated"),
        pytest.param(Fault(status=403), EnvironmentMissingError, "answered 403", id="forbidden"),
        pytest.param(Fault(status=404, headers=NO_REPO), StackFileError, "has no org/tiny", id="missing"),
        pytest.param(Fault(status=404), EnvironmentMissingError, "answered 404", id="not-a-hub"),
        pytest.param(Fault(status=429), EnvironmentMissingError, "answered 429", id="rate-limit"),
        pytest.param(Fault(status=500), EnvironmentMissingError, "answered 500", id="fault"),
        pytest.param(Fault(body=PORTAL), EnvironmentMissingError, "as a Hugging Face", id="portal"),
        pytest.param(Fault(body=b"[]"), EnvironmentMissingError, "as a Hugging Face", id="other-json"),
        pytest.param(Fault(body=b'{"id": "a"}'), StackFileError, "holds no .gguf", id="no-files"),
    ],
)
def test_each_refusal_of_a_listing_has_its_sentence(hub, cache, fault, kind, words):
    """The user reads what to do, not an HTTP trace, and nothing is left behind."""
    hub.listing_faults.append(fault)

    with pytest.raises(kind, match=words) as error:
        resolve(REPO, cache)

    assert_one_sentence(error)
    assert files_in(cache) == []


@pytest.mark.parametrize(
    ("status", "headers", "kind", "words"),
    [
        pytest.param(403, {"X-Error-Code": "GatedRepo"}, EnvironmentMissingError, "is gated", id="gated"),
        pytest.param(404, {"X-Error-Code": "EntryNotFound"}, StackFileError, "has no org", id="gone"),
        pytest.param(429, {}, EnvironmentMissingError, "answered 429", id="rate-limit"),
        pytest.param(503, {}, EnvironmentMissingError, "was lost", id="fault-that-stays"),
    ],
)
def test_each_refusal_of_a_file_has_its_sentence(hub, cache, status, headers, kind, words):
    """A repo that lists but does not give says why."""
    hub.file_faults += [Fault(status=status, headers=headers)] * 10

    with pytest.raises(kind, match=words) as error:
        resolve(REPO, cache)

    assert_one_sentence(error)
    assert files_in(cache) == []


def test_a_passing_fault_of_the_hub_is_waited_out(hub, cache):
    """One 502 in the middle of a download is no reason to stop."""
    hub.file_faults += [Fault(cut_after=1_000_000), Fault(status=502), Fault(status=503)]

    assert resolve(REPO, cache).read_bytes() == DATA


@pytest.mark.timeout(30)
def test_a_silent_hub_is_given_up(hub, impatient, cache):
    """A proxy that takes the connection and says nothing does not hang `up` for ever."""
    hub.listing_faults.append(Fault(hang_s=60))

    with pytest.raises(EnvironmentMissingError, match="cannot be reached") as error:
        resolve(REPO, cache)

    assert_one_sentence(error)


@pytest.mark.timeout(30)
def test_a_download_that_falls_silent_is_given_up(hub, impatient, cache):
    """The same in the middle of the file."""
    hub.file_faults += [Fault(hang_s=60)] * 10
    with pytest.raises(EnvironmentMissingError, match="was lost after 0 B"):
        resolve(REPO, cache)


def test_nobody_listening_is_one_sentence(monkeypatch, cache):
    """Without a network the user reads what would work."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        monkeypatch.setenv("HF_ENDPOINT", f"http://127.0.0.1:{free.getsockname()[1]}")
        with pytest.raises(EnvironmentMissingError, match="cannot be reached") as error:
            resolve(REPO, cache)

    assert "ModelScope" in error.value.hint
    assert_one_sentence(error)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        pytest.param("HF_ENDPOINT", "hf-mirror.com", id="mirror-without-scheme"),
        pytest.param("HF_ENDPOINT", "http://[", id="mirror-malformed"),
        pytest.param("HF_ENDPOINT", "ftp://x", id="mirror-of-ftp"),
        pytest.param("HTTP_PROXY", "proxy:x:y", id="proxy-malformed"),
        pytest.param("HTTP_PROXY", "socks5://127.0.0.1:1", id="proxy-of-socks"),
        pytest.param("HTTP_PROXY", "http://127.0.0.1:1", id="proxy-away"),
    ],
)
def test_a_mistyped_address_is_one_sentence(monkeypatch, cache, name, value):
    """A wrong variable is named or at least the address that was tried."""
    monkeypatch.setenv("HF_ENDPOINT", "http://hub.invalid")
    monkeypatch.setenv(name, value)

    with pytest.raises(EnvironmentMissingError) as error:
        resolve(REPO, cache)

    assert_one_sentence(error)
    assert "HF_ENDPOINT" in error.value.message + error.value.hint


def test_the_token_is_sent_to_the_hub(hub, cache, monkeypatch):
    """HF_TOKEN opens what is private."""
    monkeypatch.setenv("HF_TOKEN", "hf_secret")
    resolve(REPO, cache)

    assert set(hub.tokens) == {"Bearer hf_secret"}


def test_no_room_is_said_before_the_first_byte(hub, cache, monkeypatch):
    """Nobody waits an hour to learn that the disk is too small."""
    monkeypatch.setattr(shutil, "disk_usage", lambda path: SimpleNamespace(free=1000))

    with pytest.raises(EnvironmentMissingError, match="has 1000 B free") as error:
        resolve(REPO, cache)

    assert "needs 3.0 MiB" in error.value.message
    assert_one_sentence(error)
    assert hub.asked == {}


def test_a_started_download_needs_room_for_its_rest_only(hub, cache, monkeypatch):
    """A disk that has room for what is missing is enough."""
    hub.file_faults += [Fault(cut_after=3_000_000)] + [Fault(cut_after=0)] * 9
    with pytest.raises(EnvironmentMissingError):
        resolve(REPO, cache)
    hub.file_faults.clear()
    monkeypatch.setattr(shutil, "disk_usage", lambda path: SimpleNamespace(free=1_000_000))

    assert resolve(REPO, cache).read_bytes() == DATA


def test_a_disk_that_fills_up_keeps_what_came(hub, cache):
    """A full disk is one sentence, and after making room the download goes on."""
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (2_000_000, limits[1]))
    try:
        with pytest.raises(EnvironmentMissingError, match="cannot store") as error:
            resolve(REPO, cache)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert os.strerror(errno.EFBIG).lower() in error.value.message
    assert "free some disk" in error.value.hint
    assert_one_sentence(error)
    assert files_in(cache) == ["tiny.Q8_0.gguf.part"]
    hub.asked.clear()

    assert resolve(REPO, cache).read_bytes() == DATA
    assert hub.asked["tiny.Q8_0.gguf"] == ["bytes=2000000-"]


def test_a_cache_that_cannot_be_written_is_one_sentence(hub, tmp_path):
    """A wrong XDG_CACHE_HOME is named."""
    (tmp_path / "file").write_text("")

    with pytest.raises(EnvironmentMissingError, match="not a directory") as error:
        resolve(REPO, tmp_path / "file" / "cache")

    assert "XDG_CACHE_HOME" in error.value.hint
    assert_one_sentence(error)


@pytest.mark.parametrize(
    "named", [REPO, f"{REPO}:Q8_0", f"{REPO}:tiny.Q8_0.gguf"], ids=["repo", "quant", "file"]
)
def test_without_a_network_the_cache_answers(hub, cache, monkeypatch, named):
    """A model that is here starts on the train, with and without HF_HUB_OFFLINE."""
    fetched = resolve(REPO, cache)
    hub.stop()

    assert resolve(named, cache) == fetched
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    listings = hub.listings

    assert resolve(named, cache) == fetched
    assert hub.listings == listings


@pytest.mark.parametrize("named", [REPO, f"{REPO}:tiny.Q8_0.gguf"], ids=["repo", "file"])
def test_offline_without_a_cache_says_so(hub, cache, monkeypatch, named):
    """HF_HUB_OFFLINE is obeyed: no byte is sent."""
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")

    with pytest.raises(EnvironmentMissingError, match="HF_HUB_OFFLINE is set") as error:
        resolve(named, cache)

    assert_one_sentence(error)
    assert hub.listings == 0


def test_a_file_of_the_shared_cache_is_used_there(hub, cache, tmp_path, monkeypatch):
    """What other programs have downloaded is not downloaded again, online and offline."""
    folder = tmp_path / "shared" / "models--org--tiny-GGUF"
    shared = folder / "snapshots" / hub.commit / "tiny.Q8_0.gguf"
    shared.parent.mkdir(parents=True)
    shared.write_bytes(DATA)
    (folder / "refs").mkdir()
    (folder / "refs" / "main").write_text(hub.commit)

    assert resolve(REPO, cache) == shared
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")

    assert resolve(REPO, cache) == shared
    assert hub.asked == {}


QUANTS = dict.fromkeys(
    ("m-BF16.gguf", "m-F16.gguf", "m-Q4_K_M.gguf", "m-Q4_K_S.gguf", "mmproj-m-Q4_K_M.gguf"), OTHER
)


@pytest.mark.parametrize(
    ("wanted", "chosen"),
    [
        pytest.param("", "m-Q4_K_M.gguf", id="usual-quant"),
        pytest.param(":F16", "m-F16.gguf", id="whole-word"),
        pytest.param(":q4_k_s", "m-Q4_K_S.gguf", id="any-case"),
        pytest.param(":m-BF16.gguf", "m-BF16.gguf", id="file"),
    ],
)
def test_a_quant_is_chosen_by_its_name(hub, cache, wanted, chosen):
    """repo:QUANT means that quant and no other."""
    hub.repos[REPO] = dict(QUANTS)

    assert resolve(REPO + wanted, cache).name == chosen


@pytest.mark.parametrize(
    ("files", "wanted", "words"),
    [
        pytest.param(list(QUANTS), ":Q4_K", "no checkpoint 'Q4_K'", id="part-of-a-quant"),
        pytest.param(list(QUANTS), ":Q2_K", "no checkpoint 'Q2_K'", id="no-such-quant"),
        pytest.param(["a-F16.gguf", "a-Q8_0.gguf"], "", "2 checkpoints and none called", id="no-usual-quant"),
        pytest.param(["a-Q4_K_M.gguf", "b-Q4_K_M.gguf"], "", "2 checkpoints called", id="two-models"),
        pytest.param(["model.safetensors", "config.json"], "", "holds no .gguf model", id="safetensors-only"),
        pytest.param(["mmproj-F16.gguf", "imatrix.gguf"], "", "holds no .gguf model", id="no-language-model"),
        pytest.param(
            ["a-00001-of-00003.gguf", "a-00003-of-00003.gguf"], "", "part 2 is missing", id="part-missing"
        ),
        pytest.param([], "", "holds no .gguf model", id="empty"),
    ],
)
def test_a_repo_that_leaves_a_choice_lists_it(hub, cache, files, wanted, words):
    """Nothing is guessed; the sentence names what there is."""
    hub.repos[REPO] = dict.fromkeys(files, OTHER)

    with pytest.raises(StackFileError, match=words) as error:
        resolve(REPO + wanted, cache)

    assert_one_sentence(error)
    assert hub.asked == {}


def test_all_parts_of_a_split_checkpoint_are_fetched(hub, cache):
    """A big model comes in parts, and the engine gets the first with the others beside it."""
    parts = {f"Q4_K_M/big-Q4_K_M-{number:05d}-of-00003.gguf": bytes([number]) * 9000 for number in (1, 2, 3)}
    hub.repos[REPO] = dict(parts) | {"big-Q8_0.gguf": OTHER}

    first = resolve(REPO, cache)

    assert first.name == "big-Q4_K_M-00001-of-00003.gguf"
    assert files_in(first.parent) == sorted(Path(name).name for name in parts)
    assert resolve(f"{REPO}:big-Q4_K_M-00002-of-00003.gguf", cache) == first
    assert {name: len(ranges) for name, ranges in hub.asked.items()} == dict.fromkeys(parts, 1)


@pytest.mark.parametrize(
    "name",
    ["sub folder/ä ö.gguf", "a#b?c%20d.gguf", "a+b&c=d.gguf", "-rf.gguf", "'\";$(x).gguf", "模型.gguf"],
    ids=["space", "url", "query", "dash", "shell", "chinese"],
)
def test_odd_names_arrive_under_their_own_name(hub, cache, name):
    """Whatever a repo calls its file, it is fetched and stored inside the cache."""
    hub.repos[REPO] = {name: DATA}

    path = resolve(REPO, cache)

    assert path.read_bytes() == DATA
    assert path.name == name.rsplit("/", 1)[-1]


@pytest.mark.parametrize("name", ["../../../evil.gguf", "/etc/evil.gguf", "a/../../evil.gguf"], ids=str)
def test_no_name_leads_out_of_the_cache(hub, cache, name, tmp_path):
    """A malicious mirror cannot write elsewhere."""
    hub.repos[REPO] = {name: DATA}

    with pytest.raises(StackFileError, match=r"holds no \.gguf model"):
        resolve(REPO, cache)

    assert hub.asked == {}
    assert list(tmp_path.rglob("evil.gguf")) == []


def test_names_with_control_characters_are_not_offered(hub, cache):
    """A terminal is not written to by a repo."""
    hub.repos[REPO] = {"a\x1b[31m.gguf": DATA, "b\n.gguf": DATA}

    with pytest.raises(StackFileError, match=r"holds no \.gguf model"):
        resolve(REPO, cache)


def test_two_at_once_make_one_download(hub, cache):
    """Two `up` at the same moment share one download."""
    program = (
        "import sys; from pathlib import Path; from trimtab.probes.hub import resolve_checkpoint as r;"
        "print(r(sys.argv[1], cache_dir=Path(sys.argv[2]), report=lambda *a: None))"
    )
    argv = [sys.executable, "-c", program, REPO, str(cache)]
    both = [subprocess.Popen(argv, stdout=subprocess.PIPE, text=True) for _ in range(2)]
    outputs = [process.communicate(timeout=60)[0].strip() for process in both]

    assert outputs[0] == outputs[1]
    assert hashlib.sha256(Path(outputs[0]).read_bytes()).digest() == hashlib.sha256(DATA).digest()
    assert len(hub.asked["tiny.Q8_0.gguf"]) == 1
    assert hub.strays == []


def test_a_killed_download_goes_on_later(hub, cache):
    """A kill -9 in the middle leaves a part that the next start completes."""
    hub.repos[REPO]["tiny.Q8_0.gguf"] = DATA
    hub.file_faults += [Fault(cut_after=2_000_000), Fault(hang_s=30)]
    program = (
        "import sys; from pathlib import Path; from trimtab.probes.hub import resolve_checkpoint as r;"
        "r(sys.argv[1], cache_dir=Path(sys.argv[2]), report=lambda *a: None)"
    )
    process = subprocess.Popen([sys.executable, "-c", program, REPO, str(cache)])
    wait_for(lambda: len(hub.asked["tiny.Q8_0.gguf"]) >= 2, timeout_s=30)
    process.kill()
    process.wait(timeout=10)
    hub.file_faults.clear()
    assert files_in(cache) == ["tiny.Q8_0.gguf.part"]

    assert resolve(REPO, cache).read_bytes() == DATA
    assert hub.asked["tiny.Q8_0.gguf"][-1].startswith("bytes=")


def test_who_waits_for_another_download_is_told(hub, cache):
    """The second of two is not silent while it waits."""
    resolve(REPO, cache)
    target = next(cache.rglob("tiny.Q8_0.gguf"))
    target.unlink()
    reports = []
    import fcntl

    with target.with_name(target.name + ".lock").open("ab") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        waiting = threading.Thread(target=resolve, args=(REPO, cache, reports))
        waiting.start()
        wait_for(lambda: any("waiting for another" in report[0] for report in reports))
        assert not target.exists()
    waiting.join(timeout=10)

    assert target.read_bytes() == DATA


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        pytest.param("org/name", True, id="repo"),
        pytest.param("org/name:Q8_0", True, id="quant"),
        pytest.param("org/name:sub/file.gguf", True, id="file-in-folder"),
        pytest.param("name", False, id="one-word"),
        pytest.param("a/b/c", False, id="three-parts"),
        pytest.param("./name", False, id="path"),
        pytest.param("org/name:", False, id="empty-file"),
        pytest.param("org/name\n", False, id="newline"),
        pytest.param("örg/name", False, id="not-ascii"),
        pytest.param("https://hub/org/name", False, id="address"),
    ],
)
def test_what_reads_as_a_repo_id(text, expected):
    """A path, a word or an address is never taken for a repo."""
    assert is_repo_id(text) is expected


@pytest.mark.parametrize(
    ("text", "words"),
    [
        pytest.param("nothing", "neither a file, nor a repo id", id="word"),
        pytest.param("a" * 97 + "/" + "b" * 97, "not a repo id|has no", id="too-long"),
        pytest.param("a--b/c..d", "not a repo id|has no", id="illegal-dots"),
    ],
)
def test_what_names_nothing_is_refused(hub, cache, text, words):
    """One sentence with an example, no trace of a library."""
    with pytest.raises(StackFileError, match=words) as error:
        resolve(text, cache)

    assert_one_sentence(error)


def test_a_folder_with_one_checkpoint_is_enough(tmp_path, cache):
    """A folder that holds one model, whole or split, may be named itself."""
    folder = tmp_path / "models"
    folder.mkdir()
    for number in (1, 2):
        (folder / f"m-{number:05d}-of-00002.gguf").write_bytes(b"")

    assert resolve(str(folder), cache) == folder / "m-00001-of-00002.gguf"
    (folder / "other-Q8_0.gguf").write_bytes(b"")
    with pytest.raises(StackFileError, match="2 checkpoints") as error:
        resolve(str(folder), cache)
    assert "other-Q8_0.gguf" in error.value.hint


def test_a_folder_without_a_checkpoint_says_so(tmp_path, cache):
    """An empty folder, or one of safetensors, is one sentence."""
    with pytest.raises(StackFileError, match=r"holds no \.gguf file"):
        resolve(str(tmp_path), cache)


def test_a_file_of_another_kind_says_so(tmp_path, cache):
    """A checkpoint of another format is not sent to the hub."""
    (tmp_path / "model.bin").write_bytes(b"x")
    with pytest.raises(StackFileError, match=r"is not a \.gguf file"):
        resolve(str(tmp_path / "model.bin"), cache)
