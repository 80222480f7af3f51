"""I/O. Lets requests through to engines as their slots allow; the order is ``admission``'s."""

from __future__ import annotations

import asyncio
import math
import time
from collections.abc import Callable, Iterator
from typing import Final

from trimtab.core.state import ReplicaState, ServedModel
from trimtab.engines.progress import EngineProgress
from trimtab.errors import GatewayError
from trimtab.gateway.admission import AdmissionSettings, FairQueue, Waiting
from trimtab.gateway.replicas import TokenNeed
from trimtab.gateway.request import RequestFacts
from trimtab.gateway.routing import gone_error, not_loaded_error
from trimtab.gateway.token_room import TokenEstimate, TokenRoom
from trimtab.gateway.usage import TokenCount
from trimtab.launcher.swap_policy import ModelDemand

__all__ = ["ModelGate", "ModelGates", "Slot"]


def _ignore() -> None:
    pass


# Slots of a model that may be loaded and unloaded, where nobody knows how many it has.
_UNBOUNDED: Final = 2**20
_AWAY: Final = frozenset({ReplicaState.STOPPED, ReplicaState.SLEEPING})


class Slot:
    """One request's place with a model's engines, once it has begun; to be ended then.

    ``num_tokens`` is what it is expected to hold of an engine's cache; the rest is to learn from it.
    """

    __slots__ = ("_facts", "_gate", "_num_bytes", "_since_s", "lane", "num_tokens")

    def __init__(
        self, gate: ModelGate, lane: object, num_tokens: float, facts: RequestFacts, num_bytes: int
    ) -> None:
        self.lane = lane
        self.num_tokens = num_tokens
        self._gate = gate
        self._facts = facts
        self._num_bytes = num_bytes
        self._since_s = 0.0

    def need(self) -> TokenNeed | None:
        """What it needs of one replica; None where that bounds nothing."""
        return self._gate.need_of(self.num_tokens)

    def begin(self) -> Slot:
        """The slot itself, taken without a question."""
        self._gate.queue.begin(self.lane, num_tokens=self.num_tokens)
        return self.hold()

    def try_begin(self, *, is_background: bool) -> bool:
        """Whether it could be taken at once."""
        if not self._gate.queue.try_begin(self.lane, is_background=is_background, num_tokens=self.num_tokens):
            return False
        self.hold()
        return True

    def hold(self) -> Slot:
        """The slot itself, held from now on."""
        self._since_s = time.monotonic()
        return self

    def end(self, tokens: TokenCount, *, is_whole: bool) -> None:
        """The answer is over; it came to its own end where it ``is_whole``."""
        if is_whole and self.num_tokens:
            self._gate.learn_tokens(self._facts, tokens, num_bytes=self._num_bytes)
        self._gate.end(self.lane, held_s=time.monotonic() - self._since_s, num_tokens=self.num_tokens)


class ModelGate:
    """The way to one model's engines. Whoever is through calls ``end`` when its answer is over.

    ``on_pressure`` is called when requests begin to wait for a model that is not loaded, and when the
    last one of a model that may be unloaded is over.
    """

    def __init__(
        self, name: str, settings: AdmissionSettings, *, on_pressure: Callable[[], None] = _ignore
    ) -> None:
        self.name = name
        self.queue = FairQueue(num_slots=1, max_waiting=settings.max_waiting(1))
        self._settings = settings
        self._on_pressure = on_pressure
        self._model: ServedModel | None = None
        self._timer: asyncio.TimerHandle | None = None
        # None where nobody knows how many tokens an engine has room for.
        self._room: TokenRoom | None = None
        self._estimate = TokenEstimate()
        # When the latest answer ended; nobody has been here so far.
        self._used_s = -math.inf

    def follow(self, model: ServedModel) -> None:
        """Take the number of slots from the model as it is now; cheap where it is the same."""
        if model is self._model or (model.concurrency is None and not model.on_demand):
            return
        self._model = model
        if model.on_demand and model.state is ReplicaState.FAILED:
            self.refuse_waiting(lambda: not_loaded_error(model))
        num_ready = sum(replica.state is ReplicaState.READY for replica in model.replicas)
        is_closed = model.on_demand and (model.state is not ReplicaState.READY or not model.admits)
        slots = (model.concurrency or _UNBOUNDED) * max(1, num_ready)
        self.queue.num_slots = 0 if is_closed else slots
        self.queue.max_waiting = self._settings.max_waiting(self.queue.num_slots)
        self.queue.num_engines = max(1, num_ready)
        self._follow_room(model)
        self._pump()

    def _follow_room(self, model: ServedModel) -> None:
        capacity = model.kv_cache_tokens if self._settings.is_on else None
        if capacity is None:
            self._room = None
        elif self._room is None or self._room.capacity != capacity:
            self._room = TokenRoom(capacity)
        if self._room is not None:
            self._room.forget_others(frozenset(one.replica_id for one in model.replicas))
        self._limit_tokens()

    def _limit_tokens(self) -> None:
        room = self._room
        self.queue.token_limit = math.inf if room is None else room.limit(self.queue.num_engines)

    def expect(self, lane: object, facts: RequestFacts, num_bytes: int, *, has_answer: bool) -> Slot:
        """A slot for a request, not taken yet, with what it will hold; 0 where that bounds nothing."""
        num_tokens = 0.0
        if self._room is not None and self._model is not None:
            limit = self._model.max_model_len
            num_tokens = self._estimate.guess(facts, num_bytes=num_bytes, limit=limit, has_answer=has_answer)
        return Slot(self, lane, num_tokens, facts, num_bytes)

    def need_of(self, num_tokens: float) -> TokenNeed | None:
        """The same for so many tokens."""
        if self._room is None or self._model is None or self._model.concurrency is None:
            return None
        room_tokens = self._room.limit(1)
        return TokenNeed(num_tokens=num_tokens, room_tokens=room_tokens, num_slots=self._model.concurrency)

    def learn_tokens(self, facts: RequestFacts, tokens: TokenCount, *, num_bytes: int) -> None:
        """A request has got its whole answer."""
        limit = None if self._model is None else self._model.max_model_len
        self._estimate.learn(facts, tokens, num_bytes=num_bytes, limit=limit)

    def note_engine(self, replica_id: str, progress: EngineProgress) -> None:
        """Take in what one of the engines tells about its cache."""
        if self._room is None:
            return
        self._room.note(replica_id, progress, self.queue, now_s=time.monotonic())
        self._limit_tokens()
        if self.queue.num_waiting:
            self._pump()

    async def wait(
        self, slot: Slot, *, is_background: bool, max_wait_s: float | None = None, priority: int = 0
    ) -> None:
        """Until the slot is taken; GatewayError: 429 no room to wait, 503 waited too long.

        ``max_wait_s`` is the request's own bound, where it is shorter than everybody's.
        """
        longest_s = min(self._settings.max_wait_s, max_wait_s or math.inf)
        self._check_reachable(longest_s)
        reply: asyncio.Future[bool] = asyncio.get_running_loop().create_future()
        now_s = time.monotonic()
        waiting = Waiting(
            slot.lane, is_background=is_background, since_s=now_s, deadline_s=now_s + longest_s,
            num_tokens=slot.num_tokens, priority=priority, reply=reply,
        )  # fmt: skip
        out = self.queue.add(waiting)
        if out is not None and not out.reply.done():
            out.reply.set_result(False)
        self._pump()
        if not self.queue.num_slots:
            self._on_pressure()
        try:
            async with asyncio.timeout(longest_s):
                is_through = await reply
        except BaseException as error:
            self._withdraw(waiting)
            if isinstance(error, TimeoutError):
                raise self._too_long(longest_s) from None
            raise
        if not is_through:
            raise self._full()
        slot.hold()

    def end(self, lane: object, *, held_s: float, num_tokens: float = 0.0) -> None:
        """An answer is over."""
        self.queue.end(lane, held_s=held_s, num_tokens=num_tokens)
        self._used_s = time.monotonic()
        if self.queue.num_waiting:
            self._pump()
        if not self.queue.num_running:
            self._feel_pressure()

    def demand(self) -> ModelDemand:
        """What there is for the model now."""
        people = [one for one in self.queue.waiting() if not one.is_background]
        return ModelDemand(
            model=self.name,
            num_running=self.queue.num_running,
            num_waiting=len(people),
            num_background=self.queue.num_waiting - len(people),
            waiting_since_s=min((one.since_s for one in people), default=math.inf),
            deadline_s=min((one.deadline_s for one in people), default=math.inf),
            used_s=self._used_s,
        )

    def refuse_waiting(self, make_error: Callable[[], GatewayError]) -> None:
        """Nobody waits any longer: each gets an error of its own."""
        for waiting in self.queue.clear():
            if not waiting.reply.done():
                waiting.reply.set_exception(make_error())

    def _feel_pressure(self) -> None:
        if self._model is not None and self._model.on_demand:
            self._on_pressure()

    def _check_reachable(self, longest_s: float) -> None:
        """GatewayError where the model cannot even be loaded in the time that the request has."""
        model = self._model
        if model is None or model.load_s is None or model.state not in _AWAY:
            return
        if model.load_s > longest_s:
            raise GatewayError(
                f"the model {self.name!r} is not loaded: that took {model.load_s:.0f} s before, and this"
                f" request waits {longest_s:g} s at most",
                status=503,
                code="model_not_loaded",
                param="model",
                hint="try again later, or let it wait longer",
                retry_after_s=math.ceil(model.load_s),
            )

    def _withdraw(self, waiting: Waiting) -> None:
        """Its owner does not wait any longer: give back the slot if it had just got one."""
        reply = waiting.reply
        if not reply.done() or reply.cancelled():
            self.queue.remove(waiting)
            if not self.queue.num_waiting:
                self._feel_pressure()
        elif reply.exception() is None and reply.result():
            self.end(waiting.lane, held_s=0.0, num_tokens=waiting.num_tokens)

    def _pump(self) -> None:
        """Let through whoever may go on now, and look again when a held one may."""
        now_s = time.monotonic()
        while (waiting := self.queue.next(now_s)) is not None:
            if waiting.reply.done():  # its owner was cancelled, and has not run since
                self.queue.end(waiting.lane, held_s=0.0, num_tokens=waiting.num_tokens)
            else:
                waiting.reply.set_result(True)
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        held_for_s = self.queue.held_for_s(now_s)
        if held_for_s < math.inf:
            self._timer = asyncio.get_running_loop().call_later(held_for_s, self._pump)

    def _full(self) -> GatewayError:
        return GatewayError(
            f"{self.queue.max_waiting:,} requests wait for the model {self.name!r} already",
            status=429,
            code="queue_full",
            hint="try again later",
            retry_after_s=self.queue.retry_after_s(),
        )

    def _too_long(self, longest_s: float) -> GatewayError:
        is_away = not self.queue.num_slots
        what = "not loaded" if is_away else "busy"
        return GatewayError(
            f"the model {self.name!r} was {what} for all of {longest_s:g} s",
            status=503,
            code="queue_timeout",
            hint="try again later",
            retry_after_s=max(self.queue.retry_after_s(), self._load_s() if is_away else 0),
        )

    def _load_s(self) -> int:
        """Whole seconds of a load of the model, as far as is known."""
        load_s = None if self._model is None else self._model.load_s
        return 0 if load_s is None else math.ceil(load_s)


class ModelGates:
    """The gates of all models by their served names; ``on_pressure`` is each one's."""

    def __init__(self, settings: AdmissionSettings, *, on_pressure: Callable[[], None] = _ignore) -> None:
        self.settings = settings
        self._on_pressure = on_pressure
        self._gates: dict[str, ModelGate] = {}

    def __iter__(self) -> Iterator[ModelGate]:
        return iter(self._gates.values())

    def find(self, model: ServedModel) -> ModelGate | None:
        """The model's gate, None where nothing bounds what its engines may be sent."""
        if not model.on_demand and (model.concurrency is None or not self.settings.is_on):
            return None
        gate = self._gates.get(model.name)
        if gate is None:
            gate = self._gates[model.name] = ModelGate(
                model.name, self.settings, on_pressure=self._on_pressure
            )
        gate.follow(model)
        return gate

    def note_engine(self, model: str, replica_id: str, progress: EngineProgress) -> None:
        """One of a model's engines tells about its cache."""
        gate = self._gates.get(model)
        if gate is not None:
            gate.note_engine(replica_id, progress)

    def follow(self, served: tuple[ServedModel, ...]) -> None:
        """Take over what has become of the models that somebody has asked for."""
        for model in served:
            gate = self._gates.get(model.name)
            if gate is not None:
                gate.follow(model)

    def forget_others(self, served: tuple[ServedModel, ...]) -> None:
        """Refuse what waits for models that are served no longer."""
        names = {model.name for model in served}
        for name in [name for name in self._gates if name not in names]:
            self._gates.pop(name).refuse_waiting(lambda name=name: gone_error(name))  # type: ignore[misc]
