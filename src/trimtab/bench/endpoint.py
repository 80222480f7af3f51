"""I/O. What an endpoint says about itself before and after a load: its models, its queue, its tokens."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

import aiohttp

from trimtab.bench.connection import Target
from trimtab.bench.corpus import Ruler
from trimtab.bench.driver import LoadPlan, run_load
from trimtab.bench.server_metrics import QueueTotals, decode_queue_totals
from trimtab.bench.workload import LengthRange, Workload
from trimtab.errors import EnvironmentMissingError

__all__ = ["measure_ruler", "read_models", "read_queue_totals"]

_ASK_S = 10.0
_MOST_METRICS_BYTES = 16 * 1024**2
_PROBE_TOKENS = (16, 96)


def _url(target: Target, path: str) -> str:
    host = f"[{target.host}]" if ":" in target.host else target.host
    return f"{'https' if target.is_tls else 'http'}://{host}:{target.port}{target.base_path}{path}"


async def read_models(target: Target, api_key: str) -> tuple[str, ...]:
    """Names under /v1/models; EnvironmentMissingError when the endpoint cannot be reached or asked."""
    headers = {"Authorization": f"Bearer {api_key}"} if api_key else {}
    url = _url(target, "/v1/models")
    try:
        async with _session() as session, session.get(url, headers=headers) as answer:
            if answer.status != 200:
                raise EnvironmentMissingError(
                    f"{url} answers {answer.status}", hint="name the model with --model, or pass --api-key"
                )
            document = await answer.json(content_type=None)
    except (aiohttp.ClientError, TimeoutError, ValueError) as error:
        raise EnvironmentMissingError(
            f"{url} cannot be read: {error or type(error).__name__}", hint="is the server up at this address?"
        ) from None
    rows = document.get("data") if isinstance(document, dict) else None
    return tuple(
        row["id"]
        for row in (rows if isinstance(rows, list) else ())
        if isinstance(row, dict) and isinstance(row.get("id"), str)
    )


async def read_queue_totals(target: Target) -> QueueTotals | None:
    """The engine's queue histogram; None where there is no Prometheus text, whatever is there instead."""
    try:
        async with _session() as session, session.get(_url(target, "/metrics")) as answer:
            if answer.status != 200:
                return None
            body = await answer.content.read(_MOST_METRICS_BYTES)
    except (aiohttp.ClientError, TimeoutError, OSError):
        return None
    return decode_queue_totals(body.decode("utf-8", "replace"))


def _session() -> aiohttp.ClientSession:
    return aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=_ASK_S))


async def measure_ruler(plan: LoadPlan, models: Sequence[str], stop: asyncio.Event) -> Ruler | None:
    """Tokens per word as this server counts them, from two short prompts; None when it counts nothing."""
    points: list[tuple[int, int]] = []
    for tokens in _PROBE_TOKENS:
        probe = LoadPlan(
            target=plan.target,
            path=plan.path,
            api_key=plan.api_key,
            workload=Workload(
                models=tuple((name, 1.0 / len(models)) for name in models),
                input_tokens=LengthRange(low=tokens, high=tokens),
                output_tokens=LengthRange(low=1, high=1),
            ),
            num_requests=1,
            timeout_s=plan.timeout_s,
            seed=plan.seed + 17,
            extra=plan.extra,
            first_index=900_000 + tokens,
        )
        run = await run_load(probe, stop)
        record = run.records[0] if run.records else None
        if record is None or record.error or record.count_source != "server":
            return None
        points.append((Ruler().words_for(tokens), record.input_tokens))
    return Ruler.from_probes(points[0], points[1])
