"""I/O. Carries a benchmark out: probes, warm-up, loads, search; writes the result whatever ends it."""

from __future__ import annotations

import asyncio
import datetime as dt
import json
import signal
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import click

from trimtab import __version__
from trimtab.bench.driver import LoadPlan, LoadRun, run_load
from trimtab.bench.endpoint import (
    check_models,
    measure_ruler,
    read_concurrency,
    read_models,
    read_queue_totals,
)
from trimtab.bench.metrics import measure_load
from trimtab.bench.result import RunFacts, make_details, make_document, make_run
from trimtab.bench.saturation import Trial, best_load, next_load
from trimtab.bench.self_check import judge_client
from trimtab.bench.server_metrics import mean_queue_ms
from trimtab.bench.slo import share_meeting
from trimtab.cli.bench_html import check_can_render, write_page
from trimtab.cli.bench_predict import Predictor, make_predictor
from trimtab.cli.bench_progress import BenchProgress
from trimtab.cli.bench_report import render_document
from trimtab.cli.bench_wish import BenchWish, decode_wish, make_plan, make_warmup
from trimtab.errors import EnvironmentMissingError, StackFileError

__all__ = ["measure"]


def measure(values: dict[str, Any]) -> int:
    """Run it and print it; 0, or 1 when every request failed or the client was the bottleneck."""
    wish = decode_wish(values)
    _check_out("--out", values["out"])
    _check_out("--html", values["html"])
    if values["html"] is not None:
        check_can_render()
    document = _run_loop(_Session(wish, make_predictor(values)).run())
    if values["out"] is not None:
        Path(values["out"]).write_text(json.dumps(document, indent=1) + "\n", encoding="utf-8")
    if values["html"] is not None:
        write_page(document, values["html"])
    if not values["details"]:
        for each in document["runs"]:
            each.pop("details", None)
    click.echo(json.dumps(document, indent=2) if values["as_json"] else render_document(document))
    has_answers = any(each["completed"] for each in document["runs"])
    return 0 if has_answers and document["is_valid"] else 1


def _check_out(flag: str, path: str | None) -> None:
    """Better before the run than after it."""
    if path is not None and not Path(path).parent.is_dir():
        raise StackFileError(f"{flag} {path}: its folder does not exist")


def _run_loop(session: Any) -> dict[str, Any]:
    """On uvloop where there is one: the meter's own time counts."""
    factory = None
    with suppress(ImportError):
        import uvloop  # noqa: PLC0415 - not on Windows

        factory = uvloop.new_event_loop
    with asyncio.Runner(loop_factory=factory) as runner:
        document: dict[str, Any] = runner.run(session)
        return document


class _Session:
    """One command's loads, in order."""

    def __init__(self, wish: BenchWish, predict: Predictor | None) -> None:
        self._wish = wish
        self._predict = predict
        self._stop = asyncio.Event()
        self._runs: list[dict[str, Any]] = []
        self._notes: list[str] = []

    async def run(self) -> dict[str, Any]:
        """The result document; a Ctrl-C ends the load in flight and keeps what there is."""
        loop = asyncio.get_running_loop()
        for number in (signal.SIGINT, signal.SIGTERM):
            loop.add_signal_handler(number, self._stop.set)
        await self._find_models()
        with BenchProgress() as progress:
            first = make_plan(self._wish, self._wish.loads[0])
            progress.say(f"asking {self._wish.endpoint} for its tokens per word ...")
            if not self._stop.is_set():
                await check_models(first, [name for name, _ in self._wish.workload.models], self._stop)
            ruler = await self._measure_ruler(first)
            best = await (
                self._search(progress, ruler) if self._wish.is_search else self._sweep(progress, ruler)
            )
        return self._document(best)

    async def _find_models(self) -> None:
        """The model of an endpoint that serves one need not be named."""
        if self._wish.models or any(ask.model for ask in self._wish.workload.asks):
            return
        names = await read_models(self._wish.target, self._wish.values["api_key"])
        if not names:
            raise EnvironmentMissingError(
                f"{self._wish.endpoint} lists no models", hint="name one with --model"
            )
        if len(names) > 1:
            raise StackFileError(
                f"{self._wish.endpoint} serves {len(names)} models: {', '.join(names[:5])}",
                hint=f"--model {names[0]}",
            )
        self._wish = replace(
            self._wish, models=names, workload=replace(self._wish.workload, models=((names[0], 1.0),))
        )

    async def _measure_ruler(self, plan: LoadPlan) -> LoadPlan:
        """The plan with the server's tokens per word; as many words as tokens where it counts none."""
        if self._wish.values["prompts"] is not None or self._stop.is_set():
            return plan
        ruler = await measure_ruler(plan, [name for name, _ in self._wish.workload.models], self._stop)
        if isinstance(ruler, str):
            self._notes.append(f"{ruler}: one word was taken as one token")
            return plan
        return replace(plan, ruler=ruler)

    async def _sweep(self, progress: BenchProgress, first: LoadPlan) -> None:
        for load in self._wish.loads:
            if self._stop.is_set():
                return
            await self._one_load(load, first, progress)

    async def _search(self, progress: BenchProgress, first: LoadPlan) -> float | None:
        """Double until the objectives break, then close in."""
        trials: list[Trial] = []
        values = self._wish.values
        while not self._stop.is_set():
            load = next_load(
                trials, first=self._wish.loads[0], most=values["max_load"], is_whole=not self._wish.is_open
            )
            if load is None:
                break
            run = await self._one_load(load, first, progress)
            share = share_meeting([r for r in run.records if r.error != "stopped"], self._wish.slos)
            trials.append(Trial(load=load, is_met=share >= values["slo_share"]))
        return best_load(trials)

    async def _one_load(self, load: float, first: LoadPlan, progress: BenchProgress) -> LoadRun:
        plan = replace(make_plan(self._wish, load), ruler=first.ruler)
        warmup = make_warmup(self._wish, plan)
        if warmup is not None:
            progress.say(f"{_name_load(plan)}: warming up ...")
            progress.begin(f"{_name_load(plan)}, warm-up", warmup)
            await run_load(warmup, self._stop, progress.show)
        await self._note_queue(plan)
        before = await read_queue_totals(plan.target)
        progress.begin(_name_load(plan), plan)
        run = await run_load(plan, self._stop, progress.show)
        after = await read_queue_totals(plan.target)
        facts = RunFacts(
            concurrency=plan.concurrency if plan.rate is None and not plan.is_trace else None,
            rate=plan.rate,
            num_prompts=len(run.records),
            slos=self._wish.slos,
            is_interrupted=run.is_interrupted,
            server_queue_ms=mean_queue_ms(before, after),
        )
        document = make_run(facts, measure_load(run.records, self._wish.slos), judge_client(run.client))
        document["predicted"] = self._predict_load(plan, document)
        document["details"] = make_details(run.records)
        self._runs.append(document)
        return run

    async def _note_queue(self, plan: LoadPlan) -> None:
        """Say where a closed loop has more users than the server works on at once."""
        names = [name for name, _ in plan.workload.models]
        if self._stop.is_set() or plan.rate is not None or plan.is_trace or len(names) != 1:
            return
        slots = await read_concurrency(plan.target, names[0])
        if slots is not None and plan.concurrency > slots:
            self._notes.append(
                f"{_name_load(plan)}: the server works on {slots} at once, the others wait in its queue, and"
                " TTFT has that wait in it"
            )

    def _predict_load(self, plan: LoadPlan, run: dict[str, Any]) -> dict[str, Any] | None:
        """For the lengths that were really run; an open loop has no number of users to ask for."""
        done = run["completed"]
        if self._predict is None or plan.rate is not None or plan.is_trace or not done:
            return None
        means = (round(run["total_input_tokens"] / done), round(run["total_output_tokens"] / done))
        return self._predict(plan.concurrency, max(1, means[0]), max(1, means[1]), done // plan.concurrency)

    def _document(self, best: float | None) -> dict[str, Any]:
        values, workload = self._wish.values, self._wish.workload
        described = {
            "models": dict(workload.models),
            "input_tokens": [workload.input_tokens.low, workload.input_tokens.high],
            "output_tokens": [workload.output_tokens.low, workload.output_tokens.high],
            "prefix_tokens": workload.prefix_tokens,
            "num_prefixes": workload.num_prefixes,
            "turns": workload.turns,
            "file": values["prompts"] or values["trace"],
            "arrivals": values["arrivals"] if self._wish.is_open else None,
            "seed": values["seed"],
        }
        found = make_document(
            date=dt.datetime.now(dt.UTC).isoformat(timespec="seconds"),
            version=__version__,
            endpoint=self._wish.endpoint,
            workload=described,
            runs=self._runs,
        )
        found["notes"] = self._notes
        if self._wish.is_search:
            found["find_max"] = {
                "of": values["find_max"], "slo_share": values["slo_share"], "largest_load": best,
            }  # fmt: skip
        return found


def _name_load(plan: LoadPlan) -> str:
    if plan.is_trace:
        return "trace"
    if plan.rate is not None:
        return f"{plan.rate:g} requests/s"
    return "1 user" if plan.concurrency == 1 else f"{plan.concurrency} users"
