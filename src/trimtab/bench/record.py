"""Pure. What is kept of one request."""

from __future__ import annotations

from dataclasses import dataclass, field
from itertools import pairwise
from typing import Literal, TypeAlias

__all__ = ["CountSource", "RequestRecord"]

CountSource: TypeAlias = Literal["server", "client"]


@dataclass(slots=True, kw_only=True)
class RequestRecord:
    """One request, in seconds of the run's clock.

    ``scheduled_s`` is when it should have left, ``sent_s`` when its bytes were handed to the socket.
    ``token_times_s`` are the arrivals of pieces that carried text (thought or answer);
    ``first_answer_s`` is the first that carried answer, ``generated_s`` the arrival of the answer's last
    step, which may carry none: an engine told to ignore the end sends tokens without text, and counts
    them. ``output_tokens`` is the server's count where it gave one (``count_source``), else the number
    of pieces with text. ``error`` is a kind (``connect``, ``http_500``, ``timeout`` …), empty on
    success; ``detail`` says more.
    """

    index: int
    model: str = ""
    scheduled_s: float = 0.0
    sent_s: float = 0.0
    ended_s: float = 0.0
    first_answer_s: float | None = None
    generated_s: float | None = None
    token_times_s: list[float] = field(default_factory=list)
    input_tokens: int = 0
    output_tokens: int = 0
    cached_tokens: int = -1
    asked_output_tokens: int = 0
    count_source: CountSource = "client"
    finish_reason: str = ""
    error: str = ""
    detail: str = ""

    @property
    def is_success(self) -> bool:
        """It came whole."""
        return not self.error

    @property
    def ttft_ms(self) -> float | None:
        """Send to first text, thought included."""
        return (self.token_times_s[0] - self.sent_s) * 1e3 if self.token_times_s else None

    @property
    def ttfo_ms(self) -> float | None:
        """Send to first text of the answer."""
        return None if self.first_answer_s is None else (self.first_answer_s - self.sent_s) * 1e3

    @property
    def e2el_ms(self) -> float | None:
        """Send to the answer's last step, with text or without; to the end of the answer where none came."""
        if not self.is_success:
            return None
        last_s = self.token_times_s[-1] if self.token_times_s else self.ended_s
        return ((last_s if self.generated_s is None else self.generated_s) - self.sent_s) * 1e3

    @property
    def tpot_ms(self) -> float | None:
        """(E2E - TTFT) / (output tokens - 1); absent for a single token.

        Where the server counts none, what is counted are pieces with text, and the last of them ends it.
        """
        whole, first = self.e2el_ms, self.ttft_ms
        if whole is None or first is None or self.output_tokens < 2:
            return None
        if self.count_source == "client":
            whole = (self.token_times_s[-1] - self.sent_s) * 1e3
        return (whole - first) / (self.output_tokens - 1)

    @property
    def itls_ms(self) -> list[float]:
        """Gaps between pieces that carried text."""
        times = self.token_times_s
        return [(later - earlier) * 1e3 for earlier, later in pairwise(times)]
