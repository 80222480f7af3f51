"""Pure. What the gateway counts, in a Prometheus registry of its own.

Label values come from fixed sets (served names, known endpoints, status classes), never from what a
client sent, so that the number of series stays bounded.
"""

from __future__ import annotations

from typing import Final

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest

from trimtab.core.state import ReplicaState, ServedModel

__all__ = ["GatewayMetrics", "ModelMetrics"]

_SECONDS: Final = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 120, 300, 600)


class ModelMetrics:
    """The series of one model, looked up once: finding a label's series costs more than counting in it."""

    def __init__(self, metrics: GatewayMetrics, model: str) -> None:
        self._metrics = metrics
        self._model = model
        self._answered: dict[tuple[str, int], tuple[Counter, Histogram]] = {}
        self.ttft_s = metrics.ttft_s.labels(model)
        self.response_bytes = metrics.response_bytes.labels(model)
        self.upstream_errors = metrics.upstream_errors.labels(model)

    def count(self, endpoint: str, status: int, duration_s: float) -> None:
        """One request is over; status 499 stands for a client that left first."""
        series = self._answered.get((endpoint, status))
        if series is None:
            series = self._answered[endpoint, status] = (
                self._metrics.requests.labels(endpoint, self._model, str(status)),
                self._metrics.duration_s.labels(endpoint, self._model),
            )
        series[0].inc()
        series[1].observe(duration_s)
        if status == 499:
            self._metrics.disconnects.labels(self._model).inc()


class GatewayMetrics:
    """Counters of one gateway; ``model`` is a served name, or "" where no model was found."""

    def __init__(self) -> None:
        self._registry = CollectorRegistry()
        self._of_model: dict[str, ModelMetrics] = {}
        self.requests = self._counter("requests", "Requests answered.", "endpoint", "model", "status")
        self.disconnects = self._counter("client_disconnects", "Clients that left early.", "model")
        self.response_bytes = self._counter("response_bytes", "Bytes of engines' answers passed on.", "model")
        self.upstream_errors = self._counter(
            "upstream_errors", "Engines that refused, broke off or died inside a request.", "model"
        )
        self.ttft_s = self._histogram(
            "time_to_first_byte_seconds", "Arrival of a streamed request to its answer's first byte.", "model"
        )
        self.duration_s = self._histogram(
            "request_duration_seconds", "Arrival of a request to the end of its answer.", "endpoint", "model"
        )
        self._in_flight = self._gauge("requests_in_flight", "Requests inside.")
        self._ready = self._gauge("model_ready", "1 while the model answers.", "model")
        self._restarts = self._gauge("model_restarts", "Restarts since the start.", "model")

    def _counter(self, name: str, text: str, *labels: str) -> Counter:
        return Counter(f"trimtab_{name}", text, labels, registry=self._registry)

    def _histogram(self, name: str, text: str, *labels: str) -> Histogram:
        return Histogram(f"trimtab_{name}", text, labels, buckets=_SECONDS, registry=self._registry)

    def _gauge(self, name: str, text: str, *labels: str) -> Gauge:
        return Gauge(f"trimtab_{name}", text, labels, registry=self._registry)

    def of_model(self, model: str) -> ModelMetrics:
        """The series of a served model."""
        series = self._of_model.get(model)
        if series is None:
            series = self._of_model[model] = ModelMetrics(self, model)
        return series

    def render(self, served: tuple[ServedModel, ...], *, num_in_flight: int) -> bytes:
        """The text exposition of everything, with the models' present state."""
        self._in_flight.set(num_in_flight)
        for model in served:
            self._ready.labels(model.name).set(float(model.state is ReplicaState.READY))
            self._restarts.labels(model.name).set(model.restarts)
        return generate_latest(self._registry)
