"""I/O. For ``trimtab status --watch``: reads the counters of the gateway and of each engine."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

import aiohttp

from trimtab.cli.live_figures import Counts, LiveReading, read_engine, read_gateway, read_slots
from trimtab.errors import TrimtabError
from trimtab.launcher.control import send_request

__all__ = ["read_live"]

# An engine that is busy with a long prompt answers late: the table goes on without its figures.
_TIMEOUT_S: Final = 1.5
# A metrics page of vLLM is about 100 kB.
_MAX_BYTES: Final = 4 * 1024 * 1024


async def read_live(state_dir: Path, replicas: Iterable[dict[str, Any]]) -> LiveReading:
    """Everything at once; ``replicas`` are those of the status document."""
    asked = [item for item in replicas if item["running"] and item["port"]]
    timeout = aiohttp.ClientTimeout(total=_TIMEOUT_S)
    async with aiohttp.ClientSession(timeout=timeout) as session:
        engines = (_read_engine(session, f"http://127.0.0.1:{one['port']}") for one in asked)
        models, found = await asyncio.gather(_read_models(state_dir), asyncio.gather(*engines))
    pairs = zip(asked, found, strict=True)
    return LiveReading(
        at_s=time.monotonic(),
        models=models,
        replicas={item["replica_id"]: counts for item, counts in pairs if counts is not None},
    )


async def _read_models(state_dir: Path) -> dict[str, Counts]:
    try:
        async with asyncio.timeout(_TIMEOUT_S):
            result = await send_request(state_dir, {"command": "metrics"}, lambda _: None)
    except (TimeoutError, TrimtabError):
        return {}
    return read_gateway(result["metrics"])


async def _read_engine(session: aiohttp.ClientSession, url: str) -> Counts | None:
    try:
        counts = read_engine((await _fetch(session, f"{url}/metrics")).decode(errors="replace"))
        if counts is None or counts.kv_use_ratio is not None:
            return counts
        async with session.get(f"{url}/slots") as answer:
            document = await answer.json() if answer.status == 200 else None
        return replace(counts, kv_use_ratio=read_slots(document))
    except (aiohttp.ClientError, TimeoutError, ValueError):
        return None


async def _fetch(session: aiohttp.ClientSession, url: str) -> bytes:
    async with session.get(url) as answer:
        return await answer.content.read(_MAX_BYTES) if answer.status == 200 else b""
