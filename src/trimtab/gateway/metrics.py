"""Pure. What the gateway counts, in a Prometheus registry of its own.

Label values come from fixed sets (served names, known endpoints, status classes), never from what a
client sent, so that the number of series stays bounded.
"""

from __future__ import annotations

from typing import Final

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest

from trimtab.core.state import ReplicaState, ServedModel

__all__ = ["GatewayMetrics"]

_SECONDS: Final = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 120, 300, 600)


class GatewayMetrics:
    """Counters of one gateway; ``model`` is a served name, or "" where no model was found."""

    def __init__(self) -> None:
        self._registry = CollectorRegistry()
        self.requests = Counter(
            "trimtab_requests", "Requests answered.", ("endpoint", "model", "status"), registry=self._registry
        )
        self.in_flight = Gauge("trimtab_requests_in_flight", "Requests inside.", registry=self._registry)
        self.ttft_s = Histogram(
            "trimtab_time_to_first_byte_seconds",
            "Arrival of a streamed request to the first byte of its answer.",
            ("model",),
            buckets=_SECONDS,
            registry=self._registry,
        )
        self.duration_s = Histogram(
            "trimtab_request_duration_seconds",
            "Arrival of a request to the end of its answer.",
            ("endpoint", "model"),
            buckets=_SECONDS,
            registry=self._registry,
        )
        self.disconnects = Counter(
            "trimtab_client_disconnects", "Clients that left early.", ("model",), registry=self._registry
        )
        self.upstream_errors = Counter(
            "trimtab_upstream_errors",
            "Engines that refused, broke off or died inside a request.",
            ("model",),
            registry=self._registry,
        )
        self._ready = Gauge(
            "trimtab_model_ready", "1 while the model answers.", ("model",), registry=self._registry
        )
        self._restarts = Gauge(
            "trimtab_model_restarts", "Restarts since the start.", ("model",), registry=self._registry
        )

    def render(self, served: tuple[ServedModel, ...]) -> bytes:
        """The text exposition of everything, with the models' present state."""
        for model in served:
            self._ready.labels(model.name).set(float(model.state is ReplicaState.READY))
            self._restarts.labels(model.name).set(model.restarts)
        return generate_latest(self._registry)
