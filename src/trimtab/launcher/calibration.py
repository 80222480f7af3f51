"""I/O. The truth loop's ear: when an engine is ready, what its log measured becomes a record."""

from __future__ import annotations

import time
from collections.abc import Callable

from trimtab.core.plan import Plan
from trimtab.core.state import ReplicaSpec
from trimtab.engines.vllm_phases import read_boot
from trimtab.launcher.calibration_store import CalibrationStore
from trimtab.planner.calibration import CalibrationRecord, record_start

__all__ = ["Calibration"]

# The line that only an engine on cards writes; the CPU build says "CPU KV cache size".
_ON_CARDS = "GPU KV cache size:"


class Calibration:
    """Notes starts of one served plan; ``read`` gives the plan of now."""

    def __init__(self, store: CalibrationStore, read: Callable[[], Plan]) -> None:
        self._store = store
        self._read = read

    def note_start(self, spec: ReplicaSpec, log_lines: tuple[str, ...]) -> CalibrationRecord | None:
        """Keep what this start measured; None where it measured nothing that a plan could use."""
        if spec.engine != "vllm" or not any(_ON_CARDS in line for line in log_lines):
            return None
        plan = self._read()
        for model in plan.models:
            for replica in model.replicas:
                if replica.replica_id != spec.replica_id:
                    continue
                gpus = plan.hardware.gpus if plan.hardware is not None else ()
                facts = read_boot(log_lines).facts
                record = record_start(model, replica, gpus, facts, at_s=time.time())
                if record is not None:
                    self._store.add(record)
                return record
        return None
