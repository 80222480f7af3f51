"""I/O. Runs one load: users in a closed loop or arrivals in an open one, and watches the client itself."""

from __future__ import annotations

import asyncio
import contextlib
import random
import time
from collections.abc import Callable
from dataclasses import dataclass, field

from trimtab.bench.arrivals import ArrivalKind, iterate_arrivals_s
from trimtab.bench.connection import Connection, Target, now_s
from trimtab.bench.corpus import Corpus, Ruler
from trimtab.bench.record import RequestRecord
from trimtab.bench.self_check import ClientLoad
from trimtab.bench.turns import Conversation
from trimtab.bench.workload import Ask, Workload, render_body

__all__ = ["LoadPlan", "LoadRun", "Snapshot", "run_load"]

_CONNECT_S = 10.0
_OPEN_AT_ONCE = 64
_TICK_S = 0.01
_SNAPSHOT_S = 0.25
STOPPED = "stopped"


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadPlan:
    """One load. ``rate`` None is the closed loop of ``concurrency`` users, else an open one.

    It ends after ``num_requests`` or ``most_s`` seconds of sending; requests then in flight are
    waited for, each at most ``timeout_s`` after its start. ``most_in_flight`` bounds an open loop.
    ``extra`` is the tail of each body, ``first_index`` keeps warm-up requests apart.
    """

    target: Target
    path: str
    api_key: str
    workload: Workload
    num_requests: int
    concurrency: int = 1
    rate: float | None = None
    arrivals: ArrivalKind = "poisson"
    is_trace: bool = False
    most_s: float = 600.0
    timeout_s: float = 600.0
    most_in_flight: int = 4096
    seed: int = 0
    ruler: Ruler = field(default_factory=Ruler)
    extra: bytes = b""
    first_index: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Snapshot:
    """How far a run is."""

    done: int
    failed: int
    in_flight: int
    output_tokens: int
    elapsed_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadRun:
    """What a load left: records in order of their end, and what the client cost."""

    records: tuple[RequestRecord, ...]
    started_s: float
    ended_s: float
    client: ClientLoad
    is_interrupted: bool


async def run_load(
    plan: LoadPlan, stop: asyncio.Event, show: Callable[[Snapshot], None] | None = None
) -> LoadRun:
    """Run a load to its end or until ``stop`` is set; requests then in flight are given up."""
    run = _Run(plan, stop)
    cpu_s, started_s = time.process_time(), now_s()
    watchers = [asyncio.ensure_future(run.watch_loop())]
    if show is not None:
        watchers.append(asyncio.ensure_future(run.show_progress(show)))
    try:
        await (run.run_closed() if plan.rate is None and not plan.is_trace else run.run_open())
    finally:
        for watcher in watchers:
            watcher.cancel()
        run.hang_up()
    ended_s = now_s()
    client = ClientLoad(
        send_lags_ms=run.send_lags_ms,
        loop_lags_ms=run.loop_lags_ms,
        cpu_s=time.process_time() - cpu_s,
        wall_s=ended_s - started_s,
    )
    if show is not None:
        show(run.snapshot())
    return LoadRun(
        records=tuple(run.records),
        started_s=started_s,
        ended_s=ended_s,
        client=client,
        is_interrupted=stop.is_set(),
    )


async def _wait_all(tasks: list[asyncio.Task[None]]) -> None:
    await asyncio.gather(*tasks)


class _Run:
    """One load under way."""

    def __init__(self, plan: LoadPlan, stop: asyncio.Event) -> None:
        self._plan, self._stop = plan, stop
        chance = random.Random(plan.seed)  # noqa: S311 - reproducible load, no secrets
        self._draw = chance.random
        # Arrival times have chance of their own: another workload must not move them.
        self._draw_arrival = random.Random(plan.seed + 1).random  # noqa: S311
        self._corpus = Corpus(random.Random(plan.seed + 2).random)  # noqa: S311
        self._head = plan.target.make_head(plan.path, plan.api_key)
        self._next = 0
        self._busy: set[Connection] = set()
        self._idle: list[Connection] = []
        self._started_s = now_s()
        self._tokens = 0
        self._failed = 0
        self.records: list[RequestRecord] = []
        self.send_lags_ms: list[float] = []
        self.loop_lags_ms: list[float] = []

    async def run_closed(self) -> None:
        """Every user sends its next request when the one before is over."""
        users = min(self._plan.concurrency, self._plan.num_requests)
        await self._open_ahead(users)
        self._started_s = now_s()
        await self._gather([asyncio.ensure_future(self._be_user()) for _ in range(users)])

    async def run_open(self) -> None:
        """Requests leave at their times, whatever the server does."""
        tasks: set[asyncio.Task[None]] = set()
        drawn = iterate_arrivals_s(self._plan.rate or 1.0, self._plan.arrivals, self._draw_arrival)
        while not self._is_over():
            ask = self._take_ask()
            at_s = self._started_s + (next(drawn) if ask.at_s is None else ask.at_s)
            if await self._wait_until(at_s):
                break
            tasks = {task for task in tasks if not task.done()}
            if len(tasks) >= self._plan.most_in_flight:
                record = RequestRecord(
                    index=ask.index, model=ask.model, scheduled_s=at_s, error="client_limit"
                )
                record.sent_s = record.ended_s = now_s()
                self._keep(record)
                continue
            tasks.add(asyncio.ensure_future(self._ask_once(ask, at_s)))
        await self._gather(list(tasks))

    async def _open_ahead(self, count: int) -> None:
        """Connections for every user before the clock starts: opening them is no part of a first token."""
        for begin in range(0, count, _OPEN_AT_ONCE):
            many = min(_OPEN_AT_ONCE, count - begin)
            made = await asyncio.gather(
                *(Connection.connect(self._plan.target, _CONNECT_S) for _ in range(many)),
                return_exceptions=True,
            )
            self._idle.extend(each for each in made if isinstance(each, Connection))
            if self._stop.is_set() or not any(isinstance(each, Connection) for each in made):
                return  # requests say what is wrong

    async def _gather(self, tasks: list[asyncio.Task[None]]) -> None:
        """Wait for all; a stop gives up what is in flight."""
        stopped: asyncio.Future[object] = asyncio.ensure_future(self._stop.wait())
        whole: asyncio.Future[object] = asyncio.ensure_future(_wait_all(tasks))
        await asyncio.wait({stopped, whole}, return_when=asyncio.FIRST_COMPLETED)
        stopped.cancel()
        if self._stop.is_set():
            for connection in list(self._busy):
                connection.fail(STOPPED, "the run was stopped")
        await whole

    async def _be_user(self) -> None:
        while not self._is_over():
            ask = self._take_ask()
            if ask.turns > 1:
                await self._converse(ask)
            else:
                await self._ask_once(ask, now_s())

    async def _converse(self, ask: Ask) -> None:
        """Turns of one conversation, each with the answers before it."""
        conversation = Conversation(ask, self._corpus, self._plan.ruler, self._plan.extra)
        for turn in range(ask.turns):
            texts: list[str] = []
            record = await self._exchange(ask, conversation.render(turn), now_s(), texts)
            if record.error or self._stop.is_set():
                return
            conversation.add_answer("".join(texts))

    async def _ask_once(self, ask: Ask, at_s: float) -> None:
        await self._exchange(ask, render_body(ask, self._corpus, self._plan.ruler, self._plan.extra), at_s)

    async def _exchange(
        self, ask: Ask, body: bytes, at_s: float, texts: list[str] | None = None
    ) -> RequestRecord:
        record = RequestRecord(
            index=ask.index,
            model=ask.model,
            scheduled_s=at_s,
            input_tokens=ask.input_tokens,
            asked_output_tokens=ask.output_tokens,
        )
        pieces = (self._head, str(len(body)).encode(), b"\r\n\r\n", body)
        connection = await self._get_connection(record)
        if connection is not None:
            await self._send(connection, pieces, record, texts)
            if record.error == "disconnected" and connection.was_stale:
                await self._send_again(pieces, record, texts)
        self._keep(record)
        return record

    async def _send_again(
        self, pieces: tuple[bytes, ...], record: RequestRecord, texts: list[str] | None
    ) -> None:
        """Once more on a new connection; the clock goes on from the first time."""
        first_s = record.sent_s
        record.error = record.detail = ""
        connection = await self._connect(record)
        if connection is not None:
            await self._send(connection, pieces, record, texts)
        record.sent_s = first_s

    async def _send(
        self,
        connection: Connection,
        pieces: tuple[bytes, ...],
        record: RequestRecord,
        texts: list[str] | None,
    ) -> None:
        self._busy.add(connection)
        over = connection.send(pieces, record, texts)
        limit = asyncio.get_running_loop().call_later(
            self._plan.timeout_s, connection.fail, "timeout", f"no end after {self._plan.timeout_s:g} s"
        )
        await over
        limit.cancel()
        self._busy.discard(connection)
        if connection.is_open:
            self._idle.append(connection)

    async def _get_connection(self, record: RequestRecord) -> Connection | None:
        while self._idle:
            connection = self._idle.pop()
            if connection.is_open:
                return connection
        return await self._connect(record)

    async def _connect(self, record: RequestRecord) -> Connection | None:
        try:
            return await Connection.connect(self._plan.target, _CONNECT_S)
        except (OSError, TimeoutError) as error:
            refused = isinstance(error, ConnectionRefusedError)
            record.error = "connect"
            record.detail = "connection refused" if refused else str(error) or type(error).__name__
            record.sent_s = record.ended_s = now_s()
            # A server that refuses is not asked again and again without a breath.
            await asyncio.sleep(0.05)
            return None

    def _keep(self, record: RequestRecord) -> None:
        self.records.append(record)
        if record.error:
            self._failed += 1
        else:
            self.send_lags_ms.append(max(0.0, (record.sent_s - record.scheduled_s) * 1e3))
        self._tokens += record.output_tokens

    def _take_ask(self) -> Ask:
        index = self._plan.first_index + self._next
        self._next += 1
        return self._plan.workload.make(index, self._draw)

    def _is_over(self) -> bool:
        return (
            self._stop.is_set()
            or self._next >= self._plan.num_requests
            or now_s() - self._started_s >= self._plan.most_s
        )

    async def _wait_until(self, at_s: float) -> bool:
        """Sleep to a moment; True when a stop or the time limit came first."""
        left = at_s - now_s()
        if left <= 0:
            await asyncio.sleep(0)
            return self._stop.is_set()
        end_left = self._started_s + self._plan.most_s - now_s()
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(self._stop.wait(), min(left, max(0.0, end_left)))
        return self._stop.is_set() or left > end_left

    async def watch_loop(self) -> None:
        """How late the loop comes back to a tick."""
        while True:
            due = now_s() + _TICK_S
            await asyncio.sleep(_TICK_S)
            self.loop_lags_ms.append(max(0.0, (now_s() - due) * 1e3))

    async def show_progress(self, show: Callable[[Snapshot], None]) -> None:
        """A few times a second."""
        while True:
            show(self.snapshot())
            await asyncio.sleep(_SNAPSHOT_S)

    def snapshot(self) -> Snapshot:
        """How far it is."""
        return Snapshot(
            done=len(self.records) - self._failed,
            failed=self._failed,
            in_flight=len(self._busy),
            output_tokens=self._tokens,
            elapsed_s=now_s() - self._started_s,
        )

    def hang_up(self) -> None:
        """Close every connection."""
        for connection in (*self._idle, *self._busy):
            connection.close()
