"""Ctrl-C that comes at a bad moment still ends what is going on."""

from __future__ import annotations

import signal

import pytest

from trimtab.cli.interrupt import KeptInterrupt


class Finalised:
    """Ctrl-C is pressed while Python lets go of it."""

    def __del__(self) -> None:
        signal.raise_signal(signal.SIGINT)


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
def test_an_interrupt_that_python_dropped_is_raised_again():
    """The work goes on until it next says how far it is."""
    with KeptInterrupt() as interrupt:
        interrupt.check()
        Finalised()
        with pytest.raises(KeyboardInterrupt):
            interrupt.check()


def test_an_interrupt_comes_at_once_and_afterwards_as_before():
    """Nothing is held back, and nothing of it stays."""
    before = signal.getsignal(signal.SIGINT)
    with pytest.raises(KeyboardInterrupt), KeptInterrupt():
        signal.raise_signal(signal.SIGINT)
    assert signal.getsignal(signal.SIGINT) is before


def test_a_handler_of_somebody_else_is_left_alone():
    """A stack that stops in order at Ctrl-C goes on doing so."""
    heard = []
    before = signal.signal(signal.SIGINT, lambda number, frame: heard.append(number))
    try:
        with KeptInterrupt() as interrupt:
            signal.raise_signal(signal.SIGINT)
            interrupt.check()
    finally:
        signal.signal(signal.SIGINT, before)
    assert heard == [signal.SIGINT]
