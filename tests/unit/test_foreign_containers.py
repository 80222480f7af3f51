"""Pure. Containers as docker, podman and nerdctl take them: cards, folders, ports, memory, environment."""

import pytest

from trimtab.stackfile.foreign import decode_foreign
from trimtab.stackfile.foreign_container_options import SHORT_NAMES, SWITCHES, VALUED
from trimtab.stackfile.foreign_model import ForeignGpus
from trimtab.units import GIB, MIB

IMAGE = "vllm/vllm-openai:v0.25.1"


def read(text):
    return decode_foreign(text, source="given")


def run(options, arguments="--model org/m", image=IMAGE):
    (model,) = read(f"docker run {options} {image} {arguments}").models
    return model


def codes(text):
    return [finding.code for finding in read(text).findings]


@pytest.mark.parametrize(
    ("options", "gpus"),
    [
        pytest.param("--gpus all", ForeignGpus(is_all=True), id="all"),
        pytest.param("--gpus=all", ForeignGpus(is_all=True), id="all-equals"),
        pytest.param("--gpus 2", ForeignGpus(count=2), id="count"),
        pytest.param("--gpus '\"device=0,1\"'", ForeignGpus(indices=(0, 1)), id="devices"),
        pytest.param('--gpus "\\"device=2,3\\""', ForeignGpus(indices=(2, 3)), id="devices-escaped"),
        pytest.param("--gpus device=1", ForeignGpus(indices=(1,)), id="one-device"),
        pytest.param("--gpus device=GPU-1a2b", ForeignGpus(uuids=("GPU-1a2b",)), id="uuid"),
        pytest.param(
            "--gpus '\"device=0,1\",capabilities=compute'", ForeignGpus(indices=(0, 1)), id="with-caps"
        ),
        pytest.param("--gpus count=2", ForeignGpus(count=2), id="count-named"),
        pytest.param("--runtime nvidia", ForeignGpus(is_all=True), id="runtime"),
        pytest.param(
            "--runtime=nvidia -e NVIDIA_VISIBLE_DEVICES=0,2", ForeignGpus(indices=(0, 2)), id="visible"
        ),
        pytest.param(
            "--device nvidia.com/gpu=0 --device nvidia.com/gpu=1", ForeignGpus(indices=(0, 1)), id="cdi"
        ),
        pytest.param("--gpus all -e CUDA_VISIBLE_DEVICES=1", ForeignGpus(indices=(1,)), id="narrowed"),
        pytest.param(
            "--gpus '\"device=2,3\"' -e CUDA_VISIBLE_DEVICES=1", ForeignGpus(indices=(3,)), id="renumbered"
        ),
        pytest.param("--gpus 4 -e CUDA_VISIBLE_DEVICES=1,2", ForeignGpus(count=2), id="count-narrowed"),
    ],
)
def test_cards(options, gpus):
    """However the cards are given, they are the ones the container gets."""
    model = run(options)

    assert model.gpus == gpus
    assert model.request.gpus == (",".join(map(str, gpus.indices)) or None)


def test_lost_quotes_around_devices_are_named():
    """The commonest slip with several cards: docker refuses device=0,1 without a second pair of quotes."""
    stack = read(f'docker run --gpus "device=0,1" {IMAGE} --model org/m')

    assert "gpus_quotes_lost" in [finding.code for finding in stack.findings]
    assert stack.models[0].gpus == ForeignGpus(indices=(0, 1))


@pytest.mark.parametrize(
    ("options", "code"),
    [
        pytest.param("", "no_gpus", id="no-cards"),
        pytest.param("--gpus some", "gpus_not_understood", id="odd-cards"),
        pytest.param("--gpus all --shm-size huge", "shm_not_understood", id="odd-size"),
        pytest.param("--gpus all --env-file .env", "env_file", id="env-file"),
        pytest.param("--gpus all --frobnicate", "unknown_container_option", id="unknown-switch"),
        pytest.param("--gpus all --frobnicate yes", "unknown_container_option", id="unknown-with-value"),
        pytest.param("--gpus all -z", "unknown_container_option", id="unknown-letter"),
        pytest.param("--gpus all $MORE", "arguments_unknown", id="options-in-a-variable"),
        pytest.param("--gpus all $(cat options)", "arguments_unknown", id="options-in-a-file"),
        pytest.param("--gpus all", "port_not_published", id="no-port"),
        pytest.param("--gpus all -p 8000:8001", "port_not_published", id="other-port"),
        pytest.param("--gpus all", "download_not_kept", id="cache-not-mounted"),
    ],
)
def test_what_is_odd_about_a_container_is_named(options, code):
    """The model is read all the same."""
    text = f"docker run {options} {IMAGE} --model org/m"

    assert code in codes(text)
    assert read(text).models[0].request.checkpoint == "org/m"


@pytest.mark.parametrize(
    ("options", "seen", "checkpoint"),
    [
        pytest.param("-v /data/q:/model:ro", "/model", "/data/q", id="volume"),
        pytest.param("-v /data/q:/model", "/model/", "/data/q", id="trailing-slash"),
        pytest.param("-v /data:/models", "/models/a/b", "/data/a/b", id="below"),
        pytest.param("--volume=/data:/models:ro,z", "/models/a", "/data/a", id="volume-options"),
        pytest.param("-v/data:/models", "/models/a", "/data/a", id="joined"),
        pytest.param("-v /a:/models -v /b:/models/deep", "/models/deep/x", "/b/x", id="deepest"),
        pytest.param(
            "--mount type=bind,source=/data/q,target=/model,readonly", "/model", "/data/q", id="mount"
        ),
        pytest.param("--mount type=bind,src=/data/q,dst=/model", "/model", "/data/q", id="mount-short"),
        pytest.param("-v ./models:/models", "/models/q", "./models/q", id="relative"),
        pytest.param("-v ~/models:/models", "/models/q", "~/models/q", id="home"),
        pytest.param("-v $HOME/models:/models", "/models/q", "${HOME}/models/q", id="home-variable"),
        pytest.param("-v 'C:\\models:/models'", "/models/q", "C:\\models/q", id="windows"),
        pytest.param("-v /:/host", "/host/data/q", "/data/q", id="whole-disk"),
        pytest.param("-v /data:/data", "org/m", "org/m", id="repo-id"),
        pytest.param("-v named:/models", "/models/q", "/models/q", id="named-volume"),
        pytest.param("-v /data:/model2", "/model", "/model", id="like-but-not"),
    ],
)
def test_model_folder_on_the_host(options, seen, checkpoint):
    """The planner looks at the files on the host, whatever they are called inside."""
    model = run(f"--gpus all {options}", f"--model {seen}")

    assert model.request.checkpoint == checkpoint
    assert model.checkpoint_seen == seen


@pytest.mark.parametrize(
    ("options", "code"),
    [
        pytest.param("-v named:/models", "model_in_volume", id="named-volume"),
        pytest.param("-v /data:/other", "model_not_mounted", id="nothing-there"),
        pytest.param("-v /data:/mod", "model_not_mounted", id="half-a-name"),
    ],
)
def test_a_folder_that_is_not_there_is_named(options, code):
    """The engine would look into an empty folder, and try the hub."""
    assert code in codes(f"docker run --gpus all {options} {IMAGE} --model /models/q")


@pytest.mark.parametrize(
    ("options", "arguments", "port", "address"),
    [
        pytest.param("-p 8000:8000", "", 8000, "", id="plain"),
        pytest.param("-p 9000:8000", "", 9000, "", id="other"),
        pytest.param("-p 9000:9001", "--port 9001", 9000, "", id="own-port"),
        pytest.param("-p 127.0.0.1:9000:8000", "", 9000, "127.0.0.1", id="loopback"),
        pytest.param("-p 0.0.0.0:9000:8000", "", 9000, "", id="everywhere"),
        pytest.param("-p 8000:8000/tcp", "", 8000, "", id="protocol"),
        pytest.param("-p 8000-8002:8000-8002", "--port 8001", 8001, "", id="range"),
        pytest.param("-p 8000", "", None, "", id="docker-s-choice"),
        pytest.param("--network host", "--port 8003", 8003, "", id="host-network"),
        pytest.param(
            "--net=host", "--port 8003 --host 127.0.0.1", 8003, "127.0.0.1", id="host-network-loopback"
        ),
        pytest.param("-p 7000:7000 -p 8000:8000", "", 8000, "", id="several"),
        pytest.param("-dp 8000:8000", "", 8000, "", id="letters-strung-together"),
        pytest.param("-p8000:8000", "", 8000, "", id="joined"),
    ],
)
def test_port_and_address(options, arguments, port, address):
    """What a client types."""
    model = run(f"--gpus all {options}", f"--model org/m {arguments}")

    assert (model.port, model.address) == (port, address)


@pytest.mark.parametrize(
    ("text", "num_bytes"),
    [
        pytest.param("16g", 16 * GIB, id="g"),
        pytest.param("16gb", 16 * GIB, id="gb"),
        pytest.param("16GiB", 16 * GIB, id="gib"),
        pytest.param("64m", 64 * MIB, id="m"),
        pytest.param("1.5g", 3 * GIB // 2, id="fraction"),
        pytest.param("1073741824", GIB, id="bytes"),
    ],
)
def test_shared_memory_in_docker_s_units(text, num_bytes):
    """Docker counts in powers of 1024, whatever the unit is called."""
    assert run(f"--gpus all --shm-size={text}").shm_bytes == num_bytes


@pytest.mark.parametrize(
    ("image", "version"),
    [
        pytest.param("vllm/vllm-openai:v0.17.0", "0.17.0", id="plain"),
        pytest.param("docker.io/vllm/vllm-openai:v0.25.1", "0.25.1", id="registry"),
        pytest.param("mirror:5000/vllm/vllm-openai:v0.25.1-cu130", "0.25.1", id="registry-port-and-suffix"),
        pytest.param("vllm/vllm-openai:v0.17.0@sha256:" + "a" * 64, "0.17.0", id="digest"),
        pytest.param("vllm/vllm-openai-rocm:v0.25.1", "0.25.1", id="other-build"),
        pytest.param("vllm/vllm-openai:latest", None, id="latest"),
        pytest.param("vllm/vllm-openai", None, id="no-tag"),
        pytest.param("vllm/vllm-openai:nightly-abc", None, id="nightly"),
        pytest.param("nvcr.io/nvidia/vllm:25.09-py3", None, id="nvidia"),
        pytest.param("mirror:5000/vllm/vllm-openai", None, id="registry-port-no-tag"),
    ],
)
def test_version_from_the_tag(image, version):
    """A tag that moves is no version, and that is said."""
    text = f"docker run --gpus all {image} --model org/m"

    assert run("--gpus all", image=image).request.engine_version == version
    assert ("version_unknown" in codes(text)) is (version is None)


def test_every_option_with_a_value_leaves_the_image_alone():
    """No option of docker run eats the image or leaves its value standing as one."""
    for option in sorted(VALUED - {"--entrypoint", "--gpus", "--device", "--shm-size"}):
        for text in (f"{option} value", f"{option}=value"):
            model = run(f"--gpus all {text}")
            assert (model.image, model.request.checkpoint) == (IMAGE, "org/m"), option


def test_every_switch_leaves_the_image_alone():
    """A switch takes nothing."""
    for option in sorted(SWITCHES):
        model = run(f"{option} --gpus all {option}")
        assert (model.image, model.request.checkpoint) == (IMAGE, "org/m"), option


def test_every_letter_is_an_option_that_is_known():
    """Letters and long names agree."""
    assert set(SHORT_NAMES.values()) <= SWITCHES | VALUED
    assert not SWITCHES & VALUED


def test_environment_of_all_kinds():
    """Given, passed on from the script, passed on from outside; the last of a name counts."""
    text = (
        "export B=from-script\nC=not-exported\n"
        f"A=x docker run --gpus all -e A=1 --env=B -e C -e D=$(id) --env 'E=two words' -e A=2 {IMAGE} org/m"
    )
    (model,) = read(text).models

    assert [(entry.name, entry.value) for entry in model.env] == [
        ("A", "1"), ("B", "from-script"), ("C", None), ("D", None), ("E", "two words"), ("A", "2"),
    ]  # fmt: skip
    assert model.find_env("A").value == "2"


@pytest.mark.parametrize("words", ["vllm serve", "serve", "python3 -m vllm.entrypoints.openai.api_server"])
def test_the_image_s_own_command_said_twice_is_named(words):
    """The image would run vllm serve with these words as arguments, and not start."""
    text = f"docker run --gpus all {IMAGE} {words} org/m"

    assert "entrypoint_twice" in codes(text)
    assert read(text).models[0].request.checkpoint == "org/m"


def test_a_script_inside_the_container():
    """What bash -c runs in there is read with the container's folders, cards and lines."""
    text = (
        f"docker run --gpus 1 -v /data:/m --entrypoint /bin/bash {IMAGE} -c '\n"
        "export VLLM_LOGGING_LEVEL=DEBUG\nvllm serve /m/q --seed 7'"
    )
    (model,) = read(text).models

    assert model.request.checkpoint == "/data/q"
    assert model.request.engine_version == "0.25.1"
    assert model.find_env("VLLM_LOGGING_LEVEL").value == "DEBUG"


@pytest.mark.parametrize("image", ["$IMAGE", "${VLLM_IMAGE}", '"$(cat image)"'])
def test_an_image_that_is_not_said_is_known_by_its_flags(image):
    """The model and its flags are there; which vLLM it is, is not."""
    stack = read(f"docker run --gpus all {image} --model org/m --tensor-parallel-size 2")

    assert stack.models[0].request.checkpoint == "org/m"
    assert stack.models[0].request.engine_version is None
    assert "version_unknown" in [finding.code for finding in stack.findings]


def test_other_containers_are_left_aside():
    """Open WebUI beside the engine is no model, and no fault."""
    stack = read(
        f"docker run -d --gpus all -p 8000:8000 {IMAGE} org/m\n"
        "docker run -d -p 3000:8080 ghcr.io/open-webui/open-webui:main\ndocker rm -f old; docker stop x\n"
    )

    assert len(stack.models) == 1
    assert ("other_container", "note") in [(f.code, f.severity) for f in stack.findings]


def test_models_of_the_same_name_are_told_apart():
    """Two models need two names; whose name was changed is said."""
    stack = read(
        "vllm serve org/m --port 8000 &\nvllm serve other/m --port 8001 &\nvllm serve m --port 8002\n"
    )

    assert [model.request.name for model in stack.models] == ["m", "m-2", "m-3"]
    assert [finding.code for finding in stack.findings] == ["same_name", "same_name"]


@pytest.mark.parametrize(
    ("served", "name"),
    [
        pytest.param("gpt-4", "gpt-4", id="plain"),
        pytest.param("Qwen/Qwen3-8B", "Qwen3-8B", id="repo-id"),
        pytest.param("trimtab", "model", id="reserved"),
        pytest.param("'ein Modell'", "ein-Modell", id="blank"),
    ],
)
def test_served_name_becomes_one_that_can_be_served(served, name):
    """Slashes and blanks have no place in a name here; the name as written is kept beside it."""
    model = run("--gpus all", f"--model org/m --served-model-name {served}")

    assert model.request.name == name
    assert model.served_names == (served.strip("'"),)
