"""Pure. Compose files: services, anchors, interpolation, cards, and what is not followed."""

import pytest

from trimtab.errors import StackFileError
from trimtab.stackfile.foreign import decode_foreign
from trimtab.stackfile.foreign_model import ForeignGpus
from trimtab.units import GIB

FULL = """\
# two models and a front end
x-engine: &engine
  image: vllm/vllm-openai:${VLLM_TAG:-v0.25.1}
  ipc: host
  shm_size: "16gb"
  restart: unless-stopped
  environment: &environment
    HF_TOKEN: ${HF_TOKEN}
    NCCL_P2P_DISABLE: 1

services:
  big:
    <<: *engine
    container_name: the-big-one
    command: >
      --model /models/${BIG:-Qwen3.5-35B-A3B-FP8}
      --served-model-name big
      --tensor-parallel-size 2
      --default-chat-template-kwargs '{"enable_thinking": false}'
    volumes:
      - /data/models:/models:ro
    ports:
      - "8000:8000"
    deploy:
      resources:
        reservations:
          devices:
            - driver: nvidia
              device_ids: ["0", "1"]
              capabilities: [gpu]

  small:
    <<: *engine
    environment:
      <<: *environment
      VLLM_LOGGING_LEVEL: DEBUG
    command:
      - --model
      - Qwen/Qwen3-8B
      - --gpu-memory-utilization
      - 0.50
      - --port
      - 8001
    volumes:
      - type: bind
        source: ~/.cache/huggingface
        target: /root/.cache/huggingface
    ports:
      - target: 8001
        published: "8002"
        host_ip: 127.0.0.1
    deploy:
      resources:
        reservations:
          devices:
            - driver: nvidia
              count: 1
              capabilities: [gpu]

  webui:
    image: ghcr.io/open-webui/open-webui:main
    depends_on: [big]
"""


def read(text):
    return decode_foreign(text, source="compose.yaml")


def service(lines, extra=""):
    body = "".join(f"    {line}\n" for line in lines.splitlines())
    return f"services:\n  m:\n    image: vllm/vllm-openai:v0.25.1\n    gpus: all\n{body}{extra}"


def only(lines):
    (model,) = read(service(lines)).models
    return model


def codes(text):
    return [finding.code for finding in read(text).findings]


def test_a_whole_file():
    """Anchors, merge keys, both forms of commands, volumes, ports and cards."""
    stack = read(FULL)
    big, small = stack.models

    assert stack.form == "compose"
    assert big.request.checkpoint == "/data/models/Qwen3.5-35B-A3B-FP8"
    assert (big.request.name, big.container_name, big.where) == ("big", "the-big-one", "line 12")
    assert (big.request.engine_version, big.ipc, big.shm_bytes) == ("0.25.1", "host", 16 * GIB)
    assert (big.gpus, big.port) == (ForeignGpus(indices=(0, 1)), 8000)
    assert big.request.engine_args == (
        ("tensor_parallel_size", 2),
        ("default_chat_template_kwargs", '{"enable_thinking": false}'),
    )
    assert [(entry.name, entry.value, entry.line) for entry in big.env] == [
        ("HF_TOKEN", None, 8),
        ("NCCL_P2P_DISABLE", "1", 9),
    ]
    assert small.request.engine_args == (("gpu_memory_utilization", 0.5),)
    assert (small.gpus, small.port, small.address) == (ForeignGpus(count=1), 8002, "127.0.0.1")
    assert small.find_env("VLLM_LOGGING_LEVEL").value == "DEBUG"
    assert small.find_env("NCCL_P2P_DISABLE").value == "1"
    assert [finding.code for finding in stack.findings] == ["other_container"]


def test_lines_of_flags_in_lists():
    """A finding about a flag leads to its line."""
    text = service("command:\n  - --model\n  - org/m\n  - --seed\n  - 7")
    (model,) = read(text).models

    assert model.find_flag("seed").line == 8


@pytest.mark.parametrize(
    ("lines", "gpus"),
    [
        pytest.param("gpus: all", ForeignGpus(is_all=True), id="all"),
        pytest.param("gpus:\n  - device_ids: ['2']", ForeignGpus(indices=(2,)), id="gpus-list"),
        pytest.param("deploy: {resources: {reservations: {devices: [{capabilities: [gpu]}]}}}",
                     ForeignGpus(is_all=True), id="no-count"),
        pytest.param("deploy: {resources: {reservations: {devices: [{count: all, capabilities: [gpu]}]}}}",
                     ForeignGpus(is_all=True), id="count-all"),
        pytest.param("deploy: {resources: {reservations: {devices: [{device_ids: ['0,3']}]}}}",
                     ForeignGpus(indices=(0, 3)), id="ids-in-one"),
        pytest.param("deploy: {resources: {reservations: {devices: [{device_ids: [GPU-1]}]}}}",
                     ForeignGpus(uuids=("GPU-1",)), id="uuid"),
        pytest.param("runtime: nvidia\nenvironment: [NVIDIA_VISIBLE_DEVICES=1]", ForeignGpus(indices=(1,)),
                     id="runtime"),
        pytest.param("devices: ['nvidia.com/gpu=all']", ForeignGpus(is_all=True), id="cdi"),
        pytest.param("deploy: {resources: {reservations: {devices: [{capabilities: [tpu]}]}}}", ForeignGpus(),
                     id="other-device"),
    ],
)  # fmt: skip
def test_cards(lines, gpus):
    """The cards of the service, in each of compose's forms."""
    body = "\n".join(f"    {line}" for line in f"command: org/m\n{lines}".splitlines())
    text = f"services:\n  m:\n    image: vllm/vllm-openai:v0.25.1\n{body}\n"

    assert read(text).models[0].gpus == gpus


@pytest.mark.parametrize(
    ("written", "seed"),
    [
        pytest.param("${SEED:-7}", 7, id="default"),
        pytest.param("${SEED-7}", 7, id="default-if-unset"),
        pytest.param("${A:-${B:-7}}", 7, id="nested"),
        pytest.param("${A:+9}7", 7, id="alternative-of-nothing"),
    ],
)
def test_interpolation(written, seed):
    """Defaults are taken, as compose takes them without an .env file."""
    assert dict(only(f"command: [org/m, --seed, '{written}']").request.engine_args) == {"seed": seed}


def test_dollars_for_the_container_are_left():
    """$$ is a dollar sign, and nothing in a command is run."""
    model = only("command: org/m --revision '$$(id)'")

    assert dict(model.request.engine_args) == {"revision": "$(id)"}


@pytest.mark.parametrize(
    ("lines", "code"),
    [
        pytest.param("command: org/m --seed ${SEED}", "value_unknown", id="variable-without-default"),
        pytest.param("command: org/m\nenv_file: .env", "env_file", id="env-file"),
        pytest.param("command: org/m\nextends: {service: base}", "extends", id="extends"),
        pytest.param("command: org/m\ndeploy: {replicas: 2}", "scale", id="replicas"),
        pytest.param("command: org/m\nports: ['8000:8001']", "port_not_published", id="port"),
        pytest.param("command: /models/m", "model_not_mounted", id="no-mount"),
        pytest.param("command: vllm serve org/m", "entrypoint_twice", id="command-said-twice"),
    ],
)
def test_what_is_not_followed_is_named(lines, code):
    """The model is there all the same."""
    text = service(lines)

    assert code in codes(text)
    assert len(read(text).models) == 1


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        pytest.param("services:\n", "no service", id="nothing"),
        pytest.param("services: []\n", "no service", id="list"),
        pytest.param("services:\n  a: text\n", "not keys and values", id="service-is-text"),
        pytest.param("services:\n  a: {image: redis}\n", "not vLLM's", id="no-vllm"),
        pytest.param("services:\n  a: {image: 'vllm/vllm-openai}\n", "not YAML", id="broken"),
        pytest.param("services:\n\ta: b\n", "not YAML", id="tab"),
        pytest.param("services:\n  ? [a]\n  : b\n", "not plain text", id="complex-key"),
        pytest.param("services:\n  a: &a {image: vllm/vllm-openai, x: *a}\n", "", id="cycle"),
        pytest.param(
            "a: &a [x,x,x,x,x,x,x,x,x]\n"
            + "".join(
                f"{b}: &{b} [{','.join([f'*{a}'] * 9)}]\n" for a, b in zip("abcdef", "bcdefg", strict=True)
            )
            + "services: {m: {image: vllm/vllm-openai, command: *g}}\n",
            "unfolds",
            id="billion-laughs",
        ),
        pytest.param(
            "services: {m: {image: vllm/vllm-openai, command: 'org/m ${A'}}", "never closed", id="bracket"
        ),
        pytest.param("services: " + "[" * 3000, "", id="deep"),
    ],
)
def test_broken_files_are_one_sentence(text, sentence):
    """Nothing unfolds without bound, nothing ends in a traceback."""
    with pytest.raises(StackFileError) as caught:
        read(text)

    assert caught.value.message.startswith("compose.yaml")
    assert sentence in caught.value.message


def test_a_script_that_writes_a_compose_file_is_a_script():
    """The first line decides; the document inside is named as not read."""
    stack = read(
        "#!/bin/sh\ncat > docker-compose.yml <<EOF\nservices:\n  m: {image: vllm/vllm-openai}\nEOF\n"
        "vllm serve org/m\n"
    )

    assert stack.form == "script"
    assert [finding.code for finding in stack.findings] == ["heredoc"]
