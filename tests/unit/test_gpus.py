"""The GPUs of machines we do not have: what a plan may use, who is on them, what is in the way."""

from __future__ import annotations

import copy
import os
import subprocess
import sys
import threading
import time

import psutil
import pynvml
import pytest
from fake_nvml import MACHINES, MIB, FakeNvml

from trimtab.core.gpu_facts import GpuProbe
from trimtab.planner.accelerator_specs import CARDS
from trimtab.probes import gpus as gpus_module
from trimtab.probes.gpu_absence import explain_absence
from trimtab.probes.gpu_visible import choose_visible
from trimtab.probes.gpus import probe_gpus
from trimtab.units import GIB

UUIDS = ("GPU-aaaa1111-0", "GPU-aaaa2222-1", "GPU-bbbb3333-2", "GPU-cccc4444-3")


WSL_VERSION = "Linux version 6.6.87.2-microsoft-standard-WSL2"


def probe(machine, **environ) -> GpuProbe:
    return probe_gpus(FakeNvml(machine), environ=environ)


@pytest.fixture
def wsl(tmp_path) -> GpuProbe:
    return probe_gpus(
        FakeNvml("wsl2"), environ={}, root=lay_out(tmp_path / "root", {"proc/version": WSL_VERSION})
    )


def codes(found: GpuProbe) -> list[str]:
    return [problem.code for problem in found.problems]


@pytest.mark.parametrize(
    ("machine", "count", "total_gib", "has_p2p"),
    [
        ("4x4090", 4, 23.64, False),
        ("8xh200", 8, 139.72, True),
        ("2x3090-nvlink", 2, 23.65, True),
        ("4x3090-bridged", 4, 23.65, False),
        ("2x4090-p2p-driver", 2, 23.55, False),
        ("laptop", 1, 7.78, None),
        ("h100-pcie", 1, 79.20, True),
    ],
)
def test_cards_have_the_memory_that_cuda_will_report(machine, count, total_gib, has_p2p):
    """The plan's total is what vLLM's utilisation will be a share of, not the label's size."""
    found = probe(machine)

    assert len(found.gpus) == count
    assert {round(gpu.total_bytes / GIB, 2) for gpu in found.gpus} == {total_gib}
    assert {gpu.has_p2p for gpu in found.gpus} == {has_p2p}
    assert all(gpu.free_bytes <= gpu.total_bytes for gpu in found.gpus)
    assert found.absence == ""


@pytest.mark.parametrize("machine", ["4x4090", "8xh200", "2x3090-nvlink", "h100-pcie"])
def test_totals_agree_with_the_catalogue(machine):
    """A described card and the same card present give the same plan."""
    for gpu in probe(machine).gpus:
        spec = CARDS[gpu.spec]
        assert abs(gpu.total_bytes - spec.total_bytes) <= spec.total_error_bytes


def test_in_wsl_the_total_is_the_whole_and_less_is_free(wsl):
    """There vLLM says 22.45 of 23.99 GiB where nvidia-smi shows more free: plans count on less."""
    (gpu,) = wsl.gpus

    assert wsl.is_wsl
    assert round(gpu.total_bytes / GIB, 2) == 23.99
    assert gpu.free_bytes == (24564 - 354 - 1900) * MIB - 770 * 10**6


def test_a_card_is_completed_from_the_catalogue():
    """Rates that no driver tells are there for known cards."""
    gpu = probe("4x4090").gpus[2]

    assert (gpu.index, gpu.spec, gpu.compute_capability) == (2, "rtx4090", (8, 9))
    assert gpu.uuid == "GPU-00000002-0000-4000-8000-000000000002"
    assert (gpu.num_sms, gpu.memory_bandwidth_bytes_per_s) == (128, 1008 * 10**9)


def test_another_variant_of_a_card_has_its_own_bandwidth():
    """An H100 PCIe is not planned with the speed of an SXM card; a laptop's card is not the desktop's."""
    pcie, laptop = probe("h100-pcie").gpus[0], probe("laptop").gpus[0]

    assert pcie.memory_bandwidth_bytes_per_s == 1593 * 10**6 * 2 * 5120 // 8
    assert laptop.spec == ""
    assert laptop.memory_bandwidth_bytes_per_s == 256_032_000_000


def test_cards_carry_what_the_driver_says():
    """Power, links and screens are known for doctor and the speed model."""
    server, laptop = probe("8xh200").cards[0], probe("laptop").cards[0]

    assert (server.num_nvlinks, server.power_limit_watts, server.has_display) == (18, 700, False)
    assert (laptop.num_nvlinks, laptop.power_limit_watts, laptop.has_display) == (None, None, True)
    assert server.reserved_bytes == 700 * MIB


def test_versions_of_driver_and_cuda():
    """The newest CUDA that the driver runs is told as two numbers."""
    found = probe("8xh200")

    assert (found.driver_version, found.cuda_version) == ("580.95.05", (13, 0))
    assert probe("old-driver").cuda_version == (11, 4)


def test_holders_are_listed_once_with_name_and_memory():
    """A process that computes and draws is one holder; where memory is hidden it is None, not 0."""
    busy, wsl = probe("4x4090-busy"), probe("wsl2")

    assert [(item.gpu_index, item.name, item.used_bytes) for item in busy.processes] == [
        (0, "VLLM::Worker_TP0", 21500 * MIB),
        (0, "/usr/lib/xorg/Xorg", 220 * MIB),
    ]
    assert [(item.name, item.used_bytes) for item in wsl.processes] == [("", None)]


def test_a_holder_on_this_machine_is_named_as_in_ps():
    """The name is one that a user recognises, cut to a line."""
    child = subprocess.Popen([sys.executable, "-c", "input()" + " " * 200], stdin=subprocess.PIPE)
    try:
        machine = copy.deepcopy(MACHINES["4x4090"])
        machine["cards"][0]["compute"] = [[child.pid, 100, ""]]
        (holder,) = probe(machine).processes
    finally:
        child.communicate(b"\n", timeout=30)

    assert holder.name.startswith("python")
    assert "-c input()" in holder.name
    assert len(holder.name) <= 60


@pytest.mark.parametrize(
    ("machine", "kept", "problems"),
    [
        ("one-lost", [0, 2], ["gpu-lost", "driver-error"]),
        ("mig", [1], ["mig"]),
        ("old-driver", [0, 1], ["reserve-unknown"]),
        ("gb10", [], ["no-own-memory"]),
        ("mismatch", [], ["driver-mismatch"]),
        ("not-loaded", [], ["driver-not-loaded"]),
        ("no-permission", [], ["no-permission"]),
        ("no-cards", [], []),
        ("2x4090-p2p-driver", [0, 1], ["p2p-unproven"]),
    ],
)
def test_what_is_wrong_is_named_with_its_fix_and_hides_no_other_card(machine, kept, problems):
    """One bad card costs that card; the reader learns what to do."""
    found = probe(machine)

    assert [gpu.index for gpu in found.gpus] == kept
    assert codes(found) == problems
    assert all(problem.fix and "\n" not in problem.text for problem in found.problems)
    assert bool(found.absence) == (not kept)


def test_a_card_that_forbids_compute_is_left_out():
    """Compute mode Prohibited would fail the engine's start."""
    machine = copy.deepcopy(MACHINES["4x4090"])
    machine["cards"][1]["compute_mode"] = pynvml.NVML_COMPUTEMODE_PROHIBITED
    found = probe(machine)

    assert [gpu.index for gpu in found.gpus] == [0, 2, 3]
    assert codes(found) == ["prohibited"]


def test_bridged_pairs_are_told_apart():
    """Which two of four cards share a bridge is known, for placing a model on them."""
    ways = {(link.first, link.second): link.access for link in probe("4x3090-bridged").links}

    assert ways == {
        (0, 1): "nvlink", (0, 2): "none", (0, 3): "none", (1, 2): "none", (1, 3): "none", (2, 3): "nvlink",
    }  # fmt: skip


def test_a_machine_without_driver_is_empty_with_a_reason():
    """No GPU is an answer, not an error."""
    found = probe_gpus(FakeNvml("no-library"), environ={})

    assert found.gpus == ()
    assert found.absence


@pytest.mark.parametrize(
    ("text", "kept", "complains"),
    [
        (None, (0, 1, 2, 3), False),
        ("", (), True),
        ("2", (2,), False),
        ("3,1", (3, 1), False),
        (" 0 , 2 ", (0, 2), False),
        ("0,7,1", (0,), True),
        ("-1", (), True),
        ("0,-1,2", (0,), True),
        ("9", (), True),
        ("0,0", (), True),
        ("none", (), True),
        ("GPU-bbbb", (2,), False),
        ("GPU-aaaa", (), True),
        ("GPU-cccc4444-3,GPU-aaaa1", (3, 0), False),
        ("GPU-zzzz,GPU-bbbb", (), True),
        ("MIG-1234", (), True),
        ("1gpu2,2x", (1, 2), False),
        ("99999999999999999999", (), True),
    ],
)
def test_cuda_visible_devices_means_what_it_means_to_cuda(text, kept, complains):
    """Cards hidden from the engine are not planned, by CUDA's own rules."""
    chosen, complaint = choose_visible(text, UUIDS)

    assert chosen == kept
    assert bool(complaint) == complains


def test_hidden_cards_are_counted_and_numbers_stay_the_drivers():
    """A plan names cards as nvidia-smi does."""
    found = probe("8xh200", CUDA_VISIBLE_DEVICES="5,2")

    assert [gpu.index for gpu in found.gpus] == [2, 5]
    assert [(link.first, link.second) for link in found.links] == [(2, 5)]
    assert found.hidden == 6
    assert found.problems == ()


def test_hiding_every_card_says_which_variable_did_it():
    """Nobody looks for a driver fault that is a variable."""
    found = probe("4x4090", CUDA_VISIBLE_DEVICES="")

    assert found.gpus == ()
    assert "CUDA_VISIBLE_DEVICES" in found.absence


def test_numbers_on_a_mixed_machine_are_said_to_be_ambiguous():
    """CUDA numbers the fastest card first unless told otherwise."""
    assert codes(probe("5090-3090", CUDA_VISIBLE_DEVICES="0")) == ["device-order"]
    assert codes(probe("5090-3090", CUDA_VISIBLE_DEVICES="0", CUDA_DEVICE_ORDER="PCI_BUS_ID")) == []
    assert codes(probe("5090-3090", CUDA_VISIBLE_DEVICES="GPU-00000001")) == []
    assert codes(probe("4x4090", CUDA_VISIBLE_DEVICES="0")) == []


def test_a_driver_that_hangs_is_given_up(monkeypatch):
    """A card that fell off the bus does not hold up a plan for ever."""
    monkeypatch.setattr(gpus_module, "_PATIENCE_S", 0.05)
    released = threading.Event()

    class Stuck(FakeNvml):
        def init(self) -> None:
            released.wait(60)

    found = probe_gpus(Stuck("4x4090"), environ={})
    released.set()

    assert found.gpus == ()
    assert codes(found) == ["driver-stuck"]


def test_a_fault_of_ours_is_not_swallowed():
    """A bug shows itself instead of looking like a machine without cards."""

    class Broken(FakeNvml):
        def system_get_driver_version(self) -> str:
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        probe_gpus(Broken("4x4090"), environ={})


@pytest.mark.parametrize("machine", ["4x4090", "one-lost", "no-cards"])
def test_the_driver_is_let_go(machine):
    """Looking leaves nothing open."""
    nvml = FakeNvml(machine)
    probe_gpus(nvml, environ={})

    assert not nvml.is_open


def lay_out(root, files):
    for name, text in files.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(text)
    return root


PCI = "sys/bus/pci/devices/0000:01:00.0"


@pytest.mark.parametrize(
    ("files", "code"),
    [
        ({"proc/driver/nvidia/version": "NVRM"}, "library-hidden"),
        ({"proc/version": WSL_VERSION}, "wsl-driver"),
        ({f"{PCI}/vendor": "0x10de\n", f"{PCI}/class": "0x030000\n"}, "no-driver"),
        ({f"{PCI}/vendor": "0x1002\n", f"{PCI}/class": "0x030000\n"}, "other-vendor"),
        ({f"{PCI}/vendor": "0x10de\n", f"{PCI}/class": "0x040300\n"}, None),
        ({"proc/version": "Linux version 6.1"}, None),
    ],
    ids=["container", "wsl", "no driver", "amd", "only sound", "no card"],
)
def test_why_there_is_no_card(tmp_path, files, code):
    """A missing driver, a blind container and a machine without cards are three answers."""
    reason, problem = explain_absence(lay_out(tmp_path, files))

    assert reason
    assert (problem.code if problem else None) == code


def test_this_machine_is_looked_at_quickly():
    """Looking is a small part of a plan's second; it raises nothing, whatever this machine is."""
    start_s = time.process_time()
    found = probe_gpus()

    assert time.process_time() - start_s < 0.1
    assert bool(found.gpus) != bool(found.absence)
    assert {process.pid for process in found.processes} <= set(psutil.pids()) | {os.getpid()} or found.gpus


@pytest.mark.parametrize("machine", list(MACHINES))
def test_every_recorded_machine_names_its_source(machine):
    """A stand-in that nobody could check would prove nothing."""
    assert MACHINES[machine]["source"]
