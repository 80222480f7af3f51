"""I/O. For ``trimtab status``: what engines on cards measured at their start, beside what was predicted."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

from trimtab.core.state import ObservedReplica
from trimtab.launcher.calibration_store import CalibrationStore
from trimtab.units import format_bytes

__all__ = ["read_card_memory", "render_card_memory"]

_PARTS = (
    ("weights", "weights_bytes"),
    ("activations", "activation_bytes"),
    ("graphs", "cuda_graph_bytes"),
    ("KV cache", "kv_cache_bytes"),
)
# The clocks of a container's start and of its log may differ by this much.
_CLOCKS_S = 5.0


def read_card_memory(state_dir: Path, replica: ObservedReplica) -> dict[str, Any] | None:
    """Predicted and measured bytes of one card since the replica's start; None where nothing was measured."""
    records = CalibrationStore(state_dir).read()
    own = [
        record
        for record in records
        if record.replica_id == replica.replica_id and record.at_s >= replica.started_at_s - _CLOCKS_S
    ]
    if not own:
        return None
    return {"predicted": asdict(own[-1].predicted), "measured": asdict(own[-1].measured)}


def render_card_memory(replica_id: str, memory: Mapping[str, Any] | None) -> tuple[str, ...]:
    """One line per replica that measured something."""
    if memory is None:
        return ()
    said, found = memory["predicted"], memory["measured"]
    parts = [
        f"{name} {format_bytes(found[key])} (predicted {format_bytes(said[key])})"
        for name, key in _PARTS
        if found[key] or said[key]
    ]
    tokens = found["kv_cache_tokens"]
    if tokens:
        expected = f" (predicted {said['kv_cache_tokens']:,})" if said["kv_cache_tokens"] else ""
        parts.append(f"{tokens:,} tokens{expected}")
    return (f"{replica_id} per card, as its start measured: {', '.join(parts)}",)
