"""I/O. Asks a running gateway how its models are."""

from __future__ import annotations

from typing import Any, Final

import aiohttp

__all__ = ["read_health"]

_TIMEOUT_S: Final = 5.0


async def read_health(url: str) -> dict[str, Any]:
    """The document of GET /health at the root ``url``; empty when nothing answers there."""
    timeout = aiohttp.ClientTimeout(total=_TIMEOUT_S)
    try:
        async with aiohttp.ClientSession(timeout=timeout) as session, session.get(f"{url}/health") as answer:
            document: dict[str, Any] = await answer.json()
            return document
    except (aiohttp.ClientError, TimeoutError, ValueError):
        return {}
