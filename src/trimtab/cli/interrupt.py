"""I/O. Ctrl-C during long work: an interrupt that Python dropped is raised again.

What a signal handler raises inside a finaliser or a weak reference's callback is printed and forgotten.
"""

from __future__ import annotations

import signal
import threading
from types import FrameType, TracebackType
from typing import Any, Self

__all__ = ["KeptInterrupt"]


class KeptInterrupt:
    """While inside, Ctrl-C is remembered; ``check`` raises it until it has got through.

    Changes nothing in a thread that is not the main one, or where Ctrl-C does something else already.
    """

    def __init__(self) -> None:
        self._has_come = False
        self._before: Any = None

    def __enter__(self) -> Self:
        is_main = threading.current_thread() is threading.main_thread()
        if is_main and signal.getsignal(signal.SIGINT) is signal.default_int_handler:
            self._before = signal.signal(signal.SIGINT, self._on_signal)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._before is not None:
            signal.signal(signal.SIGINT, self._before)

    def check(self) -> None:
        """KeyboardInterrupt where Ctrl-C was pressed and the work still goes on."""
        if self._has_come:
            raise KeyboardInterrupt

    def _on_signal(self, number: int, frame: FrameType | None) -> None:
        self._has_come = True
        signal.default_int_handler(number, frame)
