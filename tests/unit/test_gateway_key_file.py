"""The keys file: changed by many at once, and broken in every way while a gateway serves."""

import json
import math
import os
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import SimpleNamespace

import pytest

from trimtab.cli.keys import keys as keys_command
from trimtab.cli.main import main
from trimtab.errors import StackFileError
from trimtab.gateway.key_ring import KeyRing, add_key, read_keys, remove_key
from trimtab.gateway.keys import PRIORITIES, KeyLimits, decode_keys, hash_key, render_keys

PYTHONS_WORDS = ("Error", "int()", "NoneType", "subscript", "float", "Errno", "Traceback", "line 1 column")


@pytest.fixture
def run(tmp_path, monkeypatch, capsys):
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))

    def run(*words):
        with pytest.raises(SystemExit) as ended:
            main([*words])
        told = capsys.readouterr()
        return SimpleNamespace(exit_code=ended.value.code, output=told.out + told.err)

    return run


def document_of(**changed):
    entry = {"name": "a", "sha256": hash_key("a"), "created_at_s": 1.0, "limits": {}}
    return json.dumps({"version": 1, "keys": [entry | changed]})


BROKEN = {
    "nested": ("[" * 100_000, "nested too deeply"),
    "nested-object": ('{"version": 1, "keys": ' + "[" * 100_000, "nested too deeply"),
    "long-number": (document_of(created_at_s=0).replace("0, ", "9" * 5000 + ", "), "number"),
    "version": (json.dumps({"version": True, "keys": []}), "version is true"),
    "words": (document_of(limits={"requests_per_minute": "x"}), "keys[0].limits.requests_per_minute is"),
    "negative": (document_of(limits={"tokens_per_minute": -1}), "tokens_per_minute is -1"),
    "zero": (document_of(limits={"concurrency": 0}), "concurrency is 0"),
    "boolean": (document_of(limits={"concurrency": True}), "concurrency is true"),
    "fraction": (document_of(limits={"concurrency": 1.5}), "concurrency is 1.5"),
    "unknown-limit": (document_of(limits={"requests_per_hour": 1}), "requests_per_hour"),
    "models": (document_of(limits={"models": "abc"}), "models is"),
    "priority": (document_of(priority=6), "keys[0].priority is 6; legal is a whole number from -5 to 5"),
    "priority-word": (document_of(priority="high"), "keys[0].priority is"),
    "priority-bool": (document_of(priority=True), "keys[0].priority is true"),
    "no-limits": (document_of(limits=None), "limits is null"),
    "far": (document_of(created_at_s=1e300), "created_at_s is 1e+300"),
    "whole-far": (document_of(created_at_s=10**400), "created_at_s is a very large number"),
    "before": (document_of(created_at_s=-1e18), "created_at_s"),
    "nan": (document_of(created_at_s=math.nan), "created_at_s is NaN"),
    "bool-time": (document_of(created_at_s=True), "created_at_s is true"),
    "name": (document_of(name=5), "keys[0].name is 5"),
    "hash": (document_of(sha256="x"), "keys[0].sha256"),
    "key": (json.dumps({"version": 1, "keys": [1]}), "keys[0] is 1"),
}


@pytest.mark.parametrize(("text", "said"), BROKEN.values(), ids=BROKEN.keys())
def test_a_broken_keys_file_changes_nothing_while_serving(tmp_path, monkeypatch, run, text, said):
    """The keys stay, nothing is raised at requests, and the command line says where the fault is."""
    path, now = tmp_path / "trimtab" / "keys.json", [100.0]
    monkeypatch.setattr("trimtab.gateway.key_ring.time.monotonic", lambda: now[0])
    key = add_key(path, "me", KeyLimits())
    ring = KeyRing(path)
    path.write_text(text)
    for _ in range(3):
        now[0] += 2
        assert ring.is_on
        assert ring.find(f"Bearer {key}").name == "me"

    listed = run("keys", "list")
    assert listed.exit_code == 2
    assert said in listed.output
    assert not any(word in listed.output for word in PYTHONS_WORDS), listed.output
    assert len(listed.output.splitlines()) == 2


def test_a_file_that_is_mended_counts_again(tmp_path, monkeypatch, caplog):
    """A broken file is told once, not at each look."""
    path, now = tmp_path / "keys.json", [100.0]
    monkeypatch.setattr("trimtab.gateway.key_ring.time.monotonic", lambda: now[0])
    key = add_key(path, "me", KeyLimits())
    ring, whole = KeyRing(path), path.read_text()
    path.write_bytes(b"\xff")
    for _ in range(3):
        now[0] += 2
        assert ring.find(f"Bearer {key}") is not None
        assert ring.is_on
    assert len([one for one in caplog.records if "stay as they were" in one.message]) == 1
    path.write_text(whole)
    other = add_key(path, "other", KeyLimits())
    now[0] += 2
    assert ring.is_on
    assert ring.find(f"Bearer {other}").name == "other"


@pytest.mark.parametrize("make", [os.mkfifo, os.mkdir], ids=["pipe", "folder"])
def test_what_is_no_file_changes_nothing(tmp_path, monkeypatch, make):
    """A gateway that waits for a pipe's writer answers nobody."""
    path, now = tmp_path / "keys.json", [100.0]
    monkeypatch.setattr("trimtab.gateway.key_ring.time.monotonic", lambda: now[0])
    key = add_key(path, "me", KeyLimits())
    ring = KeyRing(path)
    path.unlink()
    make(path)
    now[0] += 2

    assert ring.is_on
    assert ring.find(f"Bearer {key}").name == "me"


def test_two_keys_of_one_name_are_refused():
    """Their uses would be counted as one."""
    entry = json.loads(document_of())["keys"][0]
    text = json.dumps({"version": 1, "keys": [entry, entry | {"sha256": hash_key("b")}]})
    with pytest.raises(StackFileError, match=r"keys\[1\].name"):
        decode_keys(text, source="F")


def test_keys_of_many_at_once_are_all_kept(tmp_path):
    """Whatever was shown can be used, whoever else adds or removes meanwhile."""
    path = tmp_path / "keys.json"
    for index in range(8):
        add_key(path, f"old{index}", KeyLimits())

    def change(index):
        if index % 3 == 0:
            remove_key(path, f"old{index // 3}")
            return None
        return add_key(path, f"new{index}", KeyLimits())

    with ThreadPoolExecutor(8) as pool:
        made = {hash_key(key) for key in pool.map(change, range(24)) if key is not None}

    kept = read_keys(path)
    assert {key.sha256 for key in kept} == made
    assert len(made) == 16


def test_commands_of_many_processes_lose_no_key(tmp_path):
    """Threads share much that processes do not."""
    environment = os.environ | {"XDG_STATE_HOME": str(tmp_path)}
    command = [sys.executable, "-m", "trimtab", "keys", "add"]
    started = [
        subprocess.Popen([*command, f"k{index}"], env=environment, stdout=subprocess.PIPE, text=True)
        for index in range(6)
    ]
    shown = [process.communicate(timeout=60)[0].strip() for process in started]

    assert [process.returncode for process in started] == [0] * 6
    kept = {key.sha256 for key in read_keys(tmp_path / "trimtab" / "keys.json")}
    assert kept == {hash_key(key) for key in shown}


def test_a_key_that_could_not_be_shown_is_not_kept(tmp_path):
    """Where nothing can be printed the gateway is not closed by a key that nobody has."""
    environment = os.environ | {"XDG_STATE_HOME": str(tmp_path)}
    with Path("/dev/full").open("w") as full:
        done = subprocess.run(
            [sys.executable, "-m", "trimtab", "keys", "add", "x"], env=environment, stdout=full, timeout=60,
            check=False,
        )  # fmt: skip

    assert done.returncode != 0
    assert [one.name for one in (tmp_path / "trimtab").iterdir()] == ["keys.json.lock"]


ILLEGAL = ["", " ", " a", "a\n", "a\nb", "\x1b[31m", "x" * 5000, os.fsdecode(b"caf\xe9")]


@pytest.mark.parametrize("name", ILLEGAL, ids=range(len(ILLEGAL)))
def test_a_name_that_no_table_can_show_is_refused(run, tmp_path, name):
    """In one sentence that says what is legal."""
    done = run("keys", "add", "--", name)

    assert (done.exit_code, "1 to 100 printable characters" in done.output) == (2, True)
    assert "\x1b" not in done.output
    assert len(done.output) < 400
    assert not (tmp_path / "trimtab" / "keys.json").exists()


@pytest.mark.parametrize("model", ["", " ", "a\n", "x" * 5000, "trimtab", "trimtab-requests"])
def test_a_model_that_cannot_be_served_is_refused(run, model):
    """A limit that no model can match would shut the key out of all of them."""
    done = run("keys", "add", "a", "--model", model)

    assert (done.exit_code, "a served name is" in done.output) == (2, True)


@pytest.mark.parametrize("name", ["alice", "my laptop", "Zoë", "x" * 100])
def test_a_name_that_can_be_shown_is_taken(run, name):
    """People call their keys what they like."""
    assert run("keys", "add", name).exit_code == 0
    assert name in run("keys", "list").output


def test_names_that_got_into_the_file_otherwise_can_be_listed_and_removed(run, tmp_path):
    """A file of an earlier trimtab, or of somebody's own hand."""
    path = tmp_path / "trimtab" / "keys.json"
    add_key(path, "a", KeyLimits())
    path.write_text(
        render_keys(()).replace("[]", json.dumps(json.loads(document_of(name="\x1b\udce9"))["keys"]))
    )

    listed = run("keys", "list")
    assert (listed.exit_code, "\\x1b\\udce9" in listed.output) == (0, True)
    assert run("keys", "rm", "\x1b\udce9").exit_code == 0
    assert read_keys(path) == ()


def test_the_command_allows_the_priorities_that_the_file_does():
    """It names them itself, since its help must not wait for the gateway's imports."""
    option = next(one for one in keys_command.commands["add"].params if one.name == "priority")

    assert (option.type.min, option.type.max) == PRIORITIES
