"""What doctor reads of a machine: real sockets, real programs, recorded cards; and the verb around it."""

from __future__ import annotations

import gc
import json
import os
import subprocess
import sys
import threading

import pytest
from click.testing import CliRunner
from docker_daemon import docker_daemon
from fake_nvml import FakeNvml

from trimtab.cli import machine, machine_docker
from trimtab.cli.doctor import doctor
from trimtab.cli.machine import choose_idle
from trimtab.cli.machine_docker import read_docker
from trimtab.core.preflight import DockerFacts
from trimtab.probes.gpus import probe_gpus


@pytest.fixture(autouse=True)
def surroundings(monkeypatch, tmp_path):
    """Folders of this test's own, no vLLM and no Docker of this machine's."""
    for name in ("DOCKER_HOST", "TRIMTAB_VLLM", "XDG_RUNTIME_DIR", "HF_HUB_CACHE", "HF_HOME"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setattr(machine_docker, "list_socket_paths", lambda _: (tmp_path / "docker.sock",))
    monkeypatch.setattr(machine_docker, "_CDI_FOLDERS", (tmp_path / "cdi",))
    monkeypatch.setattr(machine, "hub_cache_dir", lambda: tmp_path / "shared")
    monkeypatch.setenv("PATH", "/usr/bin:/bin")


@pytest.fixture
def run(monkeypatch):
    """``doctor`` on a recorded machine; gives exit code and findings by code."""

    def call(name, *arguments):
        monkeypatch.setattr(machine, "probe_gpus", lambda: probe_gpus(FakeNvml(name), environ={}))
        done = CliRunner().invoke(doctor, [*arguments, "--json"])
        assert done.exception is None or isinstance(done.exception, SystemExit), done.exception
        return done.exit_code, {item["code"]: item for item in json.loads(done.stdout)["findings"]}

    return call


def make_vllm(folder, version, kind="gpu"):
    """A program that looks like an installed vLLM: its interpreter tells the version."""
    folder.mkdir(parents=True, exist_ok=True)
    python = folder / "python"
    python.write_text(f"#!/bin/sh\necho {version} {kind}\n")
    program = folder / "vllm"
    program.write_text(f"#!{python}\n")
    for path in (python, program):
        path.chmod(0o755)
    return program


def let_go_of_sockets():
    """The docker package leaves sockets of failed connections to the garbage collector, which warns."""
    for thread in threading.enumerate():
        if thread.name == "ask-docker":
            thread.join(5)
    gc.collect()


def test_no_socket_is_no_docker():
    """A machine without Docker is not asked for it, and not slowed down."""
    assert read_docker() == DockerFacts()


@pytest.mark.parametrize(
    ("info", "gives"),
    [
        ({"Runtimes": {"runc": {}, "nvidia": {}}}, True),
        ({"Runtimes": {"runc": {}}}, False),
        ({"DiscoveredDevices": [{"Source": "cdi", "ID": "nvidia.com/gpu=0"}]}, True),
        ({}, False),
    ],
    ids=["runtime", "none", "described", "nothing"],
)
def test_a_daemon_tells_whether_it_gives_out_cards(monkeypatch, info, gives):
    """The registered runtime or described cards are seen in the daemon's own words."""
    with docker_daemon(info) as address:
        monkeypatch.setenv("DOCKER_HOST", address)
        found = read_docker()

    assert (found.address, found.version, found.is_podman) == (address, "27.3.1", False)
    assert found.gives_gpus is gives


def test_podman_gives_cards_that_are_described(monkeypatch, tmp_path):
    """Podman finds cards through a file that nvidia-ctk writes."""
    with docker_daemon({}, name="Podman Engine") as address:
        monkeypatch.setenv("DOCKER_HOST", address)
        before = read_docker()
        (tmp_path / "cdi").mkdir()
        (tmp_path / "cdi" / "nvidia.yaml").write_text("")
        after = read_docker()

    assert (before.is_podman, before.gives_gpus, after.gives_gpus) == (True, False, True)


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
def test_a_daemon_that_hangs_does_not_hold_doctor_up(monkeypatch):
    """A sick daemon is a finding, not a wait."""
    with docker_daemon(None) as address:
        monkeypatch.setenv("DOCKER_HOST", address)
        found = read_docker(patience_s=0.2)
    let_go_of_sockets()

    assert "has not answered" in found.problem
    assert found.fix


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
@pytest.mark.parametrize(
    ("address", "words"),
    [("unix:///nowhere/s", "no such socket"), ("tcp://gpu-box:2375", "another machine")],
    ids=["no socket", "elsewhere"],
)
def test_a_docker_host_that_cannot_be_used_is_named(monkeypatch, address, words):
    """A wrong DOCKER_HOST is said with its value."""
    monkeypatch.setenv("DOCKER_HOST", address)
    found = read_docker()
    let_go_of_sockets()

    assert found.version == ""
    assert words in found.problem


def test_doctor_on_a_machine_without_cards(run):
    """Exit code 0 and a quiet line; exit code 4 for who wants vLLM there."""
    code, findings = run("no-library", "--port", "1")
    asked, with_vllm = run("no-library", "--port", "1", "--engine", "vllm")

    assert (code, findings["gpus"]["severity"]) == (0, "ok")
    assert (asked, with_vllm["gpus"]["severity"]) == (4, "error")


def test_doctor_names_the_vllm_and_judges_the_driver_by_it(run, monkeypatch, tmp_path):
    """The same machine is right for one installed vLLM and wrong for another."""
    monkeypatch.setenv("TRIMTAB_VLLM", str(make_vllm(tmp_path / "old", "0.19.1")))
    fine, old = run("4x4090", "--port", "1")
    monkeypatch.setenv("TRIMTAB_VLLM", str(make_vllm(tmp_path / "new", "0.25.1")))
    stopped, new = run("4x4090", "--port", "1")

    assert (fine, old["gpu-driver"]["severity"]) == (0, "ok")
    assert (stopped, new["gpu-driver"]["severity"]) == (4, "error")
    assert str(tmp_path / "new") in new["vllm"]["text"]


def test_doctor_believes_the_cuda_that_is_beside_vllm(run, monkeypatch, tmp_path):
    """A build for an older CUDA than the default wheels' is judged as what it is."""
    monkeypatch.setenv("TRIMTAB_VLLM", str(make_vllm(tmp_path / "cu12", "0.25.1+cu129", "gpu 12.9.79")))
    code, findings = run("4x4090", "--port", "1")

    assert (code, findings["gpu-driver"]["severity"]) == (0, "ok")
    assert "12.9" in findings["gpu-driver"]["text"]


def test_doctor_says_which_program_is_none(run, monkeypatch):
    """A typing error in TRIMTAB_VLLM is found here, not at the next start."""
    monkeypatch.setenv("TRIMTAB_VLLM", "/nowhere/vllm")
    _, findings = run("8xh200", "--port", "1")

    assert "/nowhere/vllm" in findings["vllm"]["text"]


def test_a_version_that_is_none_is_one_sentence():
    """`--engine-version newest` is refused before anything is looked at."""
    done = subprocess.run(
        [sys.executable, "-m", "trimtab", "doctor", "--engine-version", "newest"],
        env=os.environ, capture_output=True, text=True, check=False,
    )  # fmt: skip

    assert done.returncode == 2
    assert "'newest'" in done.stderr


def test_copies_are_tried_on_idle_cards_only(run, monkeypatch):
    """A test copy never takes memory from an engine that serves."""
    asked = []
    copies = machine.probe_peer_copies

    def remember(gpus):
        asked.extend(gpu.index for gpu in gpus)
        return copies(gpus, program=(sys.executable, "-c", "import sys; sys.exit(3)"))

    monkeypatch.setattr(machine, "probe_peer_copies", remember)
    _, findings = run("4x4090-busy", "--port", "1", "--copies")

    assert asked == [2, 3]
    assert "was not tried" in findings["gpu-p2p"]["text"]
    assert choose_idle(probe_gpus(FakeNvml("no-library"), environ={})) == ()
