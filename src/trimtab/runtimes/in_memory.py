"""Pure. A runtime whose replicas exist in memory only: for dry runs, and for tests of everything above it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Protocol

from trimtab.core.state import ExitStatus, ObservedReplica, ReplicaSpec
from trimtab.errors import EngineStartError, TrimtabError

__all__ = ["InMemoryRuntime"]

_SIGTERM = 15
_FIRST_PID = 1_000_000
_FIRST_PORT = 50_000


class _Event(Protocol):
    """What asyncio.Event offers; handed in, so that this module stays pure."""

    def set(self) -> None: ...

    async def wait(self) -> object: ...


@dataclass(slots=True, kw_only=True)
class _Entry:
    observed: ObservedReplica
    ended: _Event
    log_lines: list[str] = field(default_factory=list)


class InMemoryRuntime:
    """Keeps the promises of the Runtime protocol; engines end only when told to by ``end_replica``."""

    def __init__(self, *, make_event: Callable[[], _Event], read_time_s: Callable[[], float]) -> None:
        self._make_event = make_event
        self._read_time_s = read_time_s
        self._entries: dict[str, _Entry] = {}
        self._refusals: list[TrimtabError] = []
        self._num_started = 0

    async def start_replica(self, spec: ReplicaSpec) -> ObservedReplica:
        """Start and return at once; raises the oldest of the refusals that were asked for."""
        known = self._entries.get(spec.replica_id)
        if known is not None and known.observed.is_running:
            raise EngineStartError(f"replica {spec.replica_id} runs already", hint="stop it first")
        if self._refusals:
            raise self._refusals.pop(0)
        port = _FIRST_PORT + self._num_started
        observed = ObservedReplica(
            replica_id=spec.replica_id,
            stack=spec.stack,
            model=spec.model,
            engine=spec.engine,
            config_hash=spec.config_hash,
            pid=_FIRST_PID + self._num_started,
            port=port,
            base_url=f"http://in-memory.invalid:{port}",
            started_at_s=self._read_time_s(),
            log_path="",
            dies_with_supervisor=spec.dies_with_supervisor,
            predicted_bytes=spec.predicted_bytes,
            max_model_len=spec.max_model_len,
        )
        self._num_started += 1
        self._entries[spec.replica_id] = _Entry(observed=observed, ended=self._make_event())
        return observed

    async def list_replicas(self) -> tuple[ObservedReplica, ...]:
        """Everything that runs, or ended without being stopped."""
        return tuple(entry.observed for _, entry in sorted(self._entries.items()))

    async def wait_exit(self, replica_id: str) -> ExitStatus:
        """Return when the replica has ended."""
        entry = self._entries.get(replica_id)
        if entry is None:
            return ExitStatus(code=None)
        await entry.ended.wait()
        return entry.observed.exit_status or ExitStatus(code=None)

    async def stop_replica(self, replica_id: str, *, grace_s: float) -> None:
        """End it as SIGTERM would and forget it. Idempotent."""
        del grace_s
        self.end_replica(replica_id, ExitStatus(code=None, signal=_SIGTERM))
        self._entries.pop(replica_id, None)

    def read_log_tail(self, replica_id: str, *, max_lines: int) -> tuple[str, ...]:
        """The last lines given to ``end_replica``."""
        entry = self._entries.get(replica_id)
        return tuple(entry.log_lines[-max_lines:]) if entry else ()

    def end_replica(self, replica_id: str, status: ExitStatus, *, log_lines: tuple[str, ...] = ()) -> None:
        """Let a running replica end by itself; nothing happens when it does not run."""
        entry = self._entries.get(replica_id)
        if entry is None or not entry.observed.is_running:
            return
        entry.log_lines.extend(log_lines)
        entry.observed = replace(entry.observed, exit_status=status)
        entry.ended.set()

    def refuse_next_start(self, error: TrimtabError) -> None:
        """Let the next start raise ``error``."""
        self._refusals.append(error)
