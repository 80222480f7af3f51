"""Pure. What every exchange of one gateway shares."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from trimtab.core.state import ServedModel
from trimtab.gateway.admission import AdmissionSettings
from trimtab.gateway.metrics import GatewayMetrics, Occupancy
from trimtab.gateway.replicas import ReplicaLoads

if TYPE_CHECKING:
    from trimtab.gateway.admission_gate import ModelGates
    from trimtab.gateway.key_ring import KeyRing
    from trimtab.gateway.request_log import RequestLog
    from trimtab.gateway.upstream import Upstream
    from trimtab.gateway.usage_log import UsageLog

__all__ = ["GatewayMore", "GatewayParts"]


def _ignore() -> None:
    pass


@dataclass(frozen=True, slots=True, kw_only=True)
class GatewayMore:
    """What a gateway may be given besides: how requests wait, a file of keys, logs.

    ``admission`` None follows the gateway's settings. ``upstream_keys`` are the keys that endpoints of
    others want, by served name. ``on_pressure`` hears when requests wait for a model that is not loaded, or
    one falls idle that may go.
    """

    admission: AdmissionSettings | None = None
    keys: KeyRing | None = None
    usage: UsageLog | None = None
    request_log: RequestLog | None = None
    upstream_keys: Mapping[str, str] = field(default_factory=dict, repr=False)
    on_pressure: Callable[[], None] = _ignore


@dataclass(frozen=True, slots=True, kw_only=True)
class GatewayParts:
    """``snapshot`` gives the models as of now.

    ``gates`` let requests through to engines, ``loads`` counts what each of several replicas does;
    ``keys``, ``usage`` and ``request_log`` are None where nobody asked for them. ``upstream_keys`` are
    those of endpoints of others, by served name.
    """

    snapshot: Callable[[], tuple[ServedModel, ...]]
    upstream: Upstream
    metrics: GatewayMetrics
    gates: ModelGates
    keys: KeyRing | None = None
    usage: UsageLog | None = None
    request_log: RequestLog | None = None
    upstream_keys: Mapping[str, str] = field(default_factory=dict, repr=False)
    loads: ReplicaLoads = field(default_factory=ReplicaLoads)

    def find_model(self, name: str) -> ServedModel | None:
        """The model of that name as of now."""
        return next((model for model in self.snapshot() if model.name == name), None)

    def occupancy(self) -> tuple[Occupancy, ...]:
        """How every model with a known number of slots, or several replicas, is occupied now."""
        gates = {gate.name: gate.queue for gate in self.gates}
        return tuple(
            Occupancy(
                model=model.name,
                num_running=gates[model.name].num_running if model.name in gates else 0,
                num_waiting=gates[model.name].num_waiting if model.name in gates else 0,
                replicas=tuple(
                    (one.replica_id, self.loads.in_flight_of(one.replica_id)) for one in model.replicas
                )
                if len(model.replicas) > 1
                else (),
            )
            for model in self.snapshot()
            if model.name in gates or len(model.replicas) > 1
        )
