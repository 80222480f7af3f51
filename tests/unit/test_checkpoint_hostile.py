"""Checkpoints as nobody should publish them: each is refused in one sentence, and soon."""

from __future__ import annotations

import json
import os
import time
from pathlib import Path
from typing import Any

import pytest
from checkpoint_facts import write_safetensors

from trimtab.errors import StackFileError
from trimtab.probes.checkpoint import check_checkpoint, decode_json, read_checkpoint
from trimtab.probes.safetensors_header import read_safetensors_header
from trimtab.probes.small_file import read_small_file

LLAMA: dict[str, Any] = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "hidden_size": 64,
    "intermediate_size": 128,
    "num_hidden_layers": 4,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "vocab_size": 256,
    "max_position_embeddings": 512,
    "torch_dtype": "bfloat16",
    "tie_word_embeddings": False,
}


def write_header(path: Path, table: object) -> None:
    raw = table if isinstance(table, bytes) else json.dumps(table).encode()
    path.write_bytes(len(raw).to_bytes(8, "little") + raw + bytes(64))


def write_config(folder: Path, **changes: object) -> Path:
    folder.mkdir(exist_ok=True)
    (folder / "config.json").write_text(json.dumps(LLAMA | changes))
    return folder


@pytest.mark.parametrize(
    "name", ["config.json", "hf_quant_config.json", "model.safetensors.index.json", "tokenizer_config.json"]
)
@pytest.mark.parametrize("kind", ["pipe", "endless device"])
def test_a_pipe_or_device_in_a_checkpoint_does_not_hang(tmp_path: Path, name: str, kind: str) -> None:
    """A folder with a pipe in the place of a file is answered at once: refused, or read without it."""
    folder = write_config(tmp_path / "m")
    (folder / name).unlink(missing_ok=True)
    if kind == "pipe":
        os.mkfifo(folder / name)
    else:
        (folder / name).symlink_to("/dev/zero")
    start = time.monotonic()
    if name == "config.json":
        with pytest.raises(StackFileError, match=r"config\.json is not a regular file"):
            read_checkpoint(folder)
    else:
        assert not read_checkpoint(folder).has_weights
    assert time.monotonic() - start < 5


def test_a_file_that_is_too_long_for_its_kind_is_not_read_whole(tmp_path: Path) -> None:
    """A sparse file of a terabyte costs no memory."""
    path = tmp_path / "config.json"
    path.touch()
    os.truncate(path, 1 << 40)
    with pytest.raises(StackFileError, match="more than 1,000 bytes"):
        read_small_file(path, max_bytes=1000)
    with pytest.raises(StackFileError, match="more than 67,108,864 bytes"):
        read_checkpoint(tmp_path)


def test_an_index_of_many_missing_shards_is_answered_at_once(tmp_path: Path) -> None:
    """A few are named, all are counted, and the folder is listed once."""
    folder = write_config(tmp_path / "m")
    names = {f"t{i}": f"shard-{i}.safetensors" for i in range(100_000)}
    (folder / "model.safetensors.index.json").write_text(json.dumps({"weight_map": names}))
    start = time.monotonic()
    checkpoint = read_checkpoint(folder)
    with pytest.raises(StackFileError, match=r"shard-0\.safetensors.* and 99,996 more are missing"):
        check_checkpoint(checkpoint)
    assert time.monotonic() - start < 8


@pytest.mark.parametrize(
    ("table", "said"),
    [
        (b"[" * 100_000, "isn't a safetensors file"),
        ({"w": {"dtype": "BF16", "shape": [-1, 5], "data_offsets": [0, -10]}}, "whole numbers"),
        ({"w": {"dtype": "ZZ", "shape": [2, 2], "data_offsets": [0, 8]}}, "dtype 'ZZ'"),
        ({"w": {"dtype": ["BF16"], "shape": [2, 2], "data_offsets": [0, 8]}}, "dtype"),
        ({"w": {"dtype": "BF16", "shape": [2, 2], "data_offsets": [0, 10]}}, "takes 10 bytes, expected 8"),
        ({"w": {"dtype": "BF16", "shape": [2.0, 2], "data_offsets": [0, 8]}}, "whole numbers"),
        ({"w": {"dtype": "BF16", "shape": [True, 4], "data_offsets": [0, 8]}}, "whole numbers"),
        ({"w": {"dtype": "BF16", "shape": [1 << 60], "data_offsets": [0, 1 << 61]}}, "whole numbers"),
        ({"w": {"dtype": "BF16", "shape": [4], "data_offsets": [8, 16]}}, "begins at 8, expected 0"),
        ({"w" * 9000: {"dtype": "ZZ", "shape": [4], "data_offsets": [0, 8]}}, r"ww\.\.\.' has dtype"),
        ({"w": {"dtype": "BF16", "shape": 4, "data_offsets": [0, 8]}}, "no dtype, shape and offsets"),
        ({"w": {"dtype": "BF16", "shape": [4], "data_offsets": [0]}}, "no dtype, shape and offsets"),
    ],
)
def test_a_header_that_cannot_be_is_damaged(tmp_path: Path, table: object, said: str) -> None:
    """No traceback, no negative size: the file is named as damaged."""
    folder = write_config(tmp_path / "m")
    path = folder / "model.safetensors"
    write_header(path, table)
    with pytest.raises(StackFileError, match=said) as caught:
        read_safetensors_header(path)
    assert len(caught.value.message) < 300
    with pytest.raises(StackFileError, match=r"model\.safetensors is cut off or damaged"):
        check_checkpoint(read_checkpoint(folder))


@pytest.mark.parametrize(
    "names",
    [
        [f"t{i}" for i in range(200_000)],
        [f"model.layers.0.x{i}" for i in range(20_000)],
        ["something.weight"],
        ["unet.down.0.weight", "unet.down.1.weight"],
    ],
    ids=["200,000 unknown", "many in one layer", "one unknown", "another kind of model"],
)
def test_tensors_of_another_model_are_refused(tmp_path: Path, names: list[str]) -> None:
    """Weights that do not belong to the config are named as such, not planned with them."""
    folder = write_config(tmp_path / "m")
    write_safetensors(folder / "model.safetensors", {name: ("BF16", [1]) for name in names})
    start = time.monotonic()
    with pytest.raises(StackFileError, match="tensor names are not this model's"):
        read_checkpoint(folder)
    assert time.monotonic() - start < 20


@pytest.mark.parametrize(
    ("raw", "said"),
    [
        (b"\xef\xbb\xbf{}", "byte order mark"),
        ("{}".encode("utf-16"), "byte order mark"),
        (b'{"vocab_size": ' + b"9" * 5000 + b"}", "a number in it has 5,000 digits, expected at most 100"),
        (b"[" * 100_000, "nested too deeply"),
    ],
    ids=["BOM", "UTF-16", "5,000 digits", "nested"],
)
def test_json_that_python_reads_its_own_way_is_refused_in_our_words(raw: bytes, said: str) -> None:
    """No advice to call a function of Python's."""
    with pytest.raises(StackFileError, match=said) as caught:
        decode_json(raw, where="config.json")
    assert "sys." not in caught.value.message


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"layer_types": ["foo"] * 4}, r"layer_types has 'foo'.*full_attention, sliding_attention"),
        ({"layer_types": "full_attention"}, "layer_types is 'full_attention', expected a list"),
        ({"layer_types": [7] * 4}, "layer_types is .* expected a list"),
        ({"layer_types": ["foo" * 4000] * 4}, "layer_types has 'foofoo"),
        ({"layer_types": ["full_attention"]}, "one entry for each of the 4 layers"),
        ({"hidden_size": 2}, "hidden_size 2 .* num_attention_heads 4"),
        ({"head_dim": 0}, "head_dim is 0"),
    ],
)
def test_layers_that_cannot_be_are_refused(tmp_path: Path, changes: dict[str, Any], said: str) -> None:
    """The key, its value and what is legal, also where the family has no use for the key."""
    with pytest.raises(StackFileError, match=said) as caught:
        read_checkpoint(write_config(tmp_path / "m", **changes))
    assert len(caught.value.message) < 400


def test_layer_types_of_newer_configs_are_taken(tmp_path: Path) -> None:
    """Configs saved by newer transformers list the kinds although all layers are alike."""
    checkpoint = read_checkpoint(write_config(tmp_path / "m", layer_types=["full_attention"] * 4))
    assert len(checkpoint.facts.layers) == 4
