"""``trimtab plan`` for GPUs as a process: no GPU, no network, no torch on the machine that asks."""

from __future__ import annotations

import json
import subprocess

import pytest
import yaml
from trimtab_program import Program

SEED_SCRIPT = """#!/bin/bash
MODEL_PATH=/data/models/Qwen3.5-35B-A3B-FP8
NAME=qwen35
docker rm -f $NAME 2>/dev/null || true
docker run -d --name $NAME --gpus '"device=0,1,2,3"' --ipc=host --shm-size=16g -p 8000:8000 \\
  -v ${MODEL_PATH}:/model:ro -e NCCL_P2P_DISABLE=0 -e NCCL_IB_DISABLE=1 -e VLLM_USE_V1=1 \\
  vllm/vllm-openai:v0.17.0 --model /model --served-model-name qwen3.5-35b-a3b-fp8 \\
  --tensor-parallel-size 4 --max-model-len 262144 --kv-cache-dtype fp8 --gpu-memory-utilization 0.9 \\
  --max-num-seqs 4 --max-num-batched-tokens 8192 --language-model-only --enable-prefix-caching \\
  --default-chat-template-kwargs '{"enable_thinking": false}' --host 0.0.0.0 --port 8000
"""
SEED_STACK = {
    "gpus": "4x rtx4090",
    "engine_version": "0.17.0",
    "runtime": "docker",
    "models": {
        "qwen3.5-35b-a3b-fp8": {
            "checkpoint": "Qwen/Qwen3.5-35B-A3B-FP8",
            "context": 262144,
            "concurrency": 4,
            "thinking": "off",
            "engine_args": {
                "kv_cache_dtype": "fp8",
                "gpu_memory_utilization": 0.9,
                "language_model_only": True,
            },
        }
    },
}
SEED_FLAGS = {
    "--tensor-parallel-size 4",
    "--max-model-len 262144",
    "--kv-cache-dtype fp8",
    "--gpu-memory-utilization 0.9",
    "--max-num-seqs 4",
    "--max-num-batched-tokens 8192",
    "--language-model-only",
    "--enable-prefix-caching",
    "--default-chat-template-kwargs '{\"enable_thinking\": false}'",
    "--ipc=host",
    "--shm-size=16g",
    "vllm/vllm-openai:v0.17.0",
    "-e NCCL_P2P_DISABLE=1",
    "-e NCCL_IB_DISABLE=1",
}
ON_ONE = ["Qwen/Qwen3-4B", "--gpus", "1xrtx4090"]
PER_GPU = {
    *("total_bytes", "requested_bytes", "weights_bytes", "activation_bytes", "non_torch_bytes"),
    *("cuda_graph_bytes", "kv_cache_bytes", "outside_budget_bytes", "error_bytes"),
}


@pytest.fixture
def program(tmp_path):
    """The program in folders of its own."""
    return Program(tmp_path, is_warm=True)


def test_the_plan_as_data_has_what_other_tools_rely_on(program):
    """Design, section 0: models by name, budgets per card, argv, rejections, nearest fits."""
    document = program.run_json(
        "plan", "Qwen/Qwen3.5-35B-A3B-FP8", "--gpus", "4xrtx4090", "--set", "tensor_parallel_size=4"
    )

    model = document["models"]["Qwen3.5-35B-A3B-FP8"]
    assert (document["schema"], document["fits"], model["engine"]) == (1, True, "vllm")
    assert model["settings"]["tensor_parallel_size"] == 4
    assert model["speed"] is None or "ttft_ms" in model["speed"]
    replica = model["replicas"][0]
    assert replica["gpus"] == [0, 1, 2, 3]
    assert [set(budget) for budget in replica["per_gpu"]] == [PER_GPU] * 4
    assert {"kv_block_tokens", "kv_blocks", "kv_cache_tokens", "max_concurrency"} <= set(replica)
    assert model["argv"][:2] == ["vllm", "serve"]
    assert document["nearest_fit"] == []
    assert all({"candidate", "code", "text"} == set(item) for item in document["rejections"])


def test_a_misfit_is_whole_and_exits_with_3(program):
    """The JSON is filled for the nearest candidate, and what would fit is named."""
    run = program.run("plan", "Qwen/Qwen3.5-27B-FP8", "--gpus", "1xrtx5090", "--context", "16384", "--json")

    document = json.loads(run.stdout)
    assert run.returncode == 3
    assert document["fits"] is False
    assert document["models"]["Qwen3.5-27B-FP8"]["replicas"][0]["per_gpu"][0]["weights_bytes"] > 0
    assert document["nearest_fit"]
    assert document["rejections"]


def test_pinned_cache_bytes_give_the_engines_exact_figures(program):
    """Given the bytes, blocks and tokens are those of the start-up log; requested_bytes is null."""
    document = program.run_json(
        *("plan", "Qwen/Qwen3.5-35B-A3B", "--gpus", "1xh200", "--context", "131072"),
        *("--set", "kv_cache_dtype=fp8", "--set", f"kv_cache_memory_bytes={int(5.98 * 2**30)}"),
        *("--set", "max_num_batched_tokens=4096"),
    )

    replica = document["models"]["Qwen3.5-35B-A3B"]["replicas"][0]
    assert (replica["kv_blocks"], replica["max_concurrency"]) == (299, 4.33)
    assert replica["per_gpu"][0]["requested_bytes"] is None
    assert replica["per_gpu"][0]["kv_cache_bytes"] == int(5.98 * 2**30)


# Start-ups of vLLM 0.25.1 on an H200 (measured 2026-11; as in tests/checkpoints/vllm_start_ups.json):
# repository, cards, arguments as given, then GiB of weights and of KV cache, tokens and concurrency printed.
REAL_STARTS = {
    "35b-fp8": (
        *("Qwen/Qwen3.5-35B-A3B-FP8", "1xh200"),
        (
            "max_model_len=262144 kv_cache_dtype=fp8 gpu_memory_utilization=0.5 max_num_seqs=4 "
            "max_num_batched_tokens=8192 language_model_only=true enable_prefix_caching=true"
        ),
        (33.38, 34.91, 3467450, 13.23),
    ),
    "35b-fp8-eager": (
        *("Qwen/Qwen3.5-35B-A3B-FP8", "1xh200"),
        (
            "max_model_len=262144 gpu_memory_utilization=0.5 max_num_seqs=16 max_num_batched_tokens=4096 "
            "language_model_only=true enforce_eager=true"
        ),
        (33.38, 35.70, 1843330, 7.03),
    ),
    "32b-awq-tp2": (
        *("Qwen/Qwen3-32B-AWQ", "2xh200"),
        (
            "tensor_parallel_size=2 gpu_memory_utilization=0.17 max_num_seqs=32 max_model_len=40960 "
            'max_num_batched_tokens=4096 compilation_config={"mode":0,"cudagraph_mode":"FULL_DECODE_ONLY"}'
        ),
        (9.36, 13.38, 109584, 2.68),
    ),
    "27b-int4-24g": (
        *("cyankiwi/Qwen3.5-27B-AWQ-4bit", "1xh200"),
        (
            "gpu_memory_utilization=0.17 max_num_seqs=8 max_model_len=32768 kv_cache_dtype=fp8 "
            "max_num_batched_tokens=4096 enable_prefix_caching=true language_model_only=true"
        ),
        (17.93, 2.97, 75245, 2.30),
    ),
}


@pytest.mark.parametrize("name", REAL_STARTS)
def test_a_configuration_that_is_wholly_given_is_judged_as_the_engine_takes_it(program, name):
    """Length, sequences, batch and share given: what is left out has the engine's default, as in the log."""
    repo, gpus, settings, measured = REAL_STARTS[name]
    pins = [word for setting in settings.split() for word in ("--set", setting)]
    weights_gib, cache_gib, tokens, concurrency = measured
    document = program.run_json("plan", repo, "--gpus", gpus, "--engine-version", "0.25.1", *pins)

    replica = next(iter(document["models"].values()))["replicas"][0]
    budget = replica["per_gpu"][0]
    assert budget["weights_bytes"] / 2**30 == pytest.approx(weights_gib, rel=0.005)
    assert budget["kv_cache_bytes"] / 2**30 == pytest.approx(cache_gib, abs=0.15)
    assert replica["kv_cache_tokens"] == pytest.approx(tokens, rel=0.01)
    assert replica["max_concurrency"] == pytest.approx(concurrency, rel=0.01)


def test_the_seed_case_comes_out_flag_for_flag(program):
    """What the user pasted, with the one switch that was wrong for these cards put right."""
    stack = program.root / "seed.yaml"
    stack.write_text(yaml.safe_dump(SEED_STACK))

    text = program.run("plan", str(stack), "--emit", "docker").stdout

    assert {flag for flag in SEED_FLAGS if flag not in text} == set()
    assert "--gpus '\"device=0,1,2,3\"'" in text


@pytest.mark.parametrize("form", ["command", "docker", "script"])
def test_what_is_emitted_is_a_program_that_bash_reads(program, form):
    """No form needs editing before it is pasted."""
    stack = program.root / "seed.yaml"
    stack.write_text(yaml.safe_dump(SEED_STACK))
    run = program.run("plan", str(stack), "--emit", form)

    subprocess.run(["bash", "-n"], input=run.stdout, text=True, check=True)


def test_emit_of_a_misfit_prints_no_command(program):
    """Nothing that would fail is offered for pasting."""
    run = program.run("plan", "Qwen/Qwen3.5-27B-FP8", "--gpus", "1xrtx5090", "--emit", "docker")

    assert (run.returncode, run.stdout) == (3, "")
    assert "hint: would fit" in run.stderr


def test_a_launch_script_is_judged_flag_by_flag(program):
    """The user's own script: it fits, two variables are wrong, every flag has its price."""
    script = program.root / "run.sh"
    script.write_text(SEED_SCRIPT)
    document = program.run_json("plan", "--from", str(script), "--gpus", "4xrtx4090")

    check = document["check"]
    found = {item["severity"]: item["text"] for item in check["findings"]}
    assert document["fits"] is True
    assert "NCCL_P2P_DISABLE=0" in found["harmful"]
    assert "VLLM_USE_V1" in found["obsolete"]
    assert {cost["name"] for cost in check["flag_costs"]} >= {"kv_cache_dtype", "max_num_seqs"}
    assert document["models"]["qwen3.5-35b-a3b-fp8"]["settings"]["gpu_memory_utilization"] == 0.9


def test_a_script_that_does_not_fit_exits_with_3_and_says_what_would(program):
    """The same script on two cards."""
    script = program.root / "run.sh"
    script.write_text(SEED_SCRIPT.replace("device=0,1,2,3", "device=0,1").replace("-size 4", "-size 2"))
    run = program.run("plan", "--from", str(script), "--gpus", "1xrtx4090,1xrtx3090")

    assert run.returncode in {0, 3}
    assert "what each flag does:" in run.stdout


def test_explain_draws_a_bar_per_card(program):
    """The budget as a picture, each value with its origin, and why not the others."""
    text = program.run("plan", "Qwen/Qwen3.5-35B-A3B-FP8", "--gpus", "4xrtx4090", "--explain").stdout

    bars = [line for line in text.splitlines() if line.strip().startswith("[W")]
    assert len(bars) == 4
    assert all(len(bar.strip()) == 62 for bar in bars)
    assert "not chosen:" in text
    assert "TP3: 16 attention heads cannot be divided over 3 cards" in text


def test_a_saved_plan_for_gpus_is_read_back(program):
    """Saved with --out, then up --dry-run --plan on the same machine."""
    saved = program.root / "p.json"
    program.run("plan", "Qwen/Qwen3-4B", "--gpus", "1xrtx4090", "--out", str(saved))

    assert json.loads(saved.read_text())["models"]["Qwen3-4B"]["argv"]


@pytest.mark.parametrize(
    ("arguments", "code", "words"),
    [
        pytest.param(["Qwen/Qwen3-4B"], 3, "--gpus 4xrtx4090", id="no-gpu"),
        pytest.param(["Qwen/Qwen3-4B", "--gpus", "1xrtx4099"], 2, "rtx4090", id="unknown-card"),
        pytest.param(["Qwen/Qwen3-4B", "--gpus", "0xrtx4090"], 2, "1 or more", id="no-cards"),
        pytest.param(["Qwen/Qwen3-4B", "--gpus", "-2xrtx4090"], 2, "1 or more", id="negative"),
        pytest.param(["Qwen/Qwen3-4B", "--gpus", "1000xrtx4090"], 2, "above 64", id="absurd"),
        pytest.param(["Qwen/Qwen3-4B", "--gpus", "1x custom:mem=24GiB"], 2, "cc", id="half-described"),
        pytest.param(["Qwen/Qwen9-4B", "--gpus", "1xrtx4090"], 2, "nearest known", id="unknown-repo"),
        pytest.param([*ON_ONE, "--set", "max_num_seq=4"], 2, "max_num_seqs", id="misspelt-flag"),
        pytest.param([*ON_ONE, "--engine-version", "new"], 2, "0.25.1", id="no-version"),
        pytest.param([*ON_ONE, "--set", "gpu_memory_utilization=90"], 2, "at most 1", id="share"),
        pytest.param([*ON_ONE, "--emit", "docker", "--json"], 2, "--emit", id="two-outputs"),
        pytest.param(["Qwen/Qwen3-4B", "--engine", "llama_cpp"], 4, "HF_HUB_OFFLINE", id="other-engine"),
    ],
)  # fmt: skip
def test_bad_input_gets_one_sentence(program, arguments, code, words):
    """Where, what value, which limit, what would work."""
    run = program.run("plan", *arguments)

    assert run.returncode == code, run.stderr
    assert words in run.stderr
    assert "Traceback" not in run.stderr


@pytest.mark.parametrize(
    ("content", "words"),
    [
        pytest.param("[]", "expected a mapping", id="list"),
        pytest.param("", "empty", id="empty"),
        pytest.param("<html></html>", "JSON", id="html"),
        pytest.param(
            '{"model_type": "warp9", "architectures": ["Warp9ForCausalLM"]}',
            "num_attention_heads",
            id="facts-absent",
        ),
    ],
)
def test_a_config_that_is_none_is_named(program, content, words):
    """A folder with another config.json, a saved web page, an unknown architecture."""
    folder = program.root / "m"
    folder.mkdir()
    (folder / "config.json").write_text(content)
    run = program.run("plan", str(folder), "--gpus", "1xrtx4090")

    assert run.returncode in {2, 3}
    assert words in run.stderr
    assert "Traceback" not in run.stderr


def test_ram_is_that_of_the_machine_whose_cards_are_named(program):
    """Two that take a card in turn sleep where their own machine has the RAM, whatever this one has."""
    models = {name: {"checkpoint": "Qwen/Qwen3-32B-AWQ", "context": 8192} for name in ("a", "b")}
    (program.root / "stack.yaml").write_text(yaml.safe_dump({"models": models}))

    def sleepers(ram: str) -> list[str]:
        run = program.run("plan", "stack.yaml", "--gpus", "1xrtx5090", "--ram", ram, "--json")
        return [one["model"] for one in json.loads(run.stdout)["swap"]["sleepers"]]

    assert sleepers("2048GiB") == ["a", "b"]
    assert sleepers("4GiB") == []


def test_more_ram_than_is_free_here_is_told(program):
    """A budget that cannot be kept is not followed in silence."""
    run = program.run("plan", "--ram", "4096GiB")

    assert run.returncode == 0
    assert "ram: 4.0 TiB is more than is free here" in run.stdout
