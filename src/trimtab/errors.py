"""Pure. Every exception trimtab raises on purpose, and the exit code each one means.

    TrimtabError                    exit
    ├─ StackFileError               2    the file or a flag is wrong: key path, value, legal values
    ├─ NoPlanError                  3    nothing fits: nearest miss and counts per reason
    │   ├─ DoesNotFitError               more memory would help
    │   └─ SloUnreachableError           more cards may not help
    ├─ MissingFactError             3    a fact a plan needs is unknown: which, where it was sought
    ├─ EnvironmentMissingError      4    the machine lacks something: port, hub, disk, permission, engine
    ├─ EngineStartError             5    the engine died or never answered: command, exit, last log lines
    └─ GatewayError                 -    becomes an HTTP status with an OpenAI-shaped body

Anything else that escapes is a bug and keeps its traceback. A message is one lower-case sentence
(where, what value, which limit); ``hint`` is one line saying what would work.
"""

from __future__ import annotations

from typing import ClassVar

__all__ = [
    "DoesNotFitError",
    "EngineStartError",
    "EnvironmentMissingError",
    "GatewayError",
    "MissingFactError",
    "NoPlanError",
    "SloUnreachableError",
    "StackFileError",
    "TrimtabError",
]


class TrimtabError(Exception):
    """Root of every expected outcome; the CLI prints it as one line plus its hint.

    ``message`` says where, what and against which limit; ``hint`` says what would work, or is
    empty when there is nothing useful to say.
    """

    exit_code: ClassVar[int] = 1

    def __init__(self, message: str, *, hint: str = "") -> None:
        super().__init__(message)
        self.message = message
        self.hint = hint


class StackFileError(TrimtabError):
    """The stack file, a flag or another input is wrong; nothing was started."""

    exit_code = 2


class NoPlanError(TrimtabError):
    """No legal plan meets the wish on this machine."""

    exit_code = 3


class DoesNotFitError(NoPlanError):
    """The memory is too small; a smaller wish or more memory would help."""


class SloUnreachableError(NoPlanError):
    """The latency wish cannot be met; more cards may not help."""


class MissingFactError(TrimtabError):
    """A plan needs a fact that is unknown: which one, where it was sought, how to supply it."""

    exit_code = 3


class EnvironmentMissingError(TrimtabError):
    """The machine lacks what the plan needs: a free port, a reachable hub, disk, permission."""

    exit_code = 4


class EngineStartError(TrimtabError):
    """An engine died at start or never answered.

    ``log_tail`` holds the last lines the engine wrote, oldest first. ``command`` is what was run: the
    operator reads it (``told``), clients of the gateway read ``message`` alone.
    """

    exit_code = 5

    def __init__(
        self, message: str, *, hint: str = "", log_tail: tuple[str, ...] = (), command: str = ""
    ) -> None:
        super().__init__(message, hint=hint)
        self.log_tail = log_tail
        self.command = command

    @property
    def told(self) -> str:
        """The message with the command that failed."""
        return f"{self.message}; command: {self.command}" if self.command else self.message


class GatewayError(TrimtabError):
    """A request the gateway refuses itself; ``status`` is the HTTP status to answer with.

    ``param`` names the offending request field and ``code`` is a stable machine-readable word,
    both as in OpenAI error bodies. ``retry_after_s`` says when to come again, None where that is no use.
    """

    def __init__(
        self,
        message: str,
        *,
        status: int,
        code: str,
        param: str | None = None,
        hint: str = "",
        retry_after_s: int | None = None,
    ) -> None:
        super().__init__(message, hint=hint)
        self.status = status
        self.code = code
        self.param = param
        self.retry_after_s = retry_after_s
