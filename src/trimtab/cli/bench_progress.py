"""I/O. A bar with live numbers on stderr while a load runs; plain lines where stderr is no terminal."""

from __future__ import annotations

import sys
from types import TracebackType
from typing import TYPE_CHECKING, Self

if TYPE_CHECKING:
    from rich.progress import Progress, TaskID

    from trimtab.bench.driver import LoadPlan, Snapshot

__all__ = ["BenchProgress"]

_LINE_EVERY_S = 10.0


class BenchProgress:
    """One bar per load; a context manager."""

    def __init__(self) -> None:
        self._bar: Progress | None = None
        self._task: TaskID | None = None
        self._name = ""
        self._next_line_s = _LINE_EVERY_S
        if sys.stderr.isatty():
            from rich.console import Console  # noqa: PLC0415 - only on a terminal
            from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn  # noqa: PLC0415

            self._bar = Progress(
                TextColumn("{task.description}"), BarColumn(), TextColumn("{task.fields[numbers]}"),
                TimeElapsedColumn(), console=Console(stderr=True),
            )  # fmt: skip

    def __enter__(self) -> Self:
        if self._bar is not None:
            self._bar.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._bar is not None:
            self._bar.stop()

    def say(self, text: str) -> None:
        """One line on what happens before a load."""
        if self._bar is not None:
            self._bar.console.print(text)
        else:
            sys.stderr.write(f"{text}\n")
            sys.stderr.flush()

    def begin(self, name: str, plan: LoadPlan) -> None:
        """A new load; bounded by time it has no end to draw."""
        self._name, self._next_line_s = name, _LINE_EVERY_S
        if self._bar is not None:
            total = plan.num_requests if plan.num_requests < 10_000_000 else None
            self._task = self._bar.add_task(name, total=total, numbers="")

    def show(self, snapshot: Snapshot) -> None:
        """The numbers of the moment."""
        pace = snapshot.output_tokens / snapshot.elapsed_s if snapshot.elapsed_s > 0 else 0.0
        numbers = f"{snapshot.done} done  {snapshot.in_flight} in flight  {pace:,.0f} tokens/s"
        if snapshot.failed:
            numbers += f"  {snapshot.failed} FAILED"
        if self._bar is not None and self._task is not None:
            self._bar.update(self._task, completed=snapshot.done + snapshot.failed, numbers=numbers)
        elif snapshot.elapsed_s >= self._next_line_s:
            self._next_line_s += _LINE_EVERY_S
            sys.stderr.write(f"{self._name}: {numbers}\n")
            sys.stderr.flush()
