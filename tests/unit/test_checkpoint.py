"""Checkpoints on disk: lone configs, whole folders, missing and cut-off shards."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from checkpoint_facts import read_config, write_safetensors

from trimtab.errors import StackFileError
from trimtab.planner.model_config import decode_model_config
from trimtab.planner.model_parts import decode_parts
from trimtab.planner.quant_config import scheme_of
from trimtab.planner.tensor_inventory import count_tensors, render_inventory, sum_bytes
from trimtab.probes.checkpoint import check_checkpoint, read_checkpoint
from trimtab.probes.safetensors_header import decode_safetensors_header, read_safetensors_header

TINY = {
    "architectures": ["Qwen3ForCausalLM"],
    "model_type": "qwen3",
    "hidden_size": 64,
    "intermediate_size": 128,
    "num_hidden_layers": 4,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 16,
    "vocab_size": 256,
    "max_position_embeddings": 512,
    "torch_dtype": "bfloat16",
    "tie_word_embeddings": False,
}
Stored = dict[str, tuple[str, list[int]]]


def stored_tensors(config: dict[str, Any]) -> Stored:
    """Every tensor of a tiny model, as the inventory lists it."""
    facts = decode_model_config(config)
    named: Stored = {}
    for tensor in render_inventory(decode_parts(facts), dtype=facts.dtype):
        for layer in range(tensor.count):
            named[tensor.name.replace("{l}", str(layer))] = (tensor.dtype, list(tensor.shape))
    return named


def write_folder(folder: Path, *, shards: int = 3, config: dict[str, Any] | None = None) -> list[Path]:
    """A whole checkpoint of a tiny model, its shards and its index."""
    config = config or TINY
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps(config))
    tensors = list(stored_tensors(config).items())
    paths, weight_map = [], {}
    for shard in range(shards):
        path = folder / f"model-{shard + 1:05d}-of-{shards:05d}.safetensors"
        mine = dict(tensors[shard::shards])
        write_safetensors(path, mine)
        weight_map |= dict.fromkeys(mine, path.name)
        paths.append(path)
    (folder / "model.safetensors.index.json").write_text(
        json.dumps({"metadata": {"total_size": 1}, "weight_map": weight_map})
    )
    return paths


def test_a_lone_config_is_enough(tmp_path: Path) -> None:
    """A config.json without weights is planned, as a folder or by its own path."""
    (tmp_path / "config.json").write_text(json.dumps(TINY))
    for path in (tmp_path, tmp_path / "config.json"):
        checkpoint = read_checkpoint(path)
        check_checkpoint(checkpoint)
        assert checkpoint.facts.num_layers == 4
        assert not checkpoint.has_weights
        assert checkpoint.weights_bytes is None


def test_a_whole_folder_is_measured_from_its_headers(tmp_path: Path) -> None:
    """Bytes and tensor count come from the files, and equal the derived inventory."""
    write_folder(tmp_path / "m")
    checkpoint = read_checkpoint(tmp_path / "m")
    check_checkpoint(checkpoint)
    derived = render_inventory(decode_parts(checkpoint.facts), dtype="bfloat16")
    assert checkpoint.is_complete
    assert checkpoint.weights_bytes == sum_bytes(checkpoint.tensors) == sum_bytes(derived)
    assert count_tensors(checkpoint.tensors) == count_tensors(derived)
    assert {t.name for t in checkpoint.tensors} == {t.name for t in derived}
    assert checkpoint.facts.basis == "measured from the files"


@pytest.mark.parametrize("has_index", [True, False], ids=["with index", "by shard numbers"])
def test_missing_shards_are_named(tmp_path: Path, has_index: bool) -> None:  # noqa: FBT001
    """A download that stopped half-way is found before anything starts, file by file."""
    paths = write_folder(tmp_path / "m", shards=4)
    paths[1].unlink()
    paths[3].unlink()
    if not has_index:
        (tmp_path / "m" / "model.safetensors.index.json").unlink()
    checkpoint = read_checkpoint(tmp_path / "m")
    assert checkpoint.missing_files == (paths[1].name, paths[3].name)
    with pytest.raises(StackFileError, match=rf"{paths[1].name}, {paths[3].name} are missing"):
        check_checkpoint(checkpoint)


def test_many_missing_shards_are_counted_not_listed(tmp_path: Path) -> None:
    """A long list is cut, with how many more there are."""
    paths = write_folder(tmp_path / "m", shards=12)
    for path in paths[1:]:
        path.unlink()
    with pytest.raises(StackFileError, match="and 7 more are missing"):
        check_checkpoint(read_checkpoint(tmp_path / "m"))


@pytest.mark.parametrize("left", [0, 5, 40, 2000], ids=lambda n: f"{n} bytes left")
def test_a_cut_off_shard_is_named(tmp_path: Path, left: int) -> None:
    """A shard shorter than its header says, or without a whole header, is called damaged."""
    paths = write_folder(tmp_path / "m")
    paths[2].write_bytes(paths[2].read_bytes()[:left])
    checkpoint = read_checkpoint(tmp_path / "m")
    assert checkpoint.damaged_files == (paths[2].name,)
    with pytest.raises(StackFileError, match=f"{paths[2].name} is cut off or damaged"):
        check_checkpoint(checkpoint)


def test_the_mask_is_what_the_files_show(tmp_path: Path) -> None:
    """A module that is stored in 16 bits counts as such although the config forgot to say so."""
    block = {"quant_method": "fp8", "weight_block_size": [32, 32]}
    config = TINY | {"quantization_config": block}
    write_folder(
        tmp_path / "m", config=TINY | {"quantization_config": block | {"modules_to_not_convert": ["o_proj"]}}
    )
    (tmp_path / "m" / "config.json").write_text(json.dumps(config))
    checkpoint = read_checkpoint(tmp_path / "m")
    quant = checkpoint.facts.quant
    assert scheme_of(quant, "model.layers.2.self_attn.o_proj") is None
    assert scheme_of(quant, "model.layers.2.self_attn.q_proj") is not None
    assert (
        sum_bytes(render_inventory(decode_parts(checkpoint.facts), dtype="bfloat16"))
        == checkpoint.weights_bytes
    )


def test_quantisation_kept_in_a_file_of_its_own_is_read(tmp_path: Path) -> None:
    """NVIDIA's hf_quant_config.json counts as the config's quantisation."""
    (tmp_path / "config.json").write_text(json.dumps(read_config("Llama-3.1-8B")))
    content = {"quantization": {"quant_algo": "NVFP4", "group_size": 16, "exclude_modules": ["lm_head"]}}
    (tmp_path / "hf_quant_config.json").write_text(json.dumps(content))
    quant = read_checkpoint(tmp_path).facts.quant
    assert quant is not None
    assert quant.format == "nvfp4"


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("{", "isn't JSON"),
        ("", "is empty"),
        ("\x00\x01", "isn't JSON"),
        ("[" * 100_000, "isn't JSON"),
        ("[]", "holds a list"),
        ('{"model_type": 3}', "model_type is 3"),
    ],
    ids=["cut off", "empty", "binary", "nested", "list", "number"],
)
def test_a_config_that_is_none_is_refused(tmp_path: Path, text: str, said: str) -> None:
    """Whatever a config.json may hold, the answer is one sentence with its path."""
    (tmp_path / "config.json").write_text(text)
    with pytest.raises(StackFileError, match=said) as caught:
        read_checkpoint(tmp_path)
    assert "config.json" in caught.value.message


def test_a_folder_without_config_and_a_path_that_is_not_there_are_told_apart(tmp_path: Path) -> None:
    """The message says which of the two it was."""
    with pytest.raises(StackFileError, match=r"holds no config\.json"):
        read_checkpoint(tmp_path)
    with pytest.raises(StackFileError, match="does not exist"):
        read_checkpoint(tmp_path / "nowhere")


@pytest.mark.parametrize(
    "index",
    [{}, {"weight_map": []}, {"weight_map": {}}, [], {"weight_map": {"a": "../../other.safetensors"}}],
    ids=["empty", "list map", "no tensors", "list", "outside"],
)
def test_a_broken_index_is_named(tmp_path: Path, index: object) -> None:
    """An index without a map, or one that points out of the folder, is refused."""
    write_folder(tmp_path / "m")
    (tmp_path / "m" / "model.safetensors.index.json").write_text(json.dumps(index))
    with pytest.raises(StackFileError, match="index"):
        read_checkpoint(tmp_path / "m")


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"not a safetensors file at all",
        (10).to_bytes(8, "little") + b"0123456789",
        (2).to_bytes(8, "little") + b"[]",
        (1 << 40).to_bytes(8, "little") + b"{}",
        (14).to_bytes(8, "little") + b'{"a":{"x": 1}}',
    ],
    ids=["empty", "text", "no JSON", "list", "huge header", "no offsets"],
)
def test_other_files_are_not_taken_for_safetensors(tmp_path: Path, content: bytes) -> None:
    """A wrong or broken file gives one sentence with its name, not a traceback."""
    path = tmp_path / "model.safetensors"
    path.write_bytes(content)
    with pytest.raises(StackFileError, match=r"model\.safetensors"):
        read_safetensors_header(path)


def test_a_header_with_sizes_that_do_not_match_its_shapes_is_refused() -> None:
    """Offsets that contradict the shape mean a damaged file."""
    table = json.dumps({"w": {"dtype": "BF16", "shape": [2, 2], "data_offsets": [0, 7]}}).encode()
    raw = len(table).to_bytes(8, "little") + table + bytes(7)
    with pytest.raises(StackFileError, match="takes 7 bytes, expected 8"):
        decode_safetensors_header(lambda offset, length: raw[offset : offset + length], where="w.safetensors")
