"""The GGUF header reader, judged by the gguf package on the real model and on small files of many shapes."""

from __future__ import annotations

import os
import struct
import time
from pathlib import Path

import gguf
import pytest
from gguf_files import SmallModel, embedded_gguf, write_small_gguf

from trimtab.errors import MissingFactError, StackFileError
from trimtab.probes.gguf_header import read_gguf_header


def _judge(path: Path) -> dict[str, object]:
    """The same facts, from the gguf package's own reader."""
    reader = gguf.GGUFReader(path)

    def value(key: str, default: object = None) -> object:
        field = reader.fields.get(key)
        return default if field is None else field.contents()

    arch = value("general.architecture")
    layers, heads, embd = (
        value(f"{arch}.{key}") for key in ("block_count", "attention.head_count", "embedding_length")
    )
    kv_heads = value(f"{arch}.attention.head_count_kv", heads)
    tensors = {tensor.name: tensor for tensor in reader.tensors}
    sums: dict[str, int] = {}
    for tensor in reader.tensors:
        name = tensor.tensor_type.name
        sums[name] = sums.get(name, 0) + int(tensor.n_bytes)
    return {
        "path": str(path),
        "name": value("general.name") or path.stem,
        "architecture": arch,
        "file_bytes": path.stat().st_size,
        "weights_bytes": sum(int(tensor.n_bytes) for tensor in reader.tensors),
        "num_tensors": len(reader.tensors),
        "num_layers": layers,
        "embedding_length": embd,
        "feed_forward_length": value(f"{arch}.feed_forward_length", 0),
        "vocab_size": len(value("tokenizer.ggml.tokens", [])),
        "trained_context_tokens": value(f"{arch}.context_length"),
        "num_heads": heads,
        "kv_heads_per_layer": tuple(kv_heads) if isinstance(kv_heads, list) else (kv_heads,) * layers,
        "key_head_dim": value(f"{arch}.attention.key_length", embd // heads),
        "value_head_dim": value(f"{arch}.attention.value_length", embd // heads),
        "sliding_window_tokens": value(f"{arch}.attention.sliding_window", 0),
        "has_chat_template": bool(value("tokenizer.chat_template")),
        "bytes_by_tensor_type": tuple(sorted(sums.items(), key=lambda item: (-item[1], item[0]))),
        "token_embedding_bytes": int(tensors["token_embd.weight"].n_bytes),
        "token_embedding_type": tensors["token_embd.weight"].tensor_type.name,
        "has_output_head": "output.weight" in tensors,
        "num_experts_used": value(f"{arch}.expert_used_count", 0),
    }


def _assert_agrees(path: Path) -> None:
    found = read_gguf_header(path)
    expected = _judge(path)
    assert {key: getattr(found, key) for key in expected} == expected


def test_header_of_the_embedded_model_agrees_with_the_gguf_package():
    """The plan of the default model rests on the facts that the reference reader gives."""
    path = embedded_gguf()
    _assert_agrees(path)
    assert read_gguf_header(path).quantization == "Q4_1"


def test_header_of_the_embedded_model_is_read_in_a_blink():
    """`trimtab plan` answers at once although the file holds 100,000 token strings."""
    path = embedded_gguf()
    took_s = []
    for _ in range(5):
        started_s = time.perf_counter()
        read_gguf_header(path)
        took_s.append(time.perf_counter() - started_s)
    # 6 to 11 ms on the development machine; the wide bound is for a loaded CI core.
    assert min(took_s) < 0.1


@pytest.mark.parametrize(
    "model",
    [
        pytest.param(SmallModel(), id="plain"),
        pytest.param(SmallModel(kv_heads=[2, 0, 1], layers=3), id="kv-heads-per-layer"),
        pytest.param(SmallModel(arch="gemma3", window=128), id="sliding-window"),
        pytest.param(SmallModel(quant="Q8_0"), id="q8_0"),
        pytest.param(SmallModel(quant="Q4_0", tied=False), id="q4_0-untied"),
        pytest.param(SmallModel(quant="Q6_K", embd=256, heads=4, head_dim=64), id="q6_k"),
        pytest.param(SmallModel(quant="F16", template="{{ messages }}"), id="f16-template"),
        pytest.param(SmallModel(head_dim=None), id="no-head-lengths"),
        pytest.param(SmallModel(without=("llama.attention.head_count_kv",)), id="no-kv-heads"),
        pytest.param(SmallModel(without=("tokenizer.ggml.tokens",), name=None), id="no-tokens-no-name"),
        pytest.param(SmallModel(experts_used=2), id="mixture"),
        pytest.param(SmallModel(vocab=70_000), id="token-array-longer-than-kept"),
        pytest.param(SmallModel(extra=(("general.alignment", 64),)), id="other-alignment"),
    ],
)
def test_header_of_a_small_file_agrees_with_the_gguf_package(tmp_path: Path, model: SmallModel):
    """Whatever shape of model a user brings, its facts are the reference reader's."""
    _assert_agrees(write_small_gguf(tmp_path / "toy.gguf", model))


def test_embedding_models_are_recognised(tmp_path: Path):
    """A model that pools is served for embeddings, without the user saying so."""
    pooled = write_small_gguf(tmp_path / "pooled.gguf", SmallModel(pooling=1))
    encoder = write_small_gguf(tmp_path / "encoder.gguf", SmallModel(arch="nomic-bert"))
    chat = write_small_gguf(tmp_path / "chat.gguf")
    found = [read_gguf_header(path).is_embedding_only for path in (pooled, encoder, chat)]
    assert found == [True, True, False]
    ranker = write_small_gguf(tmp_path / "ranker.gguf", SmallModel(pooling=4))
    pooling = [read_gguf_header(path).has_pooling for path in (pooled, ranker, encoder, chat)]
    assert pooling == [True, True, False, False]


def test_text_that_is_not_utf8_does_not_stop_the_reader(tmp_path: Path):
    """A model with a broken name can still be run."""
    path = write_small_gguf(tmp_path / "toy.gguf")
    path.write_bytes(path.read_bytes().replace(b"toy", b"t\xff\xfe"))
    assert read_gguf_header(path).name.startswith("t")


def test_control_characters_of_a_file_never_reach_the_terminal(tmp_path: Path):
    """A damaged or hostile file cannot break a message into lines or paint the screen."""
    path = write_small_gguf(tmp_path / "toy.gguf", SmallModel(name="a\x1b[31mb\nc" + "d" * 5000))
    assert read_gguf_header(path).name.startswith("a?[31mb?cddd")
    assert len(read_gguf_header(path).name) < 250
    path.write_bytes(path.read_bytes().replace(b"llama", b"ll\nma", 1))
    with pytest.raises(MissingFactError) as caught:
        read_gguf_header(path)
    assert "\n" not in caught.value.message


def test_split_checkpoint_is_summed_over_its_parts(tmp_path: Path):
    """A model split over files is planned as a whole, by naming its first part."""
    split = (("split.count", 2),)
    paths = [tmp_path / f"toy-{part:05d}-of-00002.gguf" for part in (1, 2)]
    for number, path in enumerate(paths):
        write_small_gguf(path, SmallModel(extra=(*split, ("split.no", number))))
    whole = read_gguf_header(paths[0])
    one = read_gguf_header(write_small_gguf(tmp_path / "one.gguf"))
    assert (whole.num_files, whole.weights_bytes) == (2, 2 * one.weights_bytes)
    assert whole.file_bytes == sum(path.stat().st_size for path in paths)
    with pytest.raises(StackFileError, match="is part 2 of 2") as caught:
        read_gguf_header(paths[1])
    assert paths[0].name in caught.value.hint
    paths[1].unlink()
    with pytest.raises(StackFileError, match=f"parts are missing: {paths[1].name}"):
        read_gguf_header(paths[0])


def test_missing_file_names_what_is_there_instead(tmp_path: Path):
    """A mistyped file name is answered with the .gguf files that exist."""
    write_small_gguf(tmp_path / "right.gguf")
    with pytest.raises(StackFileError, match=r"wrong\.gguf does not exist") as caught:
        read_gguf_header(tmp_path / "wrong.gguf")
    assert "right.gguf" in caught.value.hint


def test_things_that_are_no_files_are_refused(tmp_path: Path):
    """A folder or a pipe given for a model is named as such, and nothing hangs."""
    with pytest.raises(StackFileError, match="is a folder"):
        read_gguf_header(tmp_path)
    os.mkfifo(tmp_path / "pipe.gguf")
    with pytest.raises(StackFileError, match="is not a regular file"):
        read_gguf_header(tmp_path / "pipe.gguf")


def _header(version: int = 3, *, tensors: int = 0, pairs: int = 0, order: str = "<") -> bytes:
    return b"GGUF" + struct.pack(order + "IQQ", version, tensors, pairs)


@pytest.mark.parametrize(
    ("content", "says"),
    [
        pytest.param(b"", "is empty", id="empty"),
        pytest.param(b"GG", "is not a GGUF file", id="two-bytes"),
        pytest.param(b"PK\x03\x04" + bytes(100), "is not a GGUF file", id="zip"),
        pytest.param(b"GGUF", "is cut off", id="magic-only"),
        pytest.param(_header()[:-3], "is cut off", id="cut-in-counts"),
        pytest.param(_header(1), "GGUF version 1", id="version-1"),
        pytest.param(_header(99), "GGUF version 99", id="version-99"),
        pytest.param(_header(3, order=">"), "is big-endian", id="big-endian"),
        pytest.param(_header(pairs=2**63), "more than its size allows", id="absurd-pairs"),
        pytest.param(_header(tensors=2**40), "more than its size allows", id="absurd-tensors"),
        pytest.param(
            _header(pairs=1) + struct.pack("<Q", 2**62) + bytes(20), "is cut off", id="absurd-string"
        ),
        pytest.param(
            _header(pairs=1) + struct.pack("<Q1sIIQ", 1, b"k", 9, 8, 2**61) + bytes(9),
            "is cut off: it ends inside an array",
            id="absurd-array",
        ),
        pytest.param(
            _header(pairs=1) + struct.pack("<Q1sII", 1, b"k", 77, 0) + bytes(9),
            "unknown type 77",
            id="unknown-value-type",
        ),
    ],
)
def test_file_that_is_no_gguf_is_refused_in_one_sentence(tmp_path: Path, content: bytes, says: str):
    """A wrong or broken file is refused before anything starts, and the message says why."""
    path = tmp_path / "bad.gguf"
    path.write_bytes(content)
    with pytest.raises(StackFileError, match=says) as caught:
        read_gguf_header(path)
    assert "\n" not in caught.value.message
    assert caught.value.exit_code == 2


def test_incomplete_download_says_how_many_bytes_are_missing(tmp_path: Path):
    """A download that broke off is recognised by its size, and the hint says to fetch it again."""
    path = write_small_gguf(tmp_path / "toy.gguf")
    whole = path.read_bytes()
    path.write_bytes(whole[:-1000])
    with pytest.raises(StackFileError, match=r"1,000 of [\d,]+ bytes are missing|is cut off") as caught:
        read_gguf_header(path)
    assert "download it again" in caught.value.hint


def test_every_cut_of_the_header_is_noticed(tmp_path: Path):
    """However little of a file arrived, it is never taken for a whole one."""
    whole = write_small_gguf(tmp_path / "toy.gguf").read_bytes()
    for length in range(1, len(whole) - 64, 97):
        path = tmp_path / "cut.gguf"
        path.write_bytes(whole[:length])
        with pytest.raises(StackFileError):
            read_gguf_header(path)


@pytest.mark.parametrize(
    "key",
    [
        "llama.context_length",
        "llama.block_count",
        "llama.embedding_length",
        "llama.attention.head_count",
    ],
)
def test_missing_fact_is_named_by_its_key(tmp_path: Path, key: str):
    """A file without a fact that a plan needs is refused with the name of that fact."""
    path = write_small_gguf(tmp_path / "toy.gguf", SmallModel(without=(key,)))
    with pytest.raises(MissingFactError, match=key):
        read_gguf_header(path)
