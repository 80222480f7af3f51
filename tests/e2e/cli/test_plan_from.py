"""``trimtab plan --from FILE`` as a process: every fault of the file in one run, the rest judged."""

from __future__ import annotations

import json

import pytest
from trimtab_program import Program

ON_ONE = ("--gpus", "1xrtx4090")
FAULTY = """#!/bin/bash
vllm serve Qwen/Qwen3-4B \\
  --enable-reasoning \\
  --enable-prefix-cache \\
  --guided-decoding-backend xgrammar \\
  --reasoning-parser qwn3 \\
  --kv-cache-dtype int8 \\
  --max-num-batched-tokens many \\
  --max-model-len 32k --max-num-seqs 8 --enable-chunked-prefill
"""
TWO_SERVICES = """services:
  chat:
    image: vllm/vllm-openai:v0.25.1
    command: --model Qwen/Qwen3-4B --max-model-len 16384 --gpu-memory-utilization 0.6
    deploy: {resources: {reservations: {devices: [{device_ids: ["0"], capabilities: [gpu]}]}}}
  embed:
    image: vllm/vllm-openai:v0.25.1
    command: --model /srv/models/nobody-knows-this --gpu-memory-utilization 0.2
    volumes: ["/srv/models:/srv/models"]
    deploy: {resources: {reservations: {devices: [{device_ids: ["0"], capabilities: [gpu]}]}}}
"""

CONFIG = json.dumps(
    {
        "architectures": ["Qwen3ForCausalLM"], "model_type": "qwen3", "hidden_size": 1024, "head_dim": 128,
        "intermediate_size": 3072, "max_position_embeddings": 40960, "num_attention_heads": 16,
        "num_hidden_layers": 28, "num_key_value_heads": 8, "tie_word_embeddings": True,
        "torch_dtype": "bfloat16", "vocab_size": 151936,
    }
)  # fmt: skip


@pytest.fixture
def program(tmp_path):
    """The program in folders of its own."""
    return Program(tmp_path, is_warm=True)


def write(program, name, text):
    path = program.root / name
    path.write_text(text)
    return str(path)


def test_every_refused_flag_is_named_in_one_run_and_the_rest_is_judged(program):
    """The user corrects six flags once, not one flag six times."""
    run = program.run("plan", "--from", write(program, "run.sh", FAULTY), *ON_ONE)

    assert run.returncode == 2
    assert run.stderr == ""
    assert "Qwen3-4B with vllm 0.25.1: fits" in run.stdout
    for line, words in (
        (3, "no --enable-reasoning any more"),
        (4, "no flag --enable-prefix-cache"),
        (5, "no --guided-decoding-backend any more"),
        (6, "no reasoning parser qwn3"),
        (7, "--kv-cache-dtype int8 is not a choice"),
        (8, "'many' is not a whole number"),
    ):
        assert any(
            text.startswith(f"  ERROR    line {line}:") and words in text for text in run.stdout.splitlines()
        ), words
    assert "fix: did you mean qwen3?" in run.stdout
    assert "engine_args" not in run.stdout
    assert "left out" in run.stdout
    assert "enable_chunked_prefill" not in run.stdout


def test_the_document_has_the_faults_and_the_plan(program):
    """A program reads the same in one document."""
    document = program.run_json("plan", "--from", write(program, "run.sh", FAULTY), *ON_ONE)

    errors = {
        item["where"]: item["code"] for item in document["check"]["findings"] if item["severity"] == "error"
    }
    assert errors == {
        "line 3": "removed_flag",
        "line 4": "unknown_flag",
        "line 5": "removed_flag",
        "line 6": "unknown_parser",
        "line 7": "bad_choice",
        "line 8": "bad_value",
    }
    assert {item["line"] for item in document["check"]["left_out"]} == {3, 4, 5, 6, 7, 8}
    assert document["fits"] is True


def test_a_model_that_nobody_knows_does_not_hide_the_other(program):
    """One of two services is judged; what would help for the other is said, and the exit code tells."""
    run = program.run("plan", "--from", write(program, "compose.yaml", TWO_SERVICES), *ON_ONE)

    assert run.returncode == 2
    assert "Qwen3-4B with vllm 0.25.1: fits" in run.stdout
    (line,) = [text for text in run.stdout.splitlines() if "is not judged" in text]
    assert "nobody-knows-this" in line
    assert "fix: say where its facts are" in run.stdout


def test_an_older_version_is_said_to_be_unknown_and_nothing_else(program):
    """No claim about flags of a version that was never read."""
    run = program.run(
        "plan", "--from", write(program, "run.sh", FAULTY), *ON_ONE, "--engine-version", "0.9.0"
    )

    assert "vLLM 0.9.0 is older than 0.17" in run.stdout
    assert "any more" not in run.stdout
    assert "ERROR" not in run.stdout


def test_a_plan_for_an_older_version_is_refused(program):
    """It would not be known whether that vLLM has the model at all."""
    run = program.run("plan", "Qwen/Qwen3-4B", *ON_ONE, "--engine-version", "0.10.1")

    assert run.returncode == 2
    assert "vLLM before 0.17 is not known here" in run.stderr


def test_a_stack_beside_from_is_one_clear_sentence(program):
    """MODEL beside --from is where the facts are, not a second thing to plan."""
    write(program, "stack.yaml", "models: {}")
    run = program.run("plan", "stack.yaml", "--from", write(program, "run.sh", FAULTY), *ON_ONE)

    assert run.returncode == 2
    assert "stack.yaml is a stack file" in run.stderr


SHARED = """gpus: 1x h200
runtime: docker
models:
  chat: {checkpoint: Qwen/Qwen3-4B, context: 16384}
  code: {checkpoint: Qwen/Qwen3-8B, context: 16384}
"""


@pytest.mark.parametrize("form", ["command", "docker", "compose", "script"])
def test_models_on_one_card_read_back_without_changes(program, form):
    """Every form that is printed is read, and its shares of the card are taken as they are."""
    text = program.run("plan", write(program, "stack.yaml", SHARED), "--emit", form).stdout
    version = ("--engine-version", "0.25.1") if form == "command" else ()
    run = program.run("plan", "--from", write(program, f"own.{form}", text), "--gpus", "1xh200", *version)

    assert run.returncode == 0
    assert "the planner would change nothing" in run.stdout


def test_a_lone_config_is_planned_and_not_printed_as_commands(program):
    """Nothing could be started from it: one sentence, no commands."""
    folder = program.root / "lone"
    folder.mkdir()
    (folder / "config.json").write_text(CONFIG)
    for target in (folder, folder / "config.json"):
        run = program.run("plan", str(target), *ON_ONE, "--emit", "docker")

        assert run.returncode == 2
        assert run.stdout == ""
        assert "has no weights" in run.stderr


@pytest.mark.parametrize(
    ("gpus", "wish"),
    [
        pytest.param(
            "4xrtx4090",
            ["Qwen/Qwen3.5-35B-A3B-FP8", "--context", "262144", "--concurrency", "4"],
            id="fp8-on-four",
        ),
        pytest.param("1xrtx4090", ["Qwen/Qwen3-4B", "--context", "32768", "--concurrency", "8"], id="one"),
        pytest.param("2xrtx4090", ["Qwen/Qwen3-4B", "--concurrency", "8"], id="two-replicas"),
        pytest.param("1xh200", ["Qwen/Qwen3.5-35B-A3B-FP8"], id="h200"),
    ],
)
def test_what_trimtab_prints_is_to_its_own_liking(program, gpus, wish):
    """A plan printed as docker lines and read back: nothing to change, nothing harmful, no oddities."""
    text = program.run("plan", *wish, "--gpus", gpus, "--emit", "docker").stdout
    run = program.run("plan", "--from", write(program, "own.sh", text), "--gpus", gpus)

    assert run.returncode == 0
    assert "the planner would change nothing" in run.stdout
    assert not {"ERROR", "HARMFUL", "OBSOLETE", "UNKNOWN"} & set(run.stdout.split())
    assert "NCCL_IB_DISABLE" not in run.stdout
