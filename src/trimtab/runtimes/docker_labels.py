"""Pure. The labels that make a container ours, and what a container's inspection tells about its replica.

Every fact that a later trimtab needs is in the labels: there is no record beside the container.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from typing import Any

from trimtab.core.state import ExitStatus, ObservedReplica, ReplicaSpec

__all__ = [
    "LIFELINE_LABEL",
    "REPLICA_LABEL",
    "STATE_LABEL",
    "decode_exit_status",
    "decode_observed",
    "is_live",
    "render_labels",
]

REPLICA_LABEL = "trimtab.replica"
# Which state folder a container belongs to: two users of one daemon never touch each other's.
STATE_LABEL = "trimtab.state"
# Which supervisor's life a foreground container is tied to.
LIFELINE_LABEL = "trimtab.lifeline"
_STACK, _MODEL, _ENGINE = "trimtab.stack", "trimtab.model", "trimtab.engine"
_CONFIG, _VERSION, _TIED = "trimtab.config-hash", "trimtab.version", "trimtab.dies-with-supervisor"
_PREDICTED, _LENGTH = "trimtab.predicted-bytes", "trimtab.max-model-len"
# States of a container in which its engine may hold memory.
_LIVE_STATES = frozenset({"running", "paused", "restarting", "stopping"})
# Shells and container engines report death by signal N as exit code 128+N.
_SIGNAL_BASE = 128
_MAX_SIGNAL = 64
_SIGKILL = 9


def render_labels(spec: ReplicaSpec) -> dict[str, str]:
    """What a spec contributes to the labels of its container. Neither argv nor env: they may hold secrets."""
    labels = {
        REPLICA_LABEL: spec.replica_id,
        _STACK: spec.stack,
        _MODEL: spec.model,
        _ENGINE: spec.engine,
        _CONFIG: spec.config_hash,
        _VERSION: spec.trimtab_version,
        _TIED: "true" if spec.dies_with_supervisor else "false",
    }
    if spec.predicted_bytes is not None:
        labels[_PREDICTED] = str(spec.predicted_bytes)
    if spec.max_model_len is not None:
        labels[_LENGTH] = str(spec.max_model_len)
    return labels


def is_live(inspection: Mapping[str, Any]) -> bool:
    """Whether the container runs, as far as its last inspection tells."""
    state = inspection["State"]
    return bool(state.get("Running")) or str(state.get("Status", "")).lower() in _LIVE_STATES


def decode_exit_status(inspection: Mapping[str, Any]) -> ExitStatus:
    """How the container's engine ended; unknown for one that never ran.

    The API has no field for a signal: exit codes above 128 are taken for one, as shells do, and a
    container that the kernel ended for want of memory for a SIGKILL.
    """
    state = inspection["State"]
    if state.get("OOMKilled"):
        return ExitStatus(code=None, signal=_SIGKILL)
    code = state.get("ExitCode")
    if not isinstance(code, int) or str(state.get("Status", "")).lower() in ("created", "configured"):
        return ExitStatus(code=None)
    if _SIGNAL_BASE < code <= _SIGNAL_BASE + _MAX_SIGNAL:
        return ExitStatus(code=None, signal=code - _SIGNAL_BASE)
    return ExitStatus(code=code)


def decode_observed(
    inspection: Mapping[str, Any], *, log_path: str, rss_bytes: int | None = None
) -> ObservedReplica:
    """The replica in an inspection of a container of ours; odd or lost labels give an unadoptable one."""
    labels: Mapping[str, str] = inspection["Config"].get("Labels") or {}
    host, port = _read_address(inspection)
    live = is_live(inspection)
    return ObservedReplica(
        replica_id=labels.get(REPLICA_LABEL, ""),
        stack=labels.get(_STACK, ""),
        model=labels.get(_MODEL) or labels.get(REPLICA_LABEL, ""),
        engine=labels.get(_ENGINE, ""),
        config_hash=labels.get(_CONFIG, ""),
        pid=int(inspection["State"].get("Pid") or 0),
        port=port,
        base_url=f"http://{host}:{port}" if port else "",
        started_at_s=_read_started_s(inspection),
        log_path=log_path,
        dies_with_supervisor=labels.get(_TIED) == "true",
        predicted_bytes=_to_int(labels.get(_PREDICTED)),
        max_model_len=_to_int(labels.get(_LENGTH)),
        rss_bytes=rss_bytes if live else None,
        exit_status=None if live else decode_exit_status(inspection),
    )


def _read_address(inspection: Mapping[str, Any]) -> tuple[str, int]:
    """Where the engine is reached; from what was asked for, which stays when the container has ended."""
    bindings = inspection.get("HostConfig", {}).get("PortBindings") or {}
    for binding in (entry for entries in bindings.values() for entry in entries or ()):
        port = _to_int(binding.get("HostPort"))
        if port:
            host = binding.get("HostIp") or "127.0.0.1"
            return ("127.0.0.1" if host in ("0.0.0.0", "::") else host), port  # noqa: S104 - read, not bound
    return "127.0.0.1", 0


def _read_started_s(inspection: Mapping[str, Any]) -> float:
    """Seconds since the epoch; the API gives RFC 3339 with nanoseconds, and year 1 for never."""
    text = str(inspection["State"].get("StartedAt") or inspection.get("Created") or "")
    whole, _, rest = text.partition(".")
    digits = rest[: len(rest) - len(rest.lstrip("0123456789"))]
    zone = rest[len(digits) :] if rest else ""
    try:
        moment = datetime.fromisoformat(f"{whole}{zone or ('' if whole.endswith('Z') else '+00:00')}")
    except ValueError:
        return 0.0
    fraction = float(f"0.{digits}") if digits else 0.0
    return max(0.0, moment.timestamp() + fraction) if moment.year > 1 else 0.0


def _to_int(text: str | None) -> int | None:
    return int(text) if text and text.isascii() and text.isdigit() else None
