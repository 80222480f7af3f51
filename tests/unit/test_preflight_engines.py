"""Doctor on whole recorded machines: the cards, the vLLM and the Docker that would use them."""

from __future__ import annotations

from dataclasses import replace

import pytest
from fake_nvml import MACHINES, FakeNvml
from test_preflight import HEALTHY

from trimtab.core.gpu_facts import PeerCopies, PeerCopy
from trimtab.core.preflight import DockerFacts, Finding, FolderFacts, VllmFacts
from trimtab.planner.preflight import check_machine
from trimtab.probes.gpus import probe_gpus
from trimtab.units import GIB

INSTALLED = VllmFacts(path="/opt/vllm/bin/vllm", version="0.25.1")
DOCKER = DockerFacts(address="unix:///var/run/docker.sock", version="27.3.1", gives_gpus=True)
NO_GPUS = ("no-library", "no-cards")


def judge(machine, **changes) -> tuple[Finding, ...]:
    gpus = probe_gpus(FakeNvml(machine), environ={})
    return check_machine(replace(HEALTHY, gpus=gpus, **changes))


def found(findings, code) -> list[Finding]:
    return [finding for finding in findings if finding.code == code]


@pytest.mark.parametrize("machine", list(MACHINES))
@pytest.mark.parametrize("vllm", [VllmFacts(), INSTALLED], ids=["no vLLM", "vLLM"])
@pytest.mark.parametrize("docker", [DockerFacts(), DOCKER], ids=["no Docker", "Docker"])
def test_every_machine_gets_plain_findings(machine, vllm, docker):
    """Whatever is wrong has a fix, whatever is right has none, and nothing is a trace."""
    for finding in judge(machine, vllm=vllm, docker=docker):
        assert "\n" not in finding.text + finding.fix
        assert bool(finding.fix) == (finding.severity != "ok"), finding


@pytest.mark.parametrize("machine", NO_GPUS)
def test_a_machine_without_a_card_is_quiet(machine):
    """Who runs models on the CPU reads one line about GPUs and none about vLLM."""
    findings = judge(machine)
    (gpus,) = [finding for finding in findings if finding.code.startswith("gpu")]

    assert gpus.severity == "ok"
    assert "on the CPU with llama.cpp" in gpus.text
    assert found(findings, "vllm") == []
    assert {finding.severity for finding in findings} == {"ok"}


@pytest.mark.parametrize("machine", NO_GPUS)
def test_asking_for_vllm_without_a_card_is_an_error(machine):
    """Whoever means to run vLLM learns at once that this machine cannot."""
    (gpus,) = found(judge(machine, wanted_engine="vllm"), "gpus")
    cpu = replace(INSTALLED, is_cpu_build=True)
    (with_cpu_build,) = found(judge(machine, wanted_engine="vllm", vllm=cpu), "gpus")

    assert gpus.severity == "error"
    assert with_cpu_build.severity == "ok"


@pytest.mark.parametrize(
    ("changes", "severity"),
    [
        ({}, "warning"),
        ({"vllm": INSTALLED}, "error"),
        ({"wanted_engine": "vllm"}, "error"),
        ({"vllm": INSTALLED, "wanted_engine": "llama_cpp"}, "warning"),
        ({"vllm": replace(INSTALLED, version="0.19.1")}, "ok"),
        ({"vllm": INSTALLED, "vllm_version": "0.19.1"}, "ok"),
        ({"vllm": replace(INSTALLED, version="dev")}, "error"),
    ],
    ids=["nothing", "installed", "wanted", "other engine", "older", "older asked for", "no release"],
)
def test_an_old_driver_is_an_error_only_for_who_needs_a_newer(changes, severity):
    """A driver for CUDA 12.9 stops vLLM 0.25.1, not 0.19.1, and nobody who uses the CPU."""
    (driver,) = found(judge("4x4090", **changes), "gpu-driver")

    assert driver.severity == severity


def test_free_memory_is_told_by_card():
    """One line shows what a plan may use."""
    (free,) = found(judge("4x4090-busy"), "gpu-free")

    assert free.severity == "ok"
    assert "GPU 0 2.2 GiB of 23.6 GiB" in free.text
    assert "GPU 3 23.6 GiB of 23.6 GiB" in free.text


def test_what_a_dead_server_left_is_named_with_its_pid():
    """A worker that survived its server holds a card for ever; killing it is right, and only it."""
    findings = judge("4x4090-busy", orphan_pids=frozenset({4194305}))
    ours = judge("4x4090-busy", orphan_pids=frozenset({4194305}), own_pids=frozenset({4194305}))
    (orphan,) = found(findings, "gpu-orphan")

    assert orphan.fix == "kill 4194305"
    assert "VLLM::Worker_TP0 (pid 4194305) holds 21.0 GiB of GPU 0" in orphan.text
    assert found(ours, "gpu-orphan") == []


def test_copies_that_were_not_tried_are_not_claimed():
    """What the driver offers is not what was seen to work."""
    (untried,) = found(judge("8xh200"), "gpu-p2p")

    assert "doctor --copies" in untried.text
    assert found(judge("laptop"), "gpu-p2p") == []


@pytest.mark.parametrize(
    ("outcome", "severity", "words"),
    [("right", "ok", "every copied byte compared"), ("wrong", "error", "come out wrong")],
)
def test_copies_that_were_tried_are_told(outcome, severity, words):
    """Corrupted copies are found before they corrupt answers."""
    copies = PeerCopies(
        copies=(
            PeerCopy(source=0, target=1, outcome=outcome),
            PeerCopy(source=1, target=0, outcome="right"),
        )
    )
    findings = judge("2x4090-p2p-driver", peer_copies=copies)
    (tried,) = found(findings, "gpu-p2p")

    assert (tried.severity, words in tried.text) == (severity, True)
    assert found(findings, "gpu-p2p-unproven") == []


@pytest.mark.parametrize(
    ("changes", "severity", "words"),
    [
        ({}, "warning", "makes an environment"),
        ({"docker": DOCKER}, "ok", "runtime: docker"),
        ({"vllm": INSTALLED}, "ok", "vLLM 0.25.1 at /opt/vllm/bin/vllm"),
        ({"vllm": INSTALLED, "vllm_version": "0.33.0"}, "warning", "0.33.0 was asked for"),
        ({"vllm": replace(INSTALLED, is_cpu_build=True)}, "warning", "leaves the cards idle"),
        ({"vllm": replace(INSTALLED, version="dev")}, "warning", "no release"),
        ({"vllm": VllmFacts(problem="no program", fix="f"), "wanted_engine": "vllm"}, "error", "no program"),
    ],
    ids=["absent", "as image", "right", "other version", "for CPUs", "no release", "broken"],
)
def test_the_vllm_that_would_run_is_named(changes, severity, words):
    """The reader sees which vLLM a start takes, and what it would have to make."""
    (vllm,) = found(judge("8xh200", **changes), "vllm")

    assert vllm.severity == severity
    assert words in vllm.text


@pytest.mark.parametrize(
    ("docker", "severity", "words"),
    [
        (DockerFacts(), "ok", "run as processes"),
        (DOCKER, "ok", "can give containers the cards"),
        (replace(DOCKER, gives_gpus=False), "warning", "runtime is not registered"),
        (replace(DOCKER, gives_gpus=False, is_podman=True), "warning", "no CDI file"),
        (DockerFacts(address="a", problem="permission denied", fix="f"), "warning", "permission denied"),
    ],
    ids=["absent", "right", "no runtime", "podman", "refused"],
)
def test_docker_is_judged_for_machines_with_cards(docker, severity, words):
    """A container that cannot see the cards is found before its image of 10 GB is pulled."""
    (finding,) = found(judge("8xh200", docker=docker), "docker")

    assert finding.severity == severity
    assert words in finding.text


def test_docker_without_cards_is_fine_as_it_is():
    """No card, no word about a missing runtime for cards."""
    (finding,) = found(judge("no-library", docker=replace(DOCKER, gives_gpus=False)), "docker")

    assert finding.severity == "ok"


@pytest.mark.parametrize(
    ("machine", "engine", "severity"),
    [("8xh200", None, "warning"), ("8xh200", "llama_cpp", "ok"), ("no-library", None, "ok")],
)
def test_room_for_a_model_of_the_cards_size_is_asked_for(machine, engine, severity):
    """Where a card of 140 GiB is to be filled, 50 GiB of disk are little."""
    cache = FolderFacts(path="cache", free_bytes=50 * GIB)
    (finding,) = found(judge(machine, cache=cache, wanted_engine=engine), "cache")

    assert finding.severity == severity
