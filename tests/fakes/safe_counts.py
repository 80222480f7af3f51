"""How many answers must be counted after a SIGKILL, where a busy machine may have stood still."""

from __future__ import annotations

from collections.abc import Sequence

# Nobody that answers all the time is silent for so long, unless nobody ran.
LONGEST_GAP_S = 0.05


def num_safe(ended_s: Sequence[float], killed_s: float) -> int:
    """How many of the answers ended a second before the kill, where no time counts that nobody ran.

    On a machine with too much to do a process may stand still for a second; ``ended_s`` are the ends, in
    order, of one that gives an answer every few milliseconds.
    """
    ran_s, moments = 0.0, [*ended_s, killed_s]
    for number in range(len(ended_s) - 1, -1, -1):
        ran_s += min(moments[number + 1] - moments[number], LONGEST_GAP_S)
        if ran_s >= 1.0:
            return number + 1
    return 0
