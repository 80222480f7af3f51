"""I/O. Puts a vLLM engine to sleep and wakes it, and believes neither without looking.

The endpoints are vLLM's development ones (VLLM_SERVER_DEV_MODE=1) on the engine's own port, which listens on
loopback: POST /sleep?level=1, POST /wake_up, GET /is_sleeping (0.17 to 0.33 alike).
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final, Literal, TypeAlias

import aiohttp

from trimtab.core.state import ObservedReplica, ReplicaSpec, SleepLimits
from trimtab.launcher.sleep_check import CardsNow, judge_cards
from trimtab.launcher.supervision import SupervisionPolicy
from trimtab.probes.generation import EngineProbe
from trimtab.probes.process_activity import probe_family
from trimtab.units import format_bytes

__all__ = ["EngineSleep", "SleepOutcome", "Slept"]

# asleep · not_now: it may sleep another time · never: what it does cannot be relied on.
Slept: TypeAlias = Literal["asleep", "not_now", "never"]

_QUIET_POLL_S: Final = 0.1
_CARD_POLL_S: Final = 0.25
# RAM that stays free beside what the engine takes: what is measured now may be wanted a moment later.
_SPARE_RAM_BYTES: Final = 1 << 30


@dataclass(frozen=True, slots=True, kw_only=True)
class SleepOutcome:
    """How falling asleep ended; ``reason`` says why it is not asleep."""

    slept: Slept
    reason: str = ""


class EngineSleep:
    """``read_cards`` looks at the cards and ``read_free_ram`` at the host; both may block."""

    def __init__(
        self,
        probe: EngineProbe,
        policy: SupervisionPolicy,
        *,
        read_cards: Callable[[], CardsNow],
        read_free_ram: Callable[[], int],
    ) -> None:
        self._probe = probe
        self._policy = policy
        self._read_cards = read_cards
        self._read_free_ram = read_free_ram

    async def put_to_sleep(
        self, spec: ReplicaSpec, observed: ObservedReplica, limits: SleepLimits, *, has_slept: bool
    ) -> SleepOutcome:
        """Let it sleep, and return when its cards are seen to be free of it, or why they are not.

        ``has_slept``: its RAM is taken already, asleep or awake.
        """
        free = await asyncio.to_thread(self._read_free_ram)
        if not has_slept and free < limits.host_bytes + _SPARE_RAM_BYTES:
            needed = format_bytes(limits.host_bytes)
            return SleepOutcome(
                slept="not_now", reason=f"{needed} of RAM are needed, {format_bytes(free)} are free"
            )
        if not await self._is_quiet(observed.base_url):
            return SleepOutcome(slept="not_now", reason="it still computes")
        before = await asyncio.to_thread(self._read_cards)
        fault = await self._send(
            "POST", f"{observed.base_url}/sleep?level=1", timeout_s=self._patience_s(limits)
        )
        fault = fault or await self.check_asleep(spec, observed, limits, before=before)
        return SleepOutcome(slept="never", reason=fault) if fault else SleepOutcome(slept="asleep")

    async def check_asleep(
        self,
        spec: ReplicaSpec,
        observed: ObservedReplica,
        limits: SleepLimits,
        *,
        before: CardsNow | None = None,
    ) -> str:
        """Empty when it says that it sleeps and its cards are free of it; waits a bounded time for that."""
        deadline_s = time.monotonic() + self._policy.sleep_check_s
        if await self.is_asleep(observed.base_url) is not True:
            return "it does not say that it sleeps"
        while True:
            pids = {member.pid for member in probe_family(observed.pid)} or {observed.pid}
            now = await asyncio.to_thread(self._read_cards)
            fault = judge_cards(limits, spec.gpus, pids, before=before, now=now)
            if not fault or time.monotonic() >= deadline_s:
                return fault
            await asyncio.sleep(_CARD_POLL_S)

    async def wake(self, spec: ReplicaSpec, observed: ObservedReplica, limits: SleepLimits) -> str:
        """Empty when it is awake and has answered, else why not; bounded."""
        patience_s = self._patience_s(limits)
        fault = await self._send("POST", f"{observed.base_url}/wake_up", timeout_s=patience_s)
        if fault:
            return fault
        if await self.is_asleep(observed.base_url) is not False:
            return "it still says that it sleeps"
        result = await self._probe.probe_generation(
            observed.base_url,
            model=spec.upstream_model or spec.model,
            has_embeddings=spec.has_embeddings,
            takes_ids=spec.takes_ids,
            timeout_s=patience_s,
        )
        return "" if result.is_ok else f"awake it does not answer: {result.detail}"

    async def is_asleep(self, base_url: str) -> bool | None:
        """What it says itself; None where it does not."""
        answer = await self._ask("GET", f"{base_url}/is_sleeping", timeout_s=self._policy.sleep_ask_s)
        told = answer.get("is_sleeping") if isinstance(answer, dict) else None
        return told if isinstance(told, bool) else None

    def _patience_s(self, limits: SleepLimits) -> float:
        """How long to wait for what moves that many bytes."""
        return self._policy.sleep_patience_s + limits.host_bytes / self._policy.sleep_bytes_per_s

    async def _is_quiet(self, base_url: str) -> bool:
        """Whether it works on nothing; a question of our own may have to be dropped by it first."""
        deadline_s = time.monotonic() + self._policy.sleep_quiet_s
        while True:
            progress = await self._probe.probe_progress(base_url, timeout_s=self._policy.sleep_ask_s)
            if progress is None or progress.num_running + progress.num_waiting == 0:
                return True
            if time.monotonic() >= deadline_s:
                return False
            await asyncio.sleep(_QUIET_POLL_S)

    async def _send(self, method: str, url: str, *, timeout_s: float) -> str:
        answer = await self._ask(method, url, timeout_s=timeout_s)
        return answer if isinstance(answer, str) else ""

    async def _ask(self, method: str, url: str, *, timeout_s: float) -> dict[str, Any] | str:
        """Its answer, an empty one where that is no JSON object; or in words why there is none."""
        path = "/" + url.rpartition("/")[2].partition("?")[0]
        timeout = aiohttp.ClientTimeout(total=timeout_s)
        try:
            async with (
                aiohttp.ClientSession(trust_env=False) as session,
                session.request(method, url, timeout=timeout) as response,
            ):
                if response.status != 200:
                    return f"{path} answers HTTP {response.status}"
                document = await _read_document(response)
                return document if isinstance(document, dict) else {}
        except TimeoutError:
            return f"{path} does not answer within {timeout_s:.0f} s"
        except (aiohttp.ClientError, OSError) as error:
            return f"{path} breaks the connection ({type(error).__name__})"


async def _read_document(response: aiohttp.ClientResponse) -> Any:
    try:
        return await response.json(content_type=None)
    except (ValueError, RecursionError):
        return None
