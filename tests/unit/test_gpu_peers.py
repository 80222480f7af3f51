"""Whether cards really reach each other's memory: copies compared, hangs survived, claims corrected."""

from __future__ import annotations

import sys
import time
from dataclasses import replace

import pytest
from fake_cuda import FakeCuda
from fake_nvml import FakeNvml

from trimtab.core.gpu_facts import PeerCopies, PeerCopy
from trimtab.planner.preflight_peers import check_peer_copies, with_peer_copies
from trimtab.probes.gpu_peer_copy import copy_between
from trimtab.probes.gpu_peers import probe_peer_copies
from trimtab.probes.gpus import probe_gpus

SIZE = 4096


def probe(machine):
    return probe_gpus(FakeNvml(machine), environ={})


def outcomes(cuda, count):
    return {(source, target): result[0] for source, target, result in copy_between(cuda, count, SIZE)}


def all_pairs(count, outcome):
    return {(a, b): outcome for a in range(count) for b in range(count) if a != b}


def test_copies_that_arrive_whole_are_right():
    """Every ordered pair is tried, and what arrives is compared byte for byte."""
    assert outcomes(FakeCuda(3), 3) == all_pairs(3, "right")


def flip_last_bit(source, target, data):
    return data[:-1] + bytes([data[-1] ^ 1]) if (source, target) == (1, 0) else data


@pytest.mark.parametrize(
    ("damages", "wrong"),
    [
        (flip_last_bit, {(1, 0)}),
        (lambda source, target, data: bytes(len(data)), set(all_pairs(2, ""))),
    ],
    ids=["one bit one way", "nothing arrives"],
)
def test_copies_that_differ_are_wrong(damages, wrong):
    """Silent corruption, the worst of all faults, is found."""
    found = outcomes(FakeCuda(2, damages=damages), 2)

    assert {pair for pair, outcome in found.items() if outcome == "wrong"} == wrong


def test_pairs_without_peer_access_are_refused_and_not_copied():
    """A driver that offers nothing is believed."""
    assert outcomes(FakeCuda(2, refused={(0, 1)}), 2) == {(0, 1): "refused", (1, 0): "right"}


@pytest.mark.parametrize("call", ["cuMemcpyPeer", "cuCtxSynchronize", "cuCtxEnablePeerAccess"])
def test_a_call_that_fails_is_named(call):
    """A failed copy says at which call, and the other pairs are tried."""
    results = list(copy_between(FakeCuda(2, codes={call: 719}), 2, SIZE))

    assert [result for _, _, result in results] == [("failed", f"{call} failed with 719")] * 2


def script(body):
    return [sys.executable, "-c", f"import sys, time\n{body}", "--"]


def line(source, target, outcome):
    return f'print(\'{{"source": {source}, "target": {target}, "outcome": "{outcome}"}}\', flush=True)\n'


def test_what_the_program_says_is_told_with_the_drivers_numbers():
    """Cards are named as in nvidia-smi, also where some are hidden."""
    gpus = [gpu for gpu in probe("4x4090").gpus if gpu.index in (1, 3)]
    found = probe_peer_copies(gpus, program=script(line(0, 1, "right") + line(1, 0, "wrong")))

    assert found == PeerCopies(
        copies=(
            PeerCopy(source=1, target=3, outcome="right"),
            PeerCopy(source=3, target=1, outcome="wrong"),
        )
    )


def test_a_copy_that_hangs_is_given_up_and_named():
    """A hang, the usual sign of broken peer access, costs seconds and not the doctor."""
    start_s = time.monotonic()
    found = probe_peer_copies(
        probe("4x4090").gpus, program=script(line(0, 1, "right") + "time.sleep(60)"), timeout_s=1.0
    )

    assert [(copy.source, copy.target, copy.outcome) for copy in found.copies] == [
        (0, 1, "right"),
        (0, 2, "hung"),
    ]
    assert time.monotonic() - start_s < 20


@pytest.mark.parametrize(
    ("program", "words"),
    [
        (script("sys.exit(3)"), "ended with 3"),
        (script('print(\'{"error": "cuInit failed with 999"}\'); sys.exit(1)'), "cuInit failed with 999"),
        (["/nowhere/python"], "cannot be run"),
    ],
    ids=["crash", "no cuda", "no program"],
)
def test_a_test_that_cannot_be_made_says_why(program, words):
    """Not knowing is told as such."""
    found = probe_peer_copies(probe("4x4090").gpus, program=program)

    assert found.copies == ()
    assert words in found.error
    assert check_peer_copies(found)[0].severity == "warning"


@pytest.mark.parametrize(
    "noise", ["print('hello')", "print('[]')", line(9, 1, "right"), line(0, 0, "right"), line(0, 1, "great")]
)
def test_noise_is_not_taken_for_an_answer(noise):
    """A library that prints into the output changes no result."""
    assert probe_peer_copies(probe("4x4090").gpus, program=script(noise)).copies == ()


def test_one_card_needs_no_test():
    """Nothing is started where there is nothing to copy between."""
    assert probe_peer_copies(probe("laptop").gpus, program=["/nowhere/python"]) == PeerCopies()


def test_the_real_program_answers_on_this_machine():
    """Where there is no CUDA, the program says so in one line; it never leaves a trace."""
    gpus = [replace(gpu, uuid=f"GPU-none-{gpu.index}") for gpu in probe("2x3090-nvlink").gpus]
    found = probe_peer_copies(gpus)

    assert found.copies == ()
    assert "CUDA cannot be started" in found.error


def copies_of(pairs):
    return PeerCopies(
        copies=tuple(
            PeerCopy(source=source, target=target, outcome=outcome)
            for (source, target), outcome in pairs.items()
        )
    )


@pytest.mark.parametrize(
    ("machine", "pairs", "has_p2p", "keeps_doubt"),
    [
        ("2x4090-p2p-driver", all_pairs(2, "right"), True, False),
        ("2x4090-p2p-driver", all_pairs(2, "wrong"), False, False),
        ("2x4090-p2p-driver", {(0, 1): "hung"}, False, True),
        ("2x3090-nvlink", all_pairs(2, "refused"), False, False),
        ("2x3090-nvlink", {}, True, False),
    ],
    ids=["proved", "corrupt", "hangs", "refused", "not tried"],
)
def test_copies_overrule_the_drivers_claim(machine, pairs, has_p2p, keeps_doubt):
    """A plan uses peer access where it was seen to work, and only there."""
    found = with_peer_copies(probe(machine), copies_of(pairs))

    assert {gpu.has_p2p for gpu in found.gpus} == {has_p2p}
    assert any(problem.code == "p2p-unproven" for problem in found.problems) == keeps_doubt


@pytest.mark.parametrize(
    ("pairs", "severity", "words"),
    [
        (all_pairs(2, "right"), "ok", "2 of 2"),
        (all_pairs(2, "refused"), "ok", "no two cards"),
        ({(0, 1): "right", (1, 0): "wrong"}, "error", "GPU 1 to GPU 0 come out wrong"),
        ({(0, 1): "hung"}, "error", "hang"),
        ({(0, 1): "failed"}, "error", "fail"),
    ],
    ids=["works", "none", "wrong", "hangs", "fails"],
)
def test_the_doctor_says_what_came_of_it(pairs, severity, words):
    """Broken peer access comes with the variable that avoids it."""
    (finding,) = check_peer_copies(copies_of(pairs))

    assert finding.severity == severity
    assert words in finding.text
    assert bool(finding.fix) == (severity != "ok")
    assert severity == "ok" or "NCCL_P2P_DISABLE=1" in finding.fix


def test_nothing_tried_is_nothing_said():
    """A machine with one card has no line on it."""
    assert check_peer_copies(PeerCopies()) == ()
