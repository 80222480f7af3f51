"""Right before a start: what stops a plan on a recorded machine, what is worth a word, and silence else."""

from __future__ import annotations

from dataclasses import replace

import pytest
from fake_nvml import FakeNvml
from test_machine import make_vllm
from vllm_plans import plan_of, vllm_plan

from trimtab.cli import machine, preflight
from trimtab.cli.folders import Folders
from trimtab.cli.preflight import check_before_start
from trimtab.core.preflight import DockerFacts, VllmFacts
from trimtab.errors import EnvironmentMissingError
from trimtab.planner.preflight_start import StartFacts, check_start
from trimtab.probes.gpus import probe_gpus

DOCKER = DockerFacts(address="unix:///s", version="27", gives_gpus=True)


def plan(*cards, version="0.25.1", runtime="docker"):
    model = vllm_plan("chat", "org/m", {}, gpus=(cards,), version=version)
    return plan_of("4xrtx4090", replace(model, runtime=runtime))


def judge(name, planned, *, docker=DOCKER, **facts):
    gpus = probe_gpus(FakeNvml(name), environ={})
    return check_start(planned, StartFacts(gpus=gpus, docker=docker, programs={}, **facts))


def test_a_right_machine_is_silent():
    """Where nothing is wrong, a start says nothing about the machine."""
    assert judge("8xh200", plan(0, 1)) == ()


@pytest.mark.parametrize(
    ("planned", "machine_name", "docker", "severities"),
    [
        (plan(2, 3, version="0.19.1"), "4x4090-busy", DOCKER, ["warning"]),
        (plan(0, version="0.19.1"), "4x4090-busy", DOCKER, ["warning", "warning"]),
        (plan(0, version="0.25.1"), "4x4090", DOCKER, ["error"]),
        (plan(0), "mismatch", DOCKER, ["error"]),
        (plan(0), "8xh200", DockerFacts(), ["error"]),
        (plan(0), "8xh200", DockerFacts(address="a", problem="permission denied", fix="f"), ["error"]),
        (plan(0), "8xh200", replace(DOCKER, gives_gpus=False), ["warning"]),
        (plan(), "mismatch", DOCKER, []),
        (plan(0, runtime="process"), "8xh200", None, []),
    ],
    ids=["old minor", "busy card", "old driver", "broken driver", "no Docker", "refused", "no runtime",
         "on CPUs", "process"],
)  # fmt: skip
def test_what_a_plan_meets_is_judged_for_its_cards(planned, machine_name, docker, severities):
    """Only the cards and the version of the plan count: a busy card beside it is nobody's matter."""
    findings = judge(machine_name, planned, docker=docker)

    assert [finding.severity for finding in findings] == severities
    assert all(finding.fix for finding in findings)


def test_our_own_engines_are_no_finding():
    """A change in place does not complain of the engines that it changes."""
    busy = judge("4x4090-busy", plan(0, version="0.19.1"), own_pids=frozenset({4194305}))

    assert not [finding for finding in busy if finding.code == "gpu-memory"]


def test_the_cuda_beside_an_installed_vllm_counts():
    """A vLLM that was built for CUDA 12.9 starts on a driver for 12.9, whatever the default wheels need."""
    planned = plan(0, runtime="process")
    gpus = probe_gpus(FakeNvml("4x4090"), environ={})
    program = VllmFacts(path="/v", version="0.25.1", cuda_version=(12, 9))
    fine = check_start(planned, StartFacts(gpus=gpus, programs={"0.25.1": program}))
    other = replace(program, version="0.19.1")
    stopped = check_start(planned, StartFacts(gpus=gpus, programs={"0.25.1": other}))

    assert fine == ()
    assert [finding.code for finding in stopped] == ["gpu-driver"]


@pytest.fixture
def folders(monkeypatch, tmp_path):
    monkeypatch.delenv("DOCKER_HOST", raising=False)
    monkeypatch.setattr(preflight, "probe_gpus", lambda: probe_gpus(FakeNvml("4x4090-busy"), environ={}))
    monkeypatch.setattr(preflight, "read_docker", lambda: DOCKER)
    return Folders(state=tmp_path / "state", cache=tmp_path / "cache")


def test_a_start_that_cannot_work_is_refused_with_its_fix(folders, monkeypatch, tmp_path):
    """The user reads one sentence, not an engine's traceback minutes later."""
    monkeypatch.setenv("TRIMTAB_VLLM", str(make_vllm(tmp_path / "vllm", "0.25.1", "gpu 13.0.88")))
    notes = []
    with pytest.raises(EnvironmentMissingError, match=r"built for 13\.0") as caught:
        check_before_start(plan(0, runtime="process"), folders, notes.append)

    assert "driver 580" in caught.value.hint
    assert any("holds 21.0 GiB" in note for note in notes)


def test_a_start_that_works_is_told_what_to_know(folders, monkeypatch, tmp_path):
    """A card that somebody else uses is named; the start goes on."""
    monkeypatch.setenv("TRIMTAB_VLLM", str(make_vllm(tmp_path / "vllm", "0.25.1", "gpu 12.4.127")))
    notes = []
    check_before_start(plan(0, runtime="process"), folders, notes.append)

    assert len(notes) == 1
    assert "stop pid 4194305" in notes[0]


def test_where_no_card_is_planned_nothing_is_looked_at(folders, monkeypatch):
    """A start on CPUs pays nothing for GPUs and Docker."""
    monkeypatch.setattr(preflight, "probe_gpus", lambda: pytest.fail("looked"))
    monkeypatch.setattr(machine, "find_vllm", lambda *_, **__: pytest.fail("looked"))

    check_before_start(plan(runtime="process"), folders, pytest.fail)
