"""Where a try's config and tokenizer come from: never a weight, never a network where none is needed."""

from __future__ import annotations

import json

import pytest
from small_checkpoint import TINY, write_model

from trimtab.errors import StackFileError
from trimtab.probes.dummy_checkpoint import fetch_dummy_checkpoint
from trimtab.probes.model_source import read_model_source


@pytest.fixture(autouse=True)
def offline(monkeypatch, tmp_path):
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    monkeypatch.setenv("HF_HOME", str(tmp_path / "hub"))


def fetch(checkpoint, tmp_path):
    source = read_model_source(str(checkpoint), cache_dir=tmp_path / "cache")
    return fetch_dummy_checkpoint(source, cache_dir=tmp_path / "cache", report=lambda what, done, total: None)


def test_a_folder_is_used_where_it_lies(tmp_path):
    """With weights or without: nothing is copied, and the tokenizer in it is seen."""
    folder = write_model(tmp_path / "model")
    assert (fetch(folder, tmp_path).path, fetch(folder, tmp_path).has_tokenizer) == (folder, False)

    (folder / "tokenizer.json").write_text("{}")

    assert fetch(folder, tmp_path).has_tokenizer is True


def test_a_lone_config_of_any_name_becomes_a_folder(tmp_path):
    """An engine wants config.json in a folder; the user's file stays alone where it is."""
    config = tmp_path / "some-model.json"
    config.write_text(json.dumps(TINY))

    found = fetch(config, tmp_path)

    assert json.loads((found.path / "config.json").read_text()) == TINY
    assert found.path.is_relative_to(tmp_path / "cache")
    assert (found.has_tokenizer, found.has_processor) == (False, False)


def test_what_lies_beside_a_config_json_comes_along(tmp_path):
    """Its tokenizer belongs to it; a stranger's file does not."""
    folder = tmp_path / "model"
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps(TINY))
    (folder / "tokenizer.json").write_text("{}")
    (folder / "notes.txt").write_text("mine")

    found = fetch(folder / "config.json", tmp_path)

    assert found.has_tokenizer is True
    assert sorted(path.name for path in found.path.iterdir()) == ["config.json", "tokenizer.json"]


def test_a_known_model_needs_no_network(tmp_path):
    """The built-in config is enough to start; that there is no tokenizer is said, with the reason."""
    found = fetch("Qwen/Qwen3.5-27B-FP8", tmp_path)

    config = json.loads((found.path / "config.json").read_text())
    assert config["model_type"] == "qwen3_5"
    assert config["quantization_config"]["quant_method"] == "fp8"
    assert found.has_tokenizer is False
    assert "no tokenizer" in found.note
    assert "HF_HUB_OFFLINE" in found.note


def test_an_unknown_model_without_a_network_is_refused(tmp_path):
    """One sentence, not an engine that fails minutes later."""
    with pytest.raises(StackFileError, match="not among the models known"):
        fetch("nobody/nothing", tmp_path)
