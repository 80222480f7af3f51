"""I/O. One engine with dummy weights: started under a supervisor, watched, and gone when this is left."""

from __future__ import annotations

import asyncio
import sys
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from trimtab.cli.folders import Folders
from trimtab.cli.try_prepare import TryJob
from trimtab.core.state import ReplicaSpec
from trimtab.engines import describe_boot, describe_stall, explain_exit
from trimtab.engines.vllm_phases import BootFacts, read_boot
from trimtab.errors import EngineStartError
from trimtab.launcher.calibration import Calibration
from trimtab.launcher.calibration_store import CalibrationStore
from trimtab.launcher.state_folder import StateFolder
from trimtab.launcher.supervise import EngineKnowledge, SupervisionPolicy, Supervisor, SupervisorEvent
from trimtab.probes.generation import EngineProbe
from trimtab.probes.gpus import probe_gpus
from trimtab.runtimes.routed import RoutedRuntime

__all__ = ["StartedEngine", "run_engine", "try_state"]

_GRACE_S: Final = 5.0


@dataclass(slots=True, kw_only=True)
class StartedEngine:
    """An engine that answers; ``death`` is why it no longer does, empty while it lives."""

    base_url: str
    start_s: float
    facts: BootFacts
    is_calibrated: bool
    log_path: Path
    death: str = ""
    died: asyncio.Event = field(default_factory=asyncio.Event)


def try_state(folders: Folders) -> Path:
    """Tries keep their records and logs apart: no `up` or `down` ever takes one for a part of its stack."""
    return folders.state / "try"


@asynccontextmanager
async def run_engine(
    job: TryJob, folders: Folders, *, most_s: float, show: Callable[[SupervisorEvent], None]
) -> AsyncIterator[StartedEngine]:
    """Start the engine and yield it when it has answered; nothing of it is left afterwards.

    EngineStartError when it does not answer within ``most_s``, with the cause and where its log is.
    """
    ear = _Ear(job, folders)
    state = try_state(folders)
    runtime = RoutedRuntime(state, python=sys.executable)
    log_path = StateFolder(state).log_path_of(job.model.name)
    began_s = time.monotonic()

    def hear(event: SupervisorEvent) -> None:
        ear.hear(event)
        show(event)

    async with EngineProbe() as probe:
        supervisor = Supervisor(
            (job.spec,),
            runtime,
            probe,
            known=ear.knowledge(),
            on_event=hear,
            policy=SupervisionPolicy(start_timeout_s=most_s),
        )
        try:
            try:
                await supervisor.start()
                await supervisor.wait_ready(most_s)
            except EngineStartError as error:
                is_late = time.monotonic() - began_s >= most_s
                more = "a longer --budget may help; " if is_late else ""
                raise EngineStartError(
                    error.message,
                    hint=f"{more}all that it wrote: {log_path}",
                    log_tail=error.log_tail,
                    command=error.command,
                ) from error
            ear.engine = StartedEngine(
                base_url=supervisor.snapshot()[0].base_url or "",
                start_s=time.monotonic() - began_s,
                facts=ear.facts,
                is_calibrated=ear.is_calibrated,
                log_path=log_path,
            )
            yield ear.engine
        finally:
            await supervisor.stop(_GRACE_S)


class _Ear:
    """Takes the start's log, and notes the engine's end."""

    def __init__(self, job: TryJob, folders: Folders) -> None:
        # The plan as it was made: its key is what later plans of this model look for.
        self._calibration = Calibration(CalibrationStore(folders.state), lambda: job.plan)
        self.facts = BootFacts()
        self.is_calibrated = False
        self.engine: StartedEngine | None = None

    def knowledge(self) -> EngineKnowledge:
        """What the supervisor asks; a start that fails is a finding, so that no smaller plan is tried."""
        return EngineKnowledge(
            explain_exit=explain_exit,
            describe_boot=describe_boot,
            describe_stall=describe_stall,
            read_cards=lambda: probe_gpus().processes,
            note_start=self._note_start,
        )

    def _note_start(self, spec: ReplicaSpec, log_lines: tuple[str, ...]) -> None:
        self.facts = read_boot(log_lines).facts
        self.is_calibrated = self._calibration.note_start(spec, log_lines) is not None

    def hear(self, event: SupervisorEvent) -> None:
        """An end that nobody asked for ends the measuring too."""
        if event.kind == "exited" and self.engine is not None:
            self.engine.death = event.text
            self.engine.died.set()
