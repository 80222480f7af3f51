"""What doctor says about the GPUs of recorded machines: what stops vLLM, and what to do about it."""

from __future__ import annotations

from dataclasses import replace

import pytest
from fake_nvml import MACHINES, FakeNvml

from trimtab.core.preflight import Finding
from trimtab.errors import StackFileError
from trimtab.planner.preflight_gpus import check_gpus
from trimtab.probes.gpus import probe_gpus


def judge(machine, **options) -> tuple[Finding, ...]:
    return check_gpus(probe_gpus(FakeNvml(machine), environ={}), **options)


def found(findings, code) -> list[Finding]:
    return [finding for finding in findings if finding.code == code]


@pytest.mark.parametrize("machine", list(MACHINES))
@pytest.mark.parametrize("version", ["0.17.0", "0.25.1", "0.33.0"])
def test_every_machine_is_judged_in_plain_sentences(machine, version):
    """Nothing on any machine is a trace; whatever is wrong has a fix, what is right has none."""
    findings = judge(machine, engine_version=version)

    assert findings[0].code == "gpus"
    for finding in findings:
        assert "\n" not in finding.text + finding.fix
        assert bool(finding.fix) == (finding.severity != "ok"), finding


@pytest.mark.parametrize(
    ("machine", "version", "severity", "words"),
    [
        ("4x4090", "0.17.0", "ok", "CUDA 12.9"),
        ("4x4090", "0.19.1", "ok", "12.9"),
        ("4x4090", "0.20.0", "error", "cu129"),
        ("4x4090-busy", "0.17.0", "warning", "NVIDIA_DISABLE_REQUIRE"),
        ("4x4090-busy", "0.25.1", "error", "driver 580"),
        ("8xh200", "0.25.1", "ok", "13.0"),
        ("5090-3090", "0.33.0", "ok", "13.2"),
        ("old-driver", "0.17.0", "error", "driver 525"),
        ("old-driver", "0.25.1", "error", "driver 580"),
    ],
)
def test_the_driver_is_held_against_the_engines_cuda(machine, version, severity, words):
    """A driver that is too old is found before an image of 10 GB is pulled."""
    (finding,) = found(judge(machine, engine_version=version), "gpu-driver")

    assert finding.severity == severity
    assert words in finding.text + finding.fix


@pytest.mark.parametrize(
    ("version", "severity"), [("0.17.0", "warning"), ("0.25.1", "error")], ids=["volta allowed", "too old"]
)
def test_cards_that_are_too_old_are_named(version, severity):
    """A V100 runs old vLLM in float16 and no new one."""
    (finding,) = found(judge("old-driver", engine_version=version), "gpu-capability")

    assert finding.severity == severity
    assert "GPU 0" in finding.text
    assert "V100" in finding.text


def test_who_holds_a_card_is_named():
    """The forgotten server of yesterday is found by pid; a desktop is never to be stopped for it."""
    first, second = found(judge("4x4090-busy"), "gpu-memory")

    assert "VLLM::Worker_TP0 (pid 4194305) holds 21.0 GiB" in first.text
    assert "stop pid 4194305" in first.fix
    assert "4194306" not in first.fix
    assert "cannot be seen" in second.text
    assert "fuser" in second.fix


def test_our_own_engines_are_no_complaint():
    """A running deployment does not look like a fault."""
    assert [
        finding.text[:5] for finding in found(judge("4x4090-busy", own_pids=[4194305]), "gpu-memory")
    ] == ["GPU 1"]


def test_memory_that_is_not_told_is_not_called_unseen():
    """On WSL the holder is known and its share is not."""
    (finding,) = found(judge("wsl2"), "gpu-memory")

    assert "an amount that isn't shown" in finding.text
    assert "cannot be seen" not in finding.text


@pytest.mark.parametrize(
    ("machine", "words"),
    [
        ("8xh200", "by NVLink"),
        ("4x4090", "no peer access"),
        ("4x3090-bridged", "pairs 0-1, 2-3 only"),
        ("2x4090-p2p-driver", "over PCIe"),
        ("old-driver", "isn't known"),
    ],
)
def test_how_cards_reach_each_other_is_said(machine, words):
    """The reader learns why tensor parallelism is slower on some machines."""
    (finding,) = found(judge(machine), "gpu-links")

    assert words in finding.text


@pytest.mark.parametrize(
    ("machine", "severity", "words"),
    [
        ("no-library", "ok", "no NVIDIA card"),
        ("no-cards", "ok", "lists no card"),
        ("mismatch", "error", "different versions"),
        ("not-loaded", "error", "isn't loaded"),
        ("no-permission", "error", "may not ask"),
        ("gb10", "error", "shares the machine's"),
        ("laptop", "ok", "1 x NVIDIA GeForce RTX 4060 Laptop GPU"),
        ("one-lost", "ok", "2 x NVIDIA GeForce RTX 4090"),
    ],
)
def test_a_machine_without_cards_differs_from_one_with_broken_ones(machine, severity, words):
    """No card is fine; a card that cannot be used is not."""
    finding = judge(machine)[0]

    assert finding.severity == severity
    assert words in finding.text


@pytest.mark.parametrize(
    ("machine", "code"),
    [
        ("one-lost", "gpu-lost"),
        ("mig", "gpu-mig"),
        ("2x4090-p2p-driver", "gpu-p2p-unproven"),
        ("wsl2", "gpu-wsl"),
        ("laptop", "gpu-display"),
    ],
)
def test_what_costs_a_card_or_a_margin_is_a_warning(machine, code):
    """The other cards work on; the reader is told."""
    findings = found(judge(machine), code) if machine != "wsl2" else found(judge_wsl(), code)

    assert [finding.severity for finding in findings] == ["warning"]


@pytest.mark.parametrize(
    ("machine", "mebibytes", "warns"),
    [("8xh200", 64, True), ("8xh200", 8192, False), ("h100-pcie", 64, False)],
    ids=["docker's default", "enough", "one card"],
)
def test_little_shared_memory_is_a_warning_where_cards_talk(machine, mebibytes, warns):
    """A container with Docker's 64 MiB fails tensor parallelism late and unclearly."""
    probe = replace(probe_gpus(FakeNvml(machine), environ={}), shm_bytes=mebibytes << 20)

    assert bool(found(check_gpus(probe), "gpu-shm")) == warns


def judge_wsl() -> tuple[Finding, ...]:
    return check_gpus(replace(probe_gpus(FakeNvml("wsl2"), environ={}), is_wsl=True))


def test_without_a_need_for_gpus_nothing_is_an_error():
    """A broken driver does not fail the doctor of who runs on the CPU."""
    assert {finding.severity for finding in judge("mismatch", is_needed=False)} == {"warning"}


def test_a_version_that_is_none_is_refused():
    """A typing error in engine_version is not judged as some version."""
    with pytest.raises(StackFileError):
        judge("4x4090", engine_version="newest")
