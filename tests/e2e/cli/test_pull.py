"""`trimtab pull` and `trimtab rm` as a user runs them, against a hub on this machine."""

import json
import os
import signal
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType

import pytest
from fake_hub import COMMIT, FakeHub, Fault, wait_for
from gguf_files import SmallModel, write_small_gguf
from small_checkpoint import write_model
from trimtab_program import Program

REPO = "org/tiny"
GGUF = "org/tiny-GGUF"
PLAIN_GGUF = "org/quants"
SHARD = "model-00002-of-00002.safetensors"


@pytest.fixture
def hub(tmp_path):
    made = write_model(tmp_path / "made")
    files = {path.name: path.read_bytes() for path in made.iterdir()}
    small = write_small_gguf(tmp_path / "toy.gguf", SmallModel()).read_bytes()
    fake = FakeHub(
        repos={
            REPO: files
            | {"tokenizer.json": b"{}", "README.md": b"hi", "consolidated.safetensors": b"x" * 99},
            GGUF: {"tiny-Q4_K_M.gguf": small, "tiny-Q8_0.gguf": small + bytes(64)},
            PLAIN_GGUF: {"only.gguf": small},
        }
    )
    fake.start()
    yield fake
    fake.stop()


class Online(Program):
    """trimtab with a hub, and nothing of this user's."""

    hub_url = ""
    extra: Mapping[str, str] = MappingProxyType({})

    def environment(self) -> dict[str, str]:
        kept = {
            name: value
            for name, value in os.environ.items()
            if not name.startswith(("HF_", "VLLM_", "MODELSCOPE_")) and not name.lower().endswith("_proxy")
        }
        return (
            kept
            | {
                "HOME": str(self.root / "home"),
                "XDG_STATE_HOME": str(self.root / "state"),
                "XDG_CACHE_HOME": str(self.root / "cache"),
                "HF_ENDPOINT": self.hub_url,
                "HF_HUB_DOWNLOAD_TIMEOUT": "2",
                "HF_HUB_ETAG_TIMEOUT": "2",
            }
            | dict(self.extra)
        )


@pytest.fixture
def program(tmp_path, hub):
    made = Online(tmp_path, is_warm=True)
    made.hub_url = hub.url
    return made


def pulled(program, *arguments):
    """The one model that a `pull --json` brought."""
    done = program.run("pull", *arguments, "--json")
    assert done.returncode == 0, done.stderr
    (model,) = json.loads(done.stdout)["models"]
    return model


def refused(program, *arguments, stdin=None):
    done = program.run(*arguments, stdin=stdin)
    assert done.returncode != 0, done.stdout
    assert "Traceback" not in done.stderr
    return done.returncode, done.stderr


def test_a_checkpoint_is_fetched_once_and_then_named(program, hub):
    """The first pull brings what the engine needs, the second says where it is and asks nobody."""
    first = pulled(program, REPO)
    names = {entry.name for entry in (program.root / "cache/trimtab/checkpoints").rglob("*.*")}
    listings = hub.listings
    again = program.run("pull", REPO)

    assert (first["kind"], first["commit"], first["is_new"]) == ("checkpoint", COMMIT, True)
    assert SHARD in names
    assert not names & {"README.md", "consolidated.safetensors"}
    assert "already here" in again.stdout
    assert first["path"] in again.stdout
    assert hub.listings == listings


def test_what_is_going_on_is_said_beside_the_result(program):
    """Progress goes to stderr, so that stdout can be kept."""
    done = program.run("pull", REPO)

    assert "downloading org/tiny" in done.stderr
    assert "%" in done.stderr
    assert "downloaded" in done.stdout


def test_a_newer_commit_is_fetched_when_asked_for(program, hub):
    """Weights never change by themselves under a stack; `--update` says that they may."""
    pulled(program, REPO)
    hub.commit = "d" * 40

    assert pulled(program, REPO)["commit"] == COMMIT
    assert pulled(program, REPO, "--update")["commit"] == "d" * 40


def test_a_revision_is_asked_of_the_hub(program, hub):
    """What is pinned is what comes."""
    pulled(program, REPO, "--revision", "v1.2")

    assert "v1.2" in hub.revisions


@pytest.mark.parametrize(
    "name",
    [GGUF, f"{GGUF}:Q4_K_M", f"{GGUF}:tiny-Q4_K_M.gguf", PLAIN_GGUF],
    ids=["usual quant", "quant", "file", "no GGUF in the name"],
)
def test_a_gguf_comes_by_any_of_its_names(program, name):
    """llama.cpp's models are pulled by the same verb; a second pull finds them."""
    first = pulled(program, name)
    again = pulled(program, name)

    assert (first["kind"], first["is_new"], again["is_new"]) == ("gguf", True, False)
    assert again["path"] == first["path"]


def test_a_stack_is_pulled_whole(program):
    """Before a machine goes offline, one command brings all it needs; what is elsewhere is no model here."""
    stack = program.root / "stack.yaml"
    stack.write_text(f"models:\n  a: {{checkpoint: {REPO}}}\n  b: {{checkpoint: '{GGUF}:Q8_0'}}\n")
    done = program.run("pull", str(stack), "--json")
    by_name = program.run("pull", "a", "--json")

    assert [model["name"] for model in json.loads(done.stdout)["models"]] == ["a", "b"]
    assert json.loads(by_name.stdout)["models"][0]["is_new"] is False


def test_a_killed_download_goes_on_where_it_stopped(program, hub):
    """After kill -9 in the middle, the next pull sends for the missing bytes only."""
    size = len(hub.repos[REPO][SHARD])
    hub.file_faults += [Fault(cut_after=size // 3)] * 40
    child = subprocess.Popen(
        [sys.executable, "-m", "trimtab", "pull", REPO],
        env=program.environment(),
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    # On the disk, not only on the wire.
    wait_for(lambda: any(part.stat().st_size for part in program.root.rglob(f"{SHARD}.part")), timeout_s=30)
    child.send_signal(signal.SIGKILL)
    child.wait()
    hub.file_faults.clear()
    hub.asked.clear()
    listed = json.loads(program.run("pull", "--list", "--json").stdout)["models"]
    whole = pulled(program, REPO)

    assert [model["is_complete"] for model in listed] == [False]
    assert whole["is_new"]
    assert any(asked for asked in hub.asked[SHARD]) or hub.asked[SHARD] == []


def test_ctrl_c_ends_a_download_at_once(program, hub):
    """Whoever changes their mind waits for nothing, and reads that nothing was lost."""
    hub.says_digests = False
    hub.padding[SHARD] = 1 << 32
    child = subprocess.Popen(
        [sys.executable, "-m", "trimtab", "pull", REPO],
        env=program.environment(), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    )  # fmt: skip
    wait_for(lambda: hub.bytes_sent[SHARD] > 1 << 20, timeout_s=30)
    child.send_signal(signal.SIGINT)
    try:
        _, text = child.communicate(timeout=20)
    except subprocess.TimeoutExpired:
        child.kill()
        raise AssertionError(f"it goes on: {child.communicate()[1]}") from None

    assert child.returncode == 130
    assert "goes on from here" in text
    assert "Traceback" not in text


def test_modelscope_is_asked_when_named(program, hub):
    """Where Hugging Face isn't reachable, the other hub brings the same files."""
    program.extra = {"MODELSCOPE_ENDPOINT": hub.url, "HF_ENDPOINT": "http://127.0.0.1:9"}

    assert pulled(program, REPO, "--source", "modelscope")["is_new"]


def test_offline_nothing_is_asked(program, hub):
    """HF_HUB_OFFLINE means what it says; what is here serves."""
    here = pulled(program, REPO)
    program.extra = {"HF_HUB_OFFLINE": "1"}
    asked = hub.listings
    code, text = refused(program, "pull", "org/other")

    assert pulled(program, REPO)["path"] == here["path"]
    assert code == 4
    assert "HF_HUB_OFFLINE" in text
    assert hub.listings == asked


def test_the_token_goes_to_the_hub(program, hub):
    """A gated model comes with HF_TOKEN."""
    program.extra = {"HF_TOKEN": "hf_secret"}
    pulled(program, REPO)

    assert "Bearer hf_secret" in hub.tokens


@pytest.mark.parametrize(
    ("fault", "code", "words"),
    [
        (Fault(status=401), 4, "HF_TOKEN is valid"),
        (Fault(status=403, headers={"X-Error-Code": "GatedRepo"}), 4, "accept its terms"),
        (Fault(status=401, headers={"X-Error-Code": "RepoNotFound"}), 2, "has no org/tiny, or it is private"),
        (Fault(status=429), 4, "wait a minute"),
        (Fault(status=503), 4, "answered 503"),
        (Fault(body=b"<html>log in to the hotel</html>"), 4, "does not answer as a Hugging Face hub"),
    ],
    ids=["unauthorised", "gated", "unknown", "limited", "broken", "captive portal"],
)
def test_a_hub_that_refuses_is_one_sentence(program, hub, fault, code, words):
    """Whatever the hub answers, the user reads what to do and no half model is listed as whole."""
    hub.listing_faults += [fault] * 9
    got, text = refused(program, "pull", REPO)

    assert got == code
    assert words in text
    assert json.loads(program.run("pull", "--list", "--json").stdout)["models"] == []


def test_a_wrong_checksum_is_refused_and_nothing_of_it_stays(program, hub):
    """Damaged weights are never served."""
    hub.lying_digests[SHARD] = "0" * 64
    code, text = refused(program, "pull", REPO)

    assert code == 4
    assert "SHA-256" in text
    assert not list((program.root / "cache").rglob(SHARD))


def test_a_disk_without_room_is_said_before_the_download(program, hub):
    """Nobody waits an hour to learn that the disk is too small."""
    hub.lying_sizes[SHARD] = 1 << 60
    code, text = refused(program, "pull", REPO)

    assert code == 4
    assert "free, org/tiny needs" in text
    assert hub.bytes_sent[SHARD] == 0


@pytest.mark.parametrize(
    ("arguments", "code", "words"),
    [
        (["pull", "nowhere.gguf"], 2, "does not exist"),
        (["pull", "no-such-name"], 2, "neither a file"),
        (["pull", REPO, "--list"], 2, "leave one of them out"),
        (["pull", f"{GGUF}:Q5_0"], 2, "no checkpoint 'Q5_0'"),
        (["pull", GGUF, "--revision", "v1"], 2, "--revision is for checkpoints"),
        (["pull", REPO, "--source", "nexus"], 2, "--source"),
        (["rm", REPO], 2, "not in trimtab's cache"),
        (["rm", "smollm2-135m"], 2, "belongs to the installation"),
        (["rm", "./made"], 2, "a path of yours"),
        (["rm", "stack.yaml"], 2, "one model at a time"),
        (["rm"], 2, "MODEL"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else None,
)
def test_a_wrong_argument_is_one_sentence(program, arguments, code, words):
    """Every refusal says what was wrong, and removes nothing."""
    got, text = refused(program, *arguments)

    assert got == code
    assert words in text


def test_the_list_shows_what_takes_the_disk(program):
    """Before removing something, a user sees what is there and what it takes."""
    pulled(program, REPO)
    pulled(program, f"{GGUF}:Q8_0")
    text = program.run("pull", "--list").stdout

    assert REPO in text
    assert GGUF in text
    assert "in all" in text
    assert COMMIT[:12] in text


def test_rm_asks_and_frees_the_disk(program):
    """One word removes a model, and only after yes."""
    folder = pulled(program, REPO)["path"]
    no = program.run("rm", REPO, stdin="n\n")
    kept = Path(folder).is_dir()
    code, text = refused(program, "rm", REPO, stdin="")
    yes = program.run("rm", REPO, stdin="y\n")

    assert (no.returncode, kept) == (130, True)
    assert (code, "add --yes" in text) == (2, True)
    assert yes.returncode == 0
    assert "free again" in yes.stdout
    assert not Path(folder).exists()


def test_rm_takes_one_quant_and_leaves_the_other(program):
    """Two quants of a model are two things."""
    kept = pulled(program, f"{GGUF}:Q4_K_M")["path"]
    gone = program.run_json("rm", f"{GGUF}:Q8_0", "--yes")
    assert "error" in gone

    program.run("pull", f"{GGUF}:Q8_0")
    removed = program.run_json("rm", f"{GGUF}:Q8_0", "--yes")

    assert [item["repo"] for item in removed["removed"]] == [GGUF]
    assert Path(kept).exists()


def test_a_shared_cache_is_named_and_left(program):
    """What other programs downloaded is theirs."""
    folder = program.root / "hf" / "models--org--theirs" / "snapshots" / COMMIT
    folder.mkdir(parents=True)
    program.extra = {"HF_HUB_CACHE": str(program.root / "hf")}
    code, text = refused(program, "rm", "org/theirs", "--yes")

    assert code == 2
    assert str(program.root / "hf" / "models--org--theirs") in text
    assert folder.is_dir()


def test_a_copy_in_the_shared_cache_is_used_where_it_lies(program, hub, tmp_path):
    """Nothing is downloaded twice because two programs want it."""
    shared = tmp_path / "hf" / "models--org--tiny"
    snapshot = shared / "snapshots" / COMMIT
    write_model(snapshot)
    (shared / "refs").mkdir()
    (shared / "refs" / "main").write_text(COMMIT)
    program.extra = {"HF_HUB_CACHE": str(tmp_path / "hf")}
    found = pulled(program, REPO)

    assert (found["path"], found["is_new"]) == (str(snapshot), False)
    assert hub.listings == 0
