"""I/O. One load of a try on a started engine: prompts as token ids, a warm-up, then what counts."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from dataclasses import dataclass

from trimtab.bench.connection import Target, decode_target
from trimtab.bench.driver import LoadPlan, run_load
from trimtab.bench.metrics import LoadFigures, measure_load
from trimtab.bench.self_check import SelfCheck, judge_client
from trimtab.bench.try_points import TryPoint
from trimtab.bench.workload import IdRange, LengthRange, Workload

__all__ = ["PointLoad", "TryEndpoint", "measure_point"]

# Ids of new tokens come with every chunk, so that tokens whose text is empty count as well.
_EXTRA = (
    b',"stream":true,"stream_options":{"include_usage":true},"ignore_eos":true,"temperature":0'
    b',"return_token_ids":true'
)
_WARM_TOKENS = 2048
_WARM_USERS = 8
_MOST_IDS = 100_000
_PATH = "/v1/completions"
# Room for the loop's own time beside what is left.
_LEAST_S = 0.5


@dataclass(frozen=True, slots=True, kw_only=True)
class TryEndpoint:
    """Where the engine answers, under which name, and how many tokens it knows."""

    base_url: str
    model: str
    vocab_size: int

    @property
    def target(self) -> Target:
        """For the meter."""
        return decode_target(self.base_url)

    @property
    def ids(self) -> IdRange:
        """Usual tokens: the first of a vocabulary are bytes and marks, the last are often unused."""
        return IdRange(low=min(1000, self.vocab_size // 10), end=min(_MOST_IDS, self.vocab_size))


@dataclass(frozen=True, slots=True, kw_only=True)
class PointLoad:
    """What one load gave; ``is_whole``: every request came in time. ``remarks`` qualify the figures.

    ``is_valid`` is False where the client was the bottleneck.
    """

    figures: LoadFigures
    is_valid: bool
    is_whole: bool
    wall_s: float
    remarks: tuple[str, ...]


async def measure_point(
    point: TryPoint,
    endpoint: TryEndpoint,
    stops: Iterable[asyncio.Event],
    *,
    most_s: float,
    first_index: int,
) -> PointLoad:
    """Run one load, within ``most_s`` seconds and until one of ``stops``; what is in flight is given up."""
    loop = asyncio.get_running_loop()
    began_s = loop.time()
    ending = asyncio.Event()
    timer = loop.call_later(max(_LEAST_S, most_s), ending.set)
    passing = [asyncio.ensure_future(_pass_on(stop, ending)) for stop in stops]
    try:
        await run_load(_warm_up(point, endpoint, first_index), ending)
        run = await run_load(_plan(point, endpoint, first_index), ending)
    finally:
        timer.cancel()
        for task in passing:
            task.cancel()
    figures, check = measure_load(run.records), judge_client(run.client)
    return PointLoad(
        figures=figures,
        is_valid=check.is_valid,
        is_whole=figures.completed == point.num_requests,
        wall_s=loop.time() - began_s,
        remarks=_remarks(check, figures),
    )


async def _pass_on(stop: asyncio.Event, ending: asyncio.Event) -> None:
    await stop.wait()
    ending.set()


def _plan(point: TryPoint, endpoint: TryEndpoint, first_index: int) -> LoadPlan:
    return LoadPlan(
        target=endpoint.target,
        path=_PATH,
        api_key="",
        workload=_workload(endpoint, point.input_tokens, point.output_tokens),
        num_requests=point.num_requests,
        concurrency=point.concurrency,
        seed=first_index,
        extra=_EXTRA,
        first_index=first_index,
    )


def _warm_up(point: TryPoint, endpoint: TryEndpoint, first_index: int) -> LoadPlan:
    users = min(point.concurrency, _WARM_USERS)
    return LoadPlan(
        target=endpoint.target,
        path=_PATH,
        api_key="",
        workload=_workload(endpoint, min(point.input_tokens, _WARM_TOKENS), 2),
        num_requests=users,
        concurrency=users,
        seed=first_index + 1,
        extra=_EXTRA,
        first_index=first_index + 500_000,
    )


def _workload(endpoint: TryEndpoint, input_tokens: int, output_tokens: int) -> Workload:
    return Workload(
        models=((endpoint.model, 1.0),),
        input_tokens=LengthRange(low=input_tokens, high=input_tokens),
        output_tokens=LengthRange(low=output_tokens, high=output_tokens),
        ids=endpoint.ids,
    )


def _remarks(check: SelfCheck, figures: LoadFigures) -> tuple[str, ...]:
    found = list(check.reasons)
    if figures.failed:
        found.append(f"{figures.failed} requests failed; for one: {figures.error_example}")
    if figures.total_cached_tokens:
        found.append(f"{figures.total_cached_tokens:,} prompt tokens came from the prefix cache")
    if figures.num_short:
        found.append(f"{figures.num_short} answers were shorter than asked for")
    return tuple(found)
