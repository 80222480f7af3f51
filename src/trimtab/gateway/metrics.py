"""Pure. What the gateway counts, in a Prometheus registry of its own.

Label values come from fixed sets (served names, known endpoints, status classes), never from what a
client sent, so that the number of series stays bounded.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final, Protocol

from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily
from prometheus_client.metrics_core import Metric
from prometheus_client.registry import Collector

from trimtab.core.state import ReplicaState, ServedModel
from trimtab.gateway.usage import TokenCount

__all__ = ["Count", "GatewayMetrics", "ModelMetrics", "Occupancy", "Spread", "Stream"]

_SECONDS: Final = (
    0.001,
    0.0025,
    0.005,
    0.01,
    0.025,
    0.05,
    0.1,
    0.25,
    0.5,
    1,
    2.5,
    5,
    10,
    30,
    60,
    120,
    300,
    600,
)


class Count:
    """A number that only grows. The library's own counter takes a lock, and ten times as long."""

    __slots__ = ("value",)

    def __init__(self) -> None:
        self.value = 0

    def inc(self, by: int = 1) -> None:
        """Count ``by`` more."""
        self.value += by


class Spread:
    """How values of seconds are spread over ``_SECONDS``."""

    __slots__ = ("counts", "total_s")

    def __init__(self) -> None:
        self.counts = [0] * (len(_SECONDS) + 1)
        self.total_s = 0.0

    def observe(self, value_s: float, times: int = 1) -> None:
        """Count a value, so many times."""
        self.counts[bisect_left(_SECONDS, value_s)] += times
        self.total_s += value_s * times

    def buckets(self) -> list[tuple[str, float]]:
        """(upper bound, values up to it), as the exposition wants them."""
        so_far, buckets = 0, []
        for bound, count in zip([*map(str, map(float, _SECONDS)), "+Inf"], self.counts, strict=True):
            so_far += count
            buckets.append((bound, float(so_far)))
        return buckets


class _Series:
    """The counts of one metric by their labels' values; ``labels`` finds one, or begins it at 0."""

    def __init__(self, name: str, text: str, *labels: str) -> None:
        self.name, self.text, self.label_names = f"trimtab_{name}", text, labels
        self.counts: dict[tuple[str, ...], Count] = {}

    def labels(self, *values: str) -> Count:
        count = self.counts.get(values)
        if count is None:
            count = self.counts[values] = Count()
        return count

    def collect(self) -> Metric:
        family = CounterMetricFamily(self.name, self.text, labels=self.label_names)
        for values, count in self.counts.items():
            family.add_metric(values, count.value)
        return family


class _Spreads:
    """The same for spreads."""

    def __init__(self, name: str, text: str, *labels: str) -> None:
        self.name, self.text, self.label_names = f"trimtab_{name}", text, labels
        self.spreads: dict[tuple[str, ...], Spread] = {}

    def labels(self, *values: str) -> Spread:
        spread = self.spreads.get(values)
        if spread is None:
            spread = self.spreads[values] = Spread()
        return spread

    def collect(self) -> Metric:
        family = HistogramMetricFamily(self.name, self.text, labels=self.label_names)
        for values, spread in self.spreads.items():
            family.add_metric(values, buckets=spread.buckets(), sum_value=spread.total_s)
        return family


class Stream(Protocol):
    """A streamed answer on its way."""

    @property
    def num_events(self) -> int:
        """Events so far."""


class ModelMetrics:
    """The series of one model, looked up once: finding a label's series costs more than counting in it."""

    def __init__(self, metrics: GatewayMetrics, model: str) -> None:
        self._metrics = metrics
        self._model = model
        self._answered: dict[tuple[str, int], tuple[Count, Spread]] = {}
        self.ttft_s = metrics.ttft_s.labels(model)
        self.itl_s = metrics.itl_s.labels(model)
        self.tpot_s = metrics.tpot_s.labels(model)
        self.queue_s = metrics.queue_s.labels(model)
        self.prompt_tokens = metrics.prompt_tokens.labels(model)
        self.generation_tokens = metrics.generation_tokens.labels(model)
        self.response_bytes = metrics.response_bytes.labels(model)
        self.upstream_errors = metrics.upstream_errors.labels(model)
        # Streams that have not ended: what they have brought so far is in no count of tokens yet.
        self.streams: set[Stream] = set()

    def count(self, endpoint: str, status: int, duration_s: float) -> None:
        """One request is over; status 499 stands for a client that left first."""
        series = self._answered.get((endpoint, status))
        if series is None:
            series = self._answered[endpoint, status] = (
                self._metrics.requests.labels(endpoint, self._model, str(status)),
                self._metrics.duration_s.labels(endpoint, self._model),
            )
        series[0].value += 1
        series[1].observe(duration_s)
        if status == 499:
            self._metrics.disconnects.labels(self._model).inc()

    def reject(self, reason: str) -> None:
        """One request was refused by the gateway itself; ``reason`` is the code of its error."""
        self._metrics.rejections.labels(self._model, reason).inc()

    def count_tokens(self, tokens: TokenCount) -> None:
        """What one answer took."""
        self.prompt_tokens.value += tokens.prompt
        self.generation_tokens.value += tokens.completion


@dataclass(frozen=True, slots=True, kw_only=True)
class Occupancy:
    """How a model is occupied at one moment; ``replicas`` are (replica, requests in flight)."""

    model: str
    num_running: int
    num_waiting: int
    replicas: tuple[tuple[str, int], ...] = ()


class GatewayMetrics(Collector):
    """Counters of one gateway; ``model`` is a served name, or "" where no model was found.

    The counts are plain numbers of one thread; the library only writes them out.
    """

    def __init__(self) -> None:
        self._of_model: dict[str, ModelMetrics] = {}
        self._served: tuple[ServedModel, ...] = ()
        self._num_in_flight = 0
        self._occupied: tuple[Occupancy, ...] = ()
        self.requests = _Series("requests", "Requests answered.", "endpoint", "model", "status")
        self.disconnects = _Series("client_disconnects", "Clients that left early.", "model")
        self.response_bytes = _Series("response_bytes", "Bytes of engines' answers passed on.", "model")
        self.upstream_errors = _Series(
            "upstream_errors", "Engines that refused, broke off or died inside a request.", "model"
        )
        self.ttft_s = _Spreads(
            "time_to_first_token_seconds",
            "Arrival of a streamed request to its first event.",
            "model",
        )
        self.itl_s = _Spreads(
            "inter_token_latency_seconds", "Gap between two events of a streamed answer.", "model"
        )
        self.tpot_s = _Spreads(
            "time_per_output_token_seconds", "Mean gap between the events of a streamed answer.", "model"
        )
        self.queue_s = _Spreads(
            "request_queue_time_seconds", "Wait in the gateway of a request that had to wait.", "model"
        )
        self.prompt_tokens = _Series("prompt_tokens", "Tokens of prompts, as engines tell.", "model")
        self.generation_tokens = _Series(
            "generation_tokens", "Tokens of answers; one per event where the engine does not tell.", "model"
        )
        self.rejections = _Series("rejections", "Requests that the gateway refused.", "model", "reason")
        self.duration_s = _Spreads(
            "request_duration_seconds", "Arrival of a request to the end of its answer.", "endpoint", "model"
        )
        self._registry = CollectorRegistry()
        self._registry.register(self)

    def of_model(self, model: str) -> ModelMetrics:
        """The series of a served model."""
        series = self._of_model.get(model)
        if series is None:
            series = self._of_model[model] = ModelMetrics(self, model)
        return series

    def collect(self) -> Iterator[Metric]:
        """Everything counted, and the models' present state."""
        for series in (
            self.requests, self.disconnects, self.response_bytes, self.upstream_errors,
            self.prompt_tokens, self.generation_tokens, self.rejections,
        ):  # fmt: skip
            yield series.collect()
        for spreads in (self.ttft_s, self.itl_s, self.tpot_s, self.queue_s, self.duration_s):
            yield spreads.collect()
        yield from self._collect_occupancy()
        yield GaugeMetricFamily("trimtab_requests_in_flight", "Requests inside.", value=self._num_in_flight)
        ready = GaugeMetricFamily("trimtab_model_ready", "1 while the model answers.", labels=["model"])
        restarts = GaugeMetricFamily("trimtab_model_restarts", "Restarts since the start.", labels=["model"])
        replica_ready = _gauge("replica_ready", "1 while the replica answers.", "model", "replica")
        loads = CounterMetricFamily(
            "trimtab_model_loads", "Loads on demand since the start.", labels=["model"]
        )
        wakes = CounterMetricFamily(
            "trimtab_model_wakes", "Of the loads, those that woke a sleeping engine.", labels=["model"]
        )
        asleep = _gauge("model_asleep", "1 while the model's engine sleeps.", "model")
        load_s = _gauge("model_load_seconds", "What a load of the model took before.", "model")
        for model in self._served:
            if model.on_demand:
                loads.add_metric([model.name], model.num_loads)
                wakes.add_metric([model.name], model.num_wakes)
                asleep.add_metric([model.name], float(model.state is ReplicaState.SLEEPING))
            if model.load_s is not None:
                load_s.add_metric([model.name], model.load_s)
            ready.add_metric([model.name], float(model.state is ReplicaState.READY))
            restarts.add_metric([model.name], model.restarts)
            for one in model.replicas:
                replica_ready.add_metric([model.name, one.replica_id], float(one.state is ReplicaState.READY))
        yield from (ready, restarts, replica_ready, loads, wakes, asleep, load_s)

    def _collect_occupancy(self) -> Iterator[Metric]:
        running = _gauge("requests_running", "Requests that a model's engines work on.", "model")
        waiting = _gauge("requests_waiting", "Requests that wait in the gateway for a model.", "model")
        in_flight = _gauge("replica_requests_in_flight", "Requests at a replica.", "model", "replica")
        for one in self._occupied:
            running.add_metric([one.model], one.num_running)
            waiting.add_metric([one.model], one.num_waiting)
            for replica, count in one.replicas:
                in_flight.add_metric([one.model, replica], count)
        streaming = _gauge(
            "stream_events_in_flight", "Events so far of streamed answers that have not ended.", "model"
        )
        for name, series in self._of_model.items():
            streaming.add_metric([name], sum(stream.num_events for stream in series.streams))
        yield from (running, waiting, in_flight, streaming)

    def render(
        self,
        served: tuple[ServedModel, ...],
        *,
        num_in_flight: int,
        occupied: tuple[Occupancy, ...] = (),
    ) -> bytes:
        """The text exposition of everything, with the models' present state."""
        self._served = served
        self._occupied = occupied
        self._num_in_flight = num_in_flight
        return generate_latest(self._registry)


def _gauge(name: str, text: str, *labels: str) -> GaugeMetricFamily:
    return GaugeMetricFamily(f"trimtab_{name}", text, labels=labels)
