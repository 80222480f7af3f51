"""I/O. Carries a try out: each model's engine, its loads within the budget, and the result kept all along."""

from __future__ import annotations

import asyncio
import signal
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Final

from trimtab.bench.try_points import Cut, TryLimits, TryPoint, choose_point, cut_rest, list_points
from trimtab.bench.try_result import PointResult, SpeedCorrections, TriedModel, compare_memory
from trimtab.cli.folders import Folders
from trimtab.cli.listeners import starting_text
from trimtab.cli.progress import Progress
from trimtab.cli.try_engine import StartedEngine, run_engine
from trimtab.cli.try_load import PointLoad, TryEndpoint, measure_point
from trimtab.cli.try_prepare import PreparedTry, TryJob
from trimtab.errors import TrimtabError
from trimtab.launcher.calibration_store import SpeedStore
from trimtab.launcher.supervise import SupervisorEvent
from trimtab.planner.calibration import key_of
from trimtab.planner.speed_calibration import MeasuredPoint, summarise_points
from trimtab.planner.speed_ratios import SpeedRatio
from trimtab.planner.try_speed import PointSpeed, SpeedQuestion, predict_load
from trimtab.planner.vllm_evaluate import oldest_of
from trimtab.stackfile.names import served_name_of

__all__ = ["TrySession"]

_SIGNALS: Final = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
# A point of which nothing is known yet: so long per token of its prompts, and of its answers.
_GUESS_PROMPT_S: Final = 0.0005
_GUESS_ANSWER_S: Final = 0.03


@dataclass(slots=True, kw_only=True)
class _Pace:
    """How much longer loads take than was expected, from the last that ran."""

    ratio: float = 1.0


class TrySession:
    """One command's tries. ``keep`` is called with all that was found after every step."""

    def __init__(
        self,
        prepared: PreparedTry,
        folders: Folders,
        *,
        budget_s: float,
        keep: Callable[[tuple[TriedModel, ...], float], None],
    ) -> None:
        self._prepared, self._folders = prepared, folders
        self._budget_s = budget_s
        self._keep = keep
        self._stop = asyncio.Event()
        self._began_s = time.monotonic()
        self._tried: list[TriedModel] = []
        # Then a signal ends the load under way, and what it gave so far counts.
        self._is_measuring = False
        self.failure: TrimtabError | None = None

    @property
    def is_interrupted(self) -> bool:
        """Whether a signal came."""
        return self._stop.is_set()

    @property
    def tried(self) -> tuple[TriedModel, ...]:
        """What was found, one per model that was begun."""
        return tuple(self._tried)

    @property
    def elapsed_s(self) -> float:
        """Seconds since the first start."""
        return time.monotonic() - self._began_s

    async def run(self, progress: Progress) -> None:
        """Try one model after the other; a signal ends it, what was found stays."""
        loop = asyncio.get_running_loop()
        for number in _SIGNALS:
            loop.add_signal_handler(number, self._stop.set)
        self._began_s = time.monotonic()
        jobs = self._prepared.jobs
        for index, job in enumerate(jobs):
            if self._stop.is_set():
                return
            end_s = self._began_s + self._budget_s * (index + 1) / len(jobs)
            self._tried.append(_begin(job))
            work = asyncio.ensure_future(self._try_model(job, end_s, progress))
            stopping = asyncio.ensure_future(self._stop.wait())
            await asyncio.wait({work, stopping}, return_when=asyncio.FIRST_COMPLETED)
            stopping.cancel()
            if not work.done() and not self._is_measuring:
                work.cancel()
            await asyncio.gather(work, return_exceptions=True)
            self._close(work)

    def _close(self, work: asyncio.Task[None]) -> None:
        """What ended the work; a failure of one model does not end the others."""
        if work.cancelled():
            self._change(notes=(*self._tried[-1].notes, "interrupted before it answered"))
            return
        error = work.exception()
        if isinstance(error, TrimtabError):
            self.failure = error
            self._change(failure=error.message)
        elif error is not None:
            raise error

    def _change(self, **changes: object) -> None:
        self._tried[-1] = replace(self._tried[-1], **changes)  # type: ignore[arg-type]
        self._keep(self.tried, self.elapsed_s)

    async def _try_model(self, job: TryJob, end_s: float, progress: Progress) -> None:
        def show(event: SupervisorEvent) -> None:
            if event.kind in {"started", "loading"}:
                progress.show_phase(starting_text(event.model, event.phase, event.expected_s))
            elif event.kind in {"exited", "failed"}:
                progress.note(f"{event.replica_id}: {event.text}")

        left_s = max(1.0, end_s - time.monotonic())
        async with run_engine(job, self._folders, most_s=left_s, show=show) as engine:
            self._note_start(job, engine)
            self._is_measuring = True
            try:
                await self._measure(job, engine, end_s, progress)
            finally:
                self._is_measuring = False
            self._calibrate(job)
            progress.show_phase(f"stopping {job.model.name}")

    def _note_start(self, job: TryJob, engine: StartedEngine) -> None:
        replica = job.model.replicas[0]
        budget = min(replica.per_gpu, key=lambda item: item.kv_cache_bytes, default=None)
        notes = list(self._tried[-1].notes)
        if job.is_cpu_build:
            notes.append(
                "vLLM is a build for CPUs: it proves that the model starts and answers with these settings,"
                " and says nothing about cards; nothing was calibrated"
            )
        elif not engine.is_calibrated:
            notes.append("the log's figures do not add up with the plan: memory was not calibrated")
        memory = compare_memory(budget, replica, engine.facts, is_cpu_build=job.is_cpu_build)
        self._change(
            start_s=engine.start_s,
            memory=memory,
            is_memory_calibrated=engine.is_calibrated,
            notes=tuple(notes),
        )

    async def _measure(self, job: TryJob, engine: StartedEngine, end_s: float, progress: Progress) -> None:
        endpoint = TryEndpoint(
            base_url=engine.base_url, model=job.model.name, vocab_size=job.source.facts.vocab_size
        )
        waiting = list(list_points(_limits_of(job, engine)))
        pace, number = _Pace(), 0
        while waiting and not engine.death and not self._stop.is_set():
            left_s = end_s - time.monotonic()
            point = choose_point(((item, _cost_s(job, item, pace)) for item in waiting), left_s)
            if point is None:
                rest = ((item, _cost_s(job, item, pace)) for item in waiting)
                self._change(cuts=(*self._tried[-1].cuts, *cut_rest(rest, left_s)))
                return
            waiting.remove(point)
            number += 1
            progress.show_phase(f"measuring {job.model.name}: {point}")
            load = await measure_point(
                point, endpoint, (engine.died, self._stop), most_s=left_s, first_index=number * 1000
            )
            self._note_point(job, point, load)
            expected_s = _cost_s(job, point, _Pace())
            pace.ratio = max(0.1, load.wall_s / expected_s)
        if self._stop.is_set():
            left = "; ".join(str(item) for item in waiting)
            self._change(notes=(*self._tried[-1].notes, f"interrupted; not measured: {left}"))
        elif engine.death:
            self._change(failure=f"the engine ended while it was measured: {engine.death}")

    def _note_point(self, job: TryJob, point: TryPoint, load: PointLoad) -> None:
        figures = load.figures
        if not figures.completed and not figures.failed:
            why = "interrupted" if self._stop.is_set() else "the budget"
            cut = Cut(point=point, reason=f"{why}: not one answer in {load.wall_s:.0f} s")
            self._change(cuts=(*self._tried[-1].cuts, cut))
            return
        said = _predict(job, point)
        remarks = load.remarks
        if not load.is_whole and not figures.failed:
            remarks = (*remarks, f"{figures.completed} of {point.num_requests} requests came in time")
        result = PointResult(
            point=point,
            predicted_ttft_ms=said.ttft_ms if said else None,
            predicted_tpot_ms=said.tpot_ms if said else None,
            ttft_ms=figures.ttft_ms.mean if figures.ttft_ms else None,
            tpot_ms=figures.tpot_ms.mean if figures.tpot_ms else None,
            completed=figures.completed,
            failed=figures.failed,
            is_valid=load.is_valid,
            remarks=remarks,
        )
        self._change(points=(*self._tried[-1].points, result))

    def _calibrate(self, job: TryJob) -> None:
        """Keep the speed of a start on cards; speculation's is not told by random weights."""
        values = {item.name: item.value for item in job.model.settings}
        if job.is_cpu_build or not job.cards:
            return
        if values.get("speculative_config"):
            self._change(notes=(*self._tried[-1].notes, "speed was not calibrated: speculation is on"))
            return
        points = [
            point
            for result in self._tried[-1].points
            if result.is_valid and not result.failed and (point := _measured(job, result)) is not None
        ]
        key = key_of(oldest_of(job.cards), job.model.engine_version, job.model.checkpoint, values)
        record = summarise_points(points, key, at_s=time.time())
        if record is not None:
            SpeedStore(self._folders.state).add(record)
            self._change(corrections=SpeedCorrections(ttft=_ends(record.ttft), tpot=_ends(record.tpot)))


def _begin(job: TryJob) -> TriedModel:
    card = job.cards[0] if job.cards else None
    return TriedModel(
        name=job.model.name,
        checkpoint=_shown_checkpoint(job.model.checkpoint),
        engine_version=job.model.engine_version,
        card=(card.spec or card.name) if card is not None else "",
        num_cards=len(job.cards),
        is_cpu_build=job.is_cpu_build,
        has_tokenizer=job.has_tokenizer,
        settings=tuple((item.name, item.value) for item in job.model.settings),
        notes=job.notes,
    )


def _shown_checkpoint(checkpoint: str) -> str:
    """A repository by its name, a path by its last part: a result may be passed on."""
    return served_name_of(checkpoint) if checkpoint.startswith("/") else checkpoint


def _limits_of(job: TryJob, engine: StartedEngine) -> TryLimits:
    values = {item.name: item.value for item in job.model.settings}
    users = values.get("max_num_seqs")
    replica = job.model.replicas[0]
    return TryLimits(
        max_model_len=engine.facts.fitted_max_model_len or job.model.max_model_len,
        max_num_seqs=users if isinstance(users, int) and not isinstance(users, bool) else 1,
        kv_cache_tokens=engine.facts.kv_cache_tokens or replica.kv_cache_tokens,
    )


def _predict(job: TryJob, point: TryPoint) -> PointSpeed | None:
    if job.is_cpu_build or not job.cards:
        return None
    load = SpeedQuestion(
        concurrency=point.concurrency,
        input_tokens=point.input_tokens,
        output_tokens=point.output_tokens,
        rounds=point.rounds,
    )
    return predict_load(job.model, job.source, job.cards, load)


def _cost_s(job: TryJob, point: TryPoint, pace: _Pace) -> float:
    """Expected seconds of a load with its warm-up."""
    said = _predict(job, point)
    if said is not None:
        each = (said.ttft_ms + said.tpot_ms * (point.output_tokens - 1)) / 1e3
        return (each * point.rounds + said.ttft_ms / 1e3) * pace.ratio
    prompts = point.input_tokens * point.concurrency * (point.rounds + 1)
    return (prompts * _GUESS_PROMPT_S + point.rounds * point.output_tokens * _GUESS_ANSWER_S) * pace.ratio


def _measured(job: TryJob, result: PointResult) -> MeasuredPoint | None:
    said = _predict(job, result.point)
    if said is None:
        return None
    return MeasuredPoint(
        concurrency=result.point.concurrency,
        input_tokens=result.point.input_tokens,
        predicted_ttft_ms=said.plain_ttft_ms,
        predicted_tpot_ms=said.plain_tpot_ms,
        ttft_ms=result.ttft_ms,
        tpot_ms=result.tpot_ms if result.point.kind == "decode" else None,
    )


def _ends(ratios: tuple[SpeedRatio, ...]) -> tuple[float, float]:
    found = [round(item.ratio, 4) for item in ratios]
    return min(found), max(found)
