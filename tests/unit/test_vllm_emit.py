"""A plan as text to paste: what a shell and a YAML reader make of it is what was planned."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path

import pytest
import yaml
from recorded_shell import run_in_bash
from vllm_plans import PLANS, SEED_35B, SEED_AWQ, plan_of, settings_of, vllm_plan

from trimtab.core.container import ContainerSpec, Mount, PublishedPort
from trimtab.engines.vllm_container import COMPILE_CACHE, container_name, container_of, image_of
from trimtab.engines.vllm_emit import EMIT_FORMS, render_emit
from trimtab.engines.vllm_emit_shell import render_docker_run
from trimtab.errors import StackFileError
from trimtab.planner.gpu_spec import decode_gpu_spec

GOLDEN = Path(__file__).parent.parent / "golden" / "argv"
SUFFIXES = {"command": "sh", "docker": "sh", "compose": "yaml", "script": "bash"}
# Every case as commands and containers; the longer forms for the user's own box.
GOLDENS = [
    f"{case}.{form}.{SUFFIXES[form]}"
    for case in PLANS
    for form in EMIT_FORMS
    if form in {"command", "docker"} or case in {"4xrtx4090--qwen3.5-35b-fp8", "4xrtx4090--two-awq"}
]


@pytest.mark.parametrize("name", GOLDENS)
def test_text_is_that_of_the_golden_file(name):
    """What --emit prints changes only on purpose."""
    case, form, _ = name.rsplit(".", 2)
    text = render_emit(PLANS[case], form)
    path = GOLDEN / name
    if os.environ.get("TRIMTAB_GOLDEN") == "write":
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    assert text == path.read_text()


def test_every_golden_file_has_its_case():
    """No golden file is left behind that nothing checks."""
    assert {path.name for path in GOLDEN.iterdir()} == set(GOLDENS)


def test_the_users_own_script_comes_out_flag_for_flag(tmp_path):
    """Four 4090s, 35B FP8, 262,144 tokens: the script that works, with P2P put right for these cards."""
    done, calls = run_in_bash(render_emit(plan_of("4xrtx4090", SEED_35B), "docker"), tmp_path)

    assert done.returncode == 0, done.stderr
    assert [call.args[0] for call in calls] == ["ps", "rm", "run"]
    assert calls[0].args == ("ps", "-aq", "--filter", "label=trimtab.emitted=qwen3.5-35b-a3b-fp8")
    run = calls[2].args
    image = run.index("vllm/vllm-openai:v0.17.0")
    assert run[:image] == (
        *("run", "-d", "--name", "qwen3.5-35b-a3b-fp8", "--gpus", '"device=0,1,2,3"'),
        *("--ipc=host", "--shm-size=16g", "-p", "8000:8000"),
        *("-v", "/data/models/Qwen3.5-35B-A3B-FP8:/model:ro"),
        *("-v", "/home/a b/.cache/vllm-containers:/root/.cache/vllm"),
        *("-e", "HF_HUB_OFFLINE=1", "-e", "NCCL_IB_DISABLE=1", "-e", "NCCL_P2P_DISABLE=1"),
        *("-e", "VLLM_NO_USAGE_STATS=1", "--label", "trimtab.emitted=qwen3.5-35b-a3b-fp8"),
    )
    assert run[image + 1 :] == (
        *("--model", "/model", "--served-model-name", "qwen3.5-35b-a3b-fp8"),
        *("--host", "0.0.0.0", "--port", "8000", "--tensor-parallel-size", "4"),
        *("--max-model-len", "262144", "--kv-cache-dtype", "fp8", "--gpu-memory-utilization", "0.9"),
        *("--max-num-seqs", "4", "--max-num-batched-tokens", "8192"),
        *("--language-model-only", "--enable-prefix-caching"),
        *("--default-chat-template-kwargs", '{"enable_thinking": false}'),
    )


def test_two_models_start_one_after_the_other_on_their_own_cards_and_ports(tmp_path):
    """The second container starts when the first answers; each has its cards and its port."""
    done, calls = run_in_bash(render_emit(plan_of("4xrtx4090", *SEED_AWQ), "script"), tmp_path)

    assert done.returncode == 0, done.stderr
    runs = [call.args for call in calls if call.args[0] == "run"]
    assert [args[args.index("--gpus") + 1] for args in runs] == ['"device=0,1"', '"device=2,3"']
    assert [args[args.index("-p") + 1] for args in runs] == ["8000:8000", "8001:8000"]
    assert [args[args.index("-v") + 1] for args in runs] == [
        "/home/a b/.cache/huggingface:/root/.cache/huggingface"
    ] * 2
    assert "qwen3.5-35b-a3b-awq answers at http://127.0.0.1:8000/v1" in done.stdout
    assert "qwen3.5-27b-awq answers at http://127.0.0.1:8001/v1" in done.stdout


def test_a_container_that_ends_stops_the_script_and_shows_why(tmp_path):
    """A failed start is seen at once, not after an hour, and nothing is started behind it."""
    text = render_emit(plan_of("4xrtx4090", *SEED_AWQ), "script")
    done, calls = run_in_bash(text, tmp_path, CURL_EXIT="7", RUNNING="false")

    assert done.returncode == 1
    assert "qwen3.5-35b-a3b-awq ended while starting" in done.stderr
    assert len([call for call in calls if call.args[0] == "run"]) == 1
    assert [call.args for call in calls if call.args[0] == "logs"] == [
        ("logs", "--tail", "40", "qwen3.5-35b-a3b-awq")
    ]


def test_a_server_that_never_answers_ends_the_script_in_time(tmp_path):
    """The wait has a limit that can be set from outside."""
    text = render_emit(plan_of("4xrtx4090", SEED_35B), "script")
    done, _ = run_in_bash(text, tmp_path, CURL_EXIT="7", WAIT_S="0")

    assert done.returncode == 1
    assert "does not answer after 0 s" in done.stderr


def test_commands_name_the_cards_of_each_replica(tmp_path):
    """Three cards, three replicas: each command sees one card and has a port of its own."""
    done, calls = run_in_bash(render_emit(PLANS["3xrtx4090--qwen3-32b-awq-replicas"], "command"), tmp_path)

    assert done.returncode == 0, done.stderr
    assert [call.program for call in calls] == ["vllm"] * 3
    assert [call.cards for call in calls] == ["0", "1", "2"]
    assert [call.args[call.args.index("--port") + 1] for call in calls] == ["8000", "8001", "8002"]
    assert all(call.args[:2] == ("serve", "Qwen/Qwen3-32B-AWQ") for call in calls)


@pytest.mark.parametrize("case", PLANS)
def test_compose_files_hold_the_same_containers(case):
    """Compose starts what docker run would: image, arguments, variables, mounts, ports, cards."""
    plan = PLANS[case]
    services = yaml.safe_load(render_emit(plan, "compose"))["services"]
    port = 8000
    specs = [
        container_of(model, replica, gpus=plan.hardware.gpus, host_ip=plan.gateway.host)
        for model in plan.models
        for replica in model.replicas
    ]

    assert list(services) == [spec.name for spec in specs]
    for service, spec in zip(services.values(), specs, strict=True):
        assert service["image"] == spec.image
        assert service["container_name"] == spec.name
        assert tuple(word.replace("$$", "$") for word in service["command"]) == spec.args
        assert service["environment"] == dict(spec.env) | dict.fromkeys(spec.passed_env)
        assert [mount["target"] for mount in service["volumes"]] == [mount.target for mount in spec.mounts]
        assert service["ports"][0].endswith(f"{port}:8000")
        assert (service["ipc"], service["shm_size"]) == ("host", "16g")
        (device,) = service["deploy"]["resources"]["reservations"]["devices"]
        assert device == {"driver": "nvidia", "device_ids": list(spec.gpu_ids), "capabilities": ["gpu"]}
        assert service["healthcheck"]["test"][0] == "CMD"
        port += 1


def test_compose_starts_servers_on_one_card_one_after_the_other():
    """Two models that share a card never measure its memory at the same time."""
    plan = plan_of(
        "2xh200",
        vllm_plan("chat", "org/a", {"gpu_memory_utilization": 0.4}),
        vllm_plan("no", "org/b", {"gpu_memory_utilization": 0.4}),
        vllm_plan("123", "org/c", {}, gpus=((1,),)),
    )
    services = yaml.safe_load(render_emit(plan, "compose"))["services"]

    assert list(services) == ["chat", "no", "123"]
    assert "depends_on" not in services["chat"]
    assert services["no"]["depends_on"] == {"chat": {"condition": "service_healthy"}}
    assert "depends_on" not in services["123"]


def shared_plan():
    return plan_of(
        "2xh200",
        vllm_plan("chat", "org/a", {"gpu_memory_utilization": 0.4}),
        vllm_plan("code", "org/b", {"gpu_memory_utilization": 0.4}),
        vllm_plan(
            "wide", "org/c", {"tensor_parallel_size": 2, "gpu_memory_utilization": 0.1}, gpus=((0, 1),)
        ),
        vllm_plan("other", "org/d", {"gpu_memory_utilization": 0.4}, gpus=((1,),)),
    )


def test_docker_lines_on_one_card_wait_for_each_other(tmp_path):
    """Pasted as they are: each server that shares a card starts when those before it answer."""
    text = render_emit(shared_plan(), "docker")
    done, calls = run_in_bash(text, tmp_path)

    assert done.returncode == 0, done.stderr
    assert [call.args[0] for call in calls].count("run") == 4
    asked = [line for line in text.splitlines() if line.startswith(("until curl", "docker run"))]
    assert [line.split(" 2>")[0].split(" -m 5 ")[-1].removesuffix(" \\") for line in asked] == [
        "docker run -d --name chat",
        "http://127.0.0.1:8000/health",
        "docker run -d --name code",
        "http://127.0.0.1:8001/health",
        "docker run -d --name wide",
        "http://127.0.0.1:8002/health",
        "docker run -d --name other",
    ]


def test_a_container_that_ended_does_not_hold_up_the_pasted_lines(tmp_path):
    """The wait ends, with the last lines of its log, and nobody sits before a silent terminal."""
    done, calls = run_in_bash(render_emit(shared_plan(), "docker"), tmp_path, CURL_EXIT="7", RUNNING="false")

    assert "chat ended while starting" in done.stderr
    assert ("logs", "--tail", "40", "chat") in [call.args for call in calls]


def test_commands_on_one_card_say_how_and_when_to_start_them():
    """Several servers need several terminals, and the second one of a card waits; the vLLM is named."""
    text = render_emit(shared_plan(), "command")

    assert text.startswith("# 4 servers: each of these needs a terminal of its own\n")
    assert text.count("# needs vLLM 0.25.1") == 4
    blocks = text.split("\n\n")
    assert ["until curl" in block for block in blocks] == [False, True, True, True]
    assert "http://127.0.0.1:8000/health" in blocks[1]


def test_nobody_elses_container_of_that_name_is_removed():
    """Only what such a text has started is: a foreign one makes docker run say that the name is taken."""
    for form in ("docker", "script"):
        text = render_emit(PLANS["4xrtx4090--qwen3.5-35b-fp8"], form)
        (line,) = [line for line in text.splitlines() if line.startswith("docker rm")]
        assert "--filter label=trimtab.emitted=" in line
        assert "--label trimtab.emitted=" in text
        assert "--restart" not in text
    assert "restart: unless-stopped" in render_emit(PLANS["4xrtx4090--qwen3.5-35b-fp8"], "compose")


def test_what_is_compiled_is_kept_for_the_next_start():
    """A later start of the same container is quicker and has more room for its KV cache."""
    text = render_emit(PLANS["4xrtx4090--qwen3.5-35b-fp8"], "compose")
    (service,) = yaml.safe_load(text)["services"].values()

    cache = service["volumes"][-1]
    assert (cache["source"], cache["target"]) == ("~/.cache/vllm-containers", "/root/.cache/vllm")
    assert cache["bind"] == {"create_host_path": True}


def test_a_models_folder_is_not_made_up_by_compose():
    """A wrong path is an error at once, not an empty folder."""
    plan = plan_of("1xh200", vllm_plan("m", "/data/models/m", {}))
    (service,) = yaml.safe_load(render_emit(plan, "compose"))["services"].values()

    assert service["volumes"][0]["bind"] == {"create_host_path": False}


def test_what_stays_on_this_machine_is_published_there_only():
    """Nothing is open to the network that the stack keeps to itself."""
    local = plan_of("1xh200", vllm_plan("chat", "org/m", {}), host="localhost")
    assert "-p 127.0.0.1:8000:8000" in render_emit(local, "docker")
    six = plan_of("1xh200", vllm_plan("chat", "org/m", {}), host="::1")
    assert "-p '[::1]:'8000:8000" in render_emit(six, "docker")
    pinned = plan_of(
        "1xh200", vllm_plan("chat", "org/m", {"host": "0.0.0.0", "port": 9000}), host="127.0.0.1"
    )
    assert "-p 9000:8000" in render_emit(pinned, "docker")
    assert "--host 0.0.0.0 \\\n  --port 9000" in render_emit(pinned, "command")


def test_ports_never_collide():
    """A pinned port is kept and the others go around it."""
    models = [vllm_plan(name, "org/m", {}, gpus=((index,),)) for index, name in enumerate("abc")]
    models[2] = replace(models[2], settings=settings_of({"port": 8001}))
    text = render_emit(plan_of("3xh200", *models), "docker")
    assert [line.split()[1] for line in text.splitlines() if " -p " in line] == [
        "8000:8000", "8002:8000", "8001:8000",
    ]  # fmt: skip
    with pytest.raises(StackFileError, match="no port is left for b-0"):
        render_emit(plan_of("3xh200", *models[:2], port=65535), "docker")


def test_two_containers_of_one_name_are_refused():
    """The second would remove the first."""
    models = (vllm_plan("a b", "org/m", {}), vllm_plan("a:b", "org/m", {}, gpus=((1,),)))
    with pytest.raises(StackFileError, match="two containers would be called a-b"):
        render_emit(plan_of("2xh200", *models), "docker")


def test_a_plan_that_does_not_fit_says_so_first():
    """Who pastes a plan that will fail has read that it will."""
    for form in EMIT_FORMS:
        text = render_emit(replace(plan_of("4xrtx4090", SEED_35B), fits=False), form)
        assert "# this plan does not fit" in "\n".join(text.splitlines()[:3]), form


def test_other_engines_are_commands_only():
    """llama.cpp has no image here; its command is printed with its port."""
    other = replace(
        SEED_35B, engine="llama_cpp", argv=("python", "-m", "host", "--port", "{port}"), env=(("A", "1 2"),)
    )
    plan = plan_of("4xrtx4090", other)
    assert "A='1 2' \\\n  python \\\n  -m host \\\n  --port 8000\n" in render_emit(plan, "command")
    with pytest.raises(StackFileError, match="runs on llama_cpp, which has no image here") as error:
        render_emit(plan, "compose")
    assert "--emit command" in error.value.hint


@pytest.mark.parametrize(
    ("version", "image"),
    [
        ("0.17.0", "vllm/vllm-openai:v0.17.0"),
        ("v0.25.1", "vllm/vllm-openai:v0.25.1"),
        ("0.25", "vllm/vllm-openai:v0.25.0"),
        ("0.25.1+cu129", "vllm/vllm-openai:v0.25.1"),
        ("0.20.0rc1", "vllm/vllm-openai:v0.20.0rc1"),
    ],
)
def test_the_image_is_pinned_to_the_version(version, image):
    """The container runs the version that was planned, today and next month."""
    assert image_of(version) == image


def test_containers_have_names_that_docker_takes():
    """Any served name gives a container; several replicas don't collide."""
    one = vllm_plan("org/My Model:free", "org/m", {})
    assert container_name(one, one.replicas[0]) == "org-My-Model-free"
    tiny = vllm_plan("_", "org/m", {})
    assert container_name(tiny, tiny.replicas[0]) == "vllm-model"
    two = vllm_plan("chat", "org/m", {}, gpus=((0,), (1,)))
    assert [container_name(two, replica) for replica in two.replicas] == ["chat-0", "chat-1"]


def container(checkpoint, values=None):
    plan = vllm_plan("m", checkpoint, values or {})
    return container_of(plan, plan.replicas[0], gpus=decode_gpu_spec("1xh200"))


def test_a_repository_brings_the_hubs_cache_and_token():
    """A model is fetched once, into the cache that the user already has, and gated ones work."""
    spec = container("Qwen/Qwen3-32B")
    assert spec.args[:2] == ("--model", "Qwen/Qwen3-32B")
    assert spec.mounts == (
        Mount(source="~/.cache/huggingface", target="/root/.cache/huggingface", host_variable="HF_HOME"),
        COMPILE_CACHE,
    )
    assert spec.passed_env == ("HF_TOKEN",)


def test_a_snapshot_of_the_cache_keeps_its_links():
    """A folder of the hub's cache holds links to files beside it; the container sees those too."""
    spec = container("/c/hub/models--Qwen--Qwen3-32B/snapshots/abc123/")
    assert spec.mounts == (
        Mount(source="/c/hub/models--Qwen--Qwen3-32B", target="/model", is_read_only=True),
        COMPILE_CACHE,
    )
    assert spec.args[:2] == ("--model", "/model/snapshots/abc123")
    assert spec.passed_env == ()


def test_files_that_arguments_name_are_there_inside():
    """A chat template or adapter on the host is found in the container under the same name."""
    spec = container("/m", {
        "chat_template": "/etc/t.jinja",
        "tokenizer": "org/tokenizer",
        "download_dir": "/big/cache",
        "speculative_config": '{"method": "eagle3", "model": "/drafts/e"}',
        "lora_modules": '["sql=/adapters/sql", {"name": "x", "path": "/adapters/x"}]',
    })  # fmt: skip
    assert {(mount.source, mount.target, mount.is_read_only) for mount in spec.mounts[1:-1]} == {
        ("/etc/t.jinja", "/etc/t.jinja", True),
        ("/big/cache", "/big/cache", False),
        ("/drafts/e", "/drafts/e", True),
        ("/adapters/sql", "/adapters/sql", True),
        ("/adapters/x", "/adapters/x", True),
    }
    assert container("/m", {"chat_template": "{% for m in messages %}/x{% endfor %}"}).mounts[1:-1] == ()
    with pytest.raises(StackFileError, match=r"chat_template: './t.jinja' can't be mounted"):
        container("/m", {"chat_template": "./t.jinja"})


def test_unlike_cards_keep_their_order_inside():
    """Rank 0 is the card that --gpus names first."""
    case = PLANS["1xrtx3090-1xrtx4090--qwen3.5-27b-fp8"]
    spec = container_of(case.models[0], case.models[0].replicas[0], gpus=case.hardware.gpus)
    assert dict(spec.env)["CUDA_DEVICE_ORDER"] == "PCI_BUS_ID"
    assert "CUDA_DEVICE_ORDER" not in dict(container("Qwen/Qwen3-32B").env)


@pytest.mark.parametrize(
    ("source", "read_only", "word"),
    [
        pytest.param("/a b/$x", True, "-v=/a b/$x:/model:ro", id="blank-and-dollar"),
        pytest.param("~/models/x", True, "-v=/home/a b/models/x:/model:ro", id="home"),
        pytest.param("models/x", True, "-v={cwd}/models/x:/model:ro", id="relative"),
        pytest.param("./x", False, "-v={cwd}/x:/model", id="dot"),
        pytest.param("/a:b", True, "--mount=type=bind,source=/a:b,target=/model,readonly", id="colon"),
        pytest.param(
            '/a:b,"c"', True, '--mount=type=bind,"source=/a:b,""c""","target=/model",readonly', id="csv"
        ),
        pytest.param("~/a:b", False, "--mount=type=bind,source=/home/a b/a:b,target=/model", id="home-colon"),
    ],
)  # fmt: skip
def test_any_path_reaches_docker(tmp_path, source, read_only, word):
    """Folders with blanks, colons or quotes are mounted, not torn apart."""
    spec = ContainerSpec(
        name="m", image="i", mounts=(Mount(source=source, target="/model", is_read_only=read_only),)
    )
    done, (call,) = run_in_bash(render_docker_run(spec), tmp_path)
    option, _, value = word.replace("{cwd}", str(tmp_path)).partition("=")
    assert done.returncode == 0
    assert call.args[call.args.index(option) + 1] == value


def test_a_free_port_and_labels_can_be_written():
    """Everything that a runtime may ask for has its text."""
    spec = ContainerSpec(
        name="m",
        image="i",
        ports=(PublishedPort(container_port=8000, host_port=0),),
        labels=(("trimtab.stack", "my box"),),
        shm_bytes=512 * 2**20,
        gpu_ids=("GPU-abc",),
    )
    text = render_docker_run(spec)
    assert "-p 127.0.0.1::8000" in text
    assert "--label 'trimtab.stack=my box'" in text
    assert "--shm-size=512m" in text
    assert "--gpus '\"device=GPU-abc\"'" in text
    assert "--ipc" not in text
