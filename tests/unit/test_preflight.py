"""Doctor's judgement on recorded machines: what stops `up`, what only slows it, each with its fix."""

from dataclasses import replace

import pytest

from trimtab.core.gpu_facts import GpuProbe
from trimtab.core.hardware import Host
from trimtab.core.preflight import DockerFacts, FolderFacts, MachineFacts, VllmFacts
from trimtab.planner.preflight import check_machine
from trimtab.units import GIB

HEALTHY = MachineFacts(
    host=Host(total_ram_bytes=16 * GIB, available_ram_bytes=12 * GIB, physical_cores=4, logical_cores=8),
    operating_system="Linux",
    python_version="3.11.7",
    state=FolderFacts(path="state", free_bytes=50 * GIB),
    cache=FolderFacts(path="cache", free_bytes=50 * GIB),
    port=8000,
    port_holder="",
    port_is_ours=False,
    engine_version="1",
    engine_error="",
    required_engine_version="1",
    embedded_model_path="model.gguf",
    pip_is_available=True,
    hub_endpoint="https://hub.example",
    hub_is_offline=False,
)


def test_a_healthy_machine_has_nothing_to_fix():
    """Where everything is right, doctor says so and asks for nothing."""
    findings = check_machine(HEALTHY)

    assert {item.severity for item in findings} == {"ok"}
    assert not any(item.fix for item in findings)


@pytest.mark.parametrize(
    ("changes", "code", "severity", "words"),
    [
        pytest.param(
            {"engine_version": "", "engine_error": "no AVX2"}, "engine", "error", "no AVX2", id="engine"
        ),
        pytest.param({"engine_version": "2"}, "engine", "error", "made for 1", id="other-engine"),
        pytest.param({"port_holder": "nginx (pid 7)"}, "port", "error", "nginx (pid 7)", id="port"),
        pytest.param(
            {"state": FolderFacts(path="s", free_bytes=None, refusal="read-only")},
            "state",
            "error",
            "read-only",
            id="state",
        ),
        pytest.param(
            {"cache": FolderFacts(path="c", free_bytes=9)}, "cache", "warning", "9 B free", id="disk"
        ),
        pytest.param(
            {"embedded_model_path": "", "pip_is_available": False},
            "embedded-model",
            "warning",
            "no pip",
            id="pip",
        ),
        pytest.param(
            {"hub_cache": FolderFacts(path="hub", free_bytes=None, refusal="permission denied")},
            "hub-cache",
            "warning",
            "permission denied",
            id="shared-cache",
        ),
        pytest.param(
            {"docker": DockerFacts(address="unix:///s", problem="permission denied", fix="join the group")},
            "docker",
            "warning",
            "permission denied",
            id="docker",
        ),
        pytest.param(
            {"vllm": VllmFacts(problem="TRIMTAB_VLLM is 'x'", fix="name bin/vllm")},
            "vllm",
            "warning",
            "TRIMTAB_VLLM",
            id="vllm",
        ),
        pytest.param(
            {"gpus": GpuProbe(is_wsl=True), "cache": FolderFacts(path="/mnt/c/x", free_bytes=50 * GIB)},
            "wsl-folder",
            "warning",
            "Windows drive",
            id="windows-drive",
        ),
        pytest.param({"leftover_replicas": ("m/0",)}, "leftovers", "warning", "m/0", id="leftovers"),
        pytest.param(
            {"host": replace(HEALTHY.host, available_ram_bytes=GIB)}, "ram", "warning", "1.0 GiB", id="ram"
        ),
    ],
)
def test_each_lack_is_named_with_its_fix(changes, code, severity, words):
    """Whatever is wrong is one finding that says what and what to do; the others stay as they were."""
    findings = check_machine(replace(HEALTHY, **changes))

    (found,) = [item for item in findings if item.severity != "ok"]
    assert (found.code, found.severity) == (code, severity)
    assert words in found.text
    assert found.fix


def test_our_own_port_is_no_lack():
    """A port that trimtab itself serves is fine."""
    findings = check_machine(replace(HEALTHY, port_holder="python (pid 1)", port_is_ours=True))

    assert {item.severity for item in findings} == {"ok"}
