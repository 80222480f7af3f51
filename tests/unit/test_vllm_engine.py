"""How vLLM is commanded: words, environment and cards of a plan."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest
from vllm_plans import PLANS, SEED_35B, SEED_AWQ, settings_of, vllm_plan

from trimtab.core.plan import ReplicaPlan, Setting
from trimtab.engines import ENGINES
from trimtab.engines.vllm import Vllm, served_names
from trimtab.engines.vllm_arguments import check_vllm_setting, render_flags
from trimtab.engines.vllm_env import choose_env, gpus_of_replica, mixed_card_settings, replica_devices
from trimtab.errors import StackFileError
from trimtab.planner.gpu_spec import decode_gpu_spec


def flags(values, version="0.25.1"):
    return render_flags(version, settings_of(values), model="m")


def test_vllm_is_an_engine_that_stack_files_can_name():
    """``engine: vllm`` finds the adapter."""
    assert ENGINES["vllm"].name == "vllm"
    assert isinstance(ENGINES["vllm"], Vllm)


def test_argv_is_what_an_operator_would_type():
    """The printed command reads like one from a guide: the model first, then where, how large, what."""
    assert Vllm().render_argv(SEED_35B) == (
        *("vllm", "serve", "/data/models/Qwen3.5-35B-A3B-FP8"),
        *("--served-model-name", "qwen3.5-35b-a3b-fp8", "--host", "127.0.0.1", "--port", "{port}"),
        *("--tensor-parallel-size", "4", "--max-model-len", "262144", "--kv-cache-dtype", "fp8"),
        *("--gpu-memory-utilization", "0.9", "--max-num-seqs", "4", "--max-num-batched-tokens", "8192"),
        *("--language-model-only", "--enable-prefix-caching"),
        *("--default-chat-template-kwargs", '{"enable_thinking": false}'),
    )


def test_order_of_settings_does_not_matter():
    """The same wish gives the same command, so nothing restarts over it."""
    turned = replace(SEED_35B, settings=SEED_35B.settings[::-1])
    assert Vllm().render_argv(turned) == Vllm().render_argv(SEED_35B)


@pytest.mark.parametrize(
    ("values", "words"),
    [
        pytest.param({"enable_prefix_caching": False}, ("--no-enable-prefix-caching",), id="off"),
        pytest.param({"enable_prefix_caching": "true"}, ("--enable-prefix-caching",), id="word-true"),
        pytest.param({"disable_log_stats": True}, ("--disable-log-stats",), id="only-on"),
        pytest.param({"disable_log_stats": False}, (), id="only-on-is-off"),
        pytest.param({"max_model_len": None}, (), id="none-is-the-engines-own"),
        pytest.param({"max_model_len": -1}, ("--max-model-len=-1",), id="auto-as-number"),
        pytest.param({"max_model_len": "auto"}, ("--max-model-len", "auto"), id="auto"),
        pytest.param({"max_model_len": "128K"}, ("--max-model-len", "128K"), id="human-size"),
        pytest.param({"gpu_memory_utilization": 0.925}, ("--gpu-memory-utilization", "0.925"), id="number"),
        pytest.param({"cpu_offload_gb": 4}, ("--cpu-offload-gb", "4"), id="whole-number"),
        pytest.param({"tensor_parallel_size": 2.0}, ("--tensor-parallel-size", "2"), id="float-from-json"),
        pytest.param({"hf_token": True}, ("--hf-token",), id="bare"),
        pytest.param({"hf_token": "x"}, ("--hf-token", "x"), id="with-text"),
        pytest.param({"compilation_config": 3}, ("--compilation-config", "3"), id="mode"),
        pytest.param(
            {"compilation_config": '{"mode":0}'},
            ("--compilation-config", '{"mode": 0}'),
            id="json-normalised",
        ),
        pytest.param(
            {"cudagraph_capture_sizes": "[1,2,4]"}, ("--cudagraph-capture-sizes", "1", "2", "4"), id="list"
        ),
        pytest.param(
            {"cudagraph_capture_sizes": "1 2,4"}, ("--cudagraph-capture-sizes", "1", "2", "4"), id="numbers"
        ),
        pytest.param({"api_key": "a b"}, ("--api-key", "a b"), id="a-blank-is-no-second-word"),
        pytest.param({"api_key": '["a", "b c"]'}, ("--api-key", "a", "b c"), id="json-list"),
        pytest.param({"tokenizer": "-x"}, ("--tokenizer=-x",), id="dash"),
        pytest.param({"hf_overrides": '{"a":1}'}, ("--hf-overrides", '{"a": 1}'), id="json-or-text"),
        pytest.param({"revision": 1234567}, ("--revision", "1234567"), id="yaml-number-for-text"),
    ],
)
def test_values_are_written_as_the_parser_reads_them(values, words):
    """Whatever YAML made of a value, the engine gets what was meant."""
    assert flags(values) == words


def test_defaults_of_the_engine_are_not_written():
    """The command shows what was decided, not what vLLM does anyway."""
    quiet = Setting(name="max_num_seqs", value=256, origin="default")
    assert render_flags("0.25.1", (quiet,), model="m") == ()


@pytest.mark.parametrize(
    ("name", "value", "says"),
    [
        pytest.param("tensor_paralel_size", 2, "did you mean tensor_parallel_size", id="typo"),
        pytest.param("swap_space", 4, "any more", id="gone"),
        pytest.param("enable_prefix_caching", "maybe", "true or false", id="switch"),
        pytest.param("max_num_seqs", 2.5, "a whole number", id="fraction"),
        pytest.param("max_num_seqs", True, "a whole number", id="truth-value"),
        pytest.param("max_model_len", "32x", "whole number", id="size"),
        pytest.param("gpu_memory_utilization", "lots", "a number", id="number"),
        pytest.param("gpu_memory_utilization", float("nan"), "a number", id="nan"),
        pytest.param("kv_cache_dtype", "fp7", "is not one of auto", id="choice"),
        pytest.param("default_chat_template_kwargs", "{bad", "is not JSON", id="json"),
        pytest.param("default_chat_template_kwargs", '{"a": NaN}', "is not JSON", id="json-nan"),
        pytest.param("reasoning_parser", "nope", "no reasoning parser 'nope'", id="reasoning"),
        pytest.param("tool_call_parser", "nope", "no tool parser 'nope'", id="tool"),
        pytest.param("model", "x", "can't be pinned", id="model"),
        pytest.param("tokenizer", "a\0b", "NUL", id="nul"),
    ],
)
def test_what_the_engine_would_refuse_is_refused_before(name, value, says):
    """A slip in the stack file costs a second, not a start; the message has the key's path."""
    with pytest.raises(StackFileError) as error:
        check_vllm_setting("0.25.1", name, value, model="chat")
    assert error.value.message.startswith(f"models.chat.engine_args.{name}: ")
    assert says in error.value.message + error.value.hint


def test_the_same_flag_is_judged_by_its_version():
    """Pinning another engine version changes what may be written."""
    assert check_vllm_setting("0.17.1", "swap_space", 4, model="m") == 4
    assert check_vllm_setting("0.25.1", "watermark", 0.01, model="m") == 0.01
    with pytest.raises(StackFileError, match="no watermark yet"):
        check_vllm_setting("0.17.0", "watermark", 0.01, model="m")


def test_the_server_answers_to_the_models_name_whatever_else_is_pinned():
    """A gateway finds its model; further names of an old deployment keep working."""
    plan = vllm_plan("chat", "/m", {"served_model_name": '["gpt-4", "chat"]'})
    assert served_names(plan) == ("chat", "gpt-4")
    assert served_names(vllm_plan("chat", "/m", {"served_model_name": "old"})) == ("chat", "old")
    assert Vllm().render_argv(plan)[3:6] == ("--served-model-name", "chat", "gpt-4")


def test_a_pinned_host_is_obeyed_and_a_pinned_port_left_to_the_runtime():
    """Several replicas never fight for one port."""
    argv = Vllm().render_argv(vllm_plan("chat", "/m", {"host": "0.0.0.0", "port": 8001}))
    assert argv[argv.index("--host") + 1] == "0.0.0.0"
    assert argv[argv.index("--port") + 1] == "{port}"
    assert argv.count("--port") == argv.count("--host") == 1


def test_a_folder_that_looks_like_an_option_stays_a_folder():
    """``-weights`` is a path, not a flag."""
    assert Vllm().render_argv(vllm_plan("chat", "-weights", {}))[2] == "./-weights"


def test_a_replica_gets_exactly_its_cards():
    """Indices mean the same as in nvidia-smi, on every machine."""
    assert replica_devices(ReplicaPlan(replica_id="a", gpus=(2, 3))) == (
        ("CUDA_DEVICE_ORDER", "PCI_BUS_ID"),
        ("CUDA_VISIBLE_DEVICES", "2,3"),
    )
    assert replica_devices(ReplicaPlan(replica_id="a")) == ()


def env(plan, gpus):
    return {choice.name: choice.value for choice in choose_env(plan, decode_gpu_spec(gpus))}


def test_cards_without_p2p_talk_through_host_memory():
    """Four 4090s start instead of hanging in NCCL, whatever an old script said."""
    found = env(SEED_35B, "4xrtx4090")
    assert found["NCCL_P2P_DISABLE"] == "1"
    assert found["NCCL_IB_DISABLE"] == "1"
    assert found["HF_HUB_OFFLINE"] == "1"


@pytest.mark.parametrize(
    ("values", "gpus"),
    [
        pytest.param({"tensor_parallel_size": 2}, "2xh200", id="p2p-cards"),
        pytest.param({}, "1xrtx4090", id="one-card"),
    ],
)
def test_nccl_is_left_alone_where_it_is_right(values, gpus):
    """Cards with direct access keep it; one card has nobody to talk to."""
    assert not [
        name for name in env(vllm_plan("m", "Qwen/Qwen3-32B", values), gpus) if name.startswith("NCCL")
    ]


def test_pipeline_stages_talk_too():
    """Pipeline parallelism crosses cards as tensor parallelism does."""
    assert "NCCL_P2P_DISABLE" in env(vllm_plan("m", "a/b", {"pipeline_parallel_size": 3}), "3xrtx4090")


@pytest.mark.parametrize(
    ("checkpoint", "values", "is_offline"),
    [
        pytest.param("/data/m", {}, True, id="folder"),
        pytest.param("~/m", {}, True, id="home"),
        pytest.param("Qwen/Qwen3-32B", {}, False, id="repository"),
        pytest.param("/data/m", {"tokenizer": "Qwen/Qwen3-32B"}, False, id="tokenizer-of-the-hub"),
        pytest.param("/data/m", {"tokenizer": "/data/t"}, True, id="tokenizer-beside"),
        pytest.param("/data/m", {"trust_remote_code": True}, False, id="own-code"),
        pytest.param("/data/m", {"speculative_config": '{"model": "a/draft"}'}, False, id="draft-of-the-hub"),
        pytest.param("/data/m", {"speculative_config": '{"method": "mtp"}'}, True, id="mtp"),
    ],
)
def test_a_folder_is_served_without_a_hub_unless_something_else_needs_it(checkpoint, values, is_offline):
    """A machine without a network serves its folders; nothing that must be fetched is cut off."""
    assert ("HF_HUB_OFFLINE" in env(vllm_plan("m", checkpoint, values), "1xh200")) == is_offline


def test_unlike_cards_run_the_same_kernels():
    """A 4090 beside a 3090 answers right: both ranks run Marlin, by variable or by arguments."""
    plan = vllm_plan("m", "a/b", {"tensor_parallel_size": 2})
    mixed = decode_gpu_spec("1xrtx4090,1xrtx3090")

    assert env(plan, "1xrtx4090,1xrtx3090")["VLLM_TEST_FORCE_FP8_MARLIN"] == "1"
    assert "VLLM_TEST_FORCE_FP8_MARLIN" not in env(plan, "2xrtx4090")
    assert mixed_card_settings("0.25.1", mixed) == ()
    newer = replace(plan, engine_version="0.33.0")
    assert "VLLM_TEST_FORCE_FP8_MARLIN" not in env(newer, "1xrtx4090,1xrtx3090")
    chosen = {item.name: item.value for item in mixed_card_settings("0.33.0", mixed)}
    assert chosen == {"linear_backend": "marlin", "moe_backend": "marlin"}
    assert mixed_card_settings("0.33.0", decode_gpu_spec("2xrtx3090")) == ()


def test_every_variable_has_its_reason_and_cards_are_told_apart():
    """Whoever reads a plan sees why a variable is set; a replica's own cards decide."""
    gpus = decode_gpu_spec("1xh200,2xrtx4090")
    assert [gpu.index for gpu in gpus_of_replica(ReplicaPlan(replica_id="a", gpus=(2, 1, 9)), gpus)] == [2, 1]
    for plan in PLANS.values():
        for model in plan.models:
            for replica in model.replicas:
                found = choose_env(model, gpus_of_replica(replica, plan.hardware.gpus))
                assert all(choice.reason for choice in found)
                assert [choice.name for choice in found] == sorted(choice.name for choice in found)


def test_rendered_environment_is_the_chosen_one():
    """What runs is what the plan shows."""
    gpus = decode_gpu_spec("2xrtx4090")
    assert Vllm().render_env(SEED_AWQ[0], gpus=gpus) == (
        ("NCCL_IB_DISABLE", "1"),
        ("NCCL_P2P_DISABLE", "1"),
        ("VLLM_NO_USAGE_STATS", "1"),
    )
    assert Vllm().render_env(SEED_AWQ[0]) == (("VLLM_NO_USAGE_STATS", "1"),)


def test_nested_arguments_survive_the_way():
    """The JSON that arrives means what was written."""
    text = '{"enable_thinking":false,"note":"größer \\" \'"}'
    words = flags({"default_chat_template_kwargs": text})
    assert json.loads(words[1]) == json.loads(text)
