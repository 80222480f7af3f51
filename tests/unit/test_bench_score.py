"""Scoring the speed model: how table rows are read, what is refused, and that the bars are met."""

import csv
import json
from pathlib import Path

import pytest
from checkpoint_facts import read_config
from click.testing import CliRunner

from trimtab.bench.score import ModelShelf, find_shape_name, score_rows, summarize_errors
from trimtab.bench.score_rows import decode_consumer_row, decode_serving_row, quantize_parts
from trimtab.cli.bench import bench
from trimtab.cli.bench_score import score
from trimtab.errors import MissingFactError
from trimtab.planner.model_config import decode_model_config
from trimtab.planner.model_parts import decode_parts

TABLES = Path(__file__).parents[2] / "benchmarks" / "speed" / "tables"
SERVING = {
    "id": "a",
    "model_path": "openai/gpt-oss-120b",
    "system": "h200_sxm",
    "isl": "1024",
    "osl": "1024",
    "batch_size": "16",
    "tp_size": "2",
    "silicon_ttft_ms": "93.1",
    "silicon_tpot_ms": "7.88",
}
CONSUMER = {
    "engine": "vllm",
    "model": "Lorbus/Qwen3.6-27B-int4-AutoRound",
    "quant": "autoround-int4",
    "gpu": "rtx-3090-24g",
    "tp": "2",
    "spec_decode": "none",
    "decode_tok_s_per_user": "70",
}


def shelf():
    names = ("gpt-oss-120b", "MiniMax-M2.5", "Kimi-K2.5", "Llama-3.1-70B", "Llama-3.1-8B-Instruct-FP8")
    names += ("Qwen3-235B-A22B-FP8", "Qwen3-32B", "Qwen3.6-27B", "Qwen3.6-35B-A3B", "Qwen3.5-397B-A17B")
    names += ("gemma-4-26B-A4B",)
    return ModelShelf(
        {name.lower(): lambda name=name: decode_model_config(read_config(name)) for name in names}
    )


def table(name):
    with (TABLES / name).open(newline="") as file:
        return list(csv.DictReader(file))


def errors_of(rows):
    return {each.figure: each for each in summarize_errors(rows)}


def test_the_serving_table_is_predicted_within_the_bars():
    """The published rows of data-centre cards are met: 20 % on the first token, 10 % per token."""
    rows = score_rows(table("vllm-serving-speed.csv"), shelf(), "serving")
    found = errors_of(rows)

    assert [row.reason for row in rows if row.reason] == []
    assert found["ttft_ms"].median_ratio < 0.20
    assert found["tpot_ms"].median_ratio < 0.10


def test_consumer_cards_are_predicted_within_the_bar():
    """What owners of 3090s and 5090s measured without speculation is met within 12 %."""
    rows = score_rows(table("consumer-cards.csv"), shelf(), "consumer")
    usable = [row for row in rows if not row.reason and row.row["confidence"] != "low"]
    paces = sorted(
        abs(row.measured_tpot_ms / row.predicted_tpot_ms - 1) for row in usable if row.measured_tpot_ms
    )

    assert len(paces) > 60
    assert paces[len(paces) // 2] < 0.12


def test_cache_tokens_are_those_the_engine_printed():
    """Where version, memory and length are known, the printed KV tokens of hybrids come out to the token."""
    rows = score_rows(table("consumer-cards.csv"), shelf(), "consumer")
    told = [row for row in rows if row.predicted_cache_tokens is not None]
    hybrids = [row for row in told if "35B" in row.row["model"]]

    assert len(hybrids) >= 7
    assert all(abs(row.predicted_cache_tokens / row.measured_cache_tokens - 1) < 0.001 for row in hybrids)
    assert errors_of(rows)["kv_cache_tokens"].median_ratio < 0.03


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"isl": ""}, "isl is empty"),
        ({"isl": "many"}, "isl is 'many'"),
        ({"osl": "0"}, "osl is 0, expected 1 or more"),
        ({"batch_size": "-4"}, "batch_size is -4"),
        ({"isl": "nan"}, "isl is nan"),
        ({"system": "tpu_v5"}, "card 'tpu_v5' isn't in the catalogue"),
        ({"model_path": ""}, "model_path is empty"),
        ({"model_path": "acme/Unheard-9B"}, "no config of acme/Unheard-9B"),
        ({"gemm_quant_mode": "int2"}, "quantisation mode 'int2' isn't known"),
    ],
    ids=lambda value: next(iter(value)) if isinstance(value, dict) else None,
)
def test_a_row_that_cannot_be_asked_keeps_its_place(changes, words):
    """A bad row costs that row only, and its reason names the cell."""
    rows = score_rows([SERVING, {**SERVING, **changes}, SERVING], shelf(), "serving")

    assert words in rows[1].reason
    assert rows[1].predicted_tpot_ms is None
    assert rows[0].predicted_tpot_ms == rows[2].predicted_tpot_ms > 0


def test_attention_groups_on_the_same_cards():
    """Two ways of writing one run down are read as the same users on the same cards."""
    plain = decode_serving_row({**SERVING, "tp_size": "4", "attention_dp_size": "1", "moe_ep_size": "4"})
    grouped = decode_serving_row(
        {**SERVING, "batch_size": "4", "tp_size": "4", "attention_dp_size": "4", "moe_ep_size": "16"}
    )

    assert grouped.num_gpus == plain.num_gpus == 4
    assert grouped.workload.concurrency == plain.workload.concurrency == 16
    assert grouped.settings.attention_parallel_size == 1


def test_a_stated_width_replaces_the_config_s_scheme_under_its_mask():
    """A 4-bit run of a model whose config is 8-bit reads half the bytes, and its head stays as it was."""
    facts = decode_model_config(read_config("MiniMax-M2.5"))
    row = {**SERVING, "model_path": "x/MiniMax-M2.5", "gemm_quant_mode": "nvfp4", "moe_quant_mode": "nvfp4"}

    parts = quantize_parts(facts, decode_parts(facts), decode_serving_row(row))

    assert {part.scheme.bits for part in parts.experts} == {4}
    assert {part.scheme.bits for part in parts.linears if "self_attn" in part.name} == {4}


def test_a_same_width_keeps_the_config():
    """What the config says about its own 4 bits is better known than a table's word."""
    facts = decode_model_config(read_config("gpt-oss-120b"))

    parts = quantize_parts(
        facts, decode_parts(facts), decode_serving_row({**SERVING, "gemm_quant_mode": "nvfp4"})
    )

    assert {part.scheme.format for part in parts.experts} == {"mxfp4"}
    assert all(part.scheme is None for part in parts.linears)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"engine": "llama.cpp"}, "engine 'llama.cpp' isn't modelled"),
        ({"spec_decode": "mtp-3"}, "runs speculation (mtp-3)"),
        ({"spec_decode": ""}, "doesn't say whether speculation was on"),
        ({"quant": "exl9"}, "quantisation 'exl9' isn't known"),
        ({"gpu": "abacus"}, "card 'abacus' isn't in the catalogue"),
        ({"gpu": "rtx-3090-24g+abacus"}, "isn't in the catalogue"),
    ],
    ids=lambda value: next(iter(value)) if isinstance(value, dict) else None,
)
def test_consumer_rows_the_model_has_no_answer_for(changes, words):
    """Speculative, foreign and unknown rows are named, not guessed."""
    with pytest.raises(MissingFactError, match=words.replace("(", r"\(").replace(")", r"\)")):
        decode_consumer_row({**CONSUMER, **changes})


def test_a_mixed_pair_runs_at_the_slower_card():
    """A 3090 beside a 5090 sets the pace."""
    assert decode_consumer_row({**CONSUMER, "gpu": "rtx-5090-32g+rtx-3090-24g"}).card.name == "rtx3090"


@pytest.mark.parametrize(
    ("model", "shape"),
    [
        ("Lorbus/Qwen3.6-27B-int4-AutoRound", "qwen3.6-27b"),
        ("Tess-4-27B NVFP4 (migtissera)", "qwen3.6-27b"),
        ("Qwen3.6-35B-A3B int4 AutoRound (club-3090)", "qwen3.6-35b-a3b"),
        ("acme/Unheard-9B", None),
    ],
    ids=str,
)
def test_names_of_tables_find_their_shape(model, shape):
    """Fine-tunes and requantised uploads are the size of what they were made from."""
    assert find_shape_name(model, ["qwen3.6-27b", "qwen3.6-35b-a3b", "qwen3-4b"]) == shape


def write(path, rows):
    with path.open("w", newline="") as file:
        writer = csv.DictWriter(file, rows[0])
        writer.writeheader()
        writer.writerows(rows)
    return str(path)


def test_the_command_adds_columns_and_keeps_rows(tmp_path):
    """The table that comes out is the one that went in, with predictions and reasons behind it."""
    configs = tmp_path / "configs" / "deep" / "gpt-oss-120b"
    configs.mkdir(parents=True)
    (configs / "config.json").write_text(json.dumps(read_config("gpt-oss-120b")))
    (tmp_path / "configs" / "inventory.json").write_text('{"tensors": []}')
    (tmp_path / "configs" / "broken.json").write_text("{")
    source = write(tmp_path / "in.csv", [SERVING, {**SERVING, "id": "b", "isl": ""}])
    out = tmp_path / "out.csv"

    done = CliRunner().invoke(
        score, [source, "--configs", str(tmp_path / "configs"), "--out", str(out), "--json"]
    )

    assert done.exit_code == 0, done.output
    document = json.loads(done.stdout)
    with out.open(newline="") as file:
        rows = list(csv.DictReader(file))
    assert [row["id"] for row in rows] == ["a", "b"]
    assert float(rows[0]["predicted_tpot_ms"]) == pytest.approx(7.88, rel=0.3)
    assert rows[1]["reason"] == "isl is empty"
    assert rows[1]["predicted_tpot_ms"] == ""
    assert (document["num_rows"], document["num_predicted"]) == (2, 1)
    assert document["rows"][1]["reason"] == "isl is empty"


@pytest.mark.parametrize(
    ("content", "words"),
    [("model_path,isl\nx,1\n", "column 'system' is missing"), (None, "cannot be read as a table")],
    ids=["column", "no-file"],
)
def test_a_table_that_isn_t_one_is_refused(tmp_path, content, words):
    """A wrong file is named with what it lacks."""
    path = tmp_path / "t.csv"
    if content is not None:
        path.write_text(content)

    done = CliRunner().invoke(score, [str(path)])

    assert words in str(done.exception)


def test_the_summary_reads_in_a_terminal(tmp_path):
    """People get errors by model and card, and why rows were left out."""
    done = CliRunner().invoke(bench, ["score", write(tmp_path / "in.csv", [SERVING, {**SERVING, "isl": ""}])])

    assert "no config of openai/gpt-oss-120b is at hand" in done.stdout
    assert "isl is empty" in done.stdout
