"""Whatever a file, a hub or a variable holds: an answer or one sentence, never a trace or a wrong path."""

from __future__ import annotations

import json
from pathlib import PurePosixPath

import pytest
from hypothesis import given
from hypothesis import strategies as st

from trimtab.errors import StackFileError, TrimtabError
from trimtab.probes.checkpoint import decode_index, decode_json, find_chat_template, promised_shards
from trimtab.probes.gpu_visible import choose_visible
from trimtab.probes.hub_files import choose_engine_files
from trimtab.probes.hub_store import checkpoint_folder
from trimtab.probes.model_source_kind import check_config_kind, find_kind
from trimtab.probes.model_source_survey import (
    CheckpointSurvey,
    fold_tensors,
    survey_from_document,
    survey_to_document,
)
from trimtab.probes.safetensors_header import HeaderTensor, decode_safetensors_header

UUIDS = ("GPU-0a", "GPU-0b", "GPU-1c")
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3),
    max_leaves=8,
)
NAMES = st.lists(
    st.sampled_from(
        ["config.json", "params.json", "model.safetensors", "model-00001-of-00003.safetensors", "a.gguf",
         "consolidated.safetensors", "pytorch_model.bin", "x/y.onnx", "adapter_config.json", "README.md",
         "tokenizer.model", "model_index.json", "adapter_model.safetensors"]
    )
    | st.text(max_size=20),
    max_size=12,
)  # fmt: skip


@given(text=st.text(alphabet="0123456789-, GPUab+x", max_size=24))
def test_visible_devices_are_cards_each_at_most_once(text):
    """Whatever the variable holds, existing cards come out, and a complaint unless all entries are cards."""
    chosen, complaint = choose_visible(text, UUIDS)

    assert len(set(chosen)) == len(chosen)
    assert set(chosen) <= {0, 1, 2}
    assert complaint or len(chosen) == len(text.split(","))


@given(first=st.permutations([0, 1, 2]), count=st.integers(1, 3))
def test_numbers_and_uuids_mean_the_same_cards(first, count):
    """A card may be named either way."""
    wanted = first[:count]

    assert choose_visible(",".join(map(str, wanted)), UUIDS) == (tuple(wanted), "")
    assert choose_visible(",".join(UUIDS[index] for index in wanted), UUIDS) == (tuple(wanted), "")


@given(names=NAMES)
def test_chosen_files_are_of_the_repository_and_not_duplicated(names):
    """Nothing is fetched that is not there, nothing twice, and never weights in two formats."""
    chosen = choose_engine_files(names)

    assert set(chosen) <= set(names)
    assert len(set(chosen)) == len(chosen)
    assert not any(name.endswith(".gguf") or name.startswith("consolidated") for name in chosen)
    weights = {PurePosixPath(name).suffix for name in chosen if name.endswith((".safetensors", ".bin"))}
    assert len(weights) <= 1


@given(names=NAMES)
def test_what_is_called_a_checkpoint_can_be_fetched(names):
    """A repository that is called safetensors has weights among the chosen files."""
    chosen = choose_engine_files(names)

    if find_kind(names) == "safetensors":
        assert any(name.endswith(".safetensors") for name in chosen)
        assert set(promised_shards(names)) >= {name for name in chosen if name.endswith(".safetensors")}


FILES = st.dictionaries(
    st.text(max_size=3), st.sampled_from(["", ".", "..", "a", "a/b", "/a", "../a"]) | JSON
)


@given(value=JSON | st.fixed_dictionaries({"weight_map": FILES | JSON, "metadata": JSON}))
def test_any_json_is_an_index_or_a_sentence(value):
    """A damaged index is one sentence; file names of a good one stay in the folder."""
    try:
        names, _ = decode_index(value, where="index")
    except StackFileError as error:
        assert "\n" not in error.message
    else:
        assert all("/" not in name and name not in {"", ".", ".."} for name in names)


@given(raw=st.binary(max_size=60))
def test_any_bytes_are_json_or_a_sentence(raw):
    """No byte sequence in a config's place leads to a trace."""
    try:
        decode_json(raw, where="config.json")
    except StackFileError as error:
        assert error.message.startswith("config.json")


@given(plain=st.none() | st.text(max_size=5), config=JSON)
def test_any_tokenizer_config_has_a_template_or_none(plain, config):
    """A strange tokenizer config never fails a plan."""
    assert isinstance(find_chat_template(plain, config), str)


@given(config=JSON)
def test_no_config_fails_the_look_at_its_kind(config):
    """Telling MLX apart works on anything."""
    try:
        check_config_kind(config, "config.json")
    except TrimtabError:
        assert isinstance(config, dict)


@given(raw=st.binary(max_size=80), length=st.none() | st.integers(0, 2**64 - 1))
def test_any_bytes_are_a_header_or_a_sentence(raw, length):
    """A file that only claims to be safetensors never leads to a trace or to a huge read."""
    data = (len(raw) if length is None else length).to_bytes(8, "little") + raw
    asked = []

    def read(offset, count):
        asked.append(count)
        return data[offset : offset + count]

    try:
        decode_safetensors_header(read, where="x.safetensors")
    except StackFileError as error:
        assert error.message.startswith("x.safetensors")
    assert max(asked) <= 100_000_000


TENSORS = st.lists(
    st.builds(
        HeaderTensor,
        name=st.sampled_from(
            ["model.layers.0.a", "model.layers.1.a", "model.layers.1.experts.7.b", "lm_head"]
        ),
        dtype=st.sampled_from(["BF16", "F8_E4M3", "I32"]),
        shape=st.tuples(st.integers(0, 9), st.integers(0, 9)),
        nbytes=st.just(0),
    ),
    max_size=8,
)


@given(tensors=TENSORS, total=st.none() | st.integers(0, 2**50), template=st.none() | st.text())
def test_what_is_remembered_is_what_was_read(tensors, total, template):
    """The second plan is made from the same facts as the first."""
    survey = CheckpointSurvey(
        config={"a": [1, {"b": None}]},
        tensors=fold_tensors(tensors),
        spared=("x.y",),
        weights_bytes=total,
        is_measured=True,
        has_weights=True,
        has_generation_config=True,
        chat_template=template,
        download_bytes=total,
    )

    assert survey_from_document(json.loads(json.dumps(survey_to_document(survey)))) == survey
    assert sum(fact.count for fact in survey.tensors) == len(tensors)


@given(document=st.dictionaries(st.sampled_from(["schema", "config", "tensors", "spared"]), JSON))
def test_any_memory_is_facts_or_nothing(document):
    """A damaged cache is read anew."""
    found = survey_from_document(document | {"schema": 1})

    assert found is None or isinstance(found, CheckpointSurvey)


@pytest.mark.parametrize("commit", ["../..", "", "/etc", "main", "a" * 40, "feature/x"], ids=str)
def test_a_commits_folder_lies_inside_the_cache(tmp_path, commit):
    """Whatever a hub calls its commit, it is no path."""
    folder = checkpoint_folder(tmp_path, "org/name", commit)

    assert folder.parent == tmp_path / "checkpoints" / "org" / "name"
    assert folder.name.isalnum()
