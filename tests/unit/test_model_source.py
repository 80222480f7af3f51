"""Where a model's facts come from on this machine: folders, lone configs, shared caches, the known table."""

from __future__ import annotations

import json
import os
import time
from pathlib import Path

import pytest
from checkpoint_facts import read_config, write_safetensors
from huggingface_hub import constants
from small_checkpoint import TINY, stored_tensors, write_model

from trimtab.core.model_source import GgufSource, ModelSource
from trimtab.errors import MissingFactError, StackFileError
from trimtab.planner.tensor_inventory import render_inventory, sum_bytes
from trimtab.probes import model_source_local
from trimtab.probes.builtin_models import read_builtin_model
from trimtab.probes.model_source import read_model_source

COMMIT = "1234567890abcdef1234567890abcdef12345678"


@pytest.fixture(autouse=True)
def clean_surroundings(monkeypatch, tmp_path):
    """No test sees this user's caches or switches, and none asks a network."""
    for name in list(os.environ):
        if name.startswith(("HF_", "VLLM_", "MODELSCOPE_")):
            monkeypatch.delenv(name)
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path / "shared"))


@pytest.fixture
def read(tmp_path):
    """``read_model_source`` with a cache of this test's own."""

    def call(checkpoint, **options):
        return read_model_source(str(checkpoint), cache_dir=tmp_path / "cache", **options)

    return call


def cache_snapshot(root: Path, repo: str, *, reference: str = "main", commit: str = COMMIT) -> Path:
    """The folder of a snapshot in a Hugging Face cache at ``root``."""
    folder = root / f"models--{repo.replace('/', '--')}"
    (folder / "refs").mkdir(parents=True)
    (folder / "refs" / reference).write_text(commit)
    (folder / "snapshots" / commit).mkdir(parents=True)
    return folder / "snapshots" / commit


def test_a_whole_folder_gives_measured_facts(tmp_path, read):
    """A checkpoint on disk is planned from its own files, and needs no download."""
    folder = write_model(tmp_path / "m")
    (folder / "generation_config.json").write_text("{}")
    (folder / "chat_template.jinja").write_text("{{ messages }}")

    found = read(folder)

    assert isinstance(found, ModelSource)
    assert (found.origin, found.local_path, found.download_bytes) == ("folder", str(folder), 0)
    assert (
        found.weights_bytes
        == sum_bytes(found.tensors)
        == sum_bytes(render_inventory(found.parts, dtype="bfloat16"))
    )
    assert found.has_generation_config
    assert found.chat_template == "{{ messages }}"
    assert found.warnings == ()


@pytest.mark.parametrize("is_folder", [True, False], ids=["folder", "file"])
def test_a_lone_config_is_planned_and_says_so(tmp_path, read, is_folder):
    """A model can be planned before a byte of it is here; the plan says that it cannot be started."""
    (tmp_path / "config.json").write_text(json.dumps(read_config("Qwen3.5-27B-FP8")))

    found = read(tmp_path if is_folder else tmp_path / "config.json")

    assert found.facts.num_layers == 64
    assert found.mask_origin == "config"
    assert found.local_path is None
    assert [warning.code for warning in found.warnings] == ["no_weights"]


def test_missing_shards_are_named(tmp_path, read):
    """An interrupted download is reported before anything is planned with it."""
    folder = write_model(tmp_path / "m")
    (folder / "model-00002-of-00002.safetensors").unlink()

    with pytest.raises(StackFileError, match=r"model-00002-of-00002\.safetensors is missing"):
        read(folder)


def test_a_second_plan_reads_no_headers(tmp_path, read, monkeypatch):
    """The second plan of a folder is quick, and a changed file is noticed."""
    folder = write_model(tmp_path / "m")
    first = read(folder)
    calls = []
    real = model_source_local.survey_folder
    monkeypatch.setattr(model_source_local, "survey_folder", lambda path: calls.append(path) or real(path))

    assert read(folder) == first
    assert calls == []
    write_safetensors(folder / "model-00002-of-00002.safetensors", {"lm_head.weight": ("BF16", [1, 1])})
    assert read(folder).weights_bytes < first.weights_bytes
    assert calls == [folder]


@pytest.mark.parametrize("content", ["", "{", "[]", '{"schema": 0}', "[" * 99_999], ids=range(5))
def test_a_damaged_memory_is_read_anew(tmp_path, read, content):
    """Whatever happened to trimtab's own cache, the plan is the same."""
    folder = write_model(tmp_path / "m")
    first = read(folder)
    (memory,) = (tmp_path / "cache" / "facts").iterdir()
    memory.write_text(content)

    assert read(folder) == first


def test_a_cache_that_cannot_be_written_costs_nothing_but_time(tmp_path, read):
    """A read-only home is no reason not to plan."""
    (tmp_path / "cache").write_text("in the way")

    assert read(write_model(tmp_path / "m")).facts.num_layers == 4


def test_stored_tensors_correct_the_configs_mask(tmp_path, read):
    """What the files show is planned, not what the quantiser's config claims; remembered as well."""
    config = TINY | {"quantization_config": {"quant_method": "fp8", "weight_block_size": [16, 16]}}
    tensors = stored_tensors(config)
    spared = "model.layers.2.self_attn.o_proj"
    tensors[f"{spared}.weight"] = ("BF16", [64, 64])
    del tensors[f"{spared}.weight_scale_inv"]
    (tmp_path / "config.json").write_text(json.dumps(config))
    write_safetensors(tmp_path / "model.safetensors", tensors)

    first, second = read(tmp_path), read(tmp_path)

    assert first.mask_origin == "safetensors headers"
    assert spared in first.facts.quant.ignored
    assert first == second


def test_the_shared_cache_is_used_before_the_network(tmp_path, read):
    """What another program fetched is used where it lies."""
    snapshot = write_model(cache_snapshot(tmp_path / "shared", "org/name"))

    found = read("org/name")

    assert (found.origin, found.checkpoint, found.revision) == ("hub cache", "org/name", COMMIT)
    assert found.local_path == str(snapshot)


def test_another_revision_is_looked_up_by_its_name(tmp_path, read):
    """A pinned revision is not answered with main's files."""
    write_model(cache_snapshot(tmp_path / "shared", "org/name", reference="v2"))

    assert read("org/name", revision="v2").revision == COMMIT
    assert read("org/name", revision=COMMIT).revision == COMMIT
    with pytest.raises(StackFileError):
        read("org/name")
    with pytest.raises(StackFileError):
        read("org/name", revision="../../../other")


def test_a_partly_cached_repository_is_planned_and_said_to_be(tmp_path, read):
    """An interrupted download of another program still gives the config."""
    snapshot = write_model(cache_snapshot(tmp_path / "shared", "org/name"))
    (snapshot / "model-00001-of-00002.safetensors").unlink()

    found = read("org/name")

    assert found.local_path is None
    assert [warning.code for warning in found.warnings] == ["incomplete_cache"]


def test_the_modelscope_cache_is_used_when_vllm_uses_modelscope(tmp_path, read, monkeypatch):
    """VLLM_USE_MODELSCOPE means the same here as for the engine."""
    monkeypatch.setenv("MODELSCOPE_CACHE", str(tmp_path / "scope"))
    folder = write_model(tmp_path / "scope" / "models" / "org" / "na___me")

    with pytest.raises(StackFileError):
        read("org/na.me")
    monkeypatch.setenv("VLLM_USE_MODELSCOPE", "True")
    assert read("org/na.me").local_path == str(folder)


def test_known_models_need_nothing(read):
    """The well-known repositories are planned at once, offline; a mask that is a conclusion is marked."""
    exact, inferred = read("qwen/qwen3.5-27b-fp8"), read("cyankiwi/Qwen3.5-35B-A3B-AWQ-4bit")

    assert (exact.origin, exact.mask_origin, exact.warnings) == ("built in", "config", ())
    assert exact.checkpoint == "Qwen/Qwen3.5-27B-FP8"
    assert exact.facts == read_builtin_model("Qwen/Qwen3.5-27B-FP8").facts
    assert inferred.mask_origin == "inferred"
    assert [warning.code for warning in inferred.warnings] == ["inferred_mask"]
    assert read("Qwen/Qwen3-8B").mask_origin == "not quantised"


def test_an_unknown_repository_names_its_nearest(read):
    """A typing error in a model's name is found out at once."""
    with pytest.raises(StackFileError) as caught:
        read("Qwen/Qwen3.5-35B-A3-FP8")

    assert "Qwen/Qwen3.5-35B-A3B-FP8" in caught.value.hint


@pytest.mark.parametrize("text", ["m.gguf", "/no/where/m.GGUF", "org/name-GGUF:Q8_0", "org/name-GGUF"])
def test_gguf_models_are_left_to_llama_cpp(read, text):
    """A GGUF is recognised by its name alone."""
    assert read(text) == GgufSource(checkpoint=text)


def test_a_folder_of_gguf_files_is_left_to_llama_cpp(tmp_path, read):
    """Also a folder that holds a config.json beside them."""
    (tmp_path / "m-Q8_0.gguf").write_bytes(b"GGUF")
    (tmp_path / "config.json").write_text("{}")

    assert isinstance(read(tmp_path), GgufSource)


@pytest.mark.parametrize(
    ("files", "said"),
    [
        ({"adapter_config.json": '{"base_model_name_or_path": "Qwen/Qwen3-8B"}',
          "adapter_model.safetensors": ""}, "LoRA adapter for Qwen/Qwen3-8B"),
        ({"params.json": "{}", "consolidated.safetensors": "", "tekken.json": ""}, "Mistral's own format"),
        ({"config.json": json.dumps(TINY), "model.onnx": ""}, "ONNX export"),
        ({"model_index.json": "{}"}, "pipeline"),
        ({"README.md": ""}, r"holds no config\.json"),
        ({"tokenizer_config.json": "{}"}, r"holds no config\.json"),
    ],
    ids=["adapter", "mistral", "onnx", "diffusers", "empty", "tokenizer only"],
)  # fmt: skip
def test_what_is_no_model_is_called_by_its_name(tmp_path, read, files, said):
    """The answer says what the folder is, not which key of it is absent."""
    for name, content in files.items():
        (tmp_path / name).write_text(content)

    with pytest.raises(StackFileError, match=said) as caught:
        read(tmp_path)
    assert caught.value.hint


def test_pickled_weights_are_planned_with_a_word(tmp_path, read):
    """Old repositories can be planned; the reader learns what loading them means."""
    (tmp_path / "config.json").write_text(json.dumps(TINY))
    (tmp_path / "pytorch_model.bin").write_bytes(b"")

    assert [warning.code for warning in read(tmp_path).warnings] == ["pickled_weights"]


@pytest.mark.parametrize(
    ("text", "error", "said"),
    [
        ("", StackFileError, "is empty"),
        ("<!doctype html><html>", StackFileError, "web page"),
        ("[1]", StackFileError, "holds a list"),
        ('{"tokenizer_class": "Qwen2Tokenizer"}', StackFileError, "isn't a model's config"),
        (json.dumps(TINY | {"quantization": {"group_size": 64, "bits": 4}}), StackFileError, "MLX"),
        ('{"model_type": "x", "architectures": ["Odd9000"]}', MissingFactError, "isn't known"),
    ],
    ids=["empty", "web page", "list", "tokenizer", "mlx", "unknown"],
)
def test_a_file_that_is_no_config_is_one_sentence(tmp_path, read, text, error, said):
    """Whatever file was named, the answer tells what it is."""
    path = tmp_path / "config.json"
    path.write_text(text)

    with pytest.raises(error, match=said) as caught:
        read(path)
    assert "\n" not in caught.value.message


def test_a_weights_file_is_answered_with_its_folder(tmp_path, read):
    """Naming a shard is a near miss."""
    write_model(tmp_path / "m")

    with pytest.raises(StackFileError) as caught:
        read(tmp_path / "m" / "model-00001-of-00002.safetensors")
    assert str(tmp_path / "m") in caught.value.hint


@pytest.mark.parametrize("text", ["", "  ", "nonsense", "a/b/c", "http://x/y", "org/na me"])
def test_what_names_nothing_is_refused(read, text):
    """Neither a path nor a repo id is one sentence with an example."""
    with pytest.raises(StackFileError) as caught:
        read(text)
    assert caught.value.hint


def test_known_models_and_lone_configs_are_read_in_50_ms(tmp_path, read):
    """Reading facts is a small part of the second that a plan may take (processor time)."""
    (tmp_path / "config.json").write_text(json.dumps(read_config("Qwen3.5-397B-A17B-FP8")))
    for checkpoint in ("Qwen/Qwen3.5-397B-A17B-FP8", tmp_path):
        start_s = time.process_time()
        read(checkpoint)
        assert time.process_time() - start_s < 0.05
