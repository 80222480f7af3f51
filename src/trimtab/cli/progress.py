"""I/O. Shows what is going on, on stderr: a spinner on a terminal, one line per phase elsewhere."""

from __future__ import annotations

import sys
import time
from types import TracebackType
from typing import TYPE_CHECKING, Self

from trimtab.units import format_bytes, format_duration_s

if TYPE_CHECKING:
    from rich.status import Status

__all__ = ["Progress"]


class Progress:
    """Phases of one command with their elapsed time; a context manager, safe to leave at any point.

    Phases may take turns, such as the starts of several models: each is announced once, and its time is
    from its first beginning to its last end.
    """

    def __init__(self) -> None:
        self._is_terminal = sys.stderr.isatty()
        self._status: Status | None = None
        self._phase = ""
        # Phase → when it began and when it was last left.
        self._times: dict[str, tuple[float, float]] = {}
        self._percents: dict[str, int] = {}
        self._noted: set[str] = set()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.finish()

    def show_phase(self, text: str) -> None:
        """Begin a phase; the one before it is over."""
        if text == self._phase:
            return
        self._leave()
        now_s = time.monotonic()
        is_new = text not in self._times
        self._phase = text
        self._times.setdefault(text, (now_s, now_s))
        if self._is_terminal:
            self._spin(text)
        elif is_new:
            sys.stderr.write(f"{text} ...\n")
            sys.stderr.flush()

    def show_bytes(self, text: str, done_bytes: int, total_bytes: int | None) -> None:
        """Report a transfer inside the phase ``text``; off a terminal, a line every tenth."""
        self.show_phase(text)
        if total_bytes is None or total_bytes <= 0:
            line = f"{text}: {format_bytes(done_bytes)}"
            percent = -1
        else:
            percent = 100 * done_bytes // total_bytes
            line = f"{text}: {format_bytes(done_bytes)} of {format_bytes(total_bytes)} ({percent} %)"
        if self._status is not None:
            self._status.update(line)
        elif percent // 10 > self._percents.get(text, -1) // 10:
            self._percents[text] = percent
            sys.stderr.write(f"{line}\n")
            sys.stderr.flush()

    def note(self, text: str) -> None:
        """Print a line beside the current phase; what begins with "note: " only once."""
        if text.startswith("note: "):
            if text in self._noted:
                return
            self._noted.add(text)
        if self._status is not None:
            self._status.console.print(text, markup=False, highlight=False)
        else:
            sys.stderr.write(f"{text}\n")
            sys.stderr.flush()

    def finish(self) -> None:
        """End the current phase and print how long each took, if over a second."""
        self._leave()
        for text, (began_s, ended_s) in self._times.items():
            if ended_s - began_s >= 1:
                sys.stderr.write(f"{text}: {format_duration_s(ended_s - began_s)}\n")
        if self._times:
            sys.stderr.flush()
        self._times.clear()
        self._percents.clear()

    def _leave(self) -> None:
        if self._status is not None:
            self._status.stop()
            self._status = None
        if self._phase:
            self._times[self._phase] = (self._times[self._phase][0], time.monotonic())
        self._phase = ""

    def _spin(self, text: str) -> None:
        # Imported here: a command that is done at once need not pay for it.
        from rich.console import Console  # noqa: PLC0415
        from rich.status import Status  # noqa: PLC0415

        self._status = Status(text, console=Console(stderr=True))
        self._status.start()
