"""I/O. What trimtab itself runs out of is no failure of an engine: wait for it to pass and try again."""

from __future__ import annotations

import asyncio
import errno
import logging
from collections.abc import Awaitable, Callable
from typing import Final, TypeVar

__all__ = ["is_own_limit", "outlast_own_limits"]

_LOG = logging.getLogger(__name__)
_Answer = TypeVar("_Answer")
_LIMITS: Final = frozenset({errno.EMFILE, errno.ENFILE})
_AGAIN_S: Final = 0.5


def is_own_limit(error: BaseException) -> bool:
    """Whether this process or machine has no file descriptor left; looks through causes."""
    seen: BaseException | None = error
    while seen is not None:
        if isinstance(seen, OSError) and seen.errno in _LIMITS:
            return True
        seen = seen.__cause__
    return False


async def outlast_own_limits(ask: Callable[[], Awaitable[_Answer]]) -> _Answer:
    """The answer of ``ask``, asked again for as long as it fails for want of descriptors."""
    has_told = False
    while True:
        try:
            return await ask()
        except Exception as error:
            if not is_own_limit(error):
                raise
            if not has_told:
                has_told = True
                _LOG.warning("trimtab is out of file descriptors and waits: %s", error)
        await asyncio.sleep(_AGAIN_S)
