"""What a command that takes a while prints where nobody watches a spinner."""

from __future__ import annotations

import pytest

from trimtab.cli import progress as module
from trimtab.cli.progress import Progress


@pytest.fixture
def clock(monkeypatch):
    """A clock that the test sets forward."""

    class Clock:
        now_s = 100.0

        def monotonic(self) -> float:
            return self.now_s

    made = Clock()
    monkeypatch.setattr(module, "time", made)
    return made


def test_phases_that_take_turns_are_announced_once_each(clock, capsys):
    """Two models that start side by side fill no log, and the time is that of the whole start."""
    with Progress() as progress:
        for _ in range(3):
            progress.show_phase("starting one")
            clock.now_s += 1
            progress.show_phase("starting two")
            clock.now_s += 1

    assert capsys.readouterr().err.splitlines() == [
        "starting one ...",
        "starting two ...",
        "starting one: 5.0 s",
        "starting two: 5.0 s",
    ]


def test_a_transfer_that_is_interrupted_goes_on_counting(clock, capsys):
    """Every tenth is printed once, whatever else is shown between."""
    with Progress() as progress:
        for done in (5, 12, 13, 25):
            progress.show_bytes("fetching", done, 100)
            progress.show_phase("starting")

    lines = capsys.readouterr().err.splitlines()
    assert [line for line in lines if "%" in line] == [
        "fetching: 5 B of 100 B (5 %)",
        "fetching: 12 B of 100 B (12 %)",
        "fetching: 25 B of 100 B (25 %)",
    ]


def test_the_same_note_is_printed_once_and_an_event_every_time(capsys):
    """A warning that holds for every model is one warning; a second crash is a second crash."""
    with Progress() as progress:
        for text in ("note: no hub", "note: no hub", "a/0: ended", "a/0: ended"):
            progress.note(text)

    assert capsys.readouterr().err.splitlines() == ["note: no hub", "a/0: ended", "a/0: ended"]
