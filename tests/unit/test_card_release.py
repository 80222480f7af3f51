"""After a stop the cards are free of the engine, or its user reads which process holds them."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from trimtab.core.gpu_facts import GpuProcess
from trimtab.errors import EnvironmentMissingError
from trimtab.launcher.card_release import wait_cards_released
from trimtab.probes.process_activity import FamilyMember, is_another_now, probe_activity, probe_family

GONE = FamilyMember(pid=4_000_000, began_s=1.0)


class Cards:
    """A driver that lists these processes, one fewer each time it is asked where it lets go."""

    def __init__(self, *pids: int, lets_go: bool) -> None:
        self.pids, self.lets_go, self.num_asked = list(pids), lets_go, 0

    def read(self) -> tuple[GpuProcess, ...]:
        self.num_asked += 1
        found = tuple(
            GpuProcess(gpu_index=1, pid=pid, name="VLLM::Worker", used_bytes=20 << 30) for pid in self.pids
        )
        if self.lets_go:
            self.pids = self.pids[1:]
        return found


async def test_a_stop_waits_until_the_driver_lets_go():
    """The next start on this card finds it empty."""
    cards = Cards(GONE.pid, GONE.pid, lets_go=True)
    await wait_cards_released(frozenset({GONE}), cards.read, replica_id="m/0", timeout_s=10)
    assert cards.num_asked == 3


async def test_a_process_that_stays_in_the_driver_is_named():
    """Which process, how much, on which card."""
    cards = Cards(GONE.pid, lets_go=False)
    with pytest.raises(EnvironmentMissingError, match=r"4000000 still holds 20\.0 GiB of card 1"):
        await wait_cards_released(frozenset({GONE}), cards.read, replica_id="m/0", timeout_s=0.3)


async def test_other_programs_on_the_card_are_nobody_s_business():
    """A stop never waits for, or blames, what trimtab did not start."""
    other = Cards(12345, lets_go=False)
    await wait_cards_released(frozenset({GONE}), other.read, replica_id="m/0", timeout_s=0.3)
    reused = FamilyMember(pid=os.getpid(), began_s=1.0)
    mine = Cards(os.getpid(), lets_go=False)
    await wait_cards_released(frozenset({reused}), mine.read, replica_id="m/0", timeout_s=0.3)


async def test_an_engine_without_cards_asks_no_driver():
    """On a CPU nothing is asked for."""
    cards = Cards(lets_go=False)
    await wait_cards_released(frozenset(), cards.read, replica_id="m/0")
    assert cards.num_asked == 0


def test_a_family_is_seen_with_its_children_and_its_use_of_the_cpu():
    """What an engine's processes do is read from the system, for the whole tree."""
    code = "import subprocess, sys; subprocess.run([sys.executable, '-c', 'input()'])"
    with subprocess.Popen([sys.executable, "-c", code], stdin=subprocess.PIPE) as parent:
        while len(family := probe_family(parent.pid)) < 2:
            assert parent.poll() is None
        assert parent.pid in {member.pid for member in family}
        assert not any(is_another_now(member) for member in family)
        activity = probe_activity(parent.pid)
        assert activity.cpu_s >= 0
        assert activity.stopped_pids == ()
        parent.communicate(b"\n", timeout=20)
    assert probe_family(parent.pid) == frozenset()
    assert probe_activity(parent.pid) is None
