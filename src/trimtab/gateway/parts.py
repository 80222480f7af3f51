"""Pure. What every exchange of one gateway shares."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from trimtab.core.state import ServedModel
from trimtab.gateway.metrics import GatewayMetrics
from trimtab.gateway.replicas import ReplicaLoads

if TYPE_CHECKING:
    from trimtab.gateway.admission_gate import ModelGates
    from trimtab.gateway.upstream import Upstream

__all__ = ["GatewayParts"]


@dataclass(frozen=True, slots=True, kw_only=True)
class GatewayParts:
    """``snapshot`` gives the models as of now.

    ``gates`` let requests through to engines, ``loads`` counts what each of several replicas does.
    """

    snapshot: Callable[[], tuple[ServedModel, ...]]
    upstream: Upstream
    metrics: GatewayMetrics
    gates: ModelGates
    loads: ReplicaLoads = field(default_factory=ReplicaLoads)
