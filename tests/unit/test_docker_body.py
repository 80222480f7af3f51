"""What would be sent to a Docker daemon, as data: cards, memory, mounts, ports; and what comes back."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st
from vllm_plans import SEED_SETTINGS, vllm_plan

from trimtab.core.container import ContainerSpec, Mount, PublishedPort
from trimtab.core.state import ExitStatus, ReplicaSpec
from trimtab.engines.vllm_container import container_of
from trimtab.runtimes.docker_body import Dialect, Placement, render_create_body
from trimtab.runtimes.docker_errors import (
    explain_refusal,
    is_port_taken,
    is_same_name,
    shorten,
    unreachable,
)
from trimtab.runtimes.docker_images import sum_progress
from trimtab.runtimes.docker_labels import decode_exit_status, decode_observed, is_live, render_labels

SPEC = ReplicaSpec(
    replica_id="chat-0",
    stack="box",
    model="chat",
    engine="vllm",
    argv=(),
    env=(),
    config_hash="abc",
    trimtab_version="0.2.0",
    predicted_bytes=7,
    max_model_len=32_768,
    dies_with_supervisor=False,
)
CONTAINER = ContainerSpec(
    name="chat",
    image="vllm/vllm-openai:v0.25.1",
    args=("--model", "/model"),
    env=(("A", "1"),),
    gpu_ids=("0", "3"),
    mounts=(Mount(source="/models/chat", target="/model", is_read_only=True),),
    ports=(PublishedPort(container_port=8000, host_port=0),),
    shm_bytes=16 * 2**30,
    ipc="host",
    labels=(("trimtab.stack", "wrong"), ("team", "search")),
)
PLACEMENT = Placement(
    host_ports=(40_001,), mount_sources=("/models/chat",), passed_env=(("HF_TOKEN", "secret"),)
)


def body_of(container=CONTAINER, dialect=Dialect.DOCKER, placement=PLACEMENT, spec=SPEC):
    return render_create_body(
        spec, container, placement, dialect=dialect, own_labels={"trimtab.state": "/state"}
    )


def test_every_field_of_the_spec_is_in_the_body():
    """The daemon gets the container that was shown, field for field, and no more than labels on top."""
    assert body_of() == {
        "Image": "vllm/vllm-openai:v0.25.1",
        "Cmd": ["--model", "/model"],
        "Env": ["A=1", "HF_TOKEN=secret"],
        "Labels": {
            "team": "search",
            "trimtab.replica": "chat-0",
            "trimtab.stack": "box",
            "trimtab.model": "chat",
            "trimtab.engine": "vllm",
            "trimtab.config-hash": "abc",
            "trimtab.version": "0.2.0",
            "trimtab.dies-with-supervisor": "false",
            "trimtab.predicted-bytes": "7",
            "trimtab.max-model-len": "32768",
            "trimtab.state": "/state",
        },
        "ExposedPorts": {"8000/tcp": {}},
        "HostConfig": {
            "IpcMode": "host",
            "ShmSize": 17_179_869_184,
            "Mounts": [{"Type": "bind", "Source": "/models/chat", "Target": "/model", "ReadOnly": True}],
            "PortBindings": {"8000/tcp": [{"HostIp": "127.0.0.1", "HostPort": "40001"}]},
            "DeviceRequests": [
                {"Driver": "nvidia", "DeviceIDs": ["0", "3"], "Capabilities": [["gpu"]]},
            ],
        },
    }


def test_podman_is_asked_for_cards_by_their_cdi_names():
    """Podman drops requests for NVIDIA's driver without a word; the engine would find no card."""
    config = body_of(dialect=Dialect.PODMAN)["HostConfig"]

    assert config["DeviceRequests"] == [
        {"Driver": "cdi", "DeviceIDs": ["nvidia.com/gpu=0", "nvidia.com/gpu=3"]}
    ]
    assert "ShmSize" not in config
    private = body_of(replace(CONTAINER, ipc="private"), Dialect.PODMAN)
    assert private["HostConfig"]["ShmSize"] == CONTAINER.shm_bytes


def test_a_container_without_cards_or_ports_asks_for_none():
    """An engine on the CPU does not need NVIDIA's runtime."""
    bare = ContainerSpec(name="cpu", image="x")
    body = body_of(bare, placement=Placement(host_ports=(), mount_sources=()))

    assert body["HostConfig"] == {"IpcMode": "private"}
    assert "ExposedPorts" not in body


def test_the_seed_container_reaches_the_daemon_as_it_is_printed():
    """What `--emit docker` shows of a four-card model is what the API is sent."""
    plan = vllm_plan("qwen3.5-35b", "Qwen/Qwen3.5-35B-A3B-FP8", SEED_SETTINGS, gpus=((0, 1, 2, 3),))
    container = container_of(plan, plan.replicas[0], host_port=8001)
    placement = Placement(host_ports=(8001,), mount_sources=tuple(m.source for m in container.mounts))
    body = body_of(container, placement=placement)

    assert tuple(body["Cmd"]) == container.args
    assert body["Image"] == container.image
    assert body["HostConfig"]["IpcMode"] == "host"
    assert body["HostConfig"]["DeviceRequests"][0]["DeviceIDs"] == ["0", "1", "2", "3"]
    assert {item["Target"] for item in body["HostConfig"]["Mounts"]} == {
        "/root/.cache/huggingface",
        "/root/.cache/vllm",
    }
    assert body["Env"] == [f"{name}={value}" for name, value in container.env]


def inspection(**state):
    return {
        "Id": "f00",
        "Created": "2026-11-30T08:42:20.1Z",
        "Config": {"Labels": render_labels(SPEC)},
        "HostConfig": body_of()["HostConfig"],
        "State": {"Status": "running", "Running": True, "Pid": 71, "ExitCode": 0, **state},
    }


def test_labels_bring_the_replica_back():
    """A later trimtab knows everything of a container from the container alone."""
    found = decode_observed(
        inspection(StartedAt="2026-11-30T08:42:25.508192864Z"), log_path="/log", rss_bytes=5
    )

    assert (found.replica_id, found.stack, found.model, found.engine) == ("chat-0", "box", "chat", "vllm")
    assert (found.config_hash, found.predicted_bytes, found.max_model_len) == ("abc", 7, 32_768)
    assert (found.pid, found.port, found.base_url) == (71, 40_001, "http://127.0.0.1:40001")
    assert found.started_at_s == pytest.approx(1_796_028_145.508, abs=0.001)
    assert (found.is_running, found.dies_with_supervisor, found.rss_bytes) == (True, False, 5)


@pytest.mark.parametrize(
    ("state", "status"),
    [
        pytest.param({"Status": "exited", "ExitCode": 0}, ExitStatus(code=0), id="done"),
        pytest.param({"Status": "exited", "ExitCode": 3}, ExitStatus(code=3), id="failed"),
        pytest.param({"Status": "exited", "ExitCode": 137}, ExitStatus(code=None, signal=9), id="killed"),
        pytest.param({"Status": "exited", "ExitCode": 143}, ExitStatus(code=None, signal=15), id="stopped"),
        pytest.param({"Status": "exited", "ExitCode": 255}, ExitStatus(code=255), id="no signal"),
        pytest.param(
            {"Status": "exited", "ExitCode": 1, "OOMKilled": True}, ExitStatus(code=None, signal=9), id="oom"
        ),
        pytest.param({"Status": "created", "ExitCode": 0}, ExitStatus(code=None), id="never ran"),
    ],
)
def test_ends_are_told_apart(state, status):
    """Killed for memory, crashed or done: status says which."""
    ended = inspection(Running=False, Pid=0, **state)

    assert not is_live(ended)
    assert decode_exit_status(ended) == status
    assert decode_observed(ended, log_path="").exit_status == status


@given(
    st.dictionaries(st.text(max_size=20), st.text(max_size=20)),
    st.text(max_size=30),
    st.text(max_size=12),
    st.one_of(st.none(), st.text(max_size=8)),
)
def test_foreign_labels_and_times_break_nothing(labels, moment, status, host_port):
    """Whatever somebody wrote into a label, listing goes on."""
    odd = inspection(StartedAt=moment, Status=status)
    odd["Config"] = {"Labels": {**labels, "trimtab.replica": "x"}}
    odd["HostConfig"] = {"PortBindings": {"1/tcp": [{"HostIp": "0.0.0.0", "HostPort": host_port}]}}

    found = decode_observed(odd, log_path="")

    assert found.replica_id == "x"
    assert found.started_at_s >= 0


class RefusalError(OSError):
    """The shape of the SDK's error: an OSError with a status and the daemon's words."""

    def __init__(self, status_code, explanation):
        super().__init__(explanation)
        self.status_code = status_code
        self.explanation = explanation


@pytest.mark.parametrize(
    ("words", "kind", "hint"),
    [
        pytest.param(
            'could not select device driver "nvidia" with capabilities: [[gpu]]',
            "EnvironmentMissingError",
            "container toolkit",
            id="no toolkit",
        ),
        pytest.param(
            "setting up CDI devices: unresolvable CDI devices nvidia.com/gpu=0",
            "EnvironmentMissingError",
            "nvidia-ctk cdi generate",
            id="no cdi",
        ),
        pytest.param(
            "driver failed programming external connectivity: Bind for 127.0.0.1:8000 failed: "
            "port is already allocated",
            "EnvironmentMissingError",
            "let trimtab pick a port",
            id="port",
        ),
        pytest.param(
            "write /var/lib/docker/x: no space left on device",
            "EnvironmentMissingError",
            "docker system df",
            id="disk",
        ),
        pytest.param(
            'exec: "vllm": executable file not found in $PATH',
            "EngineStartError",
            "entry point",
            id="program",
        ),
        pytest.param("something new", "EngineStartError", "journalctl", id="unknown"),
    ],
)
def test_a_refusal_is_one_sentence_with_what_would_work(words, kind, hint):
    """The daemon's chain of causes becomes one line and one fix."""
    error = explain_refusal(RefusalError(500, words), replica_id="chat-0", image="img:1")

    assert type(error).__name__ == kind
    assert "chat-0" in error.message
    assert "\n" not in error.message
    assert hint in error.hint


def test_names_and_ports_in_use_are_told_apart():
    """A lost race for a port is tried again, somebody's container of that name is not."""
    docker_name = RefusalError(
        409, 'Conflict. The container name "/chat" is already in use by container "f0"'
    )
    podman_name = RefusalError(500, 'the container name "chat" is already in use by f00')
    port = RefusalError(500, "rootport listen tcp 127.0.0.1:40001: bind: address already in use")

    assert is_same_name(docker_name)
    assert is_same_name(podman_name)
    assert not is_same_name(port)
    assert is_port_taken(port)
    assert not is_port_taken(docker_name)


@pytest.mark.parametrize(
    ("reason", "says"),
    [
        ("[Errno 13] Permission denied", "group docker"),
        ("[Errno 111] Connection refused", "restart docker"),
        ("[Errno 2] No such file or directory", "systemctl start docker"),
        ("Read timed out.", "journalctl"),
        ("Invalid bind address protocol: nope", "DOCKER_HOST"),
    ],
    ids=["rights", "refused", "absent", "hangs", "nonsense"],
)
def test_an_unreachable_daemon_has_its_fix(reason, says):
    """Each way in which a daemon is not there names what to do."""
    assert says in unreachable("unix:///x", OSError(reason)).hint


def test_long_answers_are_cut():
    """A page of nested errors does not fill the terminal."""
    assert len(shorten("word " * 500)) == 300


def test_pull_progress_sums_the_layers():
    """The bar counts bytes of all layers, and finished ones stay counted."""
    layers = {}
    events = [
        {"status": "Pulling fs layer", "id": "a"},
        {"status": "Downloading", "id": "a", "progressDetail": {"current": 10, "total": 100}},
        {"status": "Downloading", "id": "b", "progressDetail": {"current": 5, "total": 50}},
        {"status": "Download complete", "id": "a", "progressDetail": {}},
        {"status": "Extracting", "id": "a", "progressDetail": {"current": 1, "total": 100}},
    ]
    sums = [sum_progress("img", layers, event) for event in events]

    assert [(item.done_bytes, item.total_bytes) for item in sums] == [
        (0, 0),
        (10, 100),
        (15, 150),
        (105, 150),
        (105, 150),
    ]
