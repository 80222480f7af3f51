"""I/O. Counts the descriptors the gateway holds, so that enough are left for the rest of the program."""

from __future__ import annotations

import resource
from collections.abc import Callable
from typing import Final

__all__ = ["DescriptorBudget", "read_descriptor_limit"]

# Left for engines' logs, pipes and probes, and for connections that are only accepted to be refused:
# a quarter where descriptors are few, and never more than this.
_MAX_RESERVED: Final = 2048
# What an unlimited process is taken to have.
_UNLIMITED: Final = 1 << 20


def read_descriptor_limit() -> int:
    """How many descriptors this process may have open."""
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return _UNLIMITED if soft == resource.RLIM_INFINITY else min(soft, _UNLIMITED)


class DescriptorBudget:
    """Connections of both sides against one bound, ``limit``; ``num_reserved`` are kept out of it.

    ``make_room`` closes a connection that can be spared, and says whether there was one.
    """

    def __init__(self, num_descriptors: int) -> None:
        self.num_reserved = min(_MAX_RESERVED, num_descriptors // 4)
        self.limit = num_descriptors - self.num_reserved
        self.num_taken = 0
        self.make_room: Callable[[], bool] = _nothing_to_spare

    def take(self) -> bool:
        """Count one more connection; False where there is no room for it."""
        if self.num_taken >= self.limit and not self.make_room():
            return False
        self.num_taken += 1
        return True

    def give(self) -> None:
        """A connection that was taken is closed."""
        self.num_taken -= 1


def _nothing_to_spare() -> bool:
    return False
