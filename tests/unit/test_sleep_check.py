"""Whether an engine that says it sleeps has freed its cards: the driver decides, never the engine."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from trimtab.core.gpu_facts import GpuProcess
from trimtab.core.state import SleepLimits
from trimtab.launcher.sleep_check import CardsNow, judge_cards
from trimtab.units import GIB

LIMITS = SleepLimits(host_bytes=20 * GIB, card_bytes=2 * GIB, freed_bytes=15 * GIB)


def look(*held: tuple[int, int, int | None], free: dict[int, int] | None = None) -> CardsNow:
    """``held``: (pid, card, bytes)."""
    processes = tuple(
        GpuProcess(pid=pid, gpu_index=card, used_bytes=size, name="") for pid, card, size in held
    )
    return CardsNow(processes=processes, free_bytes=free or {})


@pytest.mark.parametrize(
    ("now", "fault"),
    [
        pytest.param(look((7, 0, GIB)), "", id="what was planned"),
        pytest.param(look((7, 0, GIB), (8, 0, GIB)), "", id="its children count too"),
        pytest.param(look((7, 0, 2 * GIB), (8, 0, GIB)), "its processes still hold 3.0 GiB", id="too much"),
        pytest.param(look((7, 0, GIB), (9, 0, 20 * GIB)), "", id="others do not count"),
        pytest.param(look((7, 0, None), free={0: 20 * GIB}), "", id="hidden size, free card"),
        pytest.param(look((7, 0, None), free={0: 9 * GIB}), "8.0 GiB more free", id="hidden size"),
        pytest.param(look(free={0: 20 * GIB}), "", id="hidden process, free card"),
        pytest.param(look((9, 0, GIB), free={0: GIB}), "0 B more free", id="hidden process"),
        pytest.param(look(), "nothing tells what it holds of card 0", id="no driver"),
    ],
)
def test_one_card(now, fault):
    """Before it slept the card had 1 GiB free."""
    said = judge_cards(LIMITS, (0,), {7, 8}, before=look(free={0: GIB}), now=now)
    assert fault in said
    assert bool(said) is bool(fault)


def test_every_card_must_be_free_and_one_without_any_cannot_be_told():
    """Tensor parallel ranks sleep together; an engine without cards frees none."""
    now = look((7, 0, GIB), (8, 1, 19 * GIB))
    assert "of card 1" in judge_cards(LIMITS, (0, 1), {7, 8}, before=None, now=now)
    assert judge_cards(LIMITS, (), {7}, before=None, now=now) != ""


@given(
    st.lists(
        st.tuples(st.integers(1, 6), st.integers(0, 2), st.none() | st.integers(0, 40 * GIB)), max_size=8
    ),
    st.dictionaries(st.integers(0, 2), st.integers(0, 40 * GIB)),
    st.dictionaries(st.integers(0, 2), st.integers(0, 40 * GIB)),
    st.sets(st.integers(1, 6)),
)
def test_free_is_only_what_is_seen_to_be(held, free_before, free_now, pids):
    """No reading at all, and none that is too large, ever counts as freed."""
    now = look(*held, free=free_now)
    if judge_cards(LIMITS, (0, 1), pids, before=look(free=free_before), now=now):
        return
    for card in (0, 1):
        own = [size for pid, at, size in held if pid in pids and at == card]
        if own and None not in own:
            assert sum(own) <= LIMITS.card_bytes
        else:
            assert free_now[card] - free_before[card] >= LIMITS.freed_bytes
