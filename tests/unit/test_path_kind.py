"""Model names that no file system takes as a path are answered in one sentence."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from trimtab.errors import StackFileError
from trimtab.probes.hub import is_repo_id, resolve_checkpoint
from trimtab.probes.model_source import read_model_source
from trimtab.probes.path_kind import find_path_kind, path_exists

LONG = "a" * 300
ODD = {
    "long name": LONG,
    "long path": f"/{LONG}/{LONG}",
    "long repo": f"org/{LONG}",
    "very long": "b/" * 40_000,
    "null byte": "a\0b",
    "unknown user": "~no-such-user-here/model",
    "below a file": "/etc/hostname/model",
}


@pytest.mark.parametrize("text", ODD.values(), ids=ODD.keys())
def test_an_odd_model_name_is_one_sentence(text: str, tmp_path: Path) -> None:
    """No traceback of the operating system's, and no name of 300 letters on the screen."""
    assert find_path_kind(text) is None
    assert not is_repo_id(text)
    with pytest.raises(StackFileError, match="is neither a file") as caught:
        read_model_source(text, cache_dir=tmp_path, offline=True)
    assert len(caught.value.message) < 250
    with pytest.raises(StackFileError, match="is neither a file"):
        resolve_checkpoint(text, cache_dir=tmp_path, report=lambda done, total: None)


@pytest.mark.parametrize(
    ("text", "is_near"),
    [
        ("smollm2", True),
        ("smollm-135m", True),
        ("smollm2-135m-q4", True),
        ("x", False),
        ("qwen3.5", False),
        ("mistral-7b", False),
    ],
)
def test_a_name_like_the_embedded_model_s_is_asked_about(text: str, *, is_near: bool, tmp_path: Path) -> None:
    """The one bare name that there is; anything else gets the usual example."""
    with pytest.raises(StackFileError) as caught:
        read_model_source(text, cache_dir=tmp_path, offline=True)
    assert (caught.value.hint == "did you mean smollm2-135m, the embedded model?") is is_near


def test_links_in_a_circle_name_nothing(tmp_path: Path) -> None:
    """A link to itself is as good as nothing."""
    (tmp_path / "loop").symlink_to(tmp_path / "loop")
    assert find_path_kind(tmp_path / "loop") is None
    with pytest.raises(StackFileError, match="is neither a file"):
        read_model_source(str(tmp_path / "loop"), cache_dir=tmp_path, offline=True)


def test_folders_files_and_pipes_are_told_apart(tmp_path: Path) -> None:
    """What is there is named for what it is."""
    (tmp_path / "file").touch()
    os.mkfifo(tmp_path / "pipe")
    assert [find_path_kind(tmp_path / name) for name in ("", "file", "pipe", "none")] == [
        "folder",
        "file",
        "other",
        None,
    ]


def test_a_folder_that_may_not_be_entered_is_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Permission denied is told apart from not being there."""

    def refuse(path: Path) -> os.stat_result:
        raise PermissionError(13, "Permission denied", str(path))

    monkeypatch.setattr("trimtab.probes.path_kind.os.stat", refuse)
    with pytest.raises(StackFileError, match="cannot be read: permission denied"):
        find_path_kind("/root/model")
    assert path_exists("/root/model")
