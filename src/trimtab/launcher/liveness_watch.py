"""I/O. Looks at one engine again and again until it is taken for dead."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable

from trimtab.core.state import ObservedReplica, ReplicaSpec
from trimtab.engines.progress import EngineProgress
from trimtab.launcher.liveness import (
    Health,
    LivenessLimits,
    LivenessState,
    Look,
    choose_pause_s,
    follow,
    judge,
    wants_generation,
)
from trimtab.launcher.supervision import SupervisionPolicy
from trimtab.probes.generation import EngineProbe, ProbeResult
from trimtab.probes.process_activity import probe_activity

__all__ = ["LivenessWatch"]

_LOG = logging.getLogger(__name__)
# What answers within this is asked nothing else; what does not is asked everything at once.
_PROMPT_S = 0.5


class LivenessWatch:
    """Watches an engine that has answered once; ``note_progress`` is told what its counters say."""

    def __init__(
        self,
        spec: ReplicaSpec,
        probe: EngineProbe,
        policy: SupervisionPolicy,
        note_progress: Callable[[ReplicaSpec, EngineProgress], object],
    ) -> None:
        self._spec = spec
        self._probe = probe
        self._policy = policy
        self._note_progress = note_progress
        self._limits = LivenessLimits(
            still_s=policy.still_s,
            idle_still_s=policy.idle_still_s,
            stopped_s=policy.silent_stopped_s,
            quiet_s=policy.silent_quiet_s,
            busy_s=policy.silent_busy_s if spec.gpus else policy.silent_busy_cpu_s,
            max_wrong=policy.max_liveness_failures,
            pause_s=2 * (policy.liveness_interval_s + policy.liveness_timeout_s) + 1,
        )
        self._has_told_own_fault = False
        self._generation: asyncio.Task[ProbeResult] | None = None

    async def until_dead(self, observed: ObservedReplica) -> str:
        """Why the engine, though its process lives, is taken for dead."""
        now_s = time.monotonic()
        state = LivenessState(alive_at_s=now_s, looked_at_s=now_s)
        try:
            while True:
                pause_s = choose_pause_s(
                    state,
                    self._limits,
                    now_s=time.monotonic(),
                    interval_s=self._policy.liveness_interval_s,
                )
                await asyncio.sleep(pause_s)
                look = await self._look(observed, state)
                if look.progress is not None:
                    self._note_progress(self._spec, look.progress)
                state = follow(state, look, self._limits)
                reason = judge(state, look, self._limits)
                if reason:
                    return reason
        finally:
            if self._generation is not None:
                self._generation.cancel()
                await asyncio.gather(self._generation, return_exceptions=True)

    async def _look(self, observed: ObservedReplica, state: LivenessState) -> Look:
        began_s = time.monotonic()
        before = probe_activity(observed.pid) if self._is_silent(state) else None
        if self._is_silent(state) and self._generation is None:
            self._generation = asyncio.ensure_future(self._generate(observed))
            await asyncio.wait({self._generation}, timeout=_PROMPT_S)
        generated = self._take_generation()
        has_generated = generated is not None and (generated.is_ok or generated.is_refusal)
        result, progress = await self._ask(observed, is_urgent=self._is_silent(state) and not has_generated)
        activity = probe_activity(observed.pid) if self._is_silent(state) else None
        is_own_fault = result.is_own_fault or (generated is not None and generated.is_own_fault)
        return Look(
            at_s=time.monotonic(),
            health=Health.UNKNOWN if is_own_fault else _health_of(result),
            detail=result.detail,
            progress=progress,
            has_generated=has_generated,
            cpu_s=activity.cpu_s if activity is not None else None,
            cpu_before=(began_s, before.cpu_s) if before is not None else None,
            stopped_pids=activity.stopped_pids if activity is not None else (),
            num_in_kernel=activity.num_in_kernel if activity is not None else 0,
        )

    def _is_silent(self, state: LivenessState) -> bool:
        return wants_generation(state, self._limits, now_s=time.monotonic())

    async def _ask(
        self, observed: ObservedReplica, *, is_urgent: bool
    ) -> tuple[ProbeResult, EngineProgress | None]:
        """The counters; /health too when they do not come at once, for they say as much and more."""
        timeout_s = self._policy.liveness_timeout_s
        reading = asyncio.ensure_future(self._probe.probe_progress(observed.base_url, timeout_s=timeout_s))
        try:
            if not is_urgent:
                await asyncio.wait({reading}, timeout=_PROMPT_S)
                if reading.done() and reading.result() is not None:
                    return ProbeResult(is_ok=True, detail="answers", elapsed_ms=0.0), reading.result()
            result = await self._probe.probe_liveness(observed.base_url, timeout_s=timeout_s)
            return result, await reading
        finally:
            reading.cancel()

    async def _generate(self, observed: ObservedReplica) -> ProbeResult:
        result = await self._probe.probe_generation(
            observed.base_url,
            model=self._spec.upstream_model or self._spec.model,
            has_embeddings=self._spec.has_embeddings,
            takes_ids=self._spec.takes_ids,
            timeout_s=self._policy.generation_timeout_s,
        )
        if result.is_own_fault and not self._has_told_own_fault:
            self._has_told_own_fault = True
            _LOG.warning("engine %s cannot be asked: %s", self._spec.replica_id, result.detail)
        return result

    def _take_generation(self) -> ProbeResult | None:
        """The result of a generation that has come back since the last look."""
        if self._generation is None or not self._generation.done():
            return None
        result, self._generation = self._generation.result(), None
        return result


def _health_of(result: ProbeResult) -> Health:
    if result.is_ok:
        return Health.OK
    return Health.LATE if result.is_late else Health.WRONG
