"""I/O. Lets requests through to engines as their slots allow; the order is ``admission``'s."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator

from trimtab.core.state import ReplicaState, ServedModel
from trimtab.errors import GatewayError
from trimtab.gateway.admission import AdmissionSettings, FairQueue, Waiting

__all__ = ["ModelGate", "ModelGates"]


class ModelGate:
    """The way to one model's engines. Whoever is through calls ``end`` when its answer is over."""

    def __init__(self, name: str, settings: AdmissionSettings) -> None:
        self.name = name
        self.queue = FairQueue(num_slots=1, max_waiting=settings.max_waiting(1))
        self._settings = settings
        self._model: ServedModel | None = None
        self._timer: asyncio.TimerHandle | None = None

    def follow(self, model: ServedModel) -> None:
        """Take the number of slots from the model as it is now; cheap where it is the same."""
        if model is self._model or model.concurrency is None:
            return
        self._model = model
        num_ready = sum(replica.state is ReplicaState.READY for replica in model.replicas)
        self.queue.num_slots = model.concurrency * max(1, num_ready)
        self.queue.max_waiting = self._settings.max_waiting(self.queue.num_slots)
        self._pump()

    async def wait(self, lane: object, *, is_background: bool) -> None:
        """Until the request is through; GatewayError: 429 no room to wait, 503 waited too long."""
        reply: asyncio.Future[bool] = asyncio.get_running_loop().create_future()
        waiting = Waiting(lane, is_background=is_background, since_s=time.monotonic(), reply=reply)
        out = self.queue.add(waiting)
        if out is not None and not out.reply.done():
            out.reply.set_result(False)
        self._pump()
        try:
            async with asyncio.timeout(self._settings.max_wait_s):
                is_through = await reply
        except BaseException as error:
            self._withdraw(waiting)
            if isinstance(error, TimeoutError):
                raise self._too_long() from None
            raise
        if not is_through:
            raise self._full()

    def end(self, lane: object, *, held_s: float) -> None:
        """An answer is over."""
        self.queue.end(lane, held_s=held_s)
        if self.queue.num_waiting:
            self._pump()

    def _withdraw(self, waiting: Waiting) -> None:
        """Its owner does not wait any longer: give back the slot if it had just got one."""
        reply = waiting.reply
        if reply.done() and not reply.cancelled():
            if reply.result():
                self.end(waiting.lane, held_s=0.0)
        else:
            self.queue.remove(waiting)

    def _pump(self) -> None:
        """Let through whoever may go on now, and look again when a held one may."""
        now_s = time.monotonic()
        while (waiting := self.queue.next(now_s)) is not None:
            if waiting.reply.done():  # its owner was cancelled, and has not run since
                self.queue.end(waiting.lane, held_s=0.0)
            else:
                waiting.reply.set_result(True)
        held_until_s = self.queue.held_until_s()
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if now_s < held_until_s < float("inf"):
            self._timer = asyncio.get_running_loop().call_later(held_until_s - now_s, self._pump)

    def _full(self) -> GatewayError:
        return GatewayError(
            f"{self.queue.max_waiting:,} requests wait for the model {self.name!r} already",
            status=429,
            code="queue_full",
            hint="try again later",
            retry_after_s=self.queue.retry_after_s(),
        )

    def _too_long(self) -> GatewayError:
        return GatewayError(
            f"the model {self.name!r} was busy for all of {self._settings.max_wait_s:g} s",
            status=503,
            code="queue_timeout",
            hint="try again later",
            retry_after_s=self.queue.retry_after_s(),
        )


class ModelGates:
    """The gates of all models by their served names."""

    def __init__(self, settings: AdmissionSettings) -> None:
        self.settings = settings
        self._gates: dict[str, ModelGate] = {}

    def __iter__(self) -> Iterator[ModelGate]:
        return iter(self._gates.values())

    def find(self, model: ServedModel) -> ModelGate | None:
        """The model's gate, None where nothing bounds what its engines may be sent."""
        if model.concurrency is None or not self.settings.is_on:
            return None
        gate = self._gates.get(model.name)
        if gate is None:
            gate = self._gates[model.name] = ModelGate(model.name, self.settings)
        gate.follow(model)
        return gate
