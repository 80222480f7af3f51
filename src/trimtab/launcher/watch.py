"""I/O. One run of one engine, from started to over: waits for the first token, then keeps an eye on it."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from dataclasses import dataclass, field

from trimtab.core.state import ObservedReplica, ReplicaSpec
from trimtab.engines.progress import EngineProgress
from trimtab.launcher.boot_times import BootTimes
from trimtab.launcher.card_gate import CardGate
from trimtab.launcher.card_release import CardReader
from trimtab.launcher.engine_sleep import EngineSleep
from trimtab.launcher.liveness_watch import LivenessWatch
from trimtab.launcher.own_limits import outlast_own_limits
from trimtab.launcher.replan import Replanned
from trimtab.launcher.sleep_check import CardsNow
from trimtab.launcher.supervision import RunEnd, SupervisionPolicy
from trimtab.probes.generation import EngineProbe, ProbeResult
from trimtab.runtimes.base import Runtime

__all__ = ["LOG_TAIL_LINES", "START_LOG_LINES", "EngineKnowledge", "RunWatch", "Surroundings"]


# Enough for vLLM's three tracebacks (worker, engine core, server) with the cause in the first; what is shown
# is cut shorter.
LOG_TAIL_LINES = 400
# A whole start, progress bars included; the runtime bounds the bytes.
START_LOG_LINES = 5000
_POLL_GROWTH = 1.5
# A process that has just died is first silent: so long its end may take to be seen.
_EXPLAINED_WITHIN_S = 0.3
# How often a caller is told that the engine still loads.
_PROGRESS_EVERY_S = 1.0


def _describe_nothing(engine: str, log_tail: tuple[str, ...]) -> str:
    del engine, log_tail
    return ""


def _note_nothing(spec: ReplicaSpec, log_lines: tuple[str, ...]) -> None:
    del spec, log_lines


def _see_no_cards() -> CardsNow:
    return CardsNow(free_bytes={})


def _replan_nothing(spec: ReplicaSpec, end: RunEnd) -> Replanned | None:
    del spec, end
    return None


def _ignore_progress(spec: ReplicaSpec, progress: EngineProgress) -> None:
    del spec, progress


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineKnowledge:
    """What is known of engines beyond their ports.

    ``explain_exit``: (engine, its last log lines) → the likely cause of an unplanned exit, or None.
    ``describe_boot``: the same → the phase of its start, or nothing. ``boot_times``: what starts took.
    ``describe_stall``: the same → where it hangs and what helps, if its log stands where starts hang.
    ``note_start``: (what is ready, what it wrote) → its measurements are kept.
    ``note_progress``: (what runs, its counters now) → whoever sends it requests may follow them.
    ``read_cards``: who holds memory of which card now; ``read_card_state`` what is free of them too,
    ``read_free_ram`` what is free of the host's.
    ``replan``: (what failed, how) → a smaller plan of it to try, or why there is none.
    """

    explain_exit: Callable[[str, tuple[str, ...]], str | None]
    describe_boot: Callable[[str, tuple[str, ...]], str] = _describe_nothing
    describe_stall: Callable[[str, tuple[str, ...]], str] = _describe_nothing
    boot_times: BootTimes = field(default_factory=BootTimes)
    note_start: Callable[[ReplicaSpec, tuple[str, ...]], object] = _note_nothing
    note_progress: Callable[[ReplicaSpec, EngineProgress], object] = _ignore_progress
    read_cards: CardReader = tuple
    read_card_state: Callable[[], CardsNow] = _see_no_cards
    read_free_ram: Callable[[], int] = int
    replan: Callable[[ReplicaSpec, RunEnd], Replanned | None] = _replan_nothing


@dataclass(frozen=True, slots=True, kw_only=True)
class Surroundings:
    """What all keepers of one supervisor share."""

    runtime: Runtime
    probe: EngineProbe
    policy: SupervisionPolicy
    known: EngineKnowledge
    gate: CardGate
    sleep: EngineSleep


class RunWatch:
    """Watches one run; ``on_loading`` hears (what the engine says so far, its phase)."""

    def __init__(
        self,
        spec: ReplicaSpec,
        around: Surroundings,
        *,
        on_loading: Callable[[str, str], None],
        on_ready: Callable[[], None],
    ) -> None:
        self._spec = spec
        self._runtime = around.runtime
        self._probe = around.probe
        self._policy = around.policy
        self._known = around.known
        self._on_loading = on_loading
        self._on_ready = on_ready
        self._began_s = time.monotonic()
        self._ready_at_s: float | None = None
        # The log's end as it was last seen to change, and when.
        self._last_log: tuple[str, ...] = ()
        self._log_changed_s = self._began_s

    async def until_over(self, observed: ObservedReplica) -> RunEnd:
        """Return when the process has ended or is taken for dead; it may then still have to be stopped."""
        replica_id = self._spec.replica_id
        exiting = asyncio.ensure_future(outlast_own_limits(lambda: self._runtime.wait_exit(replica_id)))
        asking = asyncio.ensure_future(self._until_silent(observed))
        try:
            await asyncio.wait({exiting, asking}, return_when=asyncio.FIRST_COMPLETED)
            if not exiting.done():
                await asyncio.wait({exiting}, timeout=_EXPLAINED_WITHIN_S)
            # An end seen at the same moment explains the silence, not the other way round.
            exit_status = exiting.result() if exiting.done() else None
            silence = "" if exiting.done() else asking.result()
        finally:
            exiting.cancel()
            asking.cancel()
            await asyncio.gather(exiting, asking, return_exceptions=True)
        now_s = time.monotonic()
        return RunEnd(
            ran_for_s=now_s - self._began_s,
            ready_for_s=None if self._ready_at_s is None else now_s - self._ready_at_s,
            exit_status=exit_status,
            silence=silence,
            log_tail=self._runtime.read_log_tail(replica_id, max_lines=LOG_TAIL_LINES),
        )

    async def _until_silent(self, observed: ObservedReplica) -> str:
        """Why the engine, though its process lives, is taken for dead."""
        silence = await self._until_ready(observed.base_url)
        if silence:
            return silence
        self._ready_at_s = time.monotonic()
        self._on_ready()
        watch = LivenessWatch(self._spec, self._probe, self._policy, self._known.note_progress)
        return await watch.until_dead(observed)

    async def _until_ready(self, base_url: str) -> str:
        """Empty once a real generation worked, else why waiting for it is over."""
        poll_s = self._policy.poll_first_s
        told_at_s = refused_since_s = None
        while True:
            result = await self._generate(base_url)
            if result.is_ok:
                return ""
            now_s = time.monotonic()
            refused_since_s = (refused_since_s or now_s) if result.is_refusal else None
            if refused_since_s is not None and self._has_refused(result, now_s - refused_since_s):
                return f"refuses to {'embed' if self._spec.has_embeddings else 'generate'}: {result.detail}"
            if now_s - self._began_s >= self._policy.start_timeout_s:
                return f"no token within {self._policy.start_timeout_s:g} s: {result.detail}"
            if told_at_s is None or now_s - told_at_s >= _PROGRESS_EVERY_S:
                told_at_s = now_s
                tail = self._runtime.read_log_tail(self._spec.replica_id, max_lines=LOG_TAIL_LINES)
                stall = self._find_stall(tail, now_s)
                if stall:
                    return stall
                self._on_loading(result.detail, self._known.describe_boot(self._spec.engine, tail))
            await asyncio.sleep(poll_s)
            poll_s = min(poll_s * _POLL_GROWTH, self._policy.poll_cap_s)

    def _has_refused(self, result: ProbeResult, for_s: float) -> bool:
        """Whether its no is the last word: one with a reason is, any other when it lasts."""
        return result.is_final or for_s >= self._policy.refusal_timeout_s

    def _find_stall(self, tail: tuple[str, ...], now_s: float) -> str:
        """Why waiting is over although the start has time left: it hangs where starts are known to hang."""
        if tail[-3:] != self._last_log:
            self._last_log, self._log_changed_s = tail[-3:], now_s
        still_s = now_s - self._log_changed_s
        if still_s < self._policy.stall_timeout_s:
            return ""
        stall = self._known.describe_stall(self._spec.engine, tail)
        return f"for {still_s:.0f} s {stall}" if stall else ""

    async def _generate(self, base_url: str) -> ProbeResult:
        return await self._probe.probe_generation(
            base_url,
            model=self._spec.upstream_model or self._spec.model,
            has_embeddings=self._spec.has_embeddings,
            takes_ids=self._spec.takes_ids,
            timeout_s=self._policy.generation_timeout_s,
        )
